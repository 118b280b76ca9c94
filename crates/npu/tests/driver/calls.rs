//! Every error of the model's ioctls, called by hand.

use trine_npu::driver::DEVICE_PATH;
use trine_npu::sys::abi::{self, GemClose, PrimeHandle, SyncobjDestroy, TimelineWait};
use trine_npu::sys::{Errno, File, Sys};
use trine_npu::uapi::{self, ConfigHwctx, CreateBo, CreateHwctx, ExecCmd, GetBoInfo, GetInfo};
use trine_npu_model::{AddressMode, Machine, ModelSys};

use crate::support::{call, model};

/// A model with an open file.
pub(crate) struct Open {
    pub(crate) sys: ModelSys,
    pub(crate) file: File,
}

impl Open {
    fn new(machine: Machine) -> Self {
        let sys = model(machine);
        let file = sys.open(DEVICE_PATH).unwrap();
        Self { sys, file }
    }

    /// With a heap that is mapped.
    pub(crate) fn with_heap(machine: Machine) -> Self {
        let open = Self::new(machine);
        let heap = open.buffer(uapi::BO_DEVICE_HEAP, uapi::HEAP_BYTES).unwrap();
        open.map(heap, uapi::HEAP_BYTES, uapi::HEAP_BYTES).unwrap();
        open
    }

    pub(crate) fn buffer(&self, kind: u32, size: u64) -> Result<u32, Errno> {
        self.create(CreateBo { kind, size, ..Default::default() })
    }

    fn create(&self, create: CreateBo) -> Result<u32, Errno> {
        call(&self.sys, self.file, uapi::CREATE_BO, create, None).map(|create| create.handle)
    }

    fn info(&self, info: GetBoInfo) -> Result<GetBoInfo, Errno> {
        call(&self.sys, self.file, uapi::GET_BO_INFO, info, None)
    }

    pub(crate) fn info_of(&self, handle: u32) -> GetBoInfo {
        self.info(GetBoInfo { handle, ..Default::default() }).unwrap()
    }

    pub(crate) fn map(&self, handle: u32, bytes: u64, alignment: u64) -> Result<u64, Errno> {
        self.sys.map(self.file, self.info_of(handle).map_offset, bytes, alignment)
    }

    pub(crate) fn context(&self, create: CreateHwctx) -> Result<CreateHwctx, Errno> {
        call(&self.sys, self.file, uapi::CREATE_HWCTX, create, Some((16, &mut [0; 24])))
    }

    pub(crate) fn configure(&self, handle: u32, bytes: &mut [u8]) -> Result<ConfigHwctx, Errno> {
        let param_val_size = bytes.len() as u32;
        let configure = ConfigHwctx { handle, param_val_size, ..Default::default() };
        call(&self.sys, self.file, uapi::CONFIG_HWCTX, configure, Some((8, bytes)))
    }

    pub(crate) fn execute(&self, execute: ExecCmd, buffers: &mut [u8]) -> Result<ExecCmd, Errno> {
        call(&self.sys, self.file, uapi::EXEC_CMD, execute, Some((32, buffers)))
    }

    fn wait(&self, wait: TimelineWait, handle: u32, point: u64) -> Result<(), Errno> {
        let wait = TimelineWait { count_handles: 1, ..wait };
        let (mut handle, mut point) = (handle.to_le_bytes(), point.to_le_bytes());
        let mut pointed = [
            trine_npu::sys::Pointed { field: 0, bytes: &mut handle },
            trine_npu::sys::Pointed { field: 8, bytes: &mut point },
        ];
        let mut bytes = bytemuck::bytes_of(&wait).to_vec();
        self.sys.ioctl(self.file, abi::TIMELINE_WAIT, &mut bytes, &mut pointed)
    }
}

/// 5 columns.
pub(crate) const CREATE: CreateHwctx = CreateHwctx {
    ext: 0,
    ext_flags: 0,
    qos_p: 0,
    umq_bo: 0,
    log_buf_bo: 0,
    max_opc: 2048,
    num_tiles: 20,
    mem_size: 0,
    umq_doorbell: 0,
    handle: 0,
    syncobj_handle: 0,
};

