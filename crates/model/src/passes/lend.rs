//! Lending: gives a part of each product to a partner, which computes beside the device that runs
//! the Plan.
//!
//! Of a matrix that is lent, the first rows stay with the device, and the others go to the partner
//! for the bulk rows of a step. The results of both are joined column by column.

use crate::plan::{Buffer, BufferId, Op, Plan, Product, Rows, Step, Weight, WeightId, WeightPlace};

/// Slices of a matrix begin at multiples of this number of rows, so that they begin where a panel
/// of any device does.
pub const LENT_ALIGNMENT: usize = 64;

/// Returns the Plan with the products over all tokens split between the device and a partner.
///
/// `kept` returns how many rows of a matrix stay with the device; the number is rounded down to a
/// multiple of [`LENT_ALIGNMENT`]. A matrix of which all rows stay is not split. Of a gated product
/// the two matrices are split alike, where `kept` says for the first.
pub fn lend(plan: Plan, kept: &dyn Fn(&Weight) -> usize) -> Plan {
    let mut lending = Lending { plan, kept, steps: Vec::new() };
    for step in std::mem::take(&mut lending.plan.steps) {
        lending.step(step);
    }
    lending.plan.steps = lending.steps;
    lending.plan
}

struct Lending<'a> {
    plan: Plan,
    kept: &'a dyn Fn(&Weight) -> usize,
    steps: Vec<Step>,
}

/// The two parts of a matrix.
struct Parts {
    /// The first rows; `None` if the partner takes all.
    kept: Option<WeightId>,
    lent: WeightId,
}

impl Lending<'_> {
    fn step(&mut self, step: Step) {
        let is_wide = |input: &BufferId| self.plan.buffer(*input).rows == Rows::Tokens;
        match &step.op {
            Op::MatMul { input, products } if is_wide(input) => {
                self.products(&step, *input, products);
            }
            Op::GatedMatMul { input, gate, up, output } if is_wide(input) => {
                self.gated(&step, *input, (*gate, *up), *output);
            }
            _ => self.steps.push(step),
        }
    }

    fn products(&mut self, step: &Step, input: BufferId, products: &[Product]) {
        let (mut own, mut lent, mut joins) = (Vec::new(), Vec::new(), Vec::new());
        for product in products {
            let rows = self.rows_kept(product.weight);
            let Some(parts) = self.split(product.weight, rows) else {
                own.push(*product);
                continue;
            };
            let mut sides = Vec::new();
            if let Some(weight) = parts.kept {
                let output = self.side(product.output, "kept", weight);
                own.push(Product { weight, output });
                sides.push(output);
            }
            let output = self.side(product.output, "lent", parts.lent);
            lent.push(Product { weight: parts.lent, output });
            sides.push(output);
            joins.push(Op::Join { parts: sides, output: product.output });
        }
        if lent.is_empty() {
            self.steps.push(step.clone());
            return;
        }
        if !own.is_empty() {
            self.push(step, "kept", Op::MatMul { input, products: own });
        }
        self.push_away(step, Op::MatMul { input, products: lent });
        joins.into_iter().for_each(|join| self.push(step, "join", join));
    }

    fn gated(
        &mut self,
        step: &Step,
        input: BufferId,
        (gate, up): (WeightId, WeightId),
        output: BufferId,
    ) {
        let rows = self.rows_kept(gate);
        let (Some(gate), Some(up)) = (self.split(gate, rows), self.split(up, rows)) else {
            self.steps.push(step.clone());
            return;
        };
        let lent = [("gate", gate.lent), ("up", up.lent)]
            .map(|(side, weight)| Product { weight, output: self.side(output, side, weight) });
        let mut parts = Vec::new();
        if let (Some(gate), Some(up)) = (gate.kept, up.kept) {
            let kept = self.side(output, "kept", gate);
            self.push(step, "kept", Op::GatedMatMul { input, gate, up, output: kept });
            parts.push(kept);
        }
        self.push_away(step, Op::MatMul { input, products: lent.to_vec() });
        let [gate, up] = lent.map(|product| product.output);
        let gated = self.side(output, "lent", lent[0].weight);
        self.push(step, "gate", Op::Geglu { gate, up, first: 0, output: gated });
        parts.push(gated);
        self.push(step, "join", Op::Join { parts, output });
    }

    /// Returns how many rows of a matrix stay.
    fn rows_kept(&self, id: WeightId) -> usize {
        let weight = self.plan.weight(id);
        match (self.kept)(weight) {
            kept if kept >= weight.rows => weight.rows,
            kept => kept / LENT_ALIGNMENT * LENT_ALIGNMENT,
        }
    }

    /// Adds the slices of a matrix, of which the first rows stay; `None` if these are all.
    fn split(&mut self, of: WeightId, kept: usize) -> Option<Parts> {
        let rows = self.plan.weight(of).rows;
        let mut slice = |first: usize, end: usize| {
            let whole = self.plan.weight(of);
            let name = format!("{}[{first}..{end}]", whole.name);
            let place = WeightPlace::Slice { of, first };
            let slice = Weight { name, rows: end - first, place, ..whole.clone() };
            self.plan.weights.push(slice);
            WeightId(self.plan.weights.len() - 1)
        };
        (kept < rows)
            .then(|| Parts { kept: (kept > 0).then(|| slice(0, kept)), lent: slice(kept, rows) })
    }

    /// Adds a buffer for the columns of `whole` that a slice computes.
    fn side(&mut self, whole: BufferId, side: &str, slice: WeightId) -> BufferId {
        let Buffer { name, rows, .. } = self.plan.buffer(whole);
        let (name, rows) = (format!("{name}.{side}"), *rows);
        self.buffer(Buffer { name, rows, columns: self.plan.weight(slice).rows })
    }

    fn buffer(&mut self, buffer: Buffer) -> BufferId {
        self.plan.buffers.push(buffer);
        BufferId(self.plan.buffers.len() - 1)
    }

    fn push_away(&mut self, step: &Step, op: Op) {
        let lent = Step { label: format!("{}.lent", step.label), op };
        self.push(step, "away", Op::Away { steps: vec![lent] });
    }

    fn push(&mut self, step: &Step, part: &str, op: Op) {
        self.steps.push(Step { label: format!("{}.{part}", step.label), op });
    }
}

