//! The tensors and metadata of a model, whatever its files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::quoted;
use crate::map::Mapping;
use crate::tensor::{Data, Integers};
use crate::{DType, HuggingFaceMetadata, Tensor, WeightsError, foreign, gguf, huggingface};

/// What a checkpoint says about itself, in the terms of its format.
#[derive(Clone, Debug)]
pub enum Metadata {
    /// Keys and values of a GGUF file (of the first part if it is split).
    Gguf(gguf::GgufMetadata),
    /// The JSON files of a Hugging Face folder.
    HuggingFace(HuggingFaceMetadata),
}

/// A tensor that the files hold in an element format that trine does not read (integers, FP8, ...).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableTensor {
    /// Name as in the file.
    pub name: String,
    /// The format's name as in the file, for example `F8_E4M3`.
    pub format: String,
}

/// An open model: named tensors over mapped files, and metadata.
#[derive(Debug)]
pub struct Checkpoint {
    source: PathBuf,
    mappings: Vec<Arc<Mapping>>,
    tensors: Vec<Tensor>,
    sorted: Vec<u32>, // indices into `tensors`, by name
    unreadable: Vec<UnreadableTensor>,
    integers: Vec<Integers>,
    metadata: Metadata,
    file_bytes: u64,
}

impl Checkpoint {
    /// Opens a GGUF file, a Hugging Face folder or a safetensors file.
    ///
    /// The GGUF file may have any extension; the other parts of a split model are found next to it.
    /// A Hugging Face folder has a `config.json` and safetensors, single or sharded. A safetensors
    /// file needs its `config.json` next to it.
    ///
    /// Files are mapped, not read; the cost is that of the headers.
    ///
    /// # Errors
    ///
    /// Returns an error if the path is none of these, or a file breaks its format's rules.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, WeightsError> {
        let path = path.as_ref();
        let label = path.display().to_string();
        let facts = std::fs::metadata(path)
            .map_err(|source| WeightsError::io(&label, "find the file", source))?;
        if facts.is_dir() {
            return Self::from_hugging_face(path, huggingface::open_folder(path)?);
        }
        let mapping = Mapping::open(path)?;
        let has_extension =
            |extension: &str| path.extension().is_some_and(|e| e.eq_ignore_ascii_case(extension));
        let bytes = mapping.bytes();
        // The length at the start of a safetensors file may be any bytes.
        let is_safetensors = has_extension("safetensors") || looks_like_safetensors(bytes);
        if !is_safetensors && let Some(refusal) = foreign::recognise(&label, bytes) {
            return Err(refusal);
        }
        if bytes.starts_with(&gguf::MAGIC) || has_extension("gguf") {
            return Self::from_gguf_parts(path, gguf::open_parts(path, mapping)?);
        }
        if is_safetensors {
            return Self::from_hugging_face(path, huggingface::open_beside_config(path)?);
        }
        if let Some(refusal) = huggingface::refuse_pickle(path, bytes) {
            return Err(refusal);
        }
        let shown = quoted(&bytes[..bytes.len().min(8)]);
        let found = format!("starts with {shown}: neither a GGUF nor a safetensors file");
        Err(WeightsError::not_a_model(&label, found))
    }

    /// Opens a GGUF file that is part of the program's own image. Its tensors borrow the image.
    ///
    /// # Errors
    ///
    /// Returns an error if the bytes are not a sound GGUF file.
    pub fn from_static(bytes: &'static [u8]) -> Result<Self, WeightsError> {
        let label = "(embedded model)";
        let layout = gguf::parse(bytes, label)?;
        let tensors = layout
            .tensors
            .iter()
            .map(|info| {
                let data = Data::Static(&bytes[info.range.clone()]);
                Tensor::build(&info.name, info.dtype, &info.shape, data)
            })
            .collect::<Result<_, _>>()?;
        let metadata = Metadata::Gguf(layout.metadata);
        Self::assemble(PathBuf::from(label), Vec::new(), tensors, Vec::new(), metadata)
            .map(|checkpoint| Self { file_bytes: bytes.len() as u64, ..checkpoint })
    }

    fn from_gguf_parts(path: &Path, parts: gguf::Parts) -> Result<Self, WeightsError> {
        let mut tensors = Vec::with_capacity(parts.tensor_count());
        let (mut mappings, mut integers) = (Vec::new(), Vec::new());
        for (mapping, layout) in parts.parts {
            for info in layout.tensors {
                let data = Data::Mapped(Arc::clone(&mapping), info.range);
                tensors.push(Tensor::build(&info.name, info.dtype, &info.shape, data)?);
            }
            integers.extend(layout.integers.into_iter().map(|info| {
                let data = Data::Mapped(Arc::clone(&mapping), info.range);
                Integers { name: info.name.into(), width: info.width, data }
            }));
            mappings.push(mapping);
        }
        let metadata = Metadata::Gguf(parts.metadata);
        let unlisted = |own: &Integers| UnreadableTensor {
            name: own.name.clone(),
            format: format!("I{}", 8 * own.width),
        };
        let unreadable = integers.iter().map(unlisted).collect();
        let checkpoint = Self::assemble(path.to_owned(), mappings, tensors, unreadable, metadata)?;
        Ok(Self { integers, ..checkpoint })
    }

    fn from_hugging_face(path: &Path, folder: huggingface::Folder) -> Result<Self, WeightsError> {
        let metadata = Metadata::HuggingFace(folder.metadata);
        let (mappings, tensors) = (folder.mappings, folder.tensors);
        let checkpoint =
            Self::assemble(path.to_owned(), mappings, tensors, folder.unreadable, metadata)?;
        Ok(Self { integers: folder.integers, ..checkpoint })
    }

    fn assemble(
        source: PathBuf,
        mappings: Vec<Arc<Mapping>>,
        tensors: Vec<Tensor>,
        unreadable: Vec<UnreadableTensor>,
        metadata: Metadata,
    ) -> Result<Self, WeightsError> {
        let mut sorted: Vec<u32> = (0..tensors.len() as u32).collect();
        sorted
            .sort_unstable_by(|&a, &b| tensors[a as usize].name().cmp(tensors[b as usize].name()));
        for pair in sorted.windows(2) {
            let name = tensors[pair[0] as usize].name();
            if name == tensors[pair[1] as usize].name() {
                return Err(gguf::duplicate_tensor(&source.display().to_string(), name));
            }
        }
        let file_bytes = mappings.iter().map(|mapping| mapping.bytes().len() as u64).sum();
        let checkpoint = Self {
            source,
            mappings,
            tensors,
            sorted,
            unreadable,
            integers: Vec::new(),
            metadata,
            file_bytes,
        };
        // A file that was cut while its header was read has been parsed from zero pages.
        checkpoint.check_intact()?;
        Ok(checkpoint)
    }

    /// Returns all tensors, in file order.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &Tensor> {
        self.tensors.iter()
    }

    /// Returns the tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        let name_of = |&index: &u32| self.tensors[index as usize].name();
        let found = self.sorted.binary_search_by(|index| name_of(index).cmp(name)).ok()?;
        Some(&self.tensors[self.sorted[found] as usize])
    }

    /// Returns the tensors of the files that are not among [`Self::tensors`] because trine does not
    /// read their element format. A model that needs one of them cannot run.
    pub fn unreadable(&self) -> &[UnreadableTensor] {
        &self.unreadable
    }

    /// Returns the values of a tensor of integers, if the files hold one of `count` values: of 64
    /// bits, or in a GGUF file of 32 bits.
    pub fn integers(&self, name: &str, count: usize) -> Option<Vec<i64>> {
        let is_wanted = |own: &&Integers| {
            own.name == name && count.checked_mul(own.width) == Some(own.data.bytes().len())
        };
        let Integers { width, data, .. } = self.integers.iter().find(is_wanted)?;
        Some(match width {
            4 => {
                let words = data.bytes().as_chunks::<4>().0;
                words.iter().map(|word| i64::from(i32::from_le_bytes(*word))).collect()
            }
            _ => {
                let words = data.bytes().as_chunks::<8>().0;
                words.iter().map(|word| i64::from_le_bytes(*word)).collect()
            }
        })
    }

    /// Returns the files' metadata about the model.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Returns the path given to [`Self::open`]; `(embedded model)` for a static one.
    pub fn source(&self) -> &Path {
        &self.source
    }

    /// Returns the bytes of all weight files together.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Returns whether any tensor is stored as `dtype`.
    pub fn uses(&self, dtype: DType) -> bool {
        self.tensors.iter().any(|tensor| tensor.dtype() == dtype)
    }

    /// Confirms that no file was cut or rewritten since it was opened. It costs one system call per
    /// file: call it after work that read weights, before the results leave the program.
    ///
    /// # Errors
    ///
    /// Returns [`WeightsError::Changed`] with the name of the file.
    pub fn check_intact(&self) -> Result<(), WeightsError> {
        self.mappings.iter().try_for_each(|mapping| mapping.check_intact())
    }
}

/// Returns whether `bytes` start with the length of a JSON header and the header's brace, as a
/// safetensors file does.
fn looks_like_safetensors(bytes: &[u8]) -> bool {
    bytes.get(8) == Some(&b'{')
        && bytes[..8].iter().rev().skip_while(|&&byte| byte == 0).count() <= 4
}
