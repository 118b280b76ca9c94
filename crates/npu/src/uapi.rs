//! Structs and ioctl numbers of the Linux driver `amdxdna` (`include/uapi/drm/amdxdna_accel.h`),
//! and what the driver fixes for XDNA1 (NPU1). Never run on silicon.
//!
//! All structs are little-endian with natural alignment; their sizes and the offsets of their
//! fields are checked while compiling.

use std::mem::{offset_of, size_of};

use bytemuck::{Pod, Zeroable};

/// `DRM_COMMAND_BASE`: the driver's own ioctls begin here.
const COMMAND_BASE: u32 = 0x40;

/// Returns the number of an ioctl of type `d` that reads and writes a struct of `bytes`.
const fn read_write(number: u32, bytes: usize) -> u32 {
    3 << 30 | (bytes as u32) << 16 | (b'd' as u32) << 8 | (COMMAND_BASE + number)
}

/// Makes a hardware context.
pub const CREATE_HWCTX: u32 = read_write(0, size_of::<CreateHwctx>());
/// Ends a hardware context.
pub const DESTROY_HWCTX: u32 = read_write(1, size_of::<DestroyHwctx>());
/// Gives a hardware context its configuration.
pub const CONFIG_HWCTX: u32 = read_write(2, size_of::<ConfigHwctx>());
/// Makes a buffer object.
pub const CREATE_BO: u32 = read_write(3, size_of::<CreateBo>());
/// Asks for the addresses of a buffer object.
pub const GET_BO_INFO: u32 = read_write(4, size_of::<GetBoInfo>());
/// Flushes or invalidates a buffer object.
pub const SYNC_BO: u32 = read_write(5, size_of::<SyncBo>());
/// Submits a command.
pub const EXEC_CMD: u32 = read_write(6, size_of::<ExecCmd>());
/// Asks the driver for information.
pub const GET_INFO: u32 = read_write(7, size_of::<GetInfo>());
/// Changes a setting; only for root.
pub const SET_STATE: u32 = read_write(8, size_of::<GetInfo>());
/// Asks the driver for lists; from version 0.1 of the interface on.
pub const GET_ARRAY: u32 = read_write(10, size_of::<GetArray>());

/// The address of a buffer object that has none on the device.
pub const INVALID_ADDRESS: u64 = u64::MAX;

/// Bytes of the device heap, and the alignment of its mapping.
pub const HEAP_BYTES: u64 = 64 << 20;
/// The device heap's address on the device.
pub const HEAP_ADDRESS: u64 = 0x400_0000;
/// Buffer objects in the device heap begin at multiples of this.
pub const DEVICE_ALIGNMENT: u64 = 32 << 10;
/// Commands of a hardware context that may be in flight.
pub const COMMANDS_IN_FLIGHT: usize = 4;
/// Compute units that a hardware context can be configured with.
pub const COMPUTE_UNITS_MAX: usize = 32;

/// Wishes for a hardware context. All zero for none.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct QosInfo {
    /// Giga-operations each second.
    pub gops: u32,
    /// Frames each second.
    pub fps: u32,
    /// Bandwidth of DMA.
    pub dma_bandwidth: u32,
    /// Latency.
    pub latency: u32,
    /// Time of a frame.
    pub frame_exec_time: u32,
    /// 0x100 for real time, 0x200 for normal, 0x280 for low.
    pub priority: u32,
}

/// The argument of [`CREATE_HWCTX`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct CreateHwctx {
    /// Must be 0.
    pub ext: u64,
    /// Must be 0.
    pub ext_flags: u64,
    /// Address of a [`QosInfo`]; required.
    pub qos_p: u64,
    /// 0.
    pub umq_bo: u32,
    /// 0.
    pub log_buf_bo: u32,
    /// Most operations each cycle: 2048 for published kernels.
    pub max_opc: u32,
    /// Cores: columns of the partition times 4.
    pub num_tiles: u32,
    /// 0.
    pub mem_size: u32,
    /// Set by the driver.
    pub umq_doorbell: u32,
    /// The context, set by the driver.
    pub handle: u32,
    /// The timeline that commands signal, set by the driver.
    pub syncobj_handle: u32,
}

