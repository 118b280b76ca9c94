//! What a reply may say, between the text that knows and the engine that asks.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use trine_engine::{Constraint, Waker};
use trine_text::{Course, Grammar, GrammarError, Outlook, Thoughts};

/// A grammar, and limits on thoughts, that guide one reply.
///
/// Masks are computed on threads beside the engine's, while the device runs a step: that of the
/// present place and those after guesses.
#[derive(Debug)]
pub struct Guide {
    state: State,
    /// The guesses of the step.
    guesses: Vec<u32>,
}

/// Where what a reply may say is found out.
#[derive(Debug)]
enum State {
    /// Here, when it is asked for, as far as it is not known.
    Here(Outlook),
    /// On another thread.
    Away(Away),
    /// Lost with its thread.
    Lost,
}

/// What is awaited from another thread.
#[derive(Debug)]
struct Away {
    outlook: Receiver<Outlook>,
    /// Tells the thread to look no further: the present place is waited for.
    is_enough: Arc<AtomicBool>,
}

impl Drop for Away {
    fn drop(&mut self) {
        self.is_enough.store(true, Ordering::Relaxed);
    }
}

impl Away {
    /// Returns what is back within a time.
    fn back(&self, patience: Duration) -> Option<State> {
        match self.outlook.recv_timeout(patience) {
            Ok(outlook) => Some(State::Here(outlook)),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(State::Lost),
        }
    }

    /// Does the same until a time. Half of it is for masks after guesses: each saves a launch.
    fn back_until(&self, until: Instant) -> Option<State> {
        let left = || until.saturating_duration_since(Instant::now());
        self.back(left() / 2).or_else(|| {
            self.is_enough.store(true, Ordering::Relaxed);
            self.back(left())
        })
    }
}

const LOST: &str = "the grammar library failed";

impl Guide {
    /// Returns a guide at the beginning of a reply; `None` if it needs none.
    ///
    /// # Errors
    /// [`GrammarError::Failed`] if the grammar's library fails.
    pub fn start(
        grammar: Option<&Grammar>,
        thoughts: Option<Thoughts>,
    ) -> Result<Option<Self>, GrammarError> {
        let course = Course::start(grammar, thoughts)?;
        let state = course.map(|course| State::Here(Outlook::new(course)));
        Ok(state.map(|state| Self { state, guesses: Vec::new() }))
    }

    /// Returns what the reply may say, after a wait if that is away.
    fn outlook(&mut self) -> Result<&mut Outlook, String> {
        if let State::Away(away) = &self.state {
            away.is_enough.store(true, Ordering::Relaxed);
            self.state = away.outlook.recv().map_or(State::Lost, State::Here);
        }
        match &mut self.state {
            State::Here(outlook) => Ok(outlook),
            State::Away(_) | State::Lost => Err(LOST.to_owned()),
        }
    }
}

impl Constraint for Guide {
    fn allowed(&mut self, words: usize, mask: &mut Vec<u32>) -> Result<(), String> {
        self.outlook()?.allowed(words, mask).map_err(|error| error.to_string())
    }

    fn allowed_after(&mut self, guesses: usize, words: usize, mask: &mut Vec<u32>) -> bool {
        let (State::Here(outlook), Some(guesses)) = (&self.state, self.guesses.get(..guesses))
        else {
            return false;
        };
        outlook.allowed_after(guesses, words, mask)
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        self.guesses.clear();
        self.outlook()?.accept(token).map_err(|error| error.to_string())
    }

    fn begin(&mut self, guesses: &[u32], waker: &Waker) {
        self.guesses.clear();
        self.guesses.extend_from_slice(guesses);
        let state = std::mem::replace(&mut self.state, State::Lost);
        self.state = match state {
            State::Here(outlook) if outlook.has_grammar() && !outlook.is_known(guesses) => {
                // So that a grammar whose masks take long is in the way of no other one.
                let beside = if outlook.is_costly() { &COSTLY } else { &QUICK };
                State::Away(beside.send(outlook, guesses.to_vec(), Arc::clone(waker)))
            }
            other => other,
        };
    }

    fn is_ready(&mut self, until: Option<Instant>) -> bool {
        if let State::Away(away) = &self.state {
            let back = match until {
                Some(until) => away.back_until(until),
                None => away.back(Duration::ZERO),
            };
            let Some(state) = back else { return false };
            self.state = state;
        }
        true
    }

