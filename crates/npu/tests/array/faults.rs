//! Wrong streams never give the product.
//!
//! A stream counts as right if it gives the product in an order of events of chance, and in two
//! orders in which one stream of the array lags behind all else: a column's W on its way into the
//! memory tile, and C on its way out of one.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use fastrand::Rng;
use trine_npu::descriptor::{MemoryDescriptor, ShimDescriptor};
use trine_npu::generate::Kernel;
use trine_npu::registers::{
    CONTROL_RESET, Channel, Direction, Register, STATUS_IDLE_MASK, Task, queue_offset, register,
    status_offset,
};
use trine_npu::tile::{Address, Tile, TileKind};
use trine_npu::txn::{Action, MaskForm, Operation, Transaction};
use trine_npu_model::{Array, Behaviour, Overlay, Task as Command, Tiles, Trap};

use crate::int8::Case;
use crate::support::{Memory, random_bytes, run, stream};
use crate::{int4, int8};

pub(crate) const KERNEL: Kernel = Kernel::Int8 { m: 8, k: 2048, n: 2048 };
/// The memory tile whose descriptors are changed. Its shim tile is the one in the next column.
pub(crate) const CHANGED: Tile = Tile::new(1, 1);
/// Descriptors of A's second buffer, which no task uses.
const UNUSED: [u8; 2] = [1, 3];

fn case() -> &'static Case {
    static CASE: OnceLock<Case> = OnceLock::new();
    CASE.get_or_init(|| int8::Case::new(2048, 2048, 8, 9))
}

/// Returns whether a stream gives the product on an array.
fn gives_the_product(stream: &Transaction, mut tiles: Tiles) -> bool {
    let mut memory = case().memory(8);
    run(&mut tiles, Behaviour::Int8, stream, &mut memory).is_ok() && case().is_right(&memory)
}

pub(crate) fn is_right(stream: &Transaction) -> bool {
    gives_the_product(stream, Tiles::new(1))
        && gives_the_product(stream, Tiles::new(2).with_delayed(Tile::new(2, 0), 0))
        && gives_the_product(stream, Tiles::new(3).with_delayed(CHANGED, 5))
}

pub(crate) fn descriptor(action: &Action) -> Option<(Tile, u8)> {
    let Action::BlockWrite { address, .. } = action else { return None };
    match register(address.tile(), address.offset()) {
        Register::Descriptor { index, word: 0 } => Some((address.tile(), index)),
        _ => None,
    }
}

fn words(operation: &mut Operation) -> &mut Vec<u32> {
    match &mut operation.action {
        Action::BlockWrite { words, .. } => words,
        other => panic!("{other}"),
    }
}

/// Says why a bit of a descriptor's lock word may change: the lock is free from the first.
pub(crate) fn is_spare_bit(index: u8, bit: u32) -> Option<&'static str> {
    match (index, bit) {
        // It begins at 16 and the one descriptor that takes 8 runs once.
        (0, 1) => Some("another free lock with as much is taken"),
        (0, 8..=10 | 15) => Some("less of a lock is taken that has enough"),
        (0, 24..=26 | 28 | 29) => Some("more is given to a lock than is taken of it"),
        (2, 16 | 17 | 20 | 21 | 24..=26) => Some("no descriptor waits for what is given"),
        _ => None,
    }
}

/// Says why an operation may be missing, if it may.
pub(crate) fn is_spare(good: &Transaction, index: usize) -> Option<&'static str> {
    let action = &good.operations[index].action;
    if let Some((tile, number)) = descriptor(action) {
        let is_spare = tile.kind() == Some(TileKind::Memory) && UNUSED.contains(&number);
        return is_spare.then_some("no task uses the descriptor");
    }
    match action {
        Action::MaskWrite { value: CONTROL_RESET, .. } => Some("nothing is there to be reset"),
        Action::MaskWrite { address, .. } => match register(address.tile(), address.offset()) {
            Register::Control(Channel { direction: Direction::ToMemory, index: 3.. }) => {
                Some("no task is for the channel")
            }
            _ => None,
        },
        Action::MaskPoll { .. } => Some("each channel is waited for twice"),
        Action::Write { address, .. } => match register(address.tile(), address.offset()) {
            Register::Control(_) => Some("the control of a shim channel has no meaning here"),
            Register::Lock(2) => Some("the lock of a descriptor that no task uses"),
            _ => None,
        },
        _ => None,
    }
}

