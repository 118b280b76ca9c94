//! The Vulkan instance and the devices that it lists.

use std::ffi::{CStr, c_char};
use std::sync::{Arc, Mutex, PoisonError};

use ash::{khr, vk};

use crate::capabilities::{
    Capabilities, CooperativeShape, DeviceKind, Element, MemoryHeap, MissingFeatures,
};
use crate::error::{During, GpuError};

/// The Vulkan version that trine asks for.
const API: u32 = vk::API_VERSION_1_3;

/// The instance of this process, kept until the process ends. The loader unmaps drivers with the
/// last instance, and a thread that ends after that runs code that a driver has registered for its
/// end. With NVIDIA's driver, a server that had dropped its device properly crashed because of
/// this. The lock is held while it is made: a second thread would make another one, and have it
/// destroyed while the first opens a device.
static KEPT: Mutex<Option<Arc<Instance>>> = Mutex::new(None);

/// A loaded driver interface.
pub(crate) struct Instance {
    /// Keeps the loader's library mapped.
    _entry: ash::Entry,
    pub(crate) raw: ash::Instance,
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: everything made from the instance holds an Arc of it and is gone.
        unsafe { self.raw.destroy_instance(None) };
    }
}

/// A physical device, not opened.
#[derive(Clone)]
pub(crate) struct Listed {
    pub(crate) raw: vk::PhysicalDevice,
    pub(crate) capabilities: Capabilities,
    pub(crate) missing: MissingFeatures,
}

impl Instance {
    /// Returns the instance of this process.
    ///
    /// # Errors
    /// If there is no loader or no driver.
    pub(crate) fn load() -> Result<Arc<Self>, GpuError> {
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = &*kept {
            return Ok(Arc::clone(kept));
        }
        // SAFETY: the library is the system's Vulkan loader; its initialisers are trusted like any
        // library's.
        let entry = unsafe { ash::Entry::load() }
            .map_err(|error| GpuError::NoLoader { reason: error.to_string() })?;
        let application = vk::ApplicationInfo::default()
            .application_name(c"trine")
            .engine_name(c"trine")
            .api_version(API);
        let info = vk::InstanceCreateInfo::default().application_info(&application);
        // SAFETY: the structures live until the call returns.
        let raw = unsafe { entry.create_instance(&info, None) }.map_err(|result| match result {
            vk::Result::ERROR_INCOMPATIBLE_DRIVER => {
                GpuError::NoLoader { reason: "no driver supports Vulkan 1.3".to_owned() }
            }
            result => GpuError::of("vkCreateInstance", result),
        })?;
        Ok(Arc::clone(kept.insert(Arc::new(Self { _entry: entry, raw }))))
    }

    /// Returns all devices, in the driver's order.
    pub(crate) fn devices(&self) -> Result<Vec<Listed>, GpuError> {
        // SAFETY: the instance is alive.
        let devices = unsafe { self.raw.enumerate_physical_devices() }
            .during("vkEnumeratePhysicalDevices")?;
        devices.into_iter().map(|device| self.describe(device)).collect()
    }

