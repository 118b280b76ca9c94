//! Fusion: rewrites adjacent steps into one, each rewrite a small rule.
//!
//! A rule examines the steps from some position on and returns how many of them one step can
//! replace. Rules are tried at every position until none applies.

use std::collections::VecDeque;

use crate::plan::{BufferId, Op, Plan, Step, Term};

/// A rule's result: the number of steps replaced, and the step that does their work.
type Rewrite = (usize, Op);

/// A rule. Its arguments are the remaining steps of the Plan and the uses of each buffer.
type Rule = fn(&[Step], &Uses) -> Option<Rewrite>;

/// The rules, in the order in which they are tried.
const RULES: [Rule; 5] = [share_input, gate, norm_then_add, norm_add_then_norm, prepare_qkv];

/// The most steps that one rule examines.
const REACH: usize = 7;

/// Applies every rule wherever it fits.
pub fn fuse(plan: Plan) -> Plan {
    let mut plan = walk(plan);
    if scale_sums(&mut plan) { walk(plan) } else { plan }
}

/// Lets norms that are added to the residual stream multiply the sum, where nothing reads it before
/// that. A factor gives the stream another buffer, whose place that of the sum takes from there on.
/// Returns whether it found any.
fn scale_sums(plan: &mut Plan) -> bool {
    let count = plan.steps.len();
    let mut index = 1;
    while index < plan.steps.len() {
        if let Some((target, factor, output)) = scaled_sum(plan, index) {
            plan.steps.remove(index);
            if let Op::NormAdd { scale, .. } = &mut plan.steps[index - 1].op {
                *scale = factor;
            }
            let renamed = |id| if id == output { target } else { id };
            plan.steps[index..].iter_mut().for_each(|step| step.op.rename(&renamed));
            plan.outputs.iter_mut().for_each(|id| *id = renamed(*id));
            name_after(plan, output, target);
        }
        index += 1;
    }
    plan.steps.len() < count
}

/// Renames the buffers that are named after a replaced buffer, such as its selected rows, after
/// the buffer in its place.
fn name_after(plan: &mut Plan, replaced: BufferId, by: BufferId) {
    let [old, new] = [replaced, by].map(|id| plan.buffer(id).name.clone());
    for buffer in &mut plan.buffers {
        let rest = buffer.name.strip_prefix(&old).filter(|rest| rest.starts_with('.'));
        if let Some(rest) = rest {
            buffer.name = format!("{new}{rest}");
        }
    }
}

/// Returns the buffer of the norm's sum before a step that multiplies it, the factor, and the
/// buffer of the product.
fn scaled_sum(plan: &Plan, index: usize) -> Option<(BufferId, f32, BufferId)> {
    let Op::NormAdd { target, scale: 1.0, .. } = plan.steps[index - 1].op else { return None };
    let Op::Sum { terms, output } = &plan.steps[index].op else { return None };
    let [Term { buffer, factor }] = terms[..] else { return None };
    let shape = |id| (plan.buffer(id).rows, plan.buffer(id).columns);
    let is_read = |step: &Step| step.op.touches().contains(&target);
    let fits = buffer == target
        && shape(target) == shape(*output)
        && !plan.outputs.contains(&target)
        && !plan.steps[index + 1..].iter().any(is_read);
    fits.then_some((target, factor, *output))
}

/// Applies the rules in one walk over the Plan. After a rewrite it steps back as far as a rule can
/// see, because the new step may begin or continue another pattern.
fn walk(mut plan: Plan) -> Plan {
    let mut uses = Uses::count(&plan);
    let mut fused: Vec<Step> = Vec::with_capacity(plan.steps.len());
    let mut rest: VecDeque<Step> = std::mem::take(&mut plan.steps).into();
    loop {
        let window: Vec<Step> = rest.iter().take(REACH).cloned().collect();
        let Some((count, op)) = RULES.iter().find_map(|rule| rule(&window, &uses)) else {
            let Some(step) = rest.pop_front() else { break };
            uses.pass(&step.op);
            fused.push(step);
            continue;
        };
        let label = window[0].label.clone();
        window[..count].iter().for_each(|step| uses.forget(&step.op));
        uses.add(&op);
        rest.drain(..count);
        rest.push_front(Step { label, op });
        let back = fused.len().saturating_sub(REACH);
        for step in fused.drain(back..).rev() {
            uses.come_back(&step.op);
            rest.push_front(step);
        }
    }
    plan.steps = fused;
    plan
}

