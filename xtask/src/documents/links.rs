//! Links between documents: the file exists, and has the heading.

use std::collections::BTreeMap;

use super::page::{is_markdown, lines_of_text};
use crate::sources::joined;

/// The texts of the documents by their paths, and all paths of the repository.
pub(super) struct Links<'a> {
    headings: BTreeMap<&'a str, Vec<String>>,
    is_there: &'a dyn Fn(&str) -> bool,
}

impl<'a> Links<'a> {
    pub(super) fn new(
        texts: impl Iterator<Item = (&'a str, &'a str)>,
        is_there: &'a dyn Fn(&str) -> bool,
    ) -> Self {
        Self { headings: texts.map(|(path, text)| (path, headings(text))).collect(), is_there }
    }

    /// Returns the links of a document that lead nowhere, as complaints.
    pub(super) fn complaints(&self, path: &str, text: &str) -> Vec<String> {
        let mut complaints = Vec::new();
        for (number, line) in lines_of_text(text) {
            for target in targets(line) {
                if let Some(what) = self.wrong(path, target) {
                    complaints.push(format!("{path}:{number}: link to {target}: {what}"));
                }
            }
        }
        complaints
    }

    fn wrong(&self, from: &str, target: &str) -> Option<String> {
        // Addresses, and paths of the server.
        if target.contains(':') || target.starts_with('/') {
            return None;
        }
        let (file, heading) = target.split_once('#').unwrap_or((target, ""));
        let path = if file.is_empty() { from.to_owned() } else { joined(from, file) };
        if !(self.is_there)(&path) {
            return Some(format!("there is no {path}"));
        }
        let is_missing = is_markdown(&path)
            && !heading.is_empty()
            && !self
                .headings
                .get(path.as_str())
                .is_some_and(|all| all.iter().any(|h| h == heading));
        is_missing.then(|| format!("{path} has no such heading"))
    }
}

/// Returns the targets of the links in a line: `[text](target)`.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|after| after.split([')', ' ']).next())
}

/// Returns the anchors of a document's headings, as GitHub spells them.
fn headings(text: &str) -> Vec<String> {
    let of_line = |line: &str| {
        let title = line.trim_start_matches('#').trim();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    };
    lines_of_text(text)
        .map(|(_, line)| line)
        .filter(|line| line.starts_with('#'))
        .map(of_line)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_files_and_headings() {
        let pages = [
            ("README.md", "# One\n## Two words, `code` (2)\n```\n# not one\n```\n"),
            ("docs/a.md", "# A\n"),
        ];
        let is_there =
            |path: &str| ["README.md", "docs/a.md", "docs", "docs/p.png"].contains(&path);
        let links = Links::new(pages.into_iter(), &is_there);
        let wrong = |text: &str| links.complaints("docs/a.md", text);
        for target in [
            "a.md",
            "#a",
            "../README.md",
            "../README.md#one",
            "../README.md#two-words-code-2",
            "p.png",
            "../docs/",
            "./a.md#a",
            "https://example.org/x.md",
            "/v1/models",
        ] {
            assert_eq!(wrong(&format!("See [it]({target}).")), Vec::<String>::new(), "{target}");
        }
        for (target, what) in [
            ("b.md", "there is no docs/b.md"),
            ("README.md", "there is no docs/README.md"),
            ("../README.md#three", "README.md has no such heading"),
            ("../README.md#not-one", "README.md has no such heading"),
            ("#b", "docs/a.md has no such heading"),
        ] {
            let expected = format!("docs/a.md:2: link to {target}: {what}");
            assert_eq!(wrong(&format!("\n[a](a.md) and [it]({target})")), [expected]);
        }
        assert_eq!(wrong("```\n[it](b.md)\n```"), Vec::<String>::new());
    }
}