#[test]
fn each_operation_matters() {
    let good = stream(KERNEL);
    let mut spare = BTreeMap::new();
    for index in 0..good.operations.len() {
        let mut changed = good.clone();
        let operation = changed.operations.remove(index);
        let reason = is_spare(&good, index);
        assert_eq!(is_right(&changed), reason.is_some(), "{index}: {}", operation.action);
        *spare.entry(reason).or_insert(0) += 1;
    }
    let spare: Vec<usize> = spare.into_values().collect();
    assert_eq!(spare, [223, 8, 12, 8, 48, 17, 4]);
}

#[test]
fn waits_and_resets_matter_together() {
    let without = |is_out: fn(&Action) -> bool| {
        let mut changed = stream(KERNEL);
        changed.operations.retain(|operation| !is_out(&operation.action));
        changed
    };
    let changed = without(|action| matches!(action, Action::MaskPoll { .. }));
    assert!(!(0..16).all(|seed| gives_the_product(&changed, Tiles::new(seed))));
    // Channels that go round without end keep their descriptors.
    let changed = without(|action| matches!(action, Action::MaskWrite { .. }));
    let mut tiles = Tiles::new(1);
    let mut next = || run(&mut tiles, Behaviour::Int8, &changed, &mut case().memory(8));
    assert_eq!((next(), next()), (Ok(()), Err(Trap::Stuck)));
    assert!(tiles.problem().unwrap().contains("changes while a task may use it"));
    // The program is loaded again.
    assert_eq!(run(&mut tiles, Behaviour::Int8, &changed, &mut case().memory(8)), Ok(()));
}

#[test]
fn a_release_that_is_missing_gets_stuck() {
    let good = stream(KERNEL);
    let mut count = 0;
    for index in 0..good.operations.len() {
        let Some((CHANGED, number)) = descriptor(&good.operations[index].action) else { continue };
        // Nothing waits for A to be free again.
        if UNUSED.contains(&number) || number == 2 {
            continue;
        }
        let mut changed = good.clone();
        let words = words(&mut changed.operations[index]);
        let mut descriptor = MemoryDescriptor::decode((&words[..]).try_into().unwrap()).unwrap();
        descriptor.locks.release_value = 0;
        *words = descriptor.encode().to_vec();
        let mut tiles = Tiles::new(index as u64);
        let outcome = run(&mut tiles, Behaviour::Int8, &changed, &mut case().memory(8));
        assert_eq!(outcome, Err(Trap::Stuck), "descriptor {number}");
        assert!(tiles.problem().unwrap().contains("waits for what never comes"));
        count += 1;
    }
    assert_eq!(count, 17);
}

/// Exchanges the patches of two columns' shim descriptors.
fn exchanged(index: u8, columns: [u8; 2]) -> Transaction {
    let mut changed = stream(KERNEL);
    let is_of = |action: &Action, column: u8| {
        let Action::Patch { address, .. } = action else { return false };
        let place = Register::Descriptor { index, word: 1 };
        let tile = address.tile();
        tile == Tile::new(column, 0) && register(tile, address.offset()) == place
    };
    let [first, second] = columns
        .map(|column| changed.operations.iter().position(|it| is_of(&it.action, column)).unwrap());
    let of = |at: usize| match changed.operations[at].action {
        Action::Patch { offset, .. } => offset,
        _ => unreachable!(),
    };
    for (at, other) in [(first, of(second)), (second, of(first))] {
        let Action::Patch { offset, .. } = &mut changed.operations[at].action else { continue };
        *offset = other;
    }
    changed
}

