//! Attention of a few rows: `shaders/attend.comp`.

use bytemuck::{Pod, Zeroable};
use trine_model::{Heads, KvType};

use super::{Attention, KV_BLOCK, divisor_up_to, kv_number, power_up_to};
use crate::capabilities::{Capabilities, DeviceKind};
use crate::compiler::Compiler;
use crate::dispatch::{Dispatch, Fill, Hands, Link, Push};
use crate::error::GpuError;
use crate::kernels::handles::{Addresses, Handles, Made, Role, Visitor, spans};
use crate::kernels::heads::DIM_MAX;
use crate::kernels::operand::{OperandKind, SCALE_BLOCK};
use crate::raw::pipeline::KernelKey;
use crate::shaders::Shader;

/// Most workgroups of a launch. If there is more work, each workgroup takes several shares in turn.
const GROUPS_MAX: usize = 65_535;
/// Bytes of shared memory for the sums of the heads that are merged at the same time; twice as many
/// if there is plenty of it.
const SUM_BYTES: usize = 16 << 10;
/// Most elements of the query heads of a workgroup: each needs registers for its query and its sum.
const QUERY_ELEMENTS_MAX: usize = 8 * 256;
/// Most query heads of a workgroup.
const QUERIES_MAX: usize = 8;
/// Least rows of a crowd: more than those whose launches are in chains. In these, small workgroups
/// made 64 sequences of 4B 11 % slower on an H200.
const CROWD: usize = 65;
/// Workgroups of 128 invocations that a core runs at the same time, by the registers of heads of
/// 256 elements.
const SMALL_OF_CORE: usize = 3;
/// Bytes of shared memory beside heads and sums.
const MARKS_BYTES: usize = 2 << 10;

/// How the work is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttendDecodeShape {
    /// Invocations of a workgroup: a multiple of the subgroup.
    pub local: u32,
    /// Most invocations that share a position: a power of two, at most a subgroup.
    pub lanes: u32,
    /// Positions in flight for each team of lanes: a power of two, at most those of a block.
    pub unroll: u32,
    /// Most query heads of a workgroup.
    pub queries: u32,
    /// Most shares that the positions of a row are split into.
    pub splits: u32,
    /// Most blocks of a row whose positions are not split.
    pub alone: u32,
    /// Least blocks of a share, if positions are split; a share is never smaller than what a
    /// workgroup has in flight.
    pub least: u32,
    /// Most elements of a load: 8 or 16.
    pub elements: u32,
}

impl AttendDecodeShape {
    /// Returns what suits a device for steps of `rows` rows, with a cache of this type.
    pub fn suited(
        capabilities: &Capabilities,
        attention: &Attention,
        kind: KvType,
        rows: usize,
    ) -> Self {
        let software = capabilities.kind == DeviceKind::Processor;
        let large = !capabilities.is_unified();
        let heads = attention.heads;
        // Heads of one workgroup share its reads. With few workgroups, a second read from a cache
        // costs less than the longer work of more heads.
        let most = match rows.max(1) * heads.kv {
            1 if large => 1,
            0..8 if !software => 2,
            _ => QUERIES_MAX.min(QUERY_ELEMENTS_MAX / heads.dim),
        };
        let queries = divisor_up_to(attention.shared(), most);
        let groups = rows.max(1) * heads.query / queries;
        // 16 positions of an f16 cache at a time, or 32 where each core has one workgroup at most:
        // few large shares are joined sooner than many small ones.
        let is_few = large && groups <= capabilities.cores_or_guess() as usize;
        let positions = if is_few { 32 } else { 16 };
        let local = (positions * heads.dim as u32 / 8).next_power_of_two().clamp(64, 512);
        // Small workgroups begin and end beside others that read, if the last round of them fills
        // most of the device (`docs/benchmarks/gpu-kernels.md`).
        let resident = SMALL_OF_CORE * capabilities.cores_or_guess() as usize;
        let rounds = groups.div_ceil(resident);
        let fills = 4 * groups >= 3 * rounds * resident;
        let is_crowd = large && rows >= CROWD && queries == 2 && kind == KvType::F16 && fills;
        let most = match queries {
            _ if is_crowd => 128,
            ..=2 if large => 512,
            _ => 256,
        };
        let mut local = if software { 32 } else { local.min(most) };
        let room = capabilities.shared_bytes as usize;
        while least_shared_bytes(local / capabilities.subgroup, queries, heads.dim) > room
            && local > capabilities.subgroup
        {
            local /= 2;
        }
        // As many workgroups as keep the memory of such a device busy, but no more than run at the
        // same time.
        let wanted = match capabilities.kind {
            DeviceKind::Processor => 1,
            DeviceKind::Integrated => 96,
            _ => 65_536 / local as usize,
        };
        // Loads of 8 codes split a position like loads of 8 halves: less work at the end, where
        // sums are joined, for more of it at each position.
        let halved = kind == KvType::Int8 && rows == 1 && local > 256;
        Self {
            local,
            lanes: capabilities.subgroup.clamp(1, 32),
            // Workgroups of 512 invocations have 128 registers for each invocation.
            unroll: if queries * heads.dim > 4 * 256 || local > 256 && !halved { 2 } else { 4 },
            queries: queries as u32,
            splits: if is_crowd { 1 } else { (wanted / groups).clamp(1, 64) as u32 },
            alone: 4,
            least: if large { 1 } else { 4 },
            elements: if halved { 8 } else { 16 },
        }
    }
}

