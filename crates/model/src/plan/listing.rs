//! Listings of the steps of a pass for people: layers that do the same are printed once.
//!
//! ```text
//!       layers 1-4, 6-10: each as layer 1
//!    6  blk.1.query              matmul ...
//! ```

use std::fmt;

/// A step, or one of the parts that a device makes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Its number; `None` for a line before the first step.
    pub number: Option<usize>,
    /// Its name; that of a step of layer 3 begins with `blk.3.`.
    pub label: String,
    /// Its operation as text. Values are called `%` and a number.
    pub text: String,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.number.map_or_else(String::new, |number| number.to_string());
        write!(f, "{number:>4}  {:<24} {}", self.label, self.text)
    }
}

/// Steps in order. In print each has a line, and of layers that do the same only the first one is
/// shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing(pub Vec<Line>);

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut is_after = false;
        for section in &self.sections() {
            if !section.layers.is_empty() {
                writeln!(f, "      {}", heading(&section.layers))?;
            } else if is_after {
                writeln!(f, "      after the layers")?;
            }
            is_after = !section.layers.is_empty();
            for line in section.lines {
                writeln!(f, "{line}")?;
            }
        }
        Ok(())
    }
}

/// Neighbouring steps: those of a layer, or those before or after all layers.
struct Section<'a> {
    /// The layer, and later ones that do the same; empty for steps of no layer.
    layers: Vec<usize>,
    lines: &'a [Line],
    /// The text that is the same for layers that do the same.
    plain: String,
}

impl Listing {
    fn sections(&self) -> Vec<Section<'_>> {
        let mut sections: Vec<Section<'_>> = Vec::new();
        let mut rest = self.0.as_slice();
        while let Some(first) = rest.first() {
            let layer = layer_of(&first.label);
            let (lines, after) = rest.split_at(length(rest, layer));
            rest = after;
            let plain = layer.map_or_else(String::new, |layer| plain(lines, layer));
            let same = sections.iter_mut().find(|section| section.plain == plain);
            match (layer, same) {
                (Some(layer), Some(same)) => same.layers.push(layer),
                _ => sections.push(Section { layers: layer.into_iter().collect(), lines, plain }),
            }
        }
        sections
    }
}

/// Returns the number of steps in the section that begins here. A step of no layer that lies
/// between steps of a layer counts as one of that layer.
fn length(lines: &[Line], layer: Option<usize>) -> usize {
    let is_other = |line: &Line| {
        let found = layer_of(&line.label);
        found != layer && (layer.is_none() || found.is_some())
    };
    let end = lines.iter().position(is_other).unwrap_or(lines.len());
    let last = lines[..end].iter().rposition(|line| layer_of(&line.label) == layer);
    last.map_or(end, |last| last + 1)
}

/// Returns the layer that a label names.
fn layer_of(label: &str) -> Option<usize> {
    label.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

/// Returns the text of a layer's steps with layers numbered relative to this one and values
/// relative to the first one that it names.
fn plain(lines: &[Line], layer: usize) -> String {
    let mut values = Vec::new();
    let mut text = String::new();
    for line in lines {
        for part in [&line.label, &line.text] {
            push_plain(&mut text, part, layer, &mut values);
            text.push('\n');
        }
    }
    text
}

fn push_plain<'a>(text: &mut String, part: &'a str, layer: usize, values: &mut Vec<&'a str>) {
    let mut rest = part;
    while let Some(character) = rest.chars().next() {
        let mark = ["blk.", "%"].into_iter().find(|mark| rest.starts_with(mark));
        let Some(mark) = mark else {
            text.push(character);
            rest = &rest[character.len_utf8()..];
            continue;
        };
        let after = &rest[mark.len()..];
        let digits = after.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = after.split_at(digits);
        text.push_str(mark);
        match number.parse::<usize>() {
            Ok(found) if mark == "blk." => {
                let sign = if found < layer { "-" } else { "" };
                text.push_str(&format!("{sign}{}", found.abs_diff(layer)));
            }
            _ if mark == "%" && digits > 0 => {
                let known = values.iter().position(|value| *value == number);
                let place = known.unwrap_or_else(|| {
                    values.push(number);
                    values.len() - 1
                });
                text.push_str(&place.to_string());
            }
            _ => text.push_str(number),
        }
        rest = after;
    }
}

/// Returns the layers of a section in words.
fn heading(layers: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for &layer in layers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == layer => *last = layer,
            _ => ranges.push((layer, layer)),
        }
    }
    let range = |(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    match layers {
        [layer] => format!("layer {layer}"),
        _ => {
            let ranges: Vec<String> = ranges.iter().map(range).collect();
            format!("layers {}: each as layer {}", ranges.join(", "), layers[0])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(lines: &[(&str, &str)]) -> String {
        let line = |(number, (label, text)): (usize, &(&str, &str))| Line {
            number: Some(number),
            label: (*label).to_owned(),
            text: (*text).to_owned(),
        };
        Listing(lines.iter().enumerate().map(line).collect()).to_string()
    }

    #[test]
    fn layers_that_do_the_same_are_printed_once() {
        let found = listing(&[
            ("embed", "embed -> %0"),
            ("blk.0.query", "norm %0 x blk.0.norm -> %1"),
            ("blk.1.query", "norm %1 x blk.0.last, blk.1.norm -> %2"),
            ("blk.2.query", "norm %2 x blk.1.last, blk.2.norm -> %3"),
            ("blk.3.query", "norm %3 x blk.2.last, blk.3.norm -> %4 (window 8)"),
            ("blk.4.query", "norm %4 x blk.3.last, blk.4.norm -> %5"),
            ("blk.5.query", "norm %5 x blk.4.last, blk.5.norm -> %5"),
            ("select", "select %5"),
            ("blk.5.out", "matmul %5"),
            ("logits", "matmul %5"),
        ]);
        let expected = [
            "   0  embed                    embed -> %0",
            "      layer 0",
            "   1  blk.0.query              norm %0 x blk.0.norm -> %1",
            "      layers 1-2, 4: each as layer 1",
            "   2  blk.1.query              norm %1 x blk.0.last, blk.1.norm -> %2",
            "      layer 3",
            "   4  blk.3.query              norm %3 x blk.2.last, blk.3.norm -> %4 (window 8)",
            "      layer 5",
            "   6  blk.5.query              norm %5 x blk.4.last, blk.5.norm -> %5",
            "   7  select                   select %5",
            "   8  blk.5.out                matmul %5",
            "      after the layers",
            "   9  logits                   matmul %5",
        ];
        assert_eq!(found.lines().collect::<Vec<_>>(), expected);
    }

    /// Labels are names in a file's Plan or names of other crates; none of them breaks a listing.
    #[test]
    fn labels_of_other_forms_are_of_no_layer() {
        for label in ["", "blk.", "blk.x.y", "blk.1", "blk.99999999999999999999.x", "%", "%x", "ä"]
        {
            assert_eq!(listing(&[(label, label)]).lines().count(), 1, "{label}");
        }
    }
}
