//! The words that a model for embeddings wants before a text, by what the vector is for.

use serde_json::Value;
use trine_weights::{Checkpoint, Metadata};

use crate::checkpoint::read_bounded;
use crate::error::TextError;

/// The file of a folder that has them, under the key `prompts`.
const FILE: &str = "config_sentence_transformers.json";
/// The most bytes of that file; that of EmbeddingGemma has 1,000.
const FILE_BYTES_MAX: usize = 1 << 16;

const QUERY: &str = "task: search result | query: ";
const DOCUMENT: &str = "title: none | text: ";

/// The prompts of EmbeddingGemma, from its `config_sentence_transformers.json`. GGUF files have
/// none.
const PUBLISHED: [(&str, &str); 14] = [
    ("query", QUERY),
    ("document", DOCUMENT),
    ("BitextMining", QUERY),
    ("Clustering", "task: clustering | query: "),
    ("Classification", "task: classification | query: "),
    ("InstructionRetrieval", "task: code retrieval | query: "),
    ("MultilabelClassification", "task: classification | query: "),
    ("PairClassification", "task: sentence similarity | query: "),
    ("Reranking", QUERY),
    ("Retrieval", QUERY),
    ("Retrieval-query", QUERY),
    ("Retrieval-document", DOCUMENT),
    ("STS", "task: sentence similarity | query: "),
    ("Summarization", "task: summarization | query: "),
];

/// The prompts of a model for embeddings, by their names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskPrompts {
    prompts: Vec<(String, String)>,
}

impl Default for TaskPrompts {
    /// Returns those of EmbeddingGemma.
    fn default() -> Self {
        let owned = |(name, text): &(&str, &str)| ((*name).to_owned(), (*text).to_owned());
        Self { prompts: PUBLISHED.iter().map(owned).collect() }
    }
}

impl TaskPrompts {
    /// Returns the prompts of a folder, or where it has none, those of EmbeddingGemma.
    ///
    /// # Errors
    /// Returns [`TextError::Checkpoint`] if the folder's file cannot be read, and
    /// [`TextError::InvalidTokenizer`] if it is no such JSON.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Self, TextError> {
        let Metadata::HuggingFace(folder) = checkpoint.metadata() else {
            return Ok(Self::default());
        };
        match read_bounded(&folder.directory.join(FILE), FILE_BYTES_MAX)? {
            None => Ok(Self::default()),
            Some(bytes) => Self::parse(&bytes),
        }
    }

    fn parse(bytes: &[u8]) -> Result<Self, TextError> {
        let root: Value = serde_json::from_slice(bytes)
            .map_err(|error| TextError::invalid(FILE, format!("unsound JSON: {error}")))?;
        let prompts = match root.get("prompts") {
            None | Some(Value::Null) => return Ok(Self::default()),
            Some(Value::Object(prompts)) => prompts,
            Some(_) => return Err(TextError::invalid(FILE, "prompts is not an object".to_owned())),
        };
        let text = |(name, text): (&String, &Value)| match text.as_str() {
            Some(text) => Ok((name.clone(), text.to_owned())),
            None => Err(TextError::invalid(FILE, "a prompt is not a text".to_owned())),
        };
        Ok(Self { prompts: prompts.iter().map(text).collect::<Result<_, _>>()? })
    }

    /// Returns the words before a text for a task.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.prompts.iter().find(|(own, _)| own == name);
        found.map(|(_, text)| text.as_str())
    }

    /// Returns the words before a query that is compared with documents.
    pub fn query(&self) -> &str {
        self.get("query").unwrap_or(QUERY)
    }

    /// Returns the words before a document that queries are compared with.
    pub fn document(&self) -> &str {
        self.get("document").unwrap_or(DOCUMENT)
    }

    /// Returns the names of all tasks.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.prompts.iter().map(|(name, _)| name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_of_a_folder_replace_the_published_ones() {
        let read = |text: &str| TaskPrompts::parse(text.as_bytes());
        let own = read(r#"{"prompts": {"query": "q: ", "title": ""}}"#).unwrap();
        assert_eq!((own.query(), own.get("title"), own.get("STS")), ("q: ", Some(""), None));
        assert_eq!(own.document(), DOCUMENT);
        assert_eq!(own.names().collect::<Vec<_>>(), ["query", "title"]);
        for none in ["{}", r#"{"prompts": null}"#] {
            assert_eq!(read(none).unwrap(), TaskPrompts::default());
        }
        for bad in ["", "[", r#"{"prompts": []}"#, r#"{"prompts": {"a": 1}}"#] {
            let error = read(bad).unwrap_err().to_string();
            assert!(error.contains(FILE), "{bad}: {error}");
        }
    }

    /// Any damage gives an error that names the file and is short, or prompts that are texts of it.
    #[test]
    fn damaged_files_give_errors_or_their_own_prompts() {
        let path = "../../tests/goldens/embedding-gemma/config_sentence_transformers.json";
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        let whole = std::fs::read(path).unwrap();
        assert_eq!(TaskPrompts::parse(&whole).unwrap().query(), QUERY);
        let mut random = fastrand::Rng::with_seed(20_252);
        let (mut refused, mut read) = (0, 0);
        for round in 0..3000 {
            let mut bytes = whole.clone();
            let place = |random: &mut fastrand::Rng| random.usize(..whole.len());
            let (at, other) = (place(&mut random), place(&mut random));
            let range = at.min(other)..at.max(other);
            match round % 5 {
                0 => bytes[at] ^= 1 << random.usize(..8),
                1 => bytes.truncate(at),
                2 => drop(bytes.drain(range)),
                3 => bytes.splice(at..at, whole[range].to_vec()).for_each(drop),
                _ => bytes[at] = b"{}[],:\"0\\"[random.usize(..9)],
            }
            match TaskPrompts::parse(&bytes) {
                Ok(found) => {
                    read += 1;
                    assert!(
                        found == TaskPrompts::default() || found.names().count() <= whole.len()
                    );
                }
                Err(error) => {
                    refused += 1;
                    let error = error.to_string();
                    assert!(error.contains(FILE) && error.len() < 500, "{error}");
                }
            }
        }
        assert!(refused > 1000 && read > 100, "{refused} refused, {read} read");
    }
}
