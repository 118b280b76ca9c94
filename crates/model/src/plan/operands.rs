//! The operands of operations: what each reads and writes. Fusion, cuts, scratch memory, cost and
//! listings derive from these.

use crate::plan::{BufferId, CacheId, Op, Step, WeightId};

/// An operand of an operation, in place, so that it can be replaced.
pub(crate) enum Operand<'a> {
    /// A buffer whose values are used.
    Read(&'a mut BufferId),
    /// A buffer whose values are set.
    Write(&'a mut BufferId),
    /// A buffer whose values are used and set.
    Change(&'a mut BufferId),
    /// A buffer that only the steps within the operation use.
    Own(&'a mut BufferId),
    /// A tensor of the model.
    Weight(&'a mut WeightId),
    /// A KV cache.
    Cache(&'a mut CacheId),
}

impl Op {
    /// Returns the name of the operation, for people.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "embed",
            Op::Norm { .. } => "norm",
            Op::LayerNorm { .. } => "layer_norm",
            Op::HeadNorm { .. } => "head_norm",
            Op::Rotate { .. } => "rotate",
            Op::MatMul { .. } => "matmul",
            Op::StoreKv { .. } => "store_kv",
            Op::Attend { .. } => "attend",
            Op::Geglu { .. } => "geglu",
            Op::Gelu { .. } => "gelu",
            Op::Bias { .. } => "bias",
            Op::PositionEmbedding { .. } => "places",
            Op::RotateByPosition { .. } => "rotate_places",
            Op::Clamp { .. } => "clamp",
            Op::Add { .. } => "add",
            Op::Sum { .. } => "sum",
            Op::Mix { .. } => "mix",
            Op::Rescale { .. } => "rescale",
            Op::Scale { .. } => "scale",
            Op::Cutoff { .. } => "cutoff",
            Op::Pool { .. } => "pool",
            Op::Insert { .. } => "insert",
            Op::Select { .. } => "select",
            Op::Route { .. } => "route",
            Op::GatedExperts { .. } => "gated_experts",
            Op::SumExperts { .. } => "sum_experts",
            Op::Search { .. } => "search",
            Op::Softcap { .. } => "softcap",
            Op::GatedMatMul { .. } => "gated_matmul",
            Op::NormAdd { .. } => "norm_add",
            Op::NormAddNorm { .. } => "norm_add_norm",
            Op::PrepareQkv { .. } => "prepare_qkv",
            Op::Away { .. } => "away",
            Op::Join { .. } => "join",
        }
    }

    /// Calls `see` with each operand, in the order in which people name them. This is the only
    /// place that knows the operands of an operation.
    pub(crate) fn operands(&mut self, see: &mut dyn FnMut(Operand<'_>)) {
        use Operand::{Cache, Change, Read, Weight, Write};
        match self {
            Op::Embed { table, output, .. } => {
                see(Weight(table));
                see(Write(output));
            }
            Op::Norm { input, weight, output, .. } | Op::Scale { input, weight, output } => {
                see(Read(input));
                see(Weight(weight));
                see(Write(output));
            }
            Op::LayerNorm { .. }
            | Op::Gelu { .. }
            | Op::Bias { .. }
            | Op::PositionEmbedding { .. }
            | Op::RotateByPosition { .. }
            | Op::Clamp { .. }
            | Op::Pool { .. }
            | Op::Insert { .. } => self.picture_operands(see),
            Op::HeadNorm { buffer, weight, .. } => {
                see(Change(buffer));
                weight.iter_mut().for_each(|weight| see(Weight(weight)));
            }
            Op::Rotate { buffer, .. } | Op::Softcap { buffer, .. } | Op::Cutoff { buffer, .. } => {
                see(Change(buffer));
            }
            Op::MatMul { input, products } => {
                see(Read(input));
                for product in products {
                    see(Weight(&mut product.weight));
                    see(Write(&mut product.output));
                }
            }
            Op::StoreKv { key, value, cache, .. } => {
                see(Read(key));
                see(Read(value));
                see(Cache(cache));
            }
            Op::Attend { query, cache, output, .. } => {
                see(Read(query));
                see(Cache(cache));
                see(Write(output));
            }
            Op::Geglu { gate, up, output, .. } => {
                see(Read(gate));
                see(Read(up));
                see(Write(output));
            }
            Op::Add { source, target } => {
                see(Read(source));
                see(Change(target));
            }
            Op::Sum { terms, output } => {
                terms.iter_mut().for_each(|term| see(Read(&mut term.buffer)));
                see(Write(output));
            }
            Op::Mix { .. } | Op::Rescale { .. } => self.stream_operands(see),
            Op::Select { input, output } => {
                see(Read(input));
                see(Write(output));
            }
            Op::Route { .. }
            | Op::GatedExperts { .. }
            | Op::SumExperts { .. }
            | Op::Search { .. } => {
                self.expert_operands(see);
            }
            Op::Join { parts, output } => {
                parts.iter_mut().for_each(|part| see(Read(part)));
                see(Write(output));
            }
            Op::Away { steps } => away_operands(steps, see),
            fused => fused.fused_operands(see),
        }
    }

    /// Does the same as [`Op::operands`] for an operation of models with several streams.
    fn stream_operands(&mut self, see: &mut dyn FnMut(Operand<'_>)) {
        use Operand::{Change, Read, Write};
        match self {
            Op::Mix { streams, sources, coefficients, .. } => {
                streams.iter_mut().for_each(|stream| see(Read(&mut stream.input)));
                sources.iter_mut().for_each(|source| see(Read(source)));
                see(Read(coefficients));
                streams.iter_mut().for_each(|stream| see(Write(&mut stream.output)));
            }
            Op::Rescale { buffer, like, .. } => {
                see(Change(buffer));
                see(Read(like));
            }
            _ => unreachable!("an operation of several streams"),
        }
    }

    /// Does the same as [`Op::operands`] for an operation that pictures need.
    fn picture_operands(&mut self, see: &mut dyn FnMut(Operand<'_>)) {
        use Operand::{Change, Read, Weight, Write};
        match self {
            Op::LayerNorm { input, weight, bias, output, .. } => {
                see(Read(input));
                see(Weight(weight));
                see(Weight(bias));
                see(Write(output));
            }
            Op::Gelu { buffer } | Op::RotateByPosition { buffer, .. } => see(Change(buffer)),
            Op::PositionEmbedding { table, output, .. } => {
                see(Weight(table));
                see(Write(output));
            }
            Op::Bias { buffer, weight } => {
                see(Change(buffer));
                see(Weight(weight));
            }
            Op::Clamp { input, output, .. } | Op::Pool { input, output, .. } => {
                see(Read(input));
                see(Write(output));
            }
            Op::Insert { source, target } => {
                see(Read(source));
                see(Change(target));
            }
            other => unreachable!("{} is not for pictures", other.name()),
        }
    }

    /// Does the same as [`Op::operands`] for an operation of experts.
    fn expert_operands(&mut self, see: &mut dyn FnMut(Operand<'_>)) {
        use Operand::{Read, Weight, Write};
        match self {
            Op::Route { logits, factors, chosen, shares, .. } => {
                see(Read(logits));
                factors.iter_mut().for_each(|factors| see(Weight(factors)));
                see(Write(chosen));
                see(Write(shares));
            }
            Op::GatedExperts { input, chosen, gate_and_up, output } => {
                see(Read(input));
                see(Read(chosen));
                gate_and_up.iter_mut().for_each(|matrix| see(Weight(&mut matrix.weight)));
                see(Write(output));
            }
            Op::SumExperts { input, chosen, shares, down, output } => {
                see(Read(input));
                see(Read(chosen));
                see(Read(shares));
                see(Weight(&mut down.weight));
                see(Write(output));
            }
            Op::Search { input, routes, clusters, tokens, output } => {
                see(Read(input));
                see(Read(&mut routes.chosen));
                see(Read(&mut routes.shares));
                see(Weight(&mut clusters.weight));
                see(Weight(tokens));
                see(Write(output));
            }
            other => unreachable!("{} has no experts", other.name()),
        }
    }

    /// Does the same as [`Op::operands`] for a fused operation.
    fn fused_operands(&mut self, see: &mut dyn FnMut(Operand<'_>)) {
        use Operand::{Cache, Change, Read, Weight, Write};
        match self {
            Op::GatedMatMul { input, gate, up, output } => {
                see(Read(input));
                see(Weight(gate));
                see(Weight(up));
                see(Write(output));
            }
            Op::NormAdd { input, weight, target, .. } => {
                see(Read(input));
                see(Weight(weight));
                see(Change(target));
            }
            Op::NormAddNorm { input, weight, target, next_weight, output, .. } => {
                see(Read(input));
                see(Weight(weight));
                see(Change(target));
                see(Weight(next_weight));
                see(Write(output));
            }
            Op::PrepareQkv { query, key, value, query_norm, key_norm, cache, .. } => {
                see(Change(query));
                see(Change(key));
                see(Read(value));
                see(Weight(query_norm));
                see(Weight(key_norm));
                see(Cache(cache));
            }
            plain => unreachable!("{} is not a fused operation", plain.name()),
        }
    }

    /// Returns the operands that `pick` takes, in order, each once.
    fn picked<T: PartialEq>(&self, mut pick: impl FnMut(Operand<'_>) -> Option<T>) -> Vec<T> {
        let mut picked = Vec::new();
        self.clone().operands(&mut |operand| {
            let found = pick(operand).filter(|found| !picked.contains(found));
            picked.extend(found);
        });
        picked
    }

    /// Returns the buffers whose values the operation uses, each once.
    pub fn reads(&self) -> Vec<BufferId> {
        self.picked(|operand| match operand {
            Operand::Read(id) | Operand::Change(id) => Some(*id),
            _ => None,
        })
    }

    /// Returns the buffers whose values the operation sets.
    pub fn writes(&self) -> Vec<BufferId> {
        self.picked(|operand| match operand {
            Operand::Write(id) | Operand::Change(id) => Some(*id),
            _ => None,
        })
    }

    /// Returns the buffers that the operation reads or writes, each once.
    pub fn touches(&self) -> Vec<BufferId> {
        self.picked(|operand| match operand {
            Operand::Read(id) | Operand::Write(id) | Operand::Change(id) | Operand::Own(id) => {
                Some(*id)
            }
            _ => None,
        })
    }

    /// Returns the weights that the operation reads.
    pub fn weights(&self) -> Vec<WeightId> {
        self.picked(|operand| match operand {
            Operand::Weight(id) => Some(*id),
            _ => None,
        })
    }

    /// Returns the KV cache that the operation reads or writes.
    pub fn cache(&self) -> Option<CacheId> {
        let caches = self.picked(|operand| match operand {
            Operand::Cache(id) => Some(*id),
            _ => None,
        });
        caches.first().copied()
    }

    /// Returns whether the operation writes its KV cache.
    pub fn stores(&self) -> bool {
        matches!(self, Op::StoreKv { .. } | Op::PrepareQkv { .. })
    }

    /// Replaces every buffer id according to the map.
    pub(crate) fn rename(&mut self, map: &dyn Fn(BufferId) -> BufferId) {
        self.operands(&mut |operand| {
            if let Operand::Read(id) | Operand::Write(id) | Operand::Change(id) | Operand::Own(id) =
                operand
            {
                *id = map(*id);
            }
        });
    }

    /// Replaces every weight and cache id according to the maps.
    pub(crate) fn rebind(
        &mut self,
        weight_of: &dyn Fn(WeightId) -> WeightId,
        cache_of: &dyn Fn(CacheId) -> CacheId,
    ) {
        self.operands(&mut |operand| match operand {
            Operand::Weight(id) => *id = weight_of(*id),
            Operand::Cache(id) => *id = cache_of(*id),
            _ => {}
        });
    }
}

/// Calls `see` with each operand of steps that are one operation.
fn away_operands(steps: &mut [Step], see: &mut dyn FnMut(Operand<'_>)) {
    let (mut made, mut own) = (Vec::new(), Vec::new());
    for step in &*steps {
        own.extend(step.op.reads().into_iter().filter(|id| made.contains(id)));
        made.extend(step.op.writes());
    }
    for step in steps {
        step.op.operands(&mut |operand| {
            see(match operand {
                Operand::Read(id) | Operand::Write(id) if own.contains(id) => Operand::Own(id),
                other => other,
            });
        });
    }
}
