//! Reads from SPIR-V what a shader asks of its caller and of the device, and holds it to the rules
//! of the Vulkan backend.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, anyhow, bail};
use rspirv::binary::{Consumer, ParseAction};
use rspirv::dr::{Instruction, ModuleHeader, Operand};
use rspirv::spirv::{BuiltIn, Decoration, Op, StorageClass};
use serde::{Deserialize, Serialize};

/// What every Vulkan device offers (`maxPushConstantsSize`, "Required Limits" of the Vulkan
/// specification).
const PUSH_CONSTANT_BYTES_MAX: u32 = 128;

/// What a shader says of itself.
#[derive(Debug)]
pub(crate) struct Facts {
    /// End of the last push constant, in bytes.
    pub(crate) push_constant_bytes: u32,
    /// By id.
    pub(crate) spec_constants: Vec<SpecConstant>,
    pub(crate) capabilities: Vec<String>,
    pub(crate) extensions: Vec<String>,
}

/// A specialisation constant.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SpecConstant {
    pub(crate) id: u32,
    /// Empty where the source gives none.
    pub(crate) name: String,
    /// `bool`, `u32`, `i32` or `f32`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// The value's 32 bits.
    pub(crate) default: u32,
}

/// Reads a module.
///
/// The rules: the workgroup's size is specialisation constant 0, every specialisation constant has
/// 32 bits, push constants fit every device, memory is reached only by address.
pub(crate) fn reflect(words: &[u32]) -> anyhow::Result<Facts> {
    let module = declarations(words)?;
    let module = module.as_slice();
    let spec_constants = spec_constants(module)?;
    if !workgroup_is_specialised(module) {
        bail!("the workgroup's size is not specialisation constant 0: layout(local_size_x_id = 0)");
    }
    let bound = decorations(module, Decoration::DescriptorSet);
    if let Some((id, _)) = bound.first_key_value() {
        let name = names(module).remove(id).unwrap_or_default();
        bail!("{name} is bound by descriptor: memory is reached only by buffer reference");
    }
    let push_constant_bytes = push_constant_bytes(module)?;
    if push_constant_bytes > PUSH_CONSTANT_BYTES_MAX {
        bail!(
            "the push constants take {push_constant_bytes} bytes, at most {PUSH_CONSTANT_BYTES_MAX}"
        );
    }
    let mut capabilities = BTreeSet::new();
    let mut extensions = BTreeSet::new();
    for instruction in module {
        match (instruction.class.opcode, instruction.operands.first()) {
            (Op::Capability, Some(Operand::Capability(capability))) => {
                capabilities.insert(format!("{capability:?}"));
            }
            (Op::Extension, Some(Operand::LiteralString(name))) => {
                extensions.insert(name.clone());
            }
            _ => {}
        }
    }
    Ok(Facts {
        push_constant_bytes,
        spec_constants,
        capabilities: capabilities.into_iter().collect(),
        extensions: extensions.into_iter().collect(),
    })
}

/// The module's instructions before its first function.
fn declarations(words: &[u32]) -> anyhow::Result<Vec<Instruction>> {
    let mut declarations = Declarations { list: Vec::new(), is_over: false };
    rspirv::binary::parse_words(words, &mut declarations)
        .map_err(|error| anyhow!("not readable SPIR-V: {error}"))?;
    Ok(declarations.list)
}

/// Collects declarations; rspirv's own loader does not know where `OpExecutionModeId` stands.
struct Declarations {
    list: Vec<Instruction>,
    is_over: bool,
}

impl Consumer for Declarations {
    fn initialize(&mut self) -> ParseAction {
        ParseAction::Continue
    }

    fn finalize(&mut self) -> ParseAction {
        ParseAction::Continue
    }

    fn consume_header(&mut self, _: ModuleHeader) -> ParseAction {
        ParseAction::Continue
    }

    fn consume_instruction(&mut self, instruction: Instruction) -> ParseAction {
        self.is_over |= instruction.class.opcode == Op::Function;
        if !self.is_over {
            self.list.push(instruction);
        }
        ParseAction::Continue
    }
}