#[test]
fn parts_that_are_exchanged_give_other_numbers() {
    // A, both halves of W, C.
    for index in [0, 3, 1, 2] {
        let mut memory = case().memory(8);
        let changed = exchanged(index, [2, 4]);
        assert_eq!(run(&mut Tiles::new(1), Behaviour::Int8, &changed, &mut memory), Ok(()));
        assert!(!case().is_right(&memory), "descriptor {index}");
    }
}

#[test]
fn a_and_w_in_each_others_place_are_no_product() {
    let mut memory = case().memory(8);
    memory.buffers.swap(1, 2);
    let outcome = run(&mut Tiles::new(1), Behaviour::Int8, &stream(KERNEL), &mut memory);
    assert!(outcome.is_err(), "{outcome:?}");
    // Both are as long as W.
    let mut numbers = Rng::with_seed(2);
    let (k, n) = (2048, 2048);
    let long = random_bytes(&mut numbers, k * n);
    let mut memory = case().memory(8);
    memory.buffers[1].extend(&long);
    let mut swapped = memory.clone();
    swapped.buffers.swap(1, 2);
    let outcome = run(&mut Tiles::new(1), Behaviour::Int8, &stream(KERNEL), &mut swapped);
    assert!(outcome.is_err() || !case().is_right(&swapped));
    assert_eq!(run(&mut Tiles::new(1), Behaviour::Int8, &stream(KERNEL), &mut memory), Ok(()));
    assert!(case().is_right(&memory));
}

#[test]
fn memory_that_is_not_there_is_an_access_that_is_refused() {
    for argument in 0..3 {
        let mut memory = case().memory(8);
        let buffer = &mut memory.buffers[argument];
        buffer.truncate(buffer.len() - 4);
        let outcome = run(&mut Tiles::new(1), Behaviour::Int8, &stream(KERNEL), &mut memory);
        let end = memory.arguments()[argument] + memory.buffers[argument].len() as u64;
        match outcome {
            Err(Trap::Unreachable { address }) => assert!(address <= end, "{argument}"),
            other => panic!("{argument}: {other:?}"),
        }
    }
}

#[test]
fn packets_that_no_stream_is_switched_for_stay_where_they_are() {
    for (number, packet) in [(4, Some((0, 0))), (4, None), (0, Some((0, 1))), (3, Some((0, 2)))] {
        let mut changed = stream(KERNEL);
        let place = Some((Tile::new(1, 0), number));
        let mut operations = changed.operations.iter_mut();
        let found = operations.find(|it| descriptor(&it.action) == place).unwrap();
        let words = words(found);
        let mut descriptor = ShimDescriptor::decode((&words[..]).try_into().unwrap());
        descriptor.packet = packet;
        *words = descriptor.encode().to_vec();
        assert!(!is_right(&changed), "descriptor {number}");
    }
}

#[test]
fn a_stream_between_tiles_that_is_not_there_gets_stuck() {
    let count = Overlay::int8().routes.len();
    assert_eq!(count, 4 * 4 + 1 + 4 * 5);
    for index in 0..count {
        let mut overlay = Overlay::int8();
        let route = overlay.routes.remove(index);
        let mut tiles = Tiles::new(1).with(Behaviour::Int8.stand_in(), overlay);
        let outcome = run(&mut tiles, Behaviour::Int8, &stream(KERNEL), &mut case().memory(8));
        assert_eq!(outcome, Err(Trap::Stuck), "{route:?}");
    }
}

/// A stream that does `actions` after the writes of the generated one and before its tasks.
fn hostile(actions: impl IntoIterator<Item = Action>) -> (Result<(), Trap>, String) {
    let mut changed = stream(KERNEL);
    changed.operations.truncate(96);
    changed.operations.extend(actions.into_iter().map(Operation::from));
    let mut tiles = Tiles::new(1);
    let outcome = run(&mut tiles, Behaviour::Int8, &changed, &mut case().memory(8));
    (outcome, tiles.problem().unwrap_or_default().to_owned())
}