    fn is_costly(&self) -> bool {
        matches!(&self.state, State::Here(outlook) if outlook.is_costly())
    }

    fn follow(&mut self, guesses: &[u32]) -> usize {
        self.outlook().map_or(0, |outlook| outlook.follow(guesses))
    }
}

/// The threads that compute masks beside the engines of this process: half as many as processors.
/// 128 texts whose masks take a quarter of a millisecond keep four busy at 100 steps a second.
static QUICK: LazyLock<Beside> = LazyLock::new(|| Beside::new(processors() / 2));
/// Those that compute masks that are likely to take long.
static COSTLY: LazyLock<Beside> = LazyLock::new(|| Beside::new(processors() / 2));

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// Threads that take outlooks in the order in which they come.
struct Beside(Sender<Job>);

struct Job {
    outlook: Outlook,
    guesses: Vec<u32>,
    is_enough: Arc<AtomicBool>,
    looked: Sender<Outlook>,
    waker: Waker,
}

impl Beside {
    /// Starts threads, at least one.
    fn new(threads: usize) -> Self {
        let (sender, receiver) = channel::<Job>();
        let receiver = Arc::new(Mutex::new(receiver));
        for _ in 0..threads.max(1) {
            let receiver = Arc::clone(&receiver);
            let work = move || {
                loop {
                    let job = receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(job) = job else { return };
                    job.run();
                }
            };
            // Without a thread, outlooks come back as lost, and their replies end.
            if let Err(error) = std::thread::Builder::new().name("masks".to_owned()).spawn(work) {
                tracing::error!(%error, "no thread for masks");
            }
        }
        Self(sender)
    }

    fn send(&self, outlook: Outlook, guesses: Vec<u32>, waker: Waker) -> Away {
        let (looked, receiver) = channel();
        let is_enough = Arc::<AtomicBool>::default();
        let away = Away { outlook: receiver, is_enough: Arc::clone(&is_enough) };
        // If it cannot be sent, `looked` is dropped with it, which the receiver notices.
        let _ = self.0.send(Job { outlook, guesses, is_enough, looked, waker });
        away
    }
}

