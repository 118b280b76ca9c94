//! What the driver says about the open device.

use std::mem::offset_of;

use bytemuck::{Pod, bytes_of_mut};

use super::finding::{Diagnosis, Finding};
use crate::driver::{self, DRM_DRIVER, DriverVersion};
use crate::sys::abi::{self, ArrayMetadata, FirmwareVersion};
use crate::sys::{Errno, File, Pointed, Sys};
use crate::uapi;

/// The device's open file.
struct Open<'a> {
    sys: &'a dyn Sys,
    file: File,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.sys.close(self.file);
    }
}

impl Open<'_> {
    /// Asks the driver; the answer is zero where it is shorter.
    fn ask<T: Pod>(&self, param: u32) -> Result<T, Errno> {
        let mut answer = T::zeroed();
        let bytes = bytes_of_mut(&mut answer);
        let buffer_size = bytes.len() as u32;
        let mut question = uapi::GetInfo { param, buffer_size, buffer: 0 };
        let field = offset_of!(uapi::GetInfo, buffer);
        let mut pointed = [Pointed { field, bytes }];
        self.sys.ioctl(self.file, uapi::GET_INFO, bytes_of_mut(&mut question), &mut pointed)?;
        Ok(answer)
    }
}

pub(super) fn check(sys: &dyn Sys, path: &str, diagnosis: &mut Diagnosis) {
    let file = match sys.open(path) {
        Ok(file) => file,
        Err(error) => {
            diagnosis.findings.push(refused(path, error));
            return;
        }
    };
    let open = Open { sys, file };
    diagnosis.findings.push(Finding::ok("access", format!("{path} can be opened")));
    if !interface(&open, path, diagnosis) {
        return;
    }
    firmware(&open, diagnosis);
    array(&open, diagnosis);
    clocks(&open, diagnosis);
    resources(&open, diagnosis);
    contexts(&open, diagnosis);
}

/// Explains why the device cannot be opened.
fn refused(path: &str, error: Errno) -> Finding {
    let remedy = match error {
        Errno::EACCES | Errno::EPERM => {
            "add yourself to the group that owns it, mostly render (`sudo usermod -aG render \
             $USER`), and log in again"
        }
        Errno::EINVAL | Errno::ENODEV | Errno::EOPNOTSUPP => {
            "the driver could not bind the process's memory: switch the IOMMU on in the firmware's \
             settings, and remove iommu=off and iommu=pt from the kernel's parameters"
        }
        Errno::EBUSY => "another program keeps it; end that one",
        _ => "`sudo dmesg | grep -i amdxdna` says more; after a hang restart the machine",
    };
    Finding::fail("access", format!("{path} cannot be opened: {error}"), remedy)
}

/// Asks for the version of the driver's interface; returns whether trine knows it.
fn interface(open: &Open<'_>, path: &str, diagnosis: &mut Diagnosis) -> bool {
    const CHECK: &str = "interface";
    const OTHER_NODE: &str =
        "in a container, pass the NPU's node on under its own name (`--device`); else restart udev";
    let version = match DriverVersion::ask(open.sys, open.file) {
        Ok(version) => version,
        Err(error) => {
            let found = format!("{path} does not tell its driver: {error}");
            diagnosis.findings.push(Finding::fail(CHECK, found, OTHER_NODE));
            return false;
        }
    };
    let DriverVersion { name, major, minor, is_model } = version;
    if name != DRM_DRIVER {
        let found = format!("{path} leads to the driver {name:?}, expected {DRM_DRIVER:?}");
        diagnosis.findings.push(Finding::fail(CHECK, found, OTHER_NODE));
        return false;
    }
    diagnosis.facts.interface = Some([major, minor]);
    diagnosis.facts.is_model = is_model;
    let shown = if is_model { abi::MODEL_DESCRIPTION } else { DRM_DRIVER };
    let found = format!("{shown}, {major}.{minor}");
    diagnosis.findings.push(if major == 0 {
        Finding::ok(CHECK, found)
    } else {
        Finding::fail(CHECK, format!("{found}, expected {DRM_DRIVER} 0"), "update trine")
    });
    major == 0
}

