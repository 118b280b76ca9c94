//! Turns of a prompt.

/// How templates begin the model's turn, after its mark.
const MODEL: &str = "model\n";

/// What may stand between turns besides them.
const BETWEEN: [&str; 2] = ["<bos>", "<eos>"];

/// Returns a rendered prompt in which nothing stands between two turns, and which, if it begins an
/// answer, does not end after a turn.
///
/// Some templates close a turn in which the model spoke beside its calls, and write what follows
/// after it, or nothing: a model that goes on there has no speaker. It gets a turn of the model.
/// `open` and `close` are the marks around turns. Texts of users and models are guarded, so that a
/// mark here is the template's.
pub(super) fn mended(prompt: String, [open, close]: [&str; 2], begins_answer: bool) -> String {
    let is_turn = |words: &str| {
        words.starts_with(open) || BETWEEN.iter().any(|other| words.starts_with(other))
    };
    let mut mended = String::new();
    let mut rest = prompt.as_str();
    let mut is_open = false;
    while let Some(end) = rest.find(close).map(|at| at + close.len()) {
        let (turn, after) = rest.split_at(end);
        let words = after.trim_start();
        push_turns(&mut mended, turn, [open, close], is_open);
        rest = after;
        is_open = false;
        if if words.is_empty() { begins_answer } else { !is_turn(words) } {
            let space = &after[..after.len() - words.len()];
            mended.extend([if space.is_empty() { "\n" } else { space }, open, MODEL]);
            rest = words;
            is_open = true;
        }
    }
    push_turns(&mut mended, rest, [open, close], is_open);
    mended
}

/// Appends a stretch with one end of a turn at most, closing each turn in which another begins.
/// With `is_open` the stretch begins in a turn.
fn push_turns(mended: &mut String, stretch: &str, [open, close]: [&str; 2], mut is_open: bool) {
    let mut parts = stretch.split(open);
    mended.extend(parts.next());
    for part in parts {
        if std::mem::replace(&mut is_open, true) {
            mended.extend([close, "\n"]);
        }
        mended.extend([open, part]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKS: [&str; 2] = ["<|turn>", "<turn|>"];

    #[test]
    fn what_follows_a_turn_gets_one() {
        for (prompt, expected) in [
            ("<|turn>user\nA<turn|>\n<|turn>model\n", "<|turn>user\nA<turn|>\n<|turn>model\n"),
            ("<|turn>model\nA<turn|>\n", "<|turn>model\nA<turn|>\n<|turn>model\n"),
            ("<|turn>model\nA<turn|>", "<|turn>model\nA<turn|>\n<|turn>model\n"),
            ("<|turn>model\nA<turn|><eos>", "<|turn>model\nA<turn|><eos>"),
            (
                "<|turn>model\nA<turn|>\n<|channel>thought\n",
                "<|turn>model\nA<turn|>\n<|turn>model\n<|channel>thought\n",
            ),
            (
                "<|turn>model\nA<turn|>\nB<turn|>\n<|turn>user\nC",
                "<|turn>model\nA<turn|>\n<|turn>model\nB<turn|>\n<|turn>user\nC",
            ),
            ("no turns", "no turns"),
            (
                "<bos><|turn>user\nA<turn|>\n<|turn>model\nB<|turn>user\nC<turn|>\n<|turn>model\n",
                "<bos><|turn>user\nA<turn|>\n<|turn>model\nB<turn|>\n<|turn>user\nC<turn|>\n\
                 <|turn>model\n",
            ),
        ] {
            assert_eq!(mended(prompt.to_owned(), MARKS, true), expected);
        }
    }

    #[test]
    fn a_conversation_that_is_only_shown_may_end_after_a_turn() {
        let prompt = "<|turn>model\nA<turn|>\n";
        assert_eq!(mended(prompt.to_owned(), MARKS, false), prompt);
    }
}
