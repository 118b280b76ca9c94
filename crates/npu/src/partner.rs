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
//! | `sketch` | what an NPU would take, without one |
//! | `worker` | the thread that owns the device |

mod band;
mod cutting;
mod int8;
mod share;
mod sizes;
mod sketch;
mod worker;

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use trine_backend::{BackendError, Loan, Partner, Tally};
use trine_model::{Weight, WeightKind};
use trine_weights::Tensor;

use crate::locked::Limit;
use crate::pack::Pack;
use crate::sys::Sys;
use crate::uapi::HEAP_BYTES;
use cutting::{bytes, tiles_bytes};
pub use share::Share;
use share::Timed;
pub use sizes::{BLOCK, ROWS_MAX};
pub use sketch::Sketch;
use worker::{Job, Kernels, Worker, working_bytes};

/// An NPU with a kernel pack.
pub struct NpuPartner {
    /// `None` while it ends.
    jobs: Mutex<Option<Sender<Job>>>,
    thread: Option<JoinHandle<()>>,
    share: Share,
    opened: Opened,
    loans: AtomicUsize,
    /// Bytes of the matrices of all loans.
    lent_bytes: Arc<AtomicU64>,
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
        let tally = Arc::new(Tally::default());
        let (path, counted) = (path.to_owned(), Arc::clone(&tally));
        let (jobs, received) = channel();
        let (opened, is_open) = channel();
        let run = move || {
            let limit = Limit::of(&sys);
            let worker = Worker::open(sys, &path, kernels, counted).and_then(|mut worker| {
                let timed = worker.try_out(matches!(share, Share::Fastest { .. }))?;
                let (kernels, is_model) = (worker.kernels(), worker.is_model());
                Ok((worker, Opened { timed, kernels, is_model, limit }))
            });
            match worker {
                Ok((mut worker, answer)) => {
                    if opened.send(Ok(answer)).is_ok() {
                        worker.serve(&received);
                    }
                }
                Err(error) => drop(opened.send(Err(error))),
            }
        };
        let thread = thread::Builder::new().name("npu".to_owned()).spawn(run);
        let thread = thread.map_err(|error| format!("the system grants no thread: {error}"))?;
        let gone = || Err("the thread that opens it ended early; please report this".to_owned());
        let opened = is_open.recv().unwrap_or_else(|_| gone())?;
        Ok(Self {
            jobs: Mutex::new(Some(jobs)),
            thread: Some(thread),
            share,
            opened,
            loans: AtomicUsize::new(0),
            lent_bytes: Arc::default(),
            tally,
        })
    }

    /// Returns an error if matrices that take this many bytes cannot be locked with all others.
    fn check_room(&self, bytes: u64, columns: usize) -> Result<(), BackendError> {
        let Limit::Bytes(limit) = self.opened.limit else { return Ok(()) };
        let working: usize = self.opened.kernels.iter().map(|at| working_bytes(*at, columns)).sum();
        let others = self.lent_bytes.load(Ordering::Relaxed);
        let all = HEAP_BYTES + working as u64 + others + bytes;
        if all <= limit {
            return Ok(());
        }
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        Err(failed(format!(
            "its matrices take {} MiB, with all that the NPU sees {} MiB of locked memory, and \
             this process may lock {} MiB. Raise the limit (`ulimit -l {}`, memlock in \
             /etc/security/limits.conf, or LimitMEMLOCK of a service), or lend less with \
             --npu-share",
            mib(bytes),
            mib(all),
            limit >> 20,
            1024 * mib(all),
        )))
    }

    fn jobs(&self) -> Result<Sender<Job>, BackendError> {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.clone().ok_or_else(ended)
    }
}

impl Drop for NpuPartner {
    fn drop(&mut self) {
        if let Some(jobs) = self.jobs.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // Loans that are left have a sender too, so that the thread would wait for them.
            let _ = jobs.send(Job::End);
        }
        if let Some(thread) = self.thread.take() {
            // A wait for the device has a limit. A panic there has been reported by then.
            let _ = thread.join();
        }
    }
}

