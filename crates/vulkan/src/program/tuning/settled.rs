//! What a process has chosen for its devices, whichever model asked.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::survey::ChosenShapes;

/// How long after a step of one Program no other one measures.
const QUIET: Duration = Duration::from_secs(5);

/// What a process has chosen and not measured yet, for each device. Clones share it: one value for
/// all the devices that a process opens makes a model that is loaded again compute the same bits.
#[derive(Clone, Default)]
pub struct Settled {
    devices: Arc<Mutex<HashMap<String, Arc<OfDevice>>>>,
}

impl fmt::Debug for Settled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settled").finish_non_exhaustive()
    }
}

/// What is known of one device.
#[derive(Default)]
pub(super) struct OfDevice {
    choices: Mutex<Choices>,
    /// Held by who measures: launches of two Programs at once would disturb each other.
    turn: Mutex<()>,
    traffic: Mutex<Traffic>,
}

#[derive(Default)]
pub(super) struct Choices {
    pub(super) chosen: ChosenShapes,
    /// Keys that later processes would like to be measured.
    pub(super) unmeasured: HashSet<String>,
}

#[derive(Default)]
struct Traffic {
    /// The number of Programs so far.
    programs: u64,
    /// Which of them ran the last step, and when.
    last: Option<(u64, Instant)>,
}

impl Settled {
    /// Returns what is known of a device.
    pub(super) fn of(&self, fingerprint: &str) -> Arc<OfDevice> {
        lock(&self.devices).entry(fingerprint.to_owned()).or_default().clone()
    }
}

impl OfDevice {
    pub(super) fn choices(&self) -> MutexGuard<'_, Choices> {
        lock(&self.choices)
    }

    /// Returns a number that no other Program has.
    pub(super) fn enter(&self) -> u64 {
        let mut traffic = lock(&self.traffic);
        traffic.programs += 1;
        traffic.programs
    }

    /// Notes that a Program runs a step.
    pub(super) fn note_step(&self, program: u64) {
        lock(&self.traffic).last = Some((program, Instant::now()));
    }

    /// Returns the right to measure, unless another Program measures or has just run a step.
    pub(super) fn turn(&self, program: u64) -> Option<MutexGuard<'_, ()>> {
        let is_busy = lock(&self.traffic)
            .last
            .is_some_and(|(other, when)| other != program && when.elapsed() < QUIET);
        let turn = match self.turn.try_lock() {
            Ok(turn) => Some(turn),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        };
        turn.filter(|_| !is_busy)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_program_measures_at_a_time_and_none_beside_anothers_steps() {
        let settled = Settled::default();
        let (device, same, other) = (settled.of("a"), settled.clone().of("a"), settled.of("b"));
        let [first, second] = [device.enter(), same.enter()];
        assert_ne!(first, second);
        let turn = device.turn(first);
        assert!(turn.is_some() && same.turn(second).is_none() && other.turn(1).is_some());
        drop(turn);
        assert!(same.turn(second).is_some());
        device.note_step(first);
        assert!(same.turn(second).is_none(), "the first runs steps");
        assert!(device.turn(first).is_some(), "it knows itself that it does not");
    }
}
