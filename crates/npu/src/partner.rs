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

use trine_backend::{BackendError, Give, Guest, Job, Partner, Tally};
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
use worker::{Kernels, Request, Worker, working_bytes};

/// An NPU with a kernel pack.
pub struct NpuPartner {
    /// `None` while it ends.
    requests: Mutex<Option<Sender<Request>>>,
    thread: Option<JoinHandle<()>>,
    share: Share,
    opened: Opened,
    guests: AtomicUsize,
    /// Bytes of the matrices of all guests.
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
        let (requests, received) = channel();
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
            requests: Mutex::new(Some(requests)),
            thread: Some(thread),
            share,
            opened,
            guests: AtomicUsize::new(0),
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

    fn requests(&self) -> Result<Sender<Request>, BackendError> {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.clone().ok_or_else(ended)
    }
}

impl Drop for NpuPartner {
    fn drop(&mut self) {
        if let Some(requests) = self.requests.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            // Guests that are left have a sender too, so that the thread would wait for them.
            let _ = requests.send(Request::End);
        }
        if let Some(thread) = self.thread.take() {
            // A wait for the device has a limit. A panic there has been reported by then.
            let _ = thread.join();
        }
    }
}

/// Rows of tiles that are loaded before other guests have their turn.
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

    fn load(&self, jobs: &[Vec<Tensor>]) -> Result<Box<dyn Guest>, BackendError> {
        let number = self.guests.fetch_add(1, Ordering::Relaxed);
        let (requests, matrices) = (self.requests()?, jobs.concat());
        let bytes = |tensor: &Tensor| self.opened.tiles_bytes(tensor.rows(), tensor.columns());
        let bytes = matrices.iter().map(bytes).sum();
        let most = matrices.iter().map(Tensor::columns).max().unwrap_or(0);
        self.check_room(bytes, most)?;
        let lent_bytes = Arc::clone(&self.lent_bytes);
        lent_bytes.fetch_add(bytes, Ordering::Relaxed);
        // Dropped, it gives back what was loaded of it.
        let columns = |job: &Vec<Tensor>| job.iter().map(Tensor::columns).collect();
        let columns = jobs.iter().map(columns).collect();
        let guest = NpuGuest { requests, number, columns, begun: None, bytes, lent_bytes };
        // Some at a time, so that products of other guests are not kept waiting for all of them.
        let mut left = &matrices[..];
        while !left.is_empty() {
            let (some, others) = left.split_at(self.opened.at_once(left));
            let (done, outcome) = channel();
            let load = Request::Load { number, matrices: some.to_vec(), done };
            guest.requests.send(load).map_err(|_| ended())?;
            outcome.recv().map_err(|_| ended())?.map_err(failed)?;
            left = others;
        }
        Ok(Box::new(guest))
    }

    fn tally(&self) -> &Tally {
        &self.tally
    }

    fn idle(&self) -> String {
        if self.guests.load(Ordering::Relaxed) > 0 {
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
struct NpuGuest {
    requests: Sender<Request>,
    number: usize,
    /// In-features of each matrix of each job.
    columns: Vec<Vec<usize>>,
    begun: Option<Receiver<Result<Vec<Vec<f32>>, String>>>,
    /// Bytes of the matrices, which are among those of all guests.
    bytes: u64,
    lent_bytes: Arc<AtomicU64>,
}

impl Guest for NpuGuest {
    fn begin(&mut self, job: &Job<'_>) -> Result<(), BackendError> {
        // The answer to a product that was never asked for goes nowhere.
        self.begun = None;
        let (input, columns) = (job.inputs[0], &self.columns[job.number]);
        if columns.iter().any(|columns| job.rows * columns != input.len()) {
            let what = "the input of a product fits not all of its matrices; please report this";
            return Err(BackendError::BadBatch { what: what.to_owned() });
        }
        let (done, outcome) = channel();
        let first = self.columns[..job.number].iter().map(Vec::len).sum();
        let (guest, input, matrices) = (self.number, input.to_vec(), first..first + columns.len());
        let multiply = Request::Multiply { guest, input, matrices, done };
        self.requests.send(multiply).map_err(|_| ended())?;
        self.begun = Some(outcome);
        Ok(())
    }

    fn finish(&mut self, _: &Job<'_>, give: &mut Give<'_>) -> Result<(), BackendError> {
        let begun = self.begun.take().ok_or_else(|| BackendError::BadBatch {
            what: "no product was begun; please report this".to_owned(),
        })?;
        let computed = begun.recv().map_err(|_| ended())?.map_err(failed)?;
        computed.iter().enumerate().for_each(|(index, rows)| give(index, rows));
        Ok(())
    }
}

impl Drop for NpuGuest {
    fn drop(&mut self) {
        // If the thread has ended, its memory has gone with it.
        let _ = self.requests.send(Request::Forget { number: self.number });
        self.lent_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