/// Rows of tiles that are loaded before other loans have their turn.
const BANDS_AT_ONCE: usize = 8;

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
        match self.opened.is_model {
            true => "npu (trine's model of one)".to_owned(),
            false => format!("npu ({})", crate::UNTESTED),
        }
    }

    fn kept(&self, weight: &Weight) -> usize {
        match weight.kind {
            WeightKind::Matrix => self.share.kept(weight.rows, weight.columns, &self.opened.timed),
            WeightKind::Vector => weight.rows,
        }
    }

    fn bytes(&self, weight: &Weight) -> u64 {
        bytes(weight.rows, weight.columns, self.opened.timed.widths())
    }

    fn load(&self, matrices: &[Tensor]) -> Result<Box<dyn Loan>, BackendError> {
        let number = self.loans.fetch_add(1, Ordering::Relaxed);
        let jobs = self.jobs()?;
        let bytes = |tensor: &Tensor| self.opened.tiles_bytes(tensor.rows(), tensor.columns());
        let bytes = matrices.iter().map(bytes).sum();
        let columns: Vec<usize> = matrices.iter().map(Tensor::columns).collect();
        self.check_room(bytes, columns.iter().copied().max().unwrap_or(0))?;
        let lent_bytes = Arc::clone(&self.lent_bytes);
        lent_bytes.fetch_add(bytes, Ordering::Relaxed);
        // Dropped, it gives back what was loaded of it.
        let loan = NpuLoan { jobs, number, columns, begun: None, bytes, lent_bytes };
        // Some at a time, so that products of other loans are not kept waiting for all of them.
        let mut left = matrices;
        while !left.is_empty() {
            let (some, others) = left.split_at(self.opened.at_once(left));
            let (done, outcome) = channel();
            let load = Job::Load { number, matrices: some.to_vec(), done };
            loan.jobs.send(load).map_err(|_| ended())?;
            outcome.recv().map_err(|_| ended())?.map_err(failed)?;
            left = others;
        }
        Ok(Box::new(loan))
    }

    fn tally(&self) -> &Tally {
        &self.tally
    }

    fn idle(&self) -> String {
        if self.loans.load(Ordering::Relaxed) > 0 {
            return format!(
                "no prompt came with more than {ROWS_MAX} tokens that were not kept from before"
            );
        }
        match self.share {
            Share::Fraction(part) => format!("a share of {part} lends it no row of any matrix"),
            Share::Fastest { operations_per_second } => {
                let width = self.opened.timed.widths().first().copied().unwrap_or(0);
                let operations = 2.0 * (ROWS_MAX * BLOCK * width) as f64;
                format!(
                    "by measurement it would save no time: {ROWS_MAX} rows of {BLOCK} x {width} \
                     take it {:.3} ms, and {:.3} ms without it",
                    1e3 * self.opened.timed.seconds(width, BLOCK),
                    1e3 * operations / operations_per_second
                )
            }
        }
    }
}

/// What is known once the device is open.
struct Opened {
    timed: Timed,
    /// Out-features and rows of each kernel.
    kernels: Vec<(usize, usize)>,
    is_model: bool,
    limit: Limit,
}

impl Opened {
    /// Returns how many of these matrices are loaded at once: with [`BANDS_AT_ONCE`], or one.
    fn at_once(&self, matrices: &[Tensor]) -> usize {
        let width = self.timed.widths().first().copied().unwrap_or(1);
        let mut bands = 0;
        let fits = |tensor: &&Tensor| {
            let fits = bands < BANDS_AT_ONCE;
            bands += tensor.rows().div_ceil(width);
            fits
        };
        matrices.iter().take_while(fits).count()
    }

    /// Returns the bytes of a matrix in the device's memory.
    fn tiles_bytes(&self, rows: usize, columns: usize) -> u64 {
        tiles_bytes(rows, columns, self.timed.widths())
    }
}

/// Matrices in the NPU's memory.
struct NpuLoan {
    jobs: Sender<Job>,
    number: usize,
    /// In-features of each matrix.
    columns: Vec<usize>,
    begun: Option<Receiver<Result<Vec<Vec<f32>>, String>>>,
    /// Bytes of the matrices, which are among those of all loans.
    bytes: u64,
    lent_bytes: Arc<AtomicU64>,
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
        self.lent_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
