//! Counts what a reply's masks cost.
//!
//! The library's parser keeps a row of items for each stretch of text (J. Earley, "An Efficient
//! Context-Free Parsing Algorithm", 1970). With an ambiguous or right-recursive grammar the rows
//! grow with the text, and an item of an ambiguous grammar costs up to the square of its row. Its
//! own limits bound a single mask, at up to some seconds. This budget bounds all masks of a reply
//! together. It counts work instead of time, so that the same text always ends at the same place.

use llguidance::earley::ParserStats;

use super::error::GrammarError;

/// What every reply may cost, and what each mask adds to that, in units of about a nanosecond.
/// JSON costs 0.01 ms a mask over a vocabulary of 262,144 tokens, and 3 ms where every token has
/// to be looked at.
const FIRST: u64 = 1_000_000_000;
const PER_MASK: u64 = 10_000_000;

/// The cost of a mask from which on others are made to wait for it noticeably.
const COSTLY: u64 = 1_000_000;

/// What a reply's masks have cost.
#[derive(Debug, Clone, Default)]
pub(super) struct Budget {
    spent: u64,
    allowed: u64,
    /// The cost of the latest masks: the last one, or half of what this was before.
    latest: u64,
}

impl Budget {
    /// Counts a mask.
    ///
    /// # Errors
    /// [`GrammarError::Failed`] if the reply has cost more than replies may.
    pub(super) fn count(&mut self, mask: &ParserStats) -> Result<(), GrammarError> {
        let cost = cost(mask);
        self.latest = cost.max(self.latest / 2);
        self.spent = self.spent.saturating_add(cost);
        self.allowed += PER_MASK;
        if self.spent > FIRST + self.allowed {
            return Err(GrammarError::Failed(
                "it takes too much work; write repetition (`*`) in place of rules that mention \
                 themselves"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// Returns the budget of a reply of which another one has made the first mask.
    pub(super) fn expecting(mask: &ParserStats) -> Self {
        Self { latest: cost(mask), ..Self::default() }
    }

    /// Returns what the masks have cost.
    pub(super) fn spent(&self) -> u64 {
        self.spent
    }

    /// Returns whether the next mask is likely to take long.
    pub(super) fn is_costly(&self) -> bool {
        self.latest > COSTLY
    }
}

/// Returns the cost of a mask, in nanoseconds of one core of an AMD EPYC of 2024, on which each
/// summand was measured: 12 for a node of the trie of tokens, 70 for a unit of the lexer's fuel,
/// and for an item 1/75 of the square of its row's length, which is that of ambiguous grammars and
/// more than others take.
fn cost(mask: &ParserStats) -> u64 {
    let (rows, items) = (mask.rows.max(1) as u64, mask.all_items as u64);
    let row = items / rows;
    let parts = [
        12 * mask.trie_nodes_walked as u64,
        70_u64.saturating_mul(mask.lexer_cost),
        items.saturating_mul(row.saturating_mul(row)) / 75,
    ];
    parts.iter().fold(0, |sum: u64, part| sum.saturating_add(*part))
}
