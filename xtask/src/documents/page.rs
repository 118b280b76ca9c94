//! Documents as lines.

/// Returns whether the path is that of a document.
pub(super) fn is_markdown(path: &str) -> bool {
    path.ends_with(".md")
}

/// Returns the numbered lines of a document without code blocks.
pub(crate) fn lines_of_text(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_block = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_block ^= is_fence;
        !is_fence && !is_block
    })
}
