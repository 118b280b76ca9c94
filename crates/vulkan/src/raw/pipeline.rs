//! Compute pipelines and the file that keeps them compiled.

use std::collections::HashMap;
use std::ffi::CStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use ash::{khr, vk};
use sha2::{Digest, Sha256};

use super::module::{self, Loops};
use crate::capabilities::Capabilities;
use crate::error::{During, GpuError};
use crate::files;
use crate::shaders::Shader;

/// Bytes of push constants that every Vulkan device accepts.
pub const PUSH_BYTES: usize = 128;

/// What a pipeline is compiled from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KernelKey {
    /// The shader.
    pub shader: Shader,
    /// Values of the specialisation constants 0, 1, 2 and so on; constant 0 is the size of a
    /// workgroup.
    pub constants: Vec<u32>,
    /// Invocations of a subgroup, if the kernel does not take what the driver prefers.
    pub subgroup: Option<u32>,
}

/// A compiled kernel. It lives as long as its [`super::gpu::Gpu`].
#[derive(Debug, Clone, Copy)]
pub struct Kernel {
    pub(super) pipeline: vk::Pipeline,
    pub(super) layout: vk::PipelineLayout,
}

impl Kernel {
    /// Returns no kernel, for dispatches that never run.
    pub(crate) fn null() -> Self {
        Self { pipeline: vk::Pipeline::null(), layout: vk::PipelineLayout::null() }
    }
}

/// The folder of compiled pipelines and of measurements of them.
#[derive(Debug, Clone)]
pub struct PipelineCache {
    folder: PathBuf,
}

/// First bytes of the file, which identify it and the version of its layout (magic, digest of the
/// rest, Vulkan's data).
const MAGIC: &[u8; 16] = b"trine pipelines1";
/// Bytes of the digest.
const DIGEST: usize = 32;
/// Larger files were not written by trine.
const CACHE_BYTES_MAX: u64 = 256 << 20;

