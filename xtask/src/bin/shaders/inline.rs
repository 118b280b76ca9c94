//! Puts the bodies of functions where they are called, until the entry point is the only function.
//!
//! Drivers inline by limits of their own. NVIDIA's (580) keeps every array of an invocation in
//! memory as soon as a function that uses one remains or is inlined after its loops were looked at,
//! which makes attention of one row twice as slow.

use std::collections::{HashMap, HashSet};

use anyhow::{Context, anyhow, bail};
use rspirv::binary::{Assemble, Consumer, ParseAction};
use rspirv::dr::{Instruction, ModuleHeader, Operand};
use rspirv::spirv::{Op, Word};

/// A function: its parameters, and what stands between its first label and its end, both included.
#[derive(Clone, Default)]
struct Function {
    opening: Vec<Instruction>,
    parameters: Vec<Word>,
    body: Vec<Instruction>,
}

/// A module as its instructions; functions by the id of their definition.
#[derive(Default)]
struct Module {
    header: Option<ModuleHeader>,
    declarations: Vec<Instruction>,
    functions: HashMap<Word, Function>,
    /// The function that is being read.
    current: Option<Word>,
}

impl Consumer for Module {
    fn initialize(&mut self) -> ParseAction {
        ParseAction::Continue
    }

    fn finalize(&mut self) -> ParseAction {
        ParseAction::Continue
    }

    fn consume_header(&mut self, header: ModuleHeader) -> ParseAction {
        self.header = Some(header);
        ParseAction::Continue
    }

    fn consume_instruction(&mut self, instruction: Instruction) -> ParseAction {
        let opcode = instruction.class.opcode;
        if opcode == Op::Function {
            self.current = instruction.result_id;
        }
        let Some(id) = self.current else {
            self.declarations.push(instruction);
            return ParseAction::Continue;
        };
        let function = self.functions.entry(id).or_default();
        match opcode {
            Op::Function => function.opening.push(instruction),
            Op::FunctionParameter => {
                function.parameters.extend(instruction.result_id);
                function.opening.push(instruction);
            }
            Op::FunctionEnd => self.current = None,
            // Lines belong to no instruction that stays where it is.
            Op::Line | Op::NoLine => {}
            _ => function.body.push(instruction),
        }
        ParseAction::Continue
    }
}

/// The module with its entry point as the only function.
///
/// # Errors
/// If a function that is called returns anywhere but at its end, or has what only debuggers need.
pub(crate) fn inline(words: &[u32]) -> anyhow::Result<Vec<u32>> {
    let mut module = Module::default();
    rspirv::binary::parse_words(words, &mut module)
        .map_err(|error| anyhow!("the compiler's result is not SPIR-V: {error}"))?;
    let header = module.header.take().context("a module without a header")?;
    let entry = module.declarations.iter().find(|i| i.class.opcode == Op::EntryPoint);
    let entry = entry.and_then(|instruction| id(instruction.operands.get(1)?));
    let entry = entry.context("a module without an entry point")?;
    let mut work = Work {
        names: names(&module),
        module,
        done: HashMap::new(),
        bound: header.bound,
        origins: Vec::new(),
    };
    let function = work.inlined(entry)?;
    Ok(work.assemble(header, &function))
}

/// Names of functions, for messages.
fn names(module: &Module) -> HashMap<Word, String> {
    let named = module.declarations.iter().filter(|i| i.class.opcode == Op::Name);
    let pair = |instruction: &Instruction| match &instruction.operands[..] {
        [Operand::IdRef(id), Operand::LiteralString(name)] => Some((*id, name.clone())),
        _ => None,
    };
    named.filter_map(pair).collect()
}

fn id(operand: &Operand) -> Option<Word> {
    match operand {
        Operand::IdRef(id) | Operand::IdScope(id) | Operand::IdMemorySemantics(id) => Some(*id),
        _ => None,
    }
}

/// Replaces what an instruction refers to and what it defines.
fn rename(instruction: &mut Instruction, of: impl Fn(Word) -> Word) {
    if let Some(id) = &mut instruction.result_id {
        *id = of(*id);
    }
    refer(instruction, of);
}

/// Replaces what an instruction refers to.
fn refer(instruction: &mut Instruction, of: impl Fn(Word) -> Word) {
    for operand in &mut instruction.operands {
        if let Operand::IdRef(id) | Operand::IdScope(id) | Operand::IdMemorySemantics(id) = operand
        {
            *id = of(*id);
        }
    }
}