    fn describe(&self, device: vk::PhysicalDevice) -> Result<Listed, GpuError> {
        let extensions = self.extensions(device)?;
        let mut vulkan11 = vk::PhysicalDeviceVulkan11Properties::default();
        let mut vulkan12 = vk::PhysicalDeviceVulkan12Properties::default();
        let mut vulkan13 = vk::PhysicalDeviceVulkan13Properties::default();
        // SAFETY: the device is the instance's.
        let version = unsafe { self.raw.get_physical_device_properties(device) }.api_version;
        let mut properties = vk::PhysicalDeviceProperties2::default()
            .push_next(&mut vulkan11)
            .push_next(&mut vulkan12);
        if version >= API {
            properties = properties.push_next(&mut vulkan13);
        }
        // SAFETY: the chain lives until the call returns.
        unsafe { self.raw.get_physical_device_properties2(device, &mut properties) };
        let basic = properties.properties;
        let cooperative = if extensions.iter().any(|name| name == "VK_KHR_cooperative_matrix") {
            self.cooperative_shapes(device)?
        } else {
            Vec::new()
        };
        let limits = basic.limits;
        let capabilities = Capabilities {
            name: text(&basic.device_name),
            driver: format!("{} {}", text(&vulkan12.driver_name), text(&vulkan12.driver_info)),
            kind: DeviceKind::of(basic.device_type),
            vendor: basic.vendor_id,
            device: basic.device_id,
            uuid: vulkan11.device_uuid,
            driver_version: basic.driver_version,
            pipeline_cache_uuid: basic.pipeline_cache_uuid,
            api: (vk::api_version_major(version), vk::api_version_minor(version)),
            subgroup: vulkan11.subgroup_size,
            subgroup_range: (vulkan13.min_subgroup_size, vulkan13.max_subgroup_size),
            shared_bytes: limits.max_compute_shared_memory_size,
            invocations: limits.max_compute_work_group_invocations,
            groups: limits.max_compute_work_group_count,
            allocation_bytes: self.allocation_limit(device),
            timestamp_ns: f64::from(limits.timestamp_period),
            integer_dot_accelerated: vulkan13.integer_dot_product4x8_bit_packed_signed_accelerated
                != 0,
            cooperative,
            fragments: false,
            cores: self.cores(device, &extensions),
            heaps: self.heaps(device),
            extensions,
        };
        let missing = self.missing(device, version);
        Ok(Listed { raw: device, capabilities, missing })
    }

    fn extensions(&self, device: vk::PhysicalDevice) -> Result<Vec<String>, GpuError> {
        // SAFETY: the device is the instance's.
        let found = unsafe { self.raw.enumerate_device_extension_properties(device) }
            .during("vkEnumerateDeviceExtensionProperties")?;
        let mut names: Vec<String> = found.iter().map(|item| text(&item.extension_name)).collect();
        names.sort_unstable();
        Ok(names)
    }

