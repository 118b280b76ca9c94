//! What Linux says without opening the device.

use super::finding::{Diagnosis, Finding};
use crate::locked::Limit;
use crate::sys::abi::{MODULE, VENDOR, XDNA1};
use crate::sys::{Errno, Sys};
use crate::uapi;

/// The device that `amdxdna` serves too; trine knows no other than XDNA1.
const XDNA2: &str = "0x17f0";

const DEVICES: &str = "/sys/bus/pci/devices";
const DRIVERS: &str = "/sys/bus/pci/drivers";
/// Where distributions have the firmware of `1022:1502`.
const FIRMWARE: [&str; 2] =
    ["/lib/firmware/amdnpu/1502_00", "/usr/lib/firmware/updates/amdnpu/1502_00"];
/// The first Linux with the driver.
const LINUX: (u32, u32) = (6, 14);
/// What the heap and the buffers of the largest product take.
const LOCKED_BYTES: u64 = 128 << 20;
/// What prompts of a small model take: the heap, and all matrices of Gemma 3 1B in tiles of the
/// kernels' widths, 1664 MiB.
const PROMPTS_BYTES: u64 = (64 + 1664) << 20;

/// A PCI device of AMD's NPUs.
struct Pci {
    address: String,
    device: String,
    revision: String,
}

pub(super) fn check(sys: &dyn Sys, diagnosis: &mut Diagnosis) {
    diagnosis.facts.processor = read(sys, "/proc/cpuinfo").and_then(|text| {
        let name =
            text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'))?;
        Some(name.1.trim().to_owned())
    });
    let Some(pci) = find(sys) else {
        diagnosis.findings.push(Finding::fail(
            "device",
            "no NPU here: no PCI device 1022:1502",
            "an XDNA1 is in Ryzen processors named Phoenix or Hawk Point (7040, 8040, 200 series); \
             if this is one, switch the NPU (IPU) on in the firmware's settings",
        ));
        return;
    };
    let Pci { address, device, revision } = &pci;
    diagnosis.facts.pci = Some([VENDOR.to_owned(), device.clone(), revision.clone()]);
    if device != XDNA1 {
        diagnosis.findings.push(Finding::fail(
            "device",
            format!("1022:17f0 revision {revision} at {address}: an XDNA2"),
            "trine has kernels and proofs for XDNA1 (Phoenix, Hawk Point) only",
        ));
        return;
    }
    let found = format!("1022:1502 revision {revision} at {address}: an XDNA1");
    diagnosis.findings.push(Finding::ok("device", found));
    let kernel = read(sys, "/proc/sys/kernel/osrelease");
    diagnosis.facts.kernel.clone_from(&kernel);
    let is_loaded = driver(sys, kernel.as_deref(), diagnosis);
    let is_bound = is_loaded && is_bound(sys, address);
    firmware(sys, is_bound, diagnosis);
    iommu(sys, address, diagnosis);
    lockable(sys, diagnosis);
    if !is_loaded {
        return;
    }
    if !is_bound {
        diagnosis.findings.push(Finding::fail(
            "binding",
            "the driver has not taken the device",
            "`sudo dmesg | grep -i amdxdna` says why; mostly the firmware is missing or too old \
             (before protocol 5.7, or 5.1 for newer drivers; update linux-firmware), or the IOMMU \
             is off",
        ));
        return;
    }
    diagnosis.findings.push(Finding::ok("binding", "the driver has taken the device"));
    node(sys, address, diagnosis);
}

fn read(sys: &dyn Sys, path: &str) -> Option<String> {
    sys.read_text(path).ok().map(|text| text.trim().to_owned())
}

/// Returns the first XDNA1, else the first XDNA2.
fn find(sys: &dyn Sys) -> Option<Pci> {
    let devices = sys.list(DEVICES).unwrap_or_default();
    let npus = devices.into_iter().filter_map(|address| {
        let read = |what: &str| read(sys, &format!("{DEVICES}/{address}/{what}"));
        let device = read("device").filter(|device| [XDNA1, XDNA2].contains(&device.as_str()))?;
        read("vendor").filter(|vendor| vendor == VENDOR)?;
        let revision = read("revision").unwrap_or_else(|| "unknown".to_owned());
        Some(Pci { address, device, revision })
    });
    npus.min_by_key(|pci| pci.device != XDNA1)
}

/// Returns whether the driver is loaded.
fn driver(sys: &dyn Sys, kernel: Option<&str>, diagnosis: &mut Diagnosis) -> bool {
    let shown = kernel.unwrap_or("of an unknown version");
    let drivers = sys.list(DRIVERS).unwrap_or_default();
    let version = read(sys, "/sys/module/amdxdna/version");
    diagnosis.facts.module_version.clone_from(&version);
    if drivers.iter().any(|name| name == MODULE) {
        let version = version.unwrap_or_else(|| "no version of its own".to_owned());
        let found = format!("amdxdna is loaded, {version}; Linux {shown}");
        diagnosis.findings.push(Finding::ok("driver", found));
        return true;
    }
    let is_new = kernel.and_then(numbers).is_some_and(|numbers| numbers >= LINUX);
    let remedy = if is_new {
        "`sudo modprobe amdxdna`; if there is no such module, the kernel lacks \
         CONFIG_DRM_ACCEL_AMDXDNA: install the package amdxdna-dkms, or another kernel"
    } else {
        "the driver is in Linux since 6.14; update Linux, or install the package amdxdna-dkms \
         where there is one"
    };
    let found = format!("amdxdna is not loaded; Linux {shown}");
    diagnosis.findings.push(Finding::fail("driver", found, remedy));
    false
}