#[cfg(test)]
mod tests {
    use trine_weights::DType;

    use super::*;
    use crate::plan::WeightKind;
    use crate::plan::goal::{End, Goal};
    use crate::{KvType, Scratch, Width, Workload};

    const INPUT: BufferId = BufferId(0);
    const OUTPUT: BufferId = BufferId(1);
    const OTHER: BufferId = BufferId(2);

    /// A Plan of one operation over two matrices of 200 rows.
    fn plan(rows: Rows, op: Op) -> Plan {
        let buffer = |name: &str, columns| Buffer { name: name.to_owned(), rows, columns };
        let weight = |name: &str| Weight {
            name: name.to_owned(),
            kind: WeightKind::Matrix,
            rows: 200,
            columns: 32,
            dtype: DType::Q8_0,
            place: WeightPlace::Device,
        };
        Plan {
            buffers: vec![buffer("x", 32), buffer("y", 200), buffer("z", 200)],
            weights: vec![weight("w"), weight("v")],
            caches: Vec::new(),
            steps: vec![Step { label: "blk.0.it".to_owned(), op }],
            inputs: Vec::new(),
            outputs: vec![OUTPUT],
            ends: Vec::new(),
        }
    }

    fn products() -> Op {
        let product = |weight, output| Product { weight: WeightId(weight), output };
        Op::MatMul { input: INPUT, products: vec![product(0, OUTPUT), product(1, OTHER)] }
    }

    fn gated() -> Op {
        Op::GatedMatMul { input: INPUT, gate: WeightId(0), up: WeightId(1), output: OUTPUT }
    }

    fn text(plan: &Plan) -> Vec<String> {
        plan.steps.iter().map(|step| plan.describe(&step.op)).collect()
    }

