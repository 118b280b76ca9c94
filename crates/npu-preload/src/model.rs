//! The machine that is modelled, and the process's side of it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use trine_npu::sys::model::{Fault, Machine, ModelSys, Tiles};
use trine_npu::sys::{Errno, File, Pointed, Sys, abi};
use trine_npu::tile::Tile;
use trine_npu::uapi;

/// Folders and files that the model shows instead of the machine's.
const SHOWN: [&str; 12] = [
    "/sys/bus/pci/devices",
    "/sys/bus/pci/drivers",
    "/sys/class/accel",
    "/sys/class/iommu",
    "/sys/module/amdxdna",
    "/proc/cpuinfo",
    "/proc/self/limits",
    "/proc/self/status",
    "/proc/sys/kernel/osrelease",
    "/lib/firmware/amdnpu",
    "/usr/lib/firmware/updates/amdnpu",
    "/dev/accel",
];

/// The device's file.
const DEVICE: &str = "/dev/accel/accel0";

/// Hands out the process's bytes of a mapping, by address and length.
pub(crate) type Memory = dyn Fn(u64, u64, &mut dyn FnMut(&mut [u8]));

/// A change of the machine.
type Change = fn(&mut Machine);

/// What can go wrong with the machine, by name. `hang` lets the third command hang, and `wrong`
/// lets a core err in one element of each block that it makes; `silicon` hides that the driver is a
/// model.
const FAULTS: [(&str, Change); 11] = [
    ("hang", |_| {}),
    ("wrong", |_| {}),
    ("context", |machine| (machine.contexts_max, machine.foreign_contexts) = (0, 1)),
    ("firmware", |machine| machine.protocol_minor = 6),
    ("driver", |machine| machine.is_loaded = false),
    ("group", |machine| machine.open_error = Some(Errno::EACCES)),
    ("memory", |machine| machine.lockable_bytes = 8 << 20),
    ("iova", |machine| machine.addresses = trine_npu::sys::model::AddressMode::Device),
    ("node", |machine| machine.node_driver = "ivpu"),
    ("silicon", |machine| machine.description = "a driver"),
    ("absent", |machine| machine.is_there = false),
];

/// What the order of events in the array follows from.
const SEED: u64 = 1;
/// The core that errs.
const WRONG: Tile = Tile::new(3, 2);

/// The model with what the process has open.
pub(crate) struct Model {
    sys: ModelSys,
    /// The folder with the files that are shown.
    folder: PathBuf,
    /// The model's files by the process's descriptors.
    files: Mutex<BTreeMap<i32, File>>,
}

