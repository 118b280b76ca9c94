//! Bounds of numbers in schemas.

use serde_json::{Map, Value, json};

use crate::schemas::{call, calls, strict, takes, with};

#[test]
fn exclusive_bounds_within_one_whole_number_are_held() {
    let bounds: Vec<f64> =
        (-8..=8).map(|quarter| f64::from(quarter) / 4.0).chain([-5e-9, 5e-9]).collect();
    let values: Vec<f64> =
        (-24..=24).map(|step| f64::from(step) / 8.0).chain([-1e-9, 1e-9]).collect();
    let holds = |schema: &Map<String, Value>, value: f64| {
        schema.iter().all(|(key, bound)| match (key.as_str(), bound.as_f64()) {
            ("minimum", Some(bound)) => value >= bound,
            ("exclusiveMinimum", Some(bound)) => value > bound,
            ("maximum", Some(bound)) => value <= bound,
            ("exclusiveMaximum", Some(bound)) => value < bound,
            _ => true,
        })
    };
    let mut compiled = 0;
    for (low, high) in bounds.iter().flat_map(|low| bounds.iter().map(move |high| (*low, *high))) {
        // Further apart, bounds of one side do what they do without the other.
        if low >= high || high - low > 1.25 {
            continue;
        }
        for (lower, upper) in [
            ("minimum", "exclusiveMaximum"),
            ("exclusiveMinimum", "maximum"),
            ("exclusiveMinimum", "exclusiveMaximum"),
        ] {
            let schema = json!({"type": "number", lower: low, upper: high});
            let grammar = strict(&schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
            for value in &values {
                let expected = holds(schema.as_object().unwrap(), *value);
                assert_eq!(takes(&grammar, &value.to_string()), expected, "{schema} {value}");
            }
            assert!(!takes(&grammar, "-0") || holds(schema.as_object().unwrap(), 0.0), "{schema}");
            compiled += 1;
        }
    }
    assert!(compiled > 200, "{compiled}");
    for (schema, good, bad) in [
        // The bounds may come from different parts.
        (
            json!({"allOf": [{"type": "number", "exclusiveMinimum": 0}, {"maximum": 0.5}]}),
            vec!["0.25", "0.5"],
            vec!["0", "0.0", "0.75"],
        ),
        (
            json!({"type": "number", "maximum": 0.5, "minimum": 0, "exclusiveMinimum": true}),
            vec!["0.25", "0.5"],
            vec!["0", "-0", "0.75"],
        ),
        (json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1e-20}), vec![], vec!["0"]),
        (json!({"type": "integer", "exclusiveMinimum": 0}), vec!["1"], vec!["0", "-1"]),
        (json!({"type": "integer", "exclusiveMaximum": -3}), vec!["-4"], vec!["-3", "0"]),
        (
            json!({"type": "integer", "exclusiveMinimum": 9_007_199_254_740_991_u64}),
            vec!["9007199254740992"],
            vec!["9007199254740991"],
        ),
    ] {
        let grammars = [strict(&schema).unwrap(), calls(&with(schema.clone())).unwrap()];
        good.iter().for_each(|text| assert!(takes(&grammars[0], text), "{schema} takes {text}"));
        bad.iter().for_each(|text| assert!(!takes(&grammars[0], text), "{schema} refuses {text}"));
        for text in &bad {
            let call = call(&format!("{{\"a\": {text}}}"));
            assert!(!takes(&grammars[1], &call), "{schema} refuses {text}");
        }
    }
}
