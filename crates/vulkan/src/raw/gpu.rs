//! An opened device.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use ash::vk;
use trine_backend::share;

use super::instance::{Instance, Listed};
use super::module::Loops;
use super::pipeline::{self, Kernel, KernelKey, PipelineCache, Pipelines, Use};
use crate::capabilities::{Capabilities, DeviceKind, MissingFeatures};
use crate::error::{During, GpuError};
use crate::shaders::Shader;

/// Extensions that are enabled if the device has them.
const OPTIONAL: [&std::ffi::CStr; 5] = [
    c"VK_KHR_cooperative_matrix",
    c"VK_KHR_pipeline_executable_properties",
    c"VK_EXT_memory_budget",
    c"VK_KHR_external_memory_fd",
    c"VK_EXT_external_memory_dma_buf",
];

/// Most threads that compile kernels at the same time.
const COMPILING: usize = 16;

/// See [`Gpu::submission_seconds`].
const SUBMISSION_SECONDS: f64 = 0.1;

/// Which device to open.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum DeviceSelector {
    /// The most capable GPU; no software device.
    #[default]
    Best,
    /// The most capable device, software included.
    Any,
    /// By its index in the list of devices.
    Index(usize),
    /// By a part of its name, or by its UUID; letter case does not matter.
    Named(String),
}

/// A device in the list, not opened.
#[derive(Debug, Clone)]
pub struct Description {
    /// What it can do.
    pub capabilities: Capabilities,
    /// What it lacks of the features that trine needs.
    pub missing: MissingFeatures,
}

/// An opened device.
pub struct Gpu {
    /// What the driver reports.
    capabilities: Capabilities,
    /// The capabilities with what running kernels have shown, once they have run.
    probed: OnceLock<Capabilities>,
    physical: vk::PhysicalDevice,
    pub(super) device: ash::Device,
    pub(super) queue: Mutex<vk::Queue>,
    pub(super) family: u32,
    pub(super) memory: vk::PhysicalDeviceMemoryProperties,
    pipelines: Mutex<Pipelines>,
    /// What is to fail on purpose; see [`Gpu::inject`].
    injected: Mutex<Vec<Injected>>,
    /// See [`Gpu::submit_each_step`].
    short_submissions: AtomicBool,
    /// See [`Gpu::pose`].
    poses: AtomicBool,
    instance: Arc<Instance>,
}

impl Drop for Gpu {
    fn drop(&mut self) {
        let pipelines = self.pipelines.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: everything made from the device holds an Arc of it and is gone.
        unsafe {
            pipelines.destroy(&self.device);
            self.device.destroy_device(None);
        }
    }
}

/// Returns the devices of this machine, in the driver's order.
///
/// # Errors
/// [`GpuError::NoLoader`] if there is no Vulkan, or the error of a failed call.
pub fn devices() -> Result<Vec<Description>, GpuError> {
    let listed = Instance::load()?.devices()?;
    let describe =
        |item: Listed| Description { capabilities: item.capabilities, missing: item.missing };
    Ok(listed.into_iter().map(describe).collect())
}

/// Returns the device that [`DeviceSelector::Best`] opens, without opening it; `None` if there is
/// no GPU that has all that trine needs.
pub fn best_device() -> Option<Description> {
    let found = choose(Instance::load().ok()?.devices().ok()?, &DeviceSelector::Best).ok()?;
    let found = Description { capabilities: found.capabilities, missing: found.missing };
    found.missing.0.is_empty().then_some(found)
}

impl Gpu {
    /// Opens a device. Its capabilities are so far only what the driver reports. `cache` is the
    /// file that compiled pipelines are kept in; `loops` counts on a software device only.
    ///
    /// # Errors
    /// [`GpuError`] if there is no such device, it lacks a feature, or the driver fails.
    pub(crate) fn open(
        choice: &DeviceSelector,
        cache: Option<PipelineCache>,
        loops: Loops,
    ) -> Result<Arc<Gpu>, GpuError> {
        let instance = Instance::load()?;
        let chosen = choose(instance.devices()?, choice)?;
        if !chosen.missing.0.is_empty() {
            return Err(GpuError::Missing {
                device: chosen.capabilities.name,
                what: chosen.missing.0.join(", "),
            });
        }
        let family = compute_family(&instance, &chosen)?;
        let device = create_device(&instance, &chosen, family)?;
        // SAFETY: the device was made with one queue of this family.
        let queue = unsafe { device.get_device_queue(family, 0) };
        // SAFETY: the device is the instance's.
        let memory = unsafe { instance.raw.get_physical_device_memory_properties(chosen.raw) };
        let is_software = chosen.capabilities.kind == DeviceKind::Processor;
        let loops = if is_software { loops } else { Loops::Unrolled };
        let pipelines = match Pipelines::new(&device, &chosen.capabilities, cache, loops) {
            Ok(pipelines) => pipelines,
            Err(error) => {
                // SAFETY: nothing was made from the device.
                unsafe { device.destroy_device(None) };
                return Err(error);
            }
        };
        Ok(Arc::new(Gpu {
            capabilities: chosen.capabilities,
            probed: OnceLock::new(),
            physical: chosen.raw,
            device,
            queue: Mutex::new(queue),
            family,
            memory,
            pipelines: Mutex::new(pipelines),
            injected: Mutex::default(),
            short_submissions: AtomicBool::new(false),
            poses: AtomicBool::new(false),
            instance,
        }))
    }

