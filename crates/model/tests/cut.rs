//! Plans cut in two.

use std::path::Path;

use trine_model::{
    Ends, Goal, KvType, Model, Op, Plan, Rows, Scratch, Source, Width, Workload, cut, fusion,
    narrow,
};

fn golden(name: &str) -> Model {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens").join(name);
    Model::open(&path).unwrap()
}

/// Returns every form of a Plan that devices get.
fn forms(model: &Model) -> [Plan; 4] {
    let base = model.base_plan();
    let narrow = narrow::narrow(base.clone());
    [base.clone(), fusion::fuse(base), narrow, model.plan()]
}

fn names(plan: &Plan) -> Vec<&str> {
    let mut names: Vec<&str> = plan.weights.iter().map(|weight| weight.name.as_str()).collect();
    names.sort_unstable();
    names
}

#[test]
fn parts_meet_in_the_residual_stream() {
    let model = golden("gemma3-a");
    let hidden = model.config().hidden;
    for plan in forms(&model) {
        for layers in 1..plan.layers() {
            let [first, second] = cut::cut(&plan, layers).unwrap();
            assert_eq!((first.layers(), second.layers()), (layers, plan.layers() - layers));
            let (output, input) = (first.output(0), second.buffer(second.inputs[0].buffer));
            assert_eq!(output, input);
            assert_eq!((first.outputs.len(), second.inputs.len()), (1, 1));
            assert_eq!((output.rows, output.columns), (Rows::Tokens, hidden));
            assert_eq!(first.inputs, []);
            assert_eq!(second.inputs[0].source, Source::Part);
            assert_eq!(second.output(0), plan.output(0));
            let last = first.steps.last().unwrap();
            assert!(last.label.starts_with(&format!("blk.{}.", layers - 1)), "{}", last.label);
            let begins = &second.steps[0];
            assert!(begins.op.reads().contains(&second.inputs[0].buffer), "{}", begins.label);
            assert!(matches!(begins.op, Op::Norm { .. }), "{}", second.describe(&begins.op));
        }
    }
}

#[test]
fn each_part_has_its_own_weights_and_caches_alone() {
    let model = golden("gemma3-a");
    for plan in forms(&model) {
        let [first, second] = cut::cut(&plan, 1).unwrap();
        assert_eq!(first.caches, plan.caches[..1]);
        assert_eq!(second.caches, plan.caches[1..]);
        let mut all = [names(&first), names(&second)].concat();
        all.sort_unstable();
        if model.is_tied() {
            // The embedding table of the first part is also the output matrix of the second part.
            let table = all.iter().position(|name| *name == "token_embd.weight").unwrap();
            all.remove(table);
        }
        assert_eq!(all, names(&plan));
        for part in [&first, &second] {
            let touched = |id: usize| {
                part.steps.iter().any(|step| {
                    let ids = step.op.touches();
                    ids.into_iter().any(|touched| touched.0 == id)
                })
            };
            assert!((0..part.buffers.len()).all(touched), "{part}");
        }
    }
}

#[test]
fn joined_parts_do_what_the_whole_does() {
    let model = golden("gemma3-a");
    let base = model.base_plan();
    let [first, second] = cut::cut(&base, 1).unwrap();
    let whole = cut::join(&base, [&first, &second]);
    assert_eq!(whole.to_string(), base.to_string());
    assert_eq!(whole.caches, base.caches);
    let fused = model.plan();
    let [first, second] = cut::cut(&fused, 1).unwrap();
    let whole = cut::join(&fused, [&first, &second]);
    // The addition and the norm at the border are separate steps.
    assert_eq!(whole.steps.len(), fused.steps.len() + 1);
    assert_eq!(fusion::fuse(whole.clone()).to_string(), fused.to_string());
    assert_eq!(whole.layers(), fused.layers());
}

/// The steps of all parts serve the goal that the last one computes.
#[test]
fn joined_parts_cost_what_the_whole_does() {
    let model = golden("gemma3-a");
    let plan = model.plan_for(Ends { states: true, ..Ends::LOGITS });
    let workload = Workload::decode(3, 5, KvType::F16);
    assert_eq!(plan.goals(), [Goal::Main, Goal::States]);
    // The last layer attends in both ends, for the wanted rows and for all.
    assert_eq!(plan.layers(), model.plan().layers());
    for layers in 1..plan.layers() {
        let [first, second] = cut::cut(&plan, layers).unwrap();
        let whole = cut::join(&plan, [&first, &second]);
        assert_eq!(whole.inputs, plan.inputs);
        assert!(!whole.serving(Goal::Main)[..first.steps.len()].contains(&false), "{whole}");
        for goal in plan.goals() {
            let (found, expected) = (whole.cost_of(goal, workload), plan.cost_of(goal, workload));
            assert_eq!(found.memory_bytes(), expected.memory_bytes(), "{goal:?}");
        }
    }
    let shared = golden("gemma3n-a");
    assert_eq!(
        shared.plan_for(Ends { states: true, ..Ends::LOGITS }).layers(),
        shared.plan().layers()
    );
    let [first, rest] = cut::cut(&plan, 1).unwrap();
    if let Some([second, third]) = cut::cut(&rest, 1) {
        let whole = cut::join(&plan, [&first, &second, &third]);
        assert_eq!(whole.cost(workload).memory_bytes(), plan.cost(workload).memory_bytes());
    }
}

#[test]
fn there_is_no_border_before_the_first_layer_and_behind_the_last() {
    for plan in forms(&golden("gemma3-b")) {
        assert!(cut::cut(&plan, 0).is_none());
        assert!(cut::cut(&plan, plan.layers()).is_none());
        assert!(cut::cut(&plan, usize::MAX).is_none());
    }
}

/// Layers that read another layer's cache stay on its side of the cut.
#[test]
fn a_cache_is_never_needed_on_both_sides() {
    let mut plan = golden("gemma3-a").base_plan();
    for step in &mut plan.steps {
        if let Op::Attend { cache, .. } = &mut step.op {
            cache.0 = 0;
        }
    }
    assert!(plan.layers() > 1 && cut::cut(&plan, 1).is_none());
}

#[test]
fn the_input_keeps_its_memory_until_it_is_read() {
    let [_, second] = cut::cut(&golden("gemma3-a").plan(), 1).unwrap();
    let input = second.inputs[0].buffer;
    let scratch = Scratch::place(&second, Width { tokens: 5, outputs: 2 });
    let bytes = 4 * 5 * second.buffer(input).columns;
    let start = scratch.offsets[input.0].unwrap();
    let first_written = second.steps[0].op.writes()[0];
    let other = scratch.offsets[first_written.0].unwrap();
    assert!(other >= start + bytes || other < start, "the first step would overwrite its input");
}