struct Work {
    module: Module,
    names: HashMap<Word, String>,
    done: HashMap<Word, Function>,
    bound: Word,
    /// (id of a copy, id that it is a copy of), in the order in which they were made.
    origins: Vec<(Word, Word)>,
}

/// A function that is being put together.
#[derive(Default)]
struct Target {
    body: Vec<Instruction>,
    variables: Vec<Instruction>,
    /// What stands for the result of a call.
    results: HashMap<Word, Word>,
    /// The block that a block of the source ends in, and where instructions stand that mean the
    /// end.
    ends: HashMap<Word, Word>,
    joins: HashSet<usize>,
}

impl Work {
    /// A function without calls.
    fn inlined(&mut self, id: Word) -> anyhow::Result<Function> {
        if let Some(done) = self.done.get(&id) {
            return Ok(done.clone());
        }
        let mut function = self.module.functions.get(&id).context("a call of no function")?.clone();
        let mut target = Target::default();
        let (mut block, mut end) = (0, 0);
        for instruction in std::mem::take(&mut function.body) {
            match instruction.class.opcode {
                Op::Label => {
                    block = instruction.result_id.context("a label without an id")?;
                    end = block;
                    target.body.push(instruction);
                }
                Op::Variable => target.variables.push(instruction),
                Op::FunctionCall => {
                    end = self.call(&instruction, end, &mut target)?;
                    target.ends.insert(block, end);
                }
                // A header of a loop has to stay one block.
                Op::LoopMerge if end != block => bail!("a call in the head of a loop"),
                opcode => {
                    if opcode == Op::Phi {
                        target.joins.insert(target.body.len());
                    }
                    target.body.push(instruction);
                }
            }
        }
        let Target { mut body, variables, results, ends, joins } = target;
        for (at, instruction) in body.iter_mut().enumerate() {
            let is_join = joins.contains(&at);
            refer(instruction, |id| {
                let mut id = id;
                while let Some(next) = results.get(&id) {
                    id = *next;
                }
                if is_join { ends.get(&id).copied().unwrap_or(id) } else { id }
            });
        }
        // Variables come first in a function.
        body.splice(1..1, variables);
        function.body = body;
        self.done.insert(id, function.clone());
        Ok(function)
    }

    /// Puts a function where it is called, in the block `end`; gives the block that follows.
    fn call(&mut self, call: &Instruction, end: Word, target: &mut Target) -> anyhow::Result<Word> {
        let ids: Vec<Word> = call.operands.iter().filter_map(id).collect();
        let (callee, arguments) = ids.split_first().context("a call of nothing")?;
        let function = self.inlined(*callee)?;
        let returns = |i: &&Instruction| matches!(i.class.opcode, Op::Return | Op::ReturnValue);
        let last = function.body.last().context("a function without a body")?;
        if function.body.iter().filter(returns).count() != 1 || !returns(&last) {
            let name = self.names.get(callee).map_or("a function", String::as_str);
            bail!("{name} returns elsewhere than at its end");
        }
        let mut map: HashMap<Word, Word> =
            function.parameters.iter().copied().zip(arguments.iter().copied()).collect();
        let first = function.body[0].result_id.context("a function without a label")?;
        map.insert(first, end);
        for made in function.body.iter().skip(1).filter_map(|i| i.result_id) {
            map.insert(made, self.bound);
            self.origins.push((self.bound, made));
            self.bound += 1;
        }
        let of = |id: Word| map.get(&id).copied().unwrap_or(id);
        let mut end = end;
        for instruction in &function.body[1..] {
            let mut instruction = instruction.clone();
            rename(&mut instruction, of);
            match instruction.class.opcode {
                Op::Variable => {
                    if instruction.operands.len() > 1 {
                        bail!("a variable with an initial value");
                    }
                    target.variables.push(instruction);
                }
                Op::Return => {}
                Op::ReturnValue => {
                    let value = instruction.operands.first().and_then(id);
                    let result = call.result_id.context("a call without a result")?;
                    target.results.insert(result, value.context("a return of nothing")?);
                }
                opcode => {
                    if opcode == Op::Label {
                        end = instruction.result_id.context("a label without an id")?;
                    }
                    target.body.push(instruction);
                }
            }
        }
        Ok(end)
    }