    /// Returns what the device can do.
    pub fn capabilities(&self) -> &Capabilities {
        self.probed.get().unwrap_or(&self.capabilities)
    }

    #[cfg(unix)]
    pub(super) fn instance(&self) -> &ash::Instance {
        &self.instance.raw
    }

    #[cfg(unix)]
    pub(super) fn physical(&self) -> vk::PhysicalDevice {
        self.physical
    }

    /// Adds what kernels that ran on the device have shown: whether its matrices are laid out as
    /// the fragment kernel needs it. Only the first call has an effect.
    pub(crate) fn set_fragments(&self, fragments: bool) {
        let capabilities = Capabilities { fragments, ..self.capabilities.clone() };
        self.probed.get_or_init(|| capabilities);
    }

    /// Makes the device say that it has other capabilities, for tests of what Programs ask of a
    /// device that is not there. Each kernel gets a stand-in, which must not run. Has no effect on
    /// a device that was asked for what running kernels show.
    pub(crate) fn pose(&self, capabilities: Capabilities) {
        self.probed.get_or_init(|| capabilities);
        self.poses.store(true, Ordering::Relaxed);
    }

    /// Returns a compiled kernel, which is kept for later calls. Threads compile at the same time;
    /// if two ask for the same new kernel, both may compile it.
    ///
    /// # Errors
    /// If the driver refuses it.
    pub fn kernel(&self, key: &KernelKey) -> Result<Kernel, GpuError> {
        self.compiled(key, Use::Now)
    }

    /// Compiles kernels that launches will probably ask for, on several threads. Leaves out what
    /// the driver refuses: the launch that asks for it gets the error. Begins no more of them once
    /// `is_over` is set. Returns how many there are then.
    pub(crate) fn compile_ahead(&self, keys: &[KernelKey], is_over: &AtomicBool) -> usize {
        let count = AtomicUsize::new(0);
        share("compiling", COMPILING, keys.iter(), |key| {
            if is_over.load(Ordering::Relaxed) {
                return;
            }
            match self.compiled(key, Use::Later) {
                Ok(_) => _ = count.fetch_add(1, Ordering::Relaxed),
                Err(error) => tracing::debug!(%error, "a kernel was not compiled ahead"),
            }
        });
        count.into_inner()
    }

    fn compiled(&self, key: &KernelKey, when: Use) -> Result<Kernel, GpuError> {
        let stand_in = self.poses.load(Ordering::Relaxed).then(stand_in);
        let code = stand_in.as_ref().unwrap_or(key);
        let source = match self.pipelines().find(&self.device, key, code.shader, when)? {
            Ok(kernel) => return Ok(kernel),
            Err(source) => source,
        };
        let begin = Instant::now();
        let flags = vk::PipelineCreateFlags::empty();
        let pipeline = pipeline::compile(&self.device, &self.capabilities, code, source, flags)?;
        let seconds = begin.elapsed().as_secs_f64();
        tracing::trace!(shader = code.shader.0, constants = ?code.constants, seconds,
            "a kernel was compiled");
        Ok(self.pipelines().keep(&self.device, key, pipeline, when))
    }

    fn pipelines(&self) -> MutexGuard<'_, Pipelines> {
        self.pipelines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the keys of the kernels that launches have asked for so far, in no particular order.
    pub fn kernels(&self) -> Vec<KernelKey> {
        self.pipelines().keys().cloned().collect()
    }

    /// Returns the keys of the kernels that were compiled only when a launch asked for them.
    pub fn late_kernels(&self) -> Vec<KernelKey> {
        self.pipelines().late().cloned().collect()
    }

    /// Returns statistics and machine code of a kernel, as far as the driver reports them.
    ///
    /// # Errors
    /// If the driver refuses it.
    pub fn report(&self, key: &KernelKey) -> Result<pipeline::Report, GpuError> {
        pipeline::report(&self.instance.raw, &self.device, &self.capabilities, key)
    }

