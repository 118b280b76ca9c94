//! Hugging Face folders: `config.json` and its companions, safetensors, the shard index.

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use crate::error::{GIVE_A_MODEL, quoted};
use crate::json::{exists, read_json};
use crate::map::Mapping;
use crate::modules::{DENSE_TENSOR, dense_modules};
use crate::packed::refuse_quantised;
use crate::tensor::{Data, Integers};
use crate::{SafetensorsFile, Tensor, UnreadableTensor, WeightsError, foreign};

/// The most bytes of `config.json` and `generation_config.json`: published ones have below 100 kB,
/// and parsed JSON takes many times its text.
const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// The most bytes of `tokenizer_config.json` (1.2 MB for Gemma 3) and of the shard index.
const LARGE_JSON_BYTES_MAX: u64 = 1 << 24;
/// The most shards of one model.
const SHARDS_MAX: usize = 512;

/// Name of the file that says how pictures are prepared.
const PREPROCESSOR_CONFIG: &str = "preprocessor_config.json";
/// Name of the file that says it under a key of its own, since transformers 5.
const PROCESSOR_CONFIG: &str = "processor_config.json";
const IMAGE_PROCESSOR: &str = "image_processor";
const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// The JSON files of a model's folder.
#[derive(Clone, Debug)]
pub struct HuggingFaceMetadata {
    /// `config.json`, an object.
    pub config: Value,
    /// `generation_config.json`, if there is one.
    pub generation_config: Option<Value>,
    /// `tokenizer_config.json`, if there is one.
    pub tokenizer_config: Option<Value>,
    /// The folder, for the tokenizer's own files.
    pub directory: PathBuf,
}

impl HuggingFaceMetadata {
    /// Reads how pictures are prepared, an object, and the file that says it, if one does:
    /// `image_processor` of `processor_config.json`, or else `preprocessor_config.json`, as
    /// transformers 5 does. Only models that are given pictures need it, so that it is not read
    /// with the other files.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or is not a JSON object.
    pub fn preprocessor_config(&self) -> Result<Option<(PathBuf, Value)>, WeightsError> {
        let read = |name: &str| -> Result<_, WeightsError> {
            let path = self.directory.join(name);
            match read_json::<Value>(&path, CONFIG_BYTES_MAX)? {
                Some(config) if !config.is_object() => Err(not_an_object(&path)),
                config => Ok(config.map(|config| (path, config))),
            }
        };
        if let Some((path, mut whole)) = read(PROCESSOR_CONFIG)? {
            match whole.get_mut(IMAGE_PROCESSOR).map(Value::take) {
                None | Some(Value::Null) => {}
                Some(own) if own.is_object() => return Ok(Some((path, own))),
                Some(_) => return Err(not_an_object(&path)),
            }
        }
        read(PREPROCESSOR_CONFIG)
    }
}

/// An opened folder before its tensors are indexed.
pub(crate) struct Folder {
    pub(crate) metadata: HuggingFaceMetadata,
    pub(crate) mappings: Vec<Arc<Mapping>>,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) unreadable: Vec<UnreadableTensor>,
    pub(crate) integers: Vec<Integers>,
}

/// Opens a folder: the shards of its index, else `model.safetensors`, else its only safetensors
/// file.
pub(crate) fn open_folder(directory: &Path) -> Result<Folder, WeightsError> {
    let metadata = read_metadata(directory)?;
    let index = directory.join(INDEX);
    if exists(&index) {
        return open_sharded(metadata, &index);
    }
    let single = directory.join(SINGLE);
    let weights = if exists(&single) { single } else { only_safetensors(directory)? };
    open_files(metadata, vec![weights])
}

/// Opens a safetensors file whose folder holds the configuration. For a shard it opens the whole
/// model.
pub(crate) fn open_beside_config(path: &Path) -> Result<Folder, WeightsError> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    if !exists(&directory.join("config.json")) {
        return Err(WeightsError::NotAModel {
            file: path.display().to_string(),
            found: "has no config.json beside it".to_owned(),
            remedy: "Download the model's config.json (and tokenizer.json) into the same folder",
        });
    }
    let metadata = read_metadata(&directory)?;
    let index = directory.join(INDEX);
    if exists(&index) && path.file_name().is_some() {
        let shards = read_index(&index)?;
        if shards.iter().any(|(_, shard)| path.file_name() == Some(shard.as_ref())) {
            return open_sharded(metadata, &index);
        }
    }
    open_files(metadata, vec![path.to_owned()])
}

