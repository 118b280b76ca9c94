//! What examples that measure share.

use std::collections::BTreeMap;
use std::str::FromStr;

use trine_model::{KvType, Plan};

/// Returns the middle one of some times.
pub fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Reads `N` numbers between commas.
///
/// # Errors
/// What is wrong with them.
pub fn numbers<T: FromStr, const N: usize>(text: &str) -> Result<[T; N], String> {
    let all: Result<Vec<T>, _> = text.split(',').map(str::parse).collect();
    let all = all.ok().and_then(|all| all.try_into().ok());
    all.ok_or(format!("{text} should be {N} numbers"))
}

/// Reads the type of a cache.
///
/// # Errors
/// If there is none of this name.
pub fn kv(name: &str) -> Result<KvType, String> {
    KvType::parse(name).ok_or("it is f32, f16 or int8".to_owned())
}

/// Returns the seconds of equal operations of all layers, whose labels begin with `prefix`, and
/// their number.
pub fn by_operation(plan: &Plan, times: &[f64], prefix: &str) -> BTreeMap<String, (f64, usize)> {
    let mut groups = BTreeMap::<_, (f64, usize)>::new();
    for (step, seconds) in plan.steps.iter().zip(times) {
        let layer = step.label.strip_prefix(prefix).and_then(|rest| rest.split_once('.'));
        let label = layer.map_or(step.label.as_str(), |(_, rest)| rest);
        let (sum, count) = groups.entry(label.to_owned()).or_default();
        *sum += seconds;
        *count += 1;
    }
    groups
}
