//! PDIs: the configuration of a partition, as a list of commands (CDO) that the firmware carries
//! out before any stream.
//!
//! | bytes | |
//! |---|---|
//! | 0 to 15 | `dd000000 44332211 88776655 ccbbaa99` |
//! | 336 to 355 | five words: 4, `CDO\0`, version, words of commands, the inverse of their sum |
//! | from 356 | commands |
//!
//! A command is a word with its code in bits 15:0 and the number of words after it in bits 23:16.
//! 255 says that the next word has the number.

use std::ops::Range;

use crate::FormatError;
use crate::bytes::Bytes;
use crate::tile::{Address, Tile, TileKind};

const FORMAT: &str = "PDI";
const MAGIC: [u8; 16] =
    [0xdd, 0, 0, 0, 0x44, 0x33, 0x22, 0x11, 0x88, 0x77, 0x66, 0x55, 0xcc, 0xbb, 0xaa, 0x99];
/// Where the list of commands begins.
const COMMANDS_OFFSET: usize = 336;
/// Bytes of its header.
const HEADER_BYTES: usize = 20;
const VERSION: u32 = 0x200;
/// The commands that are read.
const CODES: [u32; 4] = [0x102, 0x103, 0x105, 0x111];
/// Zero bytes that may follow the commands, which are padded to 16.
const PADDING_BYTES_MAX: usize = 16;

/// Where a core's control register is, and the bit that lets it run.
const CORE_CONTROL: u32 = 0x3_2000;
const CORE_ENABLE: u32 = 1;
/// Where a core's program is.
const PROGRAM: Range<u32> = 0x2_0000..0x2_4000;

/// A PDI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pdi {
    /// Words of all commands.
    pub words: u32,
    /// The commands in their order.
    pub commands: Vec<Command>,
}

/// One command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Writes the bits of a word that a mask has.
    MaskWrite {
        /// The address of the word.
        address: Address,
        /// The bits that are written.
        mask: u32,
        /// The value of these bits.
        value: u32,
    },
    /// Writes a word.
    Write {
        /// The address of the word.
        address: Address,
        /// The value of the word.
        value: u32,
    },
    /// Writes consecutive words.
    DmaWrite {
        /// The address of the first word.
        address: Address,
        /// The bytes in the PDI's file.
        data: Range<usize>,
    },
    /// Does nothing; fills up to a multiple.
    Padding,
}

/// A core that a PDI loads or starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Core {
    /// Where it is.
    pub tile: Tile,
    /// Bytes of its program.
    pub program_bytes: usize,
    /// Whether it is let run.
    pub is_enabled: bool,
}

impl Pdi {
    /// Reads a PDI.
    ///
    /// # Errors
    ///
    /// Returns an error with the byte and what was expected there.
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        let bytes = Bytes::new(FORMAT, bytes);
        if bytes.array::<16>(0, "the header")? != MAGIC {
            return Err(bytes.error(0, "no PDI: it begins otherwise"));
        }
        let header = bytes.part(COMMANDS_OFFSET, HEADER_BYTES, "the header of the commands")?;
        let mut fields = [0; 5];
        for (at, field) in fields.iter_mut().enumerate() {
            *field = header.u32(4 * at, "the header of the commands")?;
        }
        let [kind, name, version, words, sum] = fields;
        if (kind, name, version) != (4, u32::from_le_bytes(*b"CDO\0"), VERSION) {
            let problem = format!(
                "commands begin with {kind}, {name:#x}, {version:#x}; expected 4, CDO, {VERSION:#x}"
            );
            return Err(header.error(0, problem));
        }
        let expected = !fields[..4].iter().fold(0_u32, |sum, field| sum.wrapping_add(*field));
        if sum != expected {
            let problem = format!("checksum {sum:#010x}, expected {expected:#010x}");
            return Err(header.error(16, problem));
        }
        let begin = COMMANDS_OFFSET + HEADER_BYTES;
        let length = (words as usize).saturating_mul(4);
        let code = bytes.u32(begin, "the first command").map_or(0x111, |word| word & 0xffff);
        if words > 0 && !CODES.contains(&code) {
            let problem = format!(
                "commands in an encoding that is not read: the first is {code:#x}, expected 0x102, \
                 0x103, 0x105 or 0x111"
            );
            return Err(bytes.error(begin, problem));
        }
        bytes.slice(begin, length, "the commands")?;
        let end = begin + length;
        let mut commands = Vec::new();
        let mut offset = begin;
        while offset < end {
            let (command, after) = command(bytes, offset, end)?;
            commands.push(command);
            offset = after;
        }
        let rest = &bytes.all()[end..];
        if rest.len() >= PADDING_BYTES_MAX || rest.iter().any(|byte| *byte != 0) {
            let problem =
                format!("{} bytes after the commands, expected zeros up to 16", rest.len());
            return Err(bytes.error(end, problem));
        }
        Ok(Self { words, commands })
    }

    /// Returns the cores that have a program or are let run, by column and row.
    #[must_use]
    pub fn cores(&self) -> Vec<Core> {
        let mut cores = std::collections::BTreeMap::<Tile, Core>::new();
        for command in &self.commands {
            let (address, bytes, enables) = match command {
                Command::DmaWrite { address, data } => {
                    let is_program = PROGRAM.contains(&address.offset());
                    (*address, if is_program { data.len() } else { 0 }, false)
                }
                Command::MaskWrite { address, mask, value } => {
                    (*address, 0, mask & value & CORE_ENABLE != 0)
                }
                Command::Write { address, value } => (*address, 0, value & CORE_ENABLE != 0),
                Command::Padding => continue,
            };
            let tile = address.tile();
            let enables = enables && address.offset() == CORE_CONTROL;
            if tile.kind() == Some(TileKind::Core) && (bytes > 0 || enables) {
                let core = Core { tile, program_bytes: 0, is_enabled: false };
                let core = cores.entry(tile).or_insert(core);
                core.program_bytes += bytes;
                core.is_enabled |= enables;
            }
        }
        cores.into_values().collect()
    }
}