/// Returns an error if the file is in PyTorch's pickle format, which runs code when it is read, or
/// another archive.
pub(crate) fn refuse_pickle(path: &Path, bytes: &[u8]) -> Option<WeightsError> {
    let is_pickle_name = path.extension().is_some_and(is_pickle_extension);
    if foreign::is_plain_zip(bytes, is_pickle_name) {
        return Some(WeightsError::NotAModel {
            file: path.display().to_string(),
            found: "this is an archive (zip), not a model".to_owned(),
            remedy: foreign::UNPACK,
        });
    }
    // Zip archives (torch.save) and bare pickles of protocol 2 and later.
    let is_pickle = bytes.starts_with(b"PK\x03\x04") || bytes.starts_with(&[0x80, 0x02]);
    (is_pickle_name || is_pickle).then(|| pickle_refused(path))
}

fn is_pickle_extension(extension: &std::ffi::OsStr) -> bool {
    ["bin", "pt", "pth", "ckpt", "pkl"].iter().any(|known| extension.eq_ignore_ascii_case(known))
}

fn pickle_refused(path: &Path) -> WeightsError {
    WeightsError::Unsupported {
        file: path.display().to_string(),
        what: "holds weights in PyTorch's pickle format, which can run any code when it is read"
            .to_owned(),
        remedy: "Use the model's safetensors or GGUF files, or convert it with its own tools",
    }
}

fn read_metadata(directory: &Path) -> Result<HuggingFaceMetadata, WeightsError> {
    let config_path = directory.join("config.json");
    let Some(config) = read_json::<Value>(&config_path, CONFIG_BYTES_MAX)? else {
        return Err(no_config(directory));
    };
    if !config.is_object() {
        return Err(not_an_object(&config_path));
    }
    refuse_quantised(&config, &config_path)?;
    Ok(HuggingFaceMetadata {
        config,
        generation_config: read_json(&directory.join("generation_config.json"), CONFIG_BYTES_MAX)?,
        tokenizer_config: read_json(
            &directory.join("tokenizer_config.json"),
            LARGE_JSON_BYTES_MAX,
        )?,
        directory: directory.to_owned(),
    })
}

fn not_an_object(path: &Path) -> WeightsError {
    let file = path.display().to_string();
    WeightsError::malformed(&file, 0, "expected a JSON object".to_owned())
}

fn no_config(directory: &Path) -> WeightsError {
    if exists(&directory.join("adapter_config.json")) {
        return WeightsError::NotAModel {
            file: directory.display().to_string(),
            found: "this is a LoRA adapter, not a model".to_owned(),
            remedy: "trine runs no adapters: merge it into its model first, and give that",
        };
    }
    let has_gguf = files_where(directory, |path| path.extension().is_some_and(|e| e == "gguf"));
    WeightsError::NotAModel {
        file: directory.display().to_string(),
        found: "is a folder without config.json".to_owned(),
        remedy: match has_gguf {
            Ok(files) if !files.is_empty() => "Give the path of one of the folder's .gguf files",
            _ => GIVE_A_MODEL,
        },
    }
}

