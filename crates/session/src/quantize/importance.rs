//! Importance matrices: how much the columns of each matrix matter, as llama-imatrix writes it.
//!
//! A file holds for each matrix the sums of squares of what its columns were multiplied with, and
//! how many rows these were. In GGUF these are the tensors `NAME.in_sum2` and `NAME.counts`, with a
//! row for each expert. The older layout, without a magic number, is a count of entries, and for
//! each the length of its name, the name, a number of calls, the number of values, and the means of
//! squares times calls; all numbers are little-endian words.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};
use trine_model::Weight;
use trine_weights::{Checkpoint, DType, Tensor, gguf};

use super::Subject;

/// The bytes of the largest file: 16 times those of a model with 128 experts.
const LARGEST: u64 = 1 << 30;
/// The most entries, and bytes of a name: as many as a GGUF file has for tensors.
const ENTRIES_MAX: usize = 1 << 16;
const NAME_BYTES_MAX: usize = 64;

/// How much the columns of matrices matter.
#[derive(Debug, Default)]
pub struct Importance {
    /// The mean squares of columns by the matrix's name; of experts one after the other.
    means: HashMap<String, Vec<f32>>,
}

impl Importance {
    /// Reads a file of either layout.
    ///
    /// # Errors
    /// Returns an error that names the file and the entry if it is damaged, or too large.
    pub fn open(path: &Path) -> Result<Self> {
        let of_file = || format!("{} is no importance matrix that can be read", path.display());
        let mut file = File::open(path).with_context(of_file)?;
        if file.metadata().with_context(of_file)?.len() > LARGEST {
            bail!("{}: it has more than {LARGEST} bytes", of_file());
        }
        let mut magic = [0; 4];
        file.read_exact(&mut magic).with_context(of_file)?;
        let read = match magic == gguf::MAGIC {
            true => {
                let file = Checkpoint::open(path)?;
                // Other parts of a split file are larger than the first.
                match file.file_bytes() > LARGEST {
                    true => bail!("{}: its parts have more than {LARGEST} bytes", of_file()),
                    false => Self::of_gguf(&file),
                }
            }
            false => {
                let mut bytes = magic.to_vec();
                file.take(LARGEST).read_to_end(&mut bytes)?;
                Self::of_words(&bytes)
            }
        };
        let read = read.with_context(of_file)?;
        match read.means.is_empty() {
            true => bail!("{}: it has no entries; llama-imatrix makes such files", of_file()),
            false => Ok(read),
        }
    }

    /// Returns whether the file has entries for no matrix.
    pub fn is_empty(&self) -> bool {
        self.means.is_empty()
    }

    /// Returns the mean squares of what a weight's columns are multiplied with, of each expert if
    /// the file has them apart; none if nothing is known of the weight.
    ///
    /// # Errors
    /// Returns an error if the entry is of another number of columns or experts.
    pub fn of_weight(&self, subject: &Subject, weight: &Weight) -> Result<&[f32]> {
        self.of(&weight.name, subject.tensor(weight).columns(), subject.experts(weight))
    }

    /// Returns the mean squares of a matrix's columns, for each expert if there are `groups`; none
    /// if nothing is known of the matrix.
    ///
    /// # Errors
    /// Returns an error if the entry is of another number of columns or experts.
    fn of(&self, name: &str, columns: usize, groups: usize) -> Result<&[f32]> {
        let Some(means) = self.means.get(name) else { return Ok(&[]) };
        if means.len() != columns * groups && means.len() != columns {
            bail!(
                "the importance matrix has {} values for {name}, which has {columns} columns and \
                 {groups} experts: it is another model's",
                means.len()
            );
        }
        Ok(means)
    }

    fn of_gguf(file: &Checkpoint) -> Result<Self> {
        let mut means = HashMap::new();
        for sums in file.tensors() {
            let Some(name) = sums.name().strip_suffix(".in_sum2") else { continue };
            let counts = file
                .tensor(&format!("{name}.counts"))
                .with_context(|| format!("{name} has no counts"))?;
            let floats = |tensor: &Tensor| match tensor.dtype() {
                DType::F32 => Ok(tensor.to_f32()?),
                other => bail!("{} is {other}, not F32", tensor.name()),
            };
            let (counts, values) = (checked(name, floats(counts)?)?, floats(sums)?);
            let values = checked(name, values)?;
            if counts.is_empty() || !values.len().is_multiple_of(counts.len()) {
                bail!("{name} has {} counts for {} values", counts.len(), values.len());
            }
            let columns = (values.len() / counts.len()).max(1);
            let rows = values.chunks(columns).zip(&counts);
            let own = rows.flat_map(|(row, &count)| row.iter().map(move |&sum| mean(sum, count)));
            means.insert(name.to_owned(), checked(name, own.collect())?);
        }
        Ok(Self { means })
    }

