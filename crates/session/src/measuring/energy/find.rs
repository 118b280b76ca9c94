//! Finds sensors. The kernel's documentation describes the files: `power/powercap`, `hwmon`,
//! `gpu/amdgpu/thermal` and `sysfs-class-power`.

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use super::sensor::{Method, ReadText, Sensor, number};

/// The most entries of a folder that are looked at.
const ENTRIES_MAX: usize = 256;
/// The most sensors that are used.
const SENSORS_MAX: usize = 16;
/// The most characters of a name that are taken from a file.
const NAME_MAX: usize = 32;

/// A search for sensors, and what it found.
pub(super) struct SensorSearch<'a> {
    read: ReadText<'a>,
    /// The sensors that can be read.
    pub(super) sensors: Vec<Sensor>,
    /// The files of those that this user may not read.
    pub(super) denied: Vec<PathBuf>,
}

impl<'a> SensorSearch<'a> {
    /// Finds all sensors. `sys` is the path of `/sys`.
    pub(super) fn of(sys: &Path, read: ReadText<'a>) -> Self {
        let mut search = Self { read, sensors: Vec::new(), denied: Vec::new() };
        search.rapl(&sys.join("class/powercap"));
        search.hwmon(&sys.join("class/hwmon"));
        if search.sensors.is_empty() {
            search.batteries(&sys.join("class/power_supply"));
        }
        search.sensors.truncate(SENSORS_MAX);
        search
    }

    /// Adds a sensor if its file holds a number. Returns whether it does.
    fn add(&mut self, sensor: Sensor) -> bool {
        match (self.read)(&sensor.file) {
            Ok(text) if sensor.value(&text).is_some() => {
                self.sensors.push(sensor);
                true
            }
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                self.denied.push(sensor.file);
                false
            }
            _ => false,
        }
    }

    /// Reads a word for people from a file.
    fn word(&self, path: &Path) -> Option<String> {
        let text = (self.read)(path).ok()?;
        let text: String = text.trim().chars().filter(|c| !c.is_control()).take(NAME_MAX).collect();
        (!text.is_empty()).then_some(text)
    }

    /// Adds the processor's own counters (RAPL): packages, memory, and the whole platform. Other
    /// zones are parts of packages.
    fn rapl(&mut self, class: &Path) {
        let mut names = Vec::new();
        // `intel-rapl-mmio` has the same counters as `intel-rapl` again, and comes after it.
        for zone in entries(class) {
            let folder = class.join(&zone);
            let Some(name) = self.word(&folder.join("name")) else { continue };
            let name = match name.as_str() {
                "dram" => {
                    let parent = zone.rsplit_once(':').map_or("", |(parent, _)| parent);
                    match self.word(&class.join(parent).join("name")) {
                        Some(package) => format!("memory of {package}"),
                        None => "memory".to_owned(),
                    }
                }
                "psys" => "platform".to_owned(),
                name if name.starts_with("package") => name.to_owned(),
                _ => continue,
            };
            if names.contains(&name) {
                continue;
            }
            let range = (self.read)(&folder.join("max_energy_range_uj")).ok();
            let range = range.and_then(|text| number(&text));
            self.add(Sensor {
                name: format!("{name} (RAPL)"),
                file: folder.join("energy_uj"),
                method: Method::Counter { range },
                condition: None,
            });
            names.push(name);
        }
    }

    /// Adds the power of AMD's GPUs, and counters of energy of any device.
    fn hwmon(&mut self, class: &Path) {
        for entry in entries(class) {
            let folder = class.join(entry);
            let Some(driver) = self.word(&folder.join("name")) else { continue };
            if driver == "amdgpu" {
                self.amdgpu(&folder);
            }
            for file in entries(&folder) {
                let middle = file.strip_prefix("energy").and_then(|f| f.strip_suffix("_input"));
                let Some(index) = middle.filter(|index| number(index).is_some()) else { continue };
                let label = self.word(&folder.join(format!("energy{index}_label")));
                let label = label.unwrap_or_else(|| format!("energy{index}"));
                // That driver also has a counter for each core, which is part of its socket's.
                if driver == "amd_energy" && !label.starts_with("Esocket") {
                    continue;
                }
                self.add(Sensor {
                    name: format!("{label} ({driver})"),
                    file: folder.join(&file),
                    method: Method::Counter { range: None },
                    condition: None,
                });
            }
        }
    }

    /// Adds the power of one of AMD's GPUs; on an APU it is that of the whole package.
    fn amdgpu(&mut self, folder: &Path) {
        let device = folder.join("device");
        let what = match metrics_format(&device.join("gpu_metrics")) {
            Some(1) => "GPU",
            Some(2 | 3) => "APU package",
            _ => "GPU or APU package",
        };
        let address = std::fs::read_link(&device).ok();
        let address = address.as_deref().and_then(Path::file_name);
        let address = address.map_or(String::new(), |name| format!(" {}", name.to_string_lossy()));
        for file in ["power1_average", "power1_input"] {
            let is_added = self.add(Sensor {
                name: format!("{what} (amdgpu{address})"),
                file: folder.join(file),
                method: Method::Power,
                condition: None,
            });
            if is_added {
                return;
            }
        }
    }

    /// Adds batteries that feed the machine.
    fn batteries(&mut self, class: &Path) {
        for entry in entries(class) {
            let folder = class.join(&entry);
            let is = |name: &str, value: &str| {
                (self.read)(&folder.join(name)).is_ok_and(|text| text.trim() == value)
            };
            // Those of mice and the like have the scope of a device.
            if !is("type", "Battery") || is("scope", "Device") || !is("status", DISCHARGING) {
                continue;
            }
            self.add(Sensor {
                name: format!("whole machine (battery {entry})"),
                file: folder.join("power_now"),
                method: Method::Power,
                condition: Some((folder.join("status"), DISCHARGING)),
            });
        }
    }
}

/// The status of a battery that feeds the machine.
const DISCHARGING: &str = "Discharging";

/// Returns the version of the layout of an AMD GPU's metrics: 1 is for GPUs, 2 and 3 for APUs. The
/// table begins with its size (2 bytes) and this number.
fn metrics_format(path: &Path) -> Option<u8> {
    let mut header = [0; 4];
    std::fs::File::open(path).ok()?.read_exact(&mut header).ok()?;
    Some(header[2])
}

/// Lists the names in a folder, shorter ones first, so that `hwmon2` comes before `hwmon10`.
fn entries(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let names = entries.take(ENTRIES_MAX).flatten();
    let mut names: Vec<String> =
        names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
    names
}
