//! The command packet (`ERT`): a header word, a mask of compute units, and the payload.

/// Words of a payload that the driver passes on to an XDNA1.
pub const PAYLOAD_WORDS_MAX: usize = 19;

/// Words of a payload before the buffers: opcode, address and length of the instructions.
const PREFIX_WORDS: usize = 5;

/// The opcode of the payload for a transaction stream as it is.
pub const OPCODE_TRANSACTION: u64 = 3;

/// Where a command is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum CommandState {
    /// Written by the process, not submitted.
    New = 1,
    /// Taken by the driver.
    Queued = 2,
    /// On the device.
    Running = 3,
    /// Done.
    Completed = 4,
    /// Failed.
    Error = 5,
    /// Given up by the driver.
    Abort = 6,
    /// Sent to the device.
    Submitted = 7,
    /// Not done within the driver's time.
    Timeout = 8,
    /// The device does not answer.
    NoResponse = 9,
}

// `enum ert_cmd_state` of `amdxdna_ctx.h`.
const _: () = {
    assert!(
        CommandState::New as u32 == 1
            && CommandState::Queued as u32 == 2
            && CommandState::Running as u32 == 3
    );
    assert!(
        CommandState::Completed as u32 == 4
            && CommandState::Error as u32 == 5
            && CommandState::Abort as u32 == 6
    );
    assert!(CommandState::Submitted as u32 == 7 && CommandState::Timeout as u32 == 8);
    assert!(CommandState::NoResponse as u32 == 9);
};

impl CommandState {
    /// Whether nothing more will happen.
    #[must_use]
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::New | Self::Queued | Self::Running | Self::Submitted)
    }

    /// Returns the state with this number.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            1 => Self::New,
            2 => Self::Queued,
            3 => Self::Running,
            4 => Self::Completed,
            5 => Self::Error,
            6 => Self::Abort,
            7 => Self::Submitted,
            8 => Self::Timeout,
            9 => Self::NoResponse,
            _ => return None,
        })
    }
}

/// What a packet asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// Run a compute unit: the payload is its register map. What XDNA1 takes.
    StartCu = 0,
    /// Run instructions of a DPU.
    StartDpu = 18,
    /// Run instructions of an NPU.
    StartNpu = 20,
}

impl Opcode {
    /// Returns the opcode with this number.
    #[must_use]
    pub const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::StartCu,
            18 => Self::StartDpu,
            20 => Self::StartNpu,
            _ => return None,
        })
    }
}

/// A packet's first word: `state[3:0] custom[11:4] count[22:12] opcode[27:23] type[31:28]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketHeader {
    /// Where the command is.
    pub state: CommandState,
    /// Bits 11 to 4. The upper two are the number of further masks.
    pub custom: u8,
    /// Words after the header, at most 2047.
    pub count: u16,
    /// What is asked for.
    pub opcode: Opcode,
    /// Bits 31 to 28; 0 is the default.
    pub kind: u8,
}

impl PacketHeader {
    /// The header of a new command with `count` words after it.
    #[must_use]
    pub const fn new(opcode: Opcode, count: u16) -> Self {
        Self { state: CommandState::New, custom: 0, count, opcode, kind: 0 }
    }

    /// Reads a header, or returns `None` if its state or opcode is unknown.
    #[must_use]
    pub const fn decode(word: u32) -> Option<Self> {
        let (Some(state), Some(opcode)) =
            (CommandState::from_number(word & 15), Opcode::from_number(word >> 23 & 31))
        else {
            return None;
        };
        Some(Self {
            state,
            custom: (word >> 4) as u8,
            count: (word >> 12 & 0x7ff) as u16,
            opcode,
            kind: (word >> 28) as u8,
        })
    }

    /// Returns the word. Fields that are wider than their bits are cut.
    #[must_use]
    pub const fn encode(self) -> u32 {
        self.state as u32
            | (self.custom as u32) << 4
            | (self.count as u32 & 0x7ff) << 12
            | (self.opcode as u32) << 23
            | (self.kind as u32 & 15) << 28
    }
}

/// Returns how many words of payload a command with `buffers` buffers has.
#[must_use]
pub const fn payload_words(buffers: usize) -> usize {
    PREFIX_WORDS + 2 * buffers
}

/// Returns the words of a packet that runs a transaction stream on the first compute unit:
/// instructions at `address`, `words` words long, and the addresses of the kernel's buffers. `None`
/// if the payload would be too long.
#[must_use]
pub fn start_transaction(address: u64, words: u32, buffers: &[u64]) -> Option<Vec<u32>> {
    let payload = payload_words(buffers.len());
    if payload > PAYLOAD_WORDS_MAX {
        return None;
    }
    let mut packet = Vec::with_capacity(2 + payload);
    packet.push(PacketHeader::new(Opcode::StartCu, 1 + payload as u16).encode());
    packet.push(1);
    let halves = |number: u64| [number as u32, (number >> 32) as u32];
    packet.extend(halves(OPCODE_TRANSACTION));
    packet.extend(halves(address));
    packet.push(words);
    packet.extend(buffers.iter().flat_map(|buffer| halves(*buffer)));
    Some(packet)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_its_word() {
        let header =
            PacketHeader { custom: 0x81, kind: 3, ..PacketHeader::new(Opcode::StartNpu, 2047) };
        assert_eq!(PacketHeader::decode(header.encode()), Some(header));
        assert_eq!(PacketHeader::new(Opcode::StartCu, 20).encode(), 0x0001_4001);
    }

    #[test]
    fn unknown_states_and_opcodes_are_no_headers() {
        assert_eq!(PacketHeader::decode(0), None);
        assert_eq!(PacketHeader::decode(10), None);
        assert_eq!(PacketHeader::decode(31 << 23 | 1), None);
        assert!(PacketHeader::decode(4).is_some_and(|header| header.state.is_final()));
    }

    #[test]
    fn a_command_has_its_arguments_where_the_kernel_reads_them() {
        let packet = start_transaction(0x1_0000_0002, 9, &[0x40, 0x50]).unwrap();
        assert_eq!(packet[1..], [1, 3, 0, 2, 1, 9, 0x40, 0, 0x50, 0]);
        let count = PacketHeader::decode(packet[0]).unwrap().count;
        assert_eq!(usize::from(count), packet.len() - 1);
    }

    #[test]
    fn more_than_seven_buffers_do_not_fit() {
        assert!(start_transaction(0, 0, &[0; 7]).is_some());
        assert!(start_transaction(0, 0, &[0; 8]).is_none());
    }
}
