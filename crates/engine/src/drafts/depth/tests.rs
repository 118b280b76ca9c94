//! A server whose guesses are right by chance and whose steps take what a curve says.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::acceptance::{Acceptance, Average};
use super::*;

/// The most rows of a step.
const WIDTH: usize = 256;
/// The most guesses of a sequence.
const MOST: usize = 8;
/// The part by which times vary, and the share of steps that take three times as long.
const NOISE: f64 = 0.1;
const HICCUPS: f64 = 0.01;

/// The shares of the tokens per second with the best depth, and without guesses, that have to be
/// reached.
const OF_BEST: f64 = 0.9;
const OF_PLAIN: f64 = 0.97;

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
            let chance = |text: &Text| match self.pass {
                Some(_) => drafted(MOST, text.acceptance.rate()),
                None => found(MOST, text.acceptance.rate()),
            };
            let chances: Vec<Chance> = self.texts.iter().map(chance).collect();
            let choice = self.depths.choose(sequences, WIDTH - sequences, &chances, &|_| 0.0);
            let (depths, looks) = (choice.depths.to_vec(), choice.looks.to_vec());
            assert!(looks.iter().zip(&depths).all(|(&is_look, &depth)| !is_look || depth == 1));
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
            let took = self.time((self.curve)(rows));
            self.depths.note_step(rows, took);
            seconds += took;
            for (index, &depth) in depths.iter().enumerate() {
                let rate = self.texts[index].rate;
                let right = (0..depth).take_while(|_| self.uniform() < rate).count();
                self.texts[index].acceptance.note(depth, right);
                self.average.note(depth, right);
                if looks[index] {
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

    /// Runs steps and compares the tokens per second: nearly as many as with the best depth, and
    /// nearly as many as without guesses where no depth is better.
    fn check(&mut self, steps: usize, what: &str) {
        let (best, plain) = self.bounds();
        let speed = self.run(steps);
        let least = (OF_BEST * best).max(OF_PLAIN * plain);
        let (of_best, of_plain) = (speed / best, speed / plain);
        assert!(speed >= least, "{what}: {of_best:.3} of the best depth, {of_plain:.3} of plain");
    }
}

const RATES: [f64; 4] = [0.0, 0.3, 0.7, 0.95];
const SEQUENCES: [usize; 3] = [1, 8, 32];

fn cases() -> impl Iterator<Item = (String, Curve, usize, f64)> {
    CURVES.into_iter().flat_map(|(name, curve)| {
        SEQUENCES.into_iter().flat_map(move |sequences| {
            RATES.into_iter().map(move |rate| {
                (format!("{name}, {sequences} sequences, {rate} right"), curve, sequences, rate)
            })
        })
    })
}

fn found(most: usize, rate: f64) -> Chance {
    Chance { found: Supply { most, rate }, ..Chance::default() }
}

fn drafted(most: usize, rate: f64) -> Chance {
    Chance { drafted: Supply { most, rate }, ..Chance::default() }
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
        for pass in [0.0005, 0.004] {
            let mut server = Server::new(curve, sequences, rate);
            server.pass = Some(pass);
            server.check(2000, &format!("{what}, {pass} s a pass"));
        }
    }
}

#[test]
fn a_change_of_the_text_is_followed() {
    let drafter = Some(0.001);
    for (what, curve, sequences, _) in cases().filter(|case| case.3 == 0.0) {
        for (before, after, pass) in
            [(0.0, 0.95, None), (0.0, 0.95, drafter), (0.95, 0.0, None), (0.7, 0.3, drafter)]
        {
            let mut server = Server::new(curve, sequences, before);
            server.pass = pass;
            server.run(1000);
            server.texts.iter_mut().for_each(|text| text.rate = after);
            server.check(2000, &format!("{what}, now {after} after {before}, drafter {pass:?}"));
        }
    }
}

#[test]
fn a_change_of_times_is_followed() {
    for (from, to) in [(flat as Curve, linear as Curve), (linear, flat), (humped, flat)] {
        for sequences in SEQUENCES {
            let mut server = Server::new(from, sequences, 0.7);
            server.run(1500);
            server.curve = to;
            // Larger steps are tried again when their old times are forgotten.
            server.run(1500);
            server.check(1500, &format!("{sequences} sequences"));
        }
    }
}

#[test]
fn sequences_are_judged_each_for_itself() {
    let mut server = Server::new(stepped, 4, 0.0);
    server.texts[2].rate = 0.95;
    server.run(200);
    let chance = |rate| found(MOST, rate);
    let chances = [chance(0.01), chance(0.0), chance(0.95), chance(0.02)];
    let depths = server.depths.choose(4, WIDTH - 4, &chances, &|_| 0.0).depths;
    assert_eq!((depths[2], depths.iter().sum::<usize>() <= 5), (4, true), "{depths:?}");
}

