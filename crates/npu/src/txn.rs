//! Transaction streams: what the NPU's firmware does before and while a kernel runs.
//!
//! A stream is a header and operations, most of them writes to registers. Version 0.1 of the
//! format is read and written, which is the one that XDNA1 takes. Numbers are little-endian:
//!
//! | bytes | header |
//! |---|---|
//! | 0 to 5 | version, generation, rows, columns, rows of memory tiles |
//! | 8, 12 | operations, bytes of the stream |
//!
//! | kind | size at | fields at |
//! |---|---|---|
//! | 0 write | 20 | address 8 (64 bits), value 16 |
//! | 1 block write | 12 | address 8 (32 bits), words from 16 |
//! | 3 masked write, 4 masked poll | 24 | address 8 (64 bits), value 16, mask 20 |
//! | 0x80 sync | 4 | place 8, extent 12 |
//! | 0x81 patch | 4 | address 24, argument 32, offset 40 (64 bits each) |
//! | others | 4 | |
//!
//! Many bytes mean nothing, and tools leave in them what they found in memory. They are kept
//! ([`Spare`]), so that reading and writing gives the same file. Two streams are compared without
//! them: [`Transaction::canonical`].

mod read;
mod write;

use std::fmt;

use crate::registers::DESCRIPTOR_WORDS;
use crate::tile::{Address, Tile};

/// The name of the format in errors.
pub(crate) const FORMAT: &str = "transaction stream";
/// Bytes of the header.
pub const HEADER_BYTES: usize = 16;
/// The largest stream that is read. The largest that AMD published has 465,104 bytes.
pub const STREAM_BYTES_MAX: usize = 16 << 20;
/// The generation of the array that a stream names: XDNA1.
pub const GENERATION: u8 = 3;

/// A stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// The device that the stream is for, and the format's version.
    pub header: Header,
    /// The operations, in the order in which they are carried out.
    pub operations: Vec<Operation>,
}

/// What a stream says about its device. The numbers of operations and bytes follow from the
/// operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Version of the format: 0 and 1.
    pub version: (u8, u8),
    /// Generation of the array: 3 for XDNA1.
    pub generation: u8,
    /// Rows of the array.
    pub rows: u8,
    /// Columns of the partition.
    pub columns: u8,
    /// Rows of memory tiles.
    pub memory_rows: u8,
    /// Two bytes without meaning.
    pub padding: [u8; 2],
}

impl Header {
    /// The header of a stream for a partition of `columns` columns of an XDNA1.
    #[must_use]
    pub const fn new(columns: u8) -> Self {
        Self {
            version: (0, 1),
            generation: GENERATION,
            rows: crate::tile::ROWS,
            columns,
            memory_rows: 1,
            padding: [0; 2],
        }
    }
}

/// Bytes of an operation that mean nothing, in their order. Those that an operation does not have
/// are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spare(pub [u8; 20]);

/// One operation and its bytes without meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    /// The action, with its arguments.
    pub action: Action,
    /// Bytes without meaning.
    pub spare: Spare,
}

impl From<Action> for Operation {
    fn from(action: Action) -> Self {
        Self { action, spare: Spare::default() }
    }
}

/// What an operation does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Writes a word.
    Write {
        /// The address of the word.
        address: Address,
        /// The value of the word.
        value: u32,
    },
    /// Writes consecutive words.
    BlockWrite {
        /// The address of the first word.
        address: Address,
        /// The values of the words.
        words: Vec<u32>,
    },
    /// Writes the bits of a word that a mask has.
    MaskWrite {
        /// The address of the word.
        address: Address,
        /// The value of the bits.
        value: u32,
        /// The bits that are written.
        mask: u32,
        /// How long the operation is in the file.
        form: MaskForm,
    },
    /// Waits until the bits of a word that a mask has are those of a value.
    MaskPoll {
        /// The address of the word.
        address: Address,
        /// The value that the bits are waited for to have.
        value: u32,
        /// The bits that are compared.
        mask: u32,
        /// How long the operation is in the file.
        form: MaskForm,
    },
    /// Waits for tokens of finished tasks.
    Sync {
        /// Direction, row and column.
        place: u32,
        /// Rows, columns and channel.
        extent: u32,
    },
    /// Writes the address of a buffer into a descriptor.
    Patch {
        /// Word 1 of the descriptor.
        address: Address,
        /// The kernel's argument, from 0.
        argument: u32,
        /// Bytes from the beginning of the argument.
        offset: u64,
    },
    /// Any other operation, with its bytes after the first eight.
    Other {
        /// The operation's number.
        code: u8,
        /// The bytes after the operation's size.
        body: Vec<u8>,
    },
}

