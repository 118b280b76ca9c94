//! Energy and power as reported by the machine's own sensors, for metrics.
//!
//! | files | unit | source |
//! |---|---|---|
//! | `class/powercap/ZONE/energy_uj`, `max_energy_range_uj` | microjoules, a count that wraps at the range | Linux, `Documentation/power/powercap` |
//! | `class/hwmon/hwmonN/energyK_input` | microjoules, a count | Linux, `Documentation/hwmon/sysfs-interface` |
//! | `class/hwmon/hwmonN/powerK_average`, `powerK_input` | microwatts | the same |
//!
//! They count the whole package or card, whoever uses it. Many systems let only root read energies.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Most sensors that are looked at.
const SENSORS_MAX: usize = 64;
/// Most files of a folder that are looked at.
const FILES_MAX: usize = 1024;

/// The sensors that were readable when they were looked for.
#[derive(Debug, Default)]
pub(crate) struct Sensors {
    energies: Vec<Energy>,
    powers: Vec<Sensor>,
}

/// The value of a sensor.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reading {
    /// The driver's name for the sensor and its place, for a label.
    pub(crate) sensor: String,
    /// Joules since it was first read, or watts.
    pub(crate) value: f64,
}

#[derive(Debug)]
struct Sensor {
    name: String,
    file: PathBuf,
}

/// A count of microjoules.
#[derive(Debug)]
struct Energy {
    sensor: Sensor,
    /// The value at which it wraps, or `None` if it does not.
    range: Option<u64>,
    last: u64,
    /// Microjoules since it was first read.
    total: u64,
}

impl Sensors {
    /// Looks for sensors below `/sys`.
    pub(crate) fn find() -> Self {
        Self::below(Path::new("/sys"))
    }

    fn below(root: &Path) -> Self {
        let mut found = Self::default();
        for zone in entries(&root.join("class/powercap")) {
            found.energy(&zone, zone.join("energy_uj"), number(&zone.join("max_energy_range_uj")));
        }
        for monitor in entries(&root.join("class/hwmon")) {
            let files = entries(&monitor);
            for file in &files {
                let name = file.file_name().unwrap_or_default().to_string_lossy();
                if name.starts_with("energy") && name.ends_with("_input") {
                    found.energy(&monitor, file.clone(), None);
                }
                // An average, where there is one, says more than a momentary value.
                let is_moment = name.starts_with("power") && name.ends_with("_input");
                let has_average = files.contains(&monitor.join(name.replace("_input", "_average")));
                if name.starts_with("power") && name.ends_with("_average")
                    || is_moment && !has_average
                {
                    found.power(&monitor, file.clone());
                }
            }
        }
        found
    }

    fn energy(&mut self, folder: &Path, file: PathBuf, range: Option<u64>) {
        if self.energies.len() < SENSORS_MAX
            && let Some(last) = number(&file)
        {
            let sensor = Sensor { name: label(folder, &file), file };
            self.energies.push(Energy { sensor, range, last, total: 0 });
        }
    }

    fn power(&mut self, folder: &Path, file: PathBuf) {
        if self.powers.len() < SENSORS_MAX && number(&file).is_some() {
            self.powers.push(Sensor { name: label(folder, &file), file });
        }
    }

    /// Returns the joules of each energy sensor since it was found. A count that wrapped more than
    /// once in between is short by whole ranges.
    pub(crate) fn energies(&mut self) -> Vec<Reading> {
        let read = |energy: &mut Energy| {
            if let Some(now) = number(&energy.sensor.file) {
                energy.total += match energy.range {
                    Some(range) if now < energy.last => now + range.saturating_sub(energy.last),
                    _ => now.saturating_sub(energy.last),
                };
                energy.last = now;
            }
            Reading { sensor: energy.sensor.name.clone(), value: energy.total as f64 * 1e-6 }
        };
        self.energies.iter_mut().map(read).collect()
    }

    /// Returns the watts of each power sensor that can be read.
    pub(crate) fn powers(&self) -> Vec<Reading> {
        let read = |sensor: &Sensor| {
            let value = number(&sensor.file)? as f64 * 1e-6;
            Some(Reading { sensor: sensor.name.clone(), value })
        };
        self.powers.iter().filter_map(read).collect()
    }
}

/// Returns the entries of a folder, ordered by name.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let found = std::fs::read_dir(folder).into_iter().flatten().take(FILES_MAX);
    let mut paths: Vec<PathBuf> = found.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths
}

/// Returns the beginning of a file.
fn text(file: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(file).ok()?.take(64).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned())
}

fn number(file: &Path) -> Option<u64> {
    text(file)?.parse().ok()
}

/// Returns a label such as `package-0 (intel-rapl:0)` or `amdgpu (hwmon4 power1)`.
fn label(folder: &Path, file: &Path) -> String {
    let last = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let place = match last(file).split_once('_') {
        Some((channel, _)) if channel != "energy" => format!("{} {channel}", last(folder)),
        _ => last(folder),
    };
    match text(&folder.join("name")) {
        Some(name) => format!("{name} ({place})"),
        None => place,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, file: &str, text: &str) {
        let path = root.join(file);
        std::fs::create_dir_all(path.parent().expect("it has a folder")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    }

    fn readings(found: &[(&str, f64)]) -> Vec<Reading> {
        let reading = |&(sensor, value): &(&str, f64)| Reading { sensor: sensor.into(), value };
        found.iter().map(reading).collect()
    }

    #[test]
    fn energies_are_counted_over_the_end_of_their_range() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        write(root, "class/powercap/intel-rapl:0/name", "package-0\n");
        write(root, "class/powercap/intel-rapl:0/energy_uj", "9000000\n");
        write(root, "class/powercap/intel-rapl:0/max_energy_range_uj", "10000000\n");
        write(root, "class/hwmon/hwmon1/name", "xe\n");
        write(root, "class/hwmon/hwmon1/energy1_input", "5\n");
        let mut sensors = Sensors::below(root);
        let names = ["package-0 (intel-rapl:0)", "xe (hwmon1 energy1)"];
        assert_eq!(sensors.energies(), readings(&[(names[0], 0.0), (names[1], 0.0)]));
        write(root, "class/powercap/intel-rapl:0/energy_uj", "2000000");
        write(root, "class/hwmon/hwmon1/energy1_input", "1000005");
        assert_eq!(sensors.energies(), readings(&[(names[0], 3.0), (names[1], 1.0)]));
        // A sensor that is gone keeps its count.
        std::fs::remove_file(root.join("class/hwmon/hwmon1/energy1_input")).expect("it is there");
        assert_eq!(sensors.energies(), readings(&[(names[0], 3.0), (names[1], 1.0)]));
    }

    #[test]
    fn powers_are_averages_where_there_are_any() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        write(root, "class/hwmon/hwmon4/name", "amdgpu\n");
        write(root, "class/hwmon/hwmon4/power1_average", "25000000\n");
        write(root, "class/hwmon/hwmon4/power1_input", "31000000\n");
        write(root, "class/hwmon/hwmon4/power1_cap", "54000000\n");
        write(root, "class/hwmon/hwmon5/power2_input", "1500000\n");
        write(root, "class/hwmon/hwmon6/power1_input", "N/A\n");
        let sensors = Sensors::below(root);
        let expected = [("amdgpu (hwmon4 power1)", 25.0), ("hwmon5 power2", 1.5)];
        assert_eq!(sensors.powers(), readings(&expected));
    }

    #[test]
    fn a_system_without_sensors_has_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut sensors = Sensors::below(folder.path());
        assert!(sensors.energies().is_empty() && sensors.powers().is_empty());
    }
}
