//! What Linux's driver for AMD's GPUs reports in `/sys`: when it resets a hung GPU, and how much
//! memory a GPU may use.
//!
//! The kernel's documentation of the module `amdgpu` describes the parameters and files.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// PCI vendor number of AMD.
pub const VENDOR: u32 = 0x1002;
/// The most bytes that are read of a file; no file that is read here is longer.
const BYTES_MAX: u64 = 4096;

/// When the driver resets a GPU that does not finish a submission: `amdgpu.lockup_timeout`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Timeout {
    /// Not set. The kernel's own default for compute was first no timeout, then 60 s, then 10 s,
    /// and has been 2 s since.
    Default,
    /// The timeout for compute.
    After(Duration),
    /// A single number. Older kernels apply it to everything but compute, newer ones also to
    /// compute. Kernels that cut their own text apart while they read it also show a whole list as
    /// a single number.
    Single(Duration),
    /// The driver never resets the GPU.
    Never,
    /// The text is not a list of numbers.
    Unclear(String),
}

/// Returns the driver's timeout for compute; `None` if the driver is not loaded or does not report
/// it. `sys` is the path of `/sys`.
pub fn timeout(sys: &Path) -> Option<Timeout> {
    let text = read(&sys.join("module/amdgpu/parameters/lockup_timeout"))?;
    Some(parse_timeout(&text))
}

/// Parses a list of milliseconds for graphics, compute, copies and video, in this order.
fn parse_timeout(text: &str) -> Timeout {
    let text = text.trim();
    if text.is_empty() || text == "(null)" {
        return Timeout::Default;
    }
    // An empty field ends the list, as in the kernel.
    let fields = text.split(',').take_while(|field| !field.is_empty()).take(4);
    let Some(values) = fields.map(parse_number).collect::<Option<Vec<i64>>>() else {
        return Timeout::Unclear(text.chars().take(80).collect());
    };
    let (value, is_single) = match values[..] {
        [] => return Timeout::Default,
        [single] => (single, true),
        [_, compute, ..] => (compute, false),
    };
    match u64::try_from(value) {
        Err(_) => Timeout::Never,
        Ok(0) => Timeout::Default,
        Ok(milliseconds) if is_single => Timeout::Single(Duration::from_millis(milliseconds)),
        Ok(milliseconds) => Timeout::After(Duration::from_millis(milliseconds)),
    }
}

/// Parses a number as the kernel's parameters are written: decimal, hexadecimal after `0x`, or
/// octal after a zero.
fn parse_number(text: &str) -> Option<i64> {
    let text = text.trim();
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let hexadecimal = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    let (digits, radix) = match (hexadecimal, digits.strip_prefix('0')) {
        (Some(digits), _) => (digits, 16),
        (None, Some(digits)) if !digits.is_empty() => (digits, 8),
        _ => (digits, 10),
    };
    if !digits.chars().all(|digit| digit.is_digit(radix)) {
        return None;
    }
    let value = i64::from_str_radix(digits, radix).ok()?;
    Some(if is_negative { -value } else { value })
}

/// The memory that a GPU may use, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// The part of the machine's memory that the GPU may map: the GTT.
    pub shared: u64,
    /// The GPU's own memory; for an integrated GPU, what the firmware set aside.
    pub own: u64,
}

/// Returns the memory of the first GPU with these PCI numbers; `None` if the system does not report
/// it.
pub fn memory(sys: &Path, vendor: u32, device: u32) -> Option<Memory> {
    let number = |folder: &Path, name: &str| {
        let value = parse_number(&read(&folder.join(name))?)?;
        u64::try_from(value).ok()
    };
    let of = |folder: PathBuf| {
        let ids = (number(&folder, "vendor")?, number(&folder, "device")?);
        if ids != (u64::from(vendor), u64::from(device)) {
            return None;
        }
        let shared = number(&folder, "mem_info_gtt_total")?;
        Some(Memory { shared, own: number(&folder, "mem_info_vram_total")? })
    };
    cards(sys).into_iter().find_map(of)
}

/// Lists the device folders of the graphics cards, without the outputs of a card (`card0-DP-1`).
fn cards(sys: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(sys.join("class/drm")) else { return Vec::new() };
    let mut numbers: Vec<u32> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("card")?.parse().ok())
        .collect();
    numbers.sort_unstable();
    numbers.iter().map(|number| sys.join(format!("class/drm/card{number}/device"))).collect()
}