    fn of_words(bytes: &[u8]) -> Result<Self> {
        let mut rest = Words(bytes);
        let mut means = HashMap::new();
        let entries = rest.count()?;
        if entries > ENTRIES_MAX {
            bail!("it has {entries} entries; at most {ENTRIES_MAX} are read");
        }
        for entry in 0..entries {
            let read = (|| {
                let length = rest.count()?;
                if !(1..=NAME_BYTES_MAX).contains(&length) {
                    bail!("a name of {length} bytes; they have 1 to {NAME_BYTES_MAX}");
                }
                let name = String::from_utf8(rest.bytes(length)?.to_vec())?;
                let calls = rest.count()?;
                let values = rest.count()?;
                let values = rest.bytes(values.checked_mul(4).context("too many values")?)?;
                let values = values.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word));
                let own = values.map(|sum| mean(sum, calls as f32)).collect();
                let own = checked(&name, own)?;
                Ok::<_, anyhow::Error>((name, own))
            })();
            let (name, own) = read.with_context(|| format!("entry {entry} is damaged"))?;
            if own.is_empty() {
                bail!("entry {entry} has no values");
            }
            if means.insert(name, own).is_some() {
                bail!("entry {entry} has the name of an earlier one");
            }
        }
        Ok(Self { means })
    }
}

/// Returns a mean; of an expert that no row went to the same for all columns.
fn mean(sum: f32, count: f32) -> f32 {
    if count > 0.0 { sum / count } else { 1.0 }
}

fn checked(name: &str, means: Vec<f32>) -> Result<Vec<f32>> {
    match means.iter().position(|mean| !mean.is_finite() || *mean < 0.0) {
        Some(position) => {
            bail!("{name}: number {position} is {}, and has to be a number from 0", means[position])
        }
        None => Ok(means),
    }
}

/// Bytes that were not read yet.
struct Words<'a>(&'a [u8]);

