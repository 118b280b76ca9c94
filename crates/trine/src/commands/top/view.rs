//! What is shown of a server: its last answer, its history, and the choices of the person who
//! watches.

use std::time::Instant;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::fetch::Problem;
use super::history::{History, Rates};
use super::status::{Engine, Model, Snapshot, Tower};
use crate::address::Address;
use crate::terminal::output;

/// What a key asks the program to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    /// Continue.
    Stay,
    /// End.
    End,
    /// End as Ctrl-C does.
    Interrupt,
}

/// A number with its name, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fact {
    /// The name.
    pub(super) label: &'static str,
    /// The number as text.
    pub(super) value: String,
}

/// The contents of a picture.
#[derive(Debug)]
pub(super) struct View {
    /// The address of the server.
    pub(super) address: Address,
    /// The last answer.
    pub(super) snapshot: Option<Snapshot>,
    /// The history of earlier answers.
    pub(super) history: History,
    /// Why the last request had no answer.
    pub(super) problem: Option<String>,
    /// Whether the explanations are shown.
    pub(super) is_helping: bool,
    /// The name of the chosen model.
    chosen: Option<String>,
}

impl View {
    /// Creates the view of a server that was not asked yet.
    pub(super) fn new(address: Address) -> Self {
        Self {
            address,
            snapshot: None,
            history: History::default(),
            problem: None,
            is_helping: false,
            chosen: None,
        }
    }

    /// Records the outcome of a request.
    pub(super) fn hear(&mut self, outcome: Result<Snapshot, Problem>, at: Instant) {
        match outcome {
            Ok(snapshot) => {
                self.history.hear(&snapshot, at);
                self.snapshot = Some(snapshot);
                self.problem = None;
            }
            Err(problem) => {
                self.history.miss();
                self.problem = Some(problem.to_string());
            }
        }
    }

    /// Handles a key.
    pub(super) fn press(&mut self, key: KeyEvent) -> Wish {
        if key.kind == KeyEventKind::Release {
            return Wish::Stay;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            let is_interrupt = key.code == KeyCode::Char('c');
            return if is_interrupt { Wish::Interrupt } else { Wish::Stay };
        }
        match key.code {
            KeyCode::Char('q') => return Wish::End,
            KeyCode::Esc if self.is_helping => self.is_helping = false,
            KeyCode::Esc => return Wish::End,
            KeyCode::Char('?') => self.is_helping = !self.is_helping,
            KeyCode::Tab | KeyCode::Right | KeyCode::Down => self.choose(1),
            KeyCode::BackTab | KeyCode::Left | KeyCode::Up => self.choose(-1),
            _ => {}
        }
        Wish::Stay
    }

    /// Returns the models of the last answer.
    pub(super) fn models(&self) -> &[Model] {
        self.snapshot.as_ref().map_or(&[], |snapshot| &snapshot.models)
    }

    /// Returns the model that is shown and its index in the list: the chosen model, else the first
    /// loaded one, else the first.
    pub(super) fn model(&self) -> Option<(usize, &Model)> {
        let models = self.models();
        let chosen = self.chosen.as_ref();
        let index = chosen
            .and_then(|name| models.iter().position(|model| model.name == *name))
            .or_else(|| models.iter().position(|model| model.engine.is_some()))
            .unwrap_or(0);
        models.get(index).map(|model| (index, model))
    }

    /// Returns the rates of a model, if they are known.
    pub(super) fn rates(&self, model: &Model) -> Option<Rates> {
        if self.problem.is_some() { None } else { self.history.rates(&model.name) }
    }

    fn choose(&mut self, step: isize) {
        let Some((index, _)) = self.model() else { return };
        let models = self.models();
        let next = index.checked_add_signed(step).unwrap_or(models.len() - 1) % models.len();
        self.chosen = Some(models[next].name.clone());
    }
}

/// Returns the title of a model: name, place among the others, architecture, formats, size.
pub(super) fn title(model: &Model, index: usize, models: usize) -> String {
    let mut parts = vec![model.name.clone()];
    if models > 1 {
        parts[0] = format!("{} ({} of {models})", model.name, index + 1);
    }
    let details = [model.family.clone(), model.formats.join(" ")];
    parts.extend(details.into_iter().filter(|text| !text.is_empty()));
    parts.push(output::bytes(model.bytes));
    if model.engine.is_none() {
        parts.push("not loaded".to_owned());
    }
    parts.join(", ")
}