    #[test]
    fn a_product_keeps_whole_panels_of_what_is_lent() {
        let lent = lend(plan(Rows::Tokens, products()), &|weight| match weight.name.as_str() {
            "w" => 130,
            _ => usize::MAX,
        });
        assert_eq!(
            text(&lent),
            [
                "matmul x[n,32] x w[0..128][128,32]:Q8_0, v[200,32]:Q8_0 -> y.kept[n,128], \
                 z[n,200]",
                "away x[n,32] x w[128..200][72,32]:Q8_0 -> y.lent[n,72] (matmul)",
                "join y.kept[n,128], y.lent[n,72] -> y[n,200]",
            ]
        );
        let of = WeightId(0);
        assert_eq!(lent.weights[2].place, WeightPlace::Slice { of, first: 0 });
        assert_eq!(lent.weights[3].place, WeightPlace::Slice { of, first: 128 });
        assert_eq!((lent.holder(WeightId(3)), lent.holder(WeightId(1))), (of, WeightId(1)));
    }

    #[test]
    fn all_of_a_product_can_be_lent() {
        let lent = lend(plan(Rows::Tokens, products()), &|_| 63);
        let names: Vec<&str> = lent.steps.iter().map(|step| step.op.name()).collect();
        assert_eq!(names, ["away", "join", "join"]);
        let names: Vec<&str> = lent.steps.iter().map(|step| step.label.as_str()).collect();
        assert_eq!(names[0], "blk.0.it.away");
    }

    #[test]
    fn a_gated_product_is_gated_where_it_was_computed() {
        let lent = lend(plan(Rows::Tokens, gated()), &|_| 64);
        assert_eq!(
            text(&lent),
            [
                "gated_matmul x[n,32] x w[0..64][64,32]:Q8_0, v[0..64][64,32]:Q8_0 -> y.kept[n,64]",
                "away x[n,32] x w[64..200][136,32]:Q8_0, v[64..200][136,32]:Q8_0 -> \
                 y.gate[n,136], y.up[n,136] (matmul)",
                "geglu y.gate[n,136], y.up[n,136] -> y.lent[n,136]",
                "join y.kept[n,64], y.lent[n,136] -> y[n,200]",
            ]
        );
    }

    #[test]
    fn rows_of_outputs_and_what_stays_whole_are_left_alone() {
        for (rows, kept) in [(Rows::Outputs, 0), (Rows::Tokens, 200), (Rows::Tokens, usize::MAX)] {
            for op in [products(), gated()] {
                let plan = plan(rows, op);
                assert_eq!(lend(plan.clone(), &|_| kept), plan);
            }
        }
    }

    /// What is lent is a part of the same work, and the memory of a weight counts once.
    #[test]
    fn costs_count_once() {
        let work = Workload::prefill(7, KvType::F16);
        for op in [products(), gated()] {
            let whole = plan(Rows::Tokens, op);
            let lent = lend(whole.clone(), &|_| 64);
            let (before, after) = (whole.cost(work), lent.cost(work));
            assert_eq!(after.weight_bytes, before.weight_bytes);
            assert!(after.operations >= before.operations);
            assert!(after.operations < before.operations + 7 * 200 * 4 * 4);
            assert_eq!(lent.bytes_at(WeightPlace::Device), whole.bytes_at(WeightPlace::Device));
        }
    }

    /// Goals and lifetimes follow from the operands: what is lent for a goal runs for it, and the
    /// input lives until its products are there.
    #[test]
    fn loans_order_what_they_join() {
        let mut whole = plan(Rows::Tokens, products());
        whole.outputs = vec![OUTPUT, OTHER];
        whole.ends = [Goal::Main, Goal::States].map(|goal| End { goal, outputs: 1 }).to_vec();
        let lent = lend(whole, &|_| 64);
        assert_eq!(lent.serving(Goal::Main), [true, true, true, false]);
        let scratch = Scratch::place(&lent, Width { tokens: 3, outputs: 1 });
        let at = |name: &str| {
            let index = lent.buffers.iter().position(|buffer| buffer.name == name).unwrap();
            scratch.offsets[index].unwrap()
        };
        assert_ne!(at("x"), at("y.lent"));
    }
}
