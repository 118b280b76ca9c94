//! What the checking device's model continues with.

use crate::fake::next_logits;

/// The next tokens, always the likeliest one, the first of equals.
pub(crate) fn greedy(prompt: &[u32], count: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for _ in 0..count {
        let logits = next_logits(&tokens);
        let best =
            (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)));
        tokens.push(best.expect("there are logits") as u32);
    }
    tokens.split_off(prompt.len())
}
