//! Plans with more inputs and outputs than a model's own.

use std::path::Path;

use trine_backend::Device;
use trine_model::{
    Buffer, BufferId, Input, KvType, Model, Op, Plan, Rows, Source, Step, WeightId, names,
};
use trine_weights::DType;

use super::random::{Random, model_of_layers, outputs_of, relative_difference};

/// A random model of several layers whose embedding table is not its output matrix.
pub fn untied(random: &mut Random, dtype: DType, folder: &Path) -> Model {
    let models = (0..50).map(|_| model_of_layers(random, dtype, folder));
    models.into_iter().find(|model| !model.is_tied()).unwrap()
}

/// A Plan of two outputs: logits, and the residual stream of all rows after the last layer.
pub fn with_states(base: &Plan) -> Plan {
    let mut plan = base.clone();
    plan.outputs.push(residual(base));
    plan
}

/// A base Plan with two inputs and three outputs: logits, the residual stream, and an input that
/// nothing reads. The other input is added to the residual stream before the first layer and after
/// the last one, and there too a norm that was made before the first: of a cut, both parts read the
/// input, and two buffers cross the border.
pub fn with_more(base: &Plan) -> Plan {
    let mut plan = with_states(base);
    let stream = residual(base);
    let columns = base.buffer(stream).columns;
    let mut buffer = |name: &str| {
        plan.buffers.push(Buffer { name: name.to_owned(), rows: Rows::Tokens, columns });
        BufferId(plan.buffers.len() - 1)
    };
    let (unused, picture, extra) = (buffer("unused"), buffer("picture"), buffer("extra"));
    let given = |buffer| Input { buffer, source: Source::Plan };
    plan.inputs = vec![given(unused), given(picture)];
    plan.outputs.push(unused);
    let weight = plan.weights.iter().position(|weight| weight.name == names::OUTPUT_NORM).unwrap();
    let weight = WeightId(weight);
    let step = |label: &str, op| Step { label: label.to_owned(), op };
    let add = |source| step("add", Op::Add { source, target: stream });
    let norm = Op::Norm { input: stream, weight, epsilon: 1e-6, output: extra };
    let select = plan.steps.iter().position(|step| matches!(step.op, Op::Select { .. })).unwrap();
    plan.steps.splice(select..select, [add(picture), add(extra)]);
    plan.steps.splice(1..1, [step("norm", norm), add(picture)]);
    plan
}

fn residual(base: &Plan) -> BufferId {
    match base.steps[0].op {
        Op::Embed { output, .. } => output,
        _ => panic!("a base Plan begins with the embedding"),
    }
}

/// The bits of each output of a Plan over some traffic.
pub fn bits(device: &dyn Device, model: &Model, plan: &Plan, seed: u64) -> Vec<Vec<u32>> {
    let outputs = outputs_of(device, model, plan.clone(), KvType::F16, seed, 40);
    let bits = |steps: Vec<Vec<f32>>| steps.concat().into_iter().map(f32::to_bits).collect();
    outputs.into_iter().map(bits).collect()
}

/// The largest difference of each of two devices' first two outputs of a Plan, relative to the
/// output's largest value. Further outputs have to be the same bits.
pub fn differences(
    devices: [&dyn Device; 2],
    model: &Model,
    plans: [&Plan; 2],
    seed: u64,
    width: usize,
) -> [f32; 2] {
    let run = |which: usize| {
        outputs_of(devices[which], model, plans[which].clone(), KvType::F32, seed, width)
    };
    let (expected, found) = (run(0), run(1));
    let bits =
        |steps: &[Vec<f32>]| -> Vec<u32> { steps.concat().into_iter().map(f32::to_bits).collect() };
    for (expected, found) in expected.iter().zip(&found).skip(2) {
        assert_eq!(bits(expected), bits(found));
    }
    [0, 1].map(|output| relative_difference(&expected[output], &found[output]))
}