/// Returns the numbers of an engine, the most important ones first in case there is little room.
pub(super) fn facts(engine: &Engine, tower: Option<&Tower>, rates: Option<Rates>) -> Vec<Fact> {
    let rate = |read: fn(Rates) -> f64, unit: &str| match rates {
        Some(rates) => format!("{} {unit}", number(read(rates))),
        None => "-".to_owned(),
    };
    let (rows, sequences) = engine.batch();
    let queue = match engine.waiting {
        0 => "empty".to_owned(),
        waiting => format!("{waiting}, {}", counted(engine.waiting_tokens, "token")),
    };
    let hits = match engine.prompt_tokens {
        0 => "-".to_owned(),
        tokens => {
            let share = 100.0 * (engine.reused_tokens as f64 / tokens as f64).min(1.0);
            format!("{share:.0} % of {}", counted(tokens, "token"))
        }
    };
    let (guesses, each) = match (engine.drafted_tokens, engine.drafts) {
        (0, _) | (_, 0) => ("-".to_owned(), "-".to_owned()),
        (drafted, drafts) => {
            let share = 100.0 * (engine.accepted_tokens as f64 / drafted as f64).min(1.0);
            let each = 1.0 + engine.accepted_tokens as f64 / drafts as f64;
            (
                format!("{share:.0} % of {}", output::count(drafted)),
                format!("{} tokens", number(each)),
            )
        }
    };
    let fact = |label, value| Fact { label, value };
    let mut facts = vec![
        fact("generated", rate(|rates| rates.generated, "tok/s")),
        fact("prompts", rate(|rates| rates.prompt, "tok/s")),
        fact("running", format!("{} of {}", engine.running, engine.sequences)),
        fact("queue", queue),
        fact("batch", format!("{}, {}", counted(rows, "row"), counted(sequences, "sequence"))),
        fact(
            "KV used",
            format!("{} of {}", engine.blocks_running, counted(engine.blocks, "block")),
        ),
        fact("KV memory", output::bytes(engine.kv_bytes)),
        fact("KV shared", counted(engine.blocks_shared, "block")),
        fact("KV kept", counted(engine.blocks_kept, "block")),
        fact("KV free", counted(engine.blocks_free(), "block")),
        fact("prefix hits", hits),
        fact("busy", rates.map_or("-".to_owned(), |rates| format!("{:.0} %", 100.0 * rates.busy))),
        fact("memory", rate(|rates| rates.bytes / 1e9, "GB/s")),
        fact("right guess", guesses),
        fact("with guesses", each),
        fact("requests", output::count(engine.requests)),
        fact("preempted", output::count(engine.preemptions)),
        fact("failures", output::count(engine.device_failures)),
    ];
    if let Some(tower) = tower {
        let waiting = match tower.waiting {
            0 => String::new(),
            waiting => format!(", {} wait", output::count(waiting)),
        };
        let each = match tower.pictures {
            0 => "-".to_owned(),
            pictures => format!("{} ms", number(1e3 * tower.seconds / pictures as f64)),
        };
        facts.push(fact("images", format!("{}{waiting}", output::count(tower.pictures))));
        facts.push(fact("each", each));
        facts.push(fact("known", output::count(tower.hits)));
    }
    facts
}

/// The explanations of the labels of [`facts`].
pub(super) const EXPLANATIONS: [(&str, &str); 14] = [
    ("generated", "tokens generated per second"),
    ("prompts", "prompt tokens of requests that started, per second"),
    ("running, queue", "requests that run, of those that may; that wait, and their prompt tokens"),
    ("batch", "rows of the last step: tokens that pass through the model together"),
    ("KV used", "cache blocks of running requests"),
    ("KV shared", "those that several requests hold, because their prompts begin alike"),
    ("KV kept", "blocks of ended requests, for prompts that begin alike"),
    ("prefix hits", "share of prompt tokens that were in the cache"),
    ("busy, memory", "share of the time in steps; bytes that the steps had to move"),
    ("right guess", "share of guessed tokens that were right"),
    ("with guesses", "tokens that a step with guesses gives a sequence"),
    ("preempted", "times that a request gave its blocks to another and waits again"),
    ("failures", "steps in which the device failed"),
    ("images", "read by the tower, the time of each; known from before"),
];

/// Formats a count with its unit: `1 row`, `12.3 k tokens`.
fn counted(count: u64, unit: &str) -> String {
    format!("{} {unit}{}", output::count(count), if count == 1 { "" } else { "s" })
}

/// Formats a rate for people; the text is short even for large values.
pub(super) fn number(value: f64) -> String {
    match value {
        v if !v.is_finite() || v >= 1e15 => "> 999 T".to_owned(),
        v if v <= 0.0 => "0".to_owned(),
        v if v < 99.95 && v.fract() != 0.0 => format!("{v:.1}"),
        v => output::count(v.round() as u64),
    }
}

/// Returns the picture as text, all models one after another.
pub(super) fn text(view: &View) -> String {
    let mut text = String::new();
    if let Some(snapshot) = &view.snapshot {
        text = format!("trine {} at {}, {}\n", snapshot.version, view.address, snapshot.phase);
    }
    let mut line = |label: &str, value: &str| text.push_str(&format!("{label:<12} {value}\n"));
    for (index, model) in view.models().iter().enumerate() {
        line("", "");
        line("model", &title(model, index, view.models().len()));
        let Some(engine) = &model.engine else { continue };
        line("device", &model.device);
        for fact in facts(engine, model.tower.as_ref(), view.rates(model)) {
            line(fact.label, &fact.value);
        }
    }
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

#[cfg(test)]
#[path = "view_tests.rs"]
pub(super) mod tests;
