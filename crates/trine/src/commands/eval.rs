//! `trine eval`: perplexity, and the divergence between two files of a model.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use trine_engine::log_sum_exp;
use trine_model::KvType;
use trine_session::device::DeviceChoice;
use trine_session::library::ModelLibrary;
use trine_session::model_source::{Source, find};
use trine_session::options::Options;
use trine_session::quantize::Observed;
use trine_session::session::{Session, Sizes};
use trine_session::statistics::quantile;
use trine_session::vocabulary;
use trine_text::{MAX_TEXT_BYTES, Specials, Tokenizer};

use crate::callbacks::tell;
use crate::cli::EvalArgs;
use crate::destination;
use crate::failure::usage;
use crate::interrupt::Watch;
use crate::options;
use crate::settings::Settings;
use crate::terminal;
use crate::terminal::output;

/// The default window in tokens: long enough for context to matter, short enough to be quick.
const WINDOW: usize = 512;
/// The number of rows of logits that are computed at once.
const ROWS: usize = 64;
/// The most bytes of logits of one window that are kept for a comparison.
const KEPT_BYTES_MAX: usize = 4 << 30;

/// One window of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Window {
    /// The index in the text of the window's first token. The beginning-of-sequence token precedes
    /// it in the window.
    start: usize,
    /// The index after the last token.
    end: usize,
    /// The index of the first token that is scored in this window.
    scored: usize,
}

/// The divergence of one model's predictions from another's.
#[derive(Debug, Serialize)]
struct Divergence {
    against: String,
    positions: usize,
    mean: f64,
    median: f64,
    percentile_99: f64,
    maximum: f64,
    /// The share of positions at which both models have the same most likely token.
    top_1_agreement: f64,
    against_perplexity: f64,
}

/// The results.
#[derive(Debug, Serialize)]
struct Report {
    model: String,
    text: String,
    device: String,
    kv: KvType,
    window: usize,
    stride: usize,
    windows: usize,
    tokens: usize,
    characters: usize,
    perplexity: f64,
    /// The mean negative logarithm of the tokens' probabilities, in nats.
    nats_per_token: f64,
    bits_per_character: f64,
    divergence: Option<Divergence>,
}

/// Sums over the scored tokens.
#[derive(Debug, Default)]
struct Score {
    nats: f64,
    tokens: usize,
}

impl Score {
    fn add(&mut self, nats: f64) {
        self.nats += nats;
        self.tokens += 1;
    }

    fn perplexity(&self) -> f64 {
        (self.nats / self.tokens as f64).exp()
    }
}

/// Evaluates a model on a text.
///
/// # Errors
/// Returns an error if the text is too short, the models do not belong together, the device fails,
/// or a model produces logits that are not finite.
pub(crate) fn run(set: &Settings, mut args: EvalArgs, verbose: bool) -> Result<()> {
    let library = &set.library;
    let text = read_text(&args.text)?;
    let found = |name: &String| find(library, Some(name), args.fetch.download());
    let source = found(&args.model)?.source;
    if let Some(path) = &mut args.imatrix {
        *path = destination::behind_links(path)?;
        destination::check_new(path, args.force, &source)?;
        args.placement.device.get_or_insert(DeviceChoice::Cpu);
    }
    let against = args.against.as_ref().map(found).transpose()?.map(|chosen| chosen.source);
    let mut settings = options::measuring(set, &args.placement, KvType::F16);
    let (bos, ids) = tokens(&source, &text, args.max_tokens)?;
    if args.max_tokens.is_some_and(|most| most < 2) {
        return Err(usage(
            "a token is predicted from the one before it; use a --max-tokens of 2 or more",
        ));
    }
    if ids.len() < 2 {
        bail!("{} has {} tokens; give a longer text", args.text.display(), ids.len());
    }
    let most = source.open(None)?.config().context;
    let window = settings.context.unwrap_or(WINDOW.min(most));
    let stride = stride(window, args.stride)?;
    settings.context = Some(window);
    let sizes =
        Sizes { prefill: Some(ROWS.min(window)), outputs: ROWS.min(window), ..Sizes::default() };
    let mut session = Session::open(library, &source, &settings, sizes)?;
    tell(&session, verbose);
    if args.imatrix.is_some() && session.engine.observe(true)?.is_none() {
        return Err(usage(
            "only a CPU by itself tells what matrices are multiplied with; use --device cpu",
        ));
    }
    let mut other = match &against {
        Some(source) => Some(open_other(
            library,
            source,
            &settings,
            sizes,
            &session,
            &text,
            &ids,
            args.max_tokens,
        )?),
        None => None,
    };
    let windows = windows(ids.len(), window - 1, stride);
    let totals = score(&mut session, other.as_mut(), bos, &ids, &windows)?;
    if let Some(path) = &args.imatrix {
        write_importances(&mut session, path, &args.text, windows.len(), window)?;
    }
    let characters = match args.max_tokens {
        None => text.chars().count(),
        Some(_) => tokenizer(&source)?.decode(&ids, false).chars().count(),
    };
    let report = Report {
        model: session.name.clone(),
        text: args.text.display().to_string(),
        device: session.device.clone(),
        kv: settings.kv,
        window,
        stride,
        windows: windows.len(),
        tokens: totals.own.tokens,
        characters,
        perplexity: totals.own.perplexity(),
        nats_per_token: totals.own.nats / totals.own.tokens as f64,
        bits_per_character: totals.own.nats / std::f64::consts::LN_2 / characters as f64,
        divergence: other.as_ref().map(|other| totals.divergence(&other.name)),
    };
    if args.json { output::json(&report) } else { output::line(describe(&report)) }
}

