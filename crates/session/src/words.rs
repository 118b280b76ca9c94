//! Numbers and names for people.

use std::borrow::Cow;

/// The most characters of a path in a message.
const PATH_CHARACTERS: usize = 400;

/// Returns a path for a message: on one line, without what a terminal would obey.
pub fn shown(path: &std::path::Path) -> String {
    trine_foreign::cut_name(&path.display().to_string(), PATH_CHARACTERS)
}

/// Makes names and other texts from outside harmless for a terminal, of one line or of several:
/// what would control it, is invisible or turns the direction of writing becomes a visible
/// character, except line breaks and tabs.
pub fn harmless(text: &str) -> Cow<'_, str> {
    let is_harmful = |c: char| trine_foreign::is_misleading(c) && !matches!(c, '\n' | '\t');
    if !text.contains(is_harmful) {
        return text.into();
    }
    text.chars()
        .map(|c| if is_harmful(c) { char::REPLACEMENT_CHARACTER } else { c })
        .collect::<String>()
        .into()
}

/// Formats an approximate size: `about 810 MB`.
pub fn about_bytes(count: u64) -> String {
    let step = 10u64.pow(count.max(1).ilog10().saturating_sub(1));
    let rounded = (count / step + u64::from(count % step >= step.div_ceil(2))) * step;
    format!("about {}", bytes(rounded).replacen(".0 ", " ", 1))
}

/// Formats bytes for people, in powers of ten as disks and bandwidths are counted: `806.1 MB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// Formats a count for people: `1.3 G`.
pub fn count(number: u64) -> String {
    const UNITS: [&str; 5] = ["", " k", " M", " G", " T"];
    let mut value = number as f64;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { number.to_string() } else { format!("{value:.1}{}", UNITS[unit]) }
}

/// Formats a number of things: `1 sequence`, `8 sequences`.
pub fn counted(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Formats a rate with three significant digits: `0.512`, `33.6`, `1290`.
pub fn rate(value: f64) -> String {
    match value {
        v if !v.is_finite() => "-".to_owned(),
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v if v >= 1.0 => format!("{v:.2}"),
        v => format!("{v:.3}"),
    }
}

/// Formats a rate that is a forecast, with two significant digits: `0.5`, `7`, `30`.
pub fn short_rate(value: f64) -> String {
    match value {
        v if !v.is_finite() => "-".to_owned(),
        v if v >= 10.0 => {
            let step = 10_f64.powf(v.log10().floor() - 1.0);
            format!("{:.0}", (v / step).round() * step)
        }
        v if v >= 1.0 => format!("{v:.0}"),
        v => format!("{v:.1}"),
    }
}

/// Formats seconds for people: `412 ms`, `2.31 s`.
pub fn seconds(value: f64) -> String {
    if value < 1.0 { format!("{:.0} ms", value * 1e3) } else { format!("{value:.2} s") }
}

/// Returns the candidates whose spelling is close to `wanted`, best first, at most three.
pub fn close_names<'a>(
    wanted: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Vec<&'a str> {
    let wanted: Vec<char> = wanted.to_lowercase().chars().take(128).collect();
    // Two letters that changed places count as two edits. In a name of one or two letters such
    // edits would leave nothing of the original.
    let limit = if wanted.len() < 4 { wanted.len() / 3 } else { (wanted.len() / 3).max(2) };
    let mut ranked: Vec<(usize, &str)> = candidates
        .into_iter()
        .map(|candidate| (distance(&wanted, &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .collect();
    ranked.sort_unstable();
    ranked.into_iter().take(3).map(|(_, candidate)| candidate).collect()
}

/// Returns the number of edits (insert, delete or replace a character) between two texts.
fn distance(left: &[char], right: &str) -> usize {
    let right: Vec<char> = right.chars().take(128).collect();
    let mut above: Vec<usize> = (0..=right.len()).collect();
    for (row, from) in left.iter().enumerate() {
        let mut current = vec![row + 1];
        for (column, to) in right.iter().enumerate() {
            let replaced = above[column] + usize::from(from != to);
            current.push(replaced.min(above[column + 1] + 1).min(current[column] + 1));
        }
        above = current;
    }
    above[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(806_058_272), "806.1 MB");
        assert_eq!(bytes(999_999), "1.0 MB");
        assert_eq!(count(512), "512");
        assert_eq!(count(1_300_000_000), "1.3 G");
        assert_eq!(rate(33.649), "33.6");
        assert_eq!(rate(0.5123), "0.512");
        assert_eq!(rate(f64::NAN), "-");
        assert_eq!(seconds(0.0214), "21 ms");
        let short = [0.52, 6.6, 13.7, 128.0, f64::NAN].map(short_rate);
        assert_eq!(short, ["0.5", "7", "14", "130", "-"]);
    }

    #[test]
    fn sizes_that_are_known_about_have_two_digits() {
        for (count, said) in [
            (806_000_000, "about 810 MB"),
            (1_070_000_000, "about 1.1 GB"),
            (28_710_000_000, "about 29 GB"),
            (995_000_000, "about 1 GB"),
            (7, "about 7 B"),
            (0, "about 0 B"),
        ] {
            assert_eq!(about_bytes(count), said);
        }
        assert!(about_bytes(u64::MAX).ends_with("TB"));
    }

    #[test]
    fn close_spellings() {
        assert_eq!(close_names("modle.gguf", ["model.gguf", "notes.txt"]), ["model.gguf"]);
        assert_eq!(close_names("/hlep", ["/help", "/exit"]), ["/help"]);
        assert!(close_names("abcd", ["wxyz"]).is_empty());
        assert!(close_names("-", ["ab", "p"]).is_empty());
        assert_eq!(close_names("abc", ["abd", "xyz"]), ["abd"]);
    }
}
