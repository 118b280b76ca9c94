//! `trine quantize`

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde::Serialize;
use trine_model::{Weight, names};
use trine_session::model_source::{Source, find};
use trine_session::quantize::{Subject, numbers};
use trine_weights::gguf::{DataWriter, Writer};
use trine_weights::{DType, Metadata, Tensor, fallback, quantize_tensor};

use crate::cli::QuantizeArgs;
use crate::destination;
use crate::interrupt::Watch;
use crate::settings::Settings;
use crate::terminal;
use crate::terminal::output;

/// What happens to one tensor.
#[derive(Debug, Serialize)]
struct Change {
    tensor: String,
    from: &'static str,
    to: &'static str,
    bytes: u64,
    /// Whether another format was used because the rows do not fit the requested one.
    fell_back: bool,
}

/// The report.
#[derive(Debug, Serialize)]
struct Report {
    input: String,
    output: PathBuf,
    #[serde(rename = "type")]
    dtype: &'static str,
    bytes_before: u64,
    bytes_after: u64,
    converted: usize,
    copied: usize,
    /// The number of tensors that are left out because a text model does not use them.
    left_out: usize,
    changes: Vec<Change>,
}

/// One tensor of the new file.
struct Target {
    name: String,
    /// Outermost first.
    shape: Vec<usize>,
    dtype: DType,
    fell_back: bool,
    holds: Holds,
}

/// What a tensor of the new file holds.
enum Holds {
    /// The model's weights, one after the other.
    Weights(Vec<Weight>),
    /// Numbers of the configuration.
    Numbers(Vec<f32>),
}

impl Target {
    /// Returns the format in which the model has it.
    fn source(&self) -> DType {
        match &self.holds {
            Holds::Weights(weights) => weights[0].dtype,
            Holds::Numbers(_) => self.dtype,
        }
    }

    /// Returns the number of tensors of a Hugging Face checkpoint that it is made from.
    fn read(&self) -> usize {
        match &self.holds {
            Holds::Weights(weights) => weights.len(),
            Holds::Numbers(_) => usize::from(self.name != names::ROPE_FACTORS),
        }
    }

    /// Returns the bytes of the tensor.
    fn bytes(&self) -> u64 {
        let columns = *self.shape.last().expect("a tensor has rows");
        let rows: usize = self.shape[..self.shape.len() - 1].iter().product();
        let blocks = columns.div_ceil(self.dtype.block_elements());
        (rows * blocks * self.dtype.block_bytes()) as u64
    }
}

/// Writes the quantised copy.
///
/// # Errors
/// Returns an error if there is no such model, OUT exists, the values cannot be quantised, or the
/// file cannot be written.
pub(crate) fn run(set: &Settings, mut args: QuantizeArgs) -> Result<()> {
    let library = &set.library;
    let source = find(library, Some(&args.input), args.fetch.download())?.source;
    args.output = destination::behind_links(&args.output)?;
    check_output(&args.output, args.force, &source)?;
    let subject = Subject::open(&source)?;
    let targets = targets(&subject, args.dtype, args.embedding);
    let formats = targets.iter().map(|target| target.dtype).collect::<Vec<_>>();
    let metadata = subject.metadata(library, &formats, args.dtype)?;
    destination::clear(&args.output);
    destination::check_room(&args.output, targets.iter().map(Target::bytes).sum())?;
    let mut writer = Writer::new(&args.output, metadata)?;
    for target in &targets {
        writer.declare(&target.name, target.dtype, &target.shape)?;
    }
    let ordering = subject.ordering();
    if !ordering.is_empty() {
        writer.declare_integers(names::DRAFT_ORDERING, ordering.len())?;
    }
    let watch = Watch::new();
    let progress =
        terminal::stderr_is_terminal().then(|| indicatif::ProgressBar::new(targets.len() as u64));
    let mut data = writer.start()?;
    for target in &targets {
        watch.check()?;
        write_tensor(&mut data, &subject, target)?;
        if let Some(bar) = &progress {
            bar.inc(1);
        }
    }
    data.bytes(&ordering.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>())?;
    subject.checkpoint().check_intact()?;
    data.finish()?;
    if let Some(bar) = progress {
        bar.finish_and_clear();
    }
    subject.check_written(&args.output)?;
    let report = report(&args, &source, &subject, &targets);
    if args.json { output::json(&report) } else { tell(&report) }
}

/// Checks the name of the output. Writing over the input while it is mapped would destroy it.
fn check_output(path: &Path, force: bool, source: &Source) -> Result<()> {
    destination::check(path, source)?;
    if path.exists() && !force {
        bail!("{} exists; choose another name, or replace it with --force", path.display());
    }
    Ok(())
}

/// Returns the tensors of the new file.
fn targets(subject: &Subject, asked: DType, embedding: Option<DType>) -> Vec<Target> {
    let mut targets: Vec<Target> = Vec::new();
    for weight in subject.weights() {
        let joint = names::stream_of(&weight.name).map(|(part, _)| format!("{part}.weight"));
        match targets.iter_mut().find(|target| Some(&target.name) == joint.as_ref()) {
            Some(target) => {
                target.shape[0] += 1;
                if target.dtype != weight.dtype {
                    (target.dtype, target.fell_back) = (DType::F16, true);
                }
                if let Holds::Weights(weights) = &mut target.holds {
                    weights.push(weight);
                }
            }
            None => targets.push(target(subject, weight, joint, asked, embedding)),
        }
    }
    for (name, numbers) in numbers(subject.config()) {
        let (shape, holds) = (vec![numbers.len()], Holds::Numbers(numbers));
        targets.push(Target { name, shape, dtype: DType::F32, fell_back: false, holds });
    }
    targets
}

