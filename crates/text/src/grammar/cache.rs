//! A cache of compiled grammars, by source.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Grammar, GrammarCompiler, GrammarError, GrammarSource};

/// Keeps the most recently used compiled grammars, limited in number and in memory. Nothing is
/// written to disk.
pub struct GrammarCache {
    compiler: GrammarCompiler,
    entries_max: usize,
    bytes_max: usize,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    entries: HashMap<GrammarSource, Entry>,
    bytes: usize,
    /// The number of uses so far.
    clock: u64,
}

struct Entry {
    grammar: Arc<Grammar>,
    used: u64,
}

impl std::fmt::Debug for GrammarCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarCache")
            .field("entries", &self.len())
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}

impl GrammarCache {
    /// Makes a cache of at most `entries_max` grammars and about `bytes_max` bytes. A grammar
    /// larger than that is compiled each time.
    pub fn new(compiler: GrammarCompiler, entries_max: usize, bytes_max: usize) -> Self {
        Self { compiler, entries_max, bytes_max, kept: Mutex::default() }
    }

    /// Returns the grammar of `source`, compiling it if it is not kept. The lock is not held while
    /// compiling: two callers may compile the same source at once, and others do not wait for them.
    ///
    /// # Errors
    /// Same as [`GrammarCompiler::compile`]. Failures are not kept.
    pub fn get(&self, source: &GrammarSource) -> Result<Arc<Grammar>, GrammarError> {
        if let Some(grammar) = self.find(source) {
            return Ok(grammar);
        }
        let grammar = Arc::new(self.compiler.compile(source)?);
        self.insert(source, grammar.clone());
        Ok(grammar)
    }

    /// Returns the number of grammars kept.
    pub fn len(&self) -> usize {
        self.lock().entries.len()
    }

    /// Returns whether no grammar is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the estimated memory of the kept grammars, in bytes.
    pub fn bytes(&self) -> usize {
        self.lock().bytes
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, source: &GrammarSource) -> Option<Arc<Grammar>> {
        let mut kept = self.lock();
        kept.clock += 1;
        let used = kept.clock;
        let entry = kept.entries.get_mut(source)?;
        entry.used = used;
        Some(entry.grammar.clone())
    }

    fn insert(&self, source: &GrammarSource, grammar: Arc<Grammar>) {
        if self.entries_max == 0 || grammar.bytes() > self.bytes_max {
            return;
        }
        let mut kept = self.lock();
        kept.clock += 1;
        let used = kept.clock;
        kept.bytes += grammar.bytes();
        if let Some(replaced) = kept.entries.insert(source.clone(), Entry { grammar, used }) {
            kept.bytes -= replaced.grammar.bytes();
        }
        while kept.entries.len() > self.entries_max || kept.bytes > self.bytes_max {
            let oldest = kept.entries.iter().min_by_key(|(_, entry)| entry.used);
            let oldest = oldest.map(|(source, _)| source.clone());
            let Some(removed) = oldest.and_then(|source| kept.entries.remove(&source)) else {
                break;
            };
            kept.bytes -= removed.grammar.bytes();
        }
    }
}
