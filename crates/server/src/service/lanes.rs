//! Two lanes: the runtime that answers requests, and another one for large bodies, whose threads
//! give way to all others.
//!
//! A body of megabytes takes as much processor time as thousands of short requests. On the threads
//! of the first lane it would delay each of them, and a client that sends one body after the other
//! would leave them little. In the second lane such bodies delay each other: the system gives its
//! threads the time that the first lane, the engines and other programs leave, and data that is not
//! read in time fills the sender's buffer, so that the sender waits too.
//!
//! The HTTP library reads a body in the task of its connection, so it is that task that moves:
//! [`ride`] runs a connection in one lane until its [`Switch`] names the other one.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::runtime::{Builder, Handle, Runtime};

/// Bytes of a body that is read in the first lane.
pub(crate) const LIGHT_BYTES: usize = 1 << 12;

/// Name of the second lane's threads.
pub(crate) const BULK: &str = "bulk";
/// How much nicer they are than the threads that start them, in the system's units: it gives them
/// about a tenth of a processor that others want too.
#[cfg(target_os = "linux")]
const NICER: i32 = 10;
/// The highest niceness of a thread.
#[cfg(target_os = "linux")]
const NICEST: i32 = 19;

/// The second lane.
#[derive(Debug)]
pub(crate) struct Bulk {
    handle: Handle,
    runtime: Mutex<Option<Runtime>>,
}

