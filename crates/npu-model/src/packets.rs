//! Packets as the driver reads them.

use super::objects::State;
use trine_npu::packet::{OPCODE_TRANSACTION, Opcode, PAYLOAD_WORDS_MAX, PacketHeader};
use trine_npu::uapi;

/// What a packet asks for.
pub(super) struct Work {
    pub(super) unit: usize,
    pub(super) instructions: u64,
    pub(super) instruction_bytes: u64,
    pub(super) arguments: Vec<u64>,
}

/// How the driver hands commands on. It follows from the firmware's protocol.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Messages {
    /// 5.7: commands of compute units only.
    Units,
    /// 5.8 or later: `START_NPU` too.
    Npu,
}

impl Messages {
    fn of(state: &State) -> Self {
        if state.machine.protocol_minor >= 8 { Self::Npu } else { Self::Units }
    }

    fn takes(self, opcode: Opcode) -> bool {
        match opcode {
            Opcode::StartCu => true,
            Opcode::StartNpu => self == Self::Npu,
            Opcode::StartDpu => false,
        }
    }
}

/// Returns the words of a packet as the process sees them, which is as the kernel does.
fn words(state: &State, file: i32, packet: u32) -> Option<Vec<u32>> {
    let buffer = *state.clients.get(&file)?.buffers.get(&packet)?;
    if buffer.kind != uapi::BO_COMMAND {
        return None;
    }
    let memory = state.memories.get(&buffer.memory)?;
    let bytes = memory.process(buffer.offset as usize, buffer.bytes as usize);
    let word = |word: &[u8]| u32::from_le_bytes(word.try_into().expect("four bytes"));
    Some(bytes.chunks_exact(4).map(word).collect())
}

/// Reads a packet as the driver does, for a context of `units` compute units. `None` for what it or
/// the firmware refuses.
pub(super) fn decode(state: &State, file: i32, packet: u32, units: usize) -> Option<Work> {
    let words = words(state, file, packet)?;
    let header = PacketHeader::decode(*words.first()?)?;
    let count = usize::from(header.count);
    let payload = words.get(2..1 + count)?;
    let mask = *words.get(1)?;
    let unit = mask.trailing_zeros() as usize;
    let is_taken = Messages::of(state).takes(header.opcode);
    if header.custom != 0 || mask == 0 || unit >= units || !is_taken {
        return None;
    }
    let pair = |at: usize| {
        let low = payload.get(at)?;
        Some(u64::from(*payload.get(at + 1)?) << 32 | u64::from(*low))
    };
    let (instructions, instruction_bytes, first) = if header.opcode == Opcode::StartCu {
        if payload.len() > PAYLOAD_WORDS_MAX || pair(0)? != OPCODE_TRANSACTION {
            return None;
        }
        (pair(2)?, u64::from(*payload.get(4)?) * 4, 5)
    } else {
        (pair(0)?, u64::from(*payload.get(2)?), 4)
    };
    if instruction_bytes > uapi::HEAP_BYTES {
        return None;
    }
    let arguments = (first..payload.len()).step_by(2).map(pair).collect::<Option<Vec<u64>>>()?;
    Some(Work { unit, instructions, instruction_bytes, arguments })
}

/// Overwrites a packet that did not end well, as the driver does: what comes after the header is
/// filled.
pub(super) fn spoil(state: &mut State, file: i32, packet: u32) {
    let Some(words) = words(state, file, packet) else { return };
    let Some(buffer) = state.clients.get(&file).and_then(|client| client.buffers.get(&packet))
    else {
        return;
    };
    let start = buffer.offset as usize;
    let count =
        words.first().and_then(|word| PacketHeader::decode(*word)).map_or(0, |header| header.count);
    let count = usize::from(count).min(words.len().saturating_sub(1));
    let Some(memory) = state.memories.get_mut(&buffer.memory) else { return };
    memory.write_process(start + 4, &vec![0xff; 4 * count]);
}
