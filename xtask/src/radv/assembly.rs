//! Counts instructions in the machine code that RADV prints for RDNA3.
//!
//! Names are those of the "RDNA3 Instruction Set Architecture" reference guide: `global_load_b128`,
//! `v_dot4_i32_iu8`, `v_wmma_f32_16x16x16_f16`, `s_cbranch_scc1`. Labels are `BB12:`.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// The counts of instructions in a piece of code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Instructions {
    pub(super) instructions: u32,
    /// Loads from memory, by bits; 96 counts as 64.
    pub(super) load_128: u32,
    pub(super) load_64: u32,
    pub(super) load_32: u32,
    pub(super) load_16: u32,
    pub(super) load_8: u32,
    /// Dot products of four packed bytes.
    pub(super) dot4: u32,
    /// Matrix products.
    pub(super) wmma: u32,
    /// Accesses to LDS.
    pub(super) shared: u32,
    /// Bytes that a lane passes to or from LDS in these.
    pub(super) shared_bytes: u32,
    /// Instructions of the vector units, including products.
    pub(super) vector: u32,
}

impl Instructions {
    /// Returns the numbers of loads, the widest first.
    pub(super) fn loads(&self) -> String {
        let Self { load_128, load_64, load_32, load_16, load_8, .. } = self;
        format!("{load_128}, {load_64}, {load_32}, {load_16}, {load_8}")
    }
}

/// The counts of instructions in a kernel.
#[derive(Clone, Debug)]
pub(super) struct Counts {
    pub(super) whole: Instructions,
    /// The instructions of the main loop and the loops inside it; all instructions if there is no
    /// loop.
    pub(super) inner: Instructions,
    pub(super) has_loop: bool,
}

/// Counts the instructions of a kernel.
pub(super) fn count(assembly: &str) -> Counts {
    let lines: Vec<&str> = assembly.lines().collect();
    let whole = tally(&lines);
    let inner = main_loop(&lines).map(|range| tally(&lines[range]));
    let has_loop = inner.is_some();
    Counts { inner: inner.unwrap_or_else(|| whole.clone()), whole, has_loop }
}

/// Returns whether an instruction begins with the prefix.
pub(super) fn contains(assembly: &str, prefix: &str) -> bool {
    assembly.lines().filter_map(name).any(|name| name.starts_with(prefix))
}

fn loads(found: &Instructions) -> u32 {
    found.load_128 + found.load_64 + found.load_32 + found.load_16 + found.load_8
}

/// Returns the instruction's name in a line; `None` for labels and comments.
fn name(line: &str) -> Option<&str> {
    let word = line.split_whitespace().next()?;
    let is_name =
        word.contains('_') && word.starts_with(|letter: char| letter.is_ascii_lowercase());
    is_name.then_some(word)
}

/// Returns the jumps back, each from the label's line to after the jump.
fn loops(lines: &[&str]) -> Vec<Range<usize>> {
    let mut labels = HashMap::new();
    let mut found = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        if let Some(label) = line.trim().strip_suffix(':') {
            labels.insert(label, number);
        }
        let is_branch =
            name(line).is_some_and(|name| name.starts_with("s_cbranch") || name == "s_branch");
        if is_branch
            && let Some(target) = line.split_whitespace().nth(1)
            && let Some(start) = labels.get(target)
        {
            found.push(*start..number + 1);
        }
    }
    found
}

/// Returns the loop with the most products of its own or, if there are no products, the most loads
/// of its own. Instructions of an inner loop count only for that loop. Loops with neither do not
/// count.
fn main_loop(lines: &[&str]) -> Option<Range<usize>> {
    // Jumps to one label from several places are one loop.
    let mut ends: BTreeMap<usize, usize> = BTreeMap::new();
    for range in loops(lines) {
        let end = ends.entry(range.start).or_insert(range.end);
        *end = range.end.max(*end);
    }
    let is_inside = |start: usize, end: usize, line: usize| {
        ends.range(start + 1..end).any(|(start, end)| (*start..*end).contains(&line))
    };
    let weigh = |(start, end): (&usize, &usize)| {
        let own: Vec<&str> = (*start..*end)
            .filter(|line| !is_inside(*start, *end, *line))
            .map(|line| lines[line])
            .collect();
        let found = tally(&own);
        // A matrix product does the work of many other instructions.
        ((found.dot4 + 16 * found.wmma, loads(&found)), *start..*end)
    };
    let heaviest = ends.iter().map(weigh).max_by_key(|(weight, range)| (*weight, range.start));
    heaviest.filter(|(weight, _)| *weight > (0, 0)).map(|(_, range)| range)
}