fn spec_constants(module: &[Instruction]) -> anyhow::Result<Vec<SpecConstant>> {
    let names = names(module);
    let mut constants = BTreeMap::new();
    for (target, operands) in decorations(module, Decoration::SpecId) {
        let id = operands.first().and_then(number).context("SpecId without a number")?;
        let definition = definition(module, target)?;
        let name = names.get(&target).cloned().unwrap_or_default();
        let (kind, default) = match definition.class.opcode {
            Op::SpecConstantTrue => ("bool", 1),
            Op::SpecConstantFalse => ("bool", 0),
            _ => {
                let scalar =
                    definition.result_type.context("a constant without a type").and_then(|id| {
                        let definition = self::definition(module, id)?;
                        scalar(definition)
                    })?;
                let value = definition.operands.first().and_then(number);
                let kind = match (scalar, value) {
                    (Scalar::Unsigned(32), Some(_)) => "u32",
                    (Scalar::Signed(32), Some(_)) => "i32",
                    (Scalar::Float(32), Some(_)) => "f32",
                    _ => bail!("specialisation constant {id} ({name}) has other than 32 bits"),
                };
                (kind, value.unwrap_or_default())
            }
        };
        let constant = SpecConstant { id, name, kind: kind.to_owned(), default };
        // The workgroup's size is declared without a name, twice for SPIR-V 1.6, and often once
        // more by the source, whose name and default are those that count.
        match constants.entry(id) {
            Entry::Vacant(place) => drop(place.insert(constant)),
            Entry::Occupied(mut place) => {
                let old = place.get_mut();
                if old.kind != constant.kind {
                    bail!("specialisation constant {id} has two types");
                }
                if old.name.is_empty() {
                    *old = constant;
                }
            }
        }
    }
    Ok(constants.into_values().collect())
}

/// Whether the workgroup's size is made of specialisation constant 0.
fn workgroup_is_specialised(module: &[Instruction]) -> bool {
    let zeros: Vec<_> = decorations(module, Decoration::SpecId)
        .into_iter()
        .filter(|(_, operands)| operands.first().and_then(number) == Some(0))
        .map(|(target, _)| Operand::IdRef(target))
        .collect();
    let sizes = decorations(module, Decoration::BuiltIn);
    let composite = sizes
        .iter()
        .find(|(_, operands)| operands.first() == Some(&Operand::BuiltIn(BuiltIn::WorkgroupSize)))
        .and_then(|(target, _)| definition(module, *target).ok());
    // SPIR-V 1.6 says it in the execution mode LocalSizeId, 1.5 in a constant vector.
    let modes = module.iter().filter(|mode| mode.class.opcode == Op::ExecutionModeId);
    composite
        .into_iter()
        .chain(modes)
        .any(|user| user.operands.iter().any(|operand| zeros.contains(operand)))
}

fn push_constant_bytes(module: &[Instruction]) -> anyhow::Result<u32> {
    let is_push = |instruction: &&Instruction| {
        instruction.class.opcode == Op::Variable
            && instruction.operands.first()
                == Some(&Operand::StorageClass(StorageClass::PushConstant))
    };
    let Some(variable) = module.iter().find(is_push) else {
        return Ok(0);
    };
    let pointer = definition(module, variable.result_type.context("a variable without a type")?)?;
    let pointee = pointer.operands.get(1).and_then(reference).context("a pointer to nothing")?;
    size(module, pointee, 0)
}

