//! `trine quantize`

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde::Serialize;
use trine_model::{Model, Weight, names};
use trine_weights::gguf::Writer;
use trine_weights::{DType, Tensor, fallback, quantize_tensor};

use super::quantize_metadata;
use crate::cli::QuantizeArgs;
use crate::destination;
use crate::interrupt::Watch;
use crate::model_source::{Source, find};
use crate::output;
use crate::terminal;

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

/// The format of one tensor in the new file.
struct Target<'a> {
    weight: &'a Weight,
    dtype: DType,
    fell_back: bool,
}

/// Writes the quantised copy.
///
/// # Errors
/// Returns an error if there is no such model, OUT exists, the values cannot be quantised, or the
/// file cannot be written.
pub(crate) fn run(mut args: QuantizeArgs) -> Result<()> {
    let source = find(Some(&args.input), &args.fetch)?.source;
    args.output = destination::behind_links(&args.output)?;
    check_output(&args.output, args.force, &source)?;
    let model = source.open(None)?;
    let plan = model.base_plan();
    let targets: Vec<Target<'_>> =
        plan.weights.iter().map(|weight| target(weight, args.dtype, args.embedding)).collect();
    let metadata = quantize_metadata::for_file(
        &model,
        &targets.iter().map(|target| target.dtype).collect::<Vec<_>>(),
        args.dtype,
    )?;
    let mut writer = Writer::new(&args.output, metadata)?;
    for target in &targets {
        writer.declare(&target.weight.name, target.dtype, model.tensor(target.weight).shape())?;
    }
    let watch = Watch::new();
    let progress =
        terminal::stderr_is_terminal().then(|| indicatif::ProgressBar::new(targets.len() as u64));
    let mut data = writer.start()?;
    for target in &targets {
        watch.check()?;
        data.tensor(&converted(&model, target)?)?;
        model.tensor(target.weight).release_pages(0..usize::MAX);
        if let Some(bar) = &progress {
            bar.inc(1);
        }
    }
    model.checkpoint().check_intact()?;
    data.finish()?;
    if let Some(bar) = progress {
        bar.finish_and_clear();
    }
    check_written(&args.output, &model)?;
    let report = report(&args, &source, &model, &targets);
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

fn target<'a>(weight: &'a Weight, asked: DType, embedding: Option<DType>) -> Target<'a> {
    if !weight.is_matrix() {
        return Target { weight, dtype: DType::F32, fell_back: false };
    }
    if weight.dtype.is_quantized() {
        return Target { weight, dtype: weight.dtype, fell_back: false };
    }
    let is_embedding = weight.name == names::TOKEN_EMBEDDING || weight.name == names::OUTPUT;
    let asked = if is_embedding { embedding.unwrap_or(asked) } else { asked };
    let dtype = fallback(asked, weight.columns);
    Target { weight, dtype, fell_back: dtype != asked }
}

/// Returns a tensor as it is written: matrices converted, norms as factors in F32.
fn converted(model: &Model, target: &Target<'_>) -> Result<Tensor> {
    let weight = target.weight;
    let tensor = model.tensor(weight);
    if weight.is_matrix() {
        return Ok(quantize_tensor(tensor, target.dtype)?.renamed(&weight.name));
    }
    let mut values = model.vector(weight);
    let factor = quantize_metadata::norm_factor(model, &weight.name);
    values.iter_mut().for_each(|value| *value *= factor);
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Ok(Tensor::from_owned(&weight.name, DType::F32, tensor.shape(), bytes)?)
}

/// Reads the file again and checks that it holds the same model.
fn check_written(path: &Path, model: &Model) -> Result<()> {
    let written = Model::open(path)?;
    let (new, old) = (written.config(), model.config());
    let layers_agree = new.layers.iter().zip(&old.layers).all(|(new, old)| {
        (
            new.attention,
            new.heads,
            new.kv_heads,
            new.head_dim,
            new.rope,
            new.feed_forward,
            new.kv_owner,
        ) == (
            old.attention,
            old.heads,
            old.kv_heads,
            old.head_dim,
            old.rope,
            old.feed_forward,
            old.kv_owner,
        )
    });
    let agree = layers_agree
        && new.layers.len() == old.layers.len()
        && (new.hidden, new.vocabulary, new.context) == (old.hidden, old.vocabulary, old.context)
        && new.embedding_scale == old.embedding_scale
        && new.final_softcap == old.final_softcap;
    if !agree {
        let _ = std::fs::remove_file(path);
        bail!(
            "this model has settings that a GGUF file cannot express; use --quantize while loading instead"
        );
    }
    Ok(())
}

fn report(args: &QuantizeArgs, source: &Source, model: &Model, targets: &[Target<'_>]) -> Report {
    let changes: Vec<Change> = targets
        .iter()
        .map(|target| Change {
            tensor: target.weight.name.clone(),
            from: target.weight.dtype.name(),
            to: target.dtype.name(),
            bytes: Weight { dtype: target.dtype, ..target.weight.clone() }.bytes(),
            fell_back: target.fell_back,
        })
        .collect();
    let checkpoint = model.checkpoint();
    let in_files = checkpoint.tensors().len() + checkpoint.unreadable().len();
    Report {
        input: source.name(),
        output: args.output.clone(),
        dtype: args.dtype.name(),
        bytes_before: checkpoint.file_bytes(),
        bytes_after: std::fs::metadata(&args.output).map_or(0, |facts| facts.len()),
        converted: changes.iter().filter(|change| change.from != change.to).count(),
        copied: changes.iter().filter(|change| change.from == change.to).count(),
        left_out: in_files.saturating_sub(changes.len()),
        changes,
    }
}

fn tell(report: &Report) -> Result<()> {
    output::remark(format_args!(
        "{}: {} to {} ({}), {} tensors converted, {} kept",
        report.output.display(),
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
            "no matrix was converted to the type asked for: only F32, F16 and BF16 matrices are; start from the \
             original model",
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
