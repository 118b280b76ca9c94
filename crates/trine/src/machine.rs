//! Facts about this machine that concern a model: cores, memory, limits, caches, device nodes.

use std::path::Path;

/// Threads this process may run at the same time.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Size of the largest cache in bytes, where the system tells.
pub(crate) fn last_level_cache() -> Option<u64> {
    let folder = std::fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()?;
    let sizes = folder.flatten().filter_map(|entry| parse_size(&read(&entry.path().join("size"))?));
    sizes.max()
}

/// Memory of the machine in bytes.
pub(crate) fn total_memory() -> Option<u64> {
    meminfo("MemTotal")
}

/// Memory that can be taken without swapping, within this process's limit.
pub(crate) fn available_memory() -> Option<u64> {
    let free = meminfo("MemAvailable")?;
    Some(memory_limit().map_or(free, |(limit, used)| free.min(limit.saturating_sub(used))))
}

/// Swap in use, in bytes.
pub(crate) fn swap_used() -> Option<u64> {
    Some(meminfo("SwapTotal")?.saturating_sub(meminfo("SwapFree")?))
}

fn meminfo(key: &str) -> Option<u64> {
    meminfo_of(&read(Path::new("/proc/meminfo"))?, key)
}

fn meminfo_of(text: &str, key: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The processor's name.
pub(crate) fn processor() -> Option<String> {
    let text = read(Path::new("/proc/cpuinfo"))?;
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'))?.1;
    Some(name.trim().to_owned())
}

/// Memory limit of this process's control group and what the group uses, in bytes; `None` where there is no limit.
/// Control groups of version 2 (`memory.max`) and 1 (`memory.limit_in_bytes`), up to the root.
pub(crate) fn memory_limit() -> Option<(u64, u64)> {
    let groups = read(Path::new("/proc/self/cgroup"))?;
    let unified =
        group_path(&groups, "").into_iter().flat_map(|path| ancestors("/sys/fs/cgroup", &path));
    let memory = group_path(&groups, "memory")
        .into_iter()
        .flat_map(|path| ancestors("/sys/fs/cgroup/memory", &path));
    let of = |folder: String, limit: &str, used: &str| {
        let number = |name: &str| read(&Path::new(&folder).join(name))?.trim().parse::<u64>().ok();
        Some((number(limit)?, number(used).unwrap_or(0)))
    };
    let unified = unified.filter_map(|folder| of(folder, "memory.max", "memory.current"));
    let memory =
        memory.filter_map(|folder| of(folder, "memory.limit_in_bytes", "memory.usage_in_bytes"));
    let total = total_memory().unwrap_or(u64::MAX);
    // Version 1 writes an absurdly large number for "none".
    unified.chain(memory).filter(|(limit, _)| *limit < total).min()
}

/// Processors' worth of time that the control group allows; `None` where there is no limit.
pub(crate) fn processor_limit() -> Option<f64> {
    let groups = read(Path::new("/proc/self/cgroup"))?;
    let folders =
        group_path(&groups, "").into_iter().flat_map(|path| ancestors("/sys/fs/cgroup", &path));
    let limits = folders.filter_map(|folder| {
        let text = read(&Path::new(&folder).join("cpu.max"))?;
        let (quota, period) = text.trim().split_once(' ')?;
        Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?)
    });
    limits.min_by(f64::total_cmp)
}

/// Path of this process's group for a controller, from `/proc/self/cgroup`; the empty name is version 2's.
fn group_path(groups: &str, controller: &str) -> Option<String> {
    groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        controllers.split(',').any(|name| name == controller).then(|| path.to_owned())
    })
}

/// A group's folder and those above it.
fn ancestors(root: &str, path: &str) -> Vec<String> {
    let parts: Vec<&str> =
        path.split('/').filter(|part| !part.is_empty() && *part != "..").collect();
    (0..=parts.len())
        .rev()
        .map(|depth| {
            std::iter::once(root)
                .chain(parts[..depth].iter().copied())
                .collect::<Vec<_>>()
                .join("/")
        })
        .collect()
}

/// Device nodes of GPUs and NPUs: (what, path, whether this process may open it).
pub(crate) fn device_nodes() -> Vec<(&'static str, String, bool)> {
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

/// Processor features that the kernels can use: (name, present).
pub(crate) fn processor_features() -> Vec<(&'static str, bool)> {
    #[cfg(target_arch = "x86_64")]
    return vec![
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("f16c", is_x86_feature_detected!("f16c")),
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

/// A number of bytes as sysfs writes it, `32768K`, `2M`, with K, M, G or T for powers of 1024.
pub(crate) fn parse_size(text: &str) -> Option<u64> {
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
        assert_eq!(meminfo_of("MemTotal:  24 kB\nMemFree: 1 kB\n", "MemTotal"), Some(24 * 1024));
        assert_eq!(meminfo_of("MemTotal: x kB", "MemTotal"), None);
        assert!(cores() >= 1);
    }

    #[test]
    fn groups_and_their_folders() {
        let groups = "12:memory,hugetlb:/a/b\n0::/user.slice/x\n";
        assert_eq!(group_path(groups, "memory").as_deref(), Some("/a/b"));
        assert_eq!(group_path(groups, "").as_deref(), Some("/user.slice/x"));
        assert_eq!(group_path(groups, "cpu"), None);
        assert_eq!(ancestors("/r", "/a/b"), ["/r/a/b", "/r/a", "/r"]);
        assert_eq!(ancestors("/r", "/.."), ["/r"]);
    }
}