/// Writes what the windows' rows were multiplied with as an importance matrix.
fn write_importances(
    session: &mut Session,
    path: &Path,
    text: &Path,
    windows: usize,
    size: usize,
) -> Result<()> {
    let sums = session.engine.observe(false)?.unwrap_or_default();
    let observed = Observed::new(&session.engine.program().facts().plan, sums);
    destination::clear(path);
    let name = text.file_name().unwrap_or_default().to_string_lossy();
    observed.write(path, &name, windows, size)?;
    let count = observed.len();
    output::note(&format!("wrote the importances of {count} matrices to {}", path.display()));
    Ok(())
}

/// Returns how many tokens apart windows of so many positions begin.
fn stride(window: usize, asked: Option<usize>) -> Result<usize> {
    if window < 2 {
        return Err(usage("a window has <bos> and a token at least; use a --context of 2 or more"));
    }
    let stride = asked.unwrap_or(window / 2);
    if stride > window - 1 {
        return Err(usage(format!(
            "windows of {window} positions (one is <bos>) cannot begin {stride} tokens apart; use \
             a --stride of at most {}",
            window - 1
        )));
    }
    Ok(stride)
}

/// Reads a text of bounded length.
///
/// # Errors
/// Returns an error if it cannot be read, is too long, or is no text.
pub(super) fn read_text(path: &Path) -> Result<String> {
    let fail = || format!("cannot read {}; check the path and its permissions", path.display());
    let file = std::fs::File::open(path).with_context(fail)?;
    // The size that the system reports is not used, because pipes and devices have none.
    let mut bytes = Vec::new();
    file.take(MAX_TEXT_BYTES as u64 + 1).read_to_end(&mut bytes).with_context(fail)?;
    if bytes.len() > MAX_TEXT_BYTES {
        bail!(
            "{} has more than the {MAX_TEXT_BYTES} bytes that are read; give a part of it",
            path.display()
        );
    }
    String::from_utf8(bytes).map_err(|error| {
        anyhow::anyhow!("{} is not UTF-8 text ({error}); convert it first", path.display())
    })
}

fn tokenizer(source: &Source) -> Result<Tokenizer> {
    vocabulary::tokenizer(&source.open_checkpoint()?)
}

/// Returns the token that begins every window, and the text's tokens.
fn tokens(source: &Source, text: &str, most: Option<usize>) -> Result<(Option<u32>, Vec<u32>)> {
    let tokenizer = tokenizer(source)?;
    let mut ids = tokenizer.encode(text, Specials::AsText)?;
    ids.truncate(most.unwrap_or(ids.len()));
    Ok((tokenizer.bos_id(), ids))
}

