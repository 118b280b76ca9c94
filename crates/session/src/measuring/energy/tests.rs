//! Sensors in made-up trees of `/sys`, whose names have colons.

#![cfg(unix)]

use std::io::{self, Error, ErrorKind};
use std::time::Duration;

use tempfile::TempDir;

use super::meter::Meter;
use super::sensor::Method;
use super::*;

/// A `/sys` with nothing in it.
struct Tree(TempDir);

impl Tree {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Writes files below `class/`.
    fn with(self, files: &[(&str, &str)]) -> Self {
        files.iter().for_each(|(path, text)| self.write(path, text));
        self
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join("class").join(path)
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn sensors(&self) -> Sensors {
        Sensors::find(self.0.path())
    }

    fn names(&self) -> Vec<String> {
        self.sensors().list().iter().map(|sensor| sensor.name.clone()).collect()
    }

    /// Takes the first sample.
    fn meter(&self) -> Meter {
        Meter::new(self.sensors().list().to_vec(), seconds(0.0))
    }
}

fn seconds(value: f64) -> Duration {
    Duration::from_secs_f64(value)
}

const PACKAGE: &str = "powercap/intel-rapl:0/energy_uj";
const RAPL: [(&str, &str); 3] = [
    ("powercap/intel-rapl:0/name", "package-0\n"),
    (PACKAGE, "900\n"),
    ("powercap/intel-rapl:0/max_energy_range_uj", "1000\n"),
];
const AVERAGE: &str = "hwmon/hwmon3/power1_average";
const AMDGPU: [(&str, &str); 2] = [("hwmon/hwmon3/name", "amdgpu\n"), (AVERAGE, "10000000\n")];
const POWER_NOW: &str = "power_supply/BAT0/power_now";
const BATTERY: [(&str, &str); 3] = [
    ("power_supply/BAT0/type", "Battery\n"),
    ("power_supply/BAT0/status", "Discharging\n"),
    (POWER_NOW, "12000000\n"),
];

#[test]
fn a_machine_without_sensors_measures_nothing() {
    let sensors = Tree::new().sensors();
    assert!(sensors.list().is_empty() && sensors.start().is_none());
    assert!(sensors.missing().unwrap().starts_with("energy is not measured: no RAPL"));
}

#[test]
fn counters_of_packages_and_their_memory_are_found_once() {
    let tree = Tree::new().with(&RAPL).with(&[
        ("powercap/intel-rapl/enabled", "1\n"),
        ("powercap/intel-rapl:0:0/name", "core\n"),
        ("powercap/intel-rapl:0:0/energy_uj", "1\n"),
        ("powercap/intel-rapl:0:1/name", "dram\n"),
        ("powercap/intel-rapl:0:1/energy_uj", "2\n"),
        ("powercap/intel-rapl:1/name", "package-1\n"),
        ("powercap/intel-rapl:1/energy_uj", "3\n"),
        ("powercap/intel-rapl:2/name", "psys\n"),
        ("powercap/intel-rapl:2/energy_uj", "4\n"),
        ("powercap/intel-rapl-mmio:0/name", "package-0\n"),
        ("powercap/intel-rapl-mmio:0/energy_uj", "5\n"),
    ]);
    let expected =
        ["package-0 (RAPL)", "package-1 (RAPL)", "platform (RAPL)", "memory of package-0 (RAPL)"];
    assert_eq!(tree.names(), expected);
    assert_eq!(tree.sensors().list()[0].method, Method::Counter { range: Some(1000) });
    assert_eq!(tree.sensors().missing(), None);
}

#[test]
fn a_counter_may_begin_again() {
    let tree = Tree::new().with(&RAPL);
    let mut meter = tree.meter();
    // 100 to its end and 50 more; then 900 more; then 50 to its end and 20 more.
    for (at, value) in [(1.0, "50"), (2.0, "950"), (4.0, "20")] {
        tree.write(PACKAGE, value);
        meter.sample(seconds(at));
    }
    let Energy { seconds, joules } = meter.energy();
    assert_eq!(seconds, 4.0);
    assert!((joules[0].unwrap() - 1120e-6).abs() < 1e-12, "{joules:?}");
}

#[test]
fn a_counter_that_goes_back_measures_nothing() {
    for range in ["", "many", "899"] {
        let tree = Tree::new().with(&RAPL);
        tree.write("powercap/intel-rapl:0/max_energy_range_uj", range);
        let mut meter = tree.meter();
        for (at, value) in [(1.0, "50"), (2.0, "950")] {
            tree.write(PACKAGE, value);
            meter.sample(seconds(at));
        }
        assert_eq!(meter.energy().joules, [None], "{range}");
    }
    // One that stands still is as good as none.
    let tree = Tree::new().with(&RAPL);
    let mut meter = tree.meter();
    meter.sample(seconds(1.0));
    assert_eq!(meter.energy().joules, [None]);
}

#[test]
fn power_is_integrated_over_samples() {
    let tree = Tree::new().with(&AMDGPU);
    let mut meter = tree.meter();
    // From 10 to 20 W in a second, then 20 W for two seconds.
    for at in [1.0, 3.0] {
        tree.write(AVERAGE, "20000000\n");
        meter.sample(seconds(at));
    }
    assert_eq!(meter.energy(), Energy { seconds: 3.0, joules: vec![Some(15.0 + 40.0)] });
}

#[test]
fn the_power_of_an_apu_is_that_of_its_package() {
    // The size of the table, its layout and the version of its contents.
    for (header, what) in [
        (&[120, 0, 1, 3][..], "GPU (amdgpu)"),
        (&[120, 0, 2, 1], "APU package (amdgpu)"),
        (&[8, 1, 3, 0], "APU package (amdgpu)"),
        (&[120, 0, 9, 0], "GPU or APU package (amdgpu)"),
        (&[120, 0], "GPU or APU package (amdgpu)"),
    ] {
        let tree = Tree::new().with(&AMDGPU);
        tree.write("hwmon/hwmon3/device/gpu_metrics", header);
        assert_eq!(tree.names(), [what]);
    }
    let newer = Tree::new().with(&[AMDGPU[0], ("hwmon/hwmon3/power1_input", "5\n")]);
    assert_eq!(newer.names(), ["GPU or APU package (amdgpu)"]);
    let other = Tree::new().with(&[("hwmon/hwmon3/name", "nvme\n"), AMDGPU[1]]);
    assert!(other.names().is_empty(), "the power of something that runs no model");
}

#[test]
fn gpus_are_told_apart_by_their_addresses() {
    let tree = Tree::new().with(&AMDGPU).with(&[
        ("hwmon/hwmon12/name", "amdgpu\n"),
        ("hwmon/hwmon12/power1_average", "7\n"),
        ("../devices/pci0000:00/0000:03:00.0/gpu_metrics", "xx\u{1}\u{3}"),
        ("../devices/pci0000:00/0000:c4:00.0/gpu_metrics", "xx\u{2}\u{3}"),
    ]);
    for (hwmon, address) in [("hwmon3", "0000:03:00.0"), ("hwmon12", "0000:c4:00.0")] {
        let device = Path::new("../../../devices/pci0000:00").join(address);
        std::os::unix::fs::symlink(device, tree.path(&format!("hwmon/{hwmon}/device"))).unwrap();
    }
    let expected = ["GPU (amdgpu 0000:03:00.0)", "APU package (amdgpu 0000:c4:00.0)"];
    assert_eq!(tree.names(), expected);
}

#[test]
fn counters_of_other_devices_are_found() {
    let tree = Tree::new().with(&[
        ("hwmon/hwmon0/name", "xe\n"),
        ("hwmon/hwmon0/energy1_label", "card\n"),
        ("hwmon/hwmon0/energy1_input", "11\n"),
        ("hwmon/hwmon0/energy2_input", "12\n"),
        ("hwmon/hwmon0/energy_input", "13\n"),
        ("hwmon/hwmon0/energyx_input", "13\n"),
        ("hwmon/hwmon1/name", "amd_energy\n"),
        ("hwmon/hwmon1/energy1_label", "Ecore000\n"),
        ("hwmon/hwmon1/energy1_input", "14\n"),
        ("hwmon/hwmon1/energy17_label", "Esocket0\n"),
        ("hwmon/hwmon1/energy17_input", "15\n"),
    ]);
    assert_eq!(tree.names(), ["card (xe)", "energy2 (xe)", "Esocket0 (amd_energy)"]);
}

#[test]
fn a_battery_is_the_last_resort() {
    let tree = Tree::new().with(&BATTERY).with(&[
        ("power_supply/AC/type", "Mains\n"),
        ("power_supply/mouse/type", "Battery\n"),
        ("power_supply/mouse/scope", "Device\n"),
        ("power_supply/mouse/status", "Discharging\n"),
        ("power_supply/mouse/power_now", "1\n"),
    ]);
    assert_eq!(tree.names(), ["whole machine (battery BAT0)"]);
    let mut meter = tree.meter();
    // Some drivers tell it as a negative number.
    tree.write(POWER_NOW, "-12000000\n");
    meter.sample(seconds(2.0));
    assert_eq!(meter.energy().joules, [Some(24.0)]);
    // Once it is charged, its power says nothing about the machine's.
    tree.write("power_supply/BAT0/status", "Charging\n");
    meter.sample(seconds(3.0));
    assert_eq!(meter.energy().joules, [None]);
    assert!(tree.names().is_empty());
    let better = Tree::new().with(&BATTERY).with(&AMDGPU);
    assert_eq!(better.names(), ["GPU or APU package (amdgpu)"]);
}

#[test]
fn sensors_that_vanish_measure_nothing() {
    let tree = Tree::new().with(&RAPL).with(&AMDGPU);
    let mut meter = tree.meter();
    std::fs::remove_file(tree.path(PACKAGE)).unwrap();
    meter.sample(seconds(1.0));
    // What comes back has missed a part.
    tree.write(PACKAGE, "950");
    meter.sample(seconds(2.0));
    assert_eq!(meter.energy().joules, [None, Some(20.0)]);
    std::fs::remove_dir_all(tree.path("hwmon")).unwrap();
    meter.sample(seconds(3.0));
    assert_eq!(meter.energy().joules, [None, None]);
}

#[test]
fn garbage_is_no_number() {
    let long = "9".repeat(1 << 20);
    let broken: [&[u8]; 10] = [
        b"",
        b"\n",
        b"many",
        b"-5",
        b"+5",
        b"1 2",
        b"\0\0\0\0",
        b"\xff\xfe",
        b"99999999999999999999999999",
        long.as_bytes(),
    ];
    for text in broken {
        let shown = &text[..text.len().min(30)];
        let tree = Tree::new().with(&RAPL).with(&AMDGPU);
        let mut meter = tree.meter();
        tree.write(PACKAGE, text);
        tree.write(AVERAGE, text);
        assert!(tree.names().is_empty(), "{shown:?}");
        meter.sample(seconds(1.0));
        assert_eq!(meter.energy().joules, [None, None], "{shown:?}");
    }
    let tree = Tree::new().with(&[(PACKAGE, "1"), ("hwmon/hwmon0", "a file"), (POWER_NOW, "1")]);
    assert!(tree.names().is_empty(), "no names, no folders");
    let tree = Tree::new().with(&RAPL);
    tree.write("powercap/intel-rapl:0/name", format!("package\u{1b}[31m-{long}"));
    let name = &tree.names()[0];
    assert!(name.len() < 60 && !name.contains('\u{1b}'), "{name:?}");
}

#[test]
fn huge_values_are_not_believed() {
    let most = u64::MAX.to_string();
    let tree = Tree::new().with(&RAPL).with(&AMDGPU);
    let mut meter = tree.meter();
    tree.write(PACKAGE, &most);
    tree.write(AVERAGE, &most);
    meter.sample(seconds(1.0));
    assert_eq!(meter.energy().joules, [None, None]);
    // Nor are they a reason to stop.
    let tree = Tree::new().with(&RAPL);
    tree.write("powercap/intel-rapl:0/max_energy_range_uj", &most);
    tree.write(PACKAGE, &most);
    let mut meter = tree.meter();
    for value in ["5000", &most] {
        tree.write(PACKAGE, value);
        meter.sample(seconds(1.0));
    }
    assert_eq!(meter.energy().joules, [None]);
}

#[test]
fn time_that_stands_still_or_goes_back_adds_nothing() {
    let tree = Tree::new().with(&AMDGPU);
    let mut meter = Meter::new(tree.sensors().list().to_vec(), seconds(5.0));
    meter.sample(seconds(5.0));
    assert_eq!(meter.energy(), Energy { seconds: 0.0, joules: vec![None] });
    meter.sample(seconds(1.0));
    meter.sample(seconds(2.0));
    assert_eq!(meter.energy(), Energy { seconds: 1.0, joules: vec![Some(10.0)] });
}

/// Reads as a user who may not read counters of energy.
fn as_a_user(path: &Path) -> io::Result<String> {
    match path.ends_with("energy_uj") || path.ends_with("energy1_input") {
        true => Err(Error::from(ErrorKind::PermissionDenied)),
        false => read(path),
    }
}

#[test]
fn what_only_root_may_read_is_named_with_its_remedy() {
    let tree = Tree::new().with(&RAPL).with(&[
        ("powercap/intel-rapl:0:1/name", "dram\n"),
        ("powercap/intel-rapl:0:1/energy_uj", "2\n"),
    ]);
    let sensors = Sensors::find_by(tree.0.path(), &as_a_user);
    assert!(sensors.list().is_empty());
    let text = sensors.missing().unwrap();
    for part in ["energy is not measured: only root", PACKAGE, "and 1 more", "sudo chmod a+r"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let tree = tree.with(&AMDGPU);
    let text = Sensors::find_by(tree.0.path(), &as_a_user).missing().unwrap();
    assert!(text.starts_with("energy is not measured by all sensors: only root"), "{text}");
    let tree =
        Tree::new().with(&[("hwmon/hwmon0/name", "xe\n"), ("hwmon/hwmon0/energy1_input", "1\n")]);
    let text = Sensors::find_by(tree.0.path(), &as_a_user).missing().unwrap();
    assert!(text.contains("sudo chmod a+r /") && text.contains("energy1_input` allows"), "{text}");
}

#[test]
fn a_thread_reads_from_beginning_to_end() {
    let tree = Tree::new().with(&AMDGPU);
    let metering = tree.sensors().start().unwrap();
    let Energy { seconds, joules } = metering.stop().unwrap();
    assert!(seconds > 0.0);
    assert!((joules[0].unwrap() / (10.0 * seconds) - 1.0).abs() < 1e-9, "{joules:?}");
    // One that is dropped ends by itself.
    drop(tree.sensors().start());
}

#[test]
fn there_are_never_more_than_a_few_sensors() {
    let tree = Tree::new().with(&[("hwmon/hwmon0/name", "xe\n")]);
    for index in 0..400 {
        tree.write(&format!("hwmon/hwmon0/energy{index}_input"), "1\n");
    }
    assert_eq!(tree.names().len(), 16);
}
