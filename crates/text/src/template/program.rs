//! Compiles template source to engine instructions, with every operation whose cost depends on its
//! operands routed through [`super::operators`].
//!
//! minijinja limits instructions and recursion, not bytes: `x + x` in a loop doubles a string each
//! time, and constant expressions are evaluated during compilation. Its operators cannot be
//! replaced by configuration, so the compiled instructions are replaced: each becomes the call of a
//! filter that has the same arguments and checks them first. The instruction set is the engine's
//! own (`unstable_machinery`), hence the exact version in the workspace.

use std::collections::BTreeSet;

use minijinja::Error;
use minijinja::machinery::{CodeGenerator, Instruction, Instructions, Token, parse, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;

use super::limits::template_error;
use super::operators as op;
use crate::error::TextError;

/// The longest template source. Published ones have up to 30 KB.
pub const MAX_SOURCE_BYTES: usize = 128 << 10;

/// The longest `{{ }}` or `{% %}`, which bounds the depth of the expression in it.
const MAX_TAG_BYTES: usize = 16 << 10;

/// The most tokens in one tag. The engine looks for constants below every operator of a chain,
/// which takes time quadratic in its length.
const MAX_TAG_TOKENS: u64 = 1_000;

/// The most `elif` branches: each is one level of the engine's recursion.
const MAX_ELIF: usize = 2_000;

/// The most `-` and `not` in a row: the parser counts other nesting itself.
const MAX_SIGNS: u64 = 100;

const NAME: &str = "chat template";

/// Returns the syntax settings of Hugging Face's `apply_chat_template`.
fn syntax() -> Result<SyntaxConfig, Error> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()
}

/// Compiles `source`. Runs on a thread with [`super::STACK_BYTES`] of stack.
pub(crate) fn compile(source: &str) -> Result<Instructions<'_>, TextError> {
    let syntax = syntax().map_err(|error| template_error(&error))?;
    check_source(source, syntax.clone())?;
    let tree = parse(source, NAME, syntax).map_err(|error| template_error(&error))?;
    let mut generator = CodeGenerator::new(NAME, source);
    generator.compile_stmt(&tree);
    let (instructions, blocks) = generator.finish();
    if !blocks.is_empty() {
        return Err(refused(0, "template inheritance is not supported"));
    }
    rewrite(&instructions, source)
}

/// Returns the names that a program looks up: variables, and no attributes or keywords.
pub(crate) fn variables(program: &Instructions<'_>) -> BTreeSet<String> {
    let instructions = (0..).map_while(|index| program.get(index));
    let names = instructions.filter_map(|instruction| match instruction {
        Instruction::Lookup(name) => Some((*name).to_owned()),
        _ => None,
    });
    names.collect()
}

fn refused(line: usize, problem: &str) -> TextError {
    TextError::Template { line, problem: problem.to_owned() }
}

/// Bounds the work of the parser and the constant folder.
fn check_source(source: &str, syntax: SyntaxConfig) -> Result<(), TextError> {
    if source.len() > MAX_SOURCE_BYTES {
        return Err(TextError::TemplateLimit {
            what: "the length of the template in bytes",
            limit: MAX_SOURCE_BYTES as u64,
        });
    }
    let (mut tag, mut elif) = (Tag::default(), 0);
    let (mut before, mut signs) = (Operand::Other, 0);
    for token in tokenize(source, false, syntax) {
        let (token, span) = token.map_err(|error| template_error(&error))?;
        let line = span.start_line as usize;
        match &token {
            Token::VariableStart | Token::BlockStart => {
                tag = Tag { start: span.start_offset as usize, ..Tag::default() };
            }
            Token::Ident("elif") => elif += 1,
            Token::Str(_) | Token::String(_) | Token::BracketOpen | Token::Comma => {
                tag.holds_literal = true;
            }
            _ => {}
        }
        let length = (span.end_offset as usize).saturating_sub(tag.start);
        if !matches!(token, Token::TemplateData(_)) && length > MAX_TAG_BYTES {
            return Err(TextError::TemplateLimit {
                what: "the length of one template tag in bytes",
                limit: MAX_TAG_BYTES as u64,
            });
        }
        signs = if matches!(token, Token::Minus | Token::Ident("not")) { signs + 1 } else { 0 };
        if signs > MAX_SIGNS {
            return Err(TextError::TemplateLimit { what: "signs in a row", limit: MAX_SIGNS });
        }
        tag.tokens += 1;
        if tag.tokens > MAX_TAG_TOKENS {
            let what = "the tokens of one template tag";
            return Err(TextError::TemplateLimit { what, limit: MAX_TAG_TOKENS });
        }
        let operand = Operand::of(&token);
        if tag.after_product
            && !matches!((tag.left, operand), (Operand::Name, _) | (_, Operand::Name))
        {
            tag.literal_product |=
                !matches!((tag.left, operand), (Operand::Number, Operand::Number));
        }
        tag.after_product = matches!(token, Token::Mul);
        if tag.after_product {
            tag.left = before;
        }
        if tag.literal_product && tag.holds_literal {
            return Err(refused(line, "`*` on a literal that is not a number is not supported"));
        }
        before = operand;
    }
    if elif > MAX_ELIF {
        return Err(TextError::TemplateLimit { what: "elif branches", limit: MAX_ELIF as u64 });
    }
    Ok(())
}

/// The facts about the tag that is being read.
struct Tag {
    start: usize,
    tokens: u64,
    /// Whether it contains a string, a list or a tuple.
    holds_literal: bool,
    after_product: bool,
    /// The token before the last `*`.
    left: Operand,
    /// Whether it has a product of two operands that may both be constants and are not both
    /// numbers.
    literal_product: bool,
}

