//! Pictures for the fake model, and a tower that makes their rows when it is told to.
//!
//! A prompt is written in codes: token ids, and for each soft token a mark with its picture's
//! number and its index in it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use trine_backend::BackendError;
use trine_engine::{Engine, PromptPicture, Request, RunsTower, SOFT, Tower, TowerInput};

use crate::fake::{Fake, failed, look, options, unit_tokens};

const MARK: u32 = 1 << 31;
/// The number of a picture that the tower fails on, of one that gives rows that are no numbers, and
/// of one that meets a defect.
pub(crate) const BAD: [u32; 3] = [61, 62, 63];

/// Soft tokens of a picture: few, or from number 40 on more than two blocks.
pub(crate) fn size(number: u32) -> usize {
    if (40..50).contains(&number) { 70 } else { 1 + number as usize % 6 }
}

/// A picture in codes.
pub(crate) fn picture(number: u32) -> Vec<u32> {
    (0..size(number) as u32).map(|index| MARK | number << 8 | index).collect()
}

/// The number of a soft token's picture, and its index in it.
fn soft(code: u32) -> Option<(u32, usize)> {
    (code & MARK != 0).then_some(((code & !MARK) >> 8, (code & 0xff) as usize))
}

/// Leaves out a picture at the end that is not whole.
pub(crate) fn whole(mut codes: Vec<u32>) -> Vec<u32> {
    if let Some((number, index)) = codes.last().and_then(|&code| soft(code))
        && index + 1 < size(number)
    {
        codes.truncate(codes.len() - index - 1);
    }
    codes
}

/// The numbers of the pictures.
pub(crate) fn numbers(codes: &[u32]) -> impl Iterator<Item = u32> {
    let soft = codes.iter().filter_map(|&code| soft(code));
    soft.filter(|(_, index)| *index == 0).map(|(number, _)| number)
}

/// The tokens by whose hashes the fake model answers: a soft token is what its row and all rows of
/// its unit are.
pub(crate) fn seen(codes: &[u32]) -> Vec<u32> {
    let mut tokens = Vec::with_capacity(codes.len());
    for run in codes.chunk_by(|a, b| soft(*a).is_some() == soft(*b).is_some()) {
        if soft(run[0]).is_none() {
            tokens.extend_from_slice(run);
            continue;
        }
        let row = |code: &u32| soft(*code).map(|(number, index)| look(number, index, size(number)));
        let rows: Vec<f32> = run.iter().filter_map(row).flatten().collect();
        tokens.extend(unit_tokens(&rows));
    }
    tokens
}

pub(crate) fn input(number: u32) -> TowerInput {
    TowerInput {
        digest: [number as u8; 32],
        patches: vec![number as f32],
        grid: (1, 1),
        soft_tokens: size(number),
    }
}

/// A request for a prompt in codes.
pub(crate) fn request(tower: &Tower, codes: &[u32], max_tokens: usize) -> Request {
    let token = |&code: &u32| if soft(code).is_some() { SOFT } else { code };
    let mut pictures = Vec::new();
    for (at, (number, index)) in
        codes.iter().enumerate().filter_map(|(at, &code)| Some((at, soft(code)?)))
    {
        if index == 0 {
            pictures.push(PromptPicture { at, handle: tower.handle(input(number)) });
        }
    }
    Request {
        pictures: pictures.into(),
        ..Request::new(codes.iter().map(token).collect(), max_tokens)
    }
}

/// What makes rows. With a gate it needs a permit for each picture.
struct Painter {
    gate: Option<Receiver<()>>,
    taken: Arc<AtomicUsize>,
}

impl RunsTower for Painter {
    fn rows(&mut self, picture: &TowerInput) -> Result<Vec<f32>, BackendError> {
        self.taken.fetch_add(1, Ordering::SeqCst);
        if let Some(gate) = &self.gate {
            // Without its gate it makes no more rows.
            gate.recv().map_err(|_| BackendError::Stopped)?;
        }
        let number = picture.patches[0] as u32;
        let rows = |number| {
            let row = |index| look(number, index, picture.soft_tokens);
            (0..picture.soft_tokens).flat_map(row).collect()
        };
        match BAD.iter().position(|&bad| bad == number) {
            None => Ok(rows(number)),
            Some(0) => Err(failed()),
            Some(1) => Ok(vec![f32::NAN; 3 * picture.soft_tokens]),
            // A panic that prints nothing.
            Some(_) => std::panic::resume_unwind(Box::new("a defect, as asked")),
        }
    }
}

/// A tower that makes rows only when it is told to.
pub(crate) struct Gated {
    pub(crate) tower: Tower,
    permits: Sender<()>,
    taken: Arc<AtomicUsize>,
}

impl Gated {
    pub(crate) fn new(budget: usize) -> Self {
        let (permits, gate) = channel();
        let taken = Arc::new(AtomicUsize::new(0));
        let painter = Painter { gate: Some(gate), taken: Arc::clone(&taken) };
        let tower = Tower::start(painter, [7; 32], budget).expect("there is a thread");
        Self { tower, permits, taken }
    }

    /// Waits until the tower has begun with a picture, if any is wanted. Returns whether one is.
    #[track_caller]
    pub(crate) fn settle(&self) -> bool {
        until(|| {
            let counts = self.tower.counts();
            counts.waiting == 0 || self.taken.load(Ordering::SeqCst) > counts.pictures as usize
        });
        self.tower.counts().waiting > 0
    }

    /// Gives up the gate, without which the tower makes no more rows.
    pub(crate) fn into_tower(self) -> Tower {
        self.tower
    }

    /// Lets the tower make the rows of one picture, if any is wanted.
    #[track_caller]
    pub(crate) fn paint(&self) {
        let before = self.tower.counts().pictures;
        if self.settle() {
            self.permits.send(()).expect("the tower has not ended");
            until(|| self.tower.counts().pictures > before);
        }
        self.settle();
    }
}

/// A tower that makes rows at once.
pub(crate) fn quick(budget: usize) -> Tower {
    let painter = Painter { gate: None, taken: Arc::default() };
    Tower::start(painter, [7; 32], budget).expect("there is a thread")
}

/// Bytes of rows that a tower keeps.
pub(crate) const BUDGET: usize = 1 << 20;

/// An engine for sequences of up to 256 positions in steps of up to `width` rows.
pub(crate) fn engine(width: usize, running: usize, slots: usize) -> Engine {
    let fake = Fake::new(options(256, slots, width), &[20]).with_pictures();
    Engine::with_running(Box::new(fake), running)
}

/// Puts parts of a prompt one after the other.
pub(crate) fn joined(parts: &[&[u32]]) -> Vec<u32> {
    parts.concat()
}

/// Waits until something is so. Sleeps, because a thread that yields again and again gets hardly
/// any time from Linux while others work.
#[track_caller]
pub(crate) fn until(mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    let mut pause = Duration::from_micros(10);
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(120), "it does not become so");
        std::thread::sleep(pause);
        pause = (2 * pause).min(Duration::from_millis(1));
    }
}
