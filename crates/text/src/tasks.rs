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
}
