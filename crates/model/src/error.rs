//! Errors of opening a model.

use std::path::Path;

use thiserror::Error;
use trine_weights::WeightsError;

/// Why a checkpoint is not a model that trine can run.
#[derive(Debug, Error)]
pub enum ModelError {
    /// The files themselves could not be read.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The architecture is not one that trine knows.
    #[error(
        "this is a model of the architecture \"{found}\", and trine runs Google's Gemma models \
         only: {supported}"
    )]
    UnknownArchitecture {
        /// The architecture that the file states.
        found: String,
        /// The supported architectures.
        supported: &'static str,
    },
    /// The file belongs to a model and is none.
    #[error("this is {what}, not a model; {remedy}")]
    NotAModel {
        /// What it is.
        what: &'static str,
        /// What to do with it.
        remedy: &'static str,
    },
    /// A required hyper-parameter is absent.
    #[error(
        "{key} is missing from the model's configuration; the file is incomplete, download or \
         convert it again"
    )]
    MissingKey {
        /// Name of the key as the file format spells it.
        key: String,
    },
    /// A hyper-parameter has a value that no model can have.
    #[error(
        "{key} is {found}, expected {expected}; the file is damaged or of an unsupported kind: \
         download or convert the model again"
    )]
    BadValue {
        /// Name of the key as the file format spells it.
        key: String,
        /// The value found.
        found: String,
        /// The values that would be accepted.
        expected: String,
    },
    /// A hyper-parameter and a tensor say different things of the model.
    #[error(
        "{key} is {value}, but tensor {tensor} is {}; settings and tensors are not of the same \
         model: download or convert it again",
        if *is_there { "in the files" } else { "missing" }
    )]
    Contradiction {
        /// Name of the key as the file format spells it.
        key: String,
        /// Its value.
        value: String,
        /// Name of the tensor as the file spells it.
        tensor: String,
        /// Whether the files have the tensor.
        is_there: bool,
    },
    /// Something is wrong in this file.
    #[error("{file}: {error}")]
    InFile {
        /// The file's path.
        file: String,
        /// What is wrong.
        error: Box<ModelError>,
    },
    /// A draft was made for another model.
    #[error(
        "the draft has {what} {found}, the model {expected}: take the one that was made for this \
         model"
    )]
    OtherDraft {
        /// The number that differs.
        what: String,
        /// The draft's number.
        found: String,
        /// The model's number.
        expected: String,
    },
    /// The files have no vision tower.
    #[error(
        "there is no vision tower in it; give the folder of a model that reads images, or the \
         mmproj file that belongs to it"
    )]
    NoTower,
    /// A vision tower, or the model that it is for, is of a kind that is not run yet.
    #[error(
        "{key} is {found}, expected {expected}: images are read by the towers of Gemma 3 and Gemma \
         4, each for models of its family; leave the images out, or take the tower that was made \
         for this model"
    )]
    UnsupportedTower {
        /// The key in the tower's files, or the property of the model.
        key: String,
        /// Its value.
        found: String,
        /// What would be run.
        expected: String,
    },
    /// A vision tower was made for another model.
    #[error(
        "the vision tower of {tower} makes rows of {found} numbers, {model} takes {expected}: take \
         the mmproj file that was made for this model"
    )]
    OtherTower {
        /// The tower's files.
        tower: String,
        /// Columns of its rows.
        found: usize,
        /// The model's files.
        model: String,
        /// Its hidden size.
        expected: usize,
    },
    /// A tensor that the architecture needs is not in the files.
    #[error("tensor {name} is missing; the checkpoint is incomplete, download or convert it again")]
    MissingTensor {
        /// Name of the tensor as the file format spells it.
        name: String,
    },
    /// A product after the last norm of an EmbeddingGemma is not in the files.
    #[error(
        "{name} is missing: without its dense layers the model makes other vectors; {}",
        if *is_folder {
            "download modules.json and the folders that it lists, 2_Dense and 3_Dense, into the \
             model's folder"
        } else {
            "download another file, or convert the model's whole folder again with \
             --sentence-transformers-dense-modules"
        }
    )]
    MissingDense {
        /// The tensor, or its file below the model's folder.
        name: String,
        /// Whether the model is a folder.
        is_folder: bool,
    },
    /// A model whose rows do not see ahead has products after its last norm.
    #[error(
        "{name} is a dense layer for embeddings, which trine runs of EmbeddingGemma only; take \
         embeddinggemma, or a copy of the model without its dense layers"
    )]
    OtherDense {
        /// The tensor, as GGUF files call it.
        name: String,
    },
    /// A tensor that the architecture needs is stored in a format that trine does not read.
    #[error(
        "tensor {name} is stored as {}, which trine does not read; use the model's BF16, F16 or \
         GGUF files",
        cut(format)
    )]
    UnreadableTensor {
        /// Name of the tensor as the file format spells it.
        name: String,
        /// Format as the file names it.
        format: String,
    },
    /// The files hold more layers than the configuration says.
    #[error(
        "tensor {} belongs to a layer beyond the {layers} of the configuration; tensors and \
         configuration are not of the same model",
        cut(name)
    )]
    ExtraLayer {
        /// Name of the tensor as the file spells it.
        name: String,
        /// Layers that the configuration asks for.
        layers: usize,
    },
    /// A tensor has another shape than the hyper-parameters say.
    #[error(
        "tensor {name} has shape {found:?}, the configuration asks for {expected:?}; \
         tensors and configuration are not of the same model"
    )]
    BadShape {
        /// Name of the tensor as the file spells it.
        name: String,
        /// Shape found, outermost dimension first.
        found: Vec<usize>,
        /// Expected shape, outermost dimension first.
        expected: Vec<usize>,
    },
    /// A tensor is stored in a format that cannot serve its purpose.
    #[error(
        "tensor {name} is stored as {found}, but only matrices may be; it has to be F32, F16 or \
         BF16; convert the model again"
    )]
    BadDType {
        /// Name of the tensor.
        name: String,
        /// Block format found.
        found: &'static str,
    },
}