/// Returns the bytes of shared memory of a fused launch that merges one head at a time.
fn least_shared_bytes(subgroups: u32, queries: usize, dim: usize) -> usize {
    // The sums of each subgroup; the heads that are prepared and the row's own value.
    4 * dim * (subgroups as usize + queries + 3) + MARKS_BYTES
}

/// What a fused launch does before it attends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fused<H: Handles = Addresses> {
    /// The queries' norm weights, if they are normed.
    pub query_norm: Option<H::Vector>,
    /// [`crate::kernels::heads::turns`], if queries and keys are rotated.
    pub rope: Option<H::Turns>,
    /// Added to the mean square of the norms.
    pub epsilon: f32,
    /// Keys and values that it stores. If there are none, those of the step's rows are in the
    /// cache.
    pub own: Option<OwnRows<H>>,
}

impl<H: Handles> Fused<H> {
    /// Returns the same over what a visitor gives for the operands.
    pub(crate) fn visit<B: Handles>(&self, by: &mut impl Visitor<H, B>) -> Fused<B> {
        Fused {
            query_norm: self.query_norm.map(|norm| by.vector(norm)),
            rope: self.rope.map(|rope| by.turns(rope)),
            epsilon: self.epsilon,
            own: self.own.map(|own| OwnRows {
                key: by.read(own.key),
                value: by.read(own.value),
                key_norm: own.key_norm.map(|norm| by.vector(norm)),
                value_norm: own.value_norm,
            }),
        }
    }
}

/// Keys and values of the step's rows, on their way to the cache. Each row has to be of another
/// sequence, so that none sees what another stores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OwnRows<H: Handles = Addresses> {
    /// (rows, kv heads x dim) f32, as the projection left it.
    pub key: H::Rows,
    /// (rows, kv heads x dim) f32.
    pub value: H::Rows,
    /// The keys' norm weights, if they are normed.
    pub key_norm: Option<H::Vector>,
    /// Whether values are normed, with factors of 1.
    pub value_norm: bool,
}

/// Memory of a launch that splits the positions of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Splits<H: Handles = Addresses> {
    /// Unfinished results, [`DecodeLaunch::scratch_bytes`].
    pub partials: H::Shared,
    /// [`DecodeLaunch::counter_bytes`]. They are zero before the first launch and after each.
    pub counters: H::Shared,
}

/// A launch for a few rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DecodeLaunch<H: Handles = Addresses> {
    /// What is attended to.
    pub attention: Attention,
    /// Keys and values.
    pub cache: H::Cache,
    /// What the host writes for the step.
    pub frame: H::Frame,
    /// Most rows.
    pub rows: usize,
    /// (rows, heads x dim) f32; in a fused launch as the projection left it.
    pub query: H::Rows,
    /// The result. As an operand it is [`OperandKind::Fixed16`], for heads of whole blocks, or
    /// [`OperandKind::Halves`] or [`OperandKind::Fragments`], where [`Attention::gives_halves`].
    pub made: Made<H>,
    /// Memory for shares of a row's positions. There is none with a single split.
    pub splits: Option<Splits<H>>,
    /// Norm, rotation and store of the rows themselves, in the same launch.
    pub fused: Option<Fused<H>>,
    /// How the work is laid out.
    pub shape: AttendDecodeShape,
}

/// The arguments, as the shader's `AttendArgs`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct DecodeArgs {
    frame: u64,
    tables: u64,
    cache: u64,
    query: u64,
    target: u64,
    codes: u64,
    scales: u64,
    parts: u64,
    counters: u64,
    key: u64,
    value: u64,
    query_norm: u64,
    key_norm: u64,
    rope: u64,
    scale: f32,
    epsilon: f32,
    chain: u64,
}