pub(crate) fn units(buffers: &[u32]) -> Vec<u8> {
    let mut bytes = vec![buffers.len() as u8, 0, 0, 0, 0, 0, 0, 0];
    for buffer in buffers {
        bytes.extend(buffer.to_le_bytes());
        bytes.extend([0; 4]);
    }
    bytes
}

#[test]
fn buffers_are_made_only_as_the_driver_makes_them() {
    let open = Open::new(Machine::default());
    let share = CreateBo { kind: uapi::BO_SHARE, size: 64, ..Default::default() };
    assert_eq!(open.create(CreateBo { flags: 1, ..share }), Err(Errno::EINVAL));
    assert_eq!(open.create(CreateBo { size: 0, ..share }), Err(Errno::EINVAL));
    assert_eq!(open.create(CreateBo { kind: 0, ..share }), Err(Errno::EINVAL));
    assert_eq!(open.create(CreateBo { kind: 5, ..share }), Err(Errno::EINVAL));
    assert_eq!(open.create(CreateBo { vaddr: 4096, ..share }), Err(Errno::EFAULT));
    assert_eq!(open.create(CreateBo { size: u64::MAX, ..share }), Err(Errno::ENOMEM));
    let heap = uapi::BO_DEVICE_HEAP;
    assert_eq!(open.buffer(heap, uapi::HEAP_BYTES + 1), Err(Errno::EINVAL));
    assert!(open.create(share).is_ok());
}

#[test]
fn the_heap_comes_before_its_pieces() {
    let open = Open::new(Machine::default());
    assert_eq!(open.buffer(uapi::BO_DEVICE, 64), Err(Errno::EINVAL));
    let heap = open.buffer(uapi::BO_DEVICE_HEAP, uapi::HEAP_BYTES).unwrap();
    assert_eq!(open.buffer(uapi::BO_DEVICE_HEAP, uapi::HEAP_BYTES), Err(Errno::EBUSY));
    assert_eq!(open.buffer(uapi::BO_DEVICE, 64), Err(Errno::EAGAIN));
    assert_eq!(open.map(heap, uapi::HEAP_BYTES, 4096), Err(Errno::EINVAL));
    assert_eq!(open.map(heap, uapi::HEAP_BYTES, uapi::HEAP_BYTES).unwrap() % uapi::HEAP_BYTES, 0);
    let first = open.buffer(uapi::BO_DEVICE, 64).unwrap();
    let second = open.buffer(uapi::BO_DEVICE, 40_000).unwrap();
    let third = open.buffer(uapi::BO_DEVICE, 64).unwrap();
    let at = |handle| open.info_of(handle).xdna_addr - uapi::HEAP_ADDRESS;
    assert_eq!([at(first), at(second), at(third)], [0, 32 << 10, 96 << 10]);
    // What is given back is used again.
    let close = GemClose { handle: second, pad: 0 };
    call(&open.sys, open.file, abi::GEM_CLOSE, close, None).unwrap();
    assert_eq!(at(open.buffer(uapi::BO_DEVICE, 65_536).unwrap()), 32 << 10);
    assert_eq!(open.buffer(uapi::BO_DEVICE, uapi::HEAP_BYTES), Err(Errno::ENOSPC));
    assert_eq!(open.buffer(uapi::BO_DEVICE, u64::MAX), Err(Errno::ENOSPC));
    assert_eq!(open.map(first, 64, 4096), Err(Errno::EINVAL));
}

#[test]
fn memory_beyond_the_limit_is_not_locked() {
    let open = Open::new(Machine { lockable_bytes: 8 << 20, ..Machine::default() });
    let heap = open.buffer(uapi::BO_DEVICE_HEAP, uapi::HEAP_BYTES).unwrap();
    assert_eq!(open.map(heap, uapi::HEAP_BYTES, uapi::HEAP_BYTES), Err(Errno::EAGAIN));
}

