//! What lists say about models that are not loaded: facts from the headers of their files.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use trine_text::ChatTemplate;

use super::loader::{Description, Files, Loader, ModelSummary};

/// Time after which the files of models are looked at again.
const AGE: Duration = Duration::from_secs(1);
/// Longest time that one list reads headers for; the next one goes on with those that are left.
const READING_TIME: Duration = Duration::from_secs(2);

/// Facts about a model from its files as they are.
#[derive(Debug)]
pub(crate) struct Facts {
    stamp: u64,
    /// What identifies its files; see [`Files::digest`].
    pub(crate) digest: String,
    /// `None` if the files are not those of a model that runs.
    pub(crate) description: Option<Description>,
    /// What it can do, in Ollama's words.
    pub(crate) capabilities: Vec<&'static str>,
}

/// The facts about all models that are listed, and when they were looked at.
#[derive(Debug, Default)]
pub(super) struct Known {
    at: Option<Instant>,
    pub(super) of: Arc<HashMap<String, Arc<Facts>>>,
}

impl Known {
    pub(super) fn is_young(&self) -> bool {
        self.at.is_some_and(|at| at.elapsed() < AGE)
    }

    /// Looks at the files of models, and reads the headers of those that have changed.
    pub(super) fn look(
        models: impl Iterator<Item = String>,
        before: &HashMap<String, Arc<Facts>>,
        loader: &dyn Loader,
    ) -> Self {
        let start = Instant::now();
        let at_once = loader.files();
        let files: &dyn Files = match &at_once {
            Some(files) => &**files,
            None => loader,
        };
        let mut of: HashMap<String, Arc<Facts>> = HashMap::new();
        for model in models {
            if of.contains_key(&model) {
                continue;
            }
            let stamp = files.stamp(&model);
            let same = before.get(&model).filter(|facts| facts.stamp == stamp);
            let facts = match same {
                Some(facts) => Arc::clone(facts),
                None if start.elapsed() < READING_TIME => {
                    Arc::new(Facts::read(&model, stamp, files))
                }
                None => continue,
            };
            of.insert(model, facts);
        }
        Self { at: Some(Instant::now()), of: Arc::new(of) }
    }
}

impl Facts {
    fn read(model: &str, stamp: u64, files: &dyn Files) -> Self {
        let digest = files.digest(model);
        // Why a model cannot be read is said when it is asked for: a folder may hold any files.
        let summary = files.summary(model).ok();
        let capabilities = summary.as_ref().map(|summary| {
            let template = summary.template.as_deref();
            let template = template.and_then(|source| ChatTemplate::new(source).ok());
            capabilities(template.as_ref(), &summary.description)
        });
        Self {
            stamp,
            digest,
            description: summary.map(|ModelSummary { description, .. }| description),
            capabilities: capabilities.unwrap_or_default(),
        }
    }
}

/// Returns what a model can do, in Ollama's words.
pub(crate) fn capabilities(
    template: Option<&ChatTemplate>,
    description: &Description,
) -> Vec<&'static str> {
    if description.only_embeds {
        return vec!["embedding"];
    }
    let mut capabilities = vec!["completion", "tools"];
    if template.is_some_and(ChatTemplate::thinks) {
        capabilities.push("thinking");
    }
    if description.sees {
        capabilities.push("vision");
    }
    capabilities
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::super::loader::{Found, Listed, LoadError, LoadedModel};
    use super::*;

    /// Models of which one cannot be read; counts how often headers are read.
    #[derive(Default)]
    struct Counted {
        stamp: AtomicU64,
        read: AtomicU64,
    }

    impl Files for Counted {
        fn stamp(&self, _model: &str) -> u64 {
            self.stamp.load(Ordering::SeqCst)
        }

        fn summary(&self, model: &str) -> Result<ModelSummary, String> {
            self.read.fetch_add(1, Ordering::SeqCst);
            if model == "damaged" {
                Err("it is damaged".to_owned())
            } else {
                Ok(ModelSummary::default())
            }
        }
    }

    impl Loader for Counted {
        fn list(&self) -> Vec<Listed> {
            Vec::new()
        }

        fn find(&self, _name: &str) -> Result<Option<Found>, String> {
            Ok(None)
        }

        fn bytes(&self, _model: &str) -> u64 {
            0
        }

        fn load(&self, _model: &str) -> Result<LoadedModel, LoadError> {
            Err("nothing is loaded".to_owned().into())
        }
    }

    #[test]
    fn headers_are_read_once_until_files_change() {
        let files = Counted::default();
        let names = || ["a", "damaged", "a"].map(str::to_owned).into_iter();
        let first = Known::look(names(), &HashMap::new(), &files);
        assert!(first.of["a"].description.is_some() && first.of["damaged"].description.is_none());
        let again = Known::look(names(), &first.of, &files);
        assert_eq!((again.of.len(), files.read.load(Ordering::SeqCst)), (2, 2));
        files.stamp.store(1, Ordering::SeqCst);
        Known::look(names(), &again.of, &files);
        assert_eq!(files.read.load(Ordering::SeqCst), 4);
    }
}
