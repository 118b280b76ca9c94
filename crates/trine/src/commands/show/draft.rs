//! `trine show` of a draft that reads the caches of the model that it was made for.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Serialize;
use serde_json::json;
use trine_model::{Assistant, AssistantConfig, AttentionKind};
use trine_session::assistants::{Training, size_of};
use trine_session::model_source::Source;

use crate::cli::ShowArgs;
use crate::commands::formats::{self, FormatTotals};
use crate::terminal::output;

/// The output.
#[derive(Serialize)]
struct Report {
    model: String,
    files: String,
    file_bytes: u64,
    architecture: &'static str,
    /// The model that it was made for, in words.
    guesses_for: String,
    /// The hidden size of that model.
    backbone: usize,
    /// Whether it was made for weights that were trained for quantisation, if a name tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    qat: Option<bool>,
    parameters: u64,
    layers: usize,
    global_layers: usize,
    window: Option<usize>,
    hidden: usize,
    vocabulary: usize,
    /// The clusters of its output matrix, and how many the makers search; `None` without any.
    clusters: Option<[usize; 2]>,
    formats: BTreeMap<&'static str, FormatTotals>,
}

/// Describes a draft.
///
/// # Errors
/// Returns an error if tensors are missing or have other shapes than they should.
pub(super) fn run(source: &Source, draft: &Assistant, args: &ShowArgs) -> Result<()> {
    let tensors = draft.tensors()?;
    let AssistantConfig { config, backbone, centroids } = draft.config();
    let layers = || config.layers.iter();
    let size = match size_of(*backbone) {
        Some(size) => format!("Gemma 4 {size}"),
        None => format!("a Gemma 4 with a hidden size of {backbone}"),
    };
    let training = Training::of(source, draft.checkpoint());
    let report = Report {
        model: source.name(),
        files: draft.checkpoint().source().display().to_string(),
        file_bytes: draft.checkpoint().file_bytes(),
        architecture: "gemma4-assistant",
        guesses_for: match training {
            Training::Qat => format!("{size}, trained for quantisation (QAT)"),
            Training::Plain | Training::Unknown => size,
        },
        backbone: *backbone,
        qat: match training {
            Training::Qat => Some(true),
            Training::Plain => Some(false),
            Training::Unknown => None,
        },
        parameters: tensors.iter().map(|(_, tensor)| tensor.elements() as u64).sum(),
        layers: config.layers.len(),
        global_layers: layers().filter(|layer| layer.attention == AttentionKind::Global).count(),
        window: layers().find_map(|layer| layer.attention.window()),
        hidden: config.hidden,
        vocabulary: config.vocabulary,
        clusters: centroids.map(|own| [own.count, own.used]),
        formats: formats::of(tensors.iter().map(|(_, tensor)| tensor)),
    };
    if args.json {
        let mut value = serde_json::to_value(&report)?;
        if args.tensors {
            value["tensors"] = tensors
                .iter()
                .map(|(weight, tensor)| {
                    let format = tensor.dtype().name();
                    json!({"name": weight.name, "format": format, "shape": tensor.shape()})
                })
                .collect();
        }
        return output::json(&value);
    }
    output::line(describe(&report))?;
    if args.tensors {
        let rows = tensors.iter().map(|(weight, tensor)| {
            let shape = format!("{:?}", tensor.shape());
            vec![weight.name.clone(), tensor.dtype().name().to_owned(), shape]
        });
        output::line(output::table(&["tensor", "format", "shape"], rows.collect(), &[]))?;
    }
    Ok(())
}

fn describe(report: &Report) -> String {
    let window =
        report.window.map_or(String::new(), |window| format!(", the others see {window} tokens"));
    let clusters = report.clusters.map_or(String::new(), |[count, used]| {
        format!(", in {count} clusters of which it was made to search {used}")
    });
    let mut lines = formats::describe_files(
        &report.model,
        (&report.files, report.file_bytes),
        (report.architecture, report.parameters),
    );
    lines.extend([
        format!(
            "guesses for  {}; it reads that model's keys, values and hidden states and runs with \
             `--draft`",
            report.guesses_for
        ),
        format!("layers       {} ({} global{window})", report.layers, report.global_layers),
        format!("sizes        hidden {}, backbone {}", report.hidden, report.backbone),
        format!("vocabulary   {}, output matrix of its own{clusters}", report.vocabulary),
    ]);
    lines.extend(formats::describe(&report.formats));
    lines.join("\n")
}
