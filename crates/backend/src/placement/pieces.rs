//! How many rows of a prompt run in one step if nobody chooses.

/// The longest step, by forecast, for whose rows of prompts others wait: its end is the first
/// moment at which a request that comes can begin, or one that is no longer wanted can end.
const SECONDS_MAX: f64 = 0.5;

/// Returns how many rows, from `least` to `most`, a step is to have: twice as many as long as
/// `seconds` knows of a step that has room and is short. Matrices are read once for all rows of a
/// step, and more rows fill a device more evenly.
pub fn piece(least: usize, most: usize, seconds: impl Fn(usize) -> Option<f64>) -> usize {
    let mut rows = least;
    while rows < most {
        let more = rows.saturating_mul(2).min(most);
        if seconds(more).is_none_or(|seconds| seconds > SECONDS_MAX) {
            break;
        }
        rows = more;
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_double_while_a_step_is_short() {
        for (row, most, expected) in [
            (1e-6, 4096, 4096),
            (1e-6, 3000, 3000),
            (2.4e-4, 4096, 2048),
            (5e-4, 4096, 512),
            (1.0, 4096, 512),
            (1e-6, 512, 512),
        ] {
            let found = piece(512, most, |rows| Some(row * rows as f64));
            assert_eq!(found, expected, "{row} s a row, up to {most}");
        }
        assert_eq!(piece(512, 4096, |_| None), 512, "nothing is known");
        assert_eq!(piece(512, 4096, |rows| (rows < 2048).then_some(0.0)), 1024, "no room");
    }
}