impl<'a> Words<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        let (own, rest) = self.0.split_at_checked(count).context("it ends too early")?;
        self.0 = rest;
        Ok(own)
    }

    /// Reads a number that is not negative.
    fn count(&mut self) -> Result<usize> {
        let word = self.bytes(4)?.as_chunks::<4>().0[0];
        usize::try_from(i32::from_le_bytes(word)).context("a negative number")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trine_weights::SafetensorsFile;

    fn golden(name: &str) -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/quantize").join(name)
    }

    /// The files hold what another implementation wrote into both layouts and apart.
    #[test]
    fn both_layouts_hold_the_same() {
        let numbers = SafetensorsFile::open(&golden("imatrix.safetensors")).unwrap();
        for kind in ["dense", "moe"] {
            let new = Importance::open(&golden(&format!("imatrix-{kind}.gguf"))).unwrap();
            let old = Importance::open(&golden(&format!("imatrix-{kind}.dat"))).unwrap();
            assert_eq!(new.means.len(), old.means.len());
            assert!(!new.is_empty());
            for (name, means) in &new.means {
                let floats = |what: &str| -> Vec<f32> {
                    let wanted = format!("{kind}.{name}.{what}");
                    let found = numbers.entries().iter().find(|entry| entry.name == wanted);
                    let bytes = numbers.bytes(found.unwrap()).as_chunks::<4>().0;
                    bytes.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
                };
                let (sums, counts) = (floats("in_sum2"), floats("counts"));
                let columns = sums.len() / counts.len();
                for (index, (a, b)) in means.iter().zip(&old.means[name]).enumerate() {
                    let count = counts[index / columns];
                    if count == 0.0 {
                        assert_eq!(*a, 1.0, "{name}: an expert that no row went to");
                        continue;
                    }
                    let expected = sums[index] / count;
                    assert!((a - expected).abs() <= 1e-6 * expected, "{name}: {a} {expected}");
                    assert!((b - expected).abs() <= 2e-6 * expected, "{name}: {b} {expected}");
                }
            }
        }
    }

    #[test]
    fn damaged_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("imatrix.dat");
        let whole = std::fs::read(golden("imatrix-dense.dat")).unwrap();
        let refused = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            format!("{:#}", Importance::open(&path).unwrap_err())
        };
        for cut in [0, 3, 4, 7, 11, 40, 400] {
            assert!(refused(&whole[..cut]).contains("imatrix.dat"), "{cut}");
        }
        assert!(refused(&[0; 4]).contains("no entries"));
        assert!(refused(&i32::MAX.to_le_bytes()).contains("at most 65536"));
        assert!(refused(&1_i32.to_le_bytes()).contains("entry 0"));
        assert!(refused(&(-1_i32).to_le_bytes()).contains("negative"));
    }

    /// Any damage gives an error that names the file and is short, or means that are numbers.
    #[test]
    fn damage_gives_errors_or_sound_means() {
        let folder = tempfile::tempdir().unwrap();
        let mut random = fastrand::Rng::with_seed(20_253);
        let extremes = [0, 1, -1, i32::MIN, i32::MAX, 1 << 16, 1 << 24];
        for name in ["imatrix-dense.dat", "imatrix-moe.dat", "imatrix-moe.gguf"] {
            let (whole, path) = (std::fs::read(golden(name)).unwrap(), folder.path().join(name));
            // Half of the damage is where names and counts are.
            let place = |random: &mut fastrand::Rng| {
                let most = [whole.len(), 400][random.usize(..2)];
                random.usize(..most)
            };
            let (mut refused, mut read) = (0, 0);
            for round in 0..1000 {
                let mut bytes = whole.clone();
                let (at, other) = (place(&mut random), place(&mut random));
                let range = at.min(other)..at.max(other);
                match round % 5 {
                    0 => bytes[at] ^= 1 << random.usize(..8),
                    1 => bytes.truncate(at),
                    2 => drop(bytes.drain(range)),
                    3 => bytes.splice(at..at, whole[range].to_vec()).for_each(drop),
                    _ => {
                        let word = extremes[random.usize(..extremes.len())].to_le_bytes();
                        let end = (at + 4).min(bytes.len());
                        bytes[at..end].copy_from_slice(&word[..end - at]);
                    }
                }
                std::fs::write(&path, &bytes).unwrap();
                match Importance::open(&path) {
                    Ok(found) => {
                        read += 1;
                        let all = found.means.values().flatten();
                        assert!(all.into_iter().all(|mean| mean.is_finite() && *mean >= 0.0));
                    }
                    Err(error) => {
                        refused += 1;
                        let error = format!("{error:#}");
                        assert!(error.contains(name) && error.len() < 2000, "{error}");
                    }
                }
            }
            assert!(refused > 300 && read > 20, "{name}: {refused} refused, {read} read");
        }
    }

    /// Writes a GGUF file with an entry, and returns what is wrong with it.
    fn gguf_of(dtype: DType, sums: &[f32], counts: &[f32]) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("imatrix.gguf");
        let mut metadata = gguf::GgufMetadata::new("imatrix.gguf");
        metadata.insert("general.type", gguf::Value::String("imatrix".into()));
        let mut writer = gguf::Writer::new(&path, metadata).unwrap();
        let tensor = |name: &str, dtype: DType, values: &[f32]| {
            let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            let shape = [values.len()];
            let own = Tensor::from_owned(name, DType::F32, &shape, bytes).unwrap();
            trine_weights::quantize_tensor(&own, dtype).unwrap()
        };
        let tensors = [
            tensor("w.weight.in_sum2", dtype, sums),
            tensor("w.weight.counts", DType::F32, counts),
        ];
        for tensor in &tensors {
            writer.declare(tensor.name(), tensor.dtype(), tensor.shape()).unwrap();
        }
        let mut data = writer.start().unwrap();
        tensors.iter().for_each(|tensor| data.tensor(tensor).unwrap());
        data.finish().unwrap();
        Importance::open(&path).err().map(|error| format!("{error:#}"))
    }

    #[test]
    fn numbers_that_are_no_sums_are_refused() {
        assert_eq!(gguf_of(DType::F32, &[1.0, 0.0, 4.0, 9.0], &[2.0, 0.0]), None);
        for (dtype, sums, counts, mark) in [
            (DType::F16, [1.0, 2.0], [1.0], "not F32"),
            (DType::F32, [1.0, f32::NAN], [1.0], "NaN"),
            (DType::F32, [1.0, -2.0], [1.0], "-2"),
            (DType::F32, [1.0, 2.0], [f32::NAN], "NaN"),
            (DType::F32, [1.0, 2.0], [-1.0], "-1"),
            (DType::F32, [1.0, 2.0], [f32::INFINITY], "inf"),
        ] {
            let error = gguf_of(dtype, &sums, &counts).unwrap();
            assert!(error.contains(mark) && error.contains("w.weight"), "{mark}: {error}");
        }
        let error = gguf_of(DType::F32, &[1.0, 2.0], &[1.0, 1.0, 1.0]).unwrap();
        assert!(error.contains("3 counts"), "{error}");
    }

    #[test]
    fn entries_of_another_model_are_told() {
        let dense = Importance::open(&golden("imatrix-dense.gguf")).unwrap();
        let (name, means) = dense.means.iter().next().unwrap();
        assert_eq!(dense.of(name, means.len(), 1).unwrap(), means);
        assert!(dense.of("no such matrix", 7, 1).unwrap().is_empty());
        let error = dense.of(name, means.len() + 1, 1).unwrap_err().to_string();
        assert!(error.contains("another model's") && error.contains(name.as_str()), "{error}");
    }
}
