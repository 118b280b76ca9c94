//! What a template does, found by rendering conversations.

use serde_json::{Map, Value, json};

use super::message::Message;

/// Words that stand in no template.
const TOOL: &str = "qxtzj";
const RESULT: &str = "qxrzj";
const WORDS: &str = "qxwzj";
const LATER: &str = "qxlzj";

/// The longest rendering that is looked at, in bytes: what was found is kept.
const MAX_BYTES: usize = 128 << 10;

/// The variable that turns thinking on.
const THINKING: &str = "enable_thinking";

/// Where a template looks for the results of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResultsIn {
    /// In messages of the role `tool` after the calls.
    Messages,
    /// In the field `tool_responses` of the message with the calls.
    Field,
}

/// Renderings of conversations; `None` where the template refuses one.
#[derive(Debug)]
pub(crate) struct Trials {
    /// With a tool, a call and a result, for each way to give it.
    results: [(ResultsIn, Option<String>); 2],
    /// These, with a question after the result, and with an empty answer between.
    later: [(ResultsIn, [Option<String>; 2]); 2],
    thinks: bool,
}

impl Trials {
    /// Tries a template. `render` renders messages with variables.
    pub(super) fn of(render: impl Fn(&[Message], Map<String, Value>) -> Option<String>) -> Self {
        let render = |messages: &[Message], variables| {
            render(messages, variables).filter(|text| text.len() <= MAX_BYTES)
        };
        let results = [ResultsIn::Messages, ResultsIn::Field];
        let tools = json!([{"type": "function", "function": {
            "name": TOOL, "description": "", "parameters": {"type": "object", "properties": {}},
        }}]);
        let variables = || Map::from_iter([("tools".to_owned(), tools.clone())]);
        let tried = |way| (way, render(&conversation(way), variables()));
        let later = |way| {
            let answers: [&[&str]; 2] = [&[], &[""]];
            let asked = answers.map(|answer| {
                let answer = answer.iter().map(|words| Message::new("assistant", *words));
                let question = [Message::new("user", LATER)];
                let messages = conversation(way).into_iter().chain(answer).chain(question);
                render(&messages.collect::<Vec<_>>(), variables())
            });
            (way, asked)
        };
        let thinking = |on: bool| {
            let variables = Map::from_iter([(THINKING.to_owned(), on.into())]);
            render(&[Message::new("user", WORDS)], variables)
        };
        Self {
            results: results.map(tried),
            later: results.map(later),
            thinks: thinking(true) != thinking(false),
        }
    }

    /// Returns where the template looks for results, if it shows tools, and calls and results
    /// between these marks.
    pub(crate) fn results(&self, call: [&str; 2], result: [&str; 2]) -> Option<ResultsIn> {
        let is_shown = |text: &str| {
            let (mut outside, mut has_call, mut has_result) = (String::new(), false, false);
            let mut rest = text;
            // An explanation of the format may have marks, too.
            while let Some((at, [open, close])) = next(rest, [call, result]) {
                let (before, after) = rest.split_at(at);
                let after = &after[open.len()..];
                let Some((inside, after)) = after.split_once(close) else { break };
                outside.push_str(before);
                has_call |= open == call[0] && inside.contains(TOOL);
                has_result |= open == result[0] && inside.contains(TOOL) && inside.contains(RESULT);
                rest = after;
            }
            outside.push_str(rest);
            has_call && has_result && outside.contains(TOOL)
        };
        let mut ways = self.results.iter();
        ways.find_map(|(way, text)| text.as_deref().is_some_and(is_shown).then_some(*way))
    }

    /// Returns whether a question gets a turn, which begins with the mark `turn`, only if an answer
    /// stands between it and the results before it.
    pub(crate) fn wants_answer(&self, way: ResultsIn, turn: &str) -> bool {
        let has_turn = |text: &Option<String>| {
            let words =
                text.as_deref().and_then(|text| text.split_once(RESULT)?.1.split_once(LATER));
            words.is_some_and(|(between, _)| between.contains(turn))
        };
        let mut ways = self.later.iter();
        let found = ways.find_map(|(other, asked)| (*other == way).then_some(asked));
        found.is_some_and(|[at_once, answered]| !has_turn(at_once) && has_turn(answered))
    }

    /// Returns whether the template can be told to have the model think.
    pub(super) fn thinks(&self) -> bool {
        self.thinks
    }
}

/// Returns the place of the first of the opening marks, and its pair.
fn next<'a>(text: &str, pairs: [[&'a str; 2]; 2]) -> Option<(usize, [&'a str; 2])> {
    let places = pairs.into_iter().filter_map(|pair| Some((text.find(pair[0])?, pair)));
    places.min_by_key(|(at, _)| *at)
}

/// Returns a question, a call and its result.
fn conversation(results: ResultsIn) -> Vec<Message> {
    let fields = |value: Value| value.as_object().cloned().unwrap_or_default();
    let function = json!({"name": TOOL, "arguments": {}});
    let call = json!({"id": "1", "type": "function", "function": function});
    let mut made = Message::new("assistant", "");
    made.extra = fields(json!({ "tool_calls": [call] }));
    let mut messages = vec![Message::new("user", WORDS), made];
    match results {
        ResultsIn::Messages => {
            let mut result = Message::new("tool", RESULT);
            result.extra = fields(json!({"tool_call_id": "1", "name": TOOL}));
            messages.push(result);
        }
        ResultsIn::Field => {
            let responses = json!([{"name": TOOL, "response": RESULT}]);
            messages[1].extra.insert("tool_responses".to_owned(), responses);
        }
    }
    messages
}
