//! Heads of vision towers.

use super::*;

/// Returns a bed with the heads of Gemma 3's tower, none of which is a whole group of an operand,
/// while all of them are together.
fn heads_of_a_tower(depth: usize, rows: usize, seed: u64) -> Bed {
    let mut bed = Bed::new(traffic(heads(16, 16, 72), KvType::F16, None, depth, rows, seed));
    assert!(bed.attention.gives_halves(KvType::F16));
    bed.store_rows();
    bed
}

#[test]
fn few_rows_give_halves_of_heads_of_towers() {
    let bed = heads_of_a_tower(70, 3, 110);
    let shape = shape(&bed, 2, 2);
    decode(bed, shape);
}

/// In tiles of 128 rows, as towers have them.
#[test]
fn matrices_give_halves_of_heads_of_towers() {
    let bed = heads_of_a_tower(0, 130, 109);
    assert_eq!((bed.case.tile_rows, bed.case.ahead), (128, Ahead::All));
    for shape in matrix_shapes(&bed, 1) {
        check_matrices(&bed, shape, &format!("{shape:?}"));
    }
}