/// Opens the model to compare with, and checks that both models have the same vocabulary.
fn open_other(
    library: &ModelLibrary,
    source: &Source,
    settings: &Options,
    sizes: Sizes,
    session: &Session,
    text: &str,
    ids: &[u32],
    most: Option<usize>,
) -> Result<Session> {
    let (_, other_ids) = tokens(source, text, most)?;
    let (own, their) = (session.engine.vocabulary(), source.open(None)?.config().vocabulary);
    if other_ids != ids || own != their {
        bail!(
            "{} ({own} tokens) and {} ({their} tokens) have different vocabularies; compare files \
             of one model",
            session.name,
            source.name()
        );
    }
    let kept = settings.context.unwrap_or(WINDOW) * own * size_of::<f32>();
    if kept > KEPT_BYTES_MAX {
        bail!(
            "comparing windows of this size needs {} for their logits; use a smaller --context",
            output::bytes(kept as u64)
        );
    }
    // The other model is used as it is: --quantize applies to the evaluated model only.
    let settings = Options { quantize: None, ..settings.clone() };
    Session::open(library, source, &settings, sizes)
}

/// Returns windows of `length` tokens that begin `stride` apart and score each token once. The
/// first token of the text is scored too, because it follows the beginning-of-sequence token.
fn windows(tokens: usize, length: usize, stride: usize) -> Vec<Window> {
    let mut windows = Vec::new();
    let mut scored = 0;
    let mut start = 0;
    while scored < tokens {
        let end = (start + length).min(tokens);
        windows.push(Window { start, end, scored });
        scored = end;
        start += stride;
    }
    windows
}

/// What is summed over all windows.
#[derive(Debug, Default)]
struct Totals {
    own: Score,
    other: Score,
    divergences: Vec<f64>,
    agreed: usize,
}

impl Totals {
    fn divergence(&self, against: &str) -> Divergence {
        let mut sorted = self.divergences.clone();
        sorted.sort_by(f64::total_cmp);
        let positions = sorted.len();
        Divergence {
            against: against.to_owned(),
            positions,
            mean: sorted.iter().sum::<f64>() / positions as f64,
            median: quantile(&sorted, 0.5),
            percentile_99: quantile(&sorted, 0.99),
            maximum: sorted.last().copied().unwrap_or(0.0),
            top_1_agreement: self.agreed as f64 / positions as f64,
            against_perplexity: self.other.perplexity(),
        }
    }
}

/// Scores the tokens of all windows.
fn score(
    session: &mut Session,
    mut other: Option<&mut Session>,
    bos: Option<u32>,
    ids: &[u32],
    windows: &[Window],
) -> Result<Totals> {
    let watch = Watch::new();
    let mut totals = Totals::default();
    let progress =
        terminal::stderr_is_terminal().then(|| indicatif::ProgressBar::new(windows.len() as u64));
    for window in windows {
        score_window(session, other.as_deref_mut(), bos, ids, window, &watch, &mut totals)?;
        if let Some(bar) = &progress {
            bar.inc(1);
        }
    }
    if let Some(bar) = progress {
        bar.finish_and_clear();
    }
    Ok(totals)
}

fn score_window(
    session: &mut Session,
    other: Option<&mut Session>,
    bos: Option<u32>,
    ids: &[u32],
    window: &Window,
    watch: &Watch,
    totals: &mut Totals,
) -> Result<()> {
    watch.check()?;
    let mut input: Vec<u32> = bos.into_iter().collect();
    let shift = input.len();
    input.extend_from_slice(&ids[window.start..window.end]);
    // Row r predicts input[r + 1], which is token window.start + r + 1 - shift of the text.
    let target = |row: usize| {
        let at = (window.start + row + 1).checked_sub(shift)?;
        (window.scored..window.end).contains(&at).then(|| ids[at] as usize)
    };
    let place = || format!("in the window that begins at token {} of the text", window.start);
    let mut kept: Vec<f32> = Vec::new();
    if let Some(other) = other {
        let scored = other.logits(&input, ROWS, |row, logits| {
            if let Some(target) = target(row) {
                totals.other.add(negative_log(logits, target));
                kept.extend_from_slice(logits);
            }
            Ok(())
        });
        scored.with_context(place)?;
        watch.check()?;
    }
    let mut truth = kept.chunks_exact(session.engine.vocabulary());
    let scored = session.logits(&input, ROWS, |row, logits| {
        let Some(target) = target(row) else { return Ok(()) };
        totals.own.add(negative_log(logits, target));
        if let Some(truth) = truth.next() {
            totals.divergences.push(divergence(truth, logits));
            totals.agreed += usize::from(largest(truth) == largest(logits));
        }
        Ok(())
    });
    scored.with_context(place)
}

