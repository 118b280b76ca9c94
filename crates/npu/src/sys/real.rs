//! Linux on x86-64: the room of `unsafe`. Never run on silicon.

#![allow(unsafe_code, reason = "ioctls, mapped memory and cache lines")]

use std::arch::x86_64::{_mm_clflush, _mm_mfence};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytemuck::pod_read_unaligned;

use super::{CACHE_LINE_BYTES, Errno, File, Pointed, Process, Sys, abi};

/// The longest text that is read from the kernel.
const TEXT_BYTES_MAX: u64 = 4096;

/// What this process knows about its NPU.
static PROCESS: Process = Process::new();

/// The kernel of this machine.
#[derive(Debug, Default)]
pub struct RealSys {
    /// Files that this value opened. No others can be reached.
    files: Mutex<BTreeMap<i32, Opened>>,
    /// Bytes of each mapping, by its address.
    mappings: Mutex<BTreeMap<u64, u64>>,
}

/// An open file.
#[derive(Debug)]
struct Opened {
    descriptor: OwnedFd,
    /// Whether it has said that its driver is [`abi::DRM_DRIVER`]. The same numbers are other calls
    /// of other drivers, with pointers in other places.
    is_npu: bool,
}

impl Opened {
    fn new(descriptor: OwnedFd) -> Self {
        Self { descriptor, is_npu: false }
    }
}

/// Returns whether an answer to [`abi::VERSION`] names the NPU's driver.
fn names_driver(answer: &[u8], pointed: &[Pointed<'_>]) -> bool {
    let length = pod_read_unaligned::<abi::Version>(answer).name_len;
    let name = pointed.iter().find(|part| part.field == offset_of!(abi::Version, name));
    let name = name.and_then(|name| name.bytes.get(..usize::try_from(length).ok()?));
    name == Some(abi::DRM_DRIVER.as_bytes())
}

/// Takes a lock. No state between is left by a panic: each section changes one entry.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Maps memory locked, or as it is if this process may lock no more: the driver inserts all pages
/// when it maps a buffer, so that they are there without the lock too. A mapping that failed is
/// tried at another place, because the kernel may have given the first one away.
fn locked_if_allowed<T>(mut map: impl FnMut(libc::c_int) -> Result<T, Errno>) -> Result<T, Errno> {
    match map(libc::MAP_LOCKED) {
        Err(Errno::EAGAIN | Errno::EPERM) => map(0),
        other => other,
    }
}

fn last_error() -> Errno {
    errno(&io::Error::last_os_error())
}

fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno)
}

impl RealSys {
    /// Nothing is open.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn descriptor(&self, file: File) -> Result<i32, Errno> {
        lock(&self.files)
            .get(&file.0)
            .map(|opened| opened.descriptor.as_raw_fd())
            .ok_or(Errno::EBADF)
    }

    /// Returns the descriptor of a file whose driver may be asked this.
    fn asked(&self, file: File, number: u32) -> Result<i32, Errno> {
        let files = lock(&self.files);
        let opened = files.get(&file.0).ok_or(Errno::EBADF)?;
        let may_be_asked = opened.is_npu || number == abi::VERSION;
        may_be_asked.then(|| opened.descriptor.as_raw_fd()).ok_or(Errno::EACCES)
    }

    /// Calls `body` if the bytes lie inside of one mapping, which stays until it has ended.
    fn within(&self, address: u64, bytes: u64, body: impl FnOnce()) -> Result<(), Errno> {
        let mappings = lock(&self.mappings);
        let (start, length) = mappings.range(..=address).next_back().ok_or(Errno::EFAULT)?;
        let end = address.checked_add(bytes).ok_or(Errno::EFAULT)?;
        if end > start + length {
            return Err(Errno::EFAULT);
        }
        body();
        Ok(())
    }
}

