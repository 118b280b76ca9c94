//! Reads sensors while something runs.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::sensor::{Method, Sensor};

/// The time between two samples.
const PERIOD: Duration = Duration::from_millis(50);
/// The most watts that are believed: more than any machine that runs one model takes.
const WATTS_MAX: f64 = 1e5;

/// What sensors measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Energy {
    /// The seconds between the first and the last sample.
    pub seconds: f64,
    /// The joules by each sensor, in their order; `None` if it failed.
    pub joules: Vec<Option<f64>>,
}

/// The energy by one sensor so far.
#[derive(Debug, Clone, Copy)]
struct Sum {
    joules: f64,
    last: u64,
}

/// The energy by all sensors so far.
#[derive(Debug)]
pub(super) struct Meter {
    sensors: Vec<Sensor>,
    /// `None` once a sensor has failed.
    sums: Vec<Option<Sum>>,
    /// The time of the last sample.
    at: Duration,
    /// The time between the first sample and the last one.
    elapsed: Duration,
}

impl Meter {
    /// Takes the first sample, at the time `at` of any clock.
    pub(super) fn new(sensors: Vec<Sensor>, at: Duration) -> Self {
        let first = |sensor: &Sensor| Some(Sum { joules: 0.0, last: sensor.read()? });
        let sums = sensors.iter().map(first).collect();
        Self { sensors, sums, at, elapsed: Duration::ZERO }
    }

    /// Takes a sample, at the time `at` of the same clock.
    pub(super) fn sample(&mut self, at: Duration) {
        let passed = at.saturating_sub(self.at);
        for (sensor, sum) in self.sensors.iter().zip(&mut self.sums) {
            *sum = sum.and_then(|sum| sum.after(sensor, passed.as_secs_f64()));
        }
        self.at = at;
        self.elapsed += passed;
    }

    /// Returns what was measured.
    pub(super) fn energy(&self) -> Energy {
        let seconds = self.elapsed.as_secs_f64();
        // A counter that stands still, as in virtual machines, measures nothing.
        let is_sound = |joules: &f64| *joules > 0.0 && *joules <= WATTS_MAX * seconds;
        let joules = self.sums.iter().map(|sum| sum.map(|sum| sum.joules).filter(is_sound));
        Energy { seconds, joules: joules.collect() }
    }
}

impl Sum {
    /// Returns the sum with the energy of the last `seconds`; `None` if the sensor fails.
    fn after(self, sensor: &Sensor, seconds: f64) -> Option<Self> {
        let now = sensor.read()?;
        let more = match sensor.method {
            Method::Counter { range } => joules_between(self.last, now, range)?,
            Method::Power => {
                let watts = |value: u64| Some(value as f64 / 1e6).filter(|w| *w <= WATTS_MAX);
                (watts(self.last)? + watts(now)?) / 2.0 * seconds
            }
        };
        Some(Self { joules: self.joules + more, last: now })
    }
}

/// Returns the joules between two values of a counter of microjoules; `None` if the counter went
/// back and does not begin again after `range`.
fn joules_between(before: u64, now: u64, range: Option<u64>) -> Option<f64> {
    let microjoules = match now.checked_sub(before) {
        Some(difference) => difference as f64,
        None => range?.checked_sub(before)? as f64 + now as f64,
    };
    Some(microjoules / 1e6)
}

/// Sensors that are being read, on a thread named `energy`. Dropping it ends the thread.
#[derive(Debug)]
pub struct Metering {
    stop: Sender<()>,
    thread: JoinHandle<Energy>,
}

impl Metering {
    /// Takes the first sample and begins to take more; `None` without sensors, or without a thread.
    pub(super) fn start(sensors: &[Sensor]) -> Option<Self> {
        if sensors.is_empty() {
            return None;
        }
        let (stop, stopped) = channel();
        let begin = Instant::now();
        let mut meter = Meter::new(sensors.to_vec(), begin.elapsed());
        let work = move || {
            let mut has_ended = false;
            while !has_ended {
                has_ended = stopped.recv_timeout(PERIOD) != Err(RecvTimeoutError::Timeout);
                meter.sample(begin.elapsed());
            }
            meter.energy()
        };
        let thread = std::thread::Builder::new().name("energy".to_owned()).spawn(work).ok()?;
        Some(Self { stop, thread })
    }

    /// Takes the last sample and returns what was measured.
    pub fn stop(self) -> Option<Energy> {
        // An error means that the thread has ended already, which `join` tells too.
        let _ = self.stop.send(());
        self.thread.join().ok()
    }
}