impl ModelError {
    /// Makes a [`ModelError::OtherDraft`] from anything printable.
    pub(crate) fn other_draft(
        what: impl ToString,
        found: impl ToString,
        expected: impl ToString,
    ) -> Self {
        ModelError::OtherDraft {
            what: what.to_string(),
            found: cut(&found.to_string()),
            expected: cut(&expected.to_string()),
        }
    }

    /// Makes a [`ModelError::UnsupportedTower`] from anything printable.
    pub(crate) fn tower(key: &str, found: impl ToString, expected: impl ToString) -> Self {
        let (found, expected) = (cut(&found.to_string()), expected.to_string());
        ModelError::UnsupportedTower { key: key.to_owned(), found, expected }
    }

    /// Makes a [`ModelError::BadValue`] from anything printable.
    pub(crate) fn bad(key: &str, found: impl ToString, expected: impl ToString) -> Self {
        ModelError::BadValue {
            key: cut(key),
            found: cut(&found.to_string()),
            expected: expected.to_string(),
        }
    }

    /// Makes a [`ModelError::Contradiction`].
    pub(crate) fn contradiction(key: &str, value: &str, tensor: &str, is_there: bool) -> Self {
        ModelError::Contradiction {
            key: key.to_owned(),
            value: cut(value),
            tensor: tensor.to_owned(),
            is_there,
        }
    }

    /// Makes a [`ModelError::UnknownArchitecture`].
    pub(crate) fn unknown(found: &str, supported: &'static str) -> Self {
        ModelError::UnknownArchitecture { found: cut(found), supported }
    }

    /// Adds the path of the file, unless the error names a file already or is about two.
    pub(crate) fn in_file(self, path: &Path) -> Self {
        match self {
            named @ (ModelError::Weights(_)
            | ModelError::InFile { .. }
            | ModelError::OtherTower { .. }
            | ModelError::OtherDraft { .. }) => named,
            error => {
                ModelError::InFile { file: path.display().to_string(), error: Box::new(error) }
            }
        }
    }
}

/// The most characters of a value that a message repeats.
const SHOWN_MAX: usize = 100;

/// Returns what a message repeats of a text from a file: on one line, without anything that a
/// terminal would obey.
fn cut(text: &str) -> String {
    let mut shown = String::new();
    for character in text.chars().take(SHOWN_MAX) {
        // These begin lines, or turn the direction of writing.
        let is_harmful = character.is_control()
            || matches!(
                character,
                '\u{61c}'
                    | '\u{200e}'..='\u{200f}'
                    | '\u{2028}'..='\u{202e}'
                    | '\u{2066}'..='\u{2069}'
            );
        match is_harmful {
            true => shown.extend(character.escape_default()),
            false => shown.push(character),
        }
    }
    if text.chars().nth(SHOWN_MAX).is_some() {
        shown.push_str(&format!("... ({} bytes)", text.len()));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_short_whatever_a_file_says() {
        let long = "é".repeat(1 << 20);
        for error in [
            ModelError::bad(&long, &long, "a number"),
            ModelError::unknown(&long, "gemma3"),
            ModelError::contradiction("key", &long, "tensor", true),
        ] {
            let message = error.to_string();
            assert!(message.len() < 1000 && message.contains("... (2097152 bytes)"), "{message}");
        }
        let whole = "x".repeat(SHOWN_MAX);
        assert!(ModelError::bad("key", &whole, "y").to_string().contains(&format!("{whole},")));
    }

    #[test]
    fn messages_are_one_line_whatever_a_file_says() {
        let lines = "a\nerror: b\u{1b}[1m\u{202e}".to_owned();
        let (name, format) = ("tensor".to_owned(), lines.clone());
        for error in [
            ModelError::bad(&lines, &lines, "a number"),
            ModelError::tower("key", &lines, "b"),
            ModelError::unknown(&lines, "gemma3"),
            ModelError::other_draft("family", &lines, "b"),
            ModelError::contradiction("key", &lines, "tensor", true),
            ModelError::UnreadableTensor { name, format },
            ModelError::ExtraLayer { name: lines.clone(), layers: 1 },
        ] {
            let message = error.to_string();
            assert!(message.contains("a\\nerror: b\\u{1b}[1m\\u{202e}"), "{message}");
            assert!(!message.contains(char::is_control), "{message}");
        }
    }

    #[test]
    fn a_file_is_named_once() {
        let path = Path::new("a/config.json");
        let error = ModelError::bad("key", 1, 2).in_file(path).in_file(Path::new("a"));
        assert!(error.to_string().starts_with("a/config.json: key is 1"), "{error}");
    }
}