/// Returns the bytes of a lane in an access to LDS. A bank passes no fewer than 4.
fn shared_bytes(name: &str) -> u32 {
    let bytes = match name.rsplit_once("_b").map(|(_, bits)| bits) {
        Some("128") => 16,
        Some("96") => 12,
        Some("64") => 8,
        _ => 4,
    };
    if name.contains("_2addr_") { 2 * bytes } else { bytes }
}

fn tally(lines: &[&str]) -> Instructions {
    let mut counts = Instructions::default();
    for name in lines.iter().filter_map(|line| name(line)) {
        counts.instructions += 1;
        let is_memory = ["global_load", "buffer_load", "flat_load"];
        if let Some(kind) = is_memory.iter().find_map(|prefix| name.strip_prefix(prefix)) {
            let bits = match kind {
                _ if kind.ends_with("b128") => &mut counts.load_128,
                _ if kind.ends_with("b96") || kind.ends_with("b64") => &mut counts.load_64,
                _ if kind.ends_with("b32") => &mut counts.load_32,
                _ if kind.contains("8") => &mut counts.load_8,
                _ => &mut counts.load_16,
            };
            *bits += 1;
        }
        counts.dot4 += u32::from(name.starts_with("v_dot4"));
        counts.wmma += u32::from(name.starts_with("v_wmma"));
        if name.starts_with("ds_") {
            counts.shared += 1;
            counts.shared_bytes += shared_bytes(name);
        }
        counts.vector += u32::from(name.starts_with("v_"));
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "\
BB0:
\ts_load_b64 s[2:3], s[0:1], null                             ; f4040080 f8000000
\tv_mov_b32_e32 v0, 0                                         ; 7e000280
BB1:
\tglobal_load_b128 v[1:4], v0, s[2:3]                         ; dc5e0000 01020000
BB2:
\tglobal_load_b128 v[5:8], v0, s[2:3]                         ; dc5e0000 05020000
\tglobal_load_d16_b16 v9, v0, s[2:3]                          ; dc820000 09020000
\tbuffer_load_u8 v9, v0, s[2:3], 0 offen                      ; dc820000 09020000
\tv_dot4_i32_iu8 v10, v1, v5, v10 neg_lo:[1,1,0]              ; cc16400a 1c2a0b01
\ts_cbranch_scc1 BB2                                          ; bfa20010
\tds_store_b32 v0, v10                                        ; d8340000 00000a00
\ts_cbranch_vccnz BB1                                         ; bfa40010
\ts_cbranch_execz BB3                                         ; bfa50001
\tglobal_store_b32 v0, v10, s[2:3]                            ; dc6a0000 00020a00
BB3:
\ts_endpgm                                                    ; bfb00000
";

    #[test]
    fn the_loop_with_the_products_is_counted() {
        let counts = count(CODE);
        assert!(counts.has_loop);
        let inner = Instructions {
            instructions: 5,
            load_128: 1,
            load_16: 1,
            load_8: 1,
            dot4: 1,
            vector: 1,
            ..Instructions::default()
        };
        assert_eq!(counts.inner, inner);
        assert_eq!(counts.whole.instructions, 13);
        assert_eq!(counts.whole.load_128, 2);
        assert_eq!((counts.whole.shared, counts.whole.shared_bytes), (1, 4));
        let bytes = |name: &str| shared_bytes(name);
        assert_eq!([bytes("ds_load_b128"), bytes("ds_store_2addr_b64")], [16, 16]);
        assert_eq!([bytes("ds_load_u16_d16"), bytes("ds_bpermute_b32")], [4, 4]);
        assert!(contains(CODE, "v_dot4"));
        assert!(!contains(CODE, "v_wmma"));
    }

    #[test]
    fn products_around_a_loop_of_loads_are_found() {
        let code = CODE
            .replace("v_dot4_i32_iu8", "v_add_u32_e32")
            .replace("ds_store_b32", "v_dot4_i32_iu8");
        let counts = count(&code);
        assert_eq!((counts.inner.dot4, counts.inner.load_128), (1, 2));
        assert_eq!(counts.inner.instructions, 8);
    }

    #[test]
    fn loops_without_products_and_loads_do_not_count() {
        let code = CODE.replace("_load_", "_other_").replace("v_dot4_i32_iu8", "v_add_u32_e32");
        assert!(!count(&code).has_loop);
    }

    #[test]
    fn code_without_a_loop_counts_as_a_whole() {
        let code = CODE.replace("BB2 ", "BB9 ").replace("BB1 ", "BB9 ");
        let counts = count(&code);
        assert!(!counts.has_loop);
        assert_eq!(counts.inner, counts.whole);
    }
}
