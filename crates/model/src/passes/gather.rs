//! Gathering: a table of which only single rows are looked up stays in the mapped file, and the
//! host reads the rows, unless the device has room for the table.

use std::collections::BTreeSet;

use crate::plan::{Input, Op, Plan, Source, Step, Weight, WeightId, WeightPlace};

/// Makes an input ([`Source::Table`]) of each [`Op::Embed`] whose table no other operation reads,
/// and leaves the table in the file. It is for devices that would hold the table in a memory of
/// their own. Tables that are [held](WeightPlace::Held) stay where they are, and so do Plans of
/// pictures: a picture reads most of its table, which the host would convert and write each time.
pub fn gather(plan: Plan) -> Plan {
    gather_unless(plan, |table| table.place == WeightPlace::Held)
}

/// Does the same as [`gather`], but for the tables that the device looks rows up in itself.
pub fn gather_unless(mut plan: Plan, looks_up: impl Fn(&Weight) -> bool) -> Plan {
    let tables = looked_up(&plan);
    let (inputs, weights) = (&mut plan.inputs, &mut plan.weights);
    plan.steps.retain(|step| {
        let Op::Embed { table, scale, output } = step.op else { return true };
        if !tables.contains(&table) || looks_up(&weights[table.0]) {
            return true;
        }
        weights[table.0].place = WeightPlace::File;
        inputs.push(Input { buffer: output, source: Source::Table { table, scale } });
        false
    });
    plan
}

/// Returns the Plan with the tables that [`gather`] would leave in the file
/// [held](WeightPlace::Held) by the device.
pub fn hold(mut plan: Plan) -> Plan {
    for table in looked_up(&plan) {
        plan.weights[table.0].place = WeightPlace::Held;
    }
    plan
}

/// Returns the bytes of the tables that steps only look rows up in, and that are in no place of
/// their own by their [`WeightPlace`].
pub fn looked_up_bytes(plan: &Plan) -> u64 {
    let tables = looked_up(plan).into_iter().map(|id| plan.weight(id));
    tables.filter(|table| table.place == WeightPlace::Device).map(Weight::bytes).sum()
}

/// Returns the tables that steps only look rows up in; none for a Plan of pictures.
fn looked_up(plan: &Plan) -> BTreeSet<WeightId> {
    if plan.is_of_picture() {
        return BTreeSet::new();
    }
    let used = computed_with(plan);
    let is_embed = |step: &&Step| matches!(step.op, Op::Embed { .. });
    let embeds = plan.steps.iter().filter(is_embed);
    let tables: BTreeSet<WeightId> = embeds.flat_map(|step| step.op.weights()).collect();
    &tables - &used
}

/// Returns the weights that steps read as a whole.
fn computed_with(plan: &Plan) -> BTreeSet<WeightId> {
    let steps = plan.steps.iter().filter(|step| !matches!(step.op, Op::Embed { .. }));
    steps.flat_map(|step| step.op.weights()).collect()
}

#[cfg(test)]
mod tests {
    use trine_weights::DType;

    use super::*;
    use crate::plan::{Buffer, BufferId, Product, Rows, WeightKind};

    const TABLE: WeightId = WeightId(0);
    const OTHER: WeightId = WeightId(1);

    fn embed(table: WeightId, output: BufferId) -> Op {
        Op::Embed { table, scale: 2.0, output }
    }

    fn matmul(weight: WeightId) -> Op {
        let products = vec![Product { weight, output: BufferId(2) }];
        Op::MatMul { input: BufferId(0), products }
    }

    fn gathered(ops: Vec<Op>) -> Plan {
        gather(plan(ops))
    }

    fn plan(ops: Vec<Op>) -> Plan {
        let buffer = |index| Buffer { name: format!("b{index}"), rows: Rows::Tokens, columns: 8 };
        let weight = |name: &str| Weight {
            name: name.to_owned(),
            kind: WeightKind::Matrix,
            rows: 8,
            columns: 8,
            dtype: DType::F32,
            place: WeightPlace::Device,
        };
        Plan {
            buffers: (0..3).map(buffer).collect(),
            weights: ["table", "other"].map(weight).to_vec(),
            caches: Vec::new(),
            steps: ops.into_iter().map(|op| Step { label: op.name().to_owned(), op }).collect(),
            inputs: vec![Input { buffer: BufferId(1), source: Source::Plan }],
            outputs: vec![BufferId(2)],
            ends: Vec::new(),
        }
    }

    #[test]
    fn a_table_that_is_only_looked_up_stays_in_the_file() {
        let plan = gathered(vec![embed(TABLE, BufferId(0)), matmul(OTHER)]);
        assert_eq!(plan.steps.len(), 1);
        let source = Source::Table { table: TABLE, scale: 2.0 };
        assert_eq!(plan.inputs[1..], [Input { buffer: BufferId(0), source }]);
        assert_eq!(plan.given().collect::<Vec<_>>(), [BufferId(1)]);
        assert_eq!(plan.weights[0].place, WeightPlace::File);
        assert_eq!(plan.weights[1].place, WeightPlace::Device);
        assert_eq!(
            (plan.bytes_at(WeightPlace::File), plan.bytes_at(WeightPlace::Device)),
            (256, 256)
        );
        assert_eq!(gather(plan.clone()), plan);
        assert_eq!(looked_up_bytes(&plan), 0, "no step looks rows up");
    }

    #[test]
    fn a_table_that_is_held_stays_on_the_device() {
        let ops = vec![embed(TABLE, BufferId(0)), matmul(OTHER)];
        let held = hold(plan(ops.clone()));
        assert_eq!(held.weights[0].place, WeightPlace::Held);
        assert_eq!(held.weights[1].place, WeightPlace::Device);
        assert_eq!(gather(held.clone()), held);
        assert_eq!(hold(held.clone()), held);
        assert_eq!(held.bytes_at(WeightPlace::Held), 256);
        assert_eq!(looked_up_bytes(&held), 0);
        assert_eq!(looked_up_bytes(&plan(ops.clone())), 256);
        assert_eq!(gather_unless(held, |_| false), gather(plan(ops)));
        let multiplied = plan(vec![embed(TABLE, BufferId(0)), matmul(TABLE)]);
        assert_eq!(hold(multiplied.clone()), multiplied);
    }

    #[test]
    fn a_picture_has_its_places_on_the_device() {
        let mut plan = gathered(vec![matmul(OTHER)]);
        plan.inputs[0].source = Source::Picture;
        plan.steps.insert(0, Step { label: "places".to_owned(), op: embed(TABLE, BufferId(0)) });
        assert_eq!(gather(plan.clone()), plan);
        plan.inputs[0].source = Source::Plan;
        assert_ne!(gather(plan.clone()), plan);
    }

    #[test]
    fn a_table_that_is_multiplied_too_stays_where_it_is() {
        for ops in [
            vec![embed(TABLE, BufferId(0)), matmul(TABLE)],
            vec![matmul(TABLE), embed(TABLE, BufferId(2))],
        ] {
            let plan = gathered(ops.clone());
            assert_eq!(looked_up_bytes(&plan), 0);
            assert_eq!(plan.steps.into_iter().map(|step| step.op).collect::<Vec<_>>(), ops);
            assert_eq!(plan.inputs.len(), 1);
            assert!(plan.weights.iter().all(|weight| weight.place == WeightPlace::Device));
        }
    }
}