/// The numbers of steps that read each buffer. An output of the Plan counts as one.
struct Uses {
    all: Vec<usize>,
    /// The numbers of steps from the present one on.
    ahead: Vec<usize>,
}

impl Uses {
    fn count(plan: &Plan) -> Self {
        let none = vec![0; plan.buffers.len()];
        let mut uses = Uses { all: none.clone(), ahead: none };
        plan.steps.iter().for_each(|step| uses.add(&step.op));
        for id in &plan.outputs {
            uses.all[id.0] += 1;
            uses.ahead[id.0] += 1;
        }
        uses
    }

    /// Counts a step that is ahead.
    fn add(&mut self, op: &Op) {
        op.reads().into_iter().for_each(|id| self.all[id.0] += 1);
        self.come_back(op);
    }

    /// Leaves out a step that is ahead.
    fn forget(&mut self, op: &Op) {
        op.reads().into_iter().for_each(|id| self.all[id.0] -= 1);
        self.pass(op);
    }

    /// Counts a step as passed.
    fn pass(&mut self, op: &Op) {
        op.reads().into_iter().for_each(|id| self.ahead[id.0] -= 1);
    }

    /// Counts a step that was passed as one that is ahead.
    fn come_back(&mut self, op: &Op) {
        op.reads().into_iter().for_each(|id| self.ahead[id.0] += 1);
    }

    /// Returns whether only the step that is being fused reads the buffer.
    fn once(&self, id: BufferId) -> bool {
        self.all[id.0] == 1
    }
}

/// Fuses products of one input into one step.
fn share_input(steps: &[Step], _: &Uses) -> Option<Rewrite> {
    let [
        Step { op: Op::MatMul { input, products }, .. },
        Step { op: Op::MatMul { input: again, products: more }, .. },
        ..,
    ] = steps
    else {
        return None;
    };
    let all: Vec<_> = products.iter().chain(more).copied().collect();
    (input == again).then_some((2, Op::MatMul { input: *input, products: all }))
}

/// Fuses gate and up projection with their activation.
fn gate(steps: &[Step], uses: &Uses) -> Option<Rewrite> {
    let [
        Step { op: Op::MatMul { input, products }, .. },
        Step { op: Op::Geglu { gate, up, first: 0, output }, .. },
        ..,
    ] = steps
    else {
        return None;
    };
    let [first, second] = products.as_slice() else { return None };
    let fits = first.output == *gate && second.output == *up && uses.once(*gate) && uses.once(*up);
    fits.then_some((
        2,
        Op::GatedMatMul { input: *input, gate: first.weight, up: second.weight, output: *output },
    ))
}

/// Fuses a norm that is only added to the residual stream with that addition.
fn norm_then_add(steps: &[Step], uses: &Uses) -> Option<Rewrite> {
    let [
        Step { op: Op::Norm { input, weight, epsilon, output }, .. },
        Step { op: Op::Add { source, target }, .. },
        ..,
    ] = steps
    else {
        return None;
    };
    let (input, weight, epsilon) = (*input, *weight, *epsilon);
    let op = Op::NormAdd { input, weight, epsilon, target: *target, scale: 1.0 };
    (source == output && uses.once(*output)).then_some((2, op))
}

/// Fuses a norm and its addition with the next norm on the residual stream.
fn norm_add_then_norm(steps: &[Step], _: &Uses) -> Option<Rewrite> {
    let [
        Step { op: Op::NormAdd { input, weight, epsilon, target, scale }, .. },
        Step { op: Op::Norm { input: next, weight: next_weight, epsilon: same, output }, .. },
        ..,
    ] = steps
    else {
        return None;
    };
    let op = Op::NormAddNorm {
        input: *input,
        weight: *weight,
        epsilon: *epsilon,
        target: *target,
        scale: *scale,
        next_weight: *next_weight,
        output: *output,
    };
    (target == next && epsilon == same).then_some((2, op))
}

