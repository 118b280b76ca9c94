//! Stop strings in a stream of text.

/// Finds the first stop string in a text that arrives in pieces, wherever the pieces are cut, and
/// passes on everything before it.
///
/// The first stop string is the one that is complete first; of several that are complete at the
/// same character, the longest. Only text that may be the beginning of a stop string is held back.
/// Each byte costs O(number of stop strings) amortised steps (Knuth, Morris and Pratt 1977).
#[derive(Debug, Clone)]
pub struct StopMatcher {
    patterns: Vec<Pattern>,
    /// Text that has not been passed on yet.
    held: String,
    stopped: Option<usize>,
}

/// The result of one piece of text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StopStep {
    /// Text that belongs to the reply for certain.
    pub text: String,
    /// Index of the stop string that ended the reply, in the list given to
    /// [`StopMatcher::new`]. Once set, all later text is dropped.
    pub stopped: Option<usize>,
}

#[derive(Debug, Clone)]
struct Pattern {
    bytes: Vec<u8>,
    /// By the length of a matched beginning, the length of the next shorter beginning that ends it.
    fallback: Vec<usize>,
    matched: usize,
    index: usize,
}

impl Pattern {
    fn new(index: usize, text: &str) -> Self {
        let bytes = text.as_bytes().to_vec();
        let mut fallback = vec![0; bytes.len() + 1];
        let mut matched = 0;
        for end in 1..bytes.len() {
            while matched > 0 && bytes[matched] != bytes[end] {
                matched = fallback[matched];
            }
            if bytes[matched] == bytes[end] {
                matched += 1;
            }
            fallback[end + 1] = matched;
        }
        Self { bytes, fallback, matched: 0, index }
    }

    /// Takes one byte; returns true if the pattern is complete.
    fn step(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.fallback[self.matched];
        }
        if self.bytes[self.matched] == byte {
            self.matched += 1;
        }
        self.matched == self.bytes.len()
    }
}

impl StopMatcher {
    /// Returns a matcher for `stops`. An empty stop string never matches.
    pub fn new<S: AsRef<str>>(stops: impl IntoIterator<Item = S>) -> Self {
        let patterns = stops
            .into_iter()
            .enumerate()
            .filter(|(_, stop)| !stop.as_ref().is_empty())
            .map(|(index, stop)| Pattern::new(index, stop.as_ref()))
            .collect();
        Self { patterns, held: String::new(), stopped: None }
    }

    /// Takes the next piece of the text.
    pub fn push(&mut self, text: &str) -> StopStep {
        if self.stopped.is_some() {
            return StopStep { text: String::new(), stopped: self.stopped };
        }
        for (place, byte) in text.bytes().enumerate() {
            let mut found: Option<(usize, usize)> = None;
            for pattern in &mut self.patterns {
                if pattern.step(byte) && found.is_none_or(|(length, _)| length < pattern.matched) {
                    found = Some((pattern.matched, pattern.index));
                }
            }
            if let Some((length, index)) = found {
                // The end of a stop string is the end of a character.
                self.held.push_str(&text[..=place]);
                self.held.truncate(self.held.len() - length);
                self.stopped = Some(index);
                return StopStep { text: std::mem::take(&mut self.held), stopped: self.stopped };
            }
        }
        self.held.push_str(text);
        let keep = self.patterns.iter().map(|pattern| pattern.matched).max().unwrap_or(0);
        let kept = self.held.split_off(self.held.len() - keep);
        StopStep { text: std::mem::replace(&mut self.held, kept), stopped: None }
    }

    /// Ends the text: the text that was held back is not a stop string after all. A text that
    /// follows is searched from its own beginning.
    pub fn finish(&mut self) -> String {
        self.patterns.iter_mut().for_each(|pattern| pattern.matched = 0);
        std::mem::take(&mut self.held)
    }
}
