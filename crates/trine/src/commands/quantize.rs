//! `trine quantize`

use std::path::PathBuf;

use anyhow::{Result, bail};
use serde::Serialize;
use trine_model::{Weight, names};
use trine_session::model_source::{Source, find};
use trine_session::quantize::{FileType, Importance, Recipe, Subject, fit, numbers};
use trine_weights::gguf::{DataWriter, GgufMetadata, Writer};
use trine_weights::{DType, Metadata, Tensor, blocks, fallback, loss, quantize_weighted};

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
    /// The root mean square of the differences from the source, as a share of its elements'; `None`
    /// for what was copied.
    loss: Option<f64>,
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
    /// Of these, matrices that were quantised already.
    requantized: usize,
    copied: usize,
    /// Matrices whose columns the importance matrix knows.
    weighted: usize,
    /// The loss of all converted matrices together, as that of one.
    loss: Option<f64>,
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

    /// Returns the model's weights that it holds.
    fn weights(&self) -> &[Weight] {
        match &self.holds {
            Holds::Weights(weights) => weights,
            Holds::Numbers(_) => &[],
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
    destination::check_new(&args.output, args.force, &source)?;
    check_imatrix(&args)?;
    let subject = Subject::open(&source)?;
    let importance = args.imatrix.as_deref().map(Importance::open).transpose()?;
    let importance = importance.unwrap_or_default();
    let watch = Watch::new();
    let formats = match (args.recipe, args.fit) {
        (Some(recipe), _) => recipe.formats(subject.config(), &subject.weights()),
        (None, size) => {
            let metadata = subject.metadata(library, FileType::Unnamed)?;
            fitting(&subject, &args, &importance, &metadata, size, &watch)?
        }
    };
    let targets = targets(&subject, &args, &formats);
    let metadata = subject.metadata(library, file_type(&args, &targets))?;
    check_importance(&importance, &subject, &targets)?;
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
    let progress =
        terminal::stderr_is_terminal().then(|| indicatif::ProgressBar::new(targets.len() as u64));
    let mut data = writer.start()?;
    let mut outcomes = Vec::with_capacity(targets.len());
    for target in &targets {
        watch.check()?;
        outcomes.push(write_tensor(&mut data, &subject, &importance, target)?);
        if let Some(bar) = &progress {
            bar.inc(1);
        }
    }
    data.bytes(&ordering.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>())?;
    subject.checkpoint().check_intact()?;
    data.finish_checked(|part| subject.check_written(part))?;
    if let Some(bar) = progress {
        bar.finish_and_clear();
    }
    let report = report(&args, &source, &subject, &targets, &outcomes);
    if args.json { output::json(&report) } else { tell(&report) }
}

/// Returns what the file says of its format.
fn file_type(args: &QuantizeArgs, targets: &[Target]) -> FileType {
    let is_changed = |target: &Target| {
        target.weights().iter().any(|own| own.is_matrix() && own.dtype != target.dtype)
    };
    match args.recipe.and_then(Recipe::file_type) {
        _ if !targets.iter().any(is_changed) => FileType::Kept,
        Some(number) => FileType::Number(number),
        None => FileType::Unnamed,
    }
}

/// Refuses to write over the importance matrix that is read.
fn check_imatrix(args: &QuantizeArgs) -> Result<()> {
    let same = args.imatrix.as_ref().and_then(|path| path.canonicalize().ok());
    if same.is_some() && same == args.output.canonicalize().ok() {
        bail!(
            "{} is the importance matrix that is read; choose another name",
            args.output.display()
        );
    }
    Ok(())
}

/// Checks that an importance matrix is this model's: no entry has another number of columns, and
/// there is one for a matrix that is converted.
fn check_importance(importance: &Importance, subject: &Subject, targets: &[Target]) -> Result<()> {
    if importance.is_empty() {
        return Ok(());
    }
    let mut known = 0;
    for weight in targets.iter().flat_map(Target::weights) {
        known += usize::from(!importance.of_weight(subject, weight)?.is_empty());
    }
    match known {
        0 => bail!("the importance matrix has no entry for a matrix of this model"),
        _ => Ok(()),
    }
}

/// Returns the formats with which the file has at most `size` bytes; `None` for weights that keep
/// theirs.
fn fitting(
    subject: &Subject,
    args: &QuantizeArgs,
    importance: &Importance,
    metadata: &GgufMetadata,
    size: Option<u64>,
    watch: &Watch,
) -> Result<Vec<Option<DType>>> {
    let weights = subject.weights();
    let mut formats = vec![None; weights.len()];
    let kept = targets(subject, args, &formats);
    let mut writer = Writer::new(&args.output, metadata.clone())?;
    kept.iter().try_for_each(|own| writer.declare(&own.name, own.dtype, &own.shape))?;
    // What is before the first tensor, and at most a padding after each.
    let mut fixed = writer.header_bytes() + writer.alignment() * kept.len() as u64;
    let family = subject.config().family;
    let mut free = Vec::new();
    for target in &kept {
        let is_free = |weight: &Weight| {
            let is_set = args.embedding.is_some() && is_table(weight);
            weight.is_matrix()
                && !is_set
                && !names::keeps_format(family, &weight.name)
                && (args.requantize || !weight.dtype.is_quantized())
        };
        match target.weights() {
            [weight] if is_free(weight) => {
                free.push((weight, target.shape[..target.shape.len() - 1].iter().product()));
            }
            _ => fixed += target.bytes(),
        }
    }
    let room = size.unwrap_or(u64::MAX).saturating_sub(fixed);
    let chosen = fit(subject, &free, importance, room, || Ok(watch.check()?))?;
    for ((weight, _), dtype) in free.iter().zip(chosen) {
        let index = weights.iter().position(|own| own.name == weight.name);
        formats[index.expect("targets are made of these weights")] = Some(dtype);
    }
    Ok(formats)
}

/// Returns whether a weight is the table of embeddings or the output.
fn is_table(weight: &Weight) -> bool {
    weight.name == names::TOKEN_EMBEDDING || weight.name == names::OUTPUT
}

/// Returns the tensors of the new file, of matrices that are converted in these formats.
fn targets(subject: &Subject, args: &QuantizeArgs, formats: &[Option<DType>]) -> Vec<Target> {
    let mut targets: Vec<Target> = Vec::new();
    let weights = subject.weights();
    for (weight, &format) in weights.into_iter().zip(formats) {
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
            None => {
                let factors = subject.tensor(&weight).factors().to_vec();
                let target = target(subject, weight, joint, format, args);
                let is_kept = target.dtype == target.source();
                let scale = scale_of(&target.name, factors).filter(|_| is_kept);
                targets.push(target);
                targets.extend(scale);
            }
        }
    }
    for (name, numbers) in numbers(subject.config()) {
        let (shape, holds) = (vec![numbers.len()], Holds::Numbers(numbers));
        targets.push(Target { name, shape, dtype: DType::F32, fell_back: false, holds });
    }
    targets
}