/// The argument of [`DESTROY_HWCTX`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct DestroyHwctx {
    /// The context.
    pub handle: u32,
    /// Must be 0.
    pub pad: u32,
}

/// The argument of [`CONFIG_HWCTX`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct ConfigHwctx {
    /// The context.
    pub handle: u32,
    /// One of `CONFIG_*`.
    pub param_type: u32,
    /// Address or value of the parameter.
    pub param_val: u64,
    /// Bytes of the parameter, at most 4096.
    pub param_val_size: u32,
    /// Must be 0.
    pub pad: u32,
}

/// A list of compute units: a [`ConfigCuHeader`] and [`CuConfig`]s. Once for each context.
pub const CONFIG_CU: u32 = 0;

/// What a list of compute units begins with.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct ConfigCuHeader {
    /// The number of compute units that follow.
    pub num_cus: u16,
    /// Must be 0.
    pub pad: [u16; 3],
}

/// One compute unit.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct CuConfig {
    /// A buffer object of type [`BO_DEVICE`] with the PDI.
    pub cu_bo: u32,
    /// The function of the compute unit.
    pub cu_func: u8,
    /// Must be 0.
    pub pad: [u8; 3],
}

/// The argument of [`CREATE_BO`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct CreateBo {
    /// Must be 0.
    pub flags: u64,
    /// Address of a table of pages or of a dma-buf, or 0.
    pub vaddr: u64,
    /// Bytes.
    pub size: u64,
    /// One of `BO_*`.
    pub kind: u32,
    /// The buffer object, set by the driver.
    pub handle: u32,
}

/// Memory that the process and the device share.
pub const BO_SHARE: u32 = 1;
/// The device heap: one for each process, 64 MiB.
pub const BO_DEVICE_HEAP: u32 = 2;
/// A piece of the device heap.
pub const BO_DEVICE: u32 = 3;
/// A command packet.
pub const BO_COMMAND: u32 = 4;

/// The argument of [`GET_BO_INFO`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct GetBoInfo {
    /// Must be 0.
    pub ext: u64,
    /// Must be 0.
    pub ext_flags: u64,
    /// The buffer object.
    pub handle: u32,
    /// Must be 0.
    pub pad: u32,
    /// Where to map it in the device's file, set by the driver.
    pub map_offset: u64,
    /// Its address in the process, set by the driver.
    pub vaddr: u64,
    /// Its address on the device, set by the driver; [`INVALID_ADDRESS`] where the device uses the
    /// process's addresses.
    pub xdna_addr: u64,
}

/// The argument of [`SYNC_BO`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct SyncBo {
    /// The buffer object.
    pub handle: u32,
    /// 0 to the device, 1 from the device.
    pub direction: u32,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

/// The argument of [`EXEC_CMD`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct ExecCmd {
    /// Must be 0.
    pub ext: u64,
    /// Must be 0.
    pub ext_flags: u64,
    /// The context.
    pub hwctx: u32,
    /// 0: submit a command buffer.
    pub kind: u32,
    /// The handle of the one command buffer, not its address.
    pub cmd_handles: u64,
    /// Address of the handles of all buffers that the command uses.
    pub args: u64,
    /// 1.
    pub cmd_count: u32,
    /// Buffers that the command uses, at most 4095.
    pub arg_count: u32,
    /// The point on the context's timeline, set by the driver.
    pub seq: u64,
}

/// The argument of [`GET_INFO`] and [`SET_STATE`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct GetInfo {
    /// One of `INFO_*`.
    pub param: u32,
    /// Bytes of the buffer.
    pub buffer_size: u32,
    /// Address of the buffer.
    pub buffer: u64,
}

/// Rows, columns and versions of the array: 64 bytes.
pub const INFO_AIE_METADATA: u32 = 1;
/// Version of the array.
pub const INFO_AIE_VERSION: u32 = 2;
/// Clocks: 48 bytes.
pub const INFO_CLOCK: u32 = 3;
/// Hardware contexts, with counters of submissions and completions: 64 bytes each.
pub const INFO_HW_CONTEXTS: u32 = 5;
/// Version of the firmware: 16 bytes.
pub const INFO_FIRMWARE_VERSION: u32 = 8;
/// Power mode.
pub const INFO_POWER_MODE: u32 = 9;

