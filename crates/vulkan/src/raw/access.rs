//! What barriers stand between: stages of a device, and how they access memory.

use ash::vk;

/// Stages, and how they access memory.
pub(super) type Access = (vk::PipelineStageFlags2, vk::AccessFlags2);

pub(super) const COMPUTE: Access = (
    vk::PipelineStageFlags2::COMPUTE_SHADER,
    vk::AccessFlags2::from_raw(
        vk::AccessFlags2::SHADER_STORAGE_READ.as_raw()
            | vk::AccessFlags2::SHADER_STORAGE_WRITE.as_raw(),
    ),
);
pub(super) const TRANSFER: Access = (
    vk::PipelineStageFlags2::COPY,
    vk::AccessFlags2::from_raw(
        vk::AccessFlags2::TRANSFER_READ.as_raw() | vk::AccessFlags2::TRANSFER_WRITE.as_raw(),
    ),
);
/// All ways in which a recording writes memory.
pub(super) const ANYTHING_WRITTEN: Access = (
    vk::PipelineStageFlags2::from_raw(
        vk::PipelineStageFlags2::COMPUTE_SHADER.as_raw()
            | vk::PipelineStageFlags2::ALL_TRANSFER.as_raw(),
    ),
    vk::AccessFlags2::from_raw(
        vk::AccessFlags2::SHADER_STORAGE_READ.as_raw()
            | vk::AccessFlags2::SHADER_STORAGE_WRITE.as_raw()
            | vk::AccessFlags2::TRANSFER_WRITE.as_raw(),
    ),
);
pub(super) const EVERYTHING: Access = (
    vk::PipelineStageFlags2::ALL_COMMANDS,
    vk::AccessFlags2::from_raw(
        vk::AccessFlags2::MEMORY_READ.as_raw() | vk::AccessFlags2::MEMORY_WRITE.as_raw(),
    ),
);
pub(super) const HOST: Access = (
    vk::PipelineStageFlags2::from_raw(
        vk::PipelineStageFlags2::HOST.as_raw() | vk::PipelineStageFlags2::ALL_COMMANDS.as_raw(),
    ),
    vk::AccessFlags2::from_raw(
        vk::AccessFlags2::HOST_READ.as_raw()
            | vk::AccessFlags2::MEMORY_READ.as_raw()
            | vk::AccessFlags2::MEMORY_WRITE.as_raw(),
    ),
);