/// Returns the negative logarithm of the probability of a token, in nats.
fn negative_log(logits: &[f32], token: usize) -> f64 {
    log_sum_exp(logits) - f64::from(logits[token])
}

/// Returns the Kullback-Leibler divergence `D(p || q)`, in nats, of two distributions given by
/// finite logits.
fn divergence(p: &[f32], q: &[f32]) -> f64 {
    let (p_total, q_total) = (log_sum_exp(p), log_sum_exp(q));
    let term = |(&p, &q): (&f32, &f32)| {
        let log_p = f64::from(p) - p_total;
        log_p.exp() * (log_p - (f64::from(q) - q_total))
    };
    // Rounding can leave the sum slightly below zero.
    p.iter().zip(q).map(term).sum::<f64>().max(0.0)
}

/// Returns the index of the largest logit, the first one if there are several.
fn largest(logits: &[f32]) -> usize {
    let mut best = 0;
    for (index, &logit) in logits.iter().enumerate() {
        if logit > logits[best] {
            best = index;
        }
    }
    best
}

fn describe(report: &Report) -> String {
    let mut text = format!(
        "perplexity          {:.4}\n\
         bits per character  {:.4}\n\
         tokens              {}\n\
         characters          {}\n\
         windows             {} of {} positions, {} tokens apart\n\
         model               {}\n\
         device              {}, kv {}",
        report.perplexity,
        report.bits_per_character,
        report.tokens,
        report.characters,
        report.windows,
        report.window,
        report.stride,
        terminal::harmless(&report.model),
        report.device,
        report.kv.name(),
    );
    if let Some(divergence) = &report.divergence {
        text.push_str(&format!(
            "\n\
             \n\
             against             {} (perplexity {:.4})\n\
             KL divergence       mean {:.3e}, median {:.3e}, 99 % {:.3e}, max {:.3e} nats\n\
             same top token      {:.2} % of {} positions",
            terminal::harmless(&divergence.against),
            divergence.against_perplexity,
            divergence.mean,
            divergence.median,
            divergence.percentile_99,
            divergence.maximum,
            divergence.top_1_agreement * 100.0,
            divergence.positions,
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_is_scored_once() {
        for (tokens, length, stride) in
            [(1, 4, 2), (4, 4, 2), (5, 4, 2), (100, 7, 3), (100, 7, 7), (9, 8, 1)]
        {
            let mut scored = vec![0; tokens];
            for window in windows(tokens, length, stride) {
                assert!(window.end - window.start <= length);
                assert!(
                    window.scored >= window.start,
                    "{window:?}: a window scores its own tokens only"
                );
                (window.scored..window.end).for_each(|at| scored[at] += 1);
            }
            assert!(
                scored.iter().all(|&times| times == 1),
                "{tokens} {length} {stride}: {scored:?}"
            );
        }
    }

    #[test]
    fn divergences_and_probabilities() {
        assert!((negative_log(&[0.0, 0.0, 0.0, 0.0], 2) - 4_f64.ln()).abs() < 1e-12);
        assert!((negative_log(&[1000.0, 1000.0], 0) - 2_f64.ln()).abs() < 1e-12, "no overflow");
        assert_eq!(divergence(&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0]), 0.0);
        // p = (3/4, 1/4), q = (1/2, 1/2): 3/4 ln(3/2) + 1/4 ln(1/2).
        let expected = 0.75 * 1.5_f64.ln() + 0.25 * 0.5_f64.ln();
        let found = divergence(&[3_f32.ln(), 0.0], &[0.0, 0.0]);
        assert!((found - expected).abs() < 1e-7, "{found} {expected}");
        assert_eq!(largest(&[1.0, 3.0, 3.0]), 1);
    }
}
