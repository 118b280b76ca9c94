//! Compiles a source to a grammar over a tokenizer's vocabulary.

use std::sync::{Arc, Mutex, OnceLock};

use llguidance::ParserFactory;
use llguidance::api::{ParserLimits, TopLevelGrammar};
use serde_json::json;
use toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};

use super::budget::Budget;
use super::calls::Calls;
use super::compiled::{Grammar, Relaxed, Start};
use super::error::GrammarError;
use super::library::{first_line, guarded, is_of_work, json_grammar, lark_string, regex_problem};
use super::marked::MarkedCalls;
use super::marks::Otherwise;
use super::matcher::Tables;
use super::numbers::Numbers;
use super::relaxing::Relaxable;
use super::source::{
    GrammarSource, MAX_CHOICE_BYTES, MAX_CHOICES, MAX_GRAMMAR_BYTES, MAX_SCHEMA_BYTES,
};
use super::{gbnf, lark, schema};
use crate::kind::Kind;
use crate::tokenizer::Tokenizer;
use crate::vocabulary::shortened;

/// The stack of a compiling thread; only touched pages take memory. The library recurses once for
/// each rule or reference of a chain, and [`MAX_SCHEMA_BYTES`] have room for some thousands.
const STACK_BYTES: usize = 256 << 20;

/// The largest total length of all tokens in bytes. Gemma's have 2 MB.
const MAX_TOKEN_BYTES: usize = 32 << 20;

/// The longest token in bytes: the library's trie is at most 1024 nodes deep, including its root
/// and a mark.
const MAX_TRIE_DEPTH: usize = 1022;

/// The number of states of one matcher's lexer, of 1 to 2 kB each.
const MAX_LEXER_STATES: usize = 32_768;

/// The number of alternatives that a matcher follows at one place: with a list of calls each of
/// [`MAX_TOOLS`](crate::MAX_TOOLS) begins two.
const MAX_ITEMS: usize = 4096;

/// The memory of a compiled grammar, and of its source in a cache, for each byte of the source, in
/// addition to the lexer's states.
const BYTES_PER_SOURCE_BYTE: usize = 64;

/// Compiles grammars for one tokenizer. The trie of its tokens is built when the first grammar is
/// compiled.
#[derive(Clone)]
pub struct GrammarCompiler {
    tokenizer: Arc<Tokenizer>,
    base: Arc<OnceLock<Result<Base, GrammarError>>>,
}

/// The state that all grammars of a tokenizer share.
struct Base {
    factory: ParserFactory,
    tables: Arc<Tables>,
}

impl std::fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GrammarCompiler")
            .field("tokenizer", &self.tokenizer)
            .finish_non_exhaustive()
    }
}

impl GrammarCompiler {
    /// Makes a compiler for `tokenizer`, whose end tokens ([`Tokenizer::eos_ids`]) must be
    /// complete. Costs nothing yet.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self { tokenizer, base: Arc::default() }
    }

    /// Builds the trie of the tokenizer's tokens, which the first [`GrammarCompiler::compile`]
    /// would do otherwise. For a server that prefers to wait when it starts.
    ///
    /// # Errors
    /// [`GrammarError::Tokenizer`].
    pub fn prepare(&self) -> Result<(), GrammarError> {
        self.base().map(drop)
    }

    /// Compiles a source.
    ///
    /// # Errors
    /// [`GrammarError::Invalid`] and [`GrammarError::TooLarge`] are the source's fault,
    /// [`GrammarError::Tokenizer`] is the model's. [`GrammarError::Failed`] means that no thread
    /// could be started.
    pub fn compile(&self, source: &GrammarSource) -> Result<Grammar, GrammarError> {
        check_size(source)?;
        let base = self.base()?;
        std::thread::scope(|scope| {
            std::thread::Builder::new()
                .name("grammar".to_owned())
                .stack_size(STACK_BYTES)
                .spawn_scoped(scope, || compile(base, source))
                .map_err(|error| {
                    GrammarError::Failed(format!("no thread to compile it on: {error}"))
                })?
                .join()
                .unwrap_or_else(|_| Err(too_complex(source.kind())))
        })
    }

    fn base(&self) -> Result<&Base, GrammarError> {
        let built = self
            .base
            .get_or_init(|| guarded(|| build_base(&self.tokenizer)).map_err(as_tokenizer_error));
        built.as_ref().map_err(Clone::clone)
    }
}

