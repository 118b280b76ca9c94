//! Charts and tables of recorded benchmarks.
//!
//! `docs/benchmarks/NAME.json` is the record: one row a test, and the sources of each column. From
//! it come `NAME.svg` and the table between the markers of `NAME.md`. A figure that is not there
//! was not measured, and the table says so.
//!
//! The SVG is written by hand: plotting libraries write fixed colours, and the chart follows the
//! reader's light or dark mode by a style sheet of its own. Besides, each test has its own scale,
//! which ends at its limit.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;

/// The recorded benchmarks.
const RECORDS: [&str; 1] = ["h200"];
const FOLDER: &str = "docs/benchmarks";
const TABLE_BEGIN: &str = "<!-- table: begin, written by cargo xtask chart -->";
const TABLE_END: &str = "<!-- table: end -->";

/// A recorded benchmark.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    /// The heading of the chart.
    title: String,
    /// The machine that it ran on, with the driver's version.
    machine: String,
    sources: Sources,
    /// The tests; those of a group stand together.
    rows: Vec<Row>,
}

/// Where the figures of each column come from, as text.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sources {
    before: String,
    trine: String,
    llama: String,
    vllm: String,
    limit: String,
}

/// One test, in tokens per second. More is better.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    group: String,
    model: String,
    /// What is measured of the model.
    case: String,
    /// trine's figure before the changes that the record is about.
    before: Option<f64>,
    /// trine's figure.
    trine: Option<f64>,
    /// llama.cpp's figure.
    llama: Option<f64>,
    /// vLLM's figure, as published by others.
    vllm: Option<f64>,
    /// The figure that the bytes read and the operations allow.
    limit: f64,
    /// Where figures of this row come from, if not from where the record says.
    note: Option<String>,
}

impl Row {
    /// Returns the columns of programs: (name, class of the style sheet, figure).
    fn figures(&self) -> [(&'static str, &'static str, Option<f64>); 4] {
        [
            ("before", "before", self.before),
            ("trine", "trine", self.trine),
            ("llama.cpp", "llama", self.llama),
            ("vLLM, published", "vllm", self.vllm),
        ]
    }

    /// Returns the part of the limit that trine reaches, as text.
    fn share(&self) -> String {
        self.trine
            .map_or_else(|| "-".to_owned(), |found| format!("{:.0} %", found / self.limit * 100.0))
    }
}

/// Writes charts and tables; with `check`, fails if a committed one differs from what its record
/// produces.
pub(crate) fn run(root: &Path, check: bool) -> anyhow::Result<()> {
    let mut files = Vec::new();
    for name in RECORDS {
        let place = |end: &str| format!("{FOLDER}/{name}.{end}");
        let record = parse(&read(root, &place("json"))?).with_context(|| place("json"))?;
        let page = read(root, &place("md"))?;
        let page = replace_table(&page, &table(&record)).with_context(|| place("md"))?;
        files.extend([(place("md"), page), (place("svg"), svg(&record))]);
    }
    let mut stale = Vec::new();
    for (place, made) in files {
        if std::fs::read_to_string(root.join(&place)).unwrap_or_default() == made {
            continue;
        }
        if check {
            stale.push(place);
            continue;
        }
        std::fs::write(root.join(&place), made).with_context(|| format!("cannot write {place}"))?;
        eprintln!("== chart: wrote {place}");
    }
    if !stale.is_empty() {
        bail!("{} differ from their records; run cargo xtask chart", stale.join(", "));
    }
    eprintln!("== chart: {} records are drawn", RECORDS.len());
    Ok(())
}

fn read(root: &Path, place: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(root.join(place)).with_context(|| format!("cannot read {place}"))
}

/// Reads a record and checks that its figures are possible.
fn parse(text: &str) -> anyhow::Result<Record> {
    let record: Record = serde_json::from_str(text)?;
    ensure!(!record.rows.is_empty(), "there are no rows");
    for row in &record.rows {
        let test = format!("`{}`, `{}`", row.model, row.case);
        ensure!(row.limit > 0.0, "{test}: {} is not a rate", row.limit);
        for (name, _, figure) in row.figures() {
            let Some(figure) = figure else { continue };
            ensure!(figure > 0.0, "{test}: {figure} is not a rate");
            ensure!(figure <= row.limit, "{test}: {name} is above the limit");
        }
    }
    for (at, row) in record.rows.iter().enumerate() {
        let is_again = |other: &Row| other.model == row.model && other.case == row.case;
        let before = record.rows[..at].iter().filter(|other| other.group == row.group);
        ensure!(!before.clone().any(is_again), "`{}`, `{}` is there twice", row.model, row.case);
        let follows = at > 0 && record.rows[at - 1].group == row.group;
        ensure!(follows || before.count() == 0, "`{}` stands in two places", row.group);
    }
    Ok(record)
}

