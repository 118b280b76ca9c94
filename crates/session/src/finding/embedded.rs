//! The models inside the program: the demonstration model and its draft model.

/// A model inside the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Embedded {
    /// The demonstration model, which runs if no other is named.
    Demo,
    /// A model of a tenth of its size with the same tokenizer, trained to guess what it writes.
    Draft,
}

/// The bytes of a file of the assets folder.
macro_rules! asset {
    ($name:literal) => {
        include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/", $name))
    };
}

impl Embedded {
    /// All embedded models.
    pub const ALL: [Self; 2] = [Self::Demo, Self::Draft];

    /// Returns the name by which users ask for the model.
    pub fn name(self) -> &'static str {
        match self {
            Self::Demo => "demo",
            Self::Draft => "demo-draft",
        }
    }

    /// Returns the purpose of the model, for a list of models.
    pub fn purpose(self) -> &'static str {
        match self {
            Self::Demo => "built in; used when you name no model",
            Self::Draft => "built in; guesses tokens for demo",
        }
    }

    /// Returns the bytes of the GGUF file.
    pub fn bytes(self) -> &'static [u8] {
        match self {
            Self::Demo => asset!("demo.gguf"),
            Self::Draft => asset!("demo-draft.gguf"),
        }
    }

    /// Returns the embedded model with this name.
    pub fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|model| model.name() == name)
    }
}