impl Job {
    fn run(self) {
        let Self { mut outlook, guesses, is_enough, looked, waker } = self;
        // The reply has ended if nobody else has it.
        if Arc::strong_count(&is_enough) == 1 {
            return;
        }
        outlook.look(&guesses, || !is_enough.load(Ordering::Relaxed));
        // If nobody waits, the reply has ended.
        let _ = looked.send(outlook);
        waker();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use trine_text::{GrammarSource, Specials};

    use super::*;
    use crate::models::testing::demo;
    use crate::request::structure::grammar_cache;

    fn woken() -> (Waker, Receiver<()>) {
        let (sender, woken) = channel();
        // Wakes of masks that nobody waits for may come after the test.
        let wake = move || sender.send(()).unwrap_or_default();
        (Arc::new(wake), woken)
    }

    fn allowed(guide: &mut Guide, words: usize) -> Vec<u32> {
        let mut mask = Vec::new();
        guide.allowed(words, &mut mask).unwrap();
        mask
    }

    /// Masks of a grammar that costs more with each token come from another thread, and are the
    /// same.
    #[test]
    fn costly_masks_are_made_beside_the_engine() {
        let tokenizer = demo::tokenizer();
        let source = "root ::= s\ns ::= [a-z ] s [a-z ] | s s | [a-z ]".to_owned();
        let grammar = grammar_cache(&tokenizer).get(&GrammarSource::Gbnf(source)).unwrap();
        let mut plain = Course::start(Some(&grammar), None).unwrap().unwrap();
        let mut guide = Guide::start(Some(&grammar), None).unwrap().unwrap();
        let (waker, woken) = woken();
        let words =
            tokenizer.encode("once upon a time there was a fox ", Specials::AsText).unwrap();
        let mut expected = vec![0; plain.mask_words()];
        let mut away = 0;
        for &token in words.iter().cycle().take(30) {
            if guide.is_costly() {
                away += 1;
                // Wakes of earlier masks may be left.
                guide.begin(&[], &waker);
                while !guide.is_ready(None) {
                    woken.recv().unwrap();
                }
                assert!(!guide.is_costly(), "the mask is known");
                assert_eq!(guide.follow(&[token]), 0, "nothing is guessed while masks are costly");
            }
            plain.allowed(&mut expected).unwrap();
            assert_eq!(allowed(&mut guide, expected.len()), expected);
            plain.accept(token).unwrap();
            guide.accept(token).unwrap();
        }
        assert!((1..30).contains(&away), "{away} masks came from another thread");
        // Of the first mask a grammar knows, since it was made once.
        let grammar = costly();
        assert!(Course::start(Some(&grammar), None).unwrap().unwrap().is_costly());
    }

    /// Returns a grammar whose first mask takes long.
    fn costly() -> Arc<Grammar> {
        let rules =
            (0..300).map(|index| format!("r{index} ::= [a-z] \"{index}\" r{index} [a-z]? | \"x\""));
        let names: Vec<String> = (0..300).map(|index| format!("r{index}")).collect();
        let source =
            format!("root ::= {}\n{}", names.join(" | "), rules.collect::<Vec<_>>().join("\n"));
        grammar_cache(&demo::tokenizer()).get(&GrammarSource::Gbnf(source)).unwrap()
    }

    #[test]
    fn masks_that_take_long_are_in_the_way_of_no_others() {
        let (waker, _woken) = woken();
        let begun = |grammar: &Grammar| {
            let mut guide = Guide::start(Some(grammar), None).unwrap().unwrap();
            guide.begin(&[], &waker);
            guide
        };
        let (costly, cheap) = (costly(), GrammarSource::Regex("[a-z ]*".to_owned()));
        let cheap = grammar_cache(&demo::tokenizer()).get(&cheap).unwrap();
        let mut slow: Vec<Guide> = (0..64).map(|_| begun(&costly)).collect();
        let mut quick = begun(&cheap);
        assert!(quick.is_ready(Some(Instant::now() + Duration::from_secs(120))));
        assert!(slow.iter_mut().any(|guide| !guide.is_ready(None)), "it waited for none of them");
        // What nobody waits for is not looked at.
        drop(slow);
        assert!(begun(&costly).is_ready(Some(Instant::now() + Duration::from_secs(120))));
    }

    /// Masks after guesses come from the same thread, and are the same.
    #[test]
    fn masks_after_guesses_are_made_beside_the_engine() {
        let tokenizer = demo::tokenizer();
        let source = GrammarSource::Gbnf("root ::= [a-z ]*".to_owned());
        let grammar = grammar_cache(&tokenizer).get(&source).unwrap();
        let mut plain = Course::start(Some(&grammar), None).unwrap().unwrap();
        let mut guide = Guide::start(Some(&grammar), None).unwrap().unwrap();
        let (waker, _woken) = woken();
        let tokens =
            tokenizer.encode("once upon a time there was a fox", Specials::AsText).unwrap();
        let mut expected = vec![0; plain.mask_words()];
        for at in 0..tokens.len() - 2 {
            // The last one is wrong.
            guide.begin(&[tokens[at], tokens[at + 1], tokens[at]], &waker);
            assert!(guide.is_ready(Some(Instant::now() + Duration::from_secs(60))));
            plain.allowed(&mut expected).unwrap();
            assert_eq!(allowed(&mut guide, expected.len()), expected);
            plain.accept(tokens[at]).unwrap();
            plain.allowed(&mut expected).unwrap();
            let mut mask = Vec::new();
            assert!(guide.allowed_after(1, expected.len(), &mut mask));
            assert_eq!(mask, expected);
            guide.accept(tokens[at]).unwrap();
            assert!(!guide.allowed_after(1, expected.len(), &mut mask), "a new step has begun");
        }
    }

    /// A budget of thoughts takes no thread: its masks after guesses are made at once.
    #[test]
    fn thoughts_are_limited_after_guesses() {
        let marks = trine_text::ThoughtMarks { open: 1, close: 2 };
        let thoughts = Thoughts { marks, allowed: true, budget: Some(2), is_open: true };
        let mut guide = Guide::start(None, Some(thoughts)).unwrap().unwrap();
        let (waker, _woken) = woken();
        guide.begin(&[40, 41, 2], &waker);
        assert!(guide.is_ready(None));
        let only = |guesses, guide: &mut Guide| {
            let mut mask = Vec::new();
            assert!(guide.allowed_after(guesses, 3, &mut mask));
            (mask.len(), mask == [1 << 2, 0, 0])
        };
        assert_eq!(
            [1, 2, 3].map(|guesses| only(guesses, &mut guide)),
            [(3, false), (3, true), (3, false)]
        );
    }
}