impl Bulk {
    /// Starts a thread for connections. Threads for work that takes processor time are added as
    /// needed; `App::work` bounds how many run.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub(crate) fn start() -> io::Result<Self> {
        // Threads begin with the priority of those that start them, which may be in this lane.
        let usual = Priority::of_thread();
        let give_way = move || usual.lower();
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1).thread_name(BULK).on_thread_start(give_way).enable_all();
        let runtime = builder.build()?;
        Ok(Self { handle: runtime.handle().clone(), runtime: Mutex::new(Some(runtime)) })
    }

    /// Returns the runtime that its tasks are spawned on.
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Ends the tasks in it, without waiting for them.
    pub(crate) fn end(&self) {
        let runtime = self.runtime.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(runtime) = runtime {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Bulk {
    fn drop(&mut self) {
        self.end();
    }
}

/// How much a thread gives way. Linux has a priority for each thread, other systems only for whole
/// processes.
#[derive(Debug, Clone, Copy)]
struct Priority {
    #[cfg(target_os = "linux")]
    nice: i32,
}

impl Priority {
    /// Returns the priority of the calling thread.
    fn of_thread() -> Self {
        Self {
            #[cfg(target_os = "linux")]
            nice: rustix::process::getpriority_process(None).unwrap_or(0),
        }
    }

    /// Lets the calling thread give way to threads of this priority.
    fn lower(self) {
        #[cfg(target_os = "linux")]
        if let Err(error) =
            rustix::process::setpriority_process(None, (self.nice + NICER).min(NICEST))
        {
            tracing::debug!(%error, "a thread for large bodies has the usual priority");
        }
    }
}

/// A connection, whichever lane it is in.
type Connection = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Says in which lane a connection is to be, and in which one it is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Switch(Arc<Lanes>);

#[derive(Debug, Default)]
struct Lanes {
    wants_bulk: AtomicBool,
    is_bulk: AtomicBool,
}

impl Switch {
    /// Continues in the second lane, or in the first one. For the connection's own task.
    pub(crate) async fn change(&self, to_bulk: bool) {
        self.0.wants_bulk.store(to_bulk, Ordering::Release);
        // The task that moves the connection polls it again: nobody has to be woken.
        let has_arrived = |_: &mut Context<'_>| {
            if self.0.is_bulk.load(Ordering::Acquire) == to_bulk {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        };
        poll_fn(has_arrived).await;
    }
}

/// The tasks of a connection's lanes.
#[derive(Debug, Clone)]
struct Road {
    first: Handle,
    bulk: Handle,
    switch: Switch,
}

/// Runs a connection to its end, from now on in the present runtime and, when `switch` says so, in
/// the second lane.
pub(crate) fn ride(connection: Connection, switch: Switch, bulk: &Bulk) {
    let road = Road { first: Handle::current(), bulk: bulk.handle().clone(), switch };
    leg(connection, road, false);
}

/// Runs a connection in one lane.
fn leg(connection: Connection, road: Road, is_bulk: bool) {
    let lane = if is_bulk { &road.bulk } else { &road.first };
    lane.clone().spawn(async move {
        road.switch.0.is_bulk.store(is_bulk, Ordering::Release);
        let switch = road.switch.clone();
        if let Some(connection) = (Leg { connection: Some(connection), switch, is_bulk }).await {
            leg(connection, road, !is_bulk);
        }
    });
}

/// A connection while it is in one lane. Hands it back when it wants to change.
struct Leg {
    connection: Option<Connection>,
    switch: Switch,
    is_bulk: bool,
}

impl Future for Leg {
    type Output = Option<Connection>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Connection>> {
        let Some(connection) = &mut self.connection else { return Poll::Ready(None) };
        if connection.as_mut().poll(context).is_ready() {
            return Poll::Ready(None);
        }
        if self.switch.0.wants_bulk.load(Ordering::Acquire) == self.is_bulk {
            return Poll::Pending;
        }
        Poll::Ready(self.connection.take())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use super::*;

    fn thread() -> String {
        std::thread::current().name().unwrap_or_default().to_owned()
    }

    /// Sends the threads that a connection runs on before, in and after the second lane.
    async fn tell(switch: Switch, told: Sender<String>) {
        told.send(thread()).unwrap();
        for to_bulk in [true, true, false, true, false] {
            switch.change(to_bulk).await;
            told.send(thread()).unwrap();
            // A timer of one runtime wakes the task in the other one.
            tokio::time::sleep(Duration::from_millis(1)).await;
            told.send(thread()).unwrap();
        }
    }

    #[test]
    fn a_connection_changes_lanes_and_comes_back() {
        let mut builder = Builder::new_multi_thread();
        let first = builder.worker_threads(1).thread_name("first").enable_all().build().unwrap();
        let bulk = Bulk::start().unwrap();
        let (sender, told) = channel();
        let switch = Switch::default();
        let connection = Box::pin(tell(switch.clone(), sender));
        first.block_on(async { ride(connection, switch, &bulk) });
        let told: Vec<String> = told.iter().collect();
        let (one, other) = ("first", BULK);
        let expected = [one, other, other, other, other, one, one, other, other, one, one];
        assert_eq!(told, expected);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn its_threads_give_way() {
        let nice = || rustix::process::getpriority_process(None).unwrap();
        let usual = nice();
        let bulk = Bulk::start().unwrap();
        let (sender, told) = channel();
        let (second, third) = (sender.clone(), sender.clone());
        bulk.handle().spawn(async move {
            sender.send(nice()).unwrap();
            // A thread that a thread of the lane has started.
            tokio::task::spawn_blocking(move || second.send(nice()).unwrap());
        });
        bulk.handle().spawn_blocking(move || third.send(nice()).unwrap());
        let told: Vec<i32> = told.iter().collect();
        assert_eq!(told, [(usual + NICER).min(NICEST); 3]);
        assert_eq!(nice(), usual);
    }

    #[test]
    fn what_is_in_it_ends_with_it() {
        let bulk = Bulk::start().unwrap();
        let (sender, told) = channel::<()>();
        bulk.handle().spawn(async move {
            let _held = sender;
            std::future::pending::<()>().await;
        });
        bulk.end();
        let ended = Err(std::sync::mpsc::RecvTimeoutError::Disconnected);
        assert_eq!(told.recv_timeout(Duration::from_secs(60)), ended);
    }
}
