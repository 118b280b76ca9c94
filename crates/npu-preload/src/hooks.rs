//! The functions of the C library that are replaced. Each hands on what does not concern the NPU.
//!
//! Functions with a variable number of arguments are written with the most that the kernel takes:
//! on x86-64 both kinds pass numbers and pointers in the same registers.

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_uint, c_ulong, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;
use std::time::Duration;
use std::{mem, ptr, slice};

use trine_npu::sys::{Errno, Pointed, abi};

use crate::model::{self, Model, with};

type Open = unsafe extern "C" fn(*const c_char, c_int, c_uint) -> c_int;
type OpenAt = unsafe extern "C" fn(c_int, *const c_char, c_int, c_uint) -> c_int;
type OpenFolder = unsafe extern "C" fn(*const c_char) -> *mut c_void;
type Close = unsafe extern "C" fn(c_int) -> c_int;
type Ioctl = unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int;
type Map = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, c_long) -> *mut c_void;
type Unmap = unsafe extern "C" fn(*mut c_void, usize) -> c_int;

/// Finds the C library's own function once.
macro_rules! next {
    ($name:literal, $kind:ty) => {{
        static FOUND: OnceLock<usize> = OnceLock::new();
        let address = *FOUND.get_or_init(|| {
            // SAFETY: the name ends with 0; looking it up changes nothing.
            let found = unsafe { libc::dlsym(libc::RTLD_NEXT, $name.as_ptr()) };
            if found.is_null() {
                model::fail("the C library lacks a function");
            }
            found as usize
        });
        // SAFETY: the C library's function of this name has this type on x86-64.
        unsafe { mem::transmute::<usize, $kind>(address) }
    }};
}

fn set_errno(error: Errno) {
    // SAFETY: the C library gives each thread its own, which lives as long as the thread.
    unsafe { *libc::__errno_location() = error.0 };
}

/// Opens the device, or says which path is to be opened instead. `None` where it is the caller's.
///
/// # Safety
///
/// `path` is a text that ends with 0, or null.
unsafe fn replaced(path: *const c_char) -> Option<Result<CString, c_int>> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the caller's duty, as that of the function it calls.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    with(|model| match model.open(bytes) {
        Some(opened) => Some(Err(descriptor(model, opened))),
        None => {
            let shown = model.shown(bytes)?;
            Some(Ok(CString::new(shown.as_os_str().as_bytes()).ok()?))
        }
    })
}

/// Returns a descriptor for the model's device: one of a file that does nothing.
fn descriptor(model: &Model, opened: Result<trine_npu::sys::File, Errno>) -> c_int {
    let file = match opened {
        Ok(file) => file,
        Err(error) => {
            set_errno(error);
            return -1;
        }
    };
    let open = next!(c"open", Open);
    // SAFETY: the path is a text that ends with 0.
    let descriptor = unsafe { open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC, 0) };
    model.keep(descriptor, file);
    descriptor
}

/// Defines a function that opens a file by its path.
macro_rules! open {
    ($name:ident, $text:literal) => {
        /// Opens a file.
        ///
        /// # Safety
        ///
        /// As in the C library.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(
            path: *const c_char,
            flags: c_int,
            mode: c_uint,
        ) -> c_int {
            let next = next!($text, Open);
            // SAFETY: the caller's duties are those of the function that is called.
            unsafe {
                match replaced(path) {
                    Some(Ok(path)) => next(path.as_ptr(), flags, mode),
                    Some(Err(descriptor)) => descriptor,
                    None => next(path, flags, mode),
                }
            }
        }
    };
}

open!(open, c"open");
open!(open64, c"open64");

/// Defines a function that opens a file by its path from a folder; an absolute one needs none.
macro_rules! open_at {
    ($name:ident, $text:literal) => {
        /// Opens a file.
        ///
        /// # Safety
        ///
        /// As in the C library.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(
            folder: c_int,
            path: *const c_char,
            flags: c_int,
            mode: c_uint,
        ) -> c_int {
            let next = next!($text, OpenAt);
            // SAFETY: the caller's duties are those of the function that is called.
            unsafe {
                match replaced(path) {
                    Some(Ok(path)) => next(folder, path.as_ptr(), flags, mode),
                    Some(Err(descriptor)) => descriptor,
                    None => next(folder, path, flags, mode),
                }
            }
        }
    };
}

open_at!(openat, c"openat");
open_at!(openat64, c"openat64");

/// Opens a folder.
///
/// # Safety
///
/// As in the C library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn opendir(path: *const c_char) -> *mut c_void {
    let next = next!(c"opendir", OpenFolder);
    // SAFETY: the caller's duties are those of the function that is called.
    unsafe {
        match replaced(path) {
            Some(Ok(path)) => next(path.as_ptr()),
            // The device is no folder.
            Some(Err(_)) => ptr::null_mut(),
            None => next(path),
        }
    }
}

