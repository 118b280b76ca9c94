//! `trine bench --image`

use std::time::Instant;

use anyhow::{Context, Result};
use serde::Serialize;
use trine_engine::{RunsTower, TowerInput};
use trine_model::{KvType, Workload};
use trine_pictures::Picture;
use trine_server::tower_input;
use trine_session::device::GpuOptions;
use trine_session::measured;
use trine_session::model_source::find;
use trine_session::picture_file::{Input, decode};
use trine_session::statistics::Summary;
use trine_session::tower;
use trine_session::vision::{self, TowerPlacement};

use crate::cli::{BenchArgs, BenchPicture};
use crate::interrupt::Watch;
use crate::options;
use crate::settings::Settings;
use crate::terminal;
use crate::terminal::output;

/// The sides of the random picture.
const SIDES: (u32, u32) = (1024, 768);

/// What was measured.
#[derive(Debug, Serialize)]
struct Report {
    model: String,
    vision: Option<tower::Report>,
    device: String,
    version: &'static str,
    repeats: usize,
    /// Pixels from left to right and from top to bottom.
    picture: (u32, u32),
    /// Rows of the text model that it takes.
    soft_tokens: u32,
    /// Seconds that making patches of a decoded picture takes.
    preparation_seconds: f64,
    /// Seconds of each run of the tower.
    seconds: Vec<f64>,
    summary: Option<Summary>,
    /// Operations of a run.
    operations: u64,
    operations_per_second: f64,
    /// The rate of the device's products in prompts, with a matrix of the model.
    products_per_second: Option<f64>,
}

/// Measures how fast a model's vision tower reads a picture.
///
/// # Errors
/// Returns an error if the model reads no pictures, the picture cannot be read, or the device
/// fails.
pub(super) fn run(
    set: &Settings,
    args: &BenchArgs,
    picture: &BenchPicture,
    verbose: bool,
) -> Result<()> {
    let library = &set.library;
    let source = find(library, args.model.as_deref(), args.fetch.download())?.source;
    let mut settings = options::measuring(set, &args.placement, KvType::F16);
    settings.tune = settings.tune.at_load();
    let plain = source.open(settings.quantize)?;
    let model = tower::attach(&source, plain.clone(), &args.tower.choice())?;
    let config = *model.tower().context("it was attached")?.config();
    let preparation = tower::preparation(&config)?;
    let picture = match picture {
        BenchPicture::File(path) => decode(path, Input::Allowed)?,
        BenchPicture::Random(sides) => {
            random(sides.unwrap_or(SIDES)).context("an image has pixels")?
        }
    };
    let begin = Instant::now();
    let input = tower_input(&preparation.prepare(&picture));
    let preparation_seconds = begin.elapsed().as_secs_f64();
    let TowerInput { grid, soft_tokens, .. } = input;
    let gpu = GpuOptions::tuned(settings.tune.into());
    let opened = settings.device.open(library, settings.threads, settings.gpu_layers, gpu)?;
    let placed = TowerPlacement::fastest(library, &model, &opened)?;
    let mut program = placed.load(&model).with_context(|| {
        format!("the vision tower cannot be loaded on {}", terminal::harmless(&placed.name()))
    })?;
    let watch = Watch::new();
    let mut seconds = Vec::new();
    // The first run is not counted.
    for run in 0..=usize::from(args.repeats) {
        watch.check()?;
        let begin = Instant::now();
        let rows = program.rows(&input)?;
        if run > 0 {
            seconds.push(begin.elapsed().as_secs_f64());
        }
        tower::check_rows(&model, &rows, || program.overflow())?;
    }
    drop(program);
    // Pictures of Gemma 4 have patches in numbers of their own.
    let (tokens, outputs) = (grid.0 * grid.1, soft_tokens);
    let workload = Workload { tokens, outputs, ..vision::workload(&config) };
    let operations = model.tower_plan(false).cost(workload).operations;
    let summary = Summary::of(&seconds);
    let median = summary.as_ref().map_or(f64::NAN, |summary| summary.median);
    let products = measured::prompt_rate(placed.device(), &plain);
    if let (Err(error), true) = (&products, verbose) {
        output::note(&format!("the rate of products is left out: {error:#}"));
    }
    let report = Report {
        model: source.name(),
        vision: tower::Report::of(&model),
        device: placed.name(),
        version: env!("CARGO_PKG_VERSION"),
        repeats: seconds.len(),
        picture: (picture.width(), picture.height()),
        soft_tokens: soft_tokens as u32,
        preparation_seconds,
        seconds,
        summary,
        operations,
        operations_per_second: operations as f64 / median,
        products_per_second: products.ok(),
    };
    match args.json {
        true => output::json(&report),
        false => output::line(report.text(args.markdown)),
    }
}

/// Makes a picture of random pixels, the same each time.
fn random((width, height): (u32, u32)) -> Option<Picture> {
    let mut state = 1_u32;
    let bytes = width as usize * height as usize * 3;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    Picture::from_rgb(width, height, std::iter::repeat_with(next).take(bytes).collect())
}

impl Report {
    fn text(&self, markdown: bool) -> String {
        let header = [
            "image",
            "soft tokens",
            "ms",
            "quartiles",
            "min..max",
            "images/s",
            "Top/s",
            "of products",
        ];
        let (width, height) = self.picture;
        let ms = |seconds: f64| output::rate(seconds * 1e3);
        let Some(summary) = &self.summary else { return String::new() };
        let share = self.products_per_second.map_or("-".to_owned(), |products| {
            format!("{:.0} %", 100.0 * self.operations_per_second / products)
        });
        let row = vec![
            format!("{width} x {height}"),
            self.soft_tokens.to_string(),
            ms(summary.median),
            format!("{}..{}", ms(summary.lower_quartile), ms(summary.upper_quartile)),
            format!("{}..{}", ms(summary.minimum), ms(summary.maximum)),
            output::rate(1.0 / summary.median),
            output::rate(self.operations_per_second / 1e12),
            share,
        ];
        let right = [1, 2, 5, 6, 7];
        let table = match markdown {
            true => output::markdown(&header, vec![row], &right),
            false => output::table(&header, vec![row], &right),
        };
        let vision =
            self.vision.as_ref().map_or(String::new(), |vision| format!("{}\n", vision.short()));
        format!(
            "{table}\n\n{vision}{}; {}; preparing takes {} more; trine {}; {}",
            terminal::harmless(&self.model),
            terminal::harmless(&self.device),
            output::seconds(self.preparation_seconds),
            self.version,
            output::counted(self.repeats, "repeat"),
        )
    }
}