#[test]
fn what_has_no_end_is_cut() {
    let tile = Tile::new(0, 1);
    let place = |index: u32| Address::new(tile, 0xa_0000 + 0x20 * index);
    let channel = Channel { direction: Direction::ToMemory, index: 0 };
    let start = |channel| Action::Write {
        address: Address::new(tile, queue_offset(TileKind::Memory, channel)),
        value: Task { start: 0, repeats: 1, token: false }.encode(),
    };
    let poll = Action::MaskPoll {
        address: Address::new(tile, status_offset(TileKind::Memory, channel)),
        value: 0,
        mask: STATUS_IDLE_MASK,
        form: MaskForm::Long,
    };
    // A descriptor that moves nothing and comes back to itself.
    let round = MemoryDescriptor { next: Some(0), ..MemoryDescriptor::linear(0, 0x2_0000) };
    let (outcome, problem) =
        hostile([Action::descriptor(place(0), round.encode()), start(channel), poll]);
    assert_eq!(outcome, Err(Trap::Stuck));
    assert!(problem.contains("a chain of descriptors has no end"), "{problem}");
    // Six tasks for a queue of four and the one that runs.
    let waits = MemoryDescriptor::linear(1, 0x2_0000);
    let tasks = std::iter::repeat_n(start(channel), 6);
    let actions = [Action::descriptor(place(0), waits.encode())].into_iter().chain(tasks);
    let (outcome, problem) = hostile(actions);
    assert_eq!(outcome, Err(Trap::Stuck));
    assert!(problem.contains("a queue that may be full"), "{problem}");
}

#[test]
fn another_program_or_stream_gets_stuck() {
    let mut memory = case().memory(8);
    let command = |program: &[u8], instructions| Command {
        program: program.to_vec(),
        instructions,
        arguments: memory.arguments(),
    };
    let good = stream(KERNEL).to_bytes();
    let mut other = stream(KERNEL);
    other.header.columns = 4;
    let commands = [
        (command(b"unknown", good.clone()), "the program is not known"),
        (command(Behaviour::Int8.stand_in(), other.to_bytes()), "for another array"),
        (command(Behaviour::Int8.stand_in(), good[..good.len() - 1].to_vec()), "stream"),
        (command(Behaviour::Int4.stand_in(), good), "waits for what never comes"),
    ];
    for (command, expected) in commands {
        let mut tiles = Tiles::new(1);
        assert_eq!(tiles.run(&command, &mut memory), Err(Trap::Stuck), "{expected}");
        assert!(tiles.problem().unwrap().contains(expected), "{:?}", tiles.problem());
    }
}

/// Streams for 4 bits, with changes that each family of descriptors has.
#[test]
fn changed_streams_for_4_bits_never_give_the_product() {
    let kernel = Kernel::Int4 { m: 8, k: 4096, n: 4096, group: 32 };
    let case = int4::Case::new(4096, 4096, 32, 8, 7);
    let good = stream(kernel);
    let right = |stream: &Transaction| {
        let mut memory: Memory = case.memory(8);
        run(&mut Tiles::new(1), Behaviour::Int4, stream, &mut memory).is_ok()
            && case.error(&memory) < 1.0
    };
    assert!(right(&good));
    let (mut count, mut spare) = (0, Vec::new());
    for index in 0..good.operations.len() {
        let action = &good.operations[index].action;
        let Some((Tile { column: 2, row: 1 }, number)) = descriptor(action) else {
            continue;
        };
        // Where words lie and which lock is released, of each descriptor of a memory tile that
        // moves or releases something.
        for (word, bit) in [(1, 7), (7, 16)] {
            let mut changed = good.clone();
            let words = words(&mut changed.operations[index]);
            let is_spare = if word == 1 { words[0] == 0 } else { words[7] >> 24 & 0x7f == 0 };
            if is_spare {
                continue;
            }
            words[word] ^= 1 << bit;
            count += 1;
            if right(&changed) {
                spare.push((number, word));
            }
        }
    }
    // With two blocks of C for each core nothing waits for A or for a buffer of C to be free again.
    let senders = [6, 38, 39, 40, 41, 44, 45, 46, 47].map(|number| (number, 7));
    assert_eq!((count, spare), (63, senders.to_vec()));
}
