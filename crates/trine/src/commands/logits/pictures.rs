//! `trine logits --image`

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::json;
use trine_backend::{
    BLOCK, BULK_ROWS, Batch, Device, Program, ProgramOptions, SOFT, SequenceView, SoftRows,
    TowerProgram,
};
use trine_model::{Goal, KvType, Model, Pixels, TowerConfig, Width};
use trine_pictures::Prepared;
use trine_session::device::GpuOptions;
use trine_session::forecast::PREFILL;
use trine_session::model_source::find;
use trine_session::options::Options;
use trine_session::picture_file;
use trine_session::session::{not_finite, overflown};
use trine_session::tower;

use crate::cli::LogitsArgs;
use crate::commands::logits::{
    LogitsFile, check_context, check_ids, check_length, destination_of, read_ids,
};
use crate::failure::usage;
use crate::interrupt::Watch;
use crate::options;
use crate::settings::Settings;
use crate::terminal::output;

/// Writes the logits of every position, and what became of each picture.
///
/// # Errors
/// As [`run`](super::run), and if the model reads no pictures, one cannot be read, or the ids do
/// not have places for exactly these.
pub(crate) fn run(set: &Settings, args: &LogitsArgs, verbose: bool) -> Result<()> {
    let library = &set.library;
    if picture_file::takes_input(&args.image)? && picture_file::is_input(&args.ids) {
        return Err(usage("standard input is the image of --image; name the file of --ids"));
    }
    let ids = read_ids(&args.ids)?;
    let source = find(library, Some(&args.model), args.fetch.download())?.source;
    let settings = options::measuring(set, &args.placement, KvType::F32);
    check_context(&settings, &ids, &args.ids)?;
    let out = destination_of(&args.out, &source)?;
    check_length(&source, &ids, &args.ids)?;
    let choice = args.tower.choice();
    let model = tower::attach(&source, source.open(settings.quantize)?, &choice)?;
    let config = *model.tower().expect("it was attached").config();
    let preparation = tower::preparation(&config)?;
    let read = |path: &PathBuf| picture_file::prepare(path, &preparation);
    let pictures = args.image.iter().map(read).collect::<Result<Vec<Prepared>>>()?;
    let rows = PictureInput::new(&model, &ids, &pictures, args)?;
    let watch = Watch::new();
    let gpu = GpuOptions::tuned(settings.tune.into());
    let device = settings.device.open(library, settings.threads, settings.gpu_layers, gpu)?.device;
    let chunk = args.chunk.unwrap_or(PREFILL);
    let (count, vocabulary) = (pictures.len(), model.config().vocabulary);
    let facts = json!({
        "producer": concat!("trine ", env!("CARGO_PKG_VERSION")),
        "device": device.name(),
        "kv": settings.kv.name(),
        "chunk": chunk.to_string(),
    });
    let tensors = tensors(&config, &pictures, [ids.len(), vocabulary]);
    let tensors: Vec<_> =
        tensors.iter().map(|(name, shape)| (name.as_str(), "F32", shape.clone())).collect();
    // Creating the file finds out whether the disk has room, before the tower works for minutes.
    // The model is loaded after the tower, whose memory is free then.
    let mut file = LogitsFile::create(out.as_deref(), &tensors, &facts)?;
    let made = run_tower(&model, device.as_ref(), &settings, &pictures, &watch)?;
    let mut sequence = Sequence::load(&model, device.as_ref(), &settings, &rows, chunk)?;
    let soft = made.iter().flat_map(|made| made.rows.iter().copied()).collect::<Vec<f32>>();
    let name = source.name();
    let mut broken = None;
    let ran = sequence.run(&rows, &soft, |position, row| {
        broken = not_finite(&name, position, row);
        if let Some(what) = &broken {
            bail!("{what}");
        }
        file.row(row)?;
        Ok(watch.check()?)
    });
    if let Some(what) = broken {
        return Err(overflown(&what, &sequence.program.overflow(Goal::Main)));
    }
    ran?;
    pictures.iter().try_for_each(|picture| file.row(&pixels(&config, picture)))?;
    made.iter().try_for_each(|made| file.row(&made.states))?;
    made.iter().try_for_each(|made| file.row(&made.rows))?;
    file.finish()?;
    if verbose {
        let out = args.out.display();
        output::note(&format!("{} positions, {count} images in {out}", ids.len()));
    }
    Ok(())
}

