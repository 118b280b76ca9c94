//! The models inside the program: the demonstration model, and its draft.

/// A model inside the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Embedded {
    /// The demonstration model, which runs when no other is asked for.
    Demo,
    /// A model a tenth of its size with the same tokenizer, trained to guess what it writes.
    Draft,
}

/// A file of the assets folder.
macro_rules! asset {
    ($name:literal) => {
        include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/", $name))
    };
}

impl Embedded {
    /// All of them.
    pub(crate) const ALL: [Self; 2] = [Self::Demo, Self::Draft];

    /// The name under which it is asked for.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Demo => "demo",
            Self::Draft => "demo-draft",
        }
    }

    /// What it is for, in a list of models.
    pub(crate) fn purpose(self) -> &'static str {
        match self {
            Self::Demo => "inside this program; runs where no model is named",
            Self::Draft => {
                "inside this program; would guess tokens for demo, which this version does not do"
            }
        }
    }

    /// The GGUF file's bytes.
    pub(crate) fn bytes(self) -> &'static [u8] {
        match self {
            Self::Demo => asset!("demo.gguf"),
            Self::Draft => asset!("demo-draft.gguf"),
        }
    }

    /// The model of a name.
    pub(crate) fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|model| model.name() == name)
    }
}
