//! The ioctls that may be called, beyond the structs of [`crate::uapi`]: those of the kernel's
//! graphics core (`include/uapi/drm/drm.h`), answers to questions, and a table of pointers.

use std::mem::{offset_of, size_of};

use bytemuck::{Pod, Zeroable};
use serde::Serialize;

use super::{Errno, Pointed};
use crate::uapi;

/// Returns the number of an ioctl of type `d`: direction 1 writes to the kernel, 3 also reads.
const fn number(direction: u32, number: u32, bytes: usize) -> u32 {
    direction << 30 | (bytes as u32) << 16 | (b'd' as u32) << 8 | number
}

/// The name with which the driver of a node answers [`VERSION`], in every version (Linux,
/// `drivers/accel/amdxdna/amdxdna_pci_drv.c`, `amdxdna_drm_drv`).
pub const DRM_DRIVER: &str = "amdxdna_accel_driver";
/// The name of its module, and among the drivers of PCI in sysfs (`KBUILD_MODNAME`).
pub const MODULE: &str = "amdxdna";
/// AMD's number as a vendor, as sysfs has it.
pub const VENDOR: &str = "0x1022";
/// The number of an XDNA1 among AMD's devices.
pub const XDNA1: &str = "0x1502";

/// Asks for the driver's name and version.
pub const VERSION: u32 = number(3, 0x00, size_of::<Version>());
/// Gives up a buffer object.
pub const GEM_CLOSE: u32 = number(1, 0x09, size_of::<GemClose>());
/// Makes a dma-buf of a buffer object.
pub const PRIME_HANDLE_TO_FD: u32 = number(3, 0x2d, size_of::<PrimeHandle>());
/// Takes a dma-buf as a buffer object.
pub const PRIME_FD_TO_HANDLE: u32 = number(3, 0x2e, size_of::<PrimeHandle>());
/// Gives up a timeline.
pub const SYNCOBJ_DESTROY: u32 = number(3, 0xc0, size_of::<SyncobjDestroy>());
/// Waits for points on timelines.
pub const TIMELINE_WAIT: u32 = number(3, 0xca, size_of::<TimelineWait>());

/// The argument of [`VERSION`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Version {
    /// Changes when programs no longer work.
    pub major: i32,
    /// Changes when something is added.
    pub minor: i32,
    /// Third number.
    pub patch: i32,
    /// Not used.
    pub pad: u32,
    /// Bytes of room for the name; set by the kernel to its length.
    pub name_len: u64,
    /// Address of the name.
    pub name: u64,
    /// Bytes of room for the date.
    pub date_len: u64,
    /// Address of the date.
    pub date: u64,
    /// Bytes of room for the description.
    pub desc_len: u64,
    /// Address of the description.
    pub desc: u64,
}

/// What trine's model of the driver has as its description. A driver for a device has its own.
pub const MODEL_DESCRIPTION: &str = "trine's model of amdxdna, no NPU";

/// The argument of [`GEM_CLOSE`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct GemClose {
    /// The buffer object.
    pub handle: u32,
    /// Not used.
    pub pad: u32,
}

/// The argument of [`PRIME_HANDLE_TO_FD`] and [`PRIME_FD_TO_HANDLE`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct PrimeHandle {
    /// The buffer object, set by the kernel for one that it takes.
    pub handle: u32,
    /// [`CLOSE_ON_EXEC`] and [`READ_WRITE`] for one that it makes, else 0.
    pub flags: u32,
    /// The dma-buf, set by the kernel for one that it makes.
    pub fd: i32,
}

/// A program that this process starts does not get the dma-buf.
pub const CLOSE_ON_EXEC: u32 = 0o200_0000;
/// The dma-buf can be written.
pub const READ_WRITE: u32 = 2;

/// The argument of [`SYNCOBJ_DESTROY`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct SyncobjDestroy {
    /// The timeline.
    pub handle: u32,
    /// Must be 0.
    pub pad: u32,
}

/// The argument of [`TIMELINE_WAIT`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct TimelineWait {
    /// Address of the timelines' handles.
    pub handles: u64,
    /// Address of a point for each.
    pub points: u64,
    /// When to give up, on the monotonic clock.
    pub timeout_ns: i64,
    /// The number of timelines.
    pub count_handles: u32,
    /// [`WAIT_ALL`], [`WAIT_FOR_SUBMIT`].
    pub flags: u32,
    /// Set by the kernel if not all are waited for.
    pub first_signaled: u32,
    /// Must be 0.
    pub pad: u32,
}

/// Waits for all timelines.
pub const WAIT_ALL: u32 = 1;
/// A point that nothing was submitted for yet is waited for too.
pub const WAIT_FOR_SUBMIT: u32 = 2;

