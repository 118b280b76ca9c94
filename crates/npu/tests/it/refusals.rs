//! What the verifier refuses, one change of a small stream at a time.

use trine_npu::contract::{APERTURE, Access, Buffer, Contract};
use trine_npu::descriptor::{Dimension, Locks, ShimDescriptor};
use trine_npu::generate::{self, Kernel};
use trine_npu::registers::{
    Channel, Direction, STATUS_IDLE_MASK, Task, descriptor_offset, queue_offset, status_offset,
};
use trine_npu::tile::{Address, Tile, TileKind};
use trine_npu::txn::{Action, Header, MaskForm, Transaction};
use trine_npu::verify::{Scope, Verifier};

/// A change and what it is refused for.
type Change<T> = (&'static str, fn(&mut T));

const READ: Channel = Channel { direction: Direction::FromMemory, index: 0 };
const WRITE: Channel = Channel { direction: Direction::ToMemory, index: 0 };
/// Bytes of both buffers.
const BYTES: u64 = 256;

fn contract() -> Contract {
    let buffer = |argument, name: &str, access| Buffer {
        argument,
        name: name.to_owned(),
        bytes: BYTES,
        access,
    };
    Contract {
        columns: 4,
        start_column: 1,
        slots: 7,
        buffers: vec![
            buffer(0, "C", Access::WriteOnce),
            buffer(1, "A", Access::ReadTogether(1)),
            buffer(6, "B", Access::ReadTogether(1)),
        ],
        kernel: None,
    }
}

fn shim(offset: u32) -> Address {
    Address::new(Tile::new(0, 0), offset)
}

fn describe(index: u8, descriptor: &ShimDescriptor) -> Action {
    Action::descriptor(shim(descriptor_offset(TileKind::Shim, index)), descriptor.encode())
}

fn patch(index: u8, argument: u32, offset: u64) -> Action {
    Action::Patch { address: shim(descriptor_offset(TileKind::Shim, index) + 4), argument, offset }
}

fn start(channel: Channel, start: u8, repeats: u16, token: bool) -> Action {
    let value = Task { start, repeats, token }.encode();
    Action::Write { address: shim(queue_offset(TileKind::Shim, channel)), value }
}

fn wait(channel: Channel) -> Action {
    Action::MaskPoll {
        address: shim(status_offset(TileKind::Shim, channel)),
        value: 0,
        mask: STATUS_IDLE_MASK,
        form: MaskForm::Short,
    }
}

/// Places in the list of [`actions`].
const READ_DESCRIPTOR: usize = 0;
const READ_PATCH: usize = 1;
const WRITE_DESCRIPTOR: usize = 6;
const WRITE_START: usize = 8;
const WAIT: usize = 9;

/// A stream that reads A and B and writes C, each with one descriptor.
fn actions() -> Vec<Action> {
    let linear = ShimDescriptor::linear(BYTES as u32 / 4, 0);
    vec![
        describe(0, &linear),
        patch(0, 1, 0),
        start(READ, 0, 1, false),
        describe(1, &linear),
        patch(1, 6, APERTURE),
        start(READ, 1, 1, false),
        describe(2, &linear),
        patch(2, 0, 0),
        start(WRITE, 2, 1, false),
        wait(WRITE),
    ]
}

fn verify(actions: Vec<Action>) -> Result<Scope, String> {
    let operations = actions.into_iter().map(Into::into).collect();
    let stream = Transaction { header: Header::new(4), operations };
    let proof = Verifier::new(contract()).expect("a contract").verify(&stream);
    proof.map(|proof| proof.scope).map_err(|refusal| refusal.to_string())
}

/// Asserts that the stream with one operation replaced, or more before it, is refused for a reason.
fn refused(at: usize, count: usize, with: Vec<Action>, reason: &str) {
    let mut actions = actions();
    actions.splice(at..at + count, with);
    let refusal = verify(actions).expect_err(reason);
    assert!(refusal.contains(reason), "{reason:?} is not in: {refusal}");
}

#[test]
fn the_stream_itself_is_proven() {
    assert_eq!(verify(actions()), Ok(Scope::Memory));
}

#[test]
fn refusals_name_the_place_and_a_remedy() {
    let mut actions = actions();
    actions.insert(3, Action::Other { code: 5, body: Vec::new() });
    let refusal = verify(actions).unwrap_err();
    let text = "operation 3 at byte 136: operation 0x5 is not known to be safe. Build the stream \
        with plain descriptors, patches, tasks and waits";
    assert_eq!(refusal, text);
    let mut actions = self::actions();
    actions[READ_PATCH] = patch(0, 3, 0);
    let refusal = verify(actions).unwrap_err();
    assert!(refusal.starts_with("operation 1 at byte 64, tile (0, 0): argument 3 is not"));
}

#[test]
fn accesses_have_to_cover_the_buffers() {
    let linear = |words| ShimDescriptor::linear(words, 0);
    let written = |descriptor| vec![describe(2, &descriptor)];
    refused(WRITE_DESCRIPTOR, 1, written(linear(63)), "0xfc to 0x100 of C are written 0 times");
    refused(WRITE_DESCRIPTOR, 1, written(linear(65)), "65 words from word 0 of C");
    refused(WRITE_START, 1, vec![start(WRITE, 2, 2, false)], "of C are written 2 times");
    refused(READ_DESCRIPTOR, 1, vec![describe(0, &linear(60))], "of A are read 0 times");
    let mut rows = linear(64);
    rows.dimensions[0].wrap = 8;
    rows.dimensions[1].step = 7;
    refused(WRITE_DESCRIPTOR, 1, written(rows), "of C are written 2 times");
    let mut iterated = linear(32);
    iterated.iteration = Dimension { step: 31, wrap: 2 };
    let actions = vec![describe(2, &iterated), patch(2, 0, 0), start(WRITE, 2, 2, false)];
    refused(WRITE_DESCRIPTOR, 3, actions, "of C are written 2 times");
}

#[test]
fn patterns_that_cover_the_buffers_are_proven() {
    let mut rows = ShimDescriptor::linear(64, 0);
    rows.dimensions[0].wrap = 4;
    rows.dimensions[1] = Dimension { step: 8, wrap: 8 };
    rows.dimensions[2].step = 4;
    let mut changed = actions();
    changed[WRITE_DESCRIPTOR] = describe(2, &rows);
    assert_eq!(verify(changed), Ok(Scope::Memory));
    let mut iterated = ShimDescriptor::linear(16, 0);
    iterated.iteration = Dimension { step: 16, wrap: 4 };
    let mut changed = actions();
    changed[WRITE_DESCRIPTOR] = describe(2, &iterated);
    changed[WRITE_START] = start(WRITE, 2, 4, false);
    assert_eq!(verify(changed), Ok(Scope::Memory));
}

#[test]
fn scattered_accesses_are_bounded() {
    let mut scattered = ShimDescriptor::linear(1 << 31, 0);
    scattered.dimensions[0].step = 2;
    refused(WRITE_DESCRIPTOR, 1, vec![describe(2, &scattered)], "too scattered");
}

#[test]
fn directions_and_arguments_have_to_fit() {
    refused(READ_PATCH, 1, vec![patch(0, 0, 0)], "C is read by this task");
    refused(7, 1, vec![patch(2, 1, 0)], "A is written by this task");
    refused(READ_PATCH, 1, vec![patch(0, 1, 2)], "offset 0x2 in A");
    refused(READ_PATCH, 1, vec![patch(0, 1, BYTES)], "offset 0x100 in A");
    refused(4, 1, vec![patch(1, 6, 0)], "does not contain the aperture");
    let elsewhere = Action::Patch { address: shim(0x1_d000), argument: 1, offset: 0 };
    refused(READ_PATCH, 1, vec![elsewhere], "no descriptor's address");
}

#[test]
fn descriptors_have_to_be_whole_and_patched() {
    refused(READ_DESCRIPTOR, 1, vec![], "which the stream has not written");
    refused(READ_PATCH, 1, vec![], "whose address is no argument's");
    let again = describe(0, &ShimDescriptor::linear(64, 0));
    refused(READ_PATCH, 1, vec![patch(0, 1, 0), again], "whose address is no argument's");
    let again = describe(0, &ShimDescriptor::linear(64, 0));
    refused(3, 0, vec![again], "descriptor 0 changes while a task may use it");
    refused(3, 0, vec![patch(0, 1, 4)], "descriptor 0 changes while a task may use it");
}

#[test]
fn fields_that_are_unknown_or_unused_are_refused() {
    let linear = ShimDescriptor::linear(64, 0);
    let changes: [Change<ShimDescriptor>; 8] = [
        ("not valid", |descriptor| descriptor.valid = false),
        ("moves nothing", |descriptor| descriptor.words = 0),
        ("bursts", |descriptor| descriptor.burst = 3),
        ("cache", |descriptor| descriptor.cache = 1),
        ("no end", |descriptor| descriptor.dimensions[1].step = 2),
        ("not filled", |descriptor| descriptor.dimensions[0].wrap = 48),
        ("neither 0 nor", |descriptor| descriptor.address = 4),
        ("has no end", |descriptor| descriptor.next = Some(0)),
    ];
    for (reason, change) in changes {
        let mut descriptor = linear;
        change(&mut descriptor);
        refused(READ_DESCRIPTOR, 1, vec![describe(0, &descriptor)], reason);
    }
    let mut words = linear.encode();
    words[3] |= 1 << 31;
    let secure = Action::descriptor(shim(0x1_d000), words);
    refused(READ_DESCRIPTOR, 1, vec![secure], "which sets secure access");
}

#[test]
fn locks_that_nobody_releases_are_refused() {
    let mut descriptor = ShimDescriptor::linear(64, 0);
    descriptor.locks =
        Locks { acquires: true, acquire_lock: 3, release_lock: 2, ..Locks::default() };
    let waiting = describe(0, &descriptor);
    refused(READ_DESCRIPTOR, 1, vec![waiting.clone()], "waits until lock 3 is 0");
    let set = |value| Action::Write { address: shim(0x1_4030), value };
    refused(READ_DESCRIPTOR, 1, vec![set(1), waiting.clone()], "waits until lock 3 is 0");
    refused(READ_DESCRIPTOR, 1, vec![set(64), waiting.clone()], "at most 63");
    let mut actions = actions();
    actions.splice(..1, [set(0), waiting]);
    assert_eq!(verify(actions), Ok(Scope::Memory));
}

#[test]
fn results_have_to_be_waited_for() {
    refused(WAIT, 1, vec![], "ends without waiting for channel 0 S2MM of tile (0, 0)");
    refused(WAIT, 1, vec![wait(READ)], "ends without waiting");
    let partial = Action::MaskPoll {
        address: shim(status_offset(TileKind::Shim, WRITE)),
        value: 0,
        mask: 4,
        form: MaskForm::Long,
    };
    refused(WAIT, 1, vec![partial], "not known to be safe");
    refused(WRITE_START, 2, vec![wait(WRITE), start(WRITE, 2, 1, false)], "without waiting");
}

#[test]
fn a_lock_or_a_token_can_end_a_stream() {
    let sync = Action::Sync { place: 0, extent: 1 << 8 | 1 << 16 };
    let mut by_token = actions();
    by_token.splice(WRITE_START.., [start(WRITE, 2, 1, true), sync.clone()]);
    assert_eq!(verify(by_token), Ok(Scope::Memory));
    refused(WAIT, 1, vec![sync], "a token that no task sends");
    refused(WRITE_START, 1, vec![start(WRITE, 2, 1, true)], "whose token it does not take");

    let mut descriptor = ShimDescriptor::linear(64, 0);
    descriptor.locks = Locks { release_lock: 2, release_value: 1, ..Locks::default() };
    let poll =
        Action::MaskPoll { address: shim(0x4_0a04), value: 1, mask: 1, form: MaskForm::Long };
    let set = Action::Write { address: shim(0x1_4020), value: 0 };
    let mut by_lock = actions();
    by_lock[WAIT] = poll.clone();
    by_lock.splice(WRITE_DESCRIPTOR..=WRITE_DESCRIPTOR, [set, describe(2, &descriptor)]);
    assert_eq!(verify(by_lock), Ok(Scope::Memory));
    refused(WAIT, 1, vec![poll], "is not what ends exactly one channel's work");
}

/// What ended before must not stand for what is still running.
#[test]
fn ends_of_earlier_tasks_end_no_later_ones() {
    let raising = |words| {
        let mut descriptor = ShimDescriptor::linear(words, 0);
        descriptor.locks = Locks { release_lock: 2, release_value: 1, ..Locks::default() };
        descriptor
    };
    let poll =
        Action::MaskPoll { address: shim(0x4_0a04), value: 1, mask: 1, form: MaskForm::Long };
    let set = Action::Write { address: shim(0x1_4020), value: 0 };
    let halves = |between: Vec<Action>, token: bool, end: Action| {
        let mut actions = actions();
        actions.truncate(WRITE_DESCRIPTOR);
        actions.extend([set.clone(), describe(2, &raising(32)), patch(2, 0, 0)]);
        actions.extend([describe(3, &raising(32)), patch(3, 0, BYTES / 2)]);
        actions.push(start(WRITE, 2, 1, token));
        actions.extend(between);
        actions.extend([start(WRITE, 3, 1, token), end]);
        verify(actions)
    };
    let refusal = halves(vec![wait(WRITE)], false, poll.clone()).unwrap_err();
    assert!(refusal.contains("adds 1 to lock 2"), "{refusal}");
    assert_eq!(halves(vec![wait(WRITE), set.clone()], false, poll.clone()), Ok(Scope::Memory));
    let sync = Action::Sync { place: 0, extent: 1 << 8 | 1 << 16 };
    let refusal = halves(vec![poll], true, sync).unwrap_err();
    assert!(refusal.contains("is not what ends"), "{refusal}");
}

#[test]
fn a_lock_is_not_raised_where_a_task_waits_for_it() {
    let locks = |acquires, release_value| Locks {
        acquires,
        acquire_lock: if acquires { 3 } else { 0 },
        release_lock: if release_value > 0 { 3 } else { 0 },
        release_value,
        ..Locks::default()
    };
    let with = |locks| {
        let mut descriptor = ShimDescriptor::linear(64, 0);
        descriptor.locks = locks;
        descriptor
    };
    let (waiting, raising) = (with(locks(true, 0)), with(locks(false, 1)));
    for (first, second) in [(&raising, &waiting), (&waiting, &raising)] {
        let mut actions = actions();
        actions[READ_DESCRIPTOR] = describe(0, first);
        actions[3] = describe(1, second);
        actions.insert(0, Action::Write { address: shim(0x1_4030), value: 0 });
        let refusal = verify(actions).unwrap_err();
        assert!(refusal.contains("one task waits for and another raises"), "{refusal}");
    }
}

/// The array counts iterations in a word of the descriptor, which other writes leave as it is.
#[test]
fn iterations_go_on_until_their_word_is_written() {
    let mut descriptor = ShimDescriptor::linear(32, 0);
    descriptor.iteration = Dimension { step: 32, wrap: 2 };
    let words = descriptor.encode();
    let again = |word: u32| Action::Write {
        address: shim(descriptor_offset(TileKind::Shim, 2) + 4 * word),
        value: words[word as usize],
    };
    let halves = |written: Vec<Action>, offset| {
        let mut actions = actions();
        actions.truncate(WRITE_DESCRIPTOR);
        actions.extend([describe(2, &descriptor), patch(2, 0, 0)]);
        actions.extend([start(WRITE, 2, 1, false), wait(WRITE)]);
        actions.extend(written);
        actions.extend([patch(2, 0, offset), start(WRITE, 2, 1, false), wait(WRITE)]);
        verify(actions)
    };
    assert!(halves(vec![again(0)], BYTES / 2).is_err(), "it runs beyond the end of C");
    assert_eq!(halves(vec![again(0)], 0), Ok(Scope::Memory));
    assert_eq!(halves(vec![again(6)], BYTES / 2), Ok(Scope::Memory));
    let refusal = halves(vec![], 0).unwrap_err();
    assert!(refusal.contains("patched twice"), "{refusal}");
}

#[test]
fn queues_hold_four_tasks_and_shim_descriptors_are_sixteen() {
    let full = vec![start(READ, 1, 1, false); 4];
    refused(5, 1, full, "may have 4 tasks in its queue");
    refused(5, 1, vec![start(READ, 16, 1, false)], "begins at descriptor 16");
    let odd = Action::Write { address: shim(queue_offset(TileKind::Shim, READ)), value: 0x40 };
    refused(5, 1, vec![odd], "sets bits that mean nothing");
}

#[test]
fn other_tiles_and_registers_are_refused() {
    let at = |column, row, offset| Action::Write {
        address: Address::new(Tile::new(column, row), offset),
        value: 0,
    };
    refused(0, 0, vec![at(4, 0, 0x1_4000)], "tile (4, 0) is outside of the partition");
    refused(0, 0, vec![at(0, 6, 0)], "tile (0, 6) is outside of the partition");
    refused(0, 0, vec![at(0, 0, 0xf_ff00)], "not known to be safe");
    refused(0, 0, vec![at(0, 1, 0xf_ff00)], "not known to be safe");
    refused(0, 0, vec![at(0, 2, 0x3_2000)], "not known to be safe");
    let data = |offset, words| Action::BlockWrite {
        address: Address::new(Tile::new(0, 3), offset),
        words,
    };
    refused(0, 0, vec![data(0xfffc, vec![0; 2])], "not known to be safe");
    refused(0, 0, vec![data(0x2_0000, vec![0; 2])], "not known to be safe");
    refused(0, 0, vec![data(0, vec![])], "not known to be safe");
    let mut inside = actions();
    inside.insert(0, data(0xfff8, vec![0; 2]));
    assert_eq!(verify(inside), Ok(Scope::Memory));
}

#[test]
fn column_0_of_the_array_has_no_shim_dma() {
    let contract = Contract { start_column: 0, ..contract() };
    let operations = actions().into_iter().map(Into::into).collect();
    let stream = Transaction { header: Header::new(4), operations };
    let refusal = Verifier::new(contract).unwrap().verify(&stream).unwrap_err();
    assert!(refusal.problem.contains("no shim DMA"), "{refusal}");
}

#[test]
fn a_stream_for_another_shape_or_kernel_is_refused() {
    let kernel = |n| Kernel::Int8 { m: 8, k: 2048, n };
    let stream = generate::stream(kernel(2048)).unwrap();
    let verifier = Verifier::new(generate::contract(kernel(8192)).unwrap()).unwrap();
    let refusal = verifier.verify(&stream).unwrap_err();
    assert!(refusal.problem.contains("0 times, expected 1"), "{refusal}");
    // The same memory, and another number of blocks inside of the array.
    let verifier = Verifier::new(generate::contract(kernel(2048)).unwrap()).unwrap();
    let mut changed = stream;
    let last = changed.operations.iter().rposition(|operation| {
        matches!(operation.action, Action::Write { address, .. } if address.tile().row == 1)
    });
    let Some(Action::Write { value, .. }) = last.map(|last| &mut changed.operations[last].action)
    else {
        panic!("a task of a memory tile")
    };
    *value ^= 1 << 16;
    assert!(verifier.verify_memory(&changed).is_ok());
    let refusal = verifier.verify(&changed).unwrap_err();
    assert!(refusal.problem.starts_with("a8w8acc32_8_2048_2048 has here: write"), "{refusal}");
}

#[test]
fn headers_for_other_devices_are_refused() {
    let changes: [Change<Header>; 4] = [
        ("generation 4", |header| header.generation = 4),
        ("5 rows", |header| header.rows = 5),
        ("5 columns", |header| header.columns = 5),
        ("padding", |header| header.padding = [0, 1]),
    ];
    for (reason, change) in changes {
        let mut header = Header::new(4);
        change(&mut header);
        let operations = actions().into_iter().map(Into::into).collect();
        let verifier = Verifier::new(contract()).unwrap();
        let refusal = verifier.verify(&Transaction { header, operations }).unwrap_err();
        assert!(refusal.problem.contains(reason), "{refusal}");
    }
}

#[test]
fn contracts_that_no_command_can_have_are_errors() {
    let changes: [Change<Contract>; 12] = [
        ("columns 0 to 4", |contract| contract.columns = 5),
        ("columns 0 to 4", |contract| contract.columns = u8::MAX),
        ("columns 0 to 4", |contract| contract.start_column = u8::MAX),
        ("21 words of a command's 19", |contract| contract.slots = 8),
        ("no buffers", |contract| contract.buffers.clear()),
        ("argument 7 of 7", |contract| contract.buffers[2].argument = 7),
        ("argument 0 is there twice", |contract| contract.buffers[2].argument = 0),
        ("letters, digits and '_'", |contract| contract.buffers[0].name = "C\u{1b}[31m".to_owned()),
        ("up to 32 letters", |contract| contract.buffers[0].name = "C".repeat(33)),
        ("250 bytes", |contract| contract.buffers[0].bytes = 250),
        ("no column or never", |contract| {
            contract.buffers[1].access = Access::ReadByEach { columns: 5, times: 1 };
        }),
        ("no buffer is written", |contract| {
            contract.buffers[0].access = Access::ReadTogether(1);
        }),
    ];
    for (reason, change) in changes {
        let mut contract = contract();
        change(&mut contract);
        let error = Verifier::new(contract).unwrap_err();
        assert!(error.contains(reason), "{reason:?} is not in: {error}");
    }
}
