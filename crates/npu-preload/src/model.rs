//! The machine that is modelled, and the process's side of it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use trine_npu::sys::{Errno, File, Pointed, Sys, abi};
use trine_npu::tile::Tile;
use trine_npu::uapi;
use trine_npu_model::{Fault, Machine, ModelSys, Tiles};

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
/// lets a core err in one element of each block that it makes; `long`
/// lets commands last long, and `slow` makes the model, not the device, slow; `silicon` hides that
/// the driver is a model.
const FAULTS: [(&str, Change); 13] = [
    ("hang", |_| {}),
    ("long", |machine| machine.command_time = Duration::from_millis(300)),
    ("slow", |_| {}),
    ("wrong", |_| {}),
    ("context", |machine| (machine.contexts_max, machine.foreign_contexts) = (0, 1)),
    ("firmware", |machine| machine.protocol_minor = 6),
    ("driver", |machine| machine.is_loaded = false),
    ("group", |machine| machine.open_error = Some(Errno::EACCES)),
    ("memory", |machine| machine.lockable_bytes = 8 << 20),
    ("iova", |machine| machine.addresses = trine_npu_model::AddressMode::Device),
    ("node", |machine| machine.node_driver = "ivpu"),
    ("silicon", |machine| machine.description = "a driver"),
    ("absent", |machine| machine.is_there = false),
];

/// What the order of events in the array follows from.
const SEED: u64 = 1;
/// What a slow model takes for a command: longer than the kernel's driver waits for one.
const SLOW: Duration = Duration::from_millis(2100);
/// The core that errs.
const WRONG: Tile = Tile::new(3, 2);

/// The model with what the process has open.
pub(crate) struct Model {
    sys: ModelSys,
    /// The folder with the files that are shown.
    folder: PathBuf,
    /// The model's files by the process's descriptors.
    files: Mutex<BTreeMap<i32, File>>,
    /// The time that the model itself has taken.
    lost: Mutex<Duration>,
    /// The time that the model rests before a command.
    rest: Duration,
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
        let rest = if faults.contains(&"slow") { SLOW } else { Duration::ZERO };
        if faults.contains(&"hang") {
            // After those that try the two kernels of a pack.
            sys.inject([Fault::Works, Fault::Works, Fault::Hangs]);
        }
        Some(Self { sys, folder, files: Mutex::default(), lost: Mutex::default(), rest })
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

    /// Calls an ioctl of the device. `argument` and `pointed` are the process's memory, `clock` its
    /// clock, and `memory` gives the process's bytes of a mapping.
    pub(crate) fn ioctl(
        &self,
        file: File,
        number: u32,
        argument: &mut [u8],
        pointed: &mut [Pointed<'_>],
        clock: fn() -> Duration,
        memory: &Memory,
    ) -> Result<(), Errno> {
        if ![uapi::EXEC_CMD, abi::TIMELINE_WAIT, uapi::SYNC_BO].contains(&number) {
            // Counters rise with time, after commands have ended.
            let time = clock().saturating_sub(*lock(&self.lost));
            self.sys.pass_idle(time.saturating_sub(self.sys.now()));
            return self.sys.ioctl(file, number, argument, pointed);
        }
        let begun = clock();
        if number == uapi::EXEC_CMD {
            std::thread::sleep(self.rest);
        }
        // The device is as fast as its model says, not as slow as the model runs: what that took so
        // far does not count.
        let lost = *lock(&self.lost);
        let outcome = self.work(file, number, argument, pointed, (begun, lost), memory);
        // The process's clock without what is lost is the device's: commands last on both.
        let (now, device) = (clock(), self.sys.now());
        *lock(&self.lost) = now.saturating_sub(device);
        std::thread::sleep(device.saturating_sub(now));
        outcome
    }

    /// Calls an ioctl for which memory matters, at a time of the process's clock of which `lost` is
    /// not the device's.
    fn work(
        &self,
        file: File,
        number: u32,
        argument: &mut [u8],
        pointed: &mut [Pointed<'_>],
        (time, lost): (Duration, Duration),
        memory: &Memory,
    ) -> Result<(), Errno> {
        let mappings = self.sys.mappings();
        for (address, bytes) in &mappings {
            let mut taken = Ok(());
            memory(*address, *bytes, &mut |all| taken = self.sys.take_over(*address, all));
            taken?;
        }
        // Commands end in here and below, between the copies.
        self.sys.pass(time.saturating_sub(lost).saturating_sub(self.sys.now()));
        let outcome = match number {
            abi::TIMELINE_WAIT => {
                earlier(argument, lost, |argument| self.sys.ioctl(file, number, argument, pointed))
            }
            _ => self.sys.ioctl(file, number, argument, pointed),
        };
        // The device does not write to its heap.
        for (address, bytes) in mappings.iter().filter(|(_, bytes)| *bytes < uapi::HEAP_BYTES) {
            let mut handed = Ok(());
            memory(*address, *bytes, &mut |all| handed = self.sys.hand_over(*address, all));
            handed?;
        }
        outcome
    }
}

/// Calls `body` with the struct of a wait whose end is earlier by `lost`.
fn earlier(
    argument: &mut [u8],
    lost: Duration,
    body: impl FnOnce(&mut [u8]) -> Result<(), Errno>,
) -> Result<(), Errno> {
    const END: usize = std::mem::offset_of!(abi::TimelineWait, timeout_ns);
    let field = argument.get(END..END + 8).and_then(|bytes| bytes.try_into().ok());
    let given: [u8; 8] = field.ok_or(Errno::EINVAL)?;
    let lost = i64::try_from(lost.as_nanos()).map_err(|_| Errno::EINVAL)?;
    let end = i64::from_le_bytes(given).saturating_sub(lost);
    argument[END..END + 8].copy_from_slice(&end.to_le_bytes());
    let outcome = body(argument);
    argument[END..END + 8].copy_from_slice(&given);
    outcome
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