/// Formats a figure for people: `86.9`, `495`, `12,500`.
fn figure(value: f64) -> String {
    if value < 100.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns the page with the text between its markers replaced.
fn replace_table(page: &str, table: &str) -> anyhow::Result<String> {
    let parts = page.split_once(TABLE_BEGIN).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(TABLE_END)?;
        Some((before, after))
    });
    let (before, after) = parts
        .with_context(|| format!("the lines `{TABLE_BEGIN}` and `{TABLE_END}` are missing"))?;
    Ok(format!("{before}{TABLE_BEGIN}\n\n{table}\n{TABLE_END}{after}"))
}

/// Returns the table in Markdown, with the sources of its figures.
fn table(record: &Record) -> String {
    let mut text = String::from(
        "| | model | tokens/s | before | trine | llama.cpp | vLLM, published | limit | trine's \
         share |\n|---|---|---|---:|---:|---:|---:|---:|---:|\n",
    );
    let mut group = "";
    for row in &record.rows {
        let head = if row.group == group { "" } else { &row.group };
        group = &row.group;
        let mut cells = [head, &row.model, &row.case].map(|cell| cell.replace('|', "\\|")).to_vec();
        let found = row.figures().map(|(_, _, found)| found.map_or("-".to_owned(), figure));
        cells.extend(found);
        cells.extend([figure(row.limit), row.share()]);
        let line = format!("| {} |", cells.join(" | "));
        let _ = writeln!(text, "{}", line.replace("|  |", "| |"));
    }
    let Record { machine, sources, .. } = record;
    let Sources { before, trine, llama, vllm, limit } = sources;
    let _ = writeln!(text, "\n{machine}. A dash stands for what was not measured.\n");
    for (column, source) in [
        ("before", before),
        ("trine", trine),
        ("llama.cpp", llama),
        ("vLLM, published", vllm),
        ("limit", limit),
    ] {
        let _ = writeln!(text, "- {column}: {source}.");
    }
    for row in &record.rows {
        let Some(note) = &row.note else { continue };
        let _ = writeln!(text, "- {}, {}: {note}.", row.model, row.case);
    }
    text
}

/// The sizes of the chart in pixels.
const WIDTH: f64 = 880.0;
const MARGIN: f64 = 20.0;
/// Where the scales begin and how long they are.
const LEFT: f64 = 260.0;
const FULL: f64 = 420.0;
const STEP: f64 = 20.0;
const BAR: f64 = 12.0;
const HEAD: f64 = 84.0;
const GROUP: f64 = 30.0;