impl<H: Handles> DecodeLaunch<H> {
    /// Returns the launch over what a visitor gives for its operands.
    pub(crate) fn visit<B: Handles>(&self, by: &mut impl Visitor<H, B>) -> DecodeLaunch<B> {
        // The query is read as it is before the norm: nothing writes the rotated one.
        let query = by.read(self.query);
        let fused = self.fused.map(|fused| fused.visit(by));
        let cache = by.cache(Role::Read, self.cache);
        if self.own().is_some() {
            by.cache(Role::Write, self.cache);
        }
        DecodeLaunch {
            attention: self.attention,
            cache,
            frame: by.frame(self.frame),
            rows: self.rows,
            query,
            made: self.made.visit(by),
            splits: self.splits.map(|Splits { partials, counters }| Splits {
                partials: by.shared(Role::Write, partials),
                counters: by.shared(Role::Write, counters),
            }),
            fused,
            shape: self.shape,
        }
    }

    /// Returns what is launched.
    pub(crate) fn name(&self) -> &'static str {
        match self.fused {
            Some(Fused { own: Some(_), .. }) => "prepare_qkv + attend by rows",
            Some(Fused { own: None, .. }) => "head_norm + rotate + attend by rows",
            None => "attend by rows",
        }
    }

    /// Returns the keys and values that it stores.
    pub(crate) fn own(&self) -> Option<OwnRows<H>> {
        self.fused.and_then(|fused| fused.own)
    }
}

impl DecodeLaunch {
    fn queries(attention: &Attention, shape: &AttendDecodeShape) -> usize {
        divisor_up_to(attention.shared(), shape.queries as usize)
    }

    /// Returns the bytes of scratch memory that a launch of `rows` rows needs.
    pub fn scratch_bytes(attention: &Attention, rows: usize, shape: &AttendDecodeShape) -> u64 {
        // Heads whose size does not allow loads of 16 bytes use a slot of four for two elements.
        let slots = attention.heads.dim / 2;
        (rows * attention.heads.query * shape.splits as usize * (1 + slots) * 16) as u64
    }

    /// Returns the bytes of counters that a launch of `rows` rows needs: one for each row and query
    /// head.
    pub fn counter_bytes(heads: Heads, rows: usize) -> u64 {
        (4 * rows * heads.query) as u64
    }

    /// Returns the specialisation constants, from 0 on.
    ///
    /// # Panics
    /// If the kernel does not support these heads or this operand.
    pub fn constants(&self, capabilities: &Capabilities) -> Vec<u32> {
        let heads = self.attention.heads;
        assert!(heads.dim.is_multiple_of(2) && heads.dim <= DIM_MAX, "heads of {}", heads.dim);
        assert!(self.shape.local.is_multiple_of(capabilities.subgroup), "whole subgroups");
        let unroll = self.shape.unroll as usize;
        assert!(unroll.is_power_of_two() && unroll <= KV_BLOCK, "{unroll} positions of a block");
        let wide = self.cache.wide_elements();
        let elements = wide.map_or(2, |elements| elements.min(self.shape.elements as usize));
        let most = capabilities.subgroup.min(self.shape.lanes) as usize;
        let lanes = power_up_to(heads.dim / elements, most);
        let queries = Self::queries(&self.attention, &self.shape);
        let slots = heads.dim / elements.min(4);
        let bytes_of_head = 16 * slots * (self.shape.local / capabilities.subgroup) as usize;
        let much =
            capabilities.kind == DeviceKind::Discrete && capabilities.shared_bytes >= 48 << 10;
        let sum_bytes = if much { 2 * SUM_BYTES } else { SUM_BYTES };
        let merged = divisor_up_to(queries, (sum_bytes / bytes_of_head).max(1));
        let operand_bit = match self.made.operand().map(|operand| operand.kind) {
            None => 0,
            Some(OperandKind::Fixed16) => {
                assert!(
                    heads.dim.is_multiple_of(SCALE_BLOCK) && elements >= 4,
                    "a fixed-point operand"
                );
                2
            }
            Some(kind) => {
                let able = self.attention.gives_halves(self.cache.kind);
                assert!(kind.is_halves() && able, "an operand in halves");
                if kind == OperandKind::Fragments { 8 } else { 4 }
            }
        };
        let stride = self.shape.local / lanes as u32 * self.shape.unroll;
        let least = self.shape.least.max(stride / KV_BLOCK as u32);
        let output = u32::from(self.made.rows().is_some()) | operand_bit;
        let fused = match self.fused {
            None => 0,
            Some(Fused { own: Some(_), .. }) => 1,
            Some(Fused { own: None, .. }) => 2,
        };
        vec![
            self.shape.local,
            heads.dim as u32,
            heads.query as u32,
            heads.kv as u32,
            kv_number(self.cache.kind),
            queries as u32,
            lanes as u32,
            elements as u32,
            self.shape.unroll,
            merged as u32,
            self.shape.splits,
            fused,
            output,
            capabilities.subgroup,
            self.cache.ring_blocks,
            self.attention.window_argument(),
            self.shape.alone,
            least,
            self.frame.picks,
            u32::from(self.own().is_some_and(|own| own.value_norm)),
            // A row with a sequence of its own has nothing ahead, and needs no kernel of its own.
            if self.own().is_some() { u32::MAX } else { self.attention.ahead_argument() },
        ]
    }

