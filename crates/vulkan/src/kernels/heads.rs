//! Work on heads between their projection and the cache: norm and rotation of queries and keys, and
//! the store of keys and values (`shaders/heads.comp`).

use bytemuck::{Pod, Zeroable};
use trine_model::Rope;

use super::attention::kv_number;
use super::handles::{Addresses, Handles, Role, Visitor, spans};
use super::limits::ValueLimits;
use crate::compiler::Compiler;
use crate::dispatch::{Dispatch, Fill, Link, Push};
use crate::error::GpuError;
use crate::raw::pipeline::KernelKey;
use crate::shaders::Shader;

/// Most invocations of a workgroup.
const LOCAL: u32 = 128;
/// Most bytes of shared memory for the heads of a workgroup.
const SHARED_BYTES: u32 = 16 << 10;
/// Largest head dimension.
pub const DIM_MAX: usize = 512;

/// Keys and values on their way to the cache.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stored<H: Handles = Addresses> {
    /// (rows, kv heads x dim) f32.
    pub key: H::Rows,
    /// (rows, kv heads x dim) f32.
    pub value: H::Rows,
    /// Where they go.
    pub cache: H::Cache,
    /// What is added to the columns of keys and of values, f32. Neither is normed then, and there
    /// are no queries.
    pub biases: Option<[H::Vector; 2]>,
    /// The norm's weights (dim f32), if keys are normed.
    pub key_norm: Option<H::Vector>,
    /// Whether values are normed, with factors of 1.
    pub value_norm: bool,
}

/// Queries, which are changed in place. Keys that do not go to the cache count as queries too.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rotated<H: Handles = Addresses> {
    /// (rows, heads x dim) f32.
    pub query: H::Rows,
    /// The same afterwards, in the same place.
    pub turned: H::Rows,
    /// Heads of a row.
    pub heads: usize,
    /// The norm's weights, if queries are normed.
    pub query_norm: Option<Factors<H>>,
}

/// The weights of a norm of heads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Factors<H: Handles = Addresses> {
    /// All are 1.
    Ones,
    /// These (dim f32).
    Of(H::Vector),
}

/// A launch over the heads of a step: `Op::PrepareQkv` with everything, `Op::HeadNorm`,
/// `Op::Rotate` and `Op::RotateByPosition` with only `query`, `Op::StoreKv` with only `stored`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadsLaunch<H: Handles = Addresses> {
    /// What the host writes for the step.
    pub frame: H::Frame,
    /// Most rows.
    pub rows: usize,
    /// Elements of a head: even, at most [`DIM_MAX`].
    pub dim: usize,
    /// Queries.
    pub query: Option<Rotated<H>>,
    /// Keys and values.
    pub stored: Option<Stored<H>>,
    /// [`turns`], if queries and keys are rotated. Those by places are of half a head.
    pub rope: Option<H::Turns>,
    /// Places on a side of the grid if heads are rotated by places, which are the tokens
    /// (`row * side + column`): the first half by the column, the second by the row. A head then
    /// has a multiple of 4 elements. 0 for a rotation by positions.
    pub side: usize,
    /// Added to the mean square of the norms.
    pub epsilon: f32,
    /// Limits of queries, keys and values, before all else.
    pub within: [ValueLimits; 3],
}

impl<H: Handles> HeadsLaunch<H> {
    /// Returns the launch over what a visitor gives for its operands.
    pub(crate) fn visit<B: Handles>(&self, by: &mut impl Visitor<H, B>) -> HeadsLaunch<B> {
        let query = self.query.map(|it| by.read(it.query));
        let rows = self.stored.map(|it| [it.key, it.value].map(|rows| by.read(rows)));
        let query = self.query.zip(query).map(|(it, query)| Rotated {
            query,
            turned: by.write(it.turned),
            heads: it.heads,
            query_norm: it.query_norm.map(|norm| match norm {
                Factors::Ones => Factors::Ones,
                Factors::Of(weight) => Factors::Of(by.vector(weight)),
            }),
        });
        let stored = self.stored.zip(rows).map(|(it, [key, value])| Stored {
            key,
            value,
            cache: by.cache(Role::Write, it.cache),
            biases: it.biases.map(|biases| biases.map(|bias| by.vector(bias))),
            key_norm: it.key_norm.map(|norm| by.vector(norm)),
            value_norm: it.value_norm,
        });
        HeadsLaunch {
            frame: by.frame(self.frame),
            rows: self.rows,
            dim: self.dim,
            query,
            stored,
            rope: self.rope.map(|rope| by.turns(rope)),
            side: self.side,
            epsilon: self.epsilon,
            within: self.within,
        }
    }

    /// Returns what is launched.
    pub(crate) fn name(&self) -> &'static str {
        match (&self.query, &self.stored) {
            (Some(_), Some(_)) if self.within != [ValueLimits::NONE; 3] => "clamp + prepare_qkv",
            (Some(_), Some(_)) => "prepare_qkv",
            (None, Some(Stored { biases: Some(_), .. })) => "bias + store_kv",
            (None, _) => "store_kv",
            (Some(query), None) => match (query.query_norm, self.rope) {
                (Some(_), None) => "head_norm",
                (Some(_), Some(_)) => "head_norm + rotate",
                (None, _) if self.side > 0 => "rotate_places",
                (None, _) => "rotate",
            },
        }
    }
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Args {
    frame: u64,
    tables: u64,
    query: u64,
    key: u64,
    value: u64,
    query_norm: u64,
    key_norm: u64,
    rope: u64,
    cache: u64,
    ring: u32,
    epsilon: f32,
    chain: u64,
    within: [ValueLimits; 3],
}