    /// Writes the compiled pipelines to their file, if it lacks any of them.
    pub fn save_pipelines(&self) {
        self.pipelines().save(&self.device);
    }

    /// Returns for each heap the bytes in use by this and other processes, and the bytes that can
    /// be had; `None` if the driver does not report them.
    pub fn budgets(&self) -> Option<Vec<(u64, u64)>> {
        if !self.capabilities.has("VK_EXT_memory_budget") {
            return None;
        }
        let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        let mut memory = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
        // SAFETY: the chain lives until the call returns.
        unsafe {
            self.instance.raw.get_physical_device_memory_properties2(self.physical, &mut memory);
        }
        let heaps = memory.memory_properties.memory_heap_count as usize;
        Some((0..heaps).map(|at| (budget.heap_usage[at], budget.heap_budget[at])).collect())
    }

    /// Makes each step of a Plan a submission of its own in everything recorded from now on, as
    /// happens with large models on slow devices: for tests with small models.
    pub fn submit_each_step(&self) {
        self.short_submissions.store(true, Ordering::Relaxed);
    }

    /// Returns the seconds that a submission may be predicted to take: drivers reset a device that
    /// works on a single one for a few seconds.
    pub(crate) fn submission_seconds(&self) -> f64 {
        if self.short_submissions.load(Ordering::Relaxed) { 0.0 } else { SUBMISSION_SECONDS }
    }

    /// Makes something fail as the device would, replacing an earlier failure at the same point:
    /// for tests of what happens then.
    pub fn inject(&self, failure: Injected) {
        let point = std::mem::discriminant(&failure.point());
        let mut injected = self.injected();
        injected.retain(|other| std::mem::discriminant(&other.point()) != point);
        injected.push(failure);
    }

    /// Returns whether a failure on purpose has not happened yet.
    pub fn has_injected(&self) -> bool {
        !self.injected().is_empty()
    }

    /// Withdraws the failures on purpose that have not happened yet. Returns whether there were
    /// any.
    pub fn withdraw(&self) -> bool {
        !std::mem::take(&mut *self.injected()).is_empty()
    }

    /// Takes the failure on purpose that is due at a point, if there is one.
    pub(crate) fn injected_at(&self, point: FailurePoint) -> Option<Injected> {
        let mut injected = self.injected();
        let due = injected.iter().position(|failure| failure.point() == point)?;
        Some(injected.swap_remove(due))
    }

    fn injected(&self) -> MutexGuard<'_, Vec<Injected>> {
        self.injected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns a kernel that every device can compile.
fn stand_in() -> KernelKey {
    KernelKey { shader: Shader("elements"), constants: vec![64, 0], subgroup: None }
}

/// A failure on purpose, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Injected {
    /// The device is lost while it works on the next submission.
    Loss,
    /// The next submission does not end in time.
    Timeout,
    /// The driver refuses the second submission of the next recording, whose first one runs, or the
    /// only one.
    Refusal,
    /// The next allocation finds no memory.
    Memory,
    /// A workgroup that others wait for in the next chain of dispatches never runs.
    Stall,
    /// In the next chain that is recorded with one, the launch of the Plan's step of this number
    /// which hands values on never runs: those that look for them see none. The first step of a
    /// Plan, which the probes of chains have too, has no such launch.
    Silence(usize),
    /// Not a failure: the next run that can be stopped is stopped before the submission of this
    /// number, counted from 0.
    Stop(usize),
}

impl Injected {
    fn point(self) -> FailurePoint {
        match self {
            Self::Loss | Self::Timeout | Self::Refusal => FailurePoint::Submission,
            Self::Memory => FailurePoint::Allocation,
            Self::Stall => FailurePoint::Chain,
            Self::Silence(step) => FailurePoint::Giver(step),
            Self::Stop(next) => FailurePoint::Before(next),
        }
    }
}

/// The point at which a failure on purpose is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailurePoint {
    Submission,
    Allocation,
    Chain,
    /// Where a launch of the Plan's step of this number that hands values on is chained.
    Giver(usize),
    /// Before the submission of this number, in a run that can be stopped.
    Before(usize),
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Gpu").field("name", &self.capabilities.name).finish_non_exhaustive()
    }
}

/// Returns how good a kind of device is: higher is better.
fn rank(kind: DeviceKind) -> u32 {
    match kind {
        DeviceKind::Discrete => 4,
        DeviceKind::Integrated => 3,
        DeviceKind::Virtual => 2,
        DeviceKind::Other => 1,
        DeviceKind::Processor => 0,
    }
}