impl RealSys {
    /// Maps a file at a multiple of `alignment`, with `lock_flag` among the flags.
    fn mapped(
        &self,
        descriptor: libc::c_int,
        (offset, bytes, alignment): (u64, u64, u64),
        lock_flag: libc::c_int,
    ) -> Result<u64, Errno> {
        let invalid = |_| Errno::EINVAL;
        let length = usize::try_from(bytes).map_err(invalid)?;
        let alignment = usize::try_from(alignment).map_err(invalid)?.max(4096);
        let offset = libc::off_t::try_from(offset).map_err(invalid)?;
        if length == 0 || !alignment.is_power_of_two() {
            return Err(Errno::EINVAL);
        }
        let length = length.checked_next_multiple_of(4096).ok_or(Errno::EINVAL)?;
        let reserved = length.checked_add(alignment).ok_or(Errno::EINVAL)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing else.
        let start = unsafe { libc::mmap(ptr::null_mut(), reserved, libc::PROT_NONE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(last_error());
        }
        let address = (start as usize).next_multiple_of(alignment);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | lock_flag;
        // SAFETY: the range lies in the reservation above, which nothing else uses.
        let mapped = unsafe {
            libc::mmap(address as *mut libc::c_void, length, access, flags, descriptor, offset)
        };
        let error = last_error();
        let end = address + length;
        let is_mapped = mapped != libc::MAP_FAILED;
        // Where mapping has failed, the range may be another thread's by now: it is left alone.
        let parts = [(start as usize, address), (end, start as usize + reserved)];
        for (from, to) in parts.into_iter().filter(|(from, to)| from < to) {
            // SAFETY: these pages are in the reservation, and the call above did not touch them.
            unsafe { libc::munmap(from as *mut libc::c_void, to - from) };
        }
        if !is_mapped {
            return Err(error);
        }
        lock(&self.mappings).insert(address as u64, length as u64);
        Ok(address as u64)
    }
}

impl Sys for RealSys {
    fn process(&self) -> &Process {
        &PROCESS
    }

    fn read_text(&self, path: &str) -> Result<String, Errno> {
        let file = std::fs::File::open(path).map_err(|error| errno(&error))?;
        let mut text = String::new();
        let mut reader = io::Read::take(file, TEXT_BYTES_MAX);
        io::Read::read_to_string(&mut reader, &mut text).map_err(|error| errno(&error))?;
        Ok(text)
    }

