//! Facts about this machine that concern a model: cores, memory, limits, caches, device nodes.

use std::path::Path;

pub use trine_backend::host::{
    available_memory, group_folders, meminfo, memory_limit, total_memory,
};

/// Returns the number of threads that this process may run at the same time.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the size of the largest cache in bytes, if the system reports it.
pub fn last_level_cache() -> Option<u64> {
    let folder = std::fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()?;
    let sizes = folder.flatten().filter_map(|entry| parse_size(&read(&entry.path().join("size"))?));
    sizes.max()
}

/// Returns the swap in use, in bytes.
pub fn swap_used() -> Option<u64> {
    Some(meminfo("SwapTotal")?.saturating_sub(meminfo("SwapFree")?))
}

/// Returns the machine's own name, if the system tells one. Windows' names have no dot, and are
/// answered to by that.
pub fn host_name() -> Option<String> {
    #[cfg(unix)]
    let name = rustix::system::uname().nodename().to_str().ok().map(str::to_owned);
    #[cfg(not(unix))]
    let name = None;
    name
}

/// Returns the processor's name.
pub fn processor() -> Option<String> {
    let text = read(Path::new("/proc/cpuinfo"))?;
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'))?.1;
    Some(name.trim().to_owned())
}

/// Returns the number of processors' worth of time that the control group allows; `None` if there
/// is no limit.
pub fn processor_limit() -> Option<f64> {
    let limits = group_folders()?.into_iter().filter_map(|folder| {
        let text = read(&Path::new(&folder).join("cpu.max"))?;
        let (quota, period) = text.trim().split_once(' ')?;
        Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
    });
    limits.min_by(f64::total_cmp)
}

/// Lists the device nodes of GPUs and NPUs: (kind, path, whether this process may open it).
pub fn device_nodes() -> Vec<(&'static str, String, bool)> {
    let places =
        [("GPU", "/dev/dri", "renderD"), ("GPU", "/dev", "nvidia"), ("NPU", "/dev/accel", "accel")];
    let mut nodes = Vec::new();
    for (what, folder, prefix) in places {
        let Ok(entries) = std::fs::read_dir(folder) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let index = name.strip_prefix(prefix);
            if index
                .is_some_and(|index| !index.is_empty() && index.bytes().all(|b| b.is_ascii_digit()))
            {
                let path = entry.path();
                let usable = std::fs::OpenOptions::new().read(true).write(true).open(&path).is_ok();
                nodes.push((what, path.display().to_string(), usable));
            }
        }
    }
    nodes.sort();
    nodes
}

/// Returns whether an XDNA1 NPU (PCI `1022:1502`) is here. `sys` is the path of `/sys`.
pub fn has_npu(sys: &Path) -> bool {
    let Ok(devices) = std::fs::read_dir(sys.join("bus/pci/devices")) else { return false };
    let is = |device: &Path, name: &str, number: &str| {
        read(&device.join(name)).is_some_and(|text| text.trim() == number)
    };
    devices.flatten().any(|entry| {
        let device = entry.path();
        is(&device, "vendor", "0x1022") && is(&device, "device", "0x1502")
    })
}

/// Returns the version of the running kernel. `proc` is the path of `/proc`.
pub fn kernel(proc: &Path) -> Option<String> {
    version(&proc.join("sys/kernel/osrelease"))
}

/// Returns the version of the machine's firmware, with its date. `sys` is the path of `/sys`.
pub fn firmware(sys: &Path) -> Option<String> {
    let of = |name: &str| version(&sys.join("class/dmi/id").join(name));
    let name = of("bios_version")?;
    Some(of("bios_date").map_or_else(|| name.clone(), |date| format!("{name} of {date}")))
}

/// Returns the first words of a file that names a version.
fn version(path: &Path) -> Option<String> {
    let text = read(path)?;
    let line: String = text.lines().next()?.trim().chars().take(60).collect();
    (!line.is_empty()).then_some(line)
}

/// Lists processor features that the kernels can use: (name, present).
pub fn processor_features() -> Vec<(&'static str, bool)> {
    #[cfg(target_arch = "x86_64")]
    return vec![
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("f16c", is_x86_feature_detected!("f16c")),
        ("avxvnni", is_x86_feature_detected!("avxvnni")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512bw", is_x86_feature_detected!("avx512bw")),
        ("avx512vnni", is_x86_feature_detected!("avx512vnni")),
    ];
    #[cfg(target_arch = "aarch64")]
    return vec![
        ("neon", true),
        ("dotprod", std::arch::is_aarch64_feature_detected!("dotprod")),
        ("i8mm", std::arch::is_aarch64_feature_detected!("i8mm")),
    ];
    #[allow(unreachable_code, reason = "other processors have no kernels of their own")]
    Vec::new()
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// Parses a number of bytes as sysfs writes it, such as `32768K` or `2M`, where K, M, G and T are
/// powers of 1024.
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let (number, factor) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1 << 10),
        b'M' => (&text[..text.len() - 1], 1 << 20),
        b'G' => (&text[..text.len() - 1], 1 << 30),
        b'T' => (&text[..text.len() - 1], 1 << 40),
        _ => (text, 1),
    };
    number.trim().parse::<u64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_counts_are_parsed() {
        assert_eq!(parse_size("32768K\n"), Some(32 << 20));
        assert_eq!(parse_size("2M"), Some(2 << 20));
        assert_eq!(parse_size("512"), Some(512));
        assert_eq!(parse_size(""), None);
        assert!(cores() >= 1);
    }

    #[test]
    fn kernel_and_firmware_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        assert_eq!((kernel(root), firmware(root)), (None, None));
        std::fs::create_dir_all(root.join("sys/kernel")).unwrap();
        std::fs::write(root.join("sys/kernel/osrelease"), "6.12.48+deb13-amd64\n").unwrap();
        std::fs::create_dir_all(root.join("class/dmi/id")).unwrap();
        std::fs::write(root.join("class/dmi/id/bios_version"), "F.21\n").unwrap();
        assert_eq!(firmware(root).as_deref(), Some("F.21"));
        std::fs::write(root.join("class/dmi/id/bios_date"), "08/19/2025\n").unwrap();
        assert_eq!(kernel(root).as_deref(), Some("6.12.48+deb13-amd64"));
        assert_eq!(firmware(root).as_deref(), Some("F.21 of 08/19/2025"));
        std::fs::write(root.join("class/dmi/id/bios_version"), "x".repeat(9999)).unwrap();
        assert!(firmware(root).unwrap().len() < 100);
    }

    #[test]
    fn an_npu_is_known_by_its_numbers() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!has_npu(folder.path()), "no PCI at all");
        let device = |name: &str, vendor: &str, device: &str| {
            let path = folder.path().join("bus/pci/devices").join(name);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join("vendor"), vendor).unwrap();
            std::fs::write(path.join("device"), device).unwrap();
        };
        device("gpu", "0x1002\n", "0x15bf\n");
        device("xdna2", "0x1022\n", "0x17f0\n");
        device("other", "0x10de\n", "0x1502\n");
        assert!(!has_npu(folder.path()), "a GPU, an XDNA2, a device of another vendor");
        device("xdna1", "0x1022\n", "0x1502\n");
        assert!(has_npu(folder.path()));
    }
}