fn as_tokenizer_error(error: GrammarError) -> GrammarError {
    match error {
        GrammarError::Failed(problem) => GrammarError::Tokenizer(problem),
        other => other,
    }
}

fn build_base(tokenizer: &Arc<Tokenizer>) -> Result<Base, GrammarError> {
    let vocabulary = tokenizer.vocabulary_size();
    let ends = tokenizer.eos_ids().to_vec();
    let Some(&end) = ends.first() else {
        return Err(GrammarError::Tokenizer("it has no token that ends a reply".to_owned()));
    };
    let mut text = vec![0_u32; vocabulary.div_ceil(32)];
    let mut words = vec![Vec::new(); vocabulary];
    let mut digits = Vec::new();
    let mut total = 0;
    for (id, word) in (0..).zip(&mut words) {
        let Some(bytes) = tokenizer.token_bytes(id) else { continue };
        total += bytes.len() + 1;
        if bytes.len() > MAX_TRIE_DEPTH || total > MAX_TOKEN_BYTES {
            return Err(GrammarError::Tokenizer("its tokens are too long".to_owned()));
        }
        let control = tokenizer.is_special(id)
            || tokenizer.kinds[id as usize] == Kind::Unknown
            || ends.contains(&id);
        if control {
            word.push(TokTrie::SPECIAL_TOKEN_MARKER);
        } else if !bytes.is_empty() {
            text[id as usize / 32] |= 1 << (id % 32);
            digits.extend(bytes.iter().any(u8::is_ascii_digit).then_some(id));
        }
        word.extend_from_slice(&bytes);
    }
    let size = u32::try_from(vocabulary)
        .map_err(|_| GrammarError::Tokenizer("it has too many tokens".to_owned()))?;
    let trie = TokTrie::from(&TokRxInfo::new(size, end), &words).with_eos_tokens(&ends);
    drop(words);
    // Not called canonical, which keeps the library from spelling out the text that a grammar
    // forces: an expression of 20 characters forces a million, at a cost that no limit bounds.
    let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let capabilities = InferenceCapabilities::default();
    let slices = llguidance::earley::SlicedBiasComputer::json_slices();
    let mut factory = ParserFactory::new(&environment, capabilities, &slices)
        .map_err(|error| GrammarError::Tokenizer(first_line(&error.to_string())))?;
    factory.quiet();
    *factory.limits_mut() = ParserLimits {
        max_lexer_states: MAX_LEXER_STATES,
        max_items_in_row: MAX_ITEMS,
        verbose_errors: false,
        ..ParserLimits::default()
    };
    let tables = Tables { plain: text.clone(), text, ends, digits: digits.into() };
    Ok(Base { factory, tables: Arc::new(tables) })
}

fn source_bytes(source: &GrammarSource) -> usize {
    match source {
        GrammarSource::JsonObject => 0,
        GrammarSource::JsonSchema(text)
        | GrammarSource::Regex(text)
        | GrammarSource::Lark(text)
        | GrammarSource::Gbnf(text) => text.len(),
        GrammarSource::Choice(choices) => choices.iter().map(String::len).sum(),
        GrammarSource::Calls { calls, shape } => calls_bytes(calls, &shape.otherwise),
        GrammarSource::MarkedCalls { calls, shape } => calls_bytes(calls, &shape.otherwise),
    }
}

fn calls_bytes(calls: &[(String, String)], otherwise: &Otherwise) -> usize {
    let answer = match otherwise {
        Otherwise::Json(schema) => schema.len(),
        Otherwise::Nothing | Otherwise::Text => 0,
    };
    calls.iter().map(|(name, schema)| name.len() + schema.len()).sum::<usize>() + answer
}