/// Bytes that a value of the type takes in memory, its inner padding included.
fn size(module: &[Instruction], id: u32, depth: u32) -> anyhow::Result<u32> {
    if depth > 16 {
        bail!("a type nested more than 16 deep");
    }
    let inner = |id: u32| size(module, id, depth + 1);
    let definition = definition(module, id)?;
    let operand = |index: usize| definition.operands.get(index);
    let part = || operand(0).and_then(reference).context("a type of nothing");
    match definition.class.opcode {
        Op::TypePointer => Ok(8),
        Op::TypeVector => {
            let count = operand(1).and_then(number).context("a vector without a length")?;
            inner(part()?)?.checked_mul(count).context("a vector too large")
        }
        Op::TypeArray => {
            let length = operand(1).and_then(reference).context("an array without a length")?;
            let count = self::definition(module, length)?.operands.first().and_then(number);
            let count = count.context("an array whose length is not a number")?;
            let strides = decorations(module, Decoration::ArrayStride);
            let stride = strides.get(&id).and_then(|operands| operands.first()).and_then(number);
            let stride = stride.context("an array without a stride")?;
            let before = count.saturating_sub(1).checked_mul(stride);
            before
                .and_then(|before| before.checked_add(inner(part().ok()?).ok()?))
                .context("an array too large")
        }
        Op::TypeStruct => {
            let mut end = 0_u32;
            for (index, member) in definition.operands.iter().enumerate() {
                let offset = member_offset(module, id, index)
                    .with_context(|| format!("member {index} of a structure has no offset"))?;
                let member = inner(reference(member).context("a member of no type")?)?;
                end = end.max(offset.checked_add(member).context("a structure too large")?);
            }
            Ok(end)
        }
        _ => match scalar(definition)? {
            Scalar::Unsigned(bits) | Scalar::Signed(bits) | Scalar::Float(bits) => Ok(bits / 8),
        },
    }
}

enum Scalar {
    Unsigned(u32),
    Signed(u32),
    Float(u32),
}

/// The kind and the bits of a number's type.
fn scalar(definition: &Instruction) -> anyhow::Result<Scalar> {
    let bits = definition.operands.first().and_then(number);
    match (definition.class.opcode, bits) {
        (Op::TypeFloat, Some(bits)) => Ok(Scalar::Float(bits)),
        (Op::TypeInt, Some(bits)) => Ok(match definition.operands.get(1).and_then(number) {
            Some(0) => Scalar::Unsigned(bits),
            _ => Scalar::Signed(bits),
        }),
        (other, _) => bail!("{other:?} is not expected in constants and arguments"),
    }
}

fn definition(module: &[Instruction], id: u32) -> anyhow::Result<&Instruction> {
    module
        .iter()
        .find(|instruction| instruction.result_id == Some(id))
        .with_context(|| format!("%{id} is not defined"))
}

/// Decorations of one kind: what they stand on, and their own operands.
fn decorations(module: &[Instruction], kind: Decoration) -> BTreeMap<u32, &[Operand]> {
    let mut found = BTreeMap::new();
    for instruction in module {
        if instruction.class.opcode == Op::Decorate
            && let [Operand::IdRef(target), Operand::Decoration(decoration), rest @ ..] =
                instruction.operands.as_slice()
            && *decoration == kind
        {
            found.insert(*target, rest);
        }
    }
    found
}

fn member_offset(module: &[Instruction], structure: u32, member: usize) -> Option<u32> {
    module.iter().find_map(|instruction| match instruction.operands.as_slice() {
        [
            Operand::IdRef(target),
            Operand::LiteralBit32(index),
            Operand::Decoration(Decoration::Offset),
            offset,
        ] if *target == structure && *index as usize == member => number(offset),
        _ => None,
    })
}

fn names(module: &[Instruction]) -> BTreeMap<u32, String> {
    let name = |instruction: &Instruction| {
        let target = instruction.operands.first().and_then(reference)?;
        let is_name = instruction.class.opcode == Op::Name;
        is_name.then(|| text(instruction, 1)).flatten().map(|text| (target, text))
    };
    module.iter().filter_map(name).collect()
}

fn text(instruction: &Instruction, index: usize) -> Option<String> {
    match instruction.operands.get(index) {
        Some(Operand::LiteralString(text)) => Some(text.clone()),
        _ => None,
    }
}

fn number(operand: &Operand) -> Option<u32> {
    match operand {
        Operand::LiteralBit32(value) => Some(*value),
        _ => None,
    }
}

