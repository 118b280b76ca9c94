//! What `trine run` says of an answer: why it ended, and what it took.

use trine_engine::Statistics;
use trine_session::npu::Done;
use trine_session::session::Session;

use crate::chat::generate::Answer;
use crate::chat::notes::ending_note;
use crate::{terminal, terminal::output};

/// Prints why an answer ended early, if it did. On a terminal it also prints one line about speed,
/// with `-v` more.
pub(super) fn tell_end(session: &Session, answer: &Answer, verbose: bool, is_chat: bool) {
    if let Some(note) = ending_note(answer.ending, session, is_chat) {
        output::note(&note);
    }
    if verbose {
        output::note(&details(session, &answer.statistics));
        if let Some(npu) = &session.npu {
            output::note(&Done::by(npu.as_ref()).to_string());
        }
    } else if terminal::stderr_is_terminal()
        && let Some(summary) = summary(&answer.statistics)
    {
        output::note(&summary);
    }
}

/// Formats the time and speed of an answer in short; `None` if nothing was written.
fn summary(statistics: &Statistics) -> Option<String> {
    let first = statistics.first_token_seconds?;
    let tokens = statistics.generated_tokens;
    let all = first + statistics.decode_seconds;
    let speed = statistics
        .decode_rate()
        .map_or(String::new(), |rate| format!(", {} tokens/s", output::rate(rate)));
    let noun = if tokens == 1 { "token" } else { "tokens" };
    let [all, first] = [all, first].map(|seconds| match seconds {
        short if short < 0.1 => output::seconds(short),
        long => format!("{long:.1} s"),
    });
    Some(format!("{tokens} {noun} in {all}{speed}; first after {first}"))
}

/// Formats the time and speed of an answer in full.
fn details(session: &Session, statistics: &Statistics) -> String {
    let per_second = |rate: Option<f64>| {
        rate.map_or(String::new(), |rate| format!(", {} tok/s", output::rate(rate)))
    };
    let reused = match statistics.reused_tokens {
        0 => String::new(),
        reused => format!(" ({reused} kept from before)"),
    };
    let first = statistics.first_token_seconds.map_or("-".to_owned(), output::seconds);
    let moved = bandwidth(session, statistics)
        .map_or(String::new(), |rate| format!(" ({} GB/s)", output::rate(rate / 1e9)));
    let guesses = match statistics.drafted_tokens {
        0 => String::new(),
        drafted => format!(
            " | guesses: {} of {drafted} right, {} tokens a step",
            statistics.accepted_tokens,
            output::rate(statistics.tokens_per_step().unwrap_or(1.0)),
        ),
    };
    let pictures = match statistics.pictures {
        0 => String::new(),
        count => format!(
            " ({} read in {})",
            output::counted(count, "image"),
            output::seconds(statistics.tower_seconds)
        ),
    };
    format!(
        "prompt: {}{pictures}{reused}{} | generated: {}{}{moved}{guesses} | first token after \
         {first}",
        output::counted(statistics.prompt_tokens, "token"),
        per_second(statistics.prefill_rate()),
        output::counted(statistics.generated_tokens, "token"),
        per_second(statistics.decode_rate()),
    )
}

/// Returns the bytes per second that the steps after the first token took from memory, computed
/// from the Plan's cost half-way through them.
pub(super) fn bandwidth(session: &Session, statistics: &Statistics) -> Option<f64> {
    let middle = statistics.prompt_tokens + statistics.generated_tokens / 2;
    let steps = statistics.decode_rate()? / statistics.tokens_per_step()?;
    Some(session.bytes_per_step(middle, rows_per_step(statistics)) as f64 * steps)
}

/// Returns the rows of a usual step after the first token: its token, and the guesses that it
/// verifies. More rows read more experts.
fn rows_per_step(statistics: &Statistics) -> usize {
    let guesses = statistics.drafted_tokens as f64 / statistics.decode_steps.max(1) as f64;
    1 + guesses.round() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_answer_took() {
        let mut statistics = Statistics {
            generated_tokens: 12,
            decode_steps: 11,
            decode_tokens: 11,
            decode_seconds: 0.9,
            first_token_seconds: Some(0.4),
            ..Statistics::default()
        };
        assert_eq!(
            summary(&statistics).unwrap(),
            "12 tokens in 1.3 s, 12.2 tokens/s; first after 0.4 s"
        );
        statistics.generated_tokens = 1;
        (statistics.decode_tokens, statistics.decode_seconds) = (0, 0.0);
        assert_eq!(summary(&statistics).unwrap(), "1 token in 0.4 s; first after 0.4 s");
        statistics.first_token_seconds = Some(0.031);
        assert_eq!(summary(&statistics).unwrap(), "1 token in 31 ms; first after 31 ms");
        assert_eq!(summary(&Statistics::default()), None);
    }

    #[test]
    fn a_step_has_rows_for_its_guesses() {
        let rows = |decode_steps, drafted_tokens| {
            rows_per_step(&Statistics { decode_steps, drafted_tokens, ..Statistics::default() })
        };
        assert_eq!([rows(0, 0), rows(10, 0), rows(10, 26), rows(10, 40)], [1, 1, 4, 5]);
    }
}
