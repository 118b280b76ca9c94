//! Series: steps of which each but the first runs the tokens that the one before it chose. The host
//! submits the recordings of their passes with a choice after each, and waits once.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use trine_backend::{ProgramOptions, SERIES_MAX};
use trine_model::Plan;

use super::frame::{Frame, SLOT_BITS};
use super::top_memory::{TopMemory, finds_top, top_rows};
use crate::dispatch::Span;
use crate::error::GpuError;
use crate::kernels::choose::ChooseLaunch;
use crate::raw::commands::{Ended, Recording};
use crate::raw::gpu::Gpu;
use crate::raw::meeting::Absent;

/// What runs the series of a Program.
pub(super) struct SeriesRuns {
    /// Chooses tokens after a step, and makes the frame that of the next one.
    choose: Recording,
    /// Runs the recordings of a series.
    all: Recording,
}

/// The passes of a series, by their indices.
#[derive(Debug, Clone, Copy)]
pub(super) struct Series {
    pub(super) first: usize,
    /// That of all other steps.
    pub(super) next: usize,
    /// How many steps follow the first.
    pub(super) more: usize,
}

impl Series {
    /// Returns the pass of the last step.
    pub(super) fn last(&self) -> usize {
        if self.more > 0 { self.next } else { self.first }
    }

    /// Returns the passes of all steps.
    pub(super) fn passes(&self) -> impl Iterator<Item = usize> + use<> {
        std::iter::once(self.first).chain(std::iter::repeat_n(self.next, self.more))
    }
}

/// Returns whether a Program runs series: the device finds the largest logits, and a step takes
/// nothing of the host that depends on tokens.
pub(super) fn runs_series(plan: &Plan, options: &ProgramOptions) -> bool {
    finds_top(plan, options) && options.width.outputs > 0 && plan.inputs.is_empty()
}

/// Returns the launch that chooses tokens after a step; `None` if a Program runs no series.
/// `changing` are the parts of its frame, `spans` where maxima and the tokens chosen are.
pub(super) fn choose_launch(
    plan: &Plan,
    options: &ProgramOptions,
    changing: [Span; 4],
    spans: [Span; 2],
) -> Option<ChooseLaunch> {
    let ([frame, outputs, tiles, series], [maxima, chosen]) = (changing, spans);
    runs_series(plan, options).then(|| ChooseLaunch {
        maxima,
        vocabulary: plan.output(0).columns,
        rows: top_rows(options.width.outputs),
        steps: 1 + SERIES_MAX,
        slot_bits: SLOT_BITS,
        frame,
        outputs,
        tiles,
        series,
        chosen,
    })
}

impl SeriesRuns {
    /// Records what a Program's series need; `None` if it runs none.
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        plan: &Plan,
        options: &ProgramOptions,
        frame: &Frame,
        top: &TopMemory,
    ) -> Result<Option<Self>, GpuError> {
        let (maxima, chosen) = (top.maxima.span(), top.chosen.span());
        let launch = choose_launch(plan, options, frame.changing(), [maxima, chosen]);
        let Some(launch) = launch else { return Ok(None) };
        let choose = Recording::record(gpu, &[launch.dispatch(gpu)?], &[], &[])?;
        Ok(Some(Self { choose, all: Recording::series(gpu)? }))
    }

    /// Waits for a series that nobody will wait for.
    pub(super) fn cancel(&mut self) {
        self.all.cancel();
    }

    /// Begins to run a series whose frame is written. `passes` are the recordings of its steps,
    /// each with the seconds that its submissions are predicted to take.
    pub(super) fn begin<'a>(
        &'a mut self,
        gpu: &Gpu,
        passes: impl Iterator<Item = (&'a Recording, &'a [f64])>,
        stop: Option<&AtomicBool>,
    ) -> Result<(), GpuError> {
        let Self { choose, all } = self;
        let choose = (&*choose, &[0.0][..]);
        all.follow(passes.flat_map(|pass| [pass, choose]), gpu.submission_seconds());
        all.begin(stop, "a series of steps")
    }

    /// Ends the run of a series.
    pub(super) fn finish(&mut self, stop: Option<&AtomicBool>) -> Result<Ended, GpuError> {
        self.all.finish(stop, &mut Absent, "a series of steps")
    }

    /// Chooses tokens after a step that was run by itself.
    pub(super) fn choose(&mut self) -> Result<(), GpuError> {
        self.choose.run("choosing tokens")
    }
}