#[test]
fn addresses_depend_on_the_mode() {
    for (addresses, is_own) in [(AddressMode::Process, false), (AddressMode::Device, true)] {
        let open = Open::new(Machine { addresses, ..Machine::default() });
        let share = open.buffer(uapi::BO_SHARE, 4096).unwrap();
        let address = open.map(share, 4096, 4096).unwrap();
        let info = open.info_of(share);
        assert_eq!(info.vaddr, address);
        assert_eq!(info.xdna_addr != uapi::INVALID_ADDRESS, is_own);
    }
    let open = Open::new(Machine::default());
    let share = open.buffer(uapi::BO_SHARE, 4096).unwrap();
    let info = GetBoInfo { handle: share, ..Default::default() };
    assert_eq!(open.info(GetBoInfo { handle: 99, ..info }), Err(Errno::ENOENT));
    assert_eq!(open.info(GetBoInfo { ext: 1, ..info }), Err(Errno::EINVAL));
    assert_eq!(open.info(GetBoInfo { ext_flags: 1, ..info }), Err(Errno::EINVAL));
    assert_eq!(open.info(GetBoInfo { pad: 1, ..info }), Err(Errno::EINVAL));
}

#[test]
fn syncing_moves_bytes_inside_of_a_buffer() {
    let open = Open::new(Machine::default());
    let share = open.buffer(uapi::BO_SHARE, 4096).unwrap();
    let sync = |handle, direction, offset, size| {
        let sync = uapi::SyncBo { handle, direction, offset, size };
        call(&open.sys, open.file, uapi::SYNC_BO, sync, None).map(drop)
    };
    assert_eq!(sync(share, 0, 0, 4096), Ok(()));
    assert_eq!(sync(share, 2, 0, 4096), Err(Errno::EINVAL));
    assert_eq!(sync(share, 1, 1, 4096), Err(Errno::EINVAL));
    assert_eq!(sync(share, 1, u64::MAX, 1), Err(Errno::EINVAL));
    assert_eq!(sync(99, 0, 0, 1), Err(Errno::ENOENT));
}

#[test]
fn a_context_needs_wishes_a_heap_and_a_partition() {
    let open = Open::new(Machine::default());
    assert_eq!(open.context(CREATE), Err(Errno::ENOENT));
    let open = Open::with_heap(Machine::default());
    assert_eq!(open.context(CreateHwctx { ext: 1, ..CREATE }), Err(Errno::EINVAL));
    assert_eq!(open.context(CreateHwctx { ext_flags: 1, ..CREATE }), Err(Errno::EINVAL));
    for num_tiles in [0, 3, 24] {
        assert_eq!(open.context(CreateHwctx { num_tiles, ..CREATE }), Err(Errno::EINVAL));
    }
    let without = call(&open.sys, open.file, uapi::CREATE_HWCTX, CREATE, None);
    assert_eq!(without, Err(Errno::EFAULT));
    let context = open.context(CREATE).unwrap();
    assert_eq!(open.context(CREATE), Err(Errno::EINVAL));
    let destroy = |handle, pad| {
        let destroy = uapi::DestroyHwctx { handle, pad };
        call(&open.sys, open.file, uapi::DESTROY_HWCTX, destroy, None).map(drop)
    };
    assert_eq!(destroy(context.handle, 1), Err(Errno::EINVAL));
    assert_eq!(destroy(context.handle, 0), Ok(()));
    assert_eq!(destroy(context.handle, 0), Err(Errno::EINVAL));
    let give = |handle, pad| {
        let give = SyncobjDestroy { handle, pad };
        call(&open.sys, open.file, abi::SYNCOBJ_DESTROY, give, None).map(drop)
    };
    assert_eq!(give(context.syncobj_handle, 1), Err(Errno::EINVAL));
    assert_eq!(give(context.syncobj_handle, 0), Ok(()));
    assert_eq!(give(context.syncobj_handle, 0), Err(Errno::EINVAL));
}

#[test]
fn six_contexts_fit_where_the_driver_allows_them() {
    let open = Open::with_heap(Machine { contexts_max: 6, ..Machine::default() });
    for _ in 0..6 {
        open.context(CREATE).unwrap();
    }
    assert_eq!(open.context(CREATE), Err(Errno::EINVAL));
}

