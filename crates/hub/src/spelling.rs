//! What was meant by a wrong name.

/// Returns the few `candidates` whose spelling is closest to `wanted`, best first.
pub(crate) fn closest(wanted: &str, candidates: &[String]) -> Vec<String> {
    let wanted = wanted.to_lowercase();
    // More than one letter in four is another word.
    let limit = (wanted.chars().count() / 4).clamp(1, 4);
    let mut ranked: Vec<(usize, &String)> = candidates
        .iter()
        .take(2000)
        .map(|candidate| (distance(&wanted, &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .collect();
    ranked.sort();
    ranked.into_iter().take(5).map(|(_, candidate)| candidate.clone()).collect()
}

/// Returns the Levenshtein distance over the first 128 characters of each text.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().take(128).collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.chars().take(128).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in right.iter().enumerate() {
            let substituted = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_and_close_names() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("same", "same"), 0);
        let names = ["gemma-Q4_0.gguf", "gemma-Q8_0.gguf", "quite-different"].map(String::from);
        assert_eq!(closest("gema-q4_0.gguf", &names)[0], "gemma-Q4_0.gguf");
        assert!(closest("zzzzzzzzzz", &names).is_empty());
    }
}