/// Returns the tensor with the factors of a matrix of NVFP4, if it has any.
fn scale_of(matrix: &str, factors: Vec<f32>) -> Option<Target> {
    let part = matrix.strip_suffix(".weight").filter(|_| !factors.is_empty())?;
    let (name, shape) = (format!("{part}.scale"), vec![factors.len()]);
    let holds = Holds::Numbers(factors);
    Some(Target { name, shape, dtype: DType::F32, fell_back: false, holds })
}

/// Returns the tensor that holds a weight, or of which it is the first matrix.
fn target(
    subject: &Subject,
    weight: Weight,
    joint: Option<String>,
    format: Option<DType>,
    args: &QuantizeArgs,
) -> Target {
    let mut shape = subject.tensor(&weight).shape().to_vec();
    if weight.name == names::PER_LAYER_EMBEDDING {
        // Other programs want a row for each token.
        shape[0] = weight.rows.max(subject.config().vocabulary);
    }
    if joint.is_some() {
        shape.insert(0, 1);
    }
    let asked = if is_table(&weight) { args.embedding.or(format) } else { format };
    let (dtype, fell_back) = match asked {
        _ if !weight.is_matrix() => (DType::F32, false),
        Some(asked) if args.requantize || !weight.dtype.is_quantized() => {
            let dtype = fallback(asked, weight.columns);
            (dtype, dtype != asked)
        }
        _ => (weight.dtype, false),
    };
    let name = joint.unwrap_or_else(|| weight.name.clone());
    Target { name, shape, dtype, fell_back, holds: Holds::Weights(vec![weight]) }
}

