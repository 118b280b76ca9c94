//! A loader for tests: the embedded model on the scalar reference.

pub(crate) mod demo;

use trine_backend::reference::ReferenceDevice;
use trine_engine::{Engine, EngineOptions};
use trine_model::Model;

use super::{
    Catalog, Description, Files, Found, Library, LibraryError, Listed, LoadError, LoadedModel,
    Loader, ModelSummary, PullProgress, Recipe,
};
use crate::request::structure::grammar_cache;

/// The embedded model, to write texts (`demo`) and to embed them (`embedder`), and a library that
/// does everything that it is asked for at once.
pub(crate) struct Demo;

impl Files for Demo {
    fn stamp(&self, _model: &str) -> u64 {
        1
    }

    fn summary(&self, _model: &str) -> Result<ModelSummary, String> {
        Ok(ModelSummary::default())
    }
}

impl Loader for Demo {
    fn list(&self) -> Vec<Listed> {
        ["demo", "embedder"].map(|name| Listed::plain(name, 1)).to_vec()
    }

    fn find(&self, name: &str) -> Result<Option<Found>, String> {
        Ok(self.list().iter().any(|listed| listed.name == name).then(|| Found::plain(name)))
    }

    fn bytes(&self, _model: &str) -> u64 {
        1
    }

    fn load(&self, model: &str) -> Result<LoadedModel, LoadError> {
        let opened = Model::open(&demo::path()).expect("the embedded model opens");
        let device = ReferenceDevice::new();
        let embeds = model == "embedder";
        let options =
            EngineOptions { context: Some(256), sequences: 1, embeds, ..EngineOptions::default() };
        let engine = Engine::new(&opened, &device, options);
        let engine = engine.expect("the embedded model is small");
        Ok(demo::loaded(engine, demo::tokenizer(), 1))
    }

    fn library(&self) -> Option<&dyn Library> {
        Some(self)
    }
}

impl Library for Demo {
    fn catalog(&self, _measures: bool) -> Result<Catalog, LibraryError> {
        Ok(Catalog::default())
    }

    fn pullable(&self, name: &str) -> Result<String, LibraryError> {
        Ok(name.to_owned())
    }

    fn pull(&self, _name: &str, _progress: &mut dyn PullProgress) -> Result<(), LibraryError> {
        Ok(())
    }

    fn owned(&self, _name: &str) -> Result<Option<String>, LibraryError> {
        Ok(None)
    }

    fn delete(&self, _name: &str) -> Result<(), LibraryError> {
        Ok(())
    }

    fn copy(&self, _from: &str, _to: &str) -> Result<(), LibraryError> {
        Ok(())
    }

    fn create(&self, _name: &str, _recipe: &Recipe) -> Result<(), LibraryError> {
        Ok(())
    }
}
