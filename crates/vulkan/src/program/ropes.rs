//! Tables of rotary embeddings on the device: one for each kind in the Plan.

use std::sync::Arc;

use trine_model::{Op, Plan, Rope};

use crate::error::GpuError;
use crate::kernels::heads::turns;
use crate::raw::gpu::Gpu;
use crate::raw::memory::{Arena, Buffer, MemoryUse};
use crate::raw::transfer::Transfer;

/// The tables of a Plan.
pub(super) struct Ropes {
    /// Elements of a head, the kind, and where the table is.
    tables: Vec<(usize, Rope, u64)>,
    /// The memory that the addresses are in.
    _memory: Vec<Buffer>,
}

/// Returns each kind of a Plan once, with the elements of its heads.
fn kinds(plan: &Plan) -> Vec<(usize, Rope)> {
    let mut kinds = Vec::new();
    for step in &plan.steps {
        let kind = match &step.op {
            Op::PrepareQkv { heads, rope, .. } => (heads.dim, *rope),
            Op::Rotate { buffer, heads, rope } => (plan.buffer(*buffer).columns / heads, *rope),
            // Halves of heads are rotated as heads are.
            Op::RotateByPosition { buffer, heads, theta, .. } => {
                (plan.buffer(*buffer).columns / heads / 2, Rope::full(*theta, 1.0))
            }
            _ => continue,
        };
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds
}

impl Ropes {
    pub(super) fn load(gpu: &Arc<Gpu>, plan: &Plan) -> Result<Self, GpuError> {
        let (mut tables, mut memory) = (Vec::new(), Vec::new());
        let mut arena = Arena::new(gpu, MemoryUse::Device, 0);
        let transfer = Transfer::new(gpu);
        for (dim, rope) in kinds(plan) {
            let table = turns(dim, rope);
            let buffer = arena.allocate(8 * table.len() as u64, "rotary tables")?;
            transfer.write(&buffer, 0, bytemuck::cast_slice(&table))?;
            tables.push((dim, rope, buffer.address()));
            memory.push(buffer);
        }
        transfer.finish()?;
        Ok(Self { tables, _memory: memory })
    }

    /// Returns tables at an address where nothing is, for launches that never run.
    pub(super) fn described(plan: &Plan, address: u64) -> Self {
        let tables = kinds(plan).into_iter().map(|(dim, rope)| (dim, rope, address)).collect();
        Self { tables, _memory: Vec::new() }
    }

    /// Returns the address of a table.
    ///
    /// # Panics
    /// If the Plan has no such rotary embedding.
    pub(super) fn address(&self, dim: usize, rope: Rope) -> u64 {
        let found = self.tables.iter().find(|(size, known, _)| *size == dim && *known == rope);
        found.expect("every rotary embedding of the Plan has a table").2
    }
}