/// Returns the tensors of the file: logits, and what became of each picture, by their names. Of
/// pictures that all have one size these are (pictures, ...), of others a tensor for each.
fn tensors(
    config: &TowerConfig,
    pictures: &[Prepared],
    logits: [usize; 2],
) -> Vec<(String, Vec<usize>)> {
    let mut tensors = vec![("logits".to_owned(), logits.to_vec())];
    let count = pictures.len();
    match config.pixels {
        Pixels::Square { side, .. } => tensors.extend([
            ("pixels".to_owned(), vec![count, 3, side, side]),
            ("tower".to_owned(), vec![count, config.patches(), config.hidden]),
            ("projector".to_owned(), vec![count, config.soft_tokens(), config.output]),
        ]),
        Pixels::Budget { .. } => {
            let patches = |picture: &Prepared| picture.rows().len() / config.patch_values();
            let soft = |picture: &Prepared| picture.soft_tokens() as usize;
            let numbered = |name: &str, shape: &dyn Fn(&Prepared) -> Vec<usize>| {
                let one = |(number, picture)| (format!("{name}.{number}"), shape(picture));
                pictures.iter().enumerate().map(one).collect::<Vec<_>>()
            };
            tensors.extend(numbered("pixels", &|own| vec![patches(own), config.patch_values()]));
            tensors.extend(numbered("tower", &|own| vec![soft(own), config.hidden]));
            tensors.extend(numbered("projector", &|own| vec![soft(own), config.output]));
        }
    }
    tensors
}

/// Returns the numbers of a picture that the tower is given: planes of colours, or patches.
fn pixels(config: &TowerConfig, picture: &Prepared) -> Vec<f32> {
    match config.pixels {
        Pixels::Square { .. } => picture.planes(),
        Pixels::Budget { .. } => picture.rows(),
    }
}

/// Makes rows of pictures.
fn run_tower(
    model: &Model,
    device: &dyn Device,
    settings: &Options,
    pictures: &[Prepared],
    watch: &Watch,
) -> Result<Vec<SoftRows>> {
    let refused = || format!("the vision tower cannot be loaded on {}", device.name());
    let tower = TowerProgram::load(device, model, settings.kv, true);
    let mut program = tower.with_context(refused)?;
    let made = pictures.iter().map(|picture| {
        watch.check()?;
        let (columns, rows) = picture.patches();
        let made = program.run(&picture.rows(), (columns as usize, rows as usize))?;
        tower::check_rows(model, &made.rows, || program.overflow())?;
        Ok(made)
    });
    made.collect()
}

/// The rows of a prompt with pictures.
struct PictureInput {
    /// [`SOFT`] in the places of pictures.
    tokens: Vec<u32>,
    /// What each row sees ahead.
    ahead: Vec<u32>,
}

impl PictureInput {
    /// Finds the places of pictures among ids. Soft tokens without another id between them see one
    /// another, as in the model's own implementation.
    fn new(model: &Model, ids: &[u32], pictures: &[Prepared], args: &LogitsArgs) -> Result<Self> {
        let soft = model.tower().expect("it was attached").soft_token();
        let others: Vec<u32> = ids.iter().map(|&id| if id == soft { 0 } else { id }).collect();
        check_ids(&others, model.config().vocabulary, &args.ids)?;
        let file = args.ids.display();
        let counts: Vec<usize> = pictures.iter().map(|own| own.soft_tokens() as usize).collect();
        let mut left = counts.as_slice();
        let mut ahead = Vec::with_capacity(ids.len());
        for run in ids.chunk_by(|a, b| (*a == soft) == (*b == soft)) {
            if run[0] != soft {
                ahead.resize(ahead.len() + run.len(), 0);
                continue;
            }
            let Some(taken) = pictures_of(run.len(), left) else {
                bail!(
                    "{file} has {} soft tokens ({soft}) from entry {} on, the next images have {}; \
                     write as many for each image",
                    run.len(),
                    ahead.len(),
                    listed(left),
                );
            };
            left = &left[taken..];
            ahead.extend((0..run.len() as u32).rev());
        }
        if !left.is_empty() {
            return Err(anyhow!(
                "{file} has places for {} images, {} are given; write the soft token ({soft}) as \
                 often as each has soft tokens: {}",
                counts.len() - left.len(),
                counts.len(),
                listed(&counts),
            ));
        }
        let tokens = ids.iter().map(|&id| if id == soft { SOFT } else { id }).collect();
        Ok(Self { tokens, ahead })
    }