    /// Returns the arguments.
    pub fn args(&self) -> DecodeArgs {
        let (fused, own, operand) = (self.fused, self.own(), self.made.operand());
        DecodeArgs {
            frame: self.frame.frame,
            tables: self.frame.tables,
            cache: self.cache.span.address,
            query: self.query.address,
            target: self.made.rows().map_or(0, |rows| rows.address),
            codes: operand.map_or(0, |operand| operand.codes.address),
            scales: operand.map_or(0, |operand| operand.scales.address),
            parts: self.splits.map_or(0, |splits| splits.partials.address),
            counters: self.splits.map_or(0, |splits| splits.counters.address),
            key: own.map_or(0, |own| own.key.address),
            value: own.map_or(0, |own| own.value.address),
            query_norm: fused.and_then(|fused| fused.query_norm).unwrap_or(0),
            key_norm: own.and_then(|own| own.key_norm).unwrap_or(0),
            rope: fused.and_then(|fused| fused.rope).unwrap_or(0),
            scale: self.attention.scale,
            epsilon: fused.map_or(0.0, |fused| fused.epsilon),
            chain: 0,
        }
    }

    /// Returns what the launch can hand on in a chain: that of one row which stores its own key and
    /// value.
    fn hands(&self) -> Option<Hands> {
        let own = self.own().filter(|_| self.rows == 1)?;
        Some(Hands {
            takes: vec![self.query, own.key, own.value],
            gives: self.made.rows().into_iter().collect(),
            is_split: true,
            shared: self.splits.map_or_else(Vec::new, |it| vec![it.partials, it.counters]),
            ..Hands::default()
        })
    }

    /// Returns the dispatch of the launch.
    ///
    /// # Errors
    /// If the kernel cannot be compiled.
    ///
    /// # Panics
    /// If the kernel does not support these heads or this operand.
    pub fn dispatch(
        &self,
        gpu: &dyn Compiler,
        label: &str,
        step: usize,
    ) -> Result<Dispatch, GpuError> {
        let constants = self.constants(gpu.capabilities());
        let groups_of_row =
            self.attention.heads.query / Self::queries(&self.attention, &self.shape);
        let groups = self.rows * groups_of_row * self.shape.splits as usize;
        let subgroup = Some(gpu.capabilities().subgroup);
        let key = KernelKey { shader: Shader("attend"), constants, subgroup };
        assert_eq!(self.splits.is_some(), self.shape.splits > 1, "memory for splits");
        let (reads, writes) = spans(|look| _ = self.visit(look));
        Ok(Dispatch {
            label: label.to_owned(),
            step,
            kernel: gpu.kernel(&key)?,
            push: Push::of(&self.args()),
            groups: [groups.min(GROUPS_MAX) as u32, 1, 1],
            reads,
            writes,
            link: Link::Able {
                offset: std::mem::offset_of!(DecodeArgs, chain),
                // A fused launch reads keys and values before it waits. The others read them after
                // that, so the launch that stores this step's rows can be part of the chain.
                early: self.fused.map(|_| self.cache.span),
                fill: Fill::Anywhere,
            },
            hands: self.hands(),
        })
    }

    /// Returns the most splits that can have work: shares are whole blocks.
    pub fn useful_splits(attention: &Attention, context: usize) -> u32 {
        let seen = attention.window.map_or(context, |window| context.min(window + KV_BLOCK - 1));
        seen.div_ceil(KV_BLOCK).max(1) as u32
    }
}
