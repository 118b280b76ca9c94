//! Rows in the order of sorted entries.

use half::f16;

use super::*;
use crate::kernels::rows::tests::{allocated, check_row, halves_of};
use crate::kernels::rows::{RowLimits, RowWork, RowsLaunch};

/// Rows that are gathered.
#[derive(Debug, Clone, Copy)]
struct Gathered {
    columns: usize,
    rows: usize,
    used: usize,
    experts: usize,
    /// Places of a group.
    places: usize,
    /// Whether the entries of a row share it.
    is_shared: bool,
}

/// Returns an operand over poisoned memory, and the memory.
fn operand(kind: OperandKind, rows: usize, columns: usize) -> (Operand, [Buffer; 2]) {
    let rows = allocated(kind, rows);
    let bytes = [kind.code_bytes(columns), kind.scale_bytes(columns)];
    let memory = bytes.map(|row| poisoned(&gpu(), (rows * row) as u64));
    let [codes, scales] = [0, 1].map(|piece: usize| memory[piece].span());
    (Operand { kind, codes, scales }, memory)
}

impl Gathered {
    /// Gathers rows from a kind of source to a kind of operand, and checks every place.
    fn check(&self, from: OperandKind, to: OperandKind) {
        let Self { columns, rows, used, experts, places, is_shared } = *self;
        let gpu = gpu();
        let shared = if is_shared { used } else { 1 };
        let entries = (rows + 2) * used;
        let grouping = Grouping { entries, experts, columns: places, is_padded: true };
        let chosen = chosen_of(Choice::Random, experts, rows * used, entries, rows as u64);
        let (groups, order) = sorted(&chosen, rows, used, grouping);
        let words: Vec<u32> = groups.as_flattened().iter().chain(&order).copied().collect();

        let count = rows * used / shared;
        let mut values = random(count * columns, 7, 3.0);
        for (row, values) in values.chunks_exact_mut(columns).enumerate() {
            let factor = [1.0, 1e-30, 3e30, 0.0][row % 4];
            values.iter_mut().for_each(|x| *x *= factor);
        }
        values[columns - 1] = f32::NAN;
        values[columns * (count - 1)] = f32::NEG_INFINITY;

        let (memory, order_memory) = (upload(&gpu, &values), upload(&gpu, &words));
        let row_count = upload(&gpu, &[count as u32]);
        let (halves, _halves_memory) = operand(OperandKind::Halves, count, columns);
        let convert = RowsLaunch {
            work: RowWork::Convert { parts: 1 },
            source: memory.span(),
            epsilon: 0.0,
            within: RowLimits::NONE,
            made: Some(Made::Operand(halves)),
            extent: Extent { columns, rows: count, row_count: row_count.address() },
        };
        let (made, [codes, scales]) = operand(to, grouping.places(), columns);
        let gather = GatherLaunch {
            grouping,
            sorted: order_memory.span(),
            source: match from {
                OperandKind::Plain => Operand::plain(memory.span()),
                _ => halves,
            },
            shared,
            columns,
            operand: made,
        };
        let dispatches = [
            convert.dispatch(&gpu, "convert", 0).unwrap(),
            gather.dispatch(&gpu, "gather", 0).unwrap(),
        ];
        run(&gpu, &dispatches);

        let codes = first_of::<u8>(&codes, made.codes.bytes as usize);
        let scales = first_of::<f32>(&scales, grouping.places());
        let mut entry_of = vec![None; grouping.places()];
        for [_, first, count, _] in groups {
            for place in first..first + count {
                entry_of[place as usize] = Some(order[place as usize] as usize);
            }
        }
        for (place, entry) in entry_of.into_iter().enumerate() {
            let codes_of = || halves_of(to, &codes, place, columns);
            let Some(entry) = entry else {
                assert!(scales[place].is_nan(), "{self:?}: a scale without an entry");
                let is_kept = |code: &f16| [0, 0xFFFF].contains(&code.to_bits());
                assert!(codes_of().iter().all(is_kept), "{self:?}: codes without an entry");
                continue;
            };
            let row = &values[entry / shared * columns..][..columns];
            if row.iter().all(|x| x.is_finite()) {
                let expected: Vec<f64> = row.iter().map(|&x| f64::from(x)).collect();
                check_row(to, &codes, &scales, place, &expected, 0.0);
            } else {
                assert!(scales[place].is_nan(), "{self:?}: the scale of a broken row");
                assert!(codes_of().iter().all(|code| code.to_bits() == 0), "{self:?}");
            }
        }
    }
}

#[test]
fn places_get_the_rows_of_their_entries() {
    let cases = [
        // Columns, rows, entries of a row, experts, places of a group.
        (32, 9, 1, 3, 16),
        (96, 30, 3, 4, 32),
        (704, 5, 8, 20, 16),
        (1568, 40, 2, 1, 64),
    ];
    for (columns, rows, used, experts, places) in cases {
        for is_shared in [false, true] {
            let gathered = Gathered { columns, rows, used, experts, places, is_shared };
            for from in [OperandKind::Plain, OperandKind::Halves] {
                for to in [OperandKind::Halves, OperandKind::Fragments] {
                    gathered.check(from, to);
                }
            }
        }
    }
}
