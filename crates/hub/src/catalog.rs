//! Well-known names and the repositories that they mean. The table is part of the program and needs
//! no network.
//!
//! The names are those of Ollama's library. The files are the text models that ggml-org publishes
//! without asking for a licence to be accepted first, and unsloth's where ggml-org has none. The
//! usual files of Gemma 4 are Google's own, trained for their 4 bits. Sizes include vision towers
//! and are rounded: files change in place, so sizes are shown as "about".

mod families;
mod parts;
mod shapes;
mod table;

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::name::ModelName;
use crate::spelling::closest;
pub use families::Refused;
use parts::{Parts, words};
pub use table::{CatalogModel, Demand, models, offered, usual};
use table::{LATEST, MODELS};

/// What the catalogue says about a name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Known {
    /// A model that can be downloaded.
    Model(&'static CatalogModel),
    /// A model that does not run here.
    Refused(Refused),
}

/// Returns what a name means, in upper or lower case: `gemma3:4b`, `gemma3` (the 4B),
/// `gemma3:latest`, and `google/gemma-3-4b` as LM Studio writes it.
pub fn find(name: &str) -> Option<Known> {
    let name = name.strip_prefix("library/").unwrap_or(name);
    let (family, tag) = name.split_once(':').unwrap_or((name, LATEST));
    let model = MODELS.iter().find(|model| model.is_named(family, tag)).or_else(|| studio(name));
    match model {
        Some(model) => Some(Known::Model(model)),
        None => families::find(name).or_else(|| form(name)).map(Known::Refused),
    }
}

/// Returns why a tag of a family that runs here does not: its form is another program's.
fn form(name: &str) -> Option<Refused> {
    let parts = Parts::of(name).filter(|parts| parts.generation.is_some())?;
    families::form(name, &by_parts(&parts))
}

/// Returns the models of the same generation or family and size as `model`, itself among them.
pub fn same_size(model: &'static CatalogModel) -> Vec<&'static CatalogModel> {
    match model.parts() {
        Some(parts) => by_parts(&parts),
        None => MODELS.iter().filter(|own| own.is_sibling(model)).collect(),
    }
}

/// Returns the model of the catalogue that a repository with its quantisation is, in upper or lower
/// case.
pub fn of(name: &ModelName) -> Option<&'static CatalogModel> {
    static BY_NAME: LazyLock<HashMap<String, &CatalogModel>> = LazyLock::new(|| {
        let named =
            |model: &'static CatalogModel| (model.model().to_string().to_ascii_lowercase(), model);
        MODELS.iter().rev().map(named).collect()
    });
    BY_NAME.get(&name.to_string().to_ascii_lowercase()).copied()
}

/// Returns the name by which people ask for a model: the catalogue's, or the whole one.
pub fn short(name: &ModelName) -> String {
    of(name).map_or_else(|| name.to_string(), CatalogModel::name)
}

/// Returns the model that a name of LM Studio's catalogue means: `google/gemma-3-4b`. No repository
/// of Hugging Face has such a name, all end in `-it` or `-pt`.
fn studio(name: &str) -> Option<&'static CatalogModel> {
    let (owner, rest) = name.split_once('/')?;
    let is_short = !rest.contains(['/', ':'])
        && !words(rest).iter().any(|word| matches!(&**word, "it" | "pt"));
    if !owner.eq_ignore_ascii_case("google") || !is_short {
        return None;
    }
    let parts = Parts::of(rest).filter(|parts| parts.unknown == 0 && parts.quant.is_none())?;
    (parts.generation.is_some() && parts.size.is_some())
        .then(|| by_parts(&parts).first().copied())?
}

/// Returns the family that the name of a repository says, if trine does not run it.
pub fn other_family(name: &ModelName) -> Option<Refused> {
    families::of_repository(name.repo())
}