/// Returns the first two numbers of a version of Linux.
fn numbers(kernel: &str) -> Option<(u32, u32)> {
    let mut numbers = kernel.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn is_bound(sys: &dyn Sys, address: &str) -> bool {
    let bound = sys.list(&format!("{DRIVERS}/{MODULE}")).unwrap_or_default();
    bound.iter().any(|name| name == address)
}

fn firmware(sys: &dyn Sys, is_bound: bool, diagnosis: &mut Diagnosis) {
    const CHECK: &str = "firmware's file";
    let names = FIRMWARE.iter().flat_map(|folder| sys.list(folder).unwrap_or_default());
    let files: Vec<String> = names
        .filter(|name| ["npu.", "npu_7."].iter().any(|start| name.starts_with(start)))
        .collect();
    let finding = match (files.is_empty(), is_bound) {
        (false, _) => Finding::ok(CHECK, format!("amdnpu/1502_00: {}", files.join(", "))),
        (true, true) => Finding::ok(CHECK, "in no usual folder; the driver has found it"),
        (true, false) => Finding::fail(
            CHECK,
            "amdnpu/1502_00/npu.sbin is in no usual folder",
            "install or update linux-firmware, and restart",
        ),
    };
    diagnosis.findings.push(finding);
}

fn iommu(sys: &dyn Sys, address: &str, diagnosis: &mut Diagnosis) {
    const REMEDY: &str = "switch the IOMMU on in the firmware's settings, and remove \
        amd_iommu=off, iommu=off and iommu=pt from the kernel's parameters";
    let kind = read(sys, &format!("{DEVICES}/{address}/iommu_group/type"));
    diagnosis.facts.iommu.clone_from(&kind);
    let is_there = !sys.list("/sys/class/iommu").unwrap_or_default().is_empty();
    diagnosis.findings.push(match kind.as_deref() {
        Some("identity") => Finding::warn(
            "IOMMU",
            "it passes the device through (identity), so that the device may not see the process's \
             memory",
            REMEDY,
        ),
        Some(kind) => Finding::ok("IOMMU", format!("on, type {kind}")),
        None if is_there => Finding::warn("IOMMU", "on, but not for this device", REMEDY),
        None => {
            Finding::warn("IOMMU", "off: the driver binds the process's memory with it", REMEDY)
        }
    });
}

fn lockable(sys: &dyn Sys, diagnosis: &mut Diagnosis) {
    const CHECK: &str = "locked memory";
    const REMEDY: &str = "raise the limit to 128 MiB or more for `trine npu selftest`, to \
        unlimited for prompts: `ulimit -l` where it may, memlock in /etc/security/limits.conf, or \
        LimitMEMLOCK of a service; then log in again";
    let bytes = match Limit::of(sys) {
        Limit::Privileged => {
            diagnosis.findings.push(Finding::ok(CHECK, "no limit for this process"));
            return;
        }
        Limit::Unlimited => {
            diagnosis.findings.push(Finding::ok(CHECK, "no limit"));
            return;
        }
        Limit::Unknown => {
            diagnosis.findings.push(Finding::warn(CHECK, "its limit is unknown", REMEDY));
            return;
        }
        Limit::Bytes(bytes) => bytes,
    };
    diagnosis.facts.lockable_bytes = Some(bytes);
    let found = format!("up to {} MiB", bytes >> 20);
    diagnosis.findings.push(if bytes >= PROMPTS_BYTES {
        Finding::ok(CHECK, found)
    } else if bytes >= LOCKED_BYTES {
        let found = format!(
            "{found}: enough for `trine npu selftest`, and too little for prompts of most models \
             ({} MiB for gemma3:1b, if all of it is lent)",
            PROMPTS_BYTES >> 20
        );
        Finding::warn(CHECK, found, REMEDY)
    } else if bytes > uapi::HEAP_BYTES {
        Finding::warn(CHECK, format!("{found}; large products need more"), REMEDY)
    } else {
        Finding::fail(CHECK, format!("{found}; the driver's heap takes 64 MiB"), REMEDY)
    });
}

/// Finds the device's file.
fn node(sys: &dyn Sys, address: &str, diagnosis: &mut Diagnosis) {
    const CHECK: &str = "device file";
    let names = sys.list(&format!("{DEVICES}/{address}/accel")).unwrap_or_default();
    let Some(name) = names.into_iter().find(|name| name.starts_with("accel")) else {
        diagnosis.findings.push(Finding::fail(
            CHECK,
            "the driver offers none",
            "the kernel lacks CONFIG_DRM_ACCEL, or the driver is not the one of Linux: see `sudo \
             dmesg | grep -i amdxdna`",
        ));
        return;
    };
    let path = format!("/dev/accel/{name}");
    let is_listed = match sys.list("/dev/accel") {
        Ok(listed) => listed.contains(&name),
        Err(error) => error != Errno::ENOENT,
    };
    if is_listed {
        diagnosis.findings.push(Finding::ok(CHECK, path.clone()));
        diagnosis.path = Some(path);
    } else {
        diagnosis.findings.push(Finding::fail(
            CHECK,
            format!("{path} is not there, although the driver offers it"),
            format!("in a container, pass the device on (`--device {path}`); else restart udev"),
        ));
    }
}