    /// Returns where a step of at most `chunk` rows from `start` on ends: later where a picture
    /// would be cut.
    fn end(&self, start: usize, chunk: usize) -> usize {
        let end = (start + chunk).min(self.tokens.len());
        end + self.ahead[end - 1] as usize
    }

    /// Returns where each step of at most `chunk` rows begins and ends.
    fn pieces(&self, chunk: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        let mut start = 0;
        std::iter::from_fn(move || {
            let piece = (start < self.tokens.len()).then(|| (start, self.end(start, chunk)))?;
            start = piece.1;
            Some(piece)
        })
    }
}

/// Returns how many of the pictures with these soft tokens stand in `count` neighbouring ones.
fn pictures_of(count: usize, pictures: &[usize]) -> Option<usize> {
    let mut sum = 0;
    let ends = pictures.iter().map(|own| {
        sum += own;
        sum
    });
    ends.take_while(|&end| end <= count)
        .enumerate()
        .find_map(|(index, end)| (end == count).then_some(index + 1))
}

/// Writes the soft tokens of pictures.
fn listed(counts: &[usize]) -> String {
    let counts: Vec<String> = counts.iter().take(8).map(usize::to_string).collect();
    if counts.is_empty() { "none".to_owned() } else { counts.join(", ") }
}

/// A sequence of a model that takes pictures.
struct Sequence {
    program: Box<dyn Program>,
    blocks: Vec<u32>,
    hidden: usize,
    chunk: usize,
}

impl Sequence {
    fn load(
        model: &Model,
        device: &dyn Device,
        settings: &Options,
        rows: &PictureInput,
        chunk: usize,
    ) -> Result<Self> {
        let context = rows.tokens.len();
        let widest = rows.pieces(chunk).map(|(start, end)| end - start).max().unwrap_or(1);
        let blocks = context.div_ceil(BLOCK);
        let width = Width { tokens: widest, outputs: widest };
        let options = ProgramOptions { width, kv: settings.kv, context, sequences: 1, blocks };
        let program = device.load_plan(model, model.plan(), &options);
        let program = program.with_context(|| {
            format!("a model that takes images cannot be loaded on {}", device.name())
        })?;
        let (blocks, hidden) = ((0..blocks as u32).collect(), model.config().hidden);
        Ok(Self { program, blocks, hidden, chunk })
    }

    /// Calls `each(position, logits)` for every position, in order. `soft` are the rows of
    /// pictures.
    fn run(
        &mut self,
        rows: &PictureInput,
        mut soft: &[f32],
        mut each: impl FnMut(usize, &[f32]) -> Result<()>,
    ) -> Result<()> {
        let vocabulary = self.program.facts().plan.output(0).columns;
        for (start, end) in rows.pieces(self.chunk) {
            let tokens = &rows.tokens[start..end];
            let count = tokens.iter().filter(|token| **token == SOFT).count();
            let (own, rest) = soft.split_at(count * self.hidden);
            soft = rest;
            let positions: Vec<u32> = (start as u32..end as u32).collect();
            let outputs: Vec<u32> = (0..tokens.len() as u32).collect();
            let logits = self.program.run(&Batch {
                tokens,
                positions: &positions,
                sequence_of: &vec![0; tokens.len()],
                ahead: &rows.ahead[start..end],
                sequences: &[SequenceView { slot: 0, blocks: &self.blocks }],
                outputs: &outputs,
                bulk_from: if self.chunk > BULK_ROWS { 0 } else { tokens.len() },
                inputs: &[own],
                goal: Goal::Main,
            })?;
            for (row, logits) in logits.chunks_exact(vocabulary).enumerate() {
                each(start + row, logits)?;
            }
        }
        Ok(())
    }
}
