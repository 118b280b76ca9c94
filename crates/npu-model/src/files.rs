//! What a model's machine shows in `/sys`, `/proc`, `/dev` and `/lib/firmware`.

use std::collections::BTreeMap;

use super::PATH;
use super::machine::Machine;

/// The oldest protocol of firmware that the driver takes, after 5.
const PROTOCOL_MINOR_MIN: u32 = 7;
/// Where the device is on its bus.
const PCI: &str = "/sys/bus/pci/devices/0000:c4:00.1";

impl Machine {
    /// Returns the files that concern the NPU, by path. A folder is there if a file is in it.
    #[must_use]
    pub fn files(&self) -> BTreeMap<String, String> {
        let mut files = BTreeMap::new();
        let mut add = |path: String, text: &str| files.insert(path, format!("{text}\n"));
        add("/proc/sys/kernel/osrelease".to_owned(), self.kernel);
        add("/proc/cpuinfo".to_owned(), "model name\t: AMD Ryzen of a model");
        let lockable = self.lockable_bytes;
        let limits = format!("Max locked memory         {lockable}  {lockable}  bytes");
        add("/proc/self/limits".to_owned(), &limits);
        let capabilities = if self.is_root { "000001ffffffffff" } else { "0000000000000000" };
        let status = format!("Pid:\t{}\nCapEff:\t{capabilities}", self.process);
        add("/proc/self/status".to_owned(), &status);
        // Another device: not every one is an NPU.
        add("/sys/bus/pci/devices/0000:00:00.0/vendor".to_owned(), "0x1022");
        add("/sys/bus/pci/devices/0000:00:00.0/device".to_owned(), "0x14e8");
        add("/sys/bus/pci/drivers/pcieport/uevent".to_owned(), "");
        if self.has_firmware {
            add("/lib/firmware/amdnpu/1502_00/npu.sbin.zst".to_owned(), "");
        }
        if self.has_iommu {
            add("/sys/class/iommu/ivhd0/uevent".to_owned(), "");
        }
        if self.is_loaded {
            add(format!("/sys/bus/pci/drivers/{}/bind", self.driver), "");
        }
        if !self.is_there {
            return files;
        }
        add(format!("{PCI}/vendor"), self.vendor);
        add(format!("{PCI}/device"), self.device);
        add(format!("{PCI}/revision"), "0x00");
        if self.has_iommu {
            add(format!("{PCI}/iommu_group/type"), "DMA-FQ");
        }
        let is_bound =
            self.is_loaded && self.has_firmware && self.protocol_minor >= PROTOCOL_MINOR_MIN;
        if !is_bound {
            return files;
        }
        add(format!("/sys/bus/pci/drivers/{}/0000:c4:00.1/vendor", self.driver), self.vendor);
        add(format!("{PCI}/accel/accel0/dev"), "261:0");
        add("/sys/class/accel/accel0/device/vendor".to_owned(), self.vendor);
        add("/sys/class/accel/accel0/device/device".to_owned(), self.device);
        if self.has_node {
            add(PATH.to_owned(), "");
        }
        files
    }
}
