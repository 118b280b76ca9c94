//! A vision tower on a thread of its own.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use sha2::{Digest, Sha256};
use trine_backend::BackendError;

use super::handle::PictureHandle;
use super::input::{PictureError, RunsTower, TowerInput};
use super::queue::{Name, Patches, TowerCounts, TowerQueue, TowerRows};

/// A handle to a vision tower on a thread of its own, which makes rows of one picture after the
/// other. Requests take turns: each has a picture made, in the order in which it wants its
/// pictures. Clones are cheap.
///
/// When the last handle is dropped the tower ends: pictures that wait get no rows, and a run is
/// stopped on the way where its device can do that. So is a run when the last [`PictureHandle`] of
/// its picture is dropped.
#[derive(Clone)]
pub struct Tower {
    handle: Arc<Handle>,
}

struct Handle {
    queue: Arc<TowerQueue>,
    identity: Name,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Tower {
    /// Starts a thread for a tower. `identity` tells towers apart that make other rows of the same
    /// patches: the fingerprint of its weights. Rows of up to `budget` bytes are kept, the ones
    /// that were used last.
    ///
    /// # Errors
    /// Returns an error if the system provides no thread.
    pub fn start(
        mut program: impl RunsTower + 'static,
        identity: [u8; 32],
        budget: usize,
    ) -> std::io::Result<Tower> {
        let queue = Arc::new(TowerQueue::new(budget));
        let own = Arc::clone(&queue);
        let body = move || work(&own, &mut program);
        let thread = std::thread::Builder::new().name("tower".to_owned()).spawn(body)?;
        let thread = Mutex::new(Some(thread));
        Ok(Tower { handle: Arc::new(Handle { queue, identity, thread }) })
    }

    /// Names a picture. Nothing is computed before an engine wants its rows.
    pub fn handle(&self, input: TowerInput) -> PictureHandle {
        self.picture(Patches { input, _room: None })
    }

    /// Does the same. `room` is dropped with the patches: when the rows are made, at once if they
    /// are kept or another handle has the patches, or else with the last handle of the picture.
    pub fn handle_in(&self, input: TowerInput, room: impl Send + 'static) -> PictureHandle {
        self.picture(Patches { input, _room: Some(Box::new(room)) })
    }

    fn picture(&self, patches: Patches) -> PictureHandle {
        let input = &patches.input;
        let Handle { queue, identity, .. } = &*self.handle;
        let mut name = Sha256::new_with_prefix("trine sight\n");
        name.update(identity);
        name.update(input.digest);
        for count in [input.grid.0, input.grid.1, input.soft_tokens] {
            name.update((count as u64).to_le_bytes());
        }
        PictureHandle::new(queue.picture(name.finalize().into(), patches), Arc::clone(queue))
    }

    /// Returns what the tower has done.
    pub fn counts(&self) -> TowerCounts {
        self.handle.queue.counts()
    }

    /// Ends the tower and waits for its thread, which frees the device. Pictures that wait get no
    /// rows.
    pub fn stop(&self) {
        self.handle.queue.close();
        let thread = self.handle.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the tower's thread had ended with a panic");
        }
    }
}

impl fmt::Debug for Tower {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Tower").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.queue.close();
    }
}

/// Makes rows until the tower is closed.
fn work(queue: &TowerQueue, program: &mut dyn RunsTower) {
    while let Some(turn) = queue.next() {
        let begin = Instant::now();
        program.stop_on(Arc::clone(&turn.stop));
        let made = rows(program, &turn.patches.input);
        let seconds = begin.elapsed().as_secs_f64();
        if let Err(error) = &made {
            // The engine warns of each sequence that ends because of it.
            tracing::debug!(%error, "an image has no rows");
        }
        queue.finish(turn, made, seconds);
    }
}

/// Makes and checks rows of a picture. A panic, which is a defect, ends only this run.
fn rows(program: &mut dyn RunsTower, input: &TowerInput) -> TowerRows {
    let made = catch_unwind(AssertUnwindSafe(|| program.rows(input)));
    let rows = match made {
        Ok(Ok(rows)) => rows,
        Ok(Err(BackendError::Stopped)) => return Err(PictureError::Stopped),
        Ok(Err(error)) => return Err(PictureError::Failed { what: error.to_string() }),
        Err(panic) => return Err(PictureError::Failed { what: message(&*panic) }),
    };
    let (found, soft_tokens) = (rows.len(), input.soft_tokens);
    if found == 0 || soft_tokens == 0 || !found.is_multiple_of(soft_tokens) {
        return Err(PictureError::OtherRows { found, soft_tokens });
    }
    if rows.iter().any(|value| !value.is_finite()) {
        return Err(PictureError::NotFinite { place: program.overflow() });
    }
    Ok(rows.into())
}

/// Returns what a panic says.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a defect in trine".to_owned())
}
