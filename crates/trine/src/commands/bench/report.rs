//! The report of `trine bench`.

use serde::Serialize;
use trine_model::KvType;
use trine_session::energy::Sensor;
use trine_session::npu::Done;
use trine_session::statistics::Summary;

use crate::commands::bench::choosing::Said;
use crate::commands::bench::drafts::{self, Drafted};
use crate::commands::bench::energy::Used;
use crate::commands::bench::runs::Test;
use crate::commands::bench::steps::StepTime;
use crate::{terminal, terminal::output};

/// The results of one test.
#[derive(Debug, Serialize)]
pub(super) struct Measured {
    #[serde(flatten)]
    pub(super) test: Test,
    /// Tokens per second over all sequences, one value for each repeat.
    pub(super) tokens_per_second: Vec<f64>,
    pub(super) summary: Summary,
    /// Bytes from memory per second at the median, computed from the Plan's cost.
    pub(super) bytes_per_second: f64,
    /// Operations per second at the median, computed from the Plan's cost.
    pub(super) operations_per_second: f64,
    /// The share of the measured read bandwidth.
    pub(super) bandwidth_share: Option<f64>,
    /// What guesses did, if there were any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) drafts: Option<Drafted>,
    /// What sensors of energy measured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) energy: Vec<Used>,
    /// The time of each step, if `--steps` asks for it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) steps: Vec<StepTime>,
}

/// The results of all tests.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) model: String,
    pub(super) file_bytes: u64,
    pub(super) device: String,
    pub(super) threads: usize,
    /// What guessed tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) draft: Option<String>,
    /// How tokens are chosen, if not as usual.
    #[serde(rename = "sampling", skip_serializing_if = "Option::is_none")]
    pub(super) choosing: Option<Said>,
    pub(super) kv: KvType,
    pub(super) version: &'static str,
    pub(super) repeats: usize,
    /// Bytes per second of streaming reads, one value for each measurement.
    pub(super) read_bandwidth: Vec<f64>,
    pub(super) read_bandwidth_summary: Option<Summary>,
    /// What an NPU has computed in all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) npu: Option<Done>,
    /// The sensors of energy that can be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) sensors: Vec<Sensor>,
    pub(super) tests: Vec<Measured>,
}

const HEADER: [&str; 9] =
    ["test", "batch", "tok/s", "quartiles", "min..max", "outliers", "GB/s", "of read", "Gop/s"];

/// Returns a table of all tests, with what they ran on.
pub(super) fn describe(report: &Report, markdown: bool) -> String {
    let rows = report.tests.iter().map(row).collect();
    let right = [1, 2, 3, 4, 6, 7, 8];
    let table = match markdown {
        true => output::markdown(&HEADER, rows, &right),
        false => output::table(&HEADER, rows, &right),
    };
    let read =
        report.read_bandwidth_summary.as_ref().map_or("not measured".to_owned(), |summary| {
            format!(
                "{} GB/s ({}..{})",
                output::rate(summary.median / 1e9),
                output::rate(summary.minimum / 1e9),
                output::rate(summary.maximum / 1e9)
            )
        });
    let choosing = report.choosing.as_ref().map_or(String::new(), |said| {
        format!("; tokens are chosen with {}", terminal::harmless(&said.words()))
    });
    format!(
        "{table}\n\n{}, {}; {}; kv {}; trine {}; {}; streaming read {read} with {}{choosing}",
        terminal::harmless(&report.model),
        output::bytes(report.file_bytes),
        terminal::harmless(&report.device),
        report.kv.name(),
        report.version,
        output::counted(report.repeats, "repeat"),
        output::counted(report.threads, "thread")
    )
}

/// Returns a table of what guesses did, if there were any.
pub(super) fn drafts_table(report: &Report, markdown: bool) -> Option<String> {
    let row = |measured: &Measured| {
        let cells = vec![measured.test.name(), measured.test.batch.to_string()];
        Some([cells, measured.drafts.as_ref()?.row()].concat())
    };
    let rows: Vec<Vec<String>> = report.tests.iter().filter_map(row).collect();
    if rows.is_empty() {
        return None;
    }
    let header: Vec<&str> = ["test", "batch"].into_iter().chain(drafts::HEADER).collect();
    let right = [1, 2, 3, 4, 5, 6];
    let table = match markdown {
        true => output::markdown(&header, rows, &right),
        false => output::table(&header, rows, &right),
    };
    let draft = report.draft.as_deref().unwrap_or_default();
    Some(format!("{table}\n\ndrafts: {}", terminal::harmless(draft)))
}

fn row(measured: &Measured) -> Vec<String> {
    let Measured { test, summary, tokens_per_second, .. } = measured;
    let outliers =
        summary.outliers.iter().map(|&at| output::rate(tokens_per_second[at])).collect::<Vec<_>>();
    vec![
        test.name(),
        test.batch.to_string(),
        output::rate(summary.median),
        format!(
            "{}..{}",
            output::rate(summary.lower_quartile),
            output::rate(summary.upper_quartile)
        ),
        format!("{}..{}", output::rate(summary.minimum), output::rate(summary.maximum)),
        if outliers.is_empty() { "-".to_owned() } else { outliers.join(" ") },
        output::rate(measured.bytes_per_second / 1e9),
        measured.bandwidth_share.map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0)),
        output::rate(measured.operations_per_second / 1e9),
    ]
}