fn firmware(open: &Open<'_>, diagnosis: &mut Diagnosis) {
    const CHECK: &str = "firmware";
    diagnosis.findings.push(match open.ask::<FirmwareVersion>(uapi::INFO_FIRMWARE_VERSION) {
        Ok(version) => {
            diagnosis.facts.firmware = Some(version);
            let FirmwareVersion { major, minor, patch, build } = version;
            Finding::ok(
                CHECK,
                format!(
                    "{major}.{minor}.{patch}.{build}; the driver takes protocol 5.7 or later \
                     (newer ones 5.1) and does not tell which it is; trine sends what 5.7 has; \
                     newer drivers send each command as a chain of one, which 5.8 is reported to \
                     drop at times"
                ),
            )
        }
        Err(error) => Finding::warn(
            CHECK,
            format!("the driver does not tell its version: {error}"),
            "update Linux and linux-firmware",
        ),
    });
}

fn array(open: &Open<'_>, diagnosis: &mut Diagnosis) {
    const CHECK: &str = "array";
    diagnosis.facts.array_version = open.ask(uapi::INFO_AIE_VERSION).ok();
    diagnosis.findings.push(match open.ask::<ArrayMetadata>(uapi::INFO_AIE_METADATA) {
        Ok(array) => {
            diagnosis.facts.array = Some(array);
            let ArrayMetadata { cols, rows, core, mem, shim, .. } = array;
            let (core, mem, shim) = (core.row_count, mem.row_count, shim.row_count);
            let found = format!(
                "{cols} columns, {rows} rows: {core} of cores, {mem} of memory, {shim} of shims"
            );
            // Published streams for XDNA1 are for six rows, four of them with cores.
            if (rows, core, mem, shim) == (6, 4, 1, 1) {
                Finding::ok(CHECK, found)
            } else {
                let remedy = "please report it: streams are made for 6 rows, 4 of them of cores";
                Finding::warn(CHECK, found, remedy)
            }
        }
        Err(error) => Finding::ok(CHECK, format!("the driver does not tell: {error}")),
    });
}

fn clocks(open: &Open<'_>, diagnosis: &mut Diagnosis) {
    diagnosis.findings.push(match open.ask::<abi::Clocks>(uapi::INFO_CLOCK) {
        Ok(clocks) => {
            let (mp_npu, h) = (clocks.mp_npu.freq_mhz, clocks.h.freq_mhz);
            diagnosis.facts.clocks_mhz = Some([mp_npu, h]);
            let found = format!("array {h} MHz, firmware's processor {mp_npu} MHz at this time");
            Finding::ok("clocks", found)
        }
        Err(error) => Finding::ok("clocks", format!("the driver does not tell: {error}")),
    });
}

fn resources(open: &Open<'_>, diagnosis: &mut Diagnosis) {
    let answer = open.ask::<abi::ResourceInfo>(uapi::INFO_RESOURCE);
    diagnosis.facts.resources = answer.ok();
    diagnosis.findings.push(match answer {
        Ok(info) => {
            let (clock, tasks) = (info.npu_clk_max, info.npu_task_max);
            let found = format!("clock up to {clock}, {tasks} tasks, as the driver counts them");
            Finding::ok("resources", found)
        }
        Err(error) => Finding::ok(
            "resources",
            format!("the driver does not tell, as before its version 0.4: {error}"),
        ),
    });
}

fn contexts(open: &Open<'_>, diagnosis: &mut Diagnosis) {
    const CHECK: &str = "contexts";
    const ONE: &str = "where it was tried, a second one was refused (EINVAL)";
    let contexts = match driver::contexts(open.sys, open.file) {
        Ok(contexts) => contexts,
        Err(error) => {
            diagnosis.findings.push(Finding::fail(
                CHECK,
                format!("the driver does not list them: {error}"),
                "update Linux: without the list no work on the NPU can be confirmed",
            ));
            return;
        }
    };
    let processes: Vec<i64> = contexts.iter().map(|context| context.pid).collect();
    diagnosis.facts.contexts = Some(processes.len());
    diagnosis.findings.push(if processes.is_empty() {
        Finding::ok(CHECK, format!("none is in use; there may be one at a time: {ONE}"))
    } else {
        let list: Vec<String> = processes.iter().map(i64::to_string).collect();
        Finding::warn(
            CHECK,
            format!("in use by process {}: another may be refused; {ONE}", list.join(", ")),
            "end that program before you use the NPU with trine",
        )
    });
}