fn check_size(source: &GrammarSource) -> Result<(), GrammarError> {
    let limit = match source {
        GrammarSource::JsonSchema(_)
        | GrammarSource::Calls { .. }
        | GrammarSource::MarkedCalls { .. } => MAX_SCHEMA_BYTES,
        GrammarSource::Choice(_) => MAX_CHOICE_BYTES,
        _ => MAX_GRAMMAR_BYTES,
    };
    if let GrammarSource::Choice(choices) = source
        && choices.len() > MAX_CHOICES
    {
        return Err(GrammarError::too_large(
            source.kind(),
            "the number of choices",
            MAX_CHOICES as u64,
        ));
    }
    if source_bytes(source) > limit {
        return Err(GrammarError::too_large(source.kind(), "its length in bytes", limit as u64));
    }
    Ok(())
}

fn compile(base: &Base, source: &GrammarSource) -> Result<Grammar, GrammarError> {
    let kind = source.kind();
    let mut numbers = None;
    let grammar = match source {
        GrammarSource::JsonObject => {
            numbers = Some(Numbers::of_json(0));
            json_grammar(json!({"type": "object"}))
        }
        GrammarSource::JsonSchema(text) => {
            let schema = schema::digestible(text)?;
            numbers = Some(Numbers::of_json(schema::digits_named(&schema)));
            json_grammar(schema)
        }
        GrammarSource::Regex(text) => {
            check_regex(text)?;
            TopLevelGrammar::from_regex(text)
        }
        GrammarSource::Lark(text) => {
            lark::check(text)?;
            TopLevelGrammar::from_lark(text.clone())
        }
        GrammarSource::Gbnf(text) => TopLevelGrammar::from_lark(gbnf::to_lark(text)?),
        GrammarSource::Choice(choices) => TopLevelGrammar::from_lark(choices_to_lark(choices)?),
        GrammarSource::Calls { calls, shape } => {
            let tables = match shape.marks {
                Some(marks) => Arc::new(base.tables.with_marks(marks)?),
                None => Arc::clone(&base.tables),
            };
            let named = digits_named(calls, &shape.otherwise);
            let is_words = shape.otherwise == Otherwise::Text;
            let numbers = Some(Numbers::of_calls(named, shape.marks, is_words));
            let calls = Calls::read(calls, shape)?;
            let (start, relaxed) = calls.compile(|grammar| base.start(grammar, kind))?;
            let grammar = base.grammar(start, source, relaxed);
            return Ok(Grammar { tables, marks: shape.marks, numbers, ..grammar });
        }
        GrammarSource::MarkedCalls { calls, shape } => {
            let tables = base.tables.with_marks(shape.marks)?;
            let named = digits_named(calls, &shape.otherwise);
            let numbers = Some(Numbers::of_calls(named, Some(shape.marks), false));
            let calls = MarkedCalls::read(calls, shape)?;
            let (start, relaxed) = calls.compile(|grammar| base.start(grammar, kind))?;
            let grammar = base.grammar(start, source, relaxed);
            let (marks, is_lazy) = (Some(shape.marks), shape.is_lazy());
            return Ok(Grammar { tables: Arc::new(tables), marks, is_lazy, numbers, ..grammar });
        }
    };
    Ok(Grammar { numbers, ..base.grammar(base.start(grammar, kind)?, source, Vec::new()) })
}

/// Returns the most digits of a number that the schemas of calls name, or that of an answer.
fn digits_named(calls: &[(String, String)], otherwise: &Otherwise) -> usize {
    let answer = match otherwise {
        Otherwise::Json(schema) => Some(schema),
        Otherwise::Nothing | Otherwise::Text => None,
    };
    let sources = calls.iter().map(|(_, schema)| schema).chain(answer);
    // A source that cannot be read is refused later.
    let named = sources.filter_map(|source| serde_json::from_str(source).ok());
    named.map(|schema| schema::digits_named(&schema)).max().unwrap_or_default()
}

