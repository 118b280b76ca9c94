//! What a reply may say, between the text that knows and the engine that asks.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use trine_engine::{Constraint, Waker};
use trine_text::{Course, Grammar, GrammarError, Thoughts};

/// A grammar, and limits on thoughts, that guide one reply.
///
/// Masks are computed on threads beside the engine's, while the device runs a step.
#[derive(Debug)]
pub struct Guide(State);

/// Where a reply's course is.
#[derive(Debug)]
enum State {
    /// Here. The mask is computed when it is asked for.
    Here(Course),
    /// On another thread.
    Away(Receiver<Made>),
    /// Back with its next mask.
    Back(Made),
    /// Lost with its thread.
    Lost,
}

/// A course with its next mask, or why there is none.
#[derive(Debug)]
struct Made {
    course: Course,
    mask: Result<Vec<u32>, String>,
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
        Ok(Course::start(grammar, thoughts)?.map(|course| Self(State::Here(course))))
    }

    /// Waits for the course if it is away.
    fn wait(&mut self) {
        if let State::Away(receiver) = &self.0 {
            self.0 = receiver.recv().map_or(State::Lost, State::Back);
        }
    }

    fn course(&mut self) -> Option<&mut Course> {
        self.wait();
        match &mut self.0 {
            State::Here(course) | State::Back(Made { course, .. }) => Some(course),
            State::Away(_) | State::Lost => None,
        }
    }
}

impl Constraint for Guide {
    fn allowed(&mut self, mask: &mut [u32]) -> Result<(), String> {
        self.wait();
        match &mut self.0 {
            State::Here(course) => course.allowed(mask).map_err(|error| error.to_string()),
            State::Back(Made { mask: made, .. }) => {
                let made = made.as_ref().map_err(Clone::clone)?;
                let words = mask.get_mut(..made.len());
                words.map(|words| words.copy_from_slice(made)).ok_or_else(|| LOST.to_owned())
            }
            State::Away(_) | State::Lost => Err(LOST.to_owned()),
        }
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        self.wait();
        let state = std::mem::replace(&mut self.0, State::Lost);
        let mut course = match state {
            State::Here(course) | State::Back(Made { course, .. }) => course,
            State::Away(_) | State::Lost => return Err(LOST.to_owned()),
        };
        let accepted = course.accept(token).map_err(|error| error.to_string());
        self.0 = State::Here(course);
        accepted
    }

    fn begin(&mut self, waker: &Waker) {
        let state = std::mem::replace(&mut self.0, State::Lost);
        self.0 = match state {
            // Limits on thoughts cost nothing.
            State::Here(course) if course.mask_words() > 0 => {
                State::Away(BESIDE.send(course, Arc::clone(waker)))
            }
            other => other,
        };
    }

    fn is_ready(&mut self, until: Option<Instant>) -> bool {
        if let State::Away(receiver) = &self.0 {
            let patience =
                until.map_or(Duration::ZERO, |until| until.duration_since(Instant::now()));
            self.0 = match receiver.recv_timeout(patience) {
                Ok(made) => State::Back(made),
                Err(RecvTimeoutError::Timeout) => return false,
                Err(RecvTimeoutError::Disconnected) => State::Lost,
            };
        }
        true
    }

    fn is_costly(&self) -> bool {
        matches!(&self.0, State::Here(course) if course.is_costly())
    }

    fn follow(&mut self, guesses: &[u32]) -> usize {
        // After a guess the next mask would be computed on the engine's thread.
        match self.course() {
            Some(course) if !course.is_costly() => course.follow(guesses),
            _ => 0,
        }
    }
}

/// The threads that compute masks beside the engines of this process. A quarter of the processors
/// may do that: devices need the others.
static BESIDE: LazyLock<Beside> = LazyLock::new(|| {
    Beside::new(std::thread::available_parallelism().map_or(1, |count| count.get() / 4).max(1))
});

