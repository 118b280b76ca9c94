//! Grammars of tool calls.

use llguidance::api::TopLevelGrammar;
use serde_json::{Map, Value, json};

use super::compiled::Relaxed;
use super::error::GrammarError;
use super::library::{json_grammar, with_options};
use super::marked::LarkWriter;
use super::marks::{CallMarks, Otherwise};
use super::relaxing::{Relaxable, ToolSchemas, of_tool, read_tools};
use super::schema;
use super::source::CallShape;

/// The keys that a call's arguments may have: prompts ask for the first, and models know the
/// second.
pub(crate) const ARGUMENTS: [&str; 2] = ["parameters", "arguments"];

/// Space between the elements of a call: nothing, or a line break, spaces and tabs. It ends, since
/// a model that likes spaces would write nothing else.
const SPACE: &str = "\\r?\\n?[\\x20\\t]{0,16}";

/// Tools that are called in JSON, and also between marks if the vocabulary has them.
pub(super) struct Calls<'a> {
    tools: ToolSchemas<'a>,
    shape: &'a CallShape,
    relaxed: Vec<Relaxed>,
}

impl<'a> Relaxable<'a> for Calls<'a> {
    fn parts(&mut self) -> (&mut ToolSchemas<'a>, &mut Vec<Relaxed>) {
        (&mut self.tools, &mut self.relaxed)
    }

    fn grammar(&self) -> Result<(TopLevelGrammar, Vec<Relaxed>), GrammarError> {
        let answer = match &self.shape.otherwise {
            Otherwise::Json(answer) => Some(self.or_json(schema::digestible(answer)?)),
            Otherwise::Nothing | Otherwise::Text => None,
        };
        let Some(marks) = self.shape.marks else {
            let grammar = answer.map(json_grammar);
            let lark = || TopLevelGrammar::from_lark(self.lark(None));
            return Ok((grammar.unwrap_or_else(lark), Vec::new()));
        };
        let (mut marked, mut notes) = (LarkWriter::new(marks), Vec::new());
        for (index, (name, schema)) in self.tools.iter().enumerate() {
            marked.call(index, name, schema).map_err(|error| of_tool(name, error))?;
            let left_out = marked.take_left_out().into_iter();
            notes.extend(left_out.map(|left_out| Relaxed { tool: (*name).to_owned(), left_out }));
        }
        let head = match answer {
            Some(answer) => {
                let answer = with_options(answer);
                format!("start: answer | {}answer: %json {answer}\n", self.marked())
            }
            None => self.lark(Some(marks)),
        };
        Ok((TopLevelGrammar::from_lark(marked.finish(&head)), notes))
    }

    fn alone(&self, name: &str, schema: &Value) -> Result<TopLevelGrammar, GrammarError> {
        let Some(marks) = self.shape.marks else { return Ok(json_grammar(schema.clone())) };
        let mut marked = LarkWriter::new(marks);
        marked.call(0, name, schema)?;
        let json = with_options(schema.clone());
        let head = format!("start: json | call0\njson: %json {json}\n");
        Ok(TopLevelGrammar::from_lark(marked.finish(&head)))
    }
}

impl<'a> Calls<'a> {
    /// Reads names with schemas as text.
    pub(super) fn read(
        calls: &'a [(String, String)],
        shape: &'a CallShape,
    ) -> Result<Self, GrammarError> {
        let (tools, relaxed) = read_tools(calls);
        Ok(Self { tools, shape, relaxed })
    }

