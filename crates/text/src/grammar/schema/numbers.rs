//! Bounds of numbers, within what the library can follow: it counts whole numbers in 64 bits.

use serde_json::{Map, Value};

/// The largest double below 2^63.
const LARGEST: f64 = 9_223_372_036_854_774_784.0;

/// From here on the library needs the other bound, too: it would look for more digits than 64 bits
/// hold.
const LONG: f64 = 1e18;

/// The bound of a number with a `multipleOf` that has none, in which it has at most 16 digits:
/// where a number ends, it must be a multiple, and the library sees to that within bounds only.
const USUAL: f64 = 9_999_999_999_999_998.0;

/// From here on doubles have no halves, and no two lie within the same whole number.
const HALVES: f64 = 4_503_599_627_370_496.0;

/// The last digit after the point that is written; see [`crate::grammar::numbers`].
const LAST_DIGIT: f64 = 1e-16;

/// One side's keywords, inclusive and exclusive, and its sign.
struct Side {
    keys: [&'static str; 2],
    sign: f64,
}

const SIDES: [Side; 2] = [
    Side { keys: ["minimum", "exclusiveMinimum"], sign: -1.0 },
    Side { keys: ["maximum", "exclusiveMaximum"], sign: 1.0 },
];

impl Side {
    /// Returns the bound outwards of 0: of the lower side the more, the lower it is.
    fn bound(&self, map: &Map<String, Value>, key: &str) -> Option<f64> {
        map.get(key).and_then(Value::as_f64).map(|number| number * self.sign)
    }

    fn is_in(&self, map: &Map<String, Value>) -> bool {
        self.keys.iter().any(|key| self.bound(map, key).is_some())
    }

    /// Brings the exclusive bound into the form that the library holds. Where both bounds lie
    /// within one whole number, it takes the one nearer to 0 as inclusive if it is whole. The other
    /// bound may come from another part of the schema, so this one becomes the inclusive bound
    /// beside it anyway: of 0 the number with one digit in the last place that is written, of
    /// others the next double.
    fn hold_exclusive(&self, map: &mut Map<String, Value>, other: &Self) {
        let [inclusive, exclusive] = self.keys;
        // Draft 4 says with a boolean that the other keyword is exclusive.
        let key =
            if map.get(exclusive) == Some(&Value::Bool(true)) { inclusive } else { exclusive };
        let Some(outward) = self.bound(map, key) else { return };
        if outward > 0.0 || outward.fract() != 0.0 || outward.abs() >= HALVES {
            return;
        }
        let inner = match outward {
            0.0 => -other.least(map),
            whole => whole.next_down(),
        };
        let own = self.bound(map, inclusive).filter(|_| key != inclusive);
        map.shift_remove(exclusive);
        if own.is_none_or(|own| inner < own) {
            map.insert(inclusive.to_owned(), (inner * self.sign).into());
        }
    }

    /// Returns the number nearest to 0 that is written if 0 is the other side's bound: one digit in
    /// the last place, or less if the bound of this side is that near.
    fn least(&self, map: &Map<String, Value>) -> f64 {
        let bounds = self.keys.iter().filter_map(|key| self.bound(map, key));
        let nearest = bounds.filter(|&bound| bound > 0.0).fold(1.0, f64::min);
        LAST_DIGIT.min(nearest * LAST_DIGIT)
    }
}

/// Why a bound is not held.
pub(super) const TOO_FAR: &str = "numbers of 2^63 and more are not supported; use a bound nearer \
    to 0, or a string with a pattern";

/// Brings the bounds of numbers in a schema into the library's reach. What no double passes is no
/// bound. Farther ones become narrower: no number of that many digits is written. Returns the
/// keywords of those that ask for larger numbers, which are removed.
pub(super) fn bound(map: &mut Map<String, Value>) -> Vec<&'static str> {
    let mut too_far = Vec::new();
    for (side, other) in [(0, 1), (1, 0)].map(|(side, other)| (&SIDES[side], &SIDES[other])) {
        for key in side.keys {
            let Some(outward) = side.bound(map, key) else { continue };
            if outward >= f64::MAX {
                map.shift_remove(key);
            } else if outward > LARGEST {
                map.insert(key.to_owned(), (LARGEST * side.sign).into());
            } else if outward < -LARGEST {
                too_far.push(key);
                map.shift_remove(key);
            } else if outward <= -LONG && !other.is_in(map) {
                map.insert(other.keys[0].to_owned(), (LARGEST * other.sign).into());
            }
        }
    }
    if map.contains_key("multipleOf") {
        for (side, other) in [(0, 1), (1, 0)].map(|(side, other)| (&SIDES[side], &SIDES[other])) {
            let is_usual = |key: &&str| other.bound(map, key).is_none_or(|bound| bound > -USUAL);
            if !side.is_in(map) && other.keys.iter().all(is_usual) {
                map.insert(side.keys[0].to_owned(), (USUAL * side.sign).into());
            }
        }
    }
    for (side, other) in [(0, 1), (1, 0)].map(|(side, other)| (&SIDES[side], &SIDES[other])) {
        side.hold_exclusive(map, other);
    }
    too_far
}

/// Returns the most digits before or after the point of a number that a schema names: a bound, or a
/// value.
pub(in crate::grammar) fn digits_named(schema: &Value) -> usize {
    let mut most = 0;
    let mut left = vec![(schema, false)];
    while let Some((part, is_value)) = left.pop() {
        match part {
            Value::Number(number) if is_value => {
                most = most.max(number.as_f64().map_or(0, digits_of));
            }
            Value::Array(items) => left.extend(items.iter().map(|item| (item, is_value))),
            Value::Object(map) => {
                for (key, value) in map {
                    let is_bound = SIDES.iter().any(|side| side.keys.contains(&&**key));
                    let is_far = value.as_f64().is_some_and(|number| number.abs() > LARGEST);
                    match key.as_str() {
                        "default" | "examples" => {}
                        _ if is_bound && is_far => {}
                        key => left
                            .push((value, is_value || is_bound || matches!(key, "const" | "enum"))),
                    }
                }
            }
            _ => {}
        }
    }
    most
}

fn digits_of(number: f64) -> usize {
    let spelled = number.abs().to_string();
    spelled.split('.').map(str::len).max().unwrap_or_default()
}
