//! Memory of the machine, as Linux reports it.

use std::path::Path;

/// Returns the memory of the machine in bytes.
pub fn total_memory() -> Option<u64> {
    meminfo("MemTotal")
}

/// Returns the memory that can be taken without swapping, within this process's limit.
pub fn available_memory() -> Option<u64> {
    let free = meminfo("MemAvailable")?;
    Some(memory_limit().map_or(free, |(limit, used)| free.min(limit.saturating_sub(used))))
}

/// Returns the value of a line of `/proc/meminfo`, in bytes.
pub fn meminfo(key: &str) -> Option<u64> {
    meminfo_of(&read(Path::new("/proc/meminfo"))?, key)
}

fn meminfo_of(text: &str, key: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the memory limit of this process's control group and what the group uses, in bytes, or
/// `None` if there is no limit. Reads control groups of version 2 (`memory.max`) and 1
/// (`memory.limit_in_bytes`), up to the root.
pub fn memory_limit() -> Option<(u64, u64)> {
    let groups = read(Path::new("/proc/self/cgroup"))?;
    let unified = group_folders()?.into_iter();
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

/// Returns the path of this process's group for a controller, from `/proc/self/cgroup`. The empty
/// name is that of version 2.
fn group_path(groups: &str, controller: &str) -> Option<String> {
    groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        controllers.split(',').any(|name| name == controller).then(|| path.to_owned())
    })
}

/// Returns a group's folder and those above it.
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

/// Returns the folders of this process's control group of version 2 and of those above it, the
/// innermost first, or `None` if the system has none.
pub fn group_folders() -> Option<Vec<String>> {
    let groups = read(Path::new("/proc/self/cgroup"))?;
    Some(group_path(&groups, "").map(|path| ancestors("/sys/fs/cgroup", &path)).unwrap_or_default())
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_meminfo_are_parsed() {
        assert_eq!(meminfo_of("MemTotal:  24 kB\nMemFree: 1 kB\n", "MemTotal"), Some(24 * 1024));
        assert_eq!(meminfo_of("MemTotal: x kB", "MemTotal"), None);
        for damaged in ["MemTotal: 12", "MemTotal: 99999999999999999999 kB", "", "MemTotalX: 1 kB"]
        {
            assert_eq!(meminfo_of(damaged, "MemTotal"), None, "{damaged}");
        }
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
