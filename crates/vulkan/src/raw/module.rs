//! Shader modules, from SPIR-V as it was compiled or with its loops kept.

use ash::vk;

use crate::error::{During, GpuError};
use crate::shaders::Shader;

/// What a driver is asked to do with the loops that a shader wants unrolled. Results are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Loops {
    /// To unroll them, which keeps arrays in registers.
    #[default]
    Unrolled,
    /// To keep them, so that Mesa's software drivers compile large kernels several times as fast
    /// (`docs/benchmarks/build.md`). They also end a kernel's loops after 65,535 iterations in all,
    /// which kept loops reach sooner: for tests, whose rows and contexts are short.
    Kept,
}

/// Words before the first instruction of a module (SPIR-V specification, "Physical Layout of a
/// SPIR-V Module and Instruction").
const HEADER: usize = 5;
/// `OpLoopMerge` ("Control-Flow Instructions"): its words are the opcode with the length, the merge
/// block, the continue target, the loop control, and what the loop control asks for.
const LOOP_MERGE: u32 = 246;
const CONTROL: usize = 3;
/// Bits of the loop control ("Loop Control").
const UNROLL: u32 = 1;
const DONT_UNROLL: u32 = 2;

/// Makes the module of a shader.
pub(super) fn create(
    device: &ash::Device,
    shader: Shader,
    loops: Loops,
) -> Result<vk::ShaderModule, GpuError> {
    let mut words = words(shader);
    if loops == Loops::Kept {
        keep_loops(&mut words);
    }
    let info = vk::ShaderModuleCreateInfo::default().code(&words);
    // SAFETY: the code is valid SPIR-V: CI runs spirv-val over it, and loops are only marked.
    unsafe { device.create_shader_module(&info, None) }.during("vkCreateShaderModule")
}

fn words(shader: Shader) -> Vec<u32> {
    let bytes = shader.code().chunks_exact(4);
    bytes.map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])).collect()
}

/// Marks the loops that are to be unrolled as loops that are not.
fn keep_loops(words: &mut [u32]) {
    let mut rest = words.get_mut(HEADER..).unwrap_or_default();
    while let Some(&first) = rest.first() {
        let length = ((first >> 16) as usize).clamp(1, rest.len());
        let (instruction, next) = rest.split_at_mut(length);
        if first & 0xFFFF == LOOP_MERGE
            && let Some(control) = instruction.get_mut(CONTROL)
            && *control & UNROLL != 0
        {
            *control = *control & !UNROLL | DONT_UNROLL;
        }
        rest = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_loops_to_unroll_are_marked() {
        let instruction = |opcode: u32, words: &[u32]| {
            [&[((words.len() as u32 + 1) << 16) | opcode], words].concat()
        };
        let module = |control: u32| {
            let other = instruction(LOOP_MERGE + 1, &[7, 8, UNROLL]);
            let head = [0x0723_0203, 0x1_0600, 0, 9, 0].to_vec();
            [head, other, instruction(LOOP_MERGE, &[7, 8, control])].concat()
        };
        for (control, expected) in
            [(UNROLL, DONT_UNROLL), (UNROLL | 4, DONT_UNROLL | 4), (0, 0), (DONT_UNROLL, 2)]
        {
            let mut words = module(control);
            keep_loops(&mut words);
            assert_eq!(words, module(expected), "{control}");
        }
    }

    #[test]
    fn what_is_cut_short_does_not_panic() {
        for length in 0..9 {
            let mut words = vec![u32::MAX; length];
            keep_loops(&mut words);
            let mut words = vec![0; length];
            keep_loops(&mut words);
        }
    }

    #[test]
    fn loops_of_every_shader_can_be_kept() {
        let mut marked = 0;
        for shader in Shader::all() {
            let before = words(shader);
            let mut after = before.clone();
            keep_loops(&mut after);
            let changed = before.iter().zip(&after).filter(|(before, after)| before != after);
            for (before, after) in changed {
                assert_eq!(*after, before & !UNROLL | DONT_UNROLL, "{}", shader.0);
                // Peeling and unrolling in part go with unrolling only.
                assert!(*after < 1 << 7, "{}: {after:#x}", shader.0);
                marked += 1;
            }
            let mut again = after.clone();
            keep_loops(&mut again);
            assert_eq!(again, after, "{}", shader.0);
        }
        assert!(marked > 100, "{marked} loops");
    }
}