/// Returns the tensor that holds a weight, or of which it is the first matrix.
fn target(
    subject: &Subject,
    weight: Weight,
    joint: Option<String>,
    asked: DType,
    embedding: Option<DType>,
) -> Target {
    let mut shape = subject.tensor(&weight).shape().to_vec();
    if weight.name == names::PER_LAYER_EMBEDDING {
        // Other programs want a row for each token.
        shape[0] = weight.rows.max(subject.config().vocabulary);
    }
    if joint.is_some() {
        shape.insert(0, 1);
    }
    let is_embedding = weight.name == names::TOKEN_EMBEDDING || weight.name == names::OUTPUT;
    let asked = if is_embedding { embedding.unwrap_or(asked) } else { asked };
    let (dtype, fell_back) = if !weight.is_matrix() {
        (DType::F32, false)
    } else if weight.dtype.is_quantized()
        || names::keeps_format(subject.config().family, &weight.name)
    {
        (weight.dtype, false)
    } else {
        let dtype = fallback(asked, weight.columns);
        (dtype, dtype != asked)
    };
    let name = joint.unwrap_or_else(|| weight.name.clone());
    Target { name, shape, dtype, fell_back, holds: Holds::Weights(vec![weight]) }
}

/// Writes a tensor. A table of per-layer inputs with fewer rows than there are tokens gets its
/// first row for the others, which is what they read.
fn write_tensor(data: &mut DataWriter, subject: &Subject, target: &Target) -> Result<()> {
    let weights = match &target.holds {
        Holds::Weights(weights) => weights,
        Holds::Numbers(numbers) => {
            let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
            return Ok(data.bytes(&bytes.collect::<Vec<u8>>())?);
        }
    };
    for weight in weights {
        let tensor = converted(subject, weight, target.dtype)?;
        data.bytes(tensor.bytes())?;
        if weight.name == names::PER_LAYER_EMBEDDING {
            for _ in weight.rows..target.shape[0] {
                data.bytes(tensor.row(0))?;
            }
        }
        subject.tensor(weight).release_pages(0..usize::MAX);
    }
    Ok(())
}

/// Returns a tensor as it is written: matrices converted, norms as factors in F32.
fn converted(subject: &Subject, weight: &Weight, dtype: DType) -> Result<Tensor> {
    let tensor = subject.tensor(weight);
    if weight.is_matrix() {
        return Ok(quantize_tensor(tensor, dtype)?.renamed(&weight.name));
    }
    let bytes = subject.vector(weight)?.iter().flat_map(|value| value.to_le_bytes()).collect();
    Ok(Tensor::from_owned(&weight.name, DType::F32, tensor.shape(), bytes)?)
}

fn report(args: &QuantizeArgs, source: &Source, subject: &Subject, targets: &[Target]) -> Report {
    let changes: Vec<Change> = targets
        .iter()
        .map(|target| Change {
            tensor: target.name.clone(),
            from: target.source().name(),
            to: target.dtype.name(),
            bytes: target.bytes(),
            fell_back: target.fell_back,
        })
        .collect();
    let checkpoint = subject.checkpoint();
    let read = match checkpoint.metadata() {
        Metadata::Gguf(_) => targets.len(),
        Metadata::HuggingFace(_) => targets.iter().map(Target::read).sum(),
    };
    let read = read + usize::from(!subject.ordering().is_empty());
    let in_files = checkpoint.tensors().len() + checkpoint.unreadable().len();
    Report {
        input: source.name(),
        output: args.output.clone(),
        dtype: args.dtype.name(),
        bytes_before: checkpoint.file_bytes(),
        bytes_after: std::fs::metadata(&args.output).map_or(0, |facts| facts.len()),
        converted: changes.iter().filter(|change| change.from != change.to).count(),
        copied: changes.iter().filter(|change| change.from == change.to).count(),
        left_out: in_files.saturating_sub(read),
        changes,
    }
}

fn tell(report: &Report) -> Result<()> {
    output::remark(format_args!(
        "{}: {} to {} ({}), {} tensors converted, {} kept",
        terminal::shown(&report.output),
        output::bytes(report.bytes_before),
        output::bytes(report.bytes_after),
        report.dtype,
        report.converted,
        report.copied
    ));
    let fallen: Vec<&Change> = report.changes.iter().filter(|change| change.fell_back).collect();
    if !fallen.is_empty() {
        output::remark(format_args!(
            "rows that do not fit the format's blocks were stored otherwise:"
        ));
        for change in fallen {
            output::remark(format_args!(
                "  {} as {}",
                terminal::harmless(&change.tensor),
                change.to
            ));
        }
    }
    if report.converted == 0 || report.changes.iter().all(|change| change.to != report.dtype) {
        output::warning(
            "no matrix was converted to the type asked for: only F32, F16 and BF16 matrices are; \
             start from the original model",
        );
    }
    if report.left_out > 0 {
        output::remark(format_args!(
            "{} tensors that the text model does not use were left out",
            report.left_out
        ));
    }
    Ok(())
}