impl Base {
    /// Returns the start of replies, and the bytes of its lexer.
    fn start(
        &self,
        grammar: TopLevelGrammar,
        kind: &'static str,
    ) -> Result<(Start, usize), GrammarError> {
        let parser = self.factory.create_parser(grammar);
        let parser = parser.map_err(|error| refusal(kind, &error.to_string()))?;
        let states = parser.parser.lexer_stats().num_bytes;
        let mut start = llguidance::Matcher::new(Ok(parser));
        if let Some(problem) = start.get_error() {
            return Err(refusal(kind, &problem));
        }
        let is_open = start.is_accepting().map_err(|error| refusal(kind, &error.to_string()))?;
        // A grammar that allows no text at all, or of which one mask is too much work, would fail
        // at the first token of a reply.
        let mut probe = start.deep_clone();
        if let Err(error) = probe.compute_mask() {
            if is_of_work(&error.to_string()) {
                return Err(GrammarError::TooMuchWork { kind });
            }
            if !is_open {
                return Err(GrammarError::invalid(
                    kind,
                    "as a whole",
                    "no text satisfies it; remove what contradicts itself",
                ));
            }
        }
        let budget = probe.last_step_stats().map(Budget::expecting).unwrap_or_default();
        Ok((Start { state: start, budget }, states))
    }

    fn grammar(
        &self,
        (start, states): (Start, usize),
        source: &GrammarSource,
        relaxed: Vec<Relaxed>,
    ) -> Grammar {
        // Choices may be empty, and an empty one takes memory too.
        let choices = match source {
            GrammarSource::Choice(choices) => size_of_val(choices.as_slice()),
            _ => 0,
        };
        let bytes = states + source_bytes(source) * BYTES_PER_SOURCE_BYTE + choices;
        Grammar {
            start: Mutex::new(start),
            tables: self.tables.clone(),
            bytes,
            relaxed,
            marks: None,
            is_lazy: false,
            numbers: None,
        }
    }
}

fn check_regex(text: &str) -> Result<(), GrammarError> {
    let kind = "regular expression";
    if text.is_empty() {
        return Err(GrammarError::invalid(
            kind,
            "as a whole",
            "it is empty; write what the reply may be",
        ));
    }
    match regex_problem(text) {
        Some((character, problem)) => {
            Err(GrammarError::invalid(kind, format!("character {character}"), problem))
        }
        None => Ok(()),
    }
}

fn choices_to_lark(choices: &[String]) -> Result<String, GrammarError> {
    if choices.is_empty() {
        return Err(GrammarError::invalid(
            "list of choices",
            "as a whole",
            "it is empty; give at least one",
        ));
    }
    let spelled: Vec<String> = choices.iter().map(|choice| lark_string(choice)).collect();
    Ok(format!("start: CHOICE\nCHOICE: {}\n", spelled.join(" | ")))
}

/// Returns the library's refusal of a source in this crate's terms.
fn refusal(kind: &'static str, message: &str) -> GrammarError {
    if is_of_work(message) {
        return GrammarError::TooMuchWork { kind };
    }
    if message.starts_with("panic") || message.contains("too big") || message.contains("too large")
    {
        return too_complex(kind);
    }
    let (place, problem) = match message.strip_prefix("at ").and_then(|rest| rest.split_once("): "))
    {
        Some((place, problem)) => match place.split_once('(') {
            Some((line, column)) => (format!("line {line}, column {column}"), problem),
            None => (place.to_owned(), problem),
        },
        None => ("as a whole".to_owned(), message),
    };
    GrammarError::invalid(kind, shortened(&place), first_line(problem))
}

fn too_complex(kind: &'static str) -> GrammarError {
    GrammarError::too_large(
        kind,
        "what it expands to",
        ParserLimits::default().max_grammar_size as u64,
    )
}