#[test]
fn a_drafter_is_left_out_where_it_does_not_pay() {
    let mut depths = Depths::new(16, 2);
    for _ in 0..50 {
        [1, 2, 4, 8, 16].into_iter().for_each(|rows| depths.note_step(rows, 0.01));
        depths.note_pass(1, 0.1);
    }
    let (drafted, found) = (drafted(4, 0.9), found(3, 0.5));
    let both = Chance { drafted: drafted.drafted, ..found };
    assert_eq!(depths.choose(2, 14, &[drafted, found], &|_| 0.0).depths, [0, 3]);
    let choice = depths.choose(2, 14, &[both, found], &|_| 0.0);
    assert_eq!((choice.depths, choice.drafted), (&[3, 3][..], &[false, false][..]));
    assert_eq!(depths.choose(2, 14, &[drafted, drafted], &|_| 0.0).depths, [0, 0]);
    (0..50).for_each(|_| depths.note_pass(1, 0.0001));
    let choice = depths.choose(2, 14, &[both, found], &|_| 0.0);
    assert_eq!((choice.depths, choice.drafted), (&[4, 3][..], &[true, false][..]));
    let worse = Chance { drafted: Supply { most: 4, rate: 0.4 }, ..found };
    assert_eq!(depths.choose(2, 14, &[worse, found], &|_| 0.0).drafted, [false, false]);
}

#[test]
fn there_is_never_more_than_room() {
    let mut depths = Depths::new(8, 4);
    let most = |most| found(most, 0.9);
    for _ in 0..200 {
        for (rows, free, chances) in [
            (1, 0, vec![most(8)]),
            (2, 1, vec![most(8), most(8)]),
            (2, 6, vec![most(0), most(2)]),
            (4, 4, vec![most(1); 4]),
            (0, 8, vec![]),
            (9, 0, vec![most(3); 9]),
        ] {
            let depths_of = depths.choose(rows, free, &chances, &|_| 0.0).depths.to_vec();
            let guesses: usize = depths_of.iter().sum();
            assert_eq!(depths_of.len(), chances.len());
            assert!(guesses <= free, "{guesses} guesses");
            let fits =
                depths_of.iter().zip(&chances).all(|(&depth, chance)| depth <= chance.found.most);
            assert!(fits, "{depths_of:?}");
            depths.note_step(rows + guesses, 0.01);
        }
    }
    assert_eq!(depths.choose(2, 6, &[most(0), most(2)], &|_| 0.0).depths, [0, 2]);
}

#[test]
fn what_is_no_rate_or_time_does_no_harm() {
    for rate in [f64::NAN, f64::INFINITY, -1.0, 2.0] {
        for seconds in [f64::NAN, 0.0, 0.01] {
            let mut depths = Depths::new(8, 2);
            for _ in 0..100 {
                let chances = [drafted(3, rate); 2];
                let guesses: usize = depths.choose(2, 6, &chances, &|_| 0.0).depths.iter().sum();
                assert!(guesses <= 6);
                depths.note_step(2 + guesses, seconds);
                depths.note_pass(2, seconds);
            }
        }
    }
}

#[test]
fn a_number_that_is_set_is_given_as_far_as_there_is_room() {
    let mut depths = Depths::new(16, 3);
    let chances = [found(8, 0.0), drafted(2, 0.0), found(8, 0.9)];
    depths.fix(Some(4));
    let choice = depths.choose(3, 9, &chances, &|_| 0.0);
    assert_eq!((choice.depths, choice.drafted), (&[4, 2, 3][..], &[false, true, false][..]));
    depths.fix(Some(0));
    assert_eq!(depths.choose(3, 9, &chances, &|_| 0.0).depths, [0, 0, 0]);
}

/// A drafter that has to read a long text first is looked at as seldom as that takes long.
#[test]
fn looks_pay_for_what_is_read() {
    let looks_of = |reading: f64| {
        let mut depths = Depths::new(16, 4);
        let drafted = Supply { most: 4, rate: 0.0 };
        let chances = [Chance { drafted, ..Chance::default() }];
        let mut looks = 0;
        for _ in 0..20_000 {
            let choice = depths.choose(1, 8, &chances, &|_| reading);
            let (is_look, rows) = (choice.looks[0], 1 + choice.depths[0]);
            depths.note_step(rows, 0.001);
            if is_look {
                looks += 1;
                depths.note_look(false);
            }
        }
        looks
    };
    // Looks may lose 0.75 % of 20 s, 150 ms.
    let (short, dear) = (looks_of(0.0), looks_of(0.05));
    assert!(short > 100, "{short} looks without reading");
    assert!((2..=3).contains(&dear), "{dear} looks of 50 ms each");
}