#[test]
fn compute_units_are_configured_once_and_from_the_heap() {
    let open = Open::with_heap(Machine::default());
    let context = open.context(CREATE).unwrap().handle;
    let cores = open.buffer(uapi::BO_DEVICE, 64).unwrap();
    let share = open.buffer(uapi::BO_SHARE, 64).unwrap();
    let einval = Err(Errno::EINVAL);
    assert_eq!(open.configure(99, &mut units(&[cores])), einval);
    assert_eq!(open.configure(context, &mut units(&[])), einval);
    assert_eq!(open.configure(context, &mut units(&[share])), einval);
    assert_eq!(open.configure(context, &mut units(&[99])), einval);
    assert_eq!(open.configure(context, &mut units(&[cores; 33])), einval);
    assert_eq!(open.configure(context, &mut [1, 0]), einval);
    assert_eq!(open.configure(context, &mut [0; 4097]), Err(Errno::E2BIG));
    for byte in [2, 13] {
        let mut bytes = units(&[cores]);
        bytes[byte] = 1;
        assert_eq!(open.configure(context, &mut bytes), einval, "byte {byte}");
    }
    let mut longer = units(&[cores]);
    longer.push(0);
    assert_eq!(open.configure(context, &mut longer), einval);
    let configure = ConfigHwctx { handle: context, param_val_size: 16, ..Default::default() };
    for configure in [
        ConfigHwctx { pad: 1, ..configure },
        // A buffer for debugging.
        ConfigHwctx { param_type: 1, ..configure },
    ] {
        let bytes = &mut units(&[cores])[..];
        let outcome = call(&open.sys, open.file, uapi::CONFIG_HWCTX, configure, Some((8, bytes)));
        assert_eq!(outcome, einval);
    }
    let without = call(&open.sys, open.file, uapi::CONFIG_HWCTX, configure, None);
    assert_eq!(without, Err(Errno::EFAULT));
    open.configure(context, &mut units(&[cores])).unwrap();
    assert_eq!(open.configure(context, &mut units(&[cores])), einval);
}

#[test]
fn a_command_is_one_packet_on_a_configured_context() {
    let open = Open::with_heap(Machine::default());
    let hwctx = open.context(CREATE).unwrap().handle;
    let cores = open.buffer(uapi::BO_DEVICE, 64).unwrap();
    let packet = open.buffer(uapi::BO_COMMAND, 4096).unwrap();
    let good =
        ExecCmd { hwctx, cmd_handles: u64::from(packet), cmd_count: 1, ..Default::default() };
    let einval = Err(Errno::EINVAL);
    assert_eq!(open.execute(good, &mut []), einval, "no compute unit yet");
    open.configure(hwctx, &mut units(&[cores])).unwrap();
    for wrong in [
        ExecCmd { ext: 1, ..good },
        ExecCmd { ext_flags: 1, ..good },
        ExecCmd { kind: 1, ..good },
        ExecCmd { kind: 2, ..good },
        ExecCmd { cmd_count: 0, ..good },
        ExecCmd { cmd_count: 2, ..good },
        ExecCmd { hwctx: 99, ..good },
        ExecCmd { cmd_handles: u64::from(cores), ..good },
        ExecCmd { cmd_handles: 99, ..good },
        ExecCmd { cmd_handles: 1 << 40 | u64::from(packet), ..good },
        ExecCmd { arg_count: 4096, ..good },
    ] {
        assert_eq!(open.execute(wrong, &mut [0; 4096 * 4]), einval, "{wrong:?}");
    }
    let one = ExecCmd { arg_count: 1, ..good };
    assert_eq!(open.execute(one, &mut 99_u32.to_le_bytes()), Err(Errno::ENOENT));
    assert_eq!(open.execute(one, &mut [0; 3]), Err(Errno::EFAULT));
    let two = ExecCmd { arg_count: 2, ..good };
    let twice = &mut bytemuck::bytes_of(&[cores; 2]).to_vec();
    assert_eq!(open.execute(two, twice), einval, "a buffer that is there twice");
    let without = call(&open.sys, open.file, uapi::EXEC_CMD, one, None);
    assert_eq!(without, Err(Errno::EFAULT));
    let points =
        [open.execute(good, &mut []).unwrap().seq, open.execute(good, &mut []).unwrap().seq];
    assert_eq!(points, [0, 1]);
}

