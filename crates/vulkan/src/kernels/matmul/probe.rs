//! Which elements of cooperative matrices an invocation holds: `shaders/fragment_probe.comp`.
//!
//! `VK_KHR_cooperative_matrix` leaves that to the implementation, and the fragment kernel writes
//! factors component by component. So a device is asked once, when it is opened, and the kernel is
//! used if the answer is [`Held::known`].

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};

use crate::capabilities::{Capabilities, Element};
use crate::dispatch::{Dispatch, Link, Push, Span};
use crate::error::GpuError;
use crate::raw::commands::Recording;
use crate::raw::copies::Copy;
use crate::raw::gpu::Gpu;
use crate::raw::memory::MemoryUse;
use crate::raw::pipeline::KernelKey;
use crate::shaders::Shader;

/// A product that a subgroup does in one instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Instruction {
    /// Rows of weights.
    pub m: u32,
    /// Rows of activations.
    pub n: u32,
    /// Columns.
    pub k: u32,
}

/// The instruction that the fragment kernel is written for.
pub(crate) const INSTRUCTION: Instruction = Instruction { m: 16, n: 8, k: 16 };
/// The size of its subgroups.
pub(crate) const LANES: u32 = 32;
/// Components of a matrix that an invocation can hold in the probe; those that it does not have are
/// -1.
const COMPONENTS: usize = 64;

/// What each invocation of a subgroup holds of the three matrices of a product, as row * columns +
/// column, in the order of its components.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    /// The left factor, (m, k).
    pub(crate) left: Vec<Vec<u32>>,
    /// The right factor, (k, n).
    pub(crate) right: Vec<Vec<u32>>,
    /// The sum, (m, n).
    pub(crate) sum: Vec<Vec<u32>>,
}

