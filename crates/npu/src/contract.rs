//! What a stream is to do with the buffers of its kernel.

use serde::{Deserialize, Serialize};

use crate::kernel::Kernel;
use crate::packet::{PAYLOAD_WORDS_MAX, payload_words};

/// Columns of the largest partition.
pub const COLUMNS_MAX: u8 = 5;
/// Arguments whose addresses the firmware turns into addresses of the array. An argument after
/// these needs [`APERTURE`] in its offset.
pub const TRANSLATED_ARGUMENTS: u32 = 5;
/// Where the array sees the machine's memory.
pub const APERTURE: u64 = 0x8000_0000;
/// The largest buffer of a contract.
pub const BUFFER_BYTES_MAX: u64 = 4 << 30;

/// Bytes of the longest name of a buffer.
const NAME_BYTES_MAX: usize = 32;

/// How a stream is to use its partition and its buffers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contract {
    /// Columns of the partition.
    pub columns: u8,
    /// The partition's first column in the array. Column 0 of the array has no shim DMA.
    pub start_column: u8,
    /// Buffers that the kernel's command has, whether the stream uses them or not.
    pub slots: usize,
    /// The buffers that the stream uses.
    pub buffers: Vec<Buffer>,
    /// The kernel, if its streams can be generated: then the array's side is compared.
    pub kernel: Option<Kernel>,
}

/// A buffer that a stream uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buffer {
    /// The kernel's argument, from 0.
    pub argument: u32,
    /// Its name in messages, such as `C`.
    pub name: String,
    /// Its size, a multiple of 4.
    pub bytes: u64,
    /// What the stream does with it.
    pub access: Access,
}

/// What a stream does with a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Writes each word exactly once.
    WriteOnce,
    /// All columns together read each word this often.
    ReadTogether(u32),
    /// This many columns read the buffer, each of them each word this often.
    ReadByEach {
        /// Columns that read it.
        columns: u8,
        /// How often each column reads each word.
        times: u32,
    },
}

impl Contract {
    /// Checks the contract itself, and returns what is wrong with it.
    ///
    /// # Errors
    ///
    /// Returns an error if it names a partition, buffers or sizes that no command can have.
    pub fn check(&self) -> Result<(), String> {
        if self.columns == 0 || self.columns.saturating_add(self.start_column) > COLUMNS_MAX {
            let Self { columns, start_column, .. } = self;
            return Err(format!(
                "{columns} columns from column {start_column}: an XDNA1 has columns 0 to 4"
            ));
        }
        let words = payload_words(self.slots.min(PAYLOAD_WORDS_MAX));
        if words > PAYLOAD_WORDS_MAX {
            let slots = self.slots;
            return Err(format!(
                "{slots} buffers take {words} words of a command's {PAYLOAD_WORDS_MAX}"
            ));
        }
        if self.buffers.is_empty() {
            return Err("no buffers".to_owned());
        }
        for (index, buffer) in self.buffers.iter().enumerate() {
            let Buffer { argument, name, bytes, access } = buffer;
            if *argument as usize >= self.slots {
                let slots = self.slots;
                return Err(format!("buffer {name} is argument {argument} of {slots}"));
            }
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_plain) {
                return Err(format!(
                    "buffer name {:?}, expected up to {NAME_BYTES_MAX} letters, digits and '_'",
                    name.chars().take(NAME_BYTES_MAX).collect::<String>()
                ));
            }
            if self.buffers[..index].iter().any(|other| other.argument == *argument) {
                return Err(format!("argument {argument} is there twice"));
            }
            if *bytes == 0 || *bytes > BUFFER_BYTES_MAX || !bytes.is_multiple_of(4) {
                return Err(format!(
                    "buffer {name} has {bytes} bytes, expected a multiple of 4 up to \
                     {BUFFER_BYTES_MAX}"
                ));
            }
            let is_read = match access {
                Access::WriteOnce => true,
                Access::ReadTogether(times) => *times > 0,
                Access::ReadByEach { columns, times } => {
                    *times > 0 && (1..=self.columns).contains(columns)
                }
            };
            if !is_read {
                return Err(format!("buffer {name} is read by no column or never"));
            }
        }
        if !self.buffers.iter().any(|buffer| buffer.access == Access::WriteOnce) {
            return Err("no buffer is written".to_owned());
        }
        Ok(())
    }
}