    fn assemble(self, header: ModuleHeader, function: &Function) -> Vec<u32> {
        let defined =
            self.module.declarations.iter().chain(&function.opening).chain(&function.body);
        let defined: HashSet<Word> = defined.filter_map(|i| i.result_id).collect();
        let mut copies: HashMap<Word, Vec<Word>> = HashMap::new();
        for &(copy, origin) in &self.origins {
            let mut origin = origin;
            // Copies of copies: the first is what decorations name.
            let parents: &[(Word, Word)] = &self.origins;
            while let Ok(at) = parents.binary_search_by_key(&origin, |(copy, _)| *copy) {
                origin = parents[at].1;
            }
            copies.entry(origin).or_default().push(copy);
        }
        let mut words = vec![header.magic_number, header.version, header.generator, self.bound, 0];
        for instruction in &self.module.declarations {
            let about = instruction.operands.first().and_then(id);
            let (opcode, about) = (instruction.class.opcode, about.unwrap_or(0));
            if matches!(opcode, Op::Name | Op::Decorate | Op::DecorateId) {
                let all = copies.get(&about).into_iter().flatten().filter(|_| opcode != Op::Name);
                for about in all.copied().chain([about]).filter(|id| defined.contains(id)) {
                    let mut instruction = instruction.clone();
                    instruction.operands[0] = Operand::IdRef(about);
                    instruction.assemble_into(&mut words);
                }
            } else {
                instruction.assemble_into(&mut words);
            }
        }
        for instruction in function.opening.iter().chain(&function.body) {
            instruction.assemble_into(&mut words);
        }
        words.push(0x0001_0000 | Op::FunctionEnd as u32);
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::compile;
    use crate::variants::Variant;

    fn inlined(text: &str) -> anyhow::Result<Module> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.comp"), text).unwrap();
        let variant = Variant {
            name: "a".to_owned(),
            source: "a.comp".to_owned(),
            inline: true,
            ..Variant::default()
        };
        let compiled = compile(folder.path(), &variant)?;
        let mut module = Module::default();
        rspirv::binary::parse_words(&compiled.words, &mut module).unwrap();
        Ok(module)
    }

    const HEAD: &str = "#version 460\nlayout(local_size_x = 1) in;\n";

    #[test]
    fn the_entry_point_alone_remains() {
        let text = format!(
            "{HEAD}
            shared uint values[64];
            uint twice(const uint x) {{ return 2u * x; }}
            void add(inout uint sum, const uint count) {{
                for (uint i = 0u; i < twice(count); ++i) {{
                    if (i > 3u && twice(i) < 12u || i == 9u) sum += twice(values[i]);
                }}
            }}
            void main() {{
                uint sum = 0u;
                add(sum, twice(twice(values[0])));
                for (uint k = 0u; k < 3u; ++k) add(sum, k);
                values[1] = sum > 7u && twice(sum) < 99u ? sum : twice(values[2]);
            }}"
        );
        let module = inlined(&text).unwrap();
        assert_eq!(module.functions.len(), 1);
        let function = module.functions.values().next().unwrap();
        assert!(function.body.iter().all(|i| i.class.opcode != Op::FunctionCall));
        let results = module.declarations.iter().chain(&function.opening).chain(&function.body);
        let results: Vec<Word> = results.filter_map(|i| i.result_id).collect();
        let defined: HashSet<Word> = results.iter().copied().collect();
        assert_eq!(results.len(), defined.len(), "an id is defined once");
        let used = module.declarations.iter().chain(&function.opening).chain(&function.body);
        for instruction in used {
            for id in instruction.operands.iter().filter_map(id) {
                assert!(defined.contains(&id), "{instruction:?}");
            }
        }
        let is_variable = |i: &&Instruction| i.class.opcode == Op::Variable;
        let variables = function.body.iter().filter(is_variable).count();
        let leading = function.body[1..].iter().take_while(is_variable).count();
        assert_eq!(variables, leading, "variables come first");
    }

    #[test]
    fn returns_before_the_end_are_refused() {
        let text = format!(
            "{HEAD}
            shared uint values[2];
            uint early(const uint x) {{ if (x > 3u) return 1u; return x; }}
            void main() {{ values[0] = early(values[1]); }}"
        );
        let error = inlined(&text).err().expect("it returns twice");
        assert!(format!("{error:#}").contains("early"), "{error:#}");
    }
}