#[test]
fn a_packet_that_the_driver_cannot_read_is_aborted() {
    let open = Open::with_heap(Machine::default());
    let context = open.context(CREATE).unwrap();
    let cores = open.buffer(uapi::BO_DEVICE, 64).unwrap();
    open.configure(context.handle, &mut units(&[cores])).unwrap();
    let packet = open.buffer(uapi::BO_COMMAND, 4096).unwrap();
    let address = open.map(packet, 4096, 4096).unwrap();
    let header = |opcode: u32, count: u32| 1 | count << 12 | opcode << 23;
    let cases: [(&str, Vec<u32>); 8] = [
        ("nothing", vec![0; 20]),
        ("an unknown opcode", vec![header(9, 8), 1, 3]),
        ("more words than the packet", vec![header(0, 2047), 1, 3]),
        ("no compute unit", vec![header(0, 8), 0, 3]),
        ("a unit that is not configured", vec![header(0, 8), 2, 3]),
        ("opcode 2 of the payload", vec![header(0, 6), 1, 2]),
        ("20 words of payload", vec![header(0, 21), 1, 3]),
        ("START_NPU on an old firmware", vec![header(20, 5), 1, 0, 0, 0, 0]),
    ];
    for (what, words) in cases {
        let mut bytes = vec![0; 4096];
        bytes[..words.len() * 4].copy_from_slice(bytemuck::cast_slice(&words));
        open.sys.write(address, &bytes).unwrap();
        let execute = ExecCmd {
            hwctx: context.handle,
            cmd_handles: u64::from(packet),
            cmd_count: 1,
            ..Default::default()
        };
        let point = open.execute(execute, &mut []).unwrap().seq;
        let wait = TimelineWait { timeout_ns: i64::MAX, ..Default::default() };
        open.wait(wait, context.syncobj_handle, point).unwrap();
        let mut state = [0];
        open.sys.read(address, &mut state).unwrap();
        assert_eq!(state[0] & 15, 6, "{what}");
    }
}

#[test]
fn waits_end_with_the_point_or_the_time() {
    let open = Open::with_heap(Machine::default());
    let context = open.context(CREATE).unwrap();
    let timeline = context.syncobj_handle;
    let wait = TimelineWait { timeout_ns: 0, ..Default::default() };
    assert_eq!(open.wait(wait, timeline, 0), Err(Errno::EINVAL), "nothing is submitted");
    let later = TimelineWait { flags: abi::WAIT_FOR_SUBMIT, ..wait };
    assert_eq!(open.wait(later, timeline, 5), Err(Errno::ETIME));
    assert_eq!(open.wait(wait, 99, 0), Err(Errno::ENOENT));
    assert_eq!(open.wait(TimelineWait { pad: 1, ..wait }, timeline, 0), Err(Errno::EINVAL));
    assert_eq!(open.wait(TimelineWait { flags: 128, ..wait }, timeline, 0), Err(Errno::EINVAL));
    let without = TimelineWait { count_handles: 1, ..wait };
    let without = call(&open.sys, open.file, abi::TIMELINE_WAIT, without, None);
    assert_eq!(without, Err(Errno::EFAULT));
}

#[test]
fn questions_need_room_and_settings_need_root() {
    let open = Open::new(Machine::default());
    let ask = |param, room: &mut [u8]| {
        let question = GetInfo { param, buffer_size: room.len() as u32, buffer: 0 };
        call(&open.sys, open.file, uapi::GET_INFO, question, Some((8, room))).map(drop)
    };
    assert_eq!(ask(uapi::INFO_FIRMWARE_VERSION, &mut [0; 16]), Ok(()));
    assert_eq!(ask(uapi::INFO_FIRMWARE_VERSION, &mut [0; 15]), Err(Errno::EINVAL));
    assert_eq!(ask(99, &mut [0; 16]), Err(Errno::EOPNOTSUPP));
    let question = GetInfo { param: uapi::INFO_FIRMWARE_VERSION, buffer_size: 16, buffer: 0 };
    assert_eq!(call(&open.sys, open.file, uapi::GET_INFO, question, None), Err(Errno::EFAULT));
    let setting = GetInfo { param: uapi::INFO_POWER_MODE, buffer_size: 4, buffer: 0 };
    let set = |open: &Open| {
        call(&open.sys, open.file, uapi::SET_STATE, setting, Some((8, &mut [0; 4]))).map(drop)
    };
    assert_eq!(set(&open), Err(Errno::EACCES));
    assert_eq!(set(&Open::new(Machine { is_root: true, ..Machine::default() })), Ok(()));
}

