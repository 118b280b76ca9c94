//! What a Vulkan device can do.

use ash::vk;

pub mod presets;
pub mod rates;

/// What kind of device it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that shares the processor's memory.
    Integrated,
    /// A GPU lent to a virtual machine.
    Virtual,
    /// Vulkan in software.
    Processor,
    /// Anything else.
    Other,
}

impl DeviceKind {
    pub(crate) fn of(kind: vk::PhysicalDeviceType) -> Self {
        match kind {
            vk::PhysicalDeviceType::DISCRETE_GPU => DeviceKind::Discrete,
            vk::PhysicalDeviceType::INTEGRATED_GPU => DeviceKind::Integrated,
            vk::PhysicalDeviceType::VIRTUAL_GPU => DeviceKind::Virtual,
            vk::PhysicalDeviceType::CPU => DeviceKind::Processor,
            _ => DeviceKind::Other,
        }
    }

    /// Returns whether the processor and the device share one memory. Others have caches and a
    /// memory of their own, as far as is known.
    pub fn is_unified(self) -> bool {
        matches!(self, DeviceKind::Integrated | DeviceKind::Processor)
    }

    /// A name for people to read.
    pub fn name(self) -> &'static str {
        match self {
            DeviceKind::Discrete => "discrete",
            DeviceKind::Integrated => "integrated",
            DeviceKind::Virtual => "virtual",
            DeviceKind::Processor => "software",
            DeviceKind::Other => "other",
        }
    }
}

/// Element type of a cooperative matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// 16-bit float.
    F16,
    /// 32-bit float.
    F32,
    /// Signed byte.
    S8,
    /// Signed 32-bit integer.
    S32,
}

impl Element {
    pub(crate) fn of(kind: vk::ComponentTypeKHR) -> Option<Self> {
        match kind {
            vk::ComponentTypeKHR::FLOAT16 => Some(Element::F16),
            vk::ComponentTypeKHR::FLOAT32 => Some(Element::F32),
            vk::ComponentTypeKHR::SINT8 => Some(Element::S8),
            vk::ComponentTypeKHR::SINT32 => Some(Element::S32),
            _ => None,
        }
    }
}

/// A product that a subgroup does in one instruction: (m x k) times (k x n) onto (m x n).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CooperativeShape {
    /// Rows of the left matrix.
    pub m: u32,
    /// Columns of the right matrix.
    pub n: u32,
    /// The dimension that is summed over.
    pub k: u32,
    /// Elements of the factors.
    pub input: Element,
    /// Elements of the sum.
    pub output: Element,
}

/// A heap of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryHeap {
    /// Size in bytes.
    pub bytes: u64,
    /// Whether it is memory of the device itself.
    pub device_local: bool,
    /// Whether the processor can map some of it.
    pub host_visible: bool,
}

/// Features that trine needs and the device lacks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MissingFeatures(pub Vec<&'static str>);

/// What a device is and can do.
#[derive(Debug, Clone)]
pub struct Capabilities {
    /// Name that the driver gives it.
    pub name: String,
    /// Name and version of the driver.
    pub driver: String,
    /// What kind of device it is.
    pub kind: DeviceKind,
    /// PCI vendor.
    pub vendor: u32,
    /// PCI device.
    pub device: u32,
    /// Identifies the device across processes and drivers.
    pub uuid: [u8; 16],
    /// Version of the driver, in its own encoding.
    pub driver_version: u32,
    /// Changes when compiled pipelines are no longer compatible.
    pub pipeline_cache_uuid: [u8; 16],
    /// Major and minor version of Vulkan.
    pub api: (u32, u32),
    /// Invocations of a subgroup, unless a pipeline asks for another number.
    pub subgroup: u32,
    /// The least and the most invocations of a subgroup that a pipeline can ask for.
    pub subgroup_range: (u32, u32),
    /// Bytes of shared memory of a workgroup.
    pub shared_bytes: u32,
    /// Most invocations of a workgroup.
    pub invocations: u32,
    /// Most workgroups in each dimension.
    pub groups: [u32; 3],
    /// Largest single allocation in bytes.
    pub allocation_bytes: u64,
    /// Nanoseconds of one tick of a timestamp.
    pub timestamp_ns: f64,
    /// Whether dot products of four packed bytes are one instruction.
    pub integer_dot_accelerated: bool,
    /// Matrix products in one instruction, at subgroup scope.
    pub cooperative: Vec<CooperativeShape>,
    /// Whether the invocations of a subgroup hold the elements of matrices in the layout that
    /// `kernels/matmul/probe.rs` knows. Opening a device finds this out; in a list of devices it is
    /// false.
    pub fragments: bool,
    /// Compute units or multiprocessors, if the driver reports them.
    pub cores: Option<u32>,
    /// Memory heaps.
    pub heaps: Vec<MemoryHeap>,
    /// Names of the device's extensions, sorted.
    pub extensions: Vec<String>,
}

impl Capabilities {
    /// Returns what distinguishes the device from others: its name and its kind.
    pub fn label(&self) -> String {
        format!("{} (vulkan, {})", self.name, self.kind.name())
    }

    /// Returns whether the device has an extension.
    pub fn has(&self, extension: &str) -> bool {
        self.extensions.binary_search_by(|name| name.as_str().cmp(extension)).is_ok()
    }

    /// Returns the number of compute units or multiprocessors; if the driver does not report it, a
    /// usual number for the kind of device.
    pub fn cores_or_guess(&self) -> u32 {
        self.cores.unwrap_or(match self.kind {
            DeviceKind::Discrete | DeviceKind::Virtual => 80,
            DeviceKind::Integrated | DeviceKind::Other => 12,
            DeviceKind::Processor => 4,
        })
    }

    /// Returns whether the processor and the device share one memory.
    pub fn is_unified(&self) -> bool {
        self.kind.is_unified()
    }

    /// Returns the speed that the device reaches at least, for predictions that must not be too
    /// short. Measured devices are two to ten times as fast.
    pub fn cautious_speed(&self) -> Speed {
        let (bytes, operations) = match self.kind {
            DeviceKind::Discrete | DeviceKind::Virtual => (200e9, 10e12),
            DeviceKind::Integrated | DeviceKind::Other => (30e9, 1e12),
            DeviceKind::Processor => (5e9, 10e9),
        };
        Speed { bytes, operations }
    }

    /// Returns the UUID in its usual notation.
    pub fn uuid_text(&self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let id = &self.uuid;
        [&id[..4], &id[4..6], &id[6..8], &id[8..10], &id[10..]].map(hex).join("-")
    }
}

/// How fast a device is, per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    /// Bytes read from memory.
    pub bytes: f64,
    /// Additions and multiplications.
    pub operations: f64,
}