/// One hardware context in the answer to [`uapi::INFO_HW_CONTEXTS`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct ContextInfo {
    /// Its handle, unique in its process.
    pub context_id: u32,
    /// First column of its partition.
    pub start_col: u32,
    /// Columns of its partition.
    pub num_col: u32,
    /// Not used.
    pub pad: u32,
    /// The process that it belongs to.
    pub pid: i64,
    /// Commands that were submitted.
    pub command_submissions: u64,
    /// Submissions that have ended, a chain as one, also those that failed.
    pub command_completions: u64,
    /// Moves to another partition.
    pub migrations: u64,
    /// Interruptions for other contexts.
    pub preemptions: u64,
    /// Commands that failed.
    pub errors: u64,
}

/// The answer to [`uapi::INFO_FIRMWARE_VERSION`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable, Serialize)]
pub struct FirmwareVersion {
    /// First number.
    pub major: u32,
    /// Second number.
    pub minor: u32,
    /// Third number.
    pub patch: u32,
    /// Fourth number.
    pub build: u32,
}

/// The answer to [`uapi::INFO_AIE_VERSION`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable, Serialize)]
pub struct ArrayVersion {
    /// First number.
    pub major: u32,
    /// Second number.
    pub minor: u32,
}

/// One kind of tiles in [`ArrayMetadata`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable, Serialize)]
pub struct TileMetadata {
    /// Rows of such tiles.
    pub row_count: u16,
    /// The first of them.
    pub row_start: u16,
    /// DMA channels of a tile.
    pub dma_channel_count: u16,
    /// Locks of a tile.
    pub lock_count: u16,
    /// Registers for events of a tile.
    pub event_reg_count: u16,
    /// Not used.
    #[serde(skip)]
    pub pad: [u16; 3],
}

/// The answer to [`uapi::INFO_AIE_METADATA`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable, Serialize)]
pub struct ArrayMetadata {
    /// Bytes of a column's addresses.
    pub col_size: u32,
    /// Columns.
    pub cols: u16,
    /// Rows of all tiles.
    pub rows: u16,
    /// Version of the array.
    pub version: ArrayVersion,
    /// Tiles with cores.
    pub core: TileMetadata,
    /// Memory tiles.
    pub mem: TileMetadata,
    /// Shim tiles.
    pub shim: TileMetadata,
}

/// One clock in [`Clocks`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Clock {
    /// Its name, ended by 0.
    pub name: [u8; 16],
    /// MHz. A device that sleeps may say 0.
    pub freq_mhz: u32,
    /// Not used.
    pub pad: u32,
}

/// The answer to [`uapi::INFO_CLOCK`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Clocks {
    /// The clock of the processor that runs the firmware.
    pub mp_npu: Clock,
    /// The clock of the array.
    pub h: Clock,
}

/// The answer to [`uapi::INFO_RESOURCE`]. The published header has no units but the names.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable, Serialize)]
pub struct ResourceInfo {
    /// The highest clock.
    pub npu_clk_max: u64,
    /// The most operations each second.
    pub npu_tops_max: u64,
    /// The most tasks.
    pub npu_task_max: u64,
    /// Operations each second at this time.
    pub npu_tops_curr: u64,
    /// Tasks at this time.
    pub npu_task_curr: u64,
}

const _: () = {
    assert!(size_of::<ArrayVersion>() == 8 && size_of::<TileMetadata>() == 16);
    assert!(size_of::<ArrayMetadata>() == 64 && offset_of!(ArrayMetadata, core) == 16);
    assert!(size_of::<Clocks>() == 48 && size_of::<ResourceInfo>() == 40);
    assert!(VERSION == 0xc040_6400 && offset_of!(Version, name) == 24);
    assert!(offset_of!(Version, date) == 40 && offset_of!(Version, desc) == 56);
    assert!(GEM_CLOSE == 0x4008_6409 && PRIME_HANDLE_TO_FD == 0xc00c_642d);
    assert!(PRIME_FD_TO_HANDLE == 0xc00c_642e && size_of::<PrimeHandle>() == 12);
    assert!(SYNCOBJ_DESTROY == 0xc008_64c0 && TIMELINE_WAIT == 0xc028_64ca);
    assert!(offset_of!(TimelineWait, timeout_ns) == 16 && offset_of!(TimelineWait, flags) == 28);
    assert!(size_of::<ContextInfo>() == 64 && offset_of!(ContextInfo, command_completions) == 32);
    assert!(size_of::<FirmwareVersion>() == 16);
};