thread_local! {
    /// Whether this thread is inside of the model, whose own calls go on.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Calls `body` with the model. `None` if there is none, or if the model itself is calling.
pub(crate) fn with<T>(body: impl FnOnce(&Model) -> Option<T>) -> Option<T> {
    static MODEL: OnceLock<Option<Model>> = OnceLock::new();
    if INSIDE.try_with(|inside| inside.replace(true)).unwrap_or(true) {
        return None;
    }
    let result = MODEL.get_or_init(Model::new).as_ref().and_then(body);
    INSIDE.set(false);
    result
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Model {
    /// Reads the environment and writes the files that are shown.
    fn new() -> Option<Self> {
        let folder = PathBuf::from(std::env::var_os("TRINE_NPU_MODEL")?);
        let faults = std::env::var("TRINE_NPU_FAULTS").unwrap_or_default();
        let faults: Vec<&str> = faults.split(',').filter(|fault| !fault.is_empty()).collect();
        let mut machine = Machine {
            foreign_contexts: 0,
            driver_minor: 6,
            process: i64::from(std::process::id()),
            ..Machine::default()
        };
        for fault in &faults {
            match FAULTS.iter().find(|(name, _)| name == fault) {
                Some((_, change)) => change(&mut machine),
                None => fail(&format!("TRINE_NPU_FAULTS: no fault is named {fault}")),
            }
        }
        if let Err(error) = write(&machine, &folder) {
            fail(&format!("TRINE_NPU_MODEL: {}: {error}", folder.display()));
        }
        let tiles = Tiles::new(SEED);
        let is_wrong = faults.contains(&"wrong");
        let tiles = if is_wrong { tiles.with_faulty(WRONG) } else { tiles };
        let sys = ModelSys::new(machine, Box::new(tiles));
        if faults.contains(&"hang") {
            // After those that try the two kernels of a pack.
            sys.inject([Fault::Works, Fault::Works, Fault::Hangs]);
        }
        Some(Self { sys, folder, files: Mutex::default() })
    }

    /// Returns the file that is shown at a path.
    pub(crate) fn shown(&self, path: &[u8]) -> Option<PathBuf> {
        let path = Path::new(std::str::from_utf8(path).ok()?);
        let is_shown = SHOWN.iter().any(|shown| path.starts_with(shown));
        is_shown.then(|| self.folder.join(path.strip_prefix("/").unwrap_or(path)))
    }

    /// Opens the model's device for a path that leads there.
    pub(crate) fn open(&self, path: &[u8]) -> Option<Result<File, Errno>> {
        (path == DEVICE.as_bytes()).then(|| self.sys.open(DEVICE))
    }

    /// Remembers the descriptor of an open device.
    pub(crate) fn keep(&self, descriptor: i32, file: File) {
        lock(&self.files).insert(descriptor, file);
    }

    /// Closes the device of a descriptor, if it has one.
    pub(crate) fn close(&self, descriptor: i32) {
        if let Some(file) = lock(&self.files).remove(&descriptor) {
            self.sys.close(file);
        }
    }

    /// Returns the device of a descriptor.
    pub(crate) fn file(&self, descriptor: i32) -> Option<File> {
        lock(&self.files).get(&descriptor).copied()
    }

    /// Maps a buffer at an address.
    pub(crate) fn map(
        &self,
        file: File,
        offset: u64,
        bytes: u64,
        address: u64,
    ) -> Result<(), Errno> {
        self.sys.map_at(file, offset, bytes, address)
    }

    /// Forgets the mapping that begins at an address.
    pub(crate) fn unmap(&self, address: u64) {
        self.sys.unmap(address);
    }

    /// Calls an ioctl of the device. `argument` and `pointed` are the process's memory, `time` its
    /// clock, and `memory` gives the process's bytes of a mapping.
    pub(crate) fn ioctl(
        &self,
        file: File,
        number: u32,
        argument: &mut [u8],
        pointed: &mut [Pointed<'_>],
        time: Duration,
        memory: &Memory,
    ) -> Result<(), Errno> {
        if ![uapi::EXEC_CMD, abi::TIMELINE_WAIT, uapi::SYNC_BO].contains(&number) {
            return self.sys.ioctl(file, number, argument, pointed);
        }
        let mappings = self.sys.mappings();
        for (address, bytes) in &mappings {
            let mut written = Ok(());
            memory(*address, *bytes, &mut |all| written = self.sys.write(*address, all));
            written?;
            self.sys.flush(*address, *bytes)?;
        }
        // Commands end in here and below, between the copies.
        self.sys.pass(time.saturating_sub(self.sys.now()));
        let outcome = self.sys.ioctl(file, number, argument, pointed);
        // The device does not write to its heap.
        for (address, bytes) in mappings.iter().filter(|(_, bytes)| *bytes < uapi::HEAP_BYTES) {
            self.sys.flush(*address, *bytes)?;
            let mut read = Ok(());
            memory(*address, *bytes, &mut |all| read = self.sys.read(*address, all));
            read?;
        }
        outcome
    }
}

/// Writes the machine's files below a folder.
fn write(machine: &Machine, folder: &Path) -> std::io::Result<()> {
    for (path, text) in machine.files() {
        let path = folder.join(path.trim_start_matches('/'));
        std::fs::create_dir_all(path.parent().unwrap_or(folder))?;
        std::fs::write(path, text)?;
    }
    Ok(())
}

/// Ends the process: a test that gets another machine than it asked for must not pass.
pub(crate) fn fail(message: &str) -> ! {
    eprintln!("trine-npu-preload: {message}");
    std::process::abort();
}
