//! Charts and tables of recorded benchmarks.
//!
//! `docs/benchmarks/NAME.json` is the record. From it come `NAME.svg`, the table between the
//! markers of `NAME.md`, and the table of docs/speed.md, which is short and has the forecasts for
//! machines on which nothing was measured. A figure that is `null` was not measured, and chart and
//! tables say so.
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
/// The page with the short table of one record.
const SPEED: &str = "docs/speed.md";
const IN_SPEED: &str = "h200";
const TABLE_BEGIN: &str = "<!-- table: begin, written by cargo xtask chart -->";
const TABLE_END: &str = "<!-- table: end -->";

/// A recorded benchmark.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    /// The heading of the chart.
    title: String,
    /// The machine that it ran on.
    machine: String,
    /// The driver's version.
    driver: String,
    /// The rival's version, and when it was measured.
    rival: String,
    /// The source of the limits.
    limits: String,
    /// The day on which trine was measured, YYYY-MM-DD.
    date: Option<String>,
    /// The commit of trine that was measured.
    commit: Option<String>,
    /// The command that reproduces trine's figures.
    command: Option<String>,
    /// The source of the forecasts.
    forecast: Option<Forecast>,
    rows: Vec<Row>,
}

/// Forecasts of `trine plan`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Forecast {
    /// The command that computes the forecasts of the record's rows.
    command: String,
    /// The assumptions of the forecasts, as the rest of a sentence.
    assumes: String,
    /// Forecasts for machines on which nothing was measured.
    elsewhere: Vec<Elsewhere>,
}

/// Forecasts for a machine on which nothing was measured.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Elsewhere {
    machine: String,
    /// The text in place of measurements.
    measured: String,
    command: String,
    assumes: String,
    rows: Vec<ForecastRow>,
}

/// One test that was not run.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ForecastRow {
    test: String,
    unit: String,
    forecast: f64,
    limit: f64,
}

/// One test. More is better.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    /// The test that was run.
    test: String,
    /// The unit of all figures.
    unit: String,
    /// trine's figure, a median.
    trine: Option<f64>,
    /// How trine's figure was measured, if not as the record says, as the rest of a sentence.
    measured: Option<String>,
    /// The forecast of `trine plan`.
    forecast: Option<f64>,
    /// llama.cpp through Vulkan.
    llama_vulkan: Option<f64>,
    /// llama.cpp through CUDA.
    llama_cuda: Option<f64>,
    /// The figure that the bytes read or the operations allow.
    limit: f64,
    /// The figure that trine has to reach.
    required: Option<f64>,
    /// The figure that trine aims at.
    aim: Option<f64>,
}

impl Row {
    /// Returns the bars: (class of the style sheet, name, figure).
    fn bars(&self) -> [(&'static str, &'static str, Option<f64>); 3] {
        [
            ("trine", "trine", self.trine),
            ("vulkan", "llama.cpp Vulkan", self.llama_vulkan),
            ("cuda", "llama.cpp CUDA", self.llama_cuda),
        ]
    }

