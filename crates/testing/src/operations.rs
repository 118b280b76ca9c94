//! The operations of Plans, counted.

use trine_model::{Op, Plan};

/// The number of operations that Plans of models and towers have.
pub const OPERATIONS: usize = 33;

/// How many of them are for a device with a partner.
pub const OF_PARTNERS: usize = 2;

/// Returns the numbers of a Plan's operations.
pub fn numbers(plan: &Plan) -> impl Iterator<Item = usize> {
    plan.steps.iter().map(|step| number(&step.op))
}

/// Numbers the operations, so that an operation that is added does not compile here until it is
/// counted.
fn number(op: &Op) -> usize {
    match op {
        Op::Embed { .. } => 0,
        Op::Norm { .. } => 1,
        Op::HeadNorm { .. } => 2,
        Op::Rotate { .. } => 3,
        Op::MatMul { .. } => 4,
        Op::StoreKv { .. } => 5,
        Op::Attend { .. } => 6,
        Op::Geglu { .. } => 7,
        Op::Add { .. } => 8,
        Op::Select { .. } => 9,
        Op::Softcap { .. } => 10,
        Op::GatedMatMul { .. } => 11,
        Op::NormAdd { .. } => 12,
        Op::NormAddNorm { .. } => 13,
        Op::PrepareQkv { .. } => 14,
        Op::Sum { .. } => 15,
        Op::Mix { .. } => 16,
        Op::Rescale { .. } => 17,
        Op::Scale { .. } => 18,
        Op::Cutoff { .. } => 19,
        Op::Away { .. } => 20,
        Op::Join { .. } => 21,
        Op::Route { .. } => 22,
        Op::GatedExperts { .. } => 23,
        Op::SumExperts { .. } => 24,
        Op::Search { .. } => unreachable!("only drafts search"),
        Op::LayerNorm { .. } => 25,
        Op::Gelu { .. } => 26,
        Op::Bias { .. } => 27,
        Op::Pool { .. } => 28,
        Op::Insert { .. } => 29,
        Op::PositionEmbedding { .. } => 30,
        Op::RotateByPosition { .. } => 31,
        Op::Clamp { .. } => 32,
    }
}
