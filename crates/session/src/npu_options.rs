//! What can be typed of an NPU beside the processor.

use std::fmt;
use std::path::PathBuf;

/// Which kernel pack an NPU is used with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PackChoice {
    /// The one pack of the store.
    Stored,
    /// The pack in a folder.
    Folder(PathBuf),
}

impl PackChoice {
    /// Reads `auto` or a folder.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("name the folder of a kernel pack, or auto".to_owned()),
            "auto" => Ok(Self::Stored),
            folder => Ok(Self::Folder(PathBuf::from(folder))),
        }
    }
}

/// How much of each matrix the NPU takes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum NpuShare {
    /// As much as makes prompts fastest, by measurements when a model is loaded.
    #[default]
    Measured,
    /// This part, from 0 to 1.
    Part(f64),
}

impl fmt::Display for NpuShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Measured => f.write_str("by measurements"),
            Self::Part(part) => write!(f, "{part}"),
        }
    }
}

impl NpuShare {
    /// Reads `auto` or a number from 0 to 1.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Measured);
        }
        match text.parse::<f64>() {
            Ok(part) if (0.0..=1.0).contains(&part) => Ok(Self::Part(part)),
            _ => Err("choose auto, or a part of each matrix from 0 to 1, such as 0.25".to_owned()),
        }
    }
}

/// An NPU as it was asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct NpuOptions {
    /// The pack.
    pub pack: PackChoice,
    /// The share.
    pub share: NpuShare,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_and_parts() {
        assert_eq!(PackChoice::parse("auto"), Ok(PackChoice::Stored));
        assert_eq!(PackChoice::parse("a/b"), Ok(PackChoice::Folder(PathBuf::from("a/b"))));
        assert!(PackChoice::parse("").is_err());
        assert_eq!(NpuShare::parse("auto"), Ok(NpuShare::Measured));
        for (text, part) in [("0", 0.0), ("0.25", 0.25), ("1", 1.0), ("1e-1", 0.1)] {
            assert_eq!(NpuShare::parse(text), Ok(NpuShare::Part(part)));
        }
        for wrong in ["", "1.1", "-0.1", "nan", "inf", "all", "25%"] {
            assert!(NpuShare::parse(wrong).unwrap_err().contains("from 0 to 1"), "{wrong}");
        }
    }
}