/// A field that points to memory which the kernel reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pointer {
    /// Where the struct has it.
    pub field: usize,
    /// How many bytes the kernel may touch there.
    pub extent: Extent,
}

/// How many bytes a pointer leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Nothing: the field has to be 0.
    Null,
    /// A fixed number of bytes.
    Bytes(u64),
    /// The number of 32 bits at `field`, times `each`.
    Times {
        /// The offset of the number in the struct.
        field: usize,
        /// Bytes of each.
        each: u64,
    },
    /// The number of 64 bits at this field.
    Long(usize),
    /// The product of the numbers of 32 bits at two fields.
    Product(usize, usize),
}

impl Extent {
    /// Returns how many bytes these are for the struct `argument`.
    fn bytes(self, argument: &[u8]) -> u64 {
        let number = |field: usize| {
            let bytes = argument[field..field + 4].try_into().expect("four bytes");
            u64::from(u32::from_le_bytes(bytes))
        };
        match self {
            Self::Null => 0,
            Self::Bytes(bytes) => bytes,
            Self::Times { field, each } => number(field) * each,
            Self::Long(field) => number(field) | number(field + 4) << 32,
            Self::Product(one, other) => number(one) * number(other),
        }
    }
}

/// Returns the pointers in the struct of an ioctl, or `None` for one that may not be called.
fn pointers(number: u32) -> Option<Vec<Pointer>> {
    let pointer = |field, extent| Pointer { field, extent };
    let times = |field, each| Extent::Times { field, each };
    Some(match number {
        VERSION => vec![
            pointer(offset_of!(Version, name), Extent::Long(offset_of!(Version, name_len))),
            pointer(offset_of!(Version, date), Extent::Long(offset_of!(Version, date_len))),
            pointer(offset_of!(Version, desc), Extent::Long(offset_of!(Version, desc_len))),
        ],
        TIMELINE_WAIT => {
            let count = offset_of!(TimelineWait, count_handles);
            vec![
                pointer(offset_of!(TimelineWait, handles), times(count, 4)),
                pointer(offset_of!(TimelineWait, points), times(count, 8)),
            ]
        }
        uapi::CREATE_HWCTX => {
            let bytes = size_of::<uapi::QosInfo>() as u64;
            vec![pointer(offset_of!(uapi::CreateHwctx, qos_p), Extent::Bytes(bytes))]
        }
        uapi::CONFIG_HWCTX => {
            let bytes = times(offset_of!(uapi::ConfigHwctx, param_val_size), 1);
            vec![pointer(offset_of!(uapi::ConfigHwctx, param_val), bytes)]
        }
        uapi::CREATE_BO => vec![pointer(offset_of!(uapi::CreateBo, vaddr), Extent::Null)],
        uapi::EXEC_CMD => {
            let bytes = times(offset_of!(uapi::ExecCmd, arg_count), 4);
            vec![pointer(offset_of!(uapi::ExecCmd, args), bytes)]
        }
        uapi::GET_INFO | uapi::SET_STATE => {
            let bytes = times(offset_of!(uapi::GetInfo, buffer_size), 1);
            vec![pointer(offset_of!(uapi::GetInfo, buffer), bytes)]
        }
        uapi::GET_ARRAY => {
            let size = offset_of!(uapi::GetArray, element_size);
            let count = offset_of!(uapi::GetArray, num_element);
            vec![pointer(offset_of!(uapi::GetArray, buffer), Extent::Product(size, count))]
        }
        uapi::DESTROY_HWCTX
        | uapi::GET_BO_INFO
        | uapi::SYNC_BO
        | GEM_CLOSE
        | PRIME_HANDLE_TO_FD
        | PRIME_FD_TO_HANDLE
        | SYNCOBJ_DESTROY => Vec::new(),
        _ => return None,
    })
}

/// Returns where the struct of an ioctl has pointers, and how many bytes each leads to. `None` for
/// an ioctl that is not in the table, or a struct of another size.
#[must_use]
pub fn extents(number: u32, argument: &[u8]) -> Option<Vec<(usize, u64)>> {
    if argument.len() as u32 != number >> 16 & 0x3fff {
        return None;
    }
    let extent = |pointer: Pointer| (pointer.field, pointer.extent.bytes(argument));
    Some(pointers(number)?.into_iter().map(extent).collect())
}