fn files_where(
    directory: &Path,
    keep: impl Fn(&Path) -> bool,
) -> Result<Vec<PathBuf>, WeightsError> {
    let fail =
        |source| WeightsError::io(&directory.display().to_string(), "list the folder", source);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        if keep(&path) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Returns the only safetensors file of a folder without the usual names.
fn only_safetensors(directory: &Path) -> Result<PathBuf, WeightsError> {
    let mut found =
        files_where(directory, |path| path.extension().is_some_and(|e| e == "safetensors"))?;
    if found.len() == 1 {
        return Ok(found.remove(0));
    }
    let file = directory.display().to_string();
    if found.is_empty() {
        let pickles =
            files_where(directory, |path| path.extension().is_some_and(is_pickle_extension))?;
        return Err(match pickles.first() {
            Some(pickle) => pickle_refused(pickle),
            None => WeightsError::not_a_model(&file, "has no safetensors file".to_owned()),
        });
    }
    Err(WeightsError::NotAModel {
        file,
        found: format!("has {} safetensors files, but neither {SINGLE} nor {INDEX}", found.len()),
        remedy: "Download the model's index file too, or give the path of one safetensors file",
    })
}

/// The `weight_map` of an index: tensor names and their shards, in file order, repeats included.
struct WeightMap(Vec<(String, String)>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = WeightMap;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object of tensor names and file names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(WeightMap(pairs))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

#[derive(serde::Deserialize)]
struct Index {
    weight_map: WeightMap,
}

fn read_index(path: &Path) -> Result<Vec<(String, String)>, WeightsError> {
    let label = path.display().to_string();
    let index: Option<Index> = read_json(path, LARGE_JSON_BYTES_MAX)?;
    let mut pairs = index.map(|index| index.weight_map.0).unwrap_or_default();
    let fail = |problem: String| Err(WeightsError::malformed(&label, 0, problem));
    pairs.sort();
    if let Some(pair) = pairs.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return fail(format!("tensor {} appears twice", quoted(pair[0].0.as_bytes())));
    }
    for (_, shard) in &pairs {
        if !is_plain_file_name(shard) {
            let shown = quoted(shard.as_bytes());
            return fail(format!("shard {shown} is not the plain name of a .safetensors file"));
        }
    }
    if pairs.is_empty() { fail("weight_map is empty".to_owned()) } else { Ok(pairs) }
}

/// Returns whether `name` stays inside its folder on every system: no separators or drives, not
/// only dots.
fn is_plain_file_name(name: &str) -> bool {
    let stem = name.strip_suffix(".safetensors").unwrap_or("");
    let is_plain = |c: char| !matches!(c, '/' | '\\' | ':') && !c.is_control();
    !stem.is_empty() && !name.starts_with('.') && name.chars().all(is_plain)
}

fn open_sharded(metadata: HuggingFaceMetadata, index: &Path) -> Result<Folder, WeightsError> {
    let pairs = read_index(index)?;
    let label = index.display().to_string();
    let mut shards: Vec<&str> = pairs.iter().map(|(_, shard)| shard.as_str()).collect();
    shards.sort_unstable();
    shards.dedup();
    if shards.len() > SHARDS_MAX {
        let problem = format!("{} shards; at most {SHARDS_MAX} are read", shards.len());
        return Err(WeightsError::malformed(&label, 0, problem));
    }
    let paths: Vec<PathBuf> = shards.iter().map(|shard| metadata.directory.join(shard)).collect();
    if let Some((shard, _)) = shards.iter().zip(&paths).find(|(_, path)| !exists(path)) {
        return Err(WeightsError::Unsupported {
            file: label,
            what: format!("names the shard {}, which is missing", quoted(shard.as_bytes())),
            remedy: "Download all shards of the model into one folder",
        });
    }
    let files =
        paths.iter().map(|path| SafetensorsFile::open(path)).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<HashSet<&str>> = files
        .iter()
        .map(|file| file.entries().iter().map(|entry| entry.name.as_str()).collect())
        .collect();
    for (name, shard) in &pairs {
        let place =
            shards.binary_search(&shard.as_str()).expect("the shards come from these pairs");
        if !names[place].contains(name.as_str()) {
            let (name, shard) = (quoted(name.as_bytes()), quoted(shard.as_bytes()));
            let problem = format!("tensor {name} is not in its shard {shard}");
            return Err(WeightsError::malformed(&label, 0, problem));
        }
    }
    drop(names);
    gather(metadata, files)
}

fn open_files(metadata: HuggingFaceMetadata, paths: Vec<PathBuf>) -> Result<Folder, WeightsError> {
    let files =
        paths.iter().map(|path| SafetensorsFile::open(path)).collect::<Result<Vec<_>, _>>()?;
    gather(metadata, files)
}

fn gather(
    metadata: HuggingFaceMetadata,
    files: Vec<SafetensorsFile>,
) -> Result<Folder, WeightsError> {
    let mut folder = Folder {
        metadata,
        mappings: Vec::new(),
        tensors: Vec::new(),
        unreadable: Vec::new(),
        integers: Vec::new(),
    };
    for module in dense_modules(&folder.metadata.directory)? {
        let (mapping, entries) = SafetensorsFile::open(&module.path)?.into_parts();
        for entry in entries {
            let Some(dtype) = entry.dtype().filter(|_| entry.name == DENSE_TENSOR) else {
                continue;
            };
            let data = Data::Mapped(Arc::clone(&mapping), entry.range);
            folder.tensors.push(Tensor::build(&module.name, dtype, &entry.shape, data)?);
        }
        folder.mappings.push(mapping);
    }
    for file in files {
        let (mapping, entries) = file.into_parts();
        for entry in entries {
            match entry.dtype() {
                Some(dtype) => {
                    let data = Data::Mapped(Arc::clone(&mapping), entry.range);
                    folder.tensors.push(Tensor::build(&entry.name, dtype, &entry.shape, data)?);
                }
                None => {
                    if entry.format == "I64" {
                        let data = Data::Mapped(Arc::clone(&mapping), entry.range);
                        folder.integers.push(Integers { name: entry.name.clone(), width: 8, data });
                    }
                    let tensor = UnreadableTensor { name: entry.name, format: entry.format };
                    folder.unreadable.push(tensor);
                }
            }
        }
        folder.mappings.push(mapping);
    }
    Ok(folder)
}
