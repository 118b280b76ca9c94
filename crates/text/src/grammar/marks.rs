//! Tokens that structure replies, and the forms of replies with them.

/// The tokens around a thought.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ThoughtMarks {
    /// Begins it.
    pub open: u32,
    /// Ends it.
    pub close: u32,
}

/// The tokens of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallMarks {
    /// Begins a call.
    pub open: u32,
    /// Ends a call.
    pub close: u32,
    /// Begins and ends a string.
    pub quote: u32,
}

impl CallMarks {
    /// Returns all of them.
    pub(super) fn all(self) -> [u32; 3] {
        [self.open, self.close, self.quote]
    }
}

/// The forms that a reply may have instead of tool calls.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Otherwise {
    /// None: the reply is a call.
    Nothing,
    /// Text that does not begin like a call.
    Text,
    /// JSON that satisfies this schema.
    Json(String),
}

/// The forms that a reply with calls between marks may have.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MarkedShape {
    /// The tokens of a call.
    pub marks: CallMarks,
    /// Whether the reply may have several calls.
    pub parallel: bool,
    /// The forms of a reply without calls. Words may also come before calls: the grammar holds from
    /// the first mark of a call on.
    pub otherwise: Otherwise,
}

impl MarkedShape {
    /// Returns whether any words may come before the first call, from which on the grammar holds.
    pub(super) fn is_lazy(&self) -> bool {
        self.otherwise == Otherwise::Text
    }
}