/// Checks that an ioctl touches no memory but `argument` and `pointed`.
///
/// Fields for which `pointed` has nothing have to be 0, which the kernel takes for a bad address.
/// `EXEC_CMD` with another count than one command takes handles from an address, and is refused.
///
/// # Errors
///
/// - `ENOTTY` for a number that is not in the table.
/// - `EINVAL` if `argument` has not the bytes of the ioctl's struct.
/// - `EFAULT` for a pointer that is not 0, that the table does not have, or with too few bytes.
pub fn check(number: u32, argument: &[u8], pointed: &[Pointed<'_>]) -> Result<(), Errno> {
    let pointers = pointers(number).ok_or(Errno::ENOTTY)?;
    if argument.len() as u32 != number >> 16 & 0x3fff {
        return Err(Errno::EINVAL);
    }
    for (index, part) in pointed.iter().enumerate() {
        let is_twice = pointed[..index].iter().any(|other| other.field == part.field);
        let pointer = pointers.iter().find(|pointer| pointer.field == part.field);
        let Some(pointer) = pointer.filter(|_| !is_twice) else { return Err(Errno::EFAULT) };
        if pointer.extent == Extent::Null
            || pointer.extent.bytes(argument) > part.bytes.len() as u64
        {
            return Err(Errno::EFAULT);
        }
    }
    // Room for the kernel to put addresses into: what is there now is an address of nothing.
    let is_null = |pointer: &Pointer| argument[pointer.field..pointer.field + 8] == [0; 8];
    if pointers.iter().all(is_null) { Ok(()) } else { Err(Errno::EFAULT) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with<'a>(field: usize, bytes: &'a mut [u8]) -> [Pointed<'a>; 1] {
        [Pointed { field, bytes }]
    }

    #[test]
    fn unknown_ioctls_are_not_called() {
        // A syncobj's fd, a graphics ioctl, and one of a terminal.
        for number in [0xc010_64c1, 0xc010_64b3, 0x5401] {
            assert_eq!(check(number, &[0; 16], &[]), Err(Errno::ENOTTY));
        }
        assert_eq!(check(GEM_CLOSE, &[0; 4], &[]), Err(Errno::EINVAL));
        assert_eq!(check(GEM_CLOSE, &[0; 8], &[]), Ok(()));
    }

    #[test]
    fn the_kernel_gets_no_address_of_the_callers() {
        let mut argument = uapi::CreateHwctx { qos_p: 8, ..Default::default() };
        let bytes = bytemuck::bytes_of(&argument).to_vec();
        assert_eq!(check(uapi::CREATE_HWCTX, &bytes, &[]), Err(Errno::EFAULT));
        argument.qos_p = 0;
        let bytes = bytemuck::bytes_of(&argument).to_vec();
        assert_eq!(check(uapi::CREATE_HWCTX, &bytes, &[]), Ok(()));
        assert_eq!(check(uapi::CREATE_HWCTX, &bytes, &with(16, &mut [0; 24])), Ok(()));
        assert_eq!(check(uapi::CREATE_HWCTX, &bytes, &with(16, &mut [0; 23])), Err(Errno::EFAULT));
        assert_eq!(check(uapi::CREATE_HWCTX, &bytes, &with(8, &mut [0; 24])), Err(Errno::EFAULT));
        let create = uapi::CreateBo { vaddr: 0, size: 8, ..Default::default() };
        let bytes = bytemuck::bytes_of(&create);
        assert_eq!(check(uapi::CREATE_BO, bytes, &with(8, &mut [0; 24])), Err(Errno::EFAULT));
    }

    #[test]
    fn a_length_in_the_struct_may_not_pass_the_slice() {
        let mut buffer = [0; 64];
        let long = uapi::GetInfo { param: 5, buffer_size: 65, buffer: 0 };
        let pointed = with(8, &mut buffer);
        assert_eq!(check(uapi::GET_INFO, bytemuck::bytes_of(&long), &pointed), Err(Errno::EFAULT));
        let list =
            uapi::GetArray { element_size: u32::MAX, num_element: u32::MAX, ..Default::default() };
        let pointed = with(16, &mut buffer);
        assert_eq!(check(uapi::GET_ARRAY, bytemuck::bytes_of(&list), &pointed), Err(Errno::EFAULT));
        let version = Version { name_len: 1 << 32, ..Default::default() };
        let pointed = with(24, &mut buffer);
        assert_eq!(check(VERSION, bytemuck::bytes_of(&version), &pointed), Err(Errno::EFAULT));
        let bytes = bytemuck::bytes_of(&long);
        assert_eq!(extents(uapi::GET_INFO, bytes), Some(vec![(8, 65)]));
        assert_eq!(extents(uapi::GET_INFO, &bytes[..8]), None);
        assert_eq!(extents(0x5401, bytes), None);
        let wait = TimelineWait { count_handles: 8, ..Default::default() };
        let pointed = with(8, &mut buffer);
        assert_eq!(check(TIMELINE_WAIT, bytemuck::bytes_of(&wait), &pointed), Ok(()));
    }
}
