//! A server whose guesses are right by chance and whose steps take what a curve says.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::*;

/// The most rows of a step.
const WIDTH: usize = 256;
/// The most guesses of a sequence.
const MOST: usize = 8;
/// The part by which times vary, and the share of steps that take three times as long.
const NOISE: f64 = 0.1;
const HICCUPS: f64 = 0.01;

/// Seconds of a step by its rows.
type Curve = fn(usize) -> f64;

fn flat(_: usize) -> f64 {
    0.01
}

fn linear(rows: usize) -> f64 {
    0.01 * rows as f64
}

/// Cheap up to eight rows, dear beyond.
fn stepped(rows: usize) -> f64 {
    0.01 + 0.005 * rows.saturating_sub(8) as f64
}

/// One row is cheaper than all others.
fn humped(rows: usize) -> f64 {
    if rows == 1 { 0.01 } else { 0.014 + 0.0001 * rows as f64 }
}

const CURVES: [(&str, Curve); 4] =
    [("flat", flat), ("linear", linear), ("stepped", stepped), ("humped", humped)];

struct Text {
    acceptance: Acceptance,
    /// The share of guesses that are right.
    rate: f64,
    /// Tokens until it ends.
    left: usize,
}

struct Server {
    depths: Depths,
    average: Average,
    texts: Vec<Text>,
    curve: Curve,
    /// Seconds of a drafter's pass, if one makes the guesses.
    pass: Option<f64>,
    /// The tokens of a text.
    length: usize,
    random: ChaCha8Rng,
}

impl Server {
    fn new(curve: Curve, sequences: usize, rate: f64) -> Self {
        let average = Average::default();
        let text = |_| Text { acceptance: average.start(), rate, left: 0 };
        Self {
            depths: Depths::new(WIDTH, sequences),
            average,
            texts: (0..sequences).map(text).collect(),
            curve,
            pass: None,
            length: usize::MAX,
            random: ChaCha8Rng::seed_from_u64(7),
        }
    }

    fn uniform(&mut self) -> f64 {
        f64::from(self.random.next_u32()) / f64::from(u32::MAX)
    }

    fn time(&mut self, seconds: f64) -> f64 {
        let hiccup = if self.uniform() < HICCUPS { 3.0 } else { 1.0 };
        seconds * hiccup * (1.0 + NOISE * (2.0 * self.uniform() - 1.0))
    }

    /// Runs steps. Returns the tokens per second.
    fn run(&mut self, steps: usize) -> f64 {
        let (mut tokens, mut seconds) = (0, 0.0);
        for _ in 0..steps {
            let sequences = self.texts.len();
            for text in &mut self.texts {
                if text.left == 0 {
                    text.acceptance = self.average.start();
                    text.left = self.length;
                }
            }
            let chance = |text: &Text| Chance {
                most: MOST,
                rate: text.acceptance.rate(),
                is_drafted: self.pass.is_some(),
            };
            let chances: Vec<Chance> = self.texts.iter().map(chance).collect();
            let choice = self.depths.choose(sequences, WIDTH - sequences, &chances);
            let (depths, is_look) = (choice.depths.to_vec(), choice.is_look);
            assert_eq!(is_look && depths.iter().sum::<usize>() != 1, false);
            let rows = sequences + depths.iter().sum::<usize>();
            assert!(rows <= WIDTH && depths.iter().all(|&depth| depth <= MOST));
            if let Some(pass) = self.pass {
                for pass_number in 1..=depths.iter().copied().max().unwrap_or(0) {
                    let drafted = depths.iter().filter(|&&depth| depth >= pass_number).count();
                    let took = self.time(pass);
                    self.depths.note_pass(drafted, took);
                    seconds += took;
                }
            }
            if std::env::var("TRACE").is_ok() {
                println!(
                    "  {depths:?} {is_look} {:?} base {:.4} this {:.4}",
                    chances.iter().map(|c| (c.rate * 100.0) as u32).collect::<Vec<_>>(),
                    self.depths.steps.of(sequences),
                    self.depths.steps.of(rows)
                );
            }
            let took = self.time((self.curve)(rows));
            self.depths.note_step(rows, took);
            seconds += took;
            for (index, &depth) in depths.iter().enumerate() {
                let rate = self.texts[index].rate;
                let right = (0..depth).take_while(|_| self.uniform() < rate).count();
                self.texts[index].acceptance.note(depth, right);
                self.average.note(depth, right);
                if is_look && depth > 0 {
                    self.depths.note_look(right > 0);
                }
                let text = &mut self.texts[index];
                text.left = text.left.saturating_sub(1 + right);
                tokens += 1 + right;
            }
        }
        tokens as f64 / seconds
    }

