//! What programs take: wall time, and processor time where the system tells it.
//!
//! A thread's meter adds up the processor time of the programs that the thread has waited for
//! through this module, and of the threads that [`lanes`](crate::lanes) started for it, so that
//! steps at the same time on several threads are told apart.

use std::cell::Cell;
use std::io::{self, Read};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

thread_local! {
    static METER: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// The time that something took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    pub(crate) wall: Duration,
    /// Of all processors together; zero where the system does not tell it.
    pub(crate) processor: Duration,
}

impl Spent {
    /// Returns what was spent since an earlier reading of the same clock.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            wall: self.wall.saturating_sub(earlier.wall),
            processor: self.processor.saturating_sub(earlier.processor),
        }
    }
}

/// Runs a command to its end and returns its status.
pub(crate) fn status(command: &mut Command) -> io::Result<ExitStatus> {
    wait(&mut command.spawn()?)
}

/// Runs a command without input to its end and returns its status and what it wrote.
pub(crate) fn output(command: &mut Command) -> io::Result<Output> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let (out, errors) = (child.stdout.take(), child.stderr.take());
    // Both are read at once: a program waits while nobody reads what it writes.
    let (stdout, stderr) = std::thread::scope(|scope| {
        let other = scope.spawn(|| read(errors));
        (read(out), other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let status = wait(&mut child)?;
    Ok(Output { status, stdout: stdout?, stderr: stderr? })
}

fn read(pipe: Option<impl Read>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    pipe.map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut bytes))?;
    Ok(bytes)
}

/// Waits for the end of a program, and adds its processor time to the meter of this thread.
pub(crate) fn wait(child: &mut Child) -> io::Result<ExitStatus> {
    wait_until_ended(child)?;
    add(processor_time(child.id()));
    child.wait()
}

/// Adds processor time to the meter of this thread.
pub(crate) fn add(processor: Duration) {
    METER.set(METER.get() + processor);
}

/// Does work and returns with its result what it took: the wall time, and the processor time of
/// this thread and of what its meter counted.
pub(crate) fn measure<T>(work: impl FnOnce() -> T) -> (T, Spent) {
    let so_far = || METER.get() + thread_time();
    let (begin, before) = (Instant::now(), so_far());
    let result = work();
    (result, Spent { wall: begin.elapsed(), processor: so_far().saturating_sub(before) })
}

/// Returns the processor time of this thread; zero where the system does not tell it.
#[cfg(target_os = "linux")]
fn thread_time() -> Duration {
    use rustix::time::{ClockId, clock_gettime};

    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

#[cfg(not(target_os = "linux"))]
fn thread_time() -> Duration {
    Duration::ZERO
}

/// Waits for the end of a program and leaves its books, which the system discards once its status
/// is taken.
#[cfg(target_os = "linux")]
fn wait_until_ended(child: &Child) -> io::Result<()> {
    use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    loop {
        match waitid(WaitId::Pid(Pid::from_child(child)), options) {
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn wait_until_ended(_: &Child) -> io::Result<()> {
    Ok(())
}

/// Returns the processor time of a program so far, of all its threads and of the programs that it
/// has waited for. A program counts until its status is taken; zero where the system does not tell.
#[cfg(target_os = "linux")]
pub(crate) fn processor_time(id: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let seconds = ticks(&stat).unwrap_or(0) as f64 / rustix::param::clock_ticks_per_second() as f64;
    Duration::from_secs_f64(seconds)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn processor_time(_: u32) -> Duration {
    Duration::ZERO
}

/// Returns the ticks of a program: `utime`, `stime`, `cutime` and `cstime`, the 14th to 17th fields
/// of `/proc/PID/stat`, as the manual page proc_pid_stat(5) has them.
#[cfg(any(target_os = "linux", test))]
fn ticks(stat: &str) -> Option<u64> {
    // The second field is a name in parentheses, which may have spaces and parentheses in it.
    let (_, fields) = stat.rsplit_once(')')?;
    let times = fields.split_ascii_whitespace().skip(11);
    let times: Vec<u64> = times.take(4).map_while(|field| field.parse().ok()).collect();
    (times.len() == 4).then(|| times.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_those_of_the_program_and_of_its_children() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 900 80 0 0 1000 200 30 4 20 0 1 0 55 0 0";
        assert_eq!(ticks(stat), Some(1234));
        assert_eq!(ticks("7 (a) S 1 7 7 0 -1 4194560 900 80 0 0 1000 200 30"), None);
        assert_eq!(ticks(""), None);
    }

    /// A child of a child is counted once that has waited for it.
    #[test]
    #[cfg(target_os = "linux")]
    fn the_meter_counts_programs_and_their_children() {
        let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        let mut command = Command::new("sh");
        command.args(["-c", &format!("sh -c '{busy}'; exit 3")]);
        let (ended, spent) = measure(|| status(&mut command).unwrap());
        assert_eq!(ended.code(), Some(3));
        assert!(spent.processor >= Duration::from_millis(20), "{spent:?}");
        let on_another = std::thread::spawn(|| measure(|| status(&mut Command::new("true"))).1);
        assert!(on_another.join().unwrap().processor < spent.processor);
    }
}
