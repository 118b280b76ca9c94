//! How many sequences run at the same time if nobody chooses.

/// The most sequences that run at the same time if nobody chooses.
pub const PLACES_MAX: usize = 256;
/// Positions of a sequence for whose sake places beyond those that were asked for take blocks, and
/// at which their speed is forecast: a few questions and answers.
pub const CONTEXT_TYPICAL: usize = 2048;
/// How much faster all sequences together have to be for twice as many places.
const WORTH: f64 = 1.05;

/// Returns how many sequences, from `least` to `most`, are worth running at the same time: twice as
/// many as long as all together are faster by a twentieth. `seconds` forecasts a step in which a
/// number of sequences write a token each; where it knows nothing, no more than `least` are worth
/// it.
///
/// Twice as many sequences that are hardly faster together are each half as fast, and end later
/// than if half of them had waited.
pub fn worthwhile(least: usize, most: usize, seconds: impl Fn(usize) -> Option<f64>) -> usize {
    let rate = |places: usize| seconds(places).map(|seconds| places as f64 / seconds);
    let mut places = least;
    let Some(mut best) = rate(places) else { return least };
    while places < most {
        let more = places.saturating_mul(2).min(most);
        match rate(more) {
            Some(rate) if rate >= WORTH * best => (places, best) = (more, rate),
            _ => break,
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_double_while_all_are_faster_together() {
        let of = |seconds: &dyn Fn(f64) -> f64, most| {
            worthwhile(8, most, |places| Some(seconds(places as f64)))
        };
        // Reads that all share, and a part for each.
        assert_eq!(of(&|places| 10.0 + 0.01 * places, 256), 256);
        assert_eq!(of(&|places| 10.0 + 0.01 * places, 100), 100);
        assert_eq!(of(&|places| 10.0 + places, 256), 128);
        assert_eq!(of(&|places| 0.2 + places, 256), 8);
        // Another kernel for many rows is not waited for.
        assert_eq!(of(&|places| if places > 16.0 { 20.0 } else { places }, 256), 8);
        assert_eq!(of(&|_| 1.0, 8), 8);
        assert_eq!(worthwhile(8, 256, |_| None), 8);
        assert_eq!(worthwhile(8, 256, |places| (places < 20).then_some(1.0)), 16);
    }
}
