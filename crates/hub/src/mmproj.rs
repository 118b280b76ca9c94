//! Which `mmproj` file of a repository, its vision tower, goes with a model.

use std::collections::{BTreeMap, HashSet};

use crate::name::has_extension;
use crate::stems::{quant_of, split_suffix};

/// The types of files in the order in which they are taken: halves are what most towers are
/// published in, and half as large as f32.
const PREFERRED: [&str; 4] = ["F16", "BF16", "F32", "Q8_0"];

/// Returns whether a file holds a vision tower, by its name.
pub(crate) fn is_mmproj(file: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    name.contains("mmproj") && has_extension(&name, ".gguf")
}

/// The vision towers among the files of a repository.
#[derive(Debug)]
pub(crate) struct Towers(Vec<Named>);

/// The vision towers that name the same model, or none.
#[derive(Debug)]
struct Named {
    /// The letters and digits by which they name it; empty if they name none.
    subject: String,
    /// Whether a model of the repository has that name.
    is_here: bool,
    /// Their files, each after its place in [`PREFERRED`].
    files: Vec<(usize, String)>,
}

impl Towers {
    /// Sorts the towers among `files` out. `stems` are the paths of the repository's models
    /// without `.gguf` and the number of a part.
    pub(crate) fn new<'a>(files: &[String], stems: impl Iterator<Item = &'a str>) -> Self {
        let mut named: BTreeMap<String, Vec<(usize, String)>> = BTreeMap::new();
        for file in files.iter().filter(|file| is_mmproj(file)) {
            let quant = quant_of(stem_of(file)).unwrap_or_default().to_ascii_uppercase();
            let kind =
                PREFERRED.iter().position(|known| *known == quant).unwrap_or(PREFERRED.len());
            named.entry(subject(file)).or_default().push((kind, file.clone()));
        }
        if named.is_empty() {
            return Self(Vec::new());
        }
        // No subject has a space.
        let models = stems.map(letters).collect::<Vec<_>>().join(" ");
        let group = |(subject, files)| Named { is_here: models.contains(&subject), subject, files };
        Self(named.into_iter().map(group).collect())
    }

    /// Returns the file that goes with the model of a stem, if there is one. Files that name the
    /// model come first, then those that name none, each in the order of [`PREFERRED`]; a file that
    /// names another model of the repository is not taken. Files in `here` come before others of
    /// the same name and another type.
    pub(crate) fn of_model(&self, stem: &str, here: &[String]) -> Option<String> {
        let here: HashSet<&String> = here.iter().collect();
        let model = if self.0.is_empty() { String::new() } else { letters(stem) };
        let ranked = self.0.iter().filter_map(|named| {
            let fit = match () {
                () if named.subject.is_empty() => 1,
                () if model.contains(&named.subject) => 0,
                () if named.is_here => return None,
                () => 2,
            };
            let best = named.files.iter().map(|(kind, file)| (!here.contains(file), kind, file));
            Some((fit, best.min()?))
        });
        ranked.min().map(|(_, (.., file))| file.clone())
    }
}

/// Returns the name of a file without its folder and ends.
fn stem_of(file: &str) -> &str {
    let name = file.rsplit('/').next().unwrap_or_default();
    let stem = &name[..name.len() - ".gguf".len()];
    split_suffix(stem).map_or(stem, |(stem, ..)| stem)
}

/// Returns the letters and digits by which a tower's file names its model: none if it has only its
/// kind and its type.
fn subject(file: &str) -> String {
    let stem = stem_of(file).to_ascii_lowercase();
    let quant = quant_of(&stem).unwrap_or_default();
    let stem = stem.replacen("mmproj", "-", 1);
    let words = stem.split(['-', '.']).map(|word| word.replacen(&quant, "", 1));
    letters(&words.filter(|word| word != "model").collect::<Vec<_>>().join("-"))
}

/// Returns the letters and digits of a text, in lower case.
fn letters(text: &str) -> String {
    text.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(stem: &str, stems: &[&str], files: &[&str], here: &[&str]) -> Option<String> {
        let list = |files: &[&str]| files.iter().map(|file| file.to_string()).collect::<Vec<_>>();
        Towers::new(&list(files), stems.iter().copied()).of_model(stem, &list(here))
    }

    #[test]
    fn the_type_decides_among_files_of_one_model() {
        let stem = "gemma-3-4b-it-Q4_K_M";
        let one = |files: &[&str]| chosen(stem, &[stem], files, &[]);
        let all = ["mmproj-BF16.gguf", "mmproj-F16.gguf", "mmproj-F32.gguf", "mmproj-Q8_0.gguf"];
        assert_eq!(one(&all).as_deref(), Some("mmproj-F16.gguf"));
        assert_eq!(one(&[all[3], all[2], all[0]]).as_deref(), Some(all[0]));
        assert_eq!(one(&[all[3], all[2]]).as_deref(), Some(all[2]));
        assert_eq!(one(&["mmproj-Q4_0.gguf", all[3]]).as_deref(), Some(all[3]));
        assert_eq!(one(&["mmproj.gguf"]).as_deref(), Some("mmproj.gguf"));
        assert_eq!(one(&["gemma-3-4b-it-Q4_K_M.gguf", "mmproj.txt", "imatrix.gguf"]), None);
        // A tower that was fetched before is not fetched in another type.
        assert_eq!(chosen(stem, &[stem], &all, &all[2..3]).as_deref(), Some(all[2]));
    }

    #[test]
    fn names_that_people_publish() {
        for (stem, file) in [
            ("gemma-3-4b-it-Q4_K_M", "mmproj-model-f16.gguf"),
            ("gemma-3-4b-it-q4_0", "mmproj-model-f16-4B.gguf"),
            ("google_gemma-3-4b-it-Q4_K_M", "mmproj-google_gemma-3-4b-it-f16.gguf"),
            ("gemma-4-E4B-it-Q4_0", "mmproj-gemma-4-E4B-it-f16.gguf"),
            ("gemma-4-E4B-it-Q4_0", "gemma-4-E4B-it-mmproj-bf16.gguf"),
            ("BF16/gemma-3-27b-it-BF16", "mmproj/mmproj_F16.GGUF"),
            ("gemma-3-4b-it.Q4_0", "gemma-3-4b-it.mmproj-f16.gguf"),
        ] {
            assert_eq!(chosen(stem, &[stem], &[file], &[]).as_deref(), Some(file), "{file}");
            assert!(["", "4b"].contains(&&*subject(file)) || subject(file).contains("it"));
        }
        assert_eq!(subject("mmproj/mmproj_F16.GGUF"), "");
        assert_eq!(subject("mmproj-model-f16.gguf"), "");
    }

    #[test]
    fn files_of_other_models_are_left_out() {
        let stems = ["gemma-3-4b-it-Q4_0", "gemma-3-12b-it-Q4_0", "gemma-3-1b-it-Q4_0"];
        let files = ["mmproj-gemma-3-12b-it-f16.gguf", "mmproj-gemma-3-4b-it-f32.gguf"];
        let one = |stem: &str| chosen(stem, &stems, &files, &[]);
        assert_eq!(one(stems[0]).as_deref(), Some(files[1]));
        assert_eq!(one(stems[1]).as_deref(), Some(files[0]));
        assert_eq!(one(stems[2]), None);
        // A name that fits no model of the repository may be another spelling.
        assert_eq!(chosen("g-Q4_0", &["g-Q4_0"], &files[..1], &[]).as_deref(), Some(files[0]));
    }
}