impl Held {
    /// Returns what the fragment kernel relies on for [`INSTRUCTION`]: invocations hold what they
    /// hold for `mma.m16n8k16` with 16-bit floats in NVIDIA's Parallel Thread Execution ISA
    /// ("Matrix Fragments for mma.m16n8k16 with floating point type"), in the order of the rows.
    pub(crate) fn known() -> Self {
        let Instruction { n, k, .. } = INSTRUCTION;
        let lanes = |count: u32, place: fn(u32, u32, u32) -> (u32, u32), columns: u32| {
            let lane = |lane: u32| {
                let element = |component: u32| {
                    let (row, column) = place(lane / 4, lane % 4, component);
                    row * columns + column
                };
                (0..count).map(element).collect()
            };
            (0..LANES).map(lane).collect()
        };
        Self {
            left: lanes(8, |r, c, i| (r + i / 4 * 8, 2 * c + i % 2 + i / 2 % 2 * 8), k),
            right: lanes(4, |r, c, i| (2 * c + i % 2 + i / 2 * 8, r), n),
            sum: lanes(4, |r, c, i| (r + i / 2 * 8, 2 * c + i % 2), n),
        }
    }
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Args {
    result: u64,
    components: u32,
    padding: u32,
}

fn key(lanes: u32, Instruction { m, n, k }: Instruction) -> KernelKey {
    let constants = vec![lanes, m, n, k];
    KernelKey { shader: Shader("fragment_probe"), constants, subgroup: Some(lanes) }
}

/// Returns what the kernel of [`is_known`] is compiled from, if it runs on the device.
pub(crate) fn key_for(capabilities: &Capabilities) -> Option<KernelKey> {
    has_instruction(capabilities).then(|| key(capabilities.subgroup, INSTRUCTION))
}

/// Asks a device what its invocations hold for a product of at most 16 x 16 x 16.
///
/// # Errors
/// If the kernel cannot be compiled or does not run.
pub(crate) fn ask(gpu: &Arc<Gpu>, instruction: Instruction) -> Result<Held, GpuError> {
    let capabilities = gpu.capabilities();
    let lanes = capabilities.subgroup;
    let bytes = 4 * 3 * u64::from(lanes) * COMPONENTS as u64;
    let result = gpu.allocate(bytes, MemoryUse::Upload, "a probe")?;
    let unset = vec![-1.0_f32; bytes as usize / 4];
    result.write(0, bytemuck::cast_slice(&unset));
    let host = gpu.allocate(bytes, MemoryUse::Readback, "a probe's result")?;
    let args = Args { result: result.address(), components: COMPONENTS as u32, padding: 0 };
    let dispatch = Dispatch {
        label: "what invocations hold of matrices".to_owned(),
        step: 0,
        kernel: gpu.kernel(&key(lanes, instruction))?,
        push: Push::of(&args),
        groups: [1, 1, 1],
        reads: Vec::new(),
        writes: vec![Span { address: result.address(), bytes }],
        link: Link::Outside,
        hands: None,
    };
    let copy = Copy { from: result, to: host.clone(), bytes };
    Recording::record(gpu, &[dispatch], &[copy], &[])?.run("a probe")?;
    let values: &[f32] = host.values(0, bytes as usize / 4);
    let matrix = |index: usize| {
        let size = lanes as usize * COMPONENTS;
        let lane =
            |held: &[f32]| held.iter().take_while(|&&at| at >= 0.0).map(|&at| at as u32).collect();
        values[index * size..][..size].chunks(COMPONENTS).map(lane).collect()
    };
    Ok(Held { left: matrix(0), right: matrix(1), sum: matrix(2) })
}

/// Returns whether a device can be asked about [`INSTRUCTION`] at all.
fn has_instruction(capabilities: &Capabilities) -> bool {
    capabilities.subgroup == LANES
        && capabilities.cooperative.iter().any(|shape| {
            (shape.m, shape.n, shape.k) == (INSTRUCTION.m, INSTRUCTION.n, INSTRUCTION.k)
                && (shape.input, shape.output) == (Element::F16, Element::F32)
        })
}

/// Returns whether invocations of a device hold what the fragment kernel relies on. A device that
/// fails the probe uses the other kernels; if it is broken, it fails again where that matters.
pub(crate) fn is_known(gpu: &Arc<Gpu>) -> bool {
    if !has_instruction(gpu.capabilities()) {
        return false;
    }
    match ask(gpu, INSTRUCTION) {
        Ok(held) => held == Held::known(),
        Err(error) => {
            tracing::warn!(%error, "the layout of the device's matrices could not be read");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::gpu;

    fn is_permutation(held: &[Vec<u32>], count: u32) -> bool {
        let mut all: Vec<u32> = held.iter().flatten().copied().collect();
        all.sort_unstable();
        all.into_iter().eq(0..count)
    }

    #[test]
    fn the_known_layout_holds_each_element_once() {
        let held = Held::known();
        assert!(is_permutation(&held.left, 256));
        assert!(is_permutation(&held.right, 128));
        assert!(is_permutation(&held.sum, 128));
        assert_eq!(held.left[5], [18, 19, 26, 27, 146, 147, 154, 155]);
        assert_eq!(held.right[5], [17, 25, 81, 89]);
        assert_eq!(held.sum[5], [10, 11, 74, 75]);
    }

    #[test]
    fn a_device_tells_what_its_invocations_hold() {
        let gpu = gpu();
        let shapes = gpu.capabilities().cooperative.iter().filter(|shape| {
            (shape.input, shape.output) == (Element::F16, Element::F32)
                && [shape.m, shape.n, shape.k].iter().all(|size| (8..=16).contains(size))
        });
        let mut count = 0;
        for shape in shapes {
            let instruction = Instruction { m: shape.m, n: shape.n, k: shape.k };
            let held = ask(&gpu, instruction).unwrap();
            assert!(
                is_permutation(&held.left, instruction.m * instruction.k),
                "{instruction:?} {held:?}"
            );
            assert!(
                is_permutation(&held.right, instruction.k * instruction.n),
                "{instruction:?} {held:?}"
            );
            assert!(
                is_permutation(&held.sum, instruction.m * instruction.n),
                "{instruction:?} {held:?}"
            );
            if instruction == INSTRUCTION && gpu.capabilities().subgroup == LANES {
                assert_eq!(held == Held::known(), gpu.capabilities().fragments);
                eprintln!("lanes 1 and 5 of {instruction:?} hold");
                for lane in [1, 5] {
                    eprintln!("{:?} {:?} {:?}", held.left[lane], held.right[lane], held.sum[lane]);
                }
            }
            count += 1;
        }
        if count == 0 {
            println!("{} has no matrix units: their test is skipped", gpu.capabilities().name);
        }
    }
}
