//! Vectors of texts on the scalar reference against those of another implementation.

use trine_backend::reference::ReferenceDevice;
use trine_model::{Ahead, Ends, KvType, Op, Plan};
use trine_testing::embeddings::{EmbeddingGolden, embeddings};

/// 1 - cosine. The smallest of the mistakes below, another base of the rotation, makes 7e-5 to
/// 1.5e-2.
const TOLERANCE: f64 = 1e-5;

fn found(golden: &EmbeddingGolden, plan: Plan, texts: &[Vec<u32>]) -> Vec<f64> {
    let device = ReferenceDevice::new();
    golden.distances(&embeddings(&device, &golden.model, plan, texts, KvType::F32))
}

#[test]
fn vectors_are_those_of_the_definition() {
    for name in ["embedding-gemma", "gguf/embedding-gemma"] {
        let golden = EmbeddingGolden::load(name);
        let distances = found(&golden, golden.model.plan_for(Ends::STATES), &golden.ids);
        assert!(distances.iter().all(|off| off.abs() <= TOLERANCE), "{name}: {distances:?}");
    }
}

/// Changes the window of local layers, in positions with the row's own.
fn with_window(plan: &mut Plan, change: impl Fn(usize) -> Option<usize>) {
    plan.caches.iter_mut().for_each(|cache| cache.window = cache.window.and_then(&change));
    for step in &mut plan.steps {
        if let Op::Attend { window, .. } = &mut step.op {
            *window = window.and_then(&change);
        }
    }
}

/// The mistakes of the golden's manifest fail the test above.
#[test]
fn mistakes_are_larger_than_the_tolerance() {
    let golden = EmbeddingGolden::load("embedding-gemma");
    let plan = || golden.model.plan_for(Ends::STATES);
    let mut plans: Vec<(&str, Plan)> = Vec::new();
    let mut add = |name: &'static str, change: &dyn Fn(&mut Plan)| {
        let mut plan = plan();
        change(&mut plan);
        plans.push((name, plan));
    };
    add("causal", &|plan| {
        for step in &mut plan.steps {
            if let Op::Attend { ahead, .. } = &mut step.op {
                *ahead = Ahead::Nothing;
            }
        }
    });
    add("no window ahead", &|plan| {
        for step in &mut plan.steps {
            if let Op::Attend { ahead, .. } = &mut step.op {
                *ahead = Ahead::All;
            }
        }
    });
    add("radius one less", &|plan| with_window(plan, |window| Some(window - 1)));
    add("radius one more", &|plan| with_window(plan, |window| Some(window + 1)));
    add("window as radius", &|plan| with_window(plan, |window| Some(2 * window - 1)));
    add("no window", &|plan| with_window(plan, |_| None));
    add("one base of rotation", &|plan| {
        for step in &mut plan.steps {
            if let Op::PrepareQkv { rope, .. } | Op::Rotate { rope, .. } = &mut step.op {
                rope.theta = 1e4;
            }
        }
    });
    add("no dense layers", &|plan| {
        plan.steps.truncate(plan.steps.len() - 2);
        plan.outputs = plan.steps.last().unwrap().op.writes();
        assert_eq!(plan.output(0).columns, 96);
    });
    for (name, plan) in plans {
        let distances = found(&golden, plan, &golden.ids);
        assert!(distances.iter().any(|off| *off > 5.0 * TOLERANCE), "{name}: {distances:?}");
    }
    for (name, cut) in [("no eos", 0), ("no bos", 1)] {
        let shorter = |text: &Vec<u32>| text[cut..text.len() - 1 + cut].to_vec();
        let texts: Vec<Vec<u32>> = golden.ids.iter().map(shorter).collect();
        let distances = found(&golden, plan(), &texts);
        assert!(distances.iter().all(|off| *off > 5.0 * TOLERANCE), "{name}: {distances:?}");
    }
}
