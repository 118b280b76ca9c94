//! Loads weights while the kernels that the passes will ask for are compiled: on a machine that has
//! not run a model before, a driver takes longer for kernels than the weights take.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::Instant;

use trine_backend::BackendError;
use trine_model::Model;

use super::catalogue::catalogue;
use super::lowered::{Lowered, Plans};
use super::selection::Selection;
use crate::raw::gpu::Gpu;
use crate::raw::pipeline::KernelKey;
use crate::weights::{Progress, Weights};

/// Loads the weights of a Program, and compiles what its passes launch by the static tables.
///
/// # Errors
/// As [`Weights::load`]. What is wrong with a kernel, recording its launch says.
pub(super) fn load(
    gpu: &Arc<Gpu>,
    model: &Model,
    plans: Plans<'_>,
    graphs: &[Lowered],
    selection: &Selection,
    progress: Option<&Progress>,
) -> Result<Weights, BackendError> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Also if a panic ends the load.
        let ended = Ended(&is_over);
        let compile = || compile(gpu, plans, graphs, selection, &is_over);
        let thread = Builder::new().name("compiling".to_owned()).spawn_scoped(scope, compile);
        if let Err(error) = thread {
            tracing::debug!(%error, "kernels are not compiled ahead");
        }
        let begin = Instant::now();
        let weights = Weights::load(gpu, model, plans.plan, plans.lent, progress)?;
        std::mem::forget(ended);
        tracing::debug!(seconds = begin.elapsed().as_secs_f64(), "weights were loaded");
        Ok(weights)
    })
}

/// Ends compiling when it is dropped: no more kernels are begun.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn compile(
    gpu: &Gpu,
    plans: Plans<'_>,
    graphs: &[Lowered],
    selection: &Selection,
    is_over: &AtomicBool,
) {
    let begin = Instant::now();
    let kernels = match catalogue(plans, graphs, selection, false) {
        Ok(kernels) => kernels,
        Err(error) => {
            tracing::debug!(%error, "kernels are not compiled ahead");
            return;
        }
    };
    let keys: Vec<KernelKey> = kernels.into_iter().map(|kernel| kernel.key).collect();
    let kernels = gpu.compile_ahead(&keys, is_over);
    let (of, seconds) = (keys.len(), begin.elapsed().as_secs_f64());
    tracing::debug!(kernels, of, seconds, "kernels were compiled ahead");
}
