//! The NPU as a [`Partner`] of a device that runs Plans. Never run on silicon.
//!
//! Products are those of the kernel `a8w8acc32`: activations in two terms of 8 bits, weights in one
//! (decision 036). `Products::Int8` of
//! `trine_backend::reference` defines the result up to the order of a sum in f32.
//!
//! | module | holds |
//! |---|---|
//! | `band` | from weights in a model's format to tiles |
//! | `cutting` | how a matrix becomes tiles of the kernel's shapes |
//! | `int8` | the way from floats to whole numbers of 8 bits and back |
//! | `share` | how much of a matrix is lent |
//! | `sizes` | of the kernel |
//! | `worker` | the thread that owns the device |

mod band;
mod cutting;
mod int8;
mod share;
mod sizes;
mod worker;

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use trine_backend::{BackendError, Loan, Partner, Tally};
use trine_model::{Weight, WeightKind};
use trine_weights::Tensor;

use crate::pack::Pack;
use crate::sys::Sys;
use cutting::tiles;
pub use share::Share;
use share::Timed;
pub use sizes::{BLOCK, ROWS_MAX};
use worker::{Job, Kernels, Worker};

/// An NPU with a kernel pack.
pub struct NpuPartner {
    /// `None` while it ends.
    jobs: Mutex<Option<Sender<Job>>>,
    thread: Option<JoinHandle<()>>,
    share: Share,
    timed: Timed,
    is_model: bool,
    loans: AtomicUsize,
    tally: Arc<Tally>,
}

impl fmt::Debug for NpuPartner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NpuPartner").field("share", &self.share).finish_non_exhaustive()
    }
}

impl NpuPartner {
    /// Opens a device, such as [`DEVICE_PATH`](crate::driver::DEVICE_PATH), for the streams of a
    /// pack, and tries a product on it. If the share depends on it, the time of a command is
    /// measured too.
    ///
    /// # Errors
    ///
    /// Returns an error if the pack has no stream that can be used, if the device cannot be opened,
    /// or if the product is not the exact one.
    pub fn open<S: Sys + 'static>(
        sys: S,
        path: &str,
        pack: &Pack,
        share: Share,
    ) -> Result<Self, String> {
        let kernels = Kernels::of(pack)?;
        let is_model = kernels.are_stand_in();
        let tally = Arc::new(Tally::default());
        let (path, counted) = (path.to_owned(), Arc::clone(&tally));
        let (jobs, received) = channel();
        let (opened, is_open) = channel();
        let run = move || {
            let worker = Worker::open(sys, &path, kernels, counted).and_then(|mut worker| {
                let timed = worker.try_out(matches!(share, Share::Fastest { .. }))?;
                Ok((worker, timed))
            });
            match worker {
                Ok((mut worker, timed)) => {
                    if opened.send(Ok(timed)).is_ok() {
                        worker.serve(&received);
                    }
                }
                Err(error) => drop(opened.send(Err(error))),
            }
        };
        let thread = thread::Builder::new().name("npu".to_owned()).spawn(run);
        let thread = thread.map_err(|error| format!("the system grants no thread: {error}"))?;
        let gone = || Err("the thread that opens it ended early; please report this".to_owned());
        let timed = is_open.recv().unwrap_or_else(|_| gone())?;
        Ok(Self {
            jobs: Mutex::new(Some(jobs)),
            thread: Some(thread),
            share,
            timed,
            is_model,
            loans: AtomicUsize::new(0),
            tally,
        })
    }

    fn jobs(&self) -> Result<Sender<Job>, BackendError> {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.clone().ok_or_else(ended)
    }
}

impl Drop for NpuPartner {
    fn drop(&mut self) {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = self.thread.take() {
            // A wait for the device has a limit. A panic there has been reported by then.
            let _ = thread.join();
        }
    }
}

/// The device's name in messages.
const NAME: &str = "the NPU";

fn failed(what: String) -> BackendError {
    BackendError::Failed { device: NAME.to_owned(), what }
}

fn ended() -> BackendError {
    failed("the thread that owns it has ended; please report this".to_owned())
}

impl Partner for NpuPartner {
    fn name(&self) -> String {
        match self.is_model {
            true => "npu (trine's model of one)".to_owned(),
            false => format!("npu ({})", crate::UNTESTED),
        }
    }

    fn kept(&self, weight: &Weight) -> usize {
        match weight.kind {
            WeightKind::Matrix => self.share.kept(weight.rows, weight.columns, &self.timed),
            WeightKind::Vector => weight.rows,
        }
    }

    fn bytes(&self, weight: &Weight) -> u64 {
        let tiles = tiles(weight.rows, weight.columns, self.timed.widths());
        let weights: usize = tiles.iter().map(|tile| BLOCK * tile.width).sum();
        let scales = weight.rows * weight.columns.div_ceil(BLOCK) * size_of::<f32>();
        (weights + scales) as u64
    }

    fn load(&self, matrices: &[Tensor]) -> Result<Box<dyn Loan>, BackendError> {
        let number = self.loans.fetch_add(1, Ordering::Relaxed);
        let jobs = self.jobs()?;
        let (done, outcome) = channel();
        let load = Job::Load { number, matrices: matrices.to_vec(), done };
        jobs.send(load).map_err(|_| ended())?;
        outcome.recv().map_err(|_| ended())?.map_err(failed)?;
        let columns = matrices.iter().map(Tensor::columns).collect();
        Ok(Box::new(NpuLoan { jobs, number, columns, begun: None }))
    }

    fn tally(&self) -> &Tally {
        &self.tally
    }
}

/// Matrices in the NPU's memory.
struct NpuLoan {
    jobs: Sender<Job>,
    number: usize,
    /// In-features of each matrix.
    columns: Vec<usize>,
    begun: Option<Receiver<Result<Vec<Vec<f32>>, String>>>,
}

impl Loan for NpuLoan {
    fn begin(&mut self, input: &[f32], matrices: &[usize]) -> Result<(), BackendError> {
        // The answer to a product that was never asked for goes nowhere.
        self.begun = None;
        let columns = matrices.first().map_or(1, |first| self.columns[*first]);
        if matrices.iter().any(|index| self.columns[*index] != columns)
            || !input.len().is_multiple_of(columns)
        {
            let what = "the input of a product fits not all of its matrices; please report this";
            return Err(BackendError::BadBatch { what: what.to_owned() });
        }
        let (done, outcome) = channel();
        let (loan, input, matrices) = (self.number, input.to_vec(), matrices.to_vec());
        self.jobs.send(Job::Multiply { loan, input, matrices, done }).map_err(|_| ended())?;
        self.begun = Some(outcome);
        Ok(())
    }

    fn finish(&mut self, outputs: &mut [&mut [f32]]) -> Result<(), BackendError> {
        let begun = self.begun.take().ok_or_else(|| BackendError::BadBatch {
            what: "no product was begun; please report this".to_owned(),
        })?;
        let computed = begun.recv().map_err(|_| ended())?.map_err(failed)?;
        for (output, computed) in outputs.iter_mut().zip(&computed) {
            output.copy_from_slice(computed);
        }
        Ok(())
    }
}

impl Drop for NpuLoan {
    fn drop(&mut self) {
        // If the thread has ended, its memory has gone with it.
        let _ = self.jobs.send(Job::Forget { number: self.number });
    }
}