/// What the NPU can do and does: 40 bytes; from version 0.4 of the interface on.
pub const INFO_RESOURCE: u32 = 12;

/// The argument of [`GET_ARRAY`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct GetArray {
    /// What to list.
    pub param: u32,
    /// Bytes of an element.
    pub element_size: u32,
    /// How many elements there is room for; set by the driver to how many there are.
    pub num_element: u32,
    /// Must be 0.
    pub pad: u32,
    /// Address of the buffer.
    pub buffer: u64,
}

const _: () = {
    assert!(size_of::<QosInfo>() == 24);
    assert!(size_of::<CreateHwctx>() == 56 && offset_of!(CreateHwctx, qos_p) == 16);
    assert!(offset_of!(CreateHwctx, umq_bo) == 24 && offset_of!(CreateHwctx, num_tiles) == 36);
    assert!(offset_of!(CreateHwctx, handle) == 48);
    assert!(offset_of!(CreateHwctx, syncobj_handle) == 52);
    assert!(size_of::<DestroyHwctx>() == 8);
    assert!(size_of::<ConfigHwctx>() == 24 && offset_of!(ConfigHwctx, param_val) == 8);
    assert!(offset_of!(ConfigHwctx, param_val_size) == 16);
    assert!(size_of::<ConfigCuHeader>() == 8 && size_of::<CuConfig>() == 8);
    assert!(offset_of!(CuConfig, cu_func) == 4);
    assert!(size_of::<CreateBo>() == 32 && offset_of!(CreateBo, size) == 16);
    assert!(offset_of!(CreateBo, kind) == 24 && offset_of!(CreateBo, handle) == 28);
    assert!(size_of::<GetBoInfo>() == 48 && offset_of!(GetBoInfo, handle) == 16);
    assert!(offset_of!(GetBoInfo, map_offset) == 24 && offset_of!(GetBoInfo, xdna_addr) == 40);
    assert!(size_of::<SyncBo>() == 24 && offset_of!(SyncBo, offset) == 8);
    assert!(size_of::<ExecCmd>() == 56 && offset_of!(ExecCmd, hwctx) == 16);
    assert!(offset_of!(ExecCmd, cmd_handles) == 24 && offset_of!(ExecCmd, args) == 32);
    assert!(offset_of!(ExecCmd, cmd_count) == 40 && offset_of!(ExecCmd, seq) == 48);
    assert!(size_of::<GetInfo>() == 16 && offset_of!(GetInfo, buffer) == 8);
    assert!(size_of::<GetArray>() == 24 && offset_of!(GetArray, buffer) == 16);

    assert!(CREATE_HWCTX == 0xc038_6440 && DESTROY_HWCTX == 0xc008_6441);
    assert!(CONFIG_HWCTX == 0xc018_6442 && CREATE_BO == 0xc020_6443);
    assert!(GET_BO_INFO == 0xc030_6444 && SYNC_BO == 0xc018_6445);
    assert!(EXEC_CMD == 0xc038_6446 && GET_INFO == 0xc010_6447);
    assert!(SET_STATE == 0xc010_6448 && GET_ARRAY == 0xc018_644a);

    // `amdxdna_accel.h`: `amdxdna_bo_type`, `amdxdna_drm_get_param`, parameters of contexts.
    assert!(BO_SHARE == 1 && BO_DEVICE_HEAP == 2 && BO_DEVICE == 3 && BO_COMMAND == 4);
    assert!(INFO_AIE_METADATA == 1 && INFO_AIE_VERSION == 2 && INFO_CLOCK == 3);
    assert!(INFO_HW_CONTEXTS == 5 && INFO_FIRMWARE_VERSION == 8 && INFO_POWER_MODE == 9);
    assert!(INFO_RESOURCE == 12 && CONFIG_CU == 0 && COMPUTE_UNITS_MAX == 32);
    assert!(INVALID_ADDRESS == 0xffff_ffff_ffff_ffff);
    // `npu1_regs.c`, `aie2_pci.h`, `amdxdna_ctx.h`.
    assert!(HEAP_ADDRESS == 0x400_0000 && HEAP_BYTES == 0x400_0000);
    assert!(DEVICE_ALIGNMENT == 0x8000 && COMMANDS_IN_FLIGHT == 4);
};
