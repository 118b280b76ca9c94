//! What the stem of a file's name, the part before `.gguf`, tells: the quantisation, and the part
//! of a split set.

/// Splits `stem-00002-of-00005` into stem, 2 and 5 (the naming of split GGUF and sharded
/// safetensors files).
pub(crate) fn split_suffix(stem: &str) -> Option<(&str, u32, u32)> {
    const LENGTH: usize = "-00001-of-00001".len();
    let start = stem.len().checked_sub(LENGTH)?;
    let suffix = stem.get(start..)?;
    let (part, parts) = suffix.strip_prefix('-')?.split_once("-of-")?;
    let number = |text: &str| {
        let digits = text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| text.parse::<u32>().ok()).flatten()
    };
    let (part, parts) = (number(part)?, number(parts)?);
    (part >= 1 && part <= parts && start > 0).then(|| (&stem[..start], part, parts))
}

/// Returns the quantisation in a file's name, e.g. `Q4_K_M` in `gemma-3-4b-it-Q4_K_M` or
/// `UD-Q4_K_XL`.
pub(crate) fn quant_of(stem: &str) -> Option<String> {
    let mut end = stem.len();
    // The segments between '-' and '.', last one first.
    loop {
        let start = stem[..end].rfind(['-', '.']).map_or(0, |at| at + 1);
        let segment = &stem[start..end];
        if is_quant(segment) {
            let dynamic = stem[..start].len() >= 3
                && stem.get(start - 3..start).is_some_and(|p| p.eq_ignore_ascii_case("UD-"))
                && !stem[..start - 3].ends_with(|c: char| c.is_ascii_alphanumeric());
            let start = if dynamic { start - 3 } else { start };
            return Some(stem[start..end].to_owned());
        }
        // "model_Q4_0": the quantisation follows an underscore.
        let inner = segment.match_indices('_').map(|(at, _)| &segment[at + 1..]);
        if let Some(quant) = inner.into_iter().find(|rest| is_quant(rest)) {
            return Some(quant.to_owned());
        }
        if start == 0 {
            return None;
        }
        end = start - 1;
    }
}

/// Returns whether a text is a quantisation's name: a known type, perhaps with suffixes such as
/// `_K_M`.
pub(crate) fn is_quant(text: &str) -> bool {
    let upper = text.to_ascii_uppercase();
    let mut pieces = upper.split('_');
    let first = pieces.next().unwrap_or_default();
    let digits = |prefix: &str| {
        first
            .strip_prefix(prefix)
            .is_some_and(|rest| rest.len() == 1 && rest.bytes().all(|b| b.is_ascii_digit()))
    };
    let plain = matches!(first, "F16" | "F32" | "BF16" | "FP16" | "FP32" | "MXFP4" | "NVFP4");
    let suffix = |piece: &str| {
        !piece.is_empty() && piece.len() <= 4 && piece.bytes().all(|b| b.is_ascii_alphanumeric())
    };
    (plain || digits("Q") || digits("IQ") || digits("TQ")) && pieces.all(suffix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantisations_in_names_people_use() {
        for (stem, quant) in [
            ("gemma-3-4b-it-q4_0", Some("q4_0")),
            ("gemma-3-4b-it-Q4_K_M", Some("Q4_K_M")),
            ("gemma-3-12b-it-qat-UD-Q4_K_XL", Some("UD-Q4_K_XL")),
            ("google_gemma-3-4b-it-Q6_K_L", Some("Q6_K_L")),
            ("gemma-3-27b-it.Q4_K_M", Some("Q4_K_M")),
            ("gemma-3-27b-it.i1-IQ3_XXS", Some("IQ3_XXS")),
            ("gemma-3-4b-it-q4_0_s", Some("q4_0_s")),
            ("gemma-3-1b-it-BF16", Some("BF16")),
            ("gemma-3-4b-it-f16", Some("f16")),
            ("model_Q8_0", Some("Q8_0")),
            ("gemma-3-4b-it-Q4_0-imat", Some("Q4_0")),
            ("Q4_0", Some("Q4_0")),
            ("gemma-3-4b-it", None),
            ("gemma", None),
            ("", None),
            ("ü-ä", None),
        ] {
            assert_eq!(quant_of(stem).as_deref(), quant, "{stem}");
        }
    }
}