    fn allocation_limit(&self, device: vk::PhysicalDevice) -> u64 {
        let mut maintenance = vk::PhysicalDeviceMaintenance3Properties::default();
        let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut maintenance);
        // SAFETY: the chain lives until the call returns.
        unsafe { self.raw.get_physical_device_properties2(device, &mut properties) };
        maintenance.max_memory_allocation_size
    }

    /// Returns the number of compute units, as the vendors' extensions report it.
    fn cores(&self, device: vk::PhysicalDevice, extensions: &[String]) -> Option<u32> {
        let has = |name: &str| extensions.iter().any(|extension| extension == name);
        let mut nvidia = vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV::default();
        let mut amd = vk::PhysicalDeviceShaderCorePropertiesAMD::default();
        let mut properties = vk::PhysicalDeviceProperties2::default();
        let (is_nvidia, is_amd) =
            (has("VK_NV_shader_sm_builtins"), has("VK_AMD_shader_core_properties"));
        if is_nvidia {
            properties = properties.push_next(&mut nvidia);
        }
        if is_amd {
            properties = properties.push_next(&mut amd);
        }
        // SAFETY: the chain lives until the call returns.
        unsafe { self.raw.get_physical_device_properties2(device, &mut properties) };
        let units = amd.shader_engine_count
            * amd.shader_arrays_per_engine_count
            * amd.compute_units_per_shader_array;
        match (is_nvidia, is_amd) {
            (true, _) => Some(nvidia.shader_sm_count).filter(|&count| count > 0),
            (_, true) => Some(units).filter(|&count| count > 0),
            _ => None,
        }
    }

    fn heaps(&self, device: vk::PhysicalDevice) -> Vec<MemoryHeap> {
        // SAFETY: the device is the instance's.
        let memory = unsafe { self.raw.get_physical_device_memory_properties(device) };
        let types = memory.memory_types_as_slice();
        let heap = |(index, heap): (usize, &vk::MemoryHeap)| MemoryHeap {
            bytes: heap.size,
            device_local: heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL),
            host_visible: types.iter().any(|kind| {
                kind.heap_index as usize == index
                    && kind.property_flags.contains(vk::MemoryPropertyFlags::HOST_VISIBLE)
            }),
        };
        memory.memory_heaps_as_slice().iter().enumerate().map(heap).collect()
    }

    fn cooperative_shapes(
        &self,
        device: vk::PhysicalDevice,
    ) -> Result<Vec<CooperativeShape>, GpuError> {
        let loader = khr::cooperative_matrix::Instance::new(&self._entry, &self.raw);
        // SAFETY: the device has the extension.
        let found = unsafe { loader.get_physical_device_cooperative_matrix_properties(device) }
            .during("vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR")?;
        let shape = |item: &vk::CooperativeMatrixPropertiesKHR<'_>| {
            let same = item.a_type == item.b_type && item.c_type == item.result_type;
            let subgroup = item.scope == vk::ScopeKHR::SUBGROUP;
            (same && subgroup && item.saturating_accumulation == 0).then_some(())?;
            Some(CooperativeShape {
                m: item.m_size,
                n: item.n_size,
                k: item.k_size,
                input: Element::of(item.a_type)?,
                output: Element::of(item.c_type)?,
            })
        };
        Ok(found.iter().filter_map(shape).collect())
    }

    /// Returns which of the features that every kernel may use the device lacks.
    fn missing(&self, device: vk::PhysicalDevice, version: u32) -> MissingFeatures {
        if version < API {
            return MissingFeatures(vec!["Vulkan 1.3"]);
        }
        let mut vulkan11 = vk::PhysicalDeviceVulkan11Features::default();
        let mut vulkan12 = vk::PhysicalDeviceVulkan12Features::default();
        let mut vulkan13 = vk::PhysicalDeviceVulkan13Features::default();
        let mut features = vk::PhysicalDeviceFeatures2::default()
            .push_next(&mut vulkan11)
            .push_next(&mut vulkan12)
            .push_next(&mut vulkan13);
        // SAFETY: the chain lives until the call returns.
        unsafe { self.raw.get_physical_device_features2(device, &mut features) };
        let basic = features.features;
        let wanted = [
            ("64-bit integers", basic.shader_int64),
            ("16-bit integers", basic.shader_int16),
            ("16-bit storage", vulkan11.storage_buffer16_bit_access),
            ("8-bit storage", vulkan12.storage_buffer8_bit_access),
            ("8-bit integers", vulkan12.shader_int8),
            ("f16 arithmetic", vulkan12.shader_float16),
            ("buffer device addresses", vulkan12.buffer_device_address),
            ("scalar block layout", vulkan12.scalar_block_layout),
            ("the Vulkan memory model", vulkan12.vulkan_memory_model),
            ("its device scope", vulkan12.vulkan_memory_model_device_scope),
            ("host query reset", vulkan12.host_query_reset),
            ("timeline semaphores", vulkan12.timeline_semaphore),
            ("integer dot products", vulkan13.shader_integer_dot_product),
            ("subgroup size control", vulkan13.subgroup_size_control),
            ("full subgroups", vulkan13.compute_full_subgroups),
            ("synchronization2", vulkan13.synchronization2),
            ("maintenance4", vulkan13.maintenance4),
        ];
        let lacking = |(name, there): (&'static str, u32)| (there == 0).then_some(name);
        MissingFeatures(wanted.into_iter().filter_map(lacking).collect())
    }
}

/// Returns the text of a fixed-size C string, up to its terminator or the end of the array.
fn text(raw: &[c_char]) -> String {
    let bytes: &[u8] = bytemuck::cast_slice(raw);
    match CStr::from_bytes_until_nul(bytes) {
        Ok(text) => text.to_string_lossy().into_owned(),
        Err(_) => String::from_utf8_lossy(bytes).into_owned(),
    }
}