/// Reads the command at `offset` and returns where it ends, at most at `end`.
fn command(bytes: Bytes<'_>, offset: usize, end: usize) -> Result<(Command, usize), FormatError> {
    let word = bytes.u32(offset, "a command")?;
    let (code, short) = (word & 0xffff, word >> 16);
    let (begin, count) = match short {
        255 => (offset + 8, bytes.u32(offset + 4, "the length of a command")? as usize),
        _ => (offset + 4, short as usize),
    };
    let after = count.checked_mul(4).and_then(|length| length.checked_add(begin));
    let Some(after) = after.filter(|after| *after <= end) else {
        let problem = format!("command {code:#x} has {count} words, the commands end at {end}");
        return Err(bytes.error(offset, problem));
    };
    let field = |at: usize| bytes.u32(begin + 4 * at, "a command");
    let expect = |least: usize, is_exact: bool| {
        if count == least || !is_exact && count >= least {
            return Ok(());
        }
        Err(bytes.error(offset, format!("command {code:#x} has {count} words, expected {least}")))
    };
    let command = match code {
        0x102 => {
            expect(3, true)?;
            Command::MaskWrite { address: Address(field(0)?), mask: field(1)?, value: field(2)? }
        }
        0x103 => {
            expect(2, true)?;
            Command::Write { address: Address(field(0)?), value: field(1)? }
        }
        0x105 => {
            expect(2, false)?;
            let high = field(0)?;
            if high != 0 {
                let problem = format!("an address of more than 32 bits ({high:#x} above them)");
                return Err(bytes.error(begin, problem));
            }
            Command::DmaWrite { address: Address(field(1)?), data: begin + 8..after }
        }
        0x111 => Command::Padding,
        _ => {
            let problem = format!("command {code:#x}, expected 0x102, 0x103, 0x105 or 0x111");
            return Err(bytes.error(offset, problem));
        }
    };
    Ok((command, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A PDI with these words as commands.
    fn pdi(words: &[u32]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.resize(COMMANDS_OFFSET, 0);
        let header = [4, u32::from_le_bytes(*b"CDO\0"), VERSION, words.len() as u32];
        let sum = !header.iter().sum::<u32>();
        for word in header.iter().chain([&sum]).chain(words) {
            bytes.extend(word.to_le_bytes());
        }
        bytes
    }

    fn small() -> Vec<u8> {
        let core = Address::new(Tile::new(1, 2), 0);
        pdi(&[
            2 << 16 | 0x103,
            0x3_5018,
            1,
            6 << 16 | 0x105,
            0,
            core.0 + 0x2_0000,
            1,
            2,
            3,
            4,
            1 << 16 | 0x111,
            0,
            255 << 16 | 0x105,
            3,
            0,
            core.0,
            9,
            3 << 16 | 0x102,
            core.0 + 0x3_2000,
            1,
            1,
        ])
    }

    #[test]
    fn commands_and_cores_are_read() {
        let mut bytes = small();
        let read = Pdi::parse(&bytes).unwrap();
        assert_eq!(read.commands.len(), 5);
        let core = Core { tile: Tile::new(1, 2), program_bytes: 16, is_enabled: true };
        assert_eq!(read.cores(), [core]);
        let Command::DmaWrite { data, .. } = &read.commands[3] else { panic!("a block") };
        assert_eq!(bytes[data.clone()], [9, 0, 0, 0]);
        bytes.extend([0; 12]);
        assert_eq!(Pdi::parse(&bytes).unwrap(), read);
    }

    #[test]
    fn a_wrong_sum_or_rest_is_named() {
        let mut bytes = small();
        bytes[COMMANDS_OFFSET + 16] ^= 1;
        assert!(Pdi::parse(&bytes).unwrap_err().problem.starts_with("checksum"));
        let mut bytes = small();
        bytes.push(1);
        assert!(Pdi::parse(&bytes).unwrap_err().problem.contains("after the commands"));
    }

    #[test]
    fn a_command_that_is_too_long_or_unknown_is_named() {
        for (words, problem) in [
            (vec![9 << 16 | 0x103, 0, 0], "has 9 words"),
            (vec![255 << 16 | 0x105, u32::MAX, 0], "has 4294967295 words"),
            (vec![1 << 16 | 0x111, 0, 1 << 16 | 0x101, 0], "command 0x101, expected 0x102"),
            (vec![3, 0x40, 0x23_4060, 1], "an encoding that is not read: the first is 0x3"),
            (vec![3 << 16 | 0x105, 1, 0, 0], "more than 32 bits"),
        ] {
            let error = Pdi::parse(&pdi(&words)).unwrap_err();
            assert!(error.problem.contains(problem), "{error}");
        }
    }

    #[test]
    fn a_cut_pdi_is_an_error_at_each_length() {
        let bytes = small();
        for length in 0..bytes.len() {
            assert!(Pdi::parse(&bytes[..length]).is_err(), "{length} bytes");
        }
    }
}
