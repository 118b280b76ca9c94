//! Tables of rotary embeddings on the device: one for each kind in the Plan.

use std::sync::Arc;

use trine_model::{Op, Plan, Rope};

use crate::error::GpuError;
use crate::kernels::heads::turns;
use crate::raw::gpu::Gpu;
use crate::raw::memory::{Arena, Buffer, Place};
use crate::raw::transfer::Transfer;

/// The tables of a Plan.
pub(super) struct Ropes(Vec<(usize, Rope, Buffer)>);

impl Ropes {
    pub(super) fn load(gpu: &Arc<Gpu>, plan: &Plan) -> Result<Self, GpuError> {
        let mut tables: Vec<(usize, Rope, Buffer)> = Vec::new();
        let mut arena = Arena::new(gpu, Place::Device, 0);
        let transfer = Transfer::new(gpu);
        for step in &plan.steps {
            let (dim, rope) = match &step.op {
                Op::PrepareQkv { heads, rope, .. } => (heads.dim, *rope),
                Op::Rotate { buffer, heads, rope } => (plan.buffer(*buffer).columns / heads, *rope),
                _ => continue,
            };
            if tables.iter().any(|(size, known, _)| *size == dim && *known == rope) {
                continue;
            }
            let table = turns(dim, rope);
            let buffer = arena.allocate(8 * table.len() as u64, "rotary tables")?;
            transfer.write(&buffer, 0, bytemuck::cast_slice(&table))?;
            tables.push((dim, rope, buffer));
        }
        transfer.finish()?;
        Ok(Self(tables))
    }

    /// Returns the address of a table.
    ///
    /// # Panics
    /// If the Plan has no such rotary embedding.
    pub(super) fn address(&self, dim: usize, rope: Rope) -> u64 {
        let found = self.0.iter().find(|(size, known, _)| *size == dim && *known == rope);
        found.expect("every rotary embedding of the Plan has a table").2.address()
    }
}
