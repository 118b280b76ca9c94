//! Drafts that read the caches of the model they guess for.

use std::path::{Path, PathBuf};

use trine_model::cut::cut;
use trine_model::{Assistant, Ends, Goal, KvType, Model, Op, Step, Workload};
use trine_weights::DType;

const GOALS: [Goal; 3] = [Goal::Main, Goal::States, Goal::Draft];

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens")
}

#[test]
fn drafts_belong_to_one_model_on_one_device() {
    let open = |name: &str| Model::open(&goldens().join(name)).unwrap();
    let draft = |name: &str| Assistant::open(&goldens().join(name).join("assistant")).unwrap();
    let model = open("gemma4-dense").with_assistant(draft("gemma4-dense")).unwrap();
    let plan = model.plan_for(Ends { logits: true, states: true, drafts: true });
    assert_eq!(plan.goals(), GOALS);
    assert_eq!(GOALS.map(|goal| plan.outputs_for(goal)), [0..2, 2..3, 3..5]);
    let stores = |goal| {
        let steps = plan.steps.iter().zip(plan.serving(goal));
        steps.filter(|(step, serves)| *serves && step.op.stores()).count()
    };
    assert_eq!(GOALS.map(stores), [9, 9, 0]);
    for layers in 1..9 {
        assert!(cut(&model.plan(), layers).is_some(), "{layers}");
        assert!(cut(&plan, layers).is_none(), "a guess reads caches of both parts");
    }
    for (name, other) in [("gemma4-e", "gemma4-dense"), ("gemma4-dense", "gemma4-e")] {
        let error = open(name).with_assistant(draft(other)).err().unwrap().to_string();
        assert!(error.contains("the draft has a backbone of"), "{error}");
    }
    assert!(Model::open(&goldens().join("gemma4-e/assistant")).is_err(), "it is no model");
    assert!(Assistant::open(&goldens().join("gemma4-e")).is_err(), "it is no draft");
}

/// A guess multiplies the tokens of the clusters that it searches, which its output matrix has
/// together; without clusters all of them.
#[test]
fn a_guess_reads_the_clusters_that_it_searches() {
    let with_draft = |name: &str| {
        let draft = Assistant::open(&goldens().join(name).join("assistant")).unwrap();
        Model::open(&goldens().join(name)).unwrap().with_assistant(draft).unwrap()
    };
    let model = with_draft("gemma4-e");
    let plan = model.plan_for(Ends::DRAFTS);
    let searches = |step: &&Step| matches!(step.op, Op::Search { .. });
    let search = plan.steps.iter().find(searches).unwrap();
    let Op::Search { routes, clusters, tokens, output, .. } = search.op else { unreachable!() };
    let columns = [routes.chosen, output].map(|id| plan.buffer(id).columns);
    assert_eq!((columns, clusters.first, clusters.step), ([4, 528], 0, 16));
    assert_eq!(plan.outputs, [output, plan.outputs[1]]);
    let rows = |rows: usize| plan.step_cost(search, Workload::decode(rows, 9, KvType::F16));
    let whole = plan.weight(clusters.weight).bytes() + plan.weight(tokens).bytes();
    assert_eq!(rows(1).weight_bytes, (whole as f64 * 4.0 / 33.0).round() as u64);
    assert_eq!(rows(3).operations, 3 * 2 * 40 * 4 * 16);
    assert!(rows(3).weight_bytes > rows(1).weight_bytes && rows(1000).weight_bytes <= whole);

    // Each row of the matrix is that of its token, in the file's format and in another one.
    let numbers = model.vector(plan.weight(tokens));
    let in_order = model.tensor(plan.weight(clusters.weight)).to_f32().unwrap();
    let mut weight = plan.weight(clusters.weight).clone();
    for dtype in [weight.dtype, DType::F32] {
        weight.dtype = dtype;
        let found = model.converted(&weight).unwrap().to_f32().unwrap();
        for (row, token) in found.chunks_exact(40).zip(&numbers) {
            assert_eq!(row, &in_order[*token as usize * 40..][..40], "{token}");
        }
    }
    let moved = numbers.iter().enumerate().filter(|(at, token)| *at != **token as usize);
    assert!(moved.count() > 400);

    let plan = with_draft("gemma4-dense").plan_for(Ends::DRAFTS);
    assert!(!plan.steps.iter().any(|step| searches(&step)));
}
