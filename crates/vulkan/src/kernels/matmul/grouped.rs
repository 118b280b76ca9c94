//! Products of entries, sorted by expert, with the matrices of their experts: the kernels for many
//! rows of activations, with a row of workgroups for each group of entries of one expert.
//!
//! A group has the places of one tile of activations, so a matrix is decoded once for it, and the
//! matrices of an expert with more entries once for each of its groups, whose reads follow one
//! another. For `n` entries of `e` experts of m x k weights:
//!
//! - bytes: the matrices of the chosen experts, from memory once;
//! - operations: 2 m k for each place that is multiplied. Those are `n`, and half a tile more for
//!   each chosen expert: the last group of an expert is seldom full.
//!
//! Rows of experts may end within a tile, as the 704 of Gemma 4 26B-A4B do; columns are padded to
//! whole groups as everywhere.

use bytemuck::{Pod, Zeroable};

use super::direct::DirectShape;
use super::launch::MatmulLaunch;
use super::shape::{MatmulShape, MatrixShape};
use crate::capabilities::Capabilities;
use crate::compiler::Compiler;
use crate::dispatch::{Dispatch, Link, Push, Span};
use crate::error::GpuError;
use crate::kernels::handles::{Made, spans};
use crate::kernels::operand::OperandKind;
use crate::kernels::product::{Front, Product, ProductOutput, no_room};
use crate::pack::{Format, Matrix};
use crate::raw::pipeline::KernelKey;
use crate::shaders::Shader;

/// Numbers of places of a group for which shapes exist.
pub(crate) const GROUP_PLACES: [usize; 3] = [16, 32, 64];

/// A product of groups of entries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupedLaunch {
    /// The product of a full group with one expert: as many rows of activations as a group has
    /// places, the operand of all places, and results in f32 with a row for each entry.
    pub(crate) one: Product,
    /// The matrices of all experts, from the first one's first row on.
    pub(crate) matrix: Matrix,
    /// Rows of the matrix from those of a gate to those of `up`.
    pub(crate) split: usize,
    /// Rows of the matrix from one expert to the next.
    pub(crate) step: usize,
    /// Experts.
    pub(crate) experts: usize,
    /// Most groups.
    pub(crate) groups: usize,
    /// The groups, and from the address `entries` on the entry of each place.
    pub(crate) sorted: Span,
    /// Address of the entries.
    pub(crate) entries: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Args {
    front: Front,
    scratch: u64,
    chain: u64,
    features: u32,
    columns: u32,
    groups: u32,
    places: u32,
    splits: [u32; 2],
    step: u32,
    experts: u32,
    aligned: u32,
    unit: f32,
}

/// Returns the shader of a kernel and a format, or `None` if there is no such kernel.
fn shader(shape: &MatmulShape, format: Format) -> Option<Shader> {
    match shape {
        MatmulShape::Direct(_) => Shader::of("experts_direct", format.name()),
        MatmulShape::Matrix(_) => Shader::of("experts_matrix", format.name()),
        _ => None,
    }
}

impl GroupedLaunch {
    fn launch(&self) -> MatmulLaunch {
        MatmulLaunch { product: self.one, scratch: None }
    }

    /// Returns the shapes that a device can run, the likeliest first.
    pub(crate) fn shapes(&self, capabilities: &Capabilities) -> Vec<MatmulShape> {
        let places = self.one.width as u32;
        let kind = self.one.input.operand().map(|operand| operand.kind);
        let mut list: Vec<MatmulShape> = if kind == Some(OperandKind::Fragments) {
            // Subgroups and left factors.
            let direct = |[subgroups, lefts]: [u32; 2]| {
                let rights = places / 8;
                MatmulShape::Direct(DirectShape { subgroups, lefts, rights, workgroups: 0 })
            };
            [[4, 2], [4, 4], [2, 4], [2, 2], [8, 2]].map(direct).to_vec()
        } else {
            let whole = |shape| match shape {
                MatmulShape::Matrix(shape) if shape.tile.1 == places => {
                    Some(MatmulShape::Matrix(MatrixShape { workgroups: 0, ..shape }))
                }
                _ => None,
            };
            MatmulShape::candidates(capabilities, &self.launch())
                .into_iter()
                .filter_map(whole)
                .collect()
        };
        let mut seen = Vec::new();
        list.retain(|shape| {
            let is_new = !seen.contains(shape);
            seen.push(*shape);
            is_new && self.fits(shape, capabilities)
        });
        list
    }

    fn fits(&self, shape: &MatmulShape, capabilities: &Capabilities) -> bool {
        let all = Product { matrix: self.matrix, ..self.one };
        shader(shape, self.matrix.format).is_some()
            && shape.tile().1 as usize == self.one.width
            && shape.fits(capabilities, &self.launch())
            && MatmulLaunch { product: all, scratch: None }.is_countable()
            && self.groups <= capabilities.groups[1] as usize
    }

    /// Returns the dispatch of the launch in a shape.
    ///
    /// # Errors
    /// If the device cannot run the shape or the kernel cannot be compiled.
    ///
    /// # Panics
    /// If the operand is of the wrong kind.
    pub(crate) fn dispatch(
        &self,
        gpu: &dyn Compiler,
        shape: &MatmulShape,
        label: &str,
        step: usize,
    ) -> Result<Dispatch, GpuError> {
        let capabilities = gpu.capabilities();
        let Product { input, output, .. } = self.one;
        let kind = input.operand().map(|operand| operand.kind);
        assert_eq!(kind, Some(shape.operand(self.matrix.format)), "the operand of {shape:?}");
        let target = match output {
            ProductOutput::Segments(segments) => segments.only(),
            ProductOutput::Gated(Made::Rows(target)) => Some(target),
            _ => None,
        };
        let target = target.expect("products of groups give f32 to one place");
        let shader = shader(shape, self.matrix.format)
            .filter(|_| self.fits(shape, capabilities))
            .ok_or_else(|| no_room(capabilities, shape, label))?;
        let launch = self.launch();
        let constants = shape.constants(capabilities, &launch, false);
        let key = KernelKey { shader, constants, subgroup: Some(capabilities.subgroup) };
        let tiles = launch.tiles(shape.tile());
        let (mut reads, writes) = spans(|look| _ = self.one.visit(look));
        reads.push(self.sorted);
        Ok(Dispatch {
            label: label.to_owned(),
            step,
            kernel: gpu.kernel(&key)?,
            push: Push::of(&self.args(target)),
            groups: [tiles, self.groups as u32, 1],
            reads,
            writes,
            link: Link::Outside,
            hands: None,
        })
    }

    fn args(&self, target: Span) -> Args {
        let outputs = self.one.outputs();
        let all = Product { matrix: self.matrix, ..self.one };
        let mut front = all.front();
        front.outputs = [target.address, self.sorted.address, self.entries];
        Args {
            front,
            scratch: 0,
            chain: 0,
            features: outputs as u32,
            columns: self.matrix.columns as u32,
            groups: self.one.groups(),
            places: (self.groups * self.one.width) as u32,
            splits: [self.split as u32, outputs as u32],
            step: self.step as u32,
            experts: self.experts as u32,
            aligned: u32::from(target.address.is_multiple_of(16) && outputs.is_multiple_of(4)),
            unit: 0.0,
        }
    }
}