/// Fuses everything between the projections and attention, which may read selected queries.
fn prepare_qkv(steps: &[Step], uses: &Uses) -> Option<Rewrite> {
    let [a, b, c, d, e, rest @ ..] = steps else { return None };
    let Op::HeadNorm { buffer: query, weight: Some(query_norm), epsilon, heads: query_heads } =
        a.op
    else {
        return None;
    };
    let Op::HeadNorm { buffer: key, weight: Some(key_norm), epsilon: key_epsilon, .. } = b.op
    else {
        return None;
    };
    let Op::Rotate { buffer: query_again, rope, .. } = c.op else { return None };
    let Op::Rotate { buffer: key_again, rope: key_rope, .. } = d.op else { return None };
    let Op::StoreKv { key: stored, value, cache } = e.op else { return None };
    let (selects, attend) = match rest {
        [Step { op: Op::Select { input, output }, .. }, attend, ..] => {
            (Some((*input, *output)), attend)
        }
        [attend, ..] => (None, attend),
        [] => return None,
    };
    let Op::Attend { query: attends, heads, .. } = attend.op else { return None };
    let attended = match selects {
        Some((all, selected)) if selected == attends => all,
        Some(_) => return None,
        None => attends,
    };
    let same_buffers =
        query == query_again && query == attended && key == key_again && key == stored;
    // The key is read by its norm, its rotation and the write; no later step may read it. An
    // earlier one may have copied it to the values.
    let key_is_dead = uses.ahead[key.0] == 3;
    let same_numbers = rope == key_rope && epsilon == key_epsilon && query_heads == heads.query;
    let fits = same_buffers && key_is_dead && same_numbers;
    let op =
        Op::PrepareQkv { query, key, value, query_norm, key_norm, heads, epsilon, rope, cache };
    fits.then_some((5, op))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::config::Ahead;
    use crate::checkpoint::config::Rope;
    use crate::plan::{Buffer, CacheId, Heads, Product, Rows, WeightId};

    const A: BufferId = BufferId(0);
    const B: BufferId = BufferId(1);
    const C: BufferId = BufferId(2);
    const D: BufferId = BufferId(3);
    const W: WeightId = WeightId(0);
    const V: WeightId = WeightId(1);

    fn plan(ops: Vec<Op>, output: BufferId) -> Plan {
        let buffer = |index| Buffer { name: format!("b{index}"), rows: Rows::Tokens, columns: 8 };
        Plan {
            buffers: (0..7).map(buffer).collect(),
            weights: Vec::new(),
            caches: Vec::new(),
            steps: ops.into_iter().map(|op| Step { label: op.name().to_owned(), op }).collect(),
            inputs: Vec::new(),
            outputs: vec![output],
            ends: Vec::new(),
        }
    }

    fn fused(ops: Vec<Op>, output: BufferId) -> Vec<Op> {
        fuse(plan(ops, output)).steps.into_iter().map(|step| step.op).collect()
    }

    fn matmul(input: BufferId, weight: WeightId, output: BufferId) -> Op {
        Op::MatMul { input, products: vec![Product { weight, output }] }
    }

    fn norm(input: BufferId, weight: WeightId, output: BufferId) -> Op {
        Op::Norm { input, weight, epsilon: 1e-6, output }
    }

    #[test]
    fn products_of_one_input_share_a_step() {
        let both = Op::MatMul {
            input: A,
            products: vec![Product { weight: W, output: B }, Product { weight: V, output: C }],
        };
        assert_eq!(fused(vec![matmul(A, W, B), matmul(A, V, C)], C), [both]);
        let chain = vec![matmul(A, W, B), matmul(B, V, C)];
        assert_eq!(fused(chain.clone(), C), chain);
    }

    #[test]
    fn gate_and_up_take_their_activation_along() {
        let steps = vec![
            matmul(A, W, B),
            matmul(A, V, C),
            Op::Geglu { gate: B, up: C, first: 0, output: D },
        ];
        assert_eq!(
            fused(steps.clone(), D),
            [Op::GatedMatMul { input: A, gate: W, up: V, output: D }]
        );
        // Another step reads the up projection, so it has to be written.
        assert_eq!(fused(steps.clone(), C).len(), 2);
        // The activation takes other columns of the projection.
        let later = Op::Geglu { gate: B, up: C, first: 2, output: D };
        assert_eq!(fused([&steps[..2], &[later]].concat(), D).len(), 2);
    }

    #[test]
    fn norm_add_norm_becomes_one_step() {
        let steps = vec![norm(A, W, B), Op::Add { source: B, target: C }, norm(C, V, D)];
        let one = Op::NormAddNorm {
            input: A,
            weight: W,
            epsilon: 1e-6,
            target: C,
            scale: 1.0,
            next_weight: V,
            output: D,
        };
        assert_eq!(fused(steps.clone(), D), [one]);
        // Another step reads the normed value.
        assert_eq!(fused(steps.clone(), B), steps);
    }

    #[test]
    fn a_factor_on_the_residual_stream_joins_the_addition() {
        let scaled =
            |from, to, factor| Op::Sum { terms: vec![Term { buffer: from, factor }], output: to };
        let add =
            |input, output, target| [norm(input, W, output), Op::Add { source: output, target }];
        let e = BufferId(4);
        // The second layer continues with the buffer of the first one's product.
        let steps = [
            &add(A, B, C)[..],
            &[scaled(C, D, 0.5)],
            &add(A, BufferId(6), D),
            &[scaled(D, e, 3.0), norm(e, V, BufferId(5))],
        ]
        .concat();
        let end = |scale| Op::NormAdd { input: A, weight: W, epsilon: 1e-6, target: C, scale };
        let last = Op::NormAddNorm {
            input: A,
            weight: W,
            epsilon: 1e-6,
            target: C,
            scale: 3.0,
            next_weight: V,
            output: BufferId(5),
        };
        let whole = fuse(plan(steps.clone(), e));
        let ops: Vec<Op> = whole.steps.into_iter().map(|step| step.op).collect();
        assert_eq!(ops, [end(0.5), last]);
        assert_eq!(whole.outputs, [C]);
        // The sum is read as it is.
        assert_eq!(fused(steps, C).len(), 3);
    }

    #[test]
    fn qkv_preparation_becomes_one_step() {
        let (cache, heads) = (CacheId(0), Heads { query: 2, kv: 1, dim: 4 });
        let rope = Rope::full(1e4, 1.0);
        let head_norm = |buffer, weight, heads| Op::HeadNorm {
            buffer,
            weight: Some(weight),
            heads,
            epsilon: 1e-6,
        };
        let attend_to = |query| Op::Attend {
            query,
            cache,
            heads,
            scale: 0.5,
            window: None,
            ahead: Ahead::All,
            output: D,
        };
        let attend = attend_to(A);
        let steps = vec![
            head_norm(A, W, 2),
            head_norm(B, V, 1),
            Op::Rotate { buffer: A, heads: 2, rope },
            Op::Rotate { buffer: B, heads: 1, rope },
            Op::StoreKv { key: B, value: C, cache },
            attend.clone(),
        ];
        let one = Op::PrepareQkv {
            query: A,
            key: B,
            value: C,
            query_norm: W,
            key_norm: V,
            heads,
            epsilon: 1e-6,
            rope,
            cache,
        };
        assert_eq!(fused(steps.clone(), D), [one.clone(), attend.clone()]);
        // Only some of the rows attend.
        let select = |input| Op::Select { input, output: BufferId(4) };
        let narrow = attend_to(BufferId(4));
        let with_end = |end: [Op; 2]| [&steps[..5], &end].concat();
        let end = [select(A), narrow.clone()];
        assert_eq!(fused(with_end(end.clone()), D)[..], [&[one.clone()][..], &end].concat()[..]);
        // Other rows attend than those that were selected.
        for end in [[select(C), narrow], [select(A), attend.clone()]] {
            assert_eq!(fused(with_end(end.clone()), D), with_end(end));
        }
        // Another step reads the rotated key.
        assert_eq!(fused(steps.clone(), B), steps);
        // An earlier step reads the key as it was.
        let copy = Op::Sum { terms: vec![Term { buffer: B, factor: 1.0 }], output: C };
        let copied = [std::slice::from_ref(&copy), &steps[..]].concat();
        assert_eq!(fused(copied, D), [copy, one, attend]);
        // The keys' norm has no weight.
        let mut plain = steps;
        plain[1] = Op::HeadNorm { buffer: B, weight: None, heads: 1, epsilon: 1e-6 };
        assert_eq!(fused(plain.clone(), D), plain);
    }
}