/// Reads the beginning of a file, at most [`BYTES_MAX`] bytes.
fn read(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(milliseconds: u64) -> Timeout {
        Timeout::After(Duration::from_millis(milliseconds))
    }

    #[test]
    fn timeouts_are_read_as_the_kernel_reads_them() {
        for text in ["", "\n", "(null)\n", "0\n", "10000,0,10000,10000", ",5000"] {
            assert_eq!(parse_timeout(text), Timeout::Default, "{text:?}");
        }
        assert_eq!(parse_timeout("10000,60000,10000,10000\n"), after(60_000));
        assert_eq!(parse_timeout("10000,0x10"), after(16));
        assert_eq!(parse_timeout("1,010,1,1"), after(8));
        for single in ["500\n", "500,", "500,,7"] {
            assert_eq!(parse_timeout(single), Timeout::Single(Duration::from_millis(500)));
        }
        assert_eq!(parse_timeout("-1"), Timeout::Never);
        assert_eq!(parse_timeout("10000,-1,0,0"), Timeout::Never);
        assert_eq!(parse_timeout("1,9223372036854775807"), after(i64::MAX as u64));
    }

    #[test]
    fn timeouts_that_are_no_numbers_are_shown_and_not_believed() {
        let long = "9".repeat(5000);
        for text in
            ["soon", "1,later", "1,9223372036854775808", "1,--5", "1,+-5", "0x", "1;2", &long]
        {
            match parse_timeout(text) {
                Timeout::Unclear(shown) => assert!(text.starts_with(&shown) && shown.len() <= 80),
                other => panic!("{text:?} is {other:?}"),
            }
        }
    }

    /// Creates a card's folder with the given files.
    fn card(sys: &Path, name: &str, files: &[(&str, &str)]) {
        let folder = sys.join("class/drm").join(name).join("device");
        std::fs::create_dir_all(&folder).unwrap();
        for (name, text) in files {
            std::fs::write(folder.join(name), text).unwrap();
        }
    }

    #[test]
    fn memory_is_that_of_the_card_with_these_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let sys = folder.path();
        assert_eq!(memory(sys, VENDOR, 0x15bf), None, "no graphics card at all");
        card(sys, "card0", &[("vendor", "0x10de\n"), ("device", "0x15bf\n")]);
        card(
            sys,
            "card12",
            &[
                ("vendor", "0x1002\n"),
                ("device", "0x15bf\n"),
                ("mem_info_gtt_total", "16580000000\n"),
                ("mem_info_vram_total", "536870912\n"),
            ],
        );
        card(sys, "card12-DP-1", &[("vendor", "0x1002\n")]);
        card(sys, "cards", &[("vendor", "0x1002\n")]);
        let found = memory(sys, VENDOR, 0x15bf);
        assert_eq!(found, Some(Memory { shared: 16_580_000_000, own: 536_870_912 }));
        assert_eq!(memory(sys, VENDOR, 0x744c), None);
        assert_eq!(memory(sys, 0x10de, 0x15bf), None, "the other driver has no such files");
    }

    #[test]
    fn hostile_files_tell_nothing() {
        let huge = "9".repeat(1 << 20);
        for text in ["", "\n", "many", "-5", "99999999999999999999999", "1 2", "\u{0}", &huge] {
            let folder = tempfile::tempdir().unwrap();
            let sys = folder.path();
            let ids = [("vendor", "0x1002"), ("device", "0x15bf"), ("mem_info_gtt_total", "1")];
            card(sys, "card0", &[&ids[..], &[("mem_info_vram_total", text)]].concat());
            assert_eq!(memory(sys, VENDOR, 0x15bf), None, "{:?}", &text[..text.len().min(30)]);
        }
        let folder = tempfile::tempdir().unwrap();
        let parameters = folder.path().join("module/amdgpu/parameters");
        assert_eq!(timeout(folder.path()), None);
        std::fs::create_dir_all(&parameters).unwrap();
        std::fs::write(parameters.join("lockup_timeout"), [0xff, 0xfe, b'\n']).unwrap();
        assert!(matches!(timeout(folder.path()), Some(Timeout::Unclear(_))));
        std::fs::write(parameters.join("lockup_timeout"), "10000,2000\n").unwrap();
        assert_eq!(timeout(folder.path()), Some(after(2000)));
    }
}
