//! The verifier's worth: how many single-bit changes of a stream it refuses.
//!
//! Every bit of generated streams is changed, one at a time. In scope `Whole` all that is accepted
//! has to be the same stream. In scope `Memory`, in which nothing is compared with the generated
//! stream, what is accepted has to have one of the reasons below; those are counted.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use trine_npu::generate::{self, Kernel};
use trine_npu::registers::{Direction, Register, register};
use trine_npu::txn::{Action, HEADER_BYTES, Transaction};
use trine_npu::verify::Verifier;

/// What a refusal advises whose stream is not the generated one, and safe for memory.
const COMPARED: &str = "Use the published or the generated stream";

/// Why a changed stream is as safe for memory as the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reason {
    /// The bit means nothing: the stream is the same.
    Spare,
    /// The change is about memory tiles or cores, which the scope leaves out.
    Array,
    /// The packet header of a shim descriptor says which stream of the array takes the words.
    Packet,
    /// The task is of the column's other channel that reads: another stream of the array.
    Channel,
    /// A descriptor's own address words, which the patch replaces. The change makes them 0.
    Address,
    /// The longest burst of accesses.
    Burst,
    /// Cache attributes of accesses; both values are in use.
    Cache,
    /// The iteration of a descriptor that is run once.
    Iteration,
    /// Rows of one word, one word apart, or a row of all words, where there were no rows.
    Rows,
    /// The last dimension has no end instead of one where the words end.
    End,
    /// A dimension of a pattern that ends before it steps.
    Step,
    /// A lock that no descriptor uses.
    Lock,
    /// Control of another shim channel: the same value, which moves nothing.
    Control,
    /// A wait for a channel that a later operation waits for as well.
    Wait,
}

/// What came of all changes of a stream.
#[derive(Debug, Default)]
pub(super) struct Score {
    pub(super) bits: usize,
    /// Changes that scope `Whole` accepts: those of spare bits.
    pub(super) whole: usize,
    /// Changes that scope `Memory` accepts, by reason.
    pub(super) memory: BTreeMap<Reason, usize>,
    /// Changes that scope `Memory` accepts and that make another stream: their bits.
    pub(super) others: Vec<(usize, Reason)>,
}

/// The samples: one for each kernel.
pub(super) const SAMPLES: [Kernel; 2] =
    [Kernel::Int8 { m: 8, k: 2048, n: 2048 }, Kernel::Int4 { m: 8, k: 4096, n: 4096, group: 128 }];

/// Returns what came of all changes of the samples.
pub(super) fn scores() -> &'static [Score; 2] {
    static SCORES: OnceLock<[Score; 2]> = OnceLock::new();
    SCORES.get_or_init(|| SAMPLES.map(score))
}

/// Returns where each operation of a stream ends, in bytes.
pub(super) fn ends(stream: &Transaction) -> Vec<usize> {
    let mut end = HEADER_BYTES;
    let ends = stream.operations.iter().map(|operation| {
        end += operation.action.file_bytes();
        end
    });
    ends.collect()
}

fn score(kernel: Kernel) -> Score {
    let verifier =
        Verifier::new(generate::contract(kernel).expect("a contract")).expect("a verifier");
    let stream = generate::stream(kernel).expect("a stream");
    verifier.verify(&stream).expect("a proof");
    let bytes = stream.to_bytes();
    let ends = ends(&stream);
    let mut score = Score { bits: bytes.len() * 8, ..Score::default() };
    let mut changed = bytes.clone();
    for bit in 0..score.bits {
        changed[bit / 8] ^= 1 << (bit % 8);
        if let Ok(read) = Transaction::parse(&changed) {
            let index = ends.partition_point(|end| *end <= bit / 8);
            let reason = match verifier.verify(&read) {
                Ok(_) => {
                    assert_eq!(read.canonical(), stream, "{kernel}: bit {bit}");
                    score.whole += 1;
                    Some(Reason::Spare)
                }
                // Only the comparison was left, which comes last.
                Err(refusal) if refusal.remedy == COMPARED => {
                    let reason = reason(&stream, &read, index);
                    score.others.push((bit, reason));
                    Some(reason)
                }
                Err(_) => None,
            };
            if let Some(reason) = reason {
                *score.memory.entry(reason).or_default() += 1;
            }
        }
        changed[bit / 8] ^= 1 << (bit % 8);
    }
    score
}