    fn list(&self, path: &str) -> Result<Vec<String>, Errno> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(path).map_err(|error| errno(&error))? {
            let entry = entry.map_err(|error| errno(&error))?;
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    fn open(&self, path: &str) -> Result<File, Errno> {
        let path = CString::new(path).map_err(|_| Errno::EINVAL)?;
        // SAFETY: `path` ends with 0 and lives until the call returns.
        let file = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        if file < 0 {
            return Err(last_error());
        }
        // SAFETY: the call made this descriptor, and nothing else owns it.
        let owned = unsafe { OwnedFd::from_raw_fd(file) };
        lock(&self.files).insert(file, Opened::new(owned));
        Ok(File(file))
    }

    fn close(&self, file: File) {
        lock(&self.files).remove(&file.0);
    }

    fn ioctl(
        &self,
        file: File,
        number: u32,
        argument: &mut [u8],
        pointed: &mut [Pointed<'_>],
    ) -> Result<(), Errno> {
        abi::check(number, argument, pointed)?;
        let is_list = number == crate::uapi::EXEC_CMD
            && pod_read_unaligned::<crate::uapi::ExecCmd>(argument).cmd_count != 1;
        if is_list {
            // The handles would come from an address. The kernel refuses this too.
            return Err(Errno::EINVAL);
        }
        let descriptor = self.asked(file, number)?;
        for part in &mut *pointed {
            let address = part.bytes.as_mut_ptr() as u64;
            argument[part.field..part.field + 8].copy_from_slice(&address.to_le_bytes());
        }
        let outcome = loop {
            // SAFETY: the driver is the NPU's, whose structs the table has, or `number` is the
            // question which it is. `check` compared the length of `argument` with the one in
            // `number`, and each pointer in it with the slice that it leads to. The slices are
            // borrowed for the call.
            let code = unsafe {
                libc::ioctl(descriptor, libc::Ioctl::from(number), argument.as_mut_ptr())
            };
            let outcome = if code < 0 { Err(last_error()) } else { Ok(()) };
            // A signal came before anything was done. Times to wait until are absolute.
            if outcome != Err(Errno(libc::EINTR)) {
                break outcome;
            }
        };
        for part in &*pointed {
            argument[part.field..part.field + 8].fill(0);
        }
        outcome?;
        if number == abi::PRIME_HANDLE_TO_FD {
            let made = pod_read_unaligned::<abi::PrimeHandle>(argument).fd;
            // SAFETY: the call made this descriptor, and nothing else owns it.
            let owned = unsafe { OwnedFd::from_raw_fd(made) };
            lock(&self.files).insert(made, Opened::new(owned));
        }
        if number == abi::VERSION
            && names_driver(argument, pointed)
            && let Some(opened) = lock(&self.files).get_mut(&file.0)
        {
            opened.is_npu = true;
        }
        Ok(())
    }

    fn map(&self, file: File, offset: u64, bytes: u64, alignment: u64) -> Result<u64, Errno> {
        let descriptor = self.descriptor(file)?;
        locked_if_allowed(|lock| self.mapped(descriptor, (offset, bytes, alignment), lock))
    }

    fn unmap(&self, address: u64) {
        let mut mappings = lock(&self.mappings);
        if let Some(bytes) = mappings.remove(&address) {
            // SAFETY: `map` made this mapping. No reference to it exists, since memory is only
            // copied, and copies hold the lock.
            unsafe { libc::munmap(address as *mut libc::c_void, bytes as usize) };
        }
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        let length = bytes.len();
        self.within(address, length as u64, || {
            // SAFETY: the source is mapped, and `bytes` is memory of this process elsewhere. What
            // the device writes at the same time may be torn; it is read only when it is done.
            unsafe { ptr::copy_nonoverlapping(address as *const u8, bytes.as_mut_ptr(), length) }
        })
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.within(address, bytes.len() as u64, || {
            // SAFETY: as for `read`, with the mapping as destination.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) }
        })
    }

    fn flush(&self, address: u64, bytes: u64) -> Result<(), Errno> {
        self.within(address, bytes, || {
            let first = address & !(CACHE_LINE_BYTES - 1);
            // SAFETY: fences touch no memory, and each line has a byte of the mapping.
            unsafe {
                _mm_mfence();
                for line in (first..address + bytes).step_by(CACHE_LINE_BYTES as usize) {
                    _mm_clflush(line as *const u8);
                }
                _mm_mfence();
            }
        })
    }

    fn now(&self) -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` has room for the answer.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
        Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

impl Drop for RealSys {
    fn drop(&mut self) {
        if self.process().quarantine().is_some() {
            // A device that hangs may still write to what is mapped, and closing its file would
            // free it. The kernel takes all of it back with the process.
            std::mem::take(&mut *lock(&self.files)).into_values().for_each(std::mem::forget);
            return;
        }
        let addresses: Vec<u64> = lock(&self.mappings).keys().copied().collect();
        addresses.into_iter().for_each(|address| self.unmap(address));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// mmap(2): with MAP_LOCKED more than RLIMIT_MEMLOCK is EAGAIN, and any of it EPERM for a
    /// process that may lock nothing.
    #[test]
    fn memory_that_may_not_be_locked_is_mapped_all_the_same() {
        for (limit, tries) in [(None, 1), (Some(11), 2), (Some(1), 2), (Some(12), 1)] {
            let mut flags = Vec::new();
            let mapped = locked_if_allowed(|lock| {
                flags.push(lock);
                match limit.filter(|_| lock != 0) {
                    Some(number) => Err(Errno(number)),
                    None => Ok(()),
                }
            });
            assert_eq!(flags, [0x2000, 0][..tries], "{limit:?}");
            assert_eq!(mapped.is_ok(), limit != Some(12), "{limit:?}");
        }
    }

    #[test]
    fn memory_outside_of_mappings_is_not_touched() {
        let sys = RealSys::new();
        assert_eq!(sys.read(4096, &mut [0; 4]), Err(Errno::EFAULT));
        assert_eq!(sys.write(4096, &[0; 4]), Err(Errno::EFAULT));
        assert_eq!(sys.flush(u64::MAX, 2), Err(Errno::EFAULT));
        assert_eq!(sys.ioctl(File(0), abi::GEM_CLOSE, &mut [0; 8], &mut []), Err(Errno::EBADF));
        assert_eq!(sys.open("/dev/accel/none"), Err(Errno::ENOENT));
    }

    #[test]
    fn only_the_npus_own_driver_is_the_npus() {
        let version = |length: u64| abi::Version { name_len: length, ..Default::default() };
        let names = |length, text: &str| {
            let mut bytes = text.as_bytes().to_vec();
            let pointed = [Pointed { field: offset_of!(abi::Version, name), bytes: &mut bytes }];
            names_driver(bytemuck::bytes_of(&version(length)), &pointed)
        };
        // As Linux answers: amdxdna_pci_drv.c, amdxdna_drm_drv.
        let name = "amdxdna_accel_driver";
        assert!(names(20, name) && names(20, "amdxdna_accel_driver, and room"));
        assert!(!names(6, "amdgpu") && !names(21, "amdxdna_accel_driver2") && !names(19, name));
        assert!(!names(7, "amdxdna") && !names(20, "amdxdna"));
        assert!(!names(0, "") && !names(u64::MAX, name));
        assert!(!names_driver(bytemuck::bytes_of(&version(20)), &[]));
    }

    #[test]
    fn in_quarantine_files_stay_open_and_mapped() {
        let path = tempfile::NamedTempFile::new().unwrap();
        path.as_file().set_len(4096).unwrap();
        let name = path.path().to_str().unwrap();
        let is_mapped = || std::fs::read_to_string("/proc/self/maps").unwrap().contains(name);
        let is_open = |file: File| {
            std::fs::read_link(format!("/proc/self/fd/{}", file.0))
                .is_ok_and(|at| at == path.path())
        };
        let open = || {
            let sys = RealSys::new();
            let file = sys.open(name).unwrap();
            sys.map(file, 0, 4096, 4096).unwrap();
            file
        };
        let file = open();
        assert!(!is_mapped() && !is_open(file), "given back");
        // Nothing takes the quarantine away: for the rest of the process files stay open.
        PROCESS.set_quarantine("a test".to_owned());
        let file = open();
        assert!(is_mapped() && is_open(file), "kept");
    }

    #[test]
    fn folders_are_listed_in_order() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b", "a", "c"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let sys = RealSys::new();
        assert_eq!(sys.list(folder.path().to_str().unwrap()).unwrap(), ["a", "b", "c"]);
        assert_eq!(sys.list("/no/such/folder"), Err(Errno::ENOENT));
        let file = folder.path().join("a");
        assert_eq!(sys.list(file.to_str().unwrap()), Err(Errno(libc::ENOTDIR)));
    }

    #[test]
    fn a_file_is_mapped_where_it_was_asked_for_copied_and_flushed() {
        let sys = RealSys::new();
        let path = tempfile::NamedTempFile::new().unwrap();
        path.as_file().set_len(16384).unwrap();
        let file = sys.open(path.path().to_str().unwrap()).unwrap();
        let alignment = 1 << 20;
        let address = sys.map(file, 0, 16384, alignment).unwrap();
        assert_eq!(address % alignment, 0);
        sys.write(address + 16380, &[1, 2, 3, 4]).unwrap();
        sys.flush(address + 16380, 4).unwrap();
        let mut bytes = [0; 4];
        sys.read(address + 16380, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 2, 3, 4]);
        assert_eq!(sys.write(address + 16381, &[0; 4]), Err(Errno::EFAULT));
        assert_eq!(std::fs::read(path.path()).unwrap()[16380..], [1, 2, 3, 4]);
        sys.unmap(address);
        assert_eq!(sys.read(address, &mut bytes), Err(Errno::EFAULT));
        // It has not said that it is the NPU's, so that the kernel is not asked. What it is the
        // kernel says: a regular file is no device.
        let result = sys.ioctl(file, abi::GEM_CLOSE, &mut [0; 8], &mut []);
        assert_eq!(result, Err(Errno::EACCES));
        let result = sys.ioctl(file, abi::VERSION, &mut [0; 64], &mut []);
        assert_eq!(result, Err(Errno::ENOTTY));
        sys.close(file);
        assert_eq!(sys.map(file, 0, 4096, 4096), Err(Errno::EBADF));
    }
}