/// Two sets of colours. The background is drawn, so that neither set depends on the page around the
/// chart.
const STYLE: &str = "\
    text { font-family: system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, \
        sans-serif; font-size: 12px; fill: #1f2328; }
    .title { font-size: 17px; font-weight: 600; }
    .group { font-weight: 600; }
    .muted { fill: #59636e; }
    .right { text-anchor: end; }
    .ground { fill: #ffffff; }
    .track { fill: #e9edf1; }
    .trine { fill: #bc4c00; }
    .before { fill: #1f2328; }
    .llama { fill: #0969da; }
    .vllm { fill: #8250df; }
    .mark { stroke: #ffffff; stroke-width: 1; }
    @media (prefers-color-scheme: dark) {
      text, .before { fill: #e6edf3; }
      .muted { fill: #9198a1; }
      .ground { fill: #0d1117; }
      .track { fill: #21262d; }
      .trine { fill: #f0883e; }
      .llama { fill: #58a6ff; }
      .vllm { fill: #bc8cff; }
      .mark { stroke: #0d1117; }
    }
";

/// Draws the chart: for each test a scale that ends at its limit, a bar for trine, and a mark for
/// each other figure.
fn svg(record: &Record) -> String {
    let mut body = String::new();
    let (mut top, mut group) = (HEAD, "");
    for row in &record.rows {
        if row.group != group {
            group = &row.group;
            top += GROUP;
            let _ = writeln!(body, "{}", words(MARGIN, top - 8.0, "group", group));
        }
        let _ = writeln!(body, "{}", scale(row, top));
        top += STEP;
    }
    let height = top + MARGIN;
    let legend =
        [("trine", "trine"), ("before", "before"), ("llama", "llama.cpp"), ("vllm", "vLLM")];
    let mut keys = String::new();
    for (at, (class, name)) in legend.into_iter().enumerate() {
        let x = LEFT + at as f64 * 84.0;
        let _ = writeln!(keys, "{}", mark(class, x, 63.0));
        let _ = writeln!(keys, "{}", words(x + 10.0, 73.0, "", name));
    }
    let _ =
        writeln!(keys, "{}", words(WIDTH - MARGIN, 73.0, "muted right", "full width: the limit"));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" role=\"img\" \
         aria-labelledby=\"title description\">\n  \
         <title id=\"title\">{}</title>\n  <desc id=\"description\">{}</desc>\n  \
         <style>\n{STYLE}  </style>\n  \
         <rect class=\"ground\" width=\"{WIDTH}\" height=\"{height}\" rx=\"6\"/>\n{}\n{}\n\
         {keys}{body}</svg>\n",
        escape(&record.title),
        escape(&description(record)),
        words(MARGIN, 30.0, "title", &record.title),
        words(MARGIN, 50.0, "muted", &format!("{}. Tokens per second.", record.machine)),
    )
}

/// Draws one test.
fn scale(row: &Row, top: f64) -> String {
    let at = |figure: f64| LEFT + FULL * figure / row.limit;
    let bar = |class: &str, width: f64| {
        format!(
            "  <rect class=\"{class}\" x=\"{LEFT}\" y=\"{top}\" width=\"{width:.1}\" \
             height=\"{BAR}\" rx=\"2\"/>"
        )
    };
    let mut lines = vec![
        words(MARGIN, top + 10.0, "", &format!("{}, {}", row.model, row.case)),
        bar("track", FULL),
    ];
    lines.extend(row.trine.map(|found| bar("trine", FULL * found / row.limit)));
    for (_, class, found) in row.figures() {
        let found = found.filter(|_| class != "trine");
        lines.extend(found.map(|found| mark(class, at(found), top)));
    }
    let found = match row.trine {
        Some(found) => format!("{} of {} ({})", figure(found), figure(row.limit), row.share()),
        None => format!("not measured, of {}", figure(row.limit)),
    };
    lines.push(words(WIDTH - MARGIN, top + 10.0, "right", &found));
    lines.join("\n")
}

/// Draws the mark of a column around a place of a scale that begins at `top`. The forms differ too,
/// for readers who do not see the colours.
fn mark(class: &str, x: f64, top: f64) -> String {
    let middle = top + BAR / 2.0;
    let form = match class {
        "llama" => format!("circle cx=\"{x:.1}\" cy=\"{middle}\" r=\"4.5\""),
        "vllm" => format!("path d=\"M{x:.1} {top}l6 6l-6 6l-6 -6z\""),
        "trine" => format!("rect x=\"{:.1}\" y=\"{top}\" width=\"12\" height=\"{BAR}\"", x - 6.0),
        _ => format!(
            "rect x=\"{:.1}\" y=\"{}\" width=\"4\" height=\"{}\"",
            x - 2.0,
            top - 1.0,
            BAR + 2.0
        ),
    };
    format!("  <{form} class=\"{class} mark\"/>")
}

fn words(x: f64, y: f64, class: &str, text: &str) -> String {
    let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
    format!("  <text{class} x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escape(text))
}

/// Returns the figures in words, for readers who cannot see the bars.
fn description(record: &Record) -> String {
    let mut text = String::new();
    for row in &record.rows {
        let _ = write!(text, "{}, {}, {}: ", row.group, row.model, row.case);
        for (name, _, found) in row.figures() {
            let Some(found) = found else { continue };
            let _ = write!(text, "{name} {}, ", figure(found));
        }
        let _ = write!(text, "limit {}. ", figure(row.limit));
    }
    text.trim_end().to_owned()
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            other if other.is_control() => out.push(' '),
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]

    use super::*;

    /// Returns a record with two rows, of which the first has these figures.
    fn record(trine: &str, limit: &str, second: &str) -> anyhow::Result<Record> {
        parse(&format!(
            r#"{{"title": "T <1>", "machine": "M", "sources": {{"before": "B", "trine": "run it",
                "llama": "L", "vllm": "V", "limit": "W"}}, "rows": [
                {{"group": "g", "model": "a & b", "case": "c|d", "trine": {trine}, "llama": 86.9,
                "limit": {limit}, "note": "once"}},
                {{"group": "g", "model": "a & b", "case": {second}, "limit": 5}}]}}"#
        ))
    }

    #[test]
    fn committed_charts_and_tables_are_those_of_their_records() {
        run(&crate::root(), true).unwrap();
    }

    #[test]
    fn figures_for_people() {
        assert_eq!(figure(86.94), "86.9");
        assert_eq!(figure(495.0), "495");
        assert_eq!(figure(1090.0), "1,090");
        assert_eq!(figure(12_500.4), "12,500");
        assert_eq!(figure(1_234_567.0), "1,234,567");
    }

    #[test]
    fn a_table_has_all_figures_and_where_they_come_from() {
        let table = table(&record("225", "300", r#""e", "before": 2.5"#).unwrap());
        for line in [
            r"| g | a & b | c\|d | - | 225 | 86.9 | - | 300 | 75 % |",
            "| | a & b | e | 2.5 | - | - | - | 5.0 | - |",
            "- trine: run it.",
            "- a & b, c|d: once.",
        ] {
            assert!(table.lines().any(|found| found == line), "{line}\n{table}");
        }
    }

    #[test]
    fn bars_and_marks_are_shares_of_the_limit() {
        let svg = svg(&record("225", "300", r#""e", "before": 2.5, "vllm": 5"#).unwrap());
        for part in [
            format!("class=\"track\" x=\"{LEFT}\" y=\"114\" width=\"{FULL:.1}\""),
            format!("class=\"trine\" x=\"{LEFT}\" y=\"114\" width=\"{:.1}\"", FULL * 0.75),
            format!("<circle cx=\"{:.1}\" cy=\"120\"", LEFT + FULL * 86.9 / 300.0),
            format!("<rect x=\"{:.1}\" y=\"133\" width=\"4\"", LEFT + FULL / 2.0 - 2.0),
            format!("<path d=\"M{:.1} 134l", LEFT + FULL),
        ] {
            assert!(svg.contains(&part), "{part}\n{svg}");
        }
        assert!(svg.contains("225 of 300 (75 %)") && svg.contains("not measured, of 5.0"));
        assert!(svg.contains("T &lt;1&gt;") && svg.contains("a &amp; b"));
        assert_eq!(svg.matches("class=\"trine\"").count(), 1, "there is no bar without a figure");
    }

    #[test]
    fn records_that_cannot_be_are_refused() {
        for (trine, limit, second, expected) in [
            ("-1", "300", r#""e""#, "not a rate"),
            ("0", "300", r#""e""#, "not a rate"),
            ("301", "300", r#""e""#, "above the limit"),
            ("1", "0", r#""e""#, "not a rate"),
            ("1", "null", r#""e""#, "invalid type"),
            ("1e999", "300", r#""e""#, "out of range"),
            ("1, \"more\": 1", "300", r#""e""#, "unknown field"),
            ("1", "300", r#""c|d""#, "there twice"),
            ("1", "300", r#""e", "before": 6"#, "above the limit"),
        ] {
            let error = format!("{:#}", record(trine, limit, second).unwrap_err());
            assert!(error.contains(expected), "{trine} {limit} {second}: {error}");
        }
        assert!(parse("{}").is_err() && parse("").is_err());
    }

    #[test]
    fn tables_go_between_their_markers() {
        let page = format!("# a\n{TABLE_BEGIN}\nold\n{TABLE_END}\nb\n");
        let once = replace_table(&page, "| x |\n").unwrap();
        assert_eq!(once, format!("# a\n{TABLE_BEGIN}\n\n| x |\n\n{TABLE_END}\nb\n"));
        assert_eq!(
            replace_table(&once, "| x |\n").unwrap(),
            once,
            "the second time changes nothing"
        );
        assert!(replace_table("# a\n", "x").is_err());
        assert!(replace_table(&format!("{TABLE_END}\n{TABLE_BEGIN}"), "x").is_err());
    }
}