#[test]
fn lists_came_with_a_later_driver() {
    for (driver_minor, expected) in [(0, Errno::EINVAL), (1, Errno::EOPNOTSUPP)] {
        let open = Open::new(Machine { driver_minor, ..Machine::default() });
        let list = uapi::GetArray::default();
        let outcome = call(&open.sys, open.file, uapi::GET_ARRAY, list, None);
        assert_eq!(outcome, Err(expected));
    }
}

#[test]
fn only_shared_buffers_are_exported() {
    let open = Open::with_heap(Machine::default());
    let export = |handle, flags| {
        let prime = PrimeHandle { handle, flags, fd: -1 };
        call(&open.sys, open.file, abi::PRIME_HANDLE_TO_FD, prime, None).map(|prime| prime.fd >= 0)
    };
    let share = open.buffer(uapi::BO_SHARE, 4096).unwrap();
    let device = open.buffer(uapi::BO_DEVICE, 64).unwrap();
    assert_eq!(export(share, 0), Ok(true));
    assert_eq!(export(share, 1), Err(Errno::EINVAL));
    assert_eq!(export(device, 0), Err(Errno::EOPNOTSUPP));
    assert_eq!(export(99, 0), Err(Errno::ENOENT));
}

#[test]
fn dma_bufs_become_shared_buffers() {
    let open = Open::new(Machine::default());
    let import = |fd| {
        let prime = PrimeHandle { handle: 0, flags: 0, fd };
        call(&open.sys, open.file, abi::PRIME_FD_TO_HANDLE, prime, None).map(|prime| prime.handle)
    };
    assert_eq!(import(-1), Err(Errno::EBADF));
    assert_eq!(import(open.file.0), Err(Errno::EINVAL), "a file that is no dma-buf");
    let other = open.sys.other_dma_buf(4096);
    let handle = import(other.0).unwrap();
    assert_eq!(import(other.0), Ok(handle), "one handle for each buffer");
    assert_eq!(open.map(handle, 8192, 4096), Err(Errno::EINVAL));
    let address = open.map(handle, 4096, 4096).unwrap();
    open.sys.write_dma_buf(other, &[1, 2, 3]).unwrap();
    open.sys.flush(address, 64).unwrap();
    let mut bytes = [0; 3];
    open.sys.read(address, &mut bytes).unwrap();
    assert_eq!(bytes, [1, 2, 3]);
    assert_eq!(open.sys.write_dma_buf(other, &[0; 4097]), Err(Errno::EFAULT));
    // The buffer outlives the dma-buf's file, and can be exported again.
    open.sys.close(other);
    assert_eq!(import(other.0), Err(Errno::EBADF));
    assert_eq!(open.sys.read_dma_buf(other, &mut bytes), Err(Errno::EBADF));
    let prime = PrimeHandle { handle, flags: 0, fd: -1 };
    let again = call(&open.sys, open.file, abi::PRIME_HANDLE_TO_FD, prime, None).unwrap();
    assert_eq!(import(again.fd), Ok(handle));
    // An own one that comes back has the handle that it had.
    let own = open.buffer(uapi::BO_SHARE, 64).unwrap();
    let prime = PrimeHandle { handle: own, flags: 0, fd: -1 };
    let prime = call(&open.sys, open.file, abi::PRIME_HANDLE_TO_FD, prime, None).unwrap();
    assert_eq!(import(prime.fd), Ok(own));
}

#[test]
fn files_and_handles_that_are_closed_are_gone() {
    let open = Open::new(Machine::default());
    let share = open.buffer(uapi::BO_SHARE, 64).unwrap();
    let close = || {
        let close = GemClose { handle: share, pad: 0 };
        call(&open.sys, open.file, abi::GEM_CLOSE, close, None).map(drop)
    };
    assert_eq!(close(), Ok(()));
    assert_eq!(close(), Err(Errno::EINVAL));
    open.sys.close(open.file);
    assert_eq!(close(), Err(Errno::EBADF));
    assert_eq!(open.sys.read(4096, &mut [0]), Err(Errno::EFAULT));
}