    /// Returns the tokens per second with `depth` guesses for each sequence in each step, from the
    /// definition.
    fn fixed(&self, depth: usize) -> f64 {
        let sequences = self.texts.len();
        let tokens: f64 = self
            .texts
            .iter()
            .map(|text| (0..=depth).map(|at| text.rate.powi(at as i32)).sum::<f64>())
            .sum();
        let drafting = self.pass.unwrap_or(0.0) * depth as f64;
        tokens / ((self.curve)(sequences * (1 + depth)) + drafting) / (1.0 + 2.0 * HICCUPS)
    }

    /// Returns the best of [`Server::fixed`] and the one without guesses.
    fn bounds(&self) -> (f64, f64) {
        let deepest = MOST.min(WIDTH / self.texts.len() - 1);
        let best = (0..=deepest).map(|depth| self.fixed(depth)).fold(0.0, f64::max);
        (best, self.fixed(0))
    }

    fn check(&mut self, steps: usize, what: &str) {
        let (best, plain) = self.bounds();
        let speed = self.run(steps);
        let least = if best > plain { (0.9 * best).max(0.97 * plain) } else { 0.97 * plain };
        println!("{what}: {:.3} of the best, {:.3} of plain", speed / best, speed / plain);
        assert!(
            speed >= least,
            "{what}: {speed} tokens/s of {best} with the best depth, {plain} without"
        );
    }
}

const RATES: [f64; 4] = [0.0, 0.3, 0.7, 0.95];
const SEQUENCES: [usize; 3] = [1, 8, 32];

fn cases() -> impl Iterator<Item = (String, Curve, usize, f64)> {
    CURVES.into_iter().flat_map(|(name, curve)| {
        SEQUENCES.into_iter().flat_map(move |sequences| {
            RATES.into_iter().map(move |rate| {
                (format!("{name}, {sequences} sequences, {rate}"), curve, sequences, rate)
            })
        })
    })
}

#[test]
fn it_is_about_as_fast_as_the_best_depth() {
    for (what, curve, sequences, rate) in cases() {
        Server::new(curve, sequences, rate).check(2000, &what);
    }
}

#[test]
fn short_texts_start_where_others_were() {
    for (what, curve, sequences, rate) in cases() {
        let mut server = Server::new(curve, sequences, rate);
        server.length = 40;
        server.check(2000, &what);
    }
}

#[test]
fn a_drafter_costs_its_passes() {
    for (what, curve, sequences, rate) in cases() {
        for pass in [0.0005, 0.004, 0.02] {
            let mut server = Server::new(curve, sequences, rate);
            server.pass = Some(pass);
            server.check(2000, &format!("{what}, {pass} s a pass"));
        }
    }
}

#[test]
fn a_change_of_the_text_is_followed() {
    for (what, curve, sequences, _) in cases().filter(|case| case.3 == 0.0) {
        for (before, after) in [(0.0, 0.95), (0.95, 0.0), (0.3, 0.95), (0.7, 0.3)] {
            for pass in [None, Some(0.001)] {
                let mut server = Server::new(curve, sequences, before);
                server.pass = pass;
                server.run(2000);
                server.texts.iter_mut().for_each(|text| text.rate = after);
                server.check(2000, &format!("{what}, then {after}, {pass:?}"));
            }
        }
    }
}

#[test]
fn a_change_of_times_is_followed() {
    for (from, to) in [(flat as Curve, linear as Curve), (linear, flat), (humped, flat)] {
        for sequences in SEQUENCES {
            let mut server = Server::new(from, sequences, 0.7);
            server.run(2000);
            server.curve = to;
            server.check(8000, &format!("{sequences} sequences"));
        }
    }
}