/// Two forms of operations with a mask are in use; they differ in their last four bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaskForm {
    /// 28 bytes.
    Short,
    /// 32 bytes, of which the last four mean nothing.
    Long,
}

impl Action {
    /// Returns the action that writes a whole descriptor.
    #[must_use]
    pub fn descriptor(address: Address, words: [u32; DESCRIPTOR_WORDS]) -> Self {
        Self::BlockWrite { address, words: words.to_vec() }
    }

    /// Whether both do the same, whatever their form in a file.
    #[must_use]
    pub fn does_the_same(&self, other: &Self) -> bool {
        let masked = |action: &Self| match action {
            Self::MaskWrite { address, value, mask, .. } => Some((0, *address, *value, *mask)),
            Self::MaskPoll { address, value, mask, .. } => Some((1, *address, *value, *mask)),
            _ => None,
        };
        match (masked(self), masked(other)) {
            (None, None) => self == other,
            (own, other) => own == other,
        }
    }

    /// Returns the tile that is written or polled, if the operation is about a register.
    #[must_use]
    pub fn tile(&self) -> Option<Tile> {
        match self {
            Self::Write { address, .. }
            | Self::BlockWrite { address, .. }
            | Self::MaskWrite { address, .. }
            | Self::MaskPoll { address, .. }
            | Self::Patch { address, .. } => Some(address.tile()),
            Self::Sync { .. } | Self::Other { .. } => None,
        }
    }

    /// Returns the bytes of the operation in a file.
    #[must_use]
    pub fn file_bytes(&self) -> usize {
        match self {
            Self::Write { .. } => 24,
            Self::BlockWrite { words, .. } => 16 + 4 * words.len(),
            Self::MaskWrite { form, .. } | Self::MaskPoll { form, .. } => match form {
                MaskForm::Short => 28,
                MaskForm::Long => 32,
            },
            Self::Sync { .. } => 16,
            Self::Patch { .. } => 48,
            Self::Other { body, .. } => 8 + body.len(),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write { address, value } => write!(f, "write {address} = {value:#010x}"),
            Self::BlockWrite { address, words } => {
                write!(f, "write {address} = {} words", words.len())?;
                if words.len() <= DESCRIPTOR_WORDS {
                    words.iter().try_for_each(|word| write!(f, " {word:x}"))?;
                }
                Ok(())
            }
            Self::MaskWrite { address, value, mask, .. } => {
                write!(f, "write {address} = {value:#x} under {mask:#x}")
            }
            Self::MaskPoll { address, value, mask, .. } => {
                write!(f, "wait for {address} = {value:#x} under {mask:#x}")
            }
            Self::Sync { place, extent } => write!(f, "wait for tokens {place:#x} {extent:#x}"),
            Self::Patch { address, argument, offset } => {
                write!(f, "patch {address} with argument {argument} + {offset:#x}")
            }
            Self::Other { code, body } => write!(f, "operation {code:#x}, {} bytes", body.len()),
        }
    }
}

impl Transaction {
    /// Returns the stream with zeros in all bytes that mean nothing and masks in their long form.
    #[must_use]
    pub fn canonical(&self) -> Self {
        let operations = self.operations.iter().map(|operation| {
            let mut action = operation.action.clone();
            if let Action::MaskWrite { form, .. } | Action::MaskPoll { form, .. } = &mut action {
                *form = MaskForm::Long;
            }
            action.into()
        });
        Self { header: Header { padding: [0; 2], ..self.header }, operations: operations.collect() }
    }

    /// Returns where the operation with this index begins in a file, in bytes.
    #[must_use]
    pub fn offset_of(&self, index: usize) -> usize {
        let before = self.operations.iter().take(index);
        HEADER_BYTES + before.map(|operation| operation.action.file_bytes()).sum::<usize>()
    }

    /// Returns the bytes of the whole stream in a file.
    #[must_use]
    pub fn file_bytes(&self) -> usize {
        self.offset_of(self.operations.len())
    }
}