    /// Returns the part of the limit that trine reaches, as text.
    fn share(&self) -> String {
        self.trine.map_or_else(
            || "-".to_owned(),
            |figure| format!("{:.0} %", figure / self.limit * 100.0),
        )
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
        if name == IN_SPEED {
            let page = replace_table(&read(root, SPEED)?, &short_table(&record)).context(SPEED)?;
            files.push((SPEED.to_owned(), page));
        }
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
        let figures =
            [row.trine, row.forecast, row.llama_vulkan, row.llama_cuda, row.required, row.aim];
        for figure in figures.into_iter().flatten().chain([row.limit]) {
            ensure!(figure > 0.0, "`{}`: {figure} is not a rate", row.test);
        }
        let forecast = ("", "the forecast", row.forecast);
        for (_, name, figure) in row.bars().into_iter().chain([forecast]) {
            let figure = figure.unwrap_or_default();
            ensure!(figure <= row.limit, "`{}`: {name} is above the limit", row.test);
        }
        ensure!(
            row.forecast.is_some() == record.forecast.is_some(),
            "`{}`: a forecast belongs to what says where it comes from",
            row.test
        );
    }
    for row in record.forecast.iter().flat_map(|forecast| &forecast.elsewhere).flat_map(|e| &e.rows)
    {
        let is_rate = row.forecast > 0.0 && row.forecast <= row.limit;
        ensure!(is_rate, "`{}`: {} of {} is not a rate", row.test, row.forecast, row.limit);
    }
    let is_measured = record.rows.iter().any(|row| row.trine.is_some());
    for (what, value) in
        [("date", &record.date), ("commit", &record.commit), ("command", &record.command)]
    {
        ensure!(
            value.is_some() == is_measured,
            "`{what}` belongs to figures of trine: give it with them, and not without"
        );
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

fn figure_or(value: Option<f64>, none: &str) -> String {
    value.map_or_else(|| none.to_owned(), figure)
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
        "| test | unit | trine | forecast | llama.cpp Vulkan | llama.cpp CUDA | limit | trine's \
         share of the limit | required | aim |\n\
         |---|---|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for row in &record.rows {
        let cells = [
            row.test.replace('|', "\\|"),
            row.unit.replace('|', "\\|"),
            figure_or(row.trine, "not measured"),
            figure_or(row.forecast, "-"),
            figure_or(row.llama_vulkan, "not measured"),
            figure_or(row.llama_cuda, "not measured"),
            figure(row.limit),
            row.share(),
            figure_or(row.required, "-"),
            figure_or(row.aim, "-"),
        ];
        text.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    text.push_str(&format!("\n{}, driver {}. {}\n", record.machine, record.driver, trine(record)));
    text.push_str(&format!("\nllama.cpp: {}. Limits: {}.\n", record.rival, record.limits));
    if let Some(forecast) = &record.forecast {
        text.push_str(&format!("\n{}\n", assumptions(&forecast.command, &forecast.assumes)));
    }
    text
}

fn assumptions(command: &str, assumes: &str) -> String {
    format!("Forecasts are not measurements: `{command}` assumes that {assumes}.")
}

/// Returns the tables of docs/speed.md: the record's tests, and forecasts for machines on which
/// nothing was measured.
fn short_table(record: &Record) -> String {
    let mut text = String::from(
        "| test | unit | trine, measured | trine, forecast | llama.cpp Vulkan | llama.cpp CUDA | \
         limit | trine's share of the limit |\n\
         |---|---|---:|---:|---:|---:|---:|---:|\n",
    );
    for row in &record.rows {
        let cells = [
            row.test.replace('|', "\\|"),
            row.unit.replace('|', "\\|"),
            figure_or(row.trine, "not measured"),
            figure_or(row.forecast, "-"),
            figure_or(row.llama_vulkan, "not measured"),
            figure_or(row.llama_cuda, "not measured"),
            figure(row.limit),
            row.share(),
        ];
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    let _ = writeln!(text, "\n{}", trine(record));
    let Some(forecast) = &record.forecast else { return text };
    let _ = writeln!(text, "\n{}", assumptions(&forecast.command, &forecast.assumes));
    for other in &forecast.elsewhere {
        let _ = writeln!(
            text,
            "\n| {} | unit | trine, measured | trine, forecast | limit |\n|---|---|---|---:|---:|",
            other.machine
        );
        for row in &other.rows {
            let (forecast, limit) = (figure(row.forecast), figure(row.limit));
            let ForecastRow { test, unit, .. } = row;
            let _ =
                writeln!(text, "| {test} | {unit} | {} | {forecast} | {limit} |", other.measured);
        }
        let _ = writeln!(text, "\n{}", assumptions(&other.command, &other.assumes));
    }
    text
}

/// Returns the source of trine's figures.
fn trine(record: &Record) -> String {
    let mut text = match (&record.date, &record.commit, &record.command) {
        (Some(date), Some(commit), Some(command)) => {
            format!("trine: commit {commit}, {date}, `{command}`.")
        }
        _ => "trine: not measured.".to_owned(),
    };
    text.push_str(&exceptions(record));
    text
}

/// Returns a sentence for each test in which trine's figure was measured in another way.
fn exceptions(record: &Record) -> String {
    let said = record.rows.iter().filter_map(|row| Some((&row.test, row.measured.as_ref()?)));
    said.map(|(test, measured)| format!(" {test}: {measured}.")).collect()
}

/// The sizes of the chart in pixels.
const WIDTH: f64 = 880.0;
const MARGIN: f64 = 20.0;
const NAMES: f64 = 130.0;
const BAR: f64 = 13.0;
const BAR_STEP: f64 = 17.0;
const GROUP_HEAD: f64 = 20.0;
const GROUP_GAP: f64 = 14.0;
const HEAD: f64 = 76.0;
const FOOT: f64 = 34.0;
/// Room for a figure after its bar.
const FIGURE: f64 = 92.0;

/// Two sets of colours. The background is drawn, so that neither set depends on the page around the
/// chart.
const STYLE: &str = "\
    text { font-family: system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, \
        sans-serif; font-size: 12px; fill: #1f2328; }
    .title { font-size: 17px; font-weight: 600; }
    .test { font-weight: 600; }
    .muted { fill: #59636e; }
    .right { text-anchor: end; }
    .inside { fill: #ffffff; }
    .ground { fill: #ffffff; }
    .track { fill: #e9edf1; }
    .trine { fill: #bc4c00; }
    .vulkan { fill: #0969da; }
    .cuda { fill: #57606a; }
    .required { stroke: #1f2328; stroke-width: 1.5; stroke-dasharray: 3 2; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3; }
      .muted { fill: #9198a1; }
      .inside { fill: #0d1117; }
      .ground { fill: #0d1117; }
      .track { fill: #21262d; }
      .trine { fill: #f0883e; }
      .vulkan { fill: #58a6ff; }
      .cuda { fill: #9aa4ae; }
      .required { stroke: #e6edf3; }
    }
";

/// Draws the chart: for each test a bar for each program, as a share of the test's limit.
fn svg(record: &Record) -> String {
    let group = GROUP_HEAD + 3.0 * BAR_STEP + GROUP_GAP;
    let height = HEAD + group * record.rows.len() as f64 + FOOT;
    let mut out = String::new();
    let mut line = |text: String| {
        out.push_str(&text);
        out.push('\n');
    };
    line(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" role=\"img\" aria-labelledby=\"title description\">"
    ));
    line(format!("  <title id=\"title\">{}</title>", escape(&record.title)));
    line(format!("  <desc id=\"description\">{}</desc>", escape(&description(record))));
    line(format!("  <style>\n{STYLE}  </style>"));
    line(format!("  <rect class=\"ground\" width=\"{WIDTH}\" height=\"{height}\" rx=\"6\"/>"));
    line(words(MARGIN, 30.0, "title", &record.title));
    let under = format!("{}, driver {}. {}", record.machine, record.driver, trine_short(record));
    line(words(MARGIN, 50.0, "muted", &under));
    for (index, row) in record.rows.iter().enumerate() {
        line(group_of(row, HEAD + group * index as f64));
    }
    let legend =
        "Full width: the limit of the test by bytes read or operations. Dashed: required of trine.";
    line(words(MARGIN, height - 14.0, "muted", legend));
    line("</svg>".to_owned());
    out
}

/// Draws the bars of one test.
fn group_of(row: &Row, top: f64) -> String {
    let left = MARGIN + NAMES;
    let full = WIDTH - MARGIN - left;
    let limit = format!("limit {} {}", figure(row.limit), row.unit);
    let mut lines = vec![
        words(MARGIN, top + 10.0, "test", &row.test),
        words(WIDTH - MARGIN, top + 10.0, "muted right", &limit),
    ];
    for (index, (class, name, value)) in row.bars().into_iter().enumerate() {
        let y = top + GROUP_HEAD + index as f64 * BAR_STEP;
        let base = y + BAR - 2.5;
        let rect = |class: &str, width: f64| {
            format!(
                "  <rect class=\"{class}\" x=\"{left}\" y=\"{y}\" width=\"{width:.1}\" \
                 height=\"{BAR}\" rx=\"2\"/>"
            )
        };
        lines.push(words(left - 8.0, base, "right", name));
        lines.push(rect("track", full));
        let mut figure_at = left + 6.0;
        if let Some(value) = value {
            let width = full * (value / row.limit).min(1.0);
            lines.push(rect(class, width));
            figure_at += width;
        }
        let shown = match value {
            Some(value) if class == "trine" => {
                format!("{} ({:.0} %)", figure(value), value / row.limit * 100.0)
            }
            other => figure_or(other, "not measured"),
        };
        // If a bar leaves no room after it, the figure is inside the bar, at its end.
        let has_room = figure_at + FIGURE <= left + full;
        let (figure_at, class) = match (value, has_room) {
            (None, _) => (figure_at, "muted"),
            (Some(_), true) => (figure_at, ""),
            (Some(_), false) => (figure_at - 12.0, "inside right"),
        };
        lines.push(words(figure_at, base, class, &shown));
    }
    if let Some(required) = row.required {
        let x = left + full * (required / row.limit).min(1.0);
        let (from, to) = (top + GROUP_HEAD - 2.0, top + GROUP_HEAD + BAR + 2.0);
        lines.push(format!(
            "  <line class=\"required\" x1=\"{x:.1}\" y1=\"{from}\" x2=\"{x:.1}\" y2=\"{to}\"/>"
        ));
    }
    lines.join("\n")
}

fn words(x: f64, y: f64, class: &str, text: &str) -> String {
    let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
    format!("  <text{class} x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escape(text))
}

fn trine_short(record: &Record) -> String {
    match (&record.date, &record.commit) {
        (Some(date), Some(commit)) => format!("trine: commit {commit}, {date}"),
        _ => "trine: not measured".to_owned(),
    }
}

/// Returns the figures in words, for readers who cannot see the bars.
fn description(record: &Record) -> String {
    let mut text = String::new();
    for row in &record.rows {
        let _ = write!(text, "{} ({}): ", row.test, row.unit);
        for (_, name, value) in row.bars() {
            let _ = write!(text, "{name} {}, ", figure_or(value, "not measured"));
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

    fn record(trine: &str, provenance: &str, limit: &str) -> anyhow::Result<Record> {
        parse(&format!(
            r#"{{"title": "T <1>", "machine": "M", "driver": "D", "rival": "R", "limits": "L", {provenance},
                "rows": [{{"test": "a & b", "unit": "tok/s", "trine": {trine}, "llama_vulkan": 86.9,
                "llama_cuda": null, "limit": {limit}, "required": 150, "aim": null}}]}}"#
        ))
    }

    const NONE: &str = r#""date": null, "commit": null, "command": null"#;
    const ALL: &str = r#""date": "2000-01-01", "commit": "abc", "command": "run it""#;

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
    fn what_was_not_measured_is_called_so() {
        let record = record("null", NONE, "300").unwrap();
        let table = table(&record);
        assert!(table.contains(
            "| a & b | tok/s | not measured | - | 86.9 | not measured | 300 | - | 150 | - |"
        ));
        assert!(table.contains("trine: not measured."));
        let svg = svg(&record);
        assert_eq!(svg.matches(">not measured</text>").count(), 2, "{svg}");
        assert!(!svg.contains("class=\"trine\""), "there is no bar without a figure");
    }

    #[test]
    fn bars_are_shares_of_the_limit() {
        let record = record("225", ALL, "300").unwrap();
        let svg = svg(&record);
        let full = WIDTH - 2.0 * MARGIN - NAMES;
        assert!(
            svg.contains(&format!("class=\"track\" x=\"150\" y=\"96\" width=\"{full:.1}\"")),
            "{svg}"
        );
        assert!(
            svg.contains(&format!(
                "class=\"trine\" x=\"150\" y=\"96\" width=\"{:.1}\"",
                full * 0.75
            ))
        );
        assert!(
            svg.contains("225 (75 %)") && svg.contains("T &lt;1&gt;") && svg.contains("a &amp; b")
        );
        assert!(!svg.contains("class=\"inside"), "there is room after the bar");
        assert!(
            self::svg(&self::record("290", ALL, "300").unwrap()).contains("class=\"inside right\"")
        );
        let required = 150.0 + full / 2.0;
        assert!(svg.contains(&format!("x1=\"{required:.1}\"")), "{svg}");
        assert!(table(&record).contains("| 225 | - | 86.9 | not measured | 300 | 75 % |"));
        assert!(table(&record).contains("commit abc, 2000-01-01, `run it`."));
    }

    #[test]
    fn records_that_cannot_be_are_refused() {
        for (trine, provenance, limit, expected) in [
            ("225", NONE, "300", "date"),
            ("null", ALL, "300", "date"),
            ("-1", ALL, "300", "not a rate"),
            ("0", ALL, "300", "not a rate"),
            ("301", ALL, "300", "above the limit"),
            ("1", ALL, "0", "not a rate"),
            ("1", ALL, "null", "invalid type"),
            ("1e999", ALL, "300", "out of range"),
            ("1, \"more\": 1", ALL, "300", "unknown field"),
        ] {
            let error = format!("{:#}", record(trine, provenance, limit).unwrap_err());
            assert!(error.contains(expected), "{trine} {limit}: {error}");
        }
        assert!(parse("{}").is_err() && parse("").is_err());
    }

    #[test]
    fn forecasts_stand_beside_measurements_and_where_nothing_was_measured() {
        let with = |forecast: &str, other: &str| {
            parse(&format!(
                r#"{{"title": "T", "machine": "M", "driver": "D", "rival": "R", "limits": "L", {ALL},
                    "forecast": {{"command": "plan it", "assumes": "all is well", "elsewhere": [{{"machine": "E",
                    "measured": "not measured: none", "command": "plan E", "assumes": "E is well",
                    "rows": [{{"test": "c", "unit": "tok/s", "forecast": {other}, "limit": 50}}]}}]}},
                    "rows": [{{"test": "a", "unit": "tok/s", "trine": 100, {forecast} "llama_vulkan": 60,
                    "llama_cuda": null, "limit": 300, "required": null, "aim": null}}]}}"#
            ))
        };
        let otherwise = with(r#""forecast": 205, "measured": "once","#, "40").unwrap();
        assert!(table(&otherwise).contains("`run it`. a: once.\n"));
        assert!(short_table(&otherwise).contains("`run it`. a: once.\n"));
        let record = with(r#""forecast": 205,"#, "40").unwrap();
        assert!(!short_table(&record).contains("once"));
        assert!(table(&record).contains("| 100 | 205 | 60.0 |"));
        let short = short_table(&record);
        assert!(
            short.contains("| a | tok/s | 100 | 205 | 60.0 | not measured | 300 | 33 % |"),
            "{short}"
        );
        assert!(short.contains("| c | tok/s | not measured: none | 40.0 | 50.0 |"), "{short}");
        for said in ["`plan it` assumes that all is well.", "`plan E` assumes that E is well."] {
            assert!(short.contains(said), "{short}");
        }
        for (forecast, other, expected) in [
            (r#""forecast": 301,"#, "40", "above the limit"),
            (r#""forecast": 0,"#, "40", "not a rate"),
            ("", "40", "belongs to"),
            (r#""forecast": 205,"#, "51", "not a rate"),
        ] {
            let error = format!("{:#}", with(forecast, other).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
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