/// Says why the operation `index` of `changed` may differ from that of `stream`.
fn reason(stream: &Transaction, changed: &Transaction, index: usize) -> Reason {
    let (before, after) = (&stream.operations[index].action, &changed.operations[index].action);
    let unknown = || panic!("operation {index} was {before} and may be {after}");
    let (Some(tile), Some(other)) = (before.tile(), after.tile()) else { return unknown() };
    if (tile.row, other.row) != (0, 0) {
        // An operation on the shim tile must not become one on the array, unless it did nothing.
        return if tile.row != 0 && other.row != 0 {
            Reason::Array
        } else {
            moved(before, unknown)
        };
    }
    match (before, after) {
        (Action::BlockWrite { words, .. }, Action::BlockWrite { words: others, .. }) => {
            let word = (0..words.len()).find(|at| words[*at] != others[*at]);
            let Some(word) = word else { return unknown() };
            let changed = words[word] ^ others[word];
            match word {
                1 if others[1] == 0 => Reason::Address,
                2 if changed & 0xffff_0000 != 0 => Reason::Packet,
                3 if [1, words[0]].contains(&(others[3] >> 20)) && words[4] << 2 == 0 => {
                    Reason::Rows
                }
                4 if changed & 0xc000_0000 != 0 => Reason::Burst,
                4 if others[4] << 2 >> 22 == 0 && words[5] & 0xf_ffff == 0 => Reason::End,
                4 if words[0] <= words[3] >> 20 => Reason::Step,
                5 if changed == 0x0200_0000 => Reason::Cache,
                5 if words[0] <= (words[3] >> 20) * (words[4] << 2 >> 22) => Reason::Step,
                6 if changed & 0x03ff_ffff != 0 => Reason::Iteration,
                _ => unknown(),
            }
        }
        (Action::Write { .. }, Action::Write { .. })
        | (Action::MaskPoll { .. }, Action::MaskPoll { .. }) => moved(before, unknown),
        _ => unknown(),
    }
}

/// Says why an operation on a shim tile may go elsewhere or have another value.
fn moved(before: &Action, unknown: impl Fn() -> Reason) -> Reason {
    let (Action::Write { address, .. } | Action::MaskPoll { address, .. }) = before else {
        return unknown();
    };
    match register(address.tile(), address.offset()) {
        Register::Lock(_) => Reason::Lock,
        Register::Control(_) => Reason::Control,
        Register::Status(_) => Reason::Wait,
        Register::Queue(channel) if channel.direction == Direction::FromMemory => Reason::Channel,
        _ => unknown(),
    }
}

#[test]
fn changes_of_streams_for_whole_numbers_are_refused() {
    let score = &scores()[0];
    assert_eq!((score.bits, score.whole), (90_112, 22_880));
    let accepted = [
        (Reason::Spare, 22_880),
        (Reason::Array, 23_062),
        (Reason::Packet, 40),
        (Reason::Channel, 9),
        (Reason::Address, 8),
        (Reason::Burst, 17),
        (Reason::Cache, 17),
        (Reason::Iteration, 442),
        (Reason::Rows, 9),
        (Reason::End, 4),
        (Reason::Step, 80),
        (Reason::Control, 52),
        (Reason::Wait, 24),
    ];
    assert_eq!(score.memory, BTreeMap::from(accepted));
}

#[test]
fn changes_of_streams_for_four_bits_are_refused() {
    let score = &scores()[1];
    assert_eq!((score.bits, score.whole), (137_088, 34_272));
    let accepted = [
        (Reason::Spare, 34_272),
        (Reason::Array, 38_100),
        (Reason::Packet, 16),
        (Reason::Channel, 12),
        (Reason::Address, 6),
        (Reason::Burst, 16),
        (Reason::Cache, 16),
        (Reason::Iteration, 416),
        (Reason::Rows, 16),
        (Reason::Lock, 44),
        (Reason::Control, 36),
    ];
    assert_eq!(score.memory, BTreeMap::from(accepted));
}