/// What became of a tensor.
#[derive(Debug, Default)]
struct Outcome {
    /// Sums of squares of the differences, and of the elements, of a matrix that was converted.
    squares: Option<(f64, f64)>,
    /// Whether the importance of its columns was known.
    is_weighted: bool,
}

/// Writes a tensor. A table of per-layer inputs with fewer rows than there are tokens gets its
/// first row for the others, which is what they read.
fn write_tensor(
    data: &mut DataWriter,
    subject: &Subject,
    importance: &Importance,
    target: &Target,
) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    if let Holds::Numbers(numbers) = &target.holds {
        let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
        data.bytes(&bytes.collect::<Vec<u8>>())?;
    }
    for weight in target.weights() {
        let stored = subject.tensor(weight);
        let tensor = converted(subject, weight, importance, target.dtype)?;
        data.bytes(tensor.bytes())?;
        if weight.name == names::PER_LAYER_EMBEDDING {
            for _ in weight.rows..target.shape[0] {
                data.bytes(tensor.row(0))?;
            }
        }
        if weight.is_matrix() && tensor.dtype() != stored.dtype() {
            let (missed, power) = loss(stored, &tensor)?;
            let before = outcome.squares.unwrap_or_default();
            outcome.squares = Some((before.0 + missed, before.1 + power));
            outcome.is_weighted |= blocks::takes_importances(tensor.dtype())
                && !importance.of_weight(subject, weight)?.is_empty();
        }
        stored.release_pages(0..usize::MAX);
    }
    Ok(outcome)
}

/// Returns a tensor as it is written: matrices converted, norms as factors in F32.
fn converted(
    subject: &Subject,
    weight: &Weight,
    importance: &Importance,
    dtype: DType,
) -> Result<Tensor> {
    let tensor = subject.tensor(weight);
    if weight.is_matrix() {
        let known = importance.of_weight(subject, weight)?;
        return Ok(quantize_weighted(tensor, dtype, known)?.renamed(&weight.name));
    }
    let bytes = subject.vector(weight)?.iter().flat_map(|value| value.to_le_bytes()).collect();
    Ok(Tensor::from_owned(&weight.name, DType::F32, tensor.shape(), bytes)?)
}

/// Returns the root of a share of squares.
fn share((missed, power): (f64, f64)) -> f64 {
    if power > 0.0 { (missed / power).sqrt() } else { 0.0 }
}

fn report(
    args: &QuantizeArgs,
    source: &Source,
    subject: &Subject,
    targets: &[Target],
    outcomes: &[Outcome],
) -> Report {
    let changes: Vec<Change> = targets
        .iter()
        .zip(outcomes)
        .map(|(target, outcome)| Change {
            tensor: target.name.clone(),
            from: target.source().name(),
            to: target.dtype.name(),
            bytes: target.bytes(),
            fell_back: target.fell_back,
            loss: outcome.squares.map(share),
        })
        .collect();
    let is_quantised =
        |target: &&Target| target.source().is_quantized() && target.source() != target.dtype;
    let squares = outcomes.iter().filter_map(|outcome| outcome.squares);
    let all = squares.reduce(|left, right| (left.0 + right.0, left.1 + right.1));
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
        dtype: args.recipe.map_or("a mixture that fits", Recipe::name),
        bytes_before: checkpoint.file_bytes(),
        bytes_after: std::fs::metadata(&args.output).map_or(0, |facts| facts.len()),
        converted: changes.iter().filter(|change| change.from != change.to).count(),
        requantized: targets.iter().filter(is_quantised).count(),
        copied: changes.iter().filter(|change| change.from == change.to).count(),
        weighted: outcomes.iter().filter(|outcome| outcome.is_weighted).count(),
        loss: all.map(share),
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
    if let Some(loss) = report.loss {
        output::remark(format_args!(
            "the converted matrices are off by {:.2} % of their elements' size (root mean square)",
            100.0 * loss
        ));
    }
    if report.weighted > 0 {
        output::remark(format_args!(
            "{} matrices were fitted to the importance of their columns",
            report.weighted
        ));
    }
    if report.requantized > 0 {
        output::warning(format!(
            "{} matrices were quantised already: what they lost before is not in this figure and \
             is not given back; `trine eval` measures both files against the original",
            report.requantized
        ));
    }
    if report.converted == 0 {
        output::warning(
            "no matrix was converted: only F32, F16 and BF16 matrices are; start from the original \
             model, or convert again with --requantize",
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
