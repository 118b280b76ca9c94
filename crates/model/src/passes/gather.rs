//! Gathering: a table of which only single rows are looked up stays in the mapped file, and the
//! host reads the rows.

use std::collections::BTreeSet;

use crate::plan::{Input, Op, Plan, Source, Step, Weight, WeightId, WeightPlace};

/// Makes an input ([`Source::Table`]) of each [`Op::Embed`] whose table no other operation reads,
/// and leaves the table in the file. It is for devices that would hold the table in a memory of
/// their own. Plans of pictures stay as they are: a picture reads most of its table, which the host
/// would convert and write each time.
pub fn gather(mut plan: Plan) -> Plan {
    if plan.is_of_picture() {
        return plan;
    }
    let used = computed_with(&plan);
    let (inputs, weights) = (&mut plan.inputs, &mut plan.weights);
    plan.steps.retain(|step| {
        let Op::Embed { table, scale, output } = step.op else { return true };
        if !used.contains(&table) {
            weights[table.0].place = WeightPlace::File;
            inputs.push(Input { buffer: output, source: Source::Table { table, scale } });
        }
        used.contains(&table)
    });
    plan
}

/// Returns the bytes of the tables that steps only look rows up in, and that are not in the file by
/// their [`WeightPlace`].
pub fn looked_up_bytes(plan: &Plan) -> u64 {
    let used = computed_with(plan);
    let is_embed = |step: &&Step| matches!(step.op, Op::Embed { .. });
    let embeds = plan.steps.iter().filter(is_embed);
    let tables: BTreeSet<WeightId> = embeds.flat_map(|step| step.op.weights()).collect();
    let tables = tables.difference(&used).map(|id| plan.weight(*id));
    tables.filter(|table| table.place == WeightPlace::Device).map(Weight::bytes).sum()
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
        let buffer = |index| Buffer { name: format!("b{index}"), rows: Rows::Tokens, columns: 8 };
        let weight = |name: &str| Weight {
            name: name.to_owned(),
            kind: WeightKind::Matrix,
            rows: 8,
            columns: 8,
            dtype: DType::F32,
            place: WeightPlace::Device,
        };
        gather(Plan {
            buffers: (0..3).map(buffer).collect(),
            weights: ["table", "other"].map(weight).to_vec(),
            caches: Vec::new(),
            steps: ops.into_iter().map(|op| Step { label: op.name().to_owned(), op }).collect(),
            inputs: vec![Input { buffer: BufferId(1), source: Source::Plan }],
            outputs: vec![BufferId(2)],
            ends: Vec::new(),
        })
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