/// Threads that take courses in the order in which they come.
struct Beside(Sender<Job>);

struct Job {
    course: Course,
    made: Sender<Made>,
    waker: Waker,
}

impl Beside {
    fn new(threads: usize) -> Self {
        let (sender, receiver) = channel::<Job>();
        let receiver = Arc::new(Mutex::new(receiver));
        for _ in 0..threads {
            let receiver = Arc::clone(&receiver);
            let work = move || {
                loop {
                    let job = receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(job) = job else { return };
                    job.run();
                }
            };
            // Without a thread, courses come back as lost, and their replies end.
            if let Err(error) = std::thread::Builder::new().name("masks".to_owned()).spawn(work) {
                tracing::error!(%error, "no thread for masks");
            }
        }
        Self(sender)
    }

    fn send(&self, course: Course, waker: Waker) -> Receiver<Made> {
        let (made, receiver) = channel();
        // If it cannot be sent, `made` is dropped with it, which the receiver notices.
        let _ = self.0.send(Job { course, made, waker });
        receiver
    }
}

impl Job {
    fn run(self) {
        let Self { mut course, made, waker } = self;
        let mut mask = vec![0; course.mask_words()];
        let outcome = course.allowed(&mut mask).map_err(|error| error.to_string());
        // If nobody waits, the reply has ended.
        let _ = made.send(Made { course, mask: outcome.map(|()| mask) });
        waker();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use trine_text::{GrammarSource, Specials};

    use super::*;
    use crate::models::testing::demo;
    use crate::structure::grammar_cache;

    /// Masks of a grammar that costs more with each token come from another thread, and are the
    /// same.
    #[test]
    fn costly_masks_are_made_beside_the_engine() {
        let tokenizer = demo::tokenizer();
        let source = "root ::= s\ns ::= [a-z ] s [a-z ] | s s | [a-z ]".to_owned();
        let grammar = grammar_cache(&tokenizer).get(&GrammarSource::Gbnf(source)).unwrap();
        let mut plain = Course::start(Some(&grammar), None).unwrap().unwrap();
        let mut guide = Guide::start(Some(&grammar), None).unwrap().unwrap();
        let (sender, woken) = channel();
        let waker: Waker = Arc::new(move || sender.send(()).unwrap());
        let words =
            tokenizer.encode("once upon a time there was a fox ", Specials::AsText).unwrap();
        let (mut expected, mut mask) = (vec![0; plain.mask_words()], vec![0; plain.mask_words()]);
        let mut away = 0;
        for &token in words.iter().cycle().take(30) {
            if matches!(&guide.0, State::Here(course) if course.is_costly()) {
                away += 1;
                // Wakes of earlier masks may be left.
                guide.begin(&waker);
                while !guide.is_ready(None) {
                    woken.recv().unwrap();
                }
                assert!(matches!(guide.0, State::Back(_)));
                assert_eq!(guide.follow(&[token]), 0, "nothing is guessed while masks are costly");
            }
            plain.allowed(&mut expected).unwrap();
            guide.allowed(&mut mask).unwrap();
            assert_eq!(mask, expected);
            plain.accept(token).unwrap();
            guide.accept(token).unwrap();
        }
        assert!((1..30).contains(&away), "{away} masks came from another thread");
        // Of the first mask a grammar knows, since it was made once.
        let rules =
            (0..300).map(|index| format!("r{index} ::= [a-z] \"{index}\" r{index} [a-z]? | \"x\""));
        let names: Vec<String> = (0..300).map(|index| format!("r{index}")).collect();
        let source =
            format!("root ::= {}\n{}", names.join(" | "), rules.collect::<Vec<_>>().join("\n"));
        let grammar = grammar_cache(&tokenizer).get(&GrammarSource::Gbnf(source)).unwrap();
        assert!(Course::start(Some(&grammar), None).unwrap().unwrap().is_costly());
    }
}
