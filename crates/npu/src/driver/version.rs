//! What a driver says about itself.

use std::mem::offset_of;

use bytemuck::bytes_of_mut;

pub(crate) use crate::sys::abi::DRM_DRIVER;
use crate::sys::abi::{self, Version};
use crate::sys::{Errno, File, Pointed, Sys};

/// Room for the name of a driver, and for its description.
const NAME_BYTES: usize = 32;
const DESCRIPTION_BYTES: usize = 64;

/// A driver's answer to [`abi::VERSION`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DriverVersion {
    /// Its name, up to 32 bytes of it.
    pub(crate) name: String,
    /// First number of its interface.
    pub(crate) major: i32,
    /// Second number.
    pub(crate) minor: i32,
    /// Whether it says that it is trine's model.
    pub(crate) is_model: bool,
}

impl DriverVersion {
    /// Asks the driver of an open file.
    pub(crate) fn ask(sys: &dyn Sys, file: File) -> Result<Self, Errno> {
        let (mut name, mut desc) = ([0; NAME_BYTES], [0; DESCRIPTION_BYTES]);
        let (name_len, desc_len) = (NAME_BYTES as u64, DESCRIPTION_BYTES as u64);
        let mut version = Version { name_len, desc_len, ..Default::default() };
        let mut pointed = [
            Pointed { field: offset_of!(Version, name), bytes: &mut name },
            Pointed { field: offset_of!(Version, desc), bytes: &mut desc },
        ];
        sys.ioctl(file, abi::VERSION, bytes_of_mut(&mut version), &mut pointed)?;
        let Version { major, minor, name_len, desc_len, .. } = version;
        // Lengths are those of the texts, which may be longer than the room for them.
        let length = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let name = &name[..length(name_len).min(NAME_BYTES)];
        let is_model = desc.get(..length(desc_len)) == Some(abi::MODEL_DESCRIPTION.as_bytes());
        Ok(Self { name: String::from_utf8_lossy(name).into_owned(), major, minor, is_model })
    }
}