impl Default for Tag {
    fn default() -> Self {
        Self {
            start: 0,
            tokens: 0,
            holds_literal: false,
            after_product: false,
            left: Operand::Other,
            literal_product: false,
        }
    }
}

/// An operand of a `*`.
#[derive(Clone, Copy, PartialEq)]
enum Operand {
    /// A variable, attribute or function: never a constant.
    Name,
    Number,
    Other,
}

impl Operand {
    fn of(token: &Token<'_>) -> Self {
        match token {
            Token::Ident(name) => match *name {
                "true" | "false" | "none" | "True" | "False" | "None" => Self::Other,
                _ => Self::Name,
            },
            Token::Int(_) | Token::Int128(_) | Token::Float(_) => Self::Number,
            _ => Self::Other,
        }
    }
}

/// Returns the instruction that replaces `instruction`, or why none can.
fn replacement<'a>(instruction: &Instruction<'a>) -> Result<Instruction<'a>, &'static str> {
    let call = |name, arguments| Ok(Instruction::ApplyFilter(name, Some(arguments), u8::MAX));
    match instruction {
        Instruction::Add => call(op::ADD, 2),
        Instruction::Mul => call(op::MULTIPLY, 2),
        Instruction::StringConcat => call(op::CONCATENATE, 2),
        Instruction::Eq => call(op::EQUAL, 2),
        Instruction::Ne => call(op::UNEQUAL, 2),
        Instruction::Lt => call(op::LESS, 2),
        Instruction::Lte => call(op::AT_MOST, 2),
        Instruction::Gt => call(op::GREATER, 2),
        Instruction::Gte => call(op::AT_LEAST, 2),
        Instruction::In => call(op::CONTAINED, 2),
        Instruction::Slice => call(op::SLICE, 4),
        Instruction::GetItem => call(op::ITEM, 2),
        Instruction::BuildMap(pairs) => match u16::try_from(pairs * 2) {
            Ok(arguments) => call(op::MAP, arguments),
            Err(_) => Err("a map with too many entries"),
        },
        Instruction::CompareAndPreserve(_) => Err("a chain of comparisons is not supported"),
        Instruction::GetAttr("changed") | Instruction::CallMethod("changed", _) => {
            Err("loop.changed is not supported")
        }
        Instruction::CallBlock(_)
        | Instruction::LoadBlocks
        | Instruction::Include(_)
        | Instruction::ExportLocals
        | Instruction::FastSuper => Err("a template cannot load another one"),
        Instruction::PushAutoEscape | Instruction::PopAutoEscape => {
            Err("autoescape is not supported: a prompt is not a web page")
        }
        other => Ok(other.clone()),
    }
}

/// Returns whether an instruction makes a value that holds others. Some filters give a view of
/// their argument. Arguments by name come before the call that holds them.
fn nests(instruction: &Instruction<'_>) -> bool {
    match instruction {
        Instruction::BuildList(count) | Instruction::BuildTuple(count) => *count != Some(0),
        Instruction::BuildKwargs(count) => *count > 0,
        Instruction::ApplyFilter(..) => true,
        _ => false,
    }
}

/// Returns the number of instructions that one becomes.
fn width(instruction: &Instruction<'_>) -> u32 {
    match instruction {
        Instruction::EmitRaw(_) => 2,
        Instruction::SetAttr(_) => 4,
        other if nests(other) => 2,
        _ => 1,
    }
}

fn rewrite<'a>(
    original: &Instructions<'a>,
    source: &'a str,
) -> Result<Instructions<'a>, TextError> {
    let mut starts = Vec::new();
    let mut next = 0;
    let mut index = 0;
    while let Some(instruction) = original.get(index) {
        starts.push(next);
        next += width(instruction);
        index += 1;
    }
    starts.push(next);
    let jump = |target: u32| starts.get(target as usize).copied().unwrap_or(next);
    let mut program = Instructions::new(NAME, source);
    for index in 0..index {
        let Some(instruction) = original.get(index) else { break };
        let line = original.get_line(index).unwrap_or(0);
        let mut add = |instruction| {
            program.add_with_line(instruction, u16::try_from(line).unwrap_or(u16::MAX));
        };
        match instruction {
            // The template's own text goes through the counting formatter too.
            Instruction::EmitRaw(text) => {
                add(Instruction::LoadConst(Value::from(*text)));
                add(Instruction::Emit);
            }
            // The value lies below the namespace in which it is stored.
            Instruction::SetAttr(name) => {
                add(Instruction::Swap);
                add(Instruction::ApplyFilter(op::STORABLE, Some(1), u8::MAX));
                add(Instruction::Swap);
                add(Instruction::SetAttr(name));
            }
            Instruction::Iterate(to) => add(Instruction::Iterate(jump(*to))),
            Instruction::Jump(to) => add(Instruction::Jump(jump(*to))),
            Instruction::JumpIfFalse(to) => add(Instruction::JumpIfFalse(jump(*to))),
            Instruction::JumpIfFalseOrPop(to) => add(Instruction::JumpIfFalseOrPop(jump(*to))),
            Instruction::JumpIfTrueOrPop(to) => add(Instruction::JumpIfTrueOrPop(jump(*to))),
            Instruction::BuildMacro(name, to, flags) => {
                add(Instruction::BuildMacro(name, jump(*to), *flags));
            }
            other => {
                let made = replacement(other).map_err(|problem| refused(line, problem))?;
                let nested = Instruction::ApplyFilter(op::NESTED, Some(1), u8::MAX);
                match nests(other) {
                    // A filter would take them for its own.
                    true if matches!(other, Instruction::BuildKwargs(_)) => {
                        add(nested);
                        add(made);
                    }
                    true => {
                        add(made);
                        add(nested);
                    }
                    false => add(made),
                }
            }
        }
    }
    Ok(program)
}
