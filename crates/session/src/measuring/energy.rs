//! The energy of a measured run, by sensors that Linux has in `/sys`.
//!
//! A sensor counts energy, or tells power. Of a counter the energy is how far it came, whether it
//! began again on the way or not; of power it is the integral over samples, by trapezoids. A thread
//! reads all sensors 20 times a second, at the beginning and at the end. What the machine takes
//! when idle is part of it.
//!
//! Files of `/sys` may vanish, lie or hold anything. A sensor that does has no energy for that run.

mod find;
mod meter;
mod sensor;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use self::find::SensorSearch;
pub use self::meter::{Energy, Metering};
pub use self::sensor::Sensor;
use self::sensor::{ReadText, read};

/// All counters of RAPL.
const COUNTERS: &str = "/sys/class/powercap/*/energy_uj";

/// The sensors of a machine.
#[derive(Debug, Clone, Default)]
pub struct Sensors {
    sensors: Vec<Sensor>,
    /// Files of sensors that this user may not read.
    denied: Vec<PathBuf>,
}

impl Sensors {
    /// Finds the sensors that can be read. `sys` is the path of `/sys`.
    pub fn find(sys: &Path) -> Self {
        Self::find_by(sys, &read)
    }

    /// Finds the sensors with another way to read files.
    fn find_by(sys: &Path, read: ReadText<'_>) -> Self {
        let SensorSearch { sensors, denied, .. } = SensorSearch::of(sys, read);
        Self { sensors, denied }
    }

    /// Returns the sensors.
    pub fn list(&self) -> &[Sensor] {
        &self.sensors
    }

    /// Begins to measure; `None` if there is nothing to read.
    pub fn start(&self) -> Option<Metering> {
        Metering::start(&self.sensors)
    }

    /// Says what is not measured and why: if a part is missing, with `verbose` also if everything
    /// is.
    pub fn told(&self, verbose: bool) -> Option<String> {
        self.missing().filter(|_| verbose || !self.sensors.is_empty())
    }

    /// Returns a line about what is not measured, if there is anything to say.
    fn missing(&self) -> Option<String> {
        match (self.sensors.is_empty(), self.denied.as_slice()) {
            (false, []) => None,
            (true, []) => Some(
                "energy is not measured: no RAPL, no amdgpu, no counter of energy and no battery \
                 in use in /sys"
                    .to_owned(),
            ),
            (is_all, [first, rest @ ..]) => {
                let what = if is_all { "" } else { " by all sensors" };
                let more = match rest {
                    [] => String::new(),
                    rest => format!(" and {} more", rest.len()),
                };
                let first_file = first.display();
                let files = match first.ends_with("energy_uj") {
                    true => COUNTERS.to_owned(),
                    false => first_file.to_string(),
                };
                Some(format!(
                    "energy is not measured{what}: only root may read {first_file}{more}; \
                     `sudo chmod a+r {files}` allows it until the next start",
                ))
            }
        }
    }
}