/// Returns the models whose names, repository or quantisation have every word of `text`; all
/// models if it is empty.
pub fn search(text: &str) -> Vec<&'static CatalogModel> {
    let wanted = text.split_whitespace().flat_map(words).collect::<Vec<_>>();
    let holds = |model: &&CatalogModel| {
        let names = model
            .names()
            .into_iter()
            .chain([model.repository.to_owned(), model.quant.to_lowercase()]);
        let mut all: Vec<String> = names.flat_map(|name| words(&name)).collect();
        all.extend(model.parts().and_then(|parts| parts.generation));
        if let Some((family, _)) = model.family.split_once(|c: char| c.is_ascii_digit()) {
            all.push(family.to_owned());
        }
        wanted.iter().all(|word| all.iter().any(|own| is_word(word, own)))
    };
    MODELS.iter().filter(holds).collect()
}

/// Returns whether a word that was typed means one of a name: the same, or the beginning of one
/// that is no size. `4b` is not `a4b`.
fn is_word(typed: &str, own: &str) -> bool {
    let is_number = typed.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let rest = own.strip_prefix(typed);
    match rest {
        Some("") => true,
        Some(rest) if is_number => matches!(rest, "b" | "m" | "n"),
        Some(_) => !typed.starts_with(|first: char| first.is_ascii_digit()),
        None => false,
    }
}

/// Returns the models of a generation and a size, those of the wanted training and format first.
fn by_parts(parts: &Parts) -> Vec<&'static CatalogModel> {
    let is_meant = |model: &CatalogModel| {
        model.parts().is_some_and(|own| {
            own.size == parts.size
                && (parts.generation.is_none() || own.generation == parts.generation)
        })
    };
    let mut meant: Vec<&CatalogModel> = MODELS.iter().filter(|model| is_meant(model)).collect();
    meant.sort_by_key(|model| {
        (!model.has_quant(parts), parts.qat && !model.is_qat(), model.tags[0].contains('-'))
    });
    meant
}

/// Returns the names of the family that a name begins with, or with one that is spelled almost so.
fn of_family(name: &str) -> Vec<String> {
    let begin = name.rsplit('/').next().unwrap_or_default();
    let begin = begin.split([':', '-', '_', ' ']).next().unwrap_or_default();
    let mut families: Vec<String> = MODELS.iter().map(|model| model.family.to_owned()).collect();
    families.dedup();
    let near = closest(begin, &families);
    let Some(family) = near.first() else { return Vec::new() };
    MODELS.iter().filter(|model| model.family == *family).map(CatalogModel::name).collect()
}

/// Returns names of the catalogue that may be meant by `name`, best first, at most five: those that
/// say the same, else the sizes of its family, else those that are spelled almost like it.
pub fn close(name: &str) -> Vec<String> {
    let wanted = name.to_lowercase();
    let names: Vec<String> = MODELS.iter().flat_map(CatalogModel::names).collect();
    let mut close = match Parts::of(&wanted) {
        Some(parts) => {
            let meant = by_parts(&parts);
            // A format that is not there is better answered with those that are.
            let is_exact = meant.first().is_some_and(|first| first.is_of(&parts));
            let most = if is_exact { 1 } else { 3 };
            let mut meant: Vec<String> =
                meant.into_iter().take(most).map(CatalogModel::name).collect();
            if meant.is_empty() {
                let is_usual = |model: &&CatalogModel| {
                    let own = model.parts().and_then(|parts| parts.generation);
                    own.is_some() && own == parts.generation && !model.tags[0].contains('-')
                };
                meant.extend(MODELS.iter().filter(is_usual).map(CatalogModel::name));
            }
            meant
        }
        None => closest(&wanted, &names),
    };
    if close.is_empty() {
        close = of_family(&wanted);
    }
    if close.is_empty() {
        let part = |model: &CatalogModel| model.repository_part().to_lowercase();
        let all: Vec<String> = MODELS.iter().map(part).collect();
        let near = closest(&wanted, &all);
        let model = |near: &String| MODELS.iter().find(|model| part(model) == *near);
        close.extend(near.iter().filter_map(model).map(CatalogModel::name));
    }
    let mut seen = std::collections::BTreeSet::new();
    close.retain(|name| seen.insert(name.clone()));
    close.truncate(5);
    close
}

#[cfg(test)]
mod tests;