impl HeadsLaunch {
    /// Returns the dispatch of the launch.
    ///
    /// # Errors
    /// If the kernel cannot be compiled.
    ///
    /// # Panics
    /// If the head dimension is odd or above [`DIM_MAX`], or no multiple of 4 with a grid, or
    /// queries are not changed in place.
    pub fn dispatch(
        &self,
        gpu: &dyn Compiler,
        label: &str,
        step: usize,
    ) -> Result<Dispatch, GpuError> {
        assert!(self.dim.is_multiple_of(2) && self.dim <= DIM_MAX, "heads of {}", self.dim);
        assert!(self.side == 0 || self.dim.is_multiple_of(4), "halves of heads of {}", self.dim);
        let heads = self.query.map_or(0, |query| query.heads);
        let kv_heads = self.stored.map_or(0, |stored| stored.cache.heads);
        let kind = self.stored.map_or(0, |stored| kv_number(stored.cache.kind));
        let biases = self.stored.and_then(|stored| stored.biases);
        assert!(biases.is_none() || heads == 0, "biases are of keys and values");
        let subgroup = gpu.capabilities().subgroup.clamp(1, LOCAL);
        let all = heads + 2 * kv_heads;
        // A subgroup for each head, all of which are in shared memory.
        let units = (LOCAL / subgroup).min(SHARED_BYTES / (4 * self.dim as u32)).max(1);
        let local = units * subgroup;
        let is_in_place = self.query.is_none_or(|query| query.query == query.turned);
        assert!(is_in_place, "{label} gives queries elsewhere");
        let query_norm = self.query.and_then(|query| query.query_norm).map(|norm| match norm {
            Factors::Ones => 0,
            Factors::Of(weight) => weight,
        });
        let key_norm = self.stored.and_then(|stored| stored.key_norm);
        let normed = [
            query_norm.is_some(),
            key_norm.is_some(),
            self.stored.is_some_and(|stored| stored.value_norm),
            self.rope.is_none(),
            query_norm.into_iter().chain(key_norm).any(|weights| weights != 0),
        ];
        let normed = (0..).zip(normed).map(|(bit, normed)| u32::from(normed) << bit).sum();
        let constants = vec![
            local,
            self.dim as u32,
            heads as u32,
            kv_heads as u32,
            kind,
            subgroup,
            normed,
            self.frame.picks,
            u32::from(biases.is_some()),
            self.side as u32,
            u32::from(self.within != [ValueLimits::NONE; 3]),
        ];
        let key = KernelKey { shader: Shader("heads"), constants, subgroup: Some(subgroup) };
        let args = Args {
            frame: self.frame.frame,
            tables: self.frame.tables,
            query: self.query.map_or(0, |query| query.query.address),
            key: self.stored.map_or(0, |stored| stored.key.address),
            value: self.stored.map_or(0, |stored| stored.value.address),
            query_norm: match biases {
                Some([_, value]) => value,
                None => query_norm.unwrap_or(0),
            },
            key_norm: match biases {
                Some([key, _]) => key,
                None => key_norm.unwrap_or(0),
            },
            rope: self.rope.unwrap_or(0),
            cache: self.stored.map_or(0, |stored| stored.cache.span.address),
            ring: self.stored.map_or(0, |stored| stored.cache.ring_blocks),
            epsilon: self.epsilon,
            chain: 0,
            within: self.within,
        };
        let (reads, writes) = spans(|by| _ = self.visit(by));
        Ok(Dispatch {
            label: label.to_owned(),
            step,
            kernel: gpu.kernel(&key)?,
            push: Push::of(&args),
            groups: [(all as u32).div_ceil(units), self.rows as u32, 1],
            reads,
            writes,
            link: Link::Able {
                offset: std::mem::offset_of!(Args, chain),
                early: None,
                fill: Fill::Little,
            },
            hands: None,
        })
    }
}

/// Returns the table of turns for a rotary embedding: for each of `dim / 2` pairs, the part of a
/// full turn by which it rotates per position, in units of 2^-64, high word first; then the
/// positions that are added to a row's own, and 0.
///
/// A position times such a number is exact in integers except for whole turns, which do not matter.
/// So the angle is right to 2^-32 of a turn at every position, whereas f32 arithmetic would be off
/// by 1e-2 radians at position 131072.
pub fn turns(dim: usize, rope: Rope) -> Vec<[u32; 2]> {
    let of_pair = |pair| {
        let share = (rope.frequency(pair, dim) / std::f64::consts::TAU).fract();
        let units = (share * 2.0_f64.powi(64)) as u64;
        [(units >> 32) as u32, units as u32]
    };
    (0..dim / 2).map(of_pair).chain([[rope.shift, 0]]).collect()
}

#[cfg(test)]
mod tests;