    /// Writes the grammar in Lark, with calls between `marks` if there are some. The beginning of a
    /// call, up to its arguments, is one terminal: text and calls diverge at one place, and other
    /// JSON, even with a tool name, is text.
    fn lark(&self, marks: Option<CallMarks>) -> String {
        let mut lark = String::from("start: one");
        let mut rules = vec![("one", "")];
        let is_list = self.shape.parallel;
        let has_words = self.shape.otherwise == Otherwise::Text;
        if is_list {
            rules.extend([("first", r"\["), ("next", ",")]);
            lark.push_str(if has_words {
                " | first next* (END | REST)"
            } else {
                " | first next* END"
            });
        }
        let words = match marks {
            _ if !has_words => "",
            None => "WORDS?",
            // Models write the mark of strings for a quotation mark.
            Some(_) => "words",
        };
        let mut terminals = String::new();
        if has_words {
            lark.push_str(&format!(" | {words}"));
            let names: Vec<String> = self.tools.iter().map(|(name, _)| escaped(name)).collect();
            // A model that would say `arguments` is made to say `parameters`.
            let [parameters, arguments] = ARGUMENTS;
            let keys = format!("\"({parameters}\"|{arguments})");
            let call = head(&format!("({})", names.join("|"))) + &keys;
            terminals.push_str(&format!("WORDS: /(?s:.+)/ & ~/(?s:(\\[{SPACE})?{call}.*)/\n"));
            if is_list {
                // After the first call a list may hold something else, which is text.
                let goes_on = format!("{SPACE},{SPACE}{call}.*|{SPACE}\\].*");
                terminals.push_str(&format!("REST: /(?s:.+)/ & ~/(?s:{goes_on})/\n"));
            }
        }
        if let Some(CallMarks { quote, .. }) = marks {
            lark.push_str(&format!(" | {words} {}", self.marked()));
            if has_words {
                lark.push_str(&format!("words: (WORDS | <[{quote}]>)*\n"));
            }
        }
        lark.push('\n');
        lark.push_str(&terminals);
        for (rule, before) in rules {
            let names: Vec<String> =
                (0..self.tools.len()).map(|index| format!("{rule}{index}")).collect();
            lark.push_str(&format!("{rule}: {}\n", names.join(" | ")));
            let before = match before {
                "" => String::new(),
                before => format!("{SPACE}{before}{SPACE}"),
            };
            for (index, (name, _)) in self.tools.iter().enumerate() {
                let key = [&format!("\"{}\"", ARGUMENTS[0]), ":", ""].join(SPACE);
                let head = before.clone() + &head(&escaped(name)) + &key;
                lark.push_str(&format!("{rule}{index}: /{head}/ arguments{index} CLOSE\n"));
            }
        }
        lark.push_str(&format!("CLOSE: /{SPACE}\\}}/\n"));
        if is_list {
            lark.push_str(&format!("END: /{SPACE}\\]/\n"));
        }
        for (index, (_, schema)) in self.tools.iter().enumerate() {
            lark.push_str(&format!("arguments{index}: %json {}\n", with_options(schema.clone())));
        }
        lark
    }

    /// Returns the name of the rule of calls between marks, and on further lines the rule. The
    /// rules of the single calls are a [`LarkWriter`]'s.
    fn marked(&self) -> String {
        let several = if self.shape.parallel { "+" } else { "" };
        let names: Vec<String> =
            (0..self.tools.len()).map(|index| format!("call{index}")).collect();
        format!("marked\nmarked: call{several}\ncall: {}\n", names.join(" | "))
    }

    /// Returns a schema that is satisfied by calls and by everything that satisfies the schema
    /// `answer`. All of these begin with the same characters, and within one schema the library
    /// keeps several alternatives open.
    fn or_json(&self, answer: Value) -> Value {
        let mut definitions = Map::new();
        let mut define = |name: String, schema: Value| {
            let place = format!("#/$defs/{name}");
            definitions.insert(name, schema::moved(schema, &place));
            json!({ "$ref": place })
        };
        let mut alternatives = vec![define("answer".to_owned(), answer)];
        for (index, (name, schema)) in self.tools.iter().enumerate() {
            let arguments = define(format!("arguments{index}"), schema.clone());
            alternatives.push(json!({
                "type": "object",
                "properties": {"name": {"const": name}, "parameters": arguments},
                "required": ["name", "parameters"],
                "additionalProperties": false,
            }));
        }
        if self.shape.parallel {
            let calls = json!({ "anyOf": alternatives[1..] });
            alternatives.push(json!({ "type": "array", "items": calls, "minItems": 1 }));
        }
        json!({ "anyOf": alternatives, "$defs": definitions })
    }
}

/// Returns the beginning of a call, up to the key of its arguments, as a regular expression; `name`
/// is one for the tool's name.
fn head(name: &str) -> String {
    [r"\{", r#""name""#, ":", &format!("\"{name}\""), ",", ""].join(SPACE)
}

/// Returns the name of a tool as a regular expression.
fn escaped(name: &str) -> String {
    let plain = |sign: char| sign.is_ascii_alphanumeric() || sign == '_';
    name.chars().flat_map(|sign| (!plain(sign)).then_some('\\').into_iter().chain([sign])).collect()
}