fn reference(operand: &Operand) -> Option<u32> {
    match operand {
        Operand::IdRef(id) => Some(*id),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::compile;
    use crate::variants::{Target, Variant};

    fn facts(body: &str, target: Target) -> anyhow::Result<Facts> {
        let head = "#version 460\n\
            #extension GL_EXT_buffer_reference2 : require\n\
            #extension GL_EXT_scalar_block_layout : require\n\
            #extension GL_EXT_shader_explicit_arithmetic_types : require\n";
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.comp"), format!("{head}{body}")).unwrap();
        let (name, source) = ("a".to_owned(), "a.comp".to_owned());
        let variant = Variant { name, source, target, ..Variant::default() };
        reflect(&compile(folder.path(), &variant).unwrap().words)
    }

    const SIZE: &str = "layout(local_size_x_id = 0) in;\n";

    #[test]
    fn push_constants_end_with_their_last_member() {
        let body = "layout(buffer_reference, scalar) buffer Out { float x[]; };
            struct Pair { uint16_t a; float b[3]; };
            layout(push_constant, scalar) uniform Push {
                Out to; uint64_t from; Pair pairs[2]; uvec3 v;
            } push;
            void main() { push.to.x[0] = push.pairs[1].b[2] + float(push.v.z); }";
        for target in [Target::Vulkan12, Target::Vulkan13] {
            let facts = facts(&format!("{SIZE}{body}"), target).unwrap();
            assert_eq!(facts.push_constant_bytes, 8 + 8 + 2 * 16 + 12);
        }
    }

    #[test]
    fn constants_are_listed_by_id_with_type_and_default() {
        let body = "layout(constant_id = 3) const float C = 1.5;
            layout(constant_id = 2) const bool B = true;
            layout(constant_id = 1) const int A = -2;
            layout(buffer_reference, scalar) buffer Out { float x[]; };
            layout(push_constant, scalar) uniform Push { Out to; } push;
            void main() { if (B) push.to.x[A] = C; }";
        let facts = facts(&format!("{SIZE}{body}"), Target::Vulkan12).unwrap();
        let list: Vec<_> = facts
            .spec_constants
            .iter()
            .map(|constant| (constant.id, constant.kind.as_str(), constant.default))
            .collect();
        let float = 1.5_f32.to_bits();
        assert_eq!(
            list,
            [(0, "u32", 1), (1, "i32", 0xFFFF_FFFE), (2, "bool", 1), (3, "f32", float)]
        );
    }

    #[test]
    fn a_name_for_the_size_of_the_workgroup_is_kept() {
        let body = "layout(constant_id = 0) const uint LOCAL = 64;
            shared float values[LOCAL];
            void main() { values[gl_LocalInvocationIndex] = 0; barrier(); }";
        for target in [Target::Vulkan12, Target::Vulkan13] {
            let facts = facts(&format!("{SIZE}{body}"), target).unwrap();
            let [constant] = facts.spec_constants.as_slice() else { panic!("one constant") };
            assert_eq!((constant.name.as_str(), constant.default), ("LOCAL", 64));
        }
    }

    #[test]
    fn shaders_against_the_rules_are_refused() {
        for (body, expected) in [
            ("layout(local_size_x = 64) in;\nvoid main() {}", "specialisation constant 0"),
            ("layout(local_size_x_id = 1) in;\nvoid main() {}", "specialisation constant 0"),
            (
                "layout(local_size_x_id = 0) in;
                layout(constant_id = 1) const uint64_t N = 4;
                layout(push_constant) uniform Push { uint64_t x; } push;
                void main() { if (push.x > N) barrier(); }",
                "other than 32 bits",
            ),
            (
                "layout(local_size_x_id = 0) in;
                layout(push_constant) uniform Push { uvec4 x[9]; } push;
                void main() { if (push.x[8].x == 0) barrier(); }",
                "144 bytes",
            ),
            (
                "layout(local_size_x_id = 0) in;
                layout(set = 0, binding = 0) buffer B { uint x; } bound;
                void main() { bound.x = 0; }",
                "bound is bound by descriptor",
            ),
        ] {
            let error = facts(body, Target::Vulkan12).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
