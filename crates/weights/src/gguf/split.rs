//! Models in one file or several: `model-00001-of-00003.gguf` and its siblings are one model.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{GgufMetadata, Layout, parse};
use crate::WeightsError;
use crate::error::{DOWNLOAD_AGAIN, quoted};
use crate::map::Mapping;

/// The mapped parts of a model, in order; a single file is one part.
pub(crate) struct Parts {
    pub(crate) metadata: GgufMetadata,
    pub(crate) parts: Vec<(Arc<Mapping>, Layout)>,
}

impl Parts {
    pub(crate) fn tensor_count(&self) -> usize {
        self.parts.iter().map(|(_, layout)| layout.tensors.len() + layout.integers.len()).sum()
    }
}

/// Maps and parses the GGUF file at `path` and, if it is one part of a split model, all others.
pub(crate) fn open_parts(path: &Path, mapping: Arc<Mapping>) -> Result<Parts, WeightsError> {
    let layout = parse(mapping.bytes(), mapping.label())?;
    let count = layout.metadata.optional_u64("split.count")?.unwrap_or(1);
    if count <= 1 {
        let metadata = layout.metadata.clone();
        return Ok(Parts { metadata, parts: vec![(mapping, layout)] });
    }
    let label = mapping.label().to_owned();
    let fail = |problem: String| WeightsError::Unsupported {
        file: label.clone(),
        what: problem,
        remedy: "Put all parts of the model into one folder under their original names",
    };
    let prefix = part_prefix(path, count).ok_or_else(|| {
        fail(format!(
            "is one of {count} parts, but is not named like `model-00001-of-{count:05}.gguf`"
        ))
    })?;
    let mut parts = Vec::new();
    for number in 1..=count {
        let part_path = PathBuf::from(format!("{prefix}-{number:05}-of-{count:05}.gguf"));
        let part = Mapping::open(&part_path)?;
        let layout = parse(part.bytes(), part.label())?;
        check_part(&layout.metadata, number, count)?;
        parts.push((part, layout));
    }
    let of = |(_, layout): &(_, Layout)| layout.tensors.len() + layout.integers.len();
    let found: usize = parts.iter().map(of).sum();
    let metadata = parts[0].1.metadata.clone();
    if let Some(expected) = metadata.optional_u64("split.tensors.count")?
        && expected != found as u64
    {
        return Err(fail(format!(
            "its {count} parts hold {found} tensors, {expected} are announced"
        )));
    }
    Ok(Parts { metadata, parts })
}

/// Returns `folder/model` of `folder/model-00002-of-00003.gguf`.
fn part_prefix(path: &Path, count: u64) -> Option<String> {
    let text = path.to_str()?;
    let stem = text.strip_suffix(&format!("-of-{count:05}.gguf"))?;
    let (prefix, number) = stem.rsplit_once('-')?;
    let is_number = number.len() == 5 && number.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && count <= 99_999).then(|| prefix.to_owned())
}

fn check_part(metadata: &GgufMetadata, number: u64, count: u64) -> Result<(), WeightsError> {
    let (found_number, found_count) = (metadata.u64("split.no")?, metadata.u64("split.count")?);
    if (found_number, found_count) == (number - 1, count) {
        return Ok(());
    }
    Err(WeightsError::Unsupported {
        file: metadata.file().to_owned(),
        what: format!(
            "is named part {number} of {count}, but says inside that it is part {} of \
             {found_count}",
            found_number.saturating_add(1)
        ),
        remedy: "Restore the parts' original names, or download the model again",
    })
}

/// Makes an error about a tensor that two parts of one model hold.
pub(crate) fn duplicate_tensor(file: &str, name: &str) -> WeightsError {
    WeightsError::Unsupported {
        file: file.to_owned(),
        what: format!("tensor {} is in more than one part of the model", quoted(name.as_bytes())),
        remedy: DOWNLOAD_AGAIN,
    }
}