fn choose(devices: Vec<Listed>, choice: &DeviceSelector) -> Result<Listed, GpuError> {
    let names: Vec<String> = devices
        .iter()
        .enumerate()
        .map(|(index, item)| format!("vulkan:{index} is {}", item.capabilities.name))
        .collect();
    let found = if names.is_empty() { "there is none".to_owned() } else { names.join(", ") };
    let best = |software: bool| {
        let fits = |item: &&Listed| software || item.capabilities.kind != DeviceKind::Processor;
        let score = |item: &&Listed| {
            let local = item.capabilities.heaps.iter().filter(|heap| heap.device_local);
            let bytes: u64 = local.map(|heap| heap.bytes).sum();
            (item.missing.0.is_empty(), rank(item.capabilities.kind), bytes)
        };
        devices.iter().filter(fits).max_by_key(score).cloned()
    };
    let (chosen, wanted) = match choice {
        DeviceSelector::Best => {
            (best(false), "that is a GPU (a software one is taken by its number only)".to_owned())
        }
        DeviceSelector::Any => (best(true), "at all".to_owned()),
        DeviceSelector::Index(index) => (devices.get(*index).cloned(), format!("number {index}")),
        DeviceSelector::Named(name) => {
            let wanted = name.to_lowercase();
            let fits = |item: &&Listed| {
                item.capabilities.name.to_lowercase().contains(&wanted)
                    || item.capabilities.uuid_text() == wanted
            };
            (devices.iter().find(fits).cloned(), format!("named {name:?}"))
        }
    };
    chosen.ok_or(GpuError::NoDevice { wanted, found })
}

/// Returns the queue family for compute: one without graphics, if there is one.
fn compute_family(instance: &Instance, chosen: &Listed) -> Result<u32, GpuError> {
    // SAFETY: the device is the instance's.
    let families = unsafe { instance.raw.get_physical_device_queue_family_properties(chosen.raw) };
    let with = |avoid: vk::QueueFlags| {
        families.iter().position(|family| {
            let flags = family.queue_flags;
            flags.contains(vk::QueueFlags::COMPUTE) && !flags.intersects(avoid)
        })
    };
    let family = with(vk::QueueFlags::GRAPHICS).or_else(|| with(vk::QueueFlags::empty()));
    let device = || chosen.capabilities.name.clone();
    let missing = || GpuError::Missing { device: device(), what: "a compute queue".to_owned() };
    family.map(|index| index as u32).ok_or_else(missing)
}

fn create_device(
    instance: &Instance,
    chosen: &Listed,
    family: u32,
) -> Result<ash::Device, GpuError> {
    let has = |name: &std::ffi::CStr| name.to_str().is_ok_and(|name| chosen.capabilities.has(name));
    let names: Vec<*const std::ffi::c_char> =
        OPTIONAL.iter().filter(|name| has(name)).map(|name| name.as_ptr()).collect();
    let priorities = [1.0];
    let queues = [vk::DeviceQueueCreateInfo::default()
        .queue_family_index(family)
        .queue_priorities(&priorities)];
    let basic = vk::PhysicalDeviceFeatures::default().shader_int64(true).shader_int16(true);
    let mut vulkan11 =
        vk::PhysicalDeviceVulkan11Features::default().storage_buffer16_bit_access(true);
    let mut vulkan12 = vk::PhysicalDeviceVulkan12Features::default()
        .storage_buffer8_bit_access(true)
        .shader_int8(true)
        .shader_float16(true)
        .buffer_device_address(true)
        .scalar_block_layout(true)
        .vulkan_memory_model(true)
        .vulkan_memory_model_device_scope(true)
        .host_query_reset(true)
        .timeline_semaphore(true);
    let mut vulkan13 = vk::PhysicalDeviceVulkan13Features::default()
        .shader_integer_dot_product(true)
        .subgroup_size_control(true)
        .compute_full_subgroups(true)
        .synchronization2(true)
        .maintenance4(true);
    let mut cooperative =
        vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default().cooperative_matrix(true);
    let mut executable = vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default()
        .pipeline_executable_info(true);
    let mut info = vk::DeviceCreateInfo::default()
        .queue_create_infos(&queues)
        .enabled_extension_names(&names)
        .enabled_features(&basic)
        .push_next(&mut vulkan11)
        .push_next(&mut vulkan12)
        .push_next(&mut vulkan13);
    if has(c"VK_KHR_cooperative_matrix") {
        info = info.push_next(&mut cooperative);
    }
    if has(c"VK_KHR_pipeline_executable_properties") {
        info = info.push_next(&mut executable);
    }
    // SAFETY: the structures live until the call returns.
    unsafe { instance.raw.create_device(chosen.raw, &info, None) }.during("vkCreateDevice")
}