impl PipelineCache {
    /// Keeps pipelines and measurements in a folder, a file of each kind for each device and
    /// driver.
    pub fn in_folder(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// Returns the file for a device, its driver and these shaders.
    fn path(&self, capabilities: &Capabilities) -> PathBuf {
        self.file(&fingerprint(capabilities), "pipelines")
    }

    /// Returns the file of a kind for a device of this [`fingerprint`].
    pub(crate) fn file(&self, fingerprint: &str, kind: &str) -> PathBuf {
        self.folder.join(format!("{fingerprint}.{kind}"))
    }
}

/// Returns 32 hexadecimal digits that change with the device, its driver and the shaders.
pub(crate) fn fingerprint(capabilities: &Capabilities) -> String {
    let mut hash = Sha256::new();
    hash.update(capabilities.uuid);
    hash.update(capabilities.pipeline_cache_uuid);
    hash.update(capabilities.driver_version.to_le_bytes());
    hash.update(capabilities.driver.as_bytes());
    for shader in Shader::all() {
        hash.update(shader.0.as_bytes());
        hash.update(shader.code());
    }
    let digest = hash.finalize();
    digest[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns Vulkan's data in a file's bytes, if they are complete.
fn checked(bytes: &[u8]) -> Option<&[u8]> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (digest, data) = rest.split_at_checked(DIGEST)?;
    (Sha256::digest(data).as_slice() == digest).then_some(data)
}

/// Returns a file's bytes for Vulkan's data.
fn sealed(data: &[u8]) -> Vec<u8> {
    [MAGIC.as_slice(), Sha256::digest(data).as_slice(), data].concat()
}

/// Reads the file. One that is not complete counts as absent.
fn read(path: &Path) -> Vec<u8> {
    let reason = match files::read_at_most(path, CACHE_BYTES_MAX) {
        Ok(bytes) => match checked(&bytes) {
            Some(data) => return data.to_vec(),
            None => "it is damaged".to_owned(),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => return Vec::new(),
        Err(error) => error.to_string(),
    };
    tracing::warn!(path = %path.display(), reason,
        "the file of compiled pipelines is not used and is replaced");
    Vec::new()
}

/// Kernels by their keys.
type KernelTable = HashMap<KernelKey, Compiled>;

/// A kernel in the table.
struct Compiled {
    kernel: Kernel,
    /// When it was needed first.
    first: Use,
    /// Whether a launch has asked for it.
    is_asked_for: bool,
}

/// When a kernel is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// A launch asks for it.
    Now,
    /// Launches will probably ask for it.
    Later,
}

/// The pipelines of a device.
pub(super) struct Pipelines {
    cache: vk::PipelineCache,
    layout: vk::PipelineLayout,
    path: Option<PathBuf>,
    loops: Loops,
    modules: HashMap<Shader, vk::ShaderModule>,
    table: KernelTable,
    /// Kernels compiled since the file was read or written.
    unsaved: usize,
}

impl Pipelines {
    pub(super) fn new(
        device: &ash::Device,
        capabilities: &Capabilities,
        cache: Option<PipelineCache>,
        loops: Loops,
    ) -> Result<Self, GpuError> {
        let path = cache.map(|cache| cache.path(capabilities));
        let data = path.as_deref().map(read).unwrap_or_default();
        let info = vk::PipelineCacheCreateInfo::default().initial_data(&data);
        // SAFETY: the structures live until the call returns; the driver checks the data's header,
        // the digest the rest.
        let cache =
            unsafe { device.create_pipeline_cache(&info, None) }.during("vkCreatePipelineCache")?;
        let ranges = [vk::PushConstantRange {
            stage_flags: vk::ShaderStageFlags::COMPUTE,
            offset: 0,
            size: PUSH_BYTES as u32,
        }];
        let info = vk::PipelineLayoutCreateInfo::default().push_constant_ranges(&ranges);
        // SAFETY: the structures live until the call returns.
        let layout = unsafe { device.create_pipeline_layout(&info, None) }.map_err(|result| {
            // SAFETY: nothing uses the cache yet.
            unsafe { device.destroy_pipeline_cache(cache, None) };
            GpuError::of("vkCreatePipelineLayout", result)
        })?;
        Ok(Self {
            cache,
            layout,
            path,
            loops,
            modules: Default::default(),
            table: KernelTable::new(),
            unsaved: 0,
        })
    }

    /// Returns a kernel that was compiled already, or else what it is to be compiled from: the code
    /// of a shader.
    ///
    /// `when`: whether a launch asks for it, or it is only compiled ahead.
    pub(super) fn find(
        &mut self,
        device: &ash::Device,
        key: &KernelKey,
        shader: Shader,
        when: Use,
    ) -> Result<Result<Kernel, Source>, GpuError> {
        if let Some(compiled) = self.table.get_mut(key) {
            compiled.is_asked_for |= when == Use::Now;
            return Ok(Ok(compiled.kernel));
        }
        let module = match self.modules.get(&shader) {
            Some(module) => *module,
            None => {
                let module = module::create(device, shader, self.loops)?;
                self.modules.insert(shader, module);
                module
            }
        };
        Ok(Err(Source { module, layout: self.layout, cache: self.cache }))
    }

    /// Keeps what [`compile`] made of a source of this value, and returns the kernel to use: if
    /// another thread was quicker, that thread's.
    pub(super) fn keep(
        &mut self,
        device: &ash::Device,
        key: &KernelKey,
        pipeline: vk::Pipeline,
        when: Use,
    ) -> Kernel {
        let is_asked_for = when == Use::Now;
        if let Some(compiled) = self.table.get_mut(key) {
            // SAFETY: nobody has seen the pipeline.
            unsafe { device.destroy_pipeline(pipeline, None) };
            compiled.is_asked_for |= is_asked_for;
            return compiled.kernel;
        }
        let kernel = Kernel { pipeline, layout: self.layout };
        self.table.insert(key.clone(), Compiled { kernel, first: when, is_asked_for });
        self.unsaved += 1;
        kernel
    }

    /// Returns the keys of the kernels that were not compiled ahead.
    pub(super) fn late(&self) -> impl Iterator<Item = &KernelKey> {
        self.table.iter().filter(|(_, compiled)| compiled.first == Use::Now).map(|(key, _)| key)
    }

    /// Returns the keys of the kernels that were asked for.
    pub(super) fn keys(&self) -> impl Iterator<Item = &KernelKey> {
        self.table.iter().filter(|(_, compiled)| compiled.is_asked_for).map(|(key, _)| key)
    }

    pub(super) fn save(&mut self, device: &ash::Device) {
        let Some(path) = self.path.as_deref().filter(|_| self.unsaved > 0) else { return };
        // SAFETY: the cache is alive, and this value is borrowed exclusively.
        let result = unsafe { device.get_pipeline_cache_data(self.cache) };
        let result = result
            .map_err(std::io::Error::other)
            .and_then(|data| files::replace(path, &sealed(&data)));
        match result {
            Ok(()) => self.unsaved = 0,
            Err(error) => {
                let remedy = match error.kind() {
                    ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free some disk space",
                    _ => "remove what stands at this path",
                };
                tracing::warn!(path = %path.display(), %error, "compiled pipelines could not be \
                    kept, and the next start compiles them again; {remedy}, or set XDG_CACHE_HOME \
                    to a folder that can be written");
            }
        }
    }

    /// # Safety
    /// No submission may be using a kernel any more.
    pub(super) unsafe fn destroy(&mut self, device: &ash::Device) {
        // SAFETY: the caller's duty; all handles are this value's own.
        unsafe {
            for Compiled { kernel, .. } in self.table.values() {
                device.destroy_pipeline(kernel.pipeline, None);
            }
            self.modules.values().for_each(|module| device.destroy_shader_module(*module, None));
            device.destroy_pipeline_layout(self.layout, None);
            device.destroy_pipeline_cache(self.cache, None);
        }
    }
}

/// What the pipelines of a shader are compiled from, apart from their constants. The handles are
/// those of a [`Pipelines`], which has to outlive their use.
#[derive(Clone, Copy)]
pub(super) struct Source {
    module: vk::ShaderModule,
    layout: vk::PipelineLayout,
    cache: vk::PipelineCache,
}

/// Compiles a kernel. Several threads may do so at the same time with one cache: the driver
/// synchronises its use.
pub(super) fn compile(
    device: &ash::Device,
    capabilities: &Capabilities,
    key: &KernelKey,
    source: Source,
    flags: vk::PipelineCreateFlags,
) -> Result<vk::Pipeline, GpuError> {
    let Source { module, layout, cache } = source;
    let entries: Vec<vk::SpecializationMapEntry> = (0..key.constants.len() as u32)
        .map(|id| vk::SpecializationMapEntry { constant_id: id, offset: 4 * id, size: 4 })
        .collect();
    let specialization = vk::SpecializationInfo::default()
        .map_entries(&entries)
        .data(bytemuck::cast_slice(&key.constants));
    let mut size = vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default();
    let mut stage = vk::PipelineShaderStageCreateInfo::default()
        .stage(vk::ShaderStageFlags::COMPUTE)
        .module(module)
        .name(c"main")
        .specialization_info(&specialization);
    let (least, most) = capabilities.subgroup_range;
    // If there is only one size, asking for it gains nothing and limits the size of a workgroup.
    let is_choice = |wanted: &u32| least < most && (least..=most).contains(wanted);
    if let Some(wanted) = key.subgroup.filter(is_choice) {
        size = size.required_subgroup_size(wanted);
        stage = stage.push_next(&mut size);
    }
    let group = key.constants.first().copied().unwrap_or(0);
    if group.is_multiple_of(most.max(1)) {
        stage.flags |= vk::PipelineShaderStageCreateFlags::REQUIRE_FULL_SUBGROUPS;
    }
    let info = [vk::ComputePipelineCreateInfo::default().flags(flags).stage(stage).layout(layout)];
    // SAFETY: the structures live until the call returns.
    let made = unsafe { device.create_compute_pipelines(cache, &info, None) };
    made.map(|pipelines| pipelines[0]).map_err(|(_, result)| {
        GpuError::of(&format!("compiling {} {:?}", key.shader.0, key.constants), result)
    })
}

/// What a driver reports of a compiled kernel.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Invocations of a subgroup.
    pub subgroup: u32,
    /// (name, value) as the driver names them.
    pub statistics: Vec<(String, f64)>,
    /// Machine code as text, if the driver reports it.
    pub assembly: String,
}

/// Compiles a kernel for its report.
pub(super) fn report(
    instance: &ash::Instance,
    device: &ash::Device,
    capabilities: &Capabilities,
    key: &KernelKey,
) -> Result<Report, GpuError> {
    if !capabilities.has("VK_KHR_pipeline_executable_properties") {
        return Err(GpuError::Missing {
            device: capabilities.name.clone(),
            what: "VK_KHR_pipeline_executable_properties".to_owned(),
        });
    }
    let pipelines = Pipelines::new(device, capabilities, None, Loops::Unrolled)?;
    let mut owner = Owner { device, pipelines, pipeline: vk::Pipeline::null() };
    let module = module::create(device, key.shader, Loops::Unrolled)?;
    owner.pipelines.modules.insert(key.shader, module);
    let flags = vk::PipelineCreateFlags::CAPTURE_STATISTICS_KHR
        | vk::PipelineCreateFlags::CAPTURE_INTERNAL_REPRESENTATIONS_KHR;
    let source = Source { module, layout: owner.pipelines.layout, cache: owner.pipelines.cache };
    owner.pipeline = compile(device, capabilities, key, source, flags)?;
    let loader = khr::pipeline_executable_properties::Device::new(instance, device);
    let info = vk::PipelineInfoKHR::default().pipeline(owner.pipeline);
    // SAFETY: the pipeline is alive.
    let executables = unsafe { loader.get_pipeline_executable_properties(&info) }
        .during("vkGetPipelineExecutablePropertiesKHR")?;
    let subgroup = executables.first().map_or(0, |executable| executable.subgroup_size);
    let info = vk::PipelineExecutableInfoKHR::default().pipeline(owner.pipeline);
    // SAFETY: the pipeline was made with the flags that these calls need.
    let statistics = unsafe { loader.get_pipeline_executable_statistics(&info) }
        .during("vkGetPipelineExecutableStatisticsKHR")?;
    let statistics = statistics.iter().map(|item| (name(&item.name), number(item))).collect();
    // SAFETY: as above; the call fills in the sizes.
    let texts = unsafe { loader.get_pipeline_executable_internal_representations(&info) }
        .during("vkGetPipelineExecutableInternalRepresentationsKHR")?;
    let assembly = texts.iter().map(|item| name(&item.name)).collect::<Vec<_>>().join("\n");
    let assembly = last_text(&loader, owner.pipeline, &texts).unwrap_or(assembly);
    Ok(Report { subgroup, statistics, assembly })
}

/// Returns the last representation, which is the machine code.
fn last_text(
    loader: &khr::pipeline_executable_properties::Device,
    pipeline: vk::Pipeline,
    sized: &[vk::PipelineExecutableInternalRepresentationKHR<'_>],
) -> Option<String> {
    let mut memory: Vec<Vec<u8>> = sized.iter().map(|item| vec![0; item.data_size]).collect();
    let mut items: Vec<vk::PipelineExecutableInternalRepresentationKHR<'_>> = memory
        .iter_mut()
        .map(|bytes| vk::PipelineExecutableInternalRepresentationKHR {
            data_size: bytes.len(),
            p_data: bytes.as_mut_ptr().cast(),
            ..Default::default()
        })
        .collect();
    let info = vk::PipelineExecutableInfoKHR::default().pipeline(pipeline);
    let mut count = items.len() as u32;
    // SAFETY: count is the number of items, each with memory of its size.
    let result = unsafe {
        (loader.fp().get_pipeline_executable_internal_representations_khr)(
            loader.device(),
            &info,
            &mut count,
            items.as_mut_ptr(),
        )
    };
    drop(items);
    (result == vk::Result::SUCCESS).then_some(())?;
    let bytes = memory.pop()?;
    CStr::from_bytes_until_nul(&bytes).ok().map(|text| text.to_string_lossy().into_owned())
}

fn name(raw: &[std::ffi::c_char]) -> String {
    let bytes: &[u8] = bytemuck::cast_slice(raw);
    CStr::from_bytes_until_nul(bytes)
        .map(|text| text.to_string_lossy().into_owned())
        .unwrap_or_default()
}

fn number(item: &vk::PipelineExecutableStatisticKHR<'_>) -> f64 {
    // SAFETY: the format says which member of the union is set.
    unsafe {
        match item.format {
            vk::PipelineExecutableStatisticFormatKHR::BOOL32 => f64::from(item.value.b32),
            vk::PipelineExecutableStatisticFormatKHR::INT64 => item.value.i64 as f64,
            vk::PipelineExecutableStatisticFormatKHR::UINT64 => item.value.u64 as f64,
            _ => item.value.f64,
        }
    }
}

/// Destroys what a report was made from.
struct Owner<'a> {
    device: &'a ash::Device,
    pipelines: Pipelines,
    pipeline: vk::Pipeline,
}

impl Drop for Owner<'_> {
    fn drop(&mut self) {
        // SAFETY: nothing was submitted.
        unsafe {
            self.device.destroy_pipeline(self.pipeline, None);
            self.pipelines.destroy(self.device);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_files_count_as_absent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/x.pipelines");
        assert_eq!(read(&path), Vec::<u8>::new());
        files::replace(&path, &sealed(b"data")).unwrap();
        assert_eq!(read(&path), b"data");
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            std::fs::write(&path, &bytes).unwrap();
            assert_eq!(read(&path), Vec::<u8>::new(), "byte {at}");
            std::fs::write(&path, &whole[..at]).unwrap();
            assert_eq!(read(&path), Vec::<u8>::new(), "cut at {at}");
        }
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }
}