/// Closes a descriptor.
///
/// # Safety
///
/// As in the C library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn close(descriptor: c_int) -> c_int {
    with(|model| {
        model.close(descriptor);
        Some(())
    });
    let next = next!(c"close", Close);
    // SAFETY: the caller's duties are those of the function that is called.
    unsafe { next(descriptor) }
}

/// Calls a driver.
///
/// # Safety
///
/// As in the C library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ioctl(
    descriptor: c_int,
    number: c_ulong,
    argument: *mut c_void,
) -> c_int {
    let next = next!(c"ioctl", Ioctl);
    let outcome = with(|model| {
        let file = model.file(descriptor)?;
        // SAFETY: the caller's duties are those of the kernel's function, which takes its pointers.
        Some(unsafe { model_ioctl(model, file, number as u32, argument.cast()) })
    });
    match outcome {
        Some(Ok(())) => 0,
        Some(Err(error)) => {
            set_errno(error);
            -1
        }
        // SAFETY: the caller's duties are those of the function that is called.
        None => unsafe { next(descriptor, number, argument) },
    }
}

/// Makes slices of the pointers in an ioctl's struct and calls the model.
///
/// # Safety
///
/// `argument` leads to the struct of the ioctl, and pointers in it to as much memory as the kernel
/// would take.
unsafe fn model_ioctl(
    model: &Model,
    file: trine_npu::sys::File,
    number: u32,
    argument: *mut u8,
) -> Result<(), Errno> {
    let length = (number >> 16 & 0x3fff) as usize;
    if argument.is_null() {
        return Err(Errno::EFAULT);
    }
    // SAFETY: the number has the length of the struct, and the caller's duty is that it is there.
    let given = unsafe { slice::from_raw_parts_mut(argument, length) };
    let extents = abi::extents(number, given).ok_or(Errno::EINVAL)?;
    let mut copy = given.to_vec();
    let mut addresses = Vec::new();
    let mut pointed = Vec::new();
    for (field, bytes) in extents {
        let address: [u8; 8] = given[field..field + 8].try_into().map_err(|_| Errno::EINVAL)?;
        addresses.push((field, address));
        copy[field..field + 8].fill(0);
        let address = u64::from_le_bytes(address);
        if address != 0 {
            // SAFETY: the caller's duty, for as many bytes as the kernel would touch.
            let bytes = unsafe { slice::from_raw_parts_mut(address as *mut u8, bytes as usize) };
            pointed.push(Pointed { field, bytes });
        }
    }
    let memory = |address: u64, bytes: u64, take: &mut dyn FnMut(&mut [u8])| {
        // SAFETY: `mmap` below made this mapping, which stays until `munmap` is called. The process
        // copies to and from it in other threads at its own risk, as with a device.
        take(unsafe { slice::from_raw_parts_mut(address as *mut u8, bytes as usize) });
    };
    model.ioctl(file, number, &mut copy, &mut pointed, now, &memory)?;
    given.copy_from_slice(&copy);
    for (field, address) in addresses {
        given[field..field + 8].copy_from_slice(&address);
    }
    Ok(())
}

/// Returns the time of the clock that waits go by.
fn now() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` has room for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Defines a function that maps memory. A buffer of the device becomes memory of the process's own.
macro_rules! map {
    ($name:ident, $text:literal) => {
        /// Maps memory.
        ///
        /// # Safety
        ///
        /// As in the C library.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(
            address: *mut c_void,
            length: usize,
            access: c_int,
            flags: c_int,
            descriptor: c_int,
            offset: c_long,
        ) -> *mut c_void {
            let next = next!($text, Map);
            let mapped = with(|model| {
                let file = model.file(descriptor)?;
                // Without it the address is not known before the model is asked.
                if flags & libc::MAP_FIXED == 0 {
                    return Some(Err(Errno::EINVAL));
                }
                Some(model.map(file, offset as u64, length as u64, address as u64))
            });
            let own = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            match mapped {
                // SAFETY: the caller's duties are those of the function that is called.
                None => unsafe { next(address, length, access, flags, descriptor, offset) },
                // SAFETY: the caller has named this range to be replaced.
                Some(Ok(())) => unsafe { next(address, length, access, own, -1, 0) },
                Some(Err(error)) => {
                    set_errno(error);
                    libc::MAP_FAILED
                }
            }
        }
    };
}

map!(mmap, c"mmap");
map!(mmap64, c"mmap64");

/// Takes a mapping away.
///
/// # Safety
///
/// As in the C library.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn munmap(address: *mut c_void, length: usize) -> c_int {
    with(|model| {
        model.unmap(address as u64);
        Some(())
    });
    let next = next!(c"munmap", Unmap);
    // SAFETY: the caller's duties are those of the function that is called.
    unsafe { next(address, length) }
}
