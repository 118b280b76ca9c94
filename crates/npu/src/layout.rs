//! How the kernel `a8w8acc32` has its matrices in memory. Never run on silicon.
//!
//! `C[m, n] = A[m, k] W[k, n]` in whole numbers: A and W of 8 bits, C of 32. A and C lie row by
//! row. After A come the kernel's parameters, which tell the cores how often they repeat what. W
//! lies in blocks, so that all channels read memory from front to back.
//!
//! Source: the host's side of AMD's kernel, `wgt_matrix.h`, `super_instr.h` and `ml_params.h` in
//! `amd/RyzenAI-SW` at 2a3c4afe (MIT).
//!
//! [`int4`] has the same for the kernel `a16fw4acc32f`.

pub mod int4;

/// Bytes of the parameters.
pub const PARAMETER_BYTES: usize = 200;
/// Rows and columns of a block of W, which is what a core multiplies at a time.
const BLOCK: (usize, usize) = (128, 64);
/// Columns that lie together for each row of a block.
const STRIP: usize = 8;
/// Blocks below one another that lie together.
const BLOCKS_IN_GROUP: usize = 4;
/// Rows and columns of cores.
const CORES: usize = 4;
/// Rows of C that a core makes, with zeros in A where there are fewer.
const ROWS: u8 = 64;

/// Returns where W, `rows` by `columns`, has the element at `row` and `column`.
///
/// Each column of cores takes a quarter of W's columns. Its two channels take one half of the rows
/// each, and each channel feeds two cores in turns of four blocks.
#[must_use]
pub fn weight_index(rows: usize, columns: usize, row: usize, column: usize) -> usize {
    let (block_rows, block_columns) = BLOCK;
    let block_bytes = block_rows * block_columns;
    let group_rows = block_rows * BLOCKS_IN_GROUP;
    let (core_rows, channel_rows, core_columns) = (rows / CORES, rows / 2, columns / CORES);

    let strip = column % block_columns / STRIP;
    let in_block = (strip * block_rows + row % block_rows) * STRIP + column % STRIP;
    let block = row / block_rows % BLOCKS_IN_GROUP;
    let groups_of_core = core_rows / group_rows;
    let group =
        column % core_columns / block_columns * groups_of_core + row % core_rows / group_rows;
    let turn = 2 * group + row / core_rows % 2;
    let channel = 2 * (column / core_columns) + row / channel_rows;
    in_block
        + block * block_bytes
        + turn * block_bytes * BLOCKS_IN_GROUP
        + channel * channel_rows * core_columns
}

/// Returns the bytes of W for the kernel. `weights` is (k, n), row by row.
///
/// # Panics
///
/// Panics if there are not `k` times `n` weights.
#[must_use]
pub fn weights(k: usize, n: usize, weights: &[i8]) -> Vec<u8> {
    assert_eq!(weights.len(), k * n, "a weight for each row and column");
    let mut bytes = vec![0; k * n];
    for (row, values) in weights.chunks_exact(n).enumerate() {
        for (column, value) in values.iter().enumerate() {
            bytes[weight_index(k, n, row, column)] = *value as u8;
        }
    }
    bytes
}

/// Returns the bytes of A, (m, k) row by row, with the parameters for `n` columns after it.
#[must_use]
pub fn activations(k: usize, n: usize, activations: &[i8]) -> Vec<u8> {
    let values = activations.iter().map(|value| *value as u8);
    values.chain(parameters(k, n)).collect()
}

/// Returns the kernel's parameters for W of `k` rows and `n` columns: a list of three instructions,
/// which begin a sum, add to it and end it.
#[must_use]
pub fn parameters(k: usize, n: usize) -> [u8; PARAMETER_BYTES] {
    /// Words of the list without its first two.
    const LIST_WORDS: u16 = 48;
    const INSTRUCTION_WORDS: u16 = 15;
    const OPERAND_BYTES: u32 = 48;
    const PADDING_WORDS: u16 = 2;
    /// Which cores of an array take it.
    const CORES_MASK: u32 = 0x003c_000f;
    const RESULT_BYTES: u32 = 128;
    /// Waiting for inputs, for the output, and from which sum on.
    const CONFIGURATIONS: [u32; 3] = [0x0201_0d01, 0x0201_0c01, 0x0201_0e01];

    let columns_each_round = CORES * BLOCK.1;
    let rows_each_round = CORES * BLOCK.0;
    let rounds = (n / columns_each_round) as u16;
    let repeats = [1, (k / rows_each_round) as u16 - 2, 1];
    let mut list = Vec::with_capacity(PARAMETER_BYTES);
    list.extend(u32::from(LIST_WORDS).to_le_bytes());
    list.extend([0; 4]);
    list.extend(rounds.to_le_bytes());
    list.extend(LIST_WORDS.to_le_bytes());
    for (index, (configuration, repeat)) in CONFIGURATIONS.into_iter().zip(repeats).enumerate() {
        // What is left over belongs to the last instruction.
        let padding = if index == 2 { PADDING_WORDS } else { 0 };
        list.extend((INSTRUCTION_WORDS + padding).to_le_bytes());
        list.extend(repeat.to_le_bytes());
        list.extend(CORES_MASK.to_le_bytes());
        list.extend(RESULT_BYTES.to_le_bytes());
        list.extend((OPERAND_BYTES + 4 * u32::from(padding)).to_le_bytes());
        list.extend(configuration.to_le_bytes());
        list.extend(operands());
    }
    list.resize(PARAMETER_BYTES, 0);
    list.try_into().expect("the instructions are shorter")
}

/// Returns what a core multiplies: the counts of 8 x 8 x 16 products in a block, and steps.
fn operands() -> Vec<u8> {
    let (block_rows, block_columns) = (BLOCK.0 as u16, BLOCK.1 as u16);
    let (row_tiles, inner_tiles, column_tiles) =
        (ROWS / 8, (block_rows / 8) as u8, (block_columns / 16) as u8);
    let mut bytes = vec![0, 0, 0, 0, inner_tiles, column_tiles, row_tiles, 0];
    bytes.extend(u16::from(inner_tiles).to_le_bytes());
    bytes.extend((u16::from(row_tiles) * u16::from(column_tiles)).to_le_bytes());
    // Shifts of sum, result, norm and bias.
    bytes.extend([12, 12, 0, 0]);
    let rows = u16::from(ROWS) * 8;
    for step in [block_rows * 8, 8, 0, rows, 8, rows, 8, 0] {
        bytes.extend(step.to_le_bytes());
    }
    bytes.extend([0; 4]);
    // The sum begins at zero; A, W and the result have signs; the result has all its bits.
    bytes.extend(0x705_u32.to_le_bytes());
    bytes
}

/// Returns the exact product of A (m, k) and W (k, n): C (m, n).
///
/// # Panics
///
/// Panics if a matrix has not as many elements.
#[must_use]
pub fn product(k: usize, n: usize, activations: &[i8], weights: &[i8]) -> Vec<i32> {
    assert_eq!(weights.len(), k * n, "a weight for each row and column");
    let mut result = vec![0; activations.len() / k * n];
    for (row, sums) in activations.chunks_exact(k).zip(result.chunks_exact_mut(n)) {
        for (value, weights) in row.iter().zip(weights.chunks_exact(n)) {
            let value = i32::from(*value);
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum += value * i32::from(*weight);
            }
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_weight_has_its_own_place() {
        for (k, n) in [(2048, 2048), (2048, 8192), (8192, 2048)] {
            let mut is_taken = vec![false; k * n];
            for row in 0..k {
                for column in 0..n {
                    let index = weight_index(k, n, row, column);
                    assert!(!is_taken[index], "{row}, {column}");
                    is_taken[index] = true;
                }
            }
        }
    }

    /// What the streams read where: the shim of column 1 reads the first eighth of W by its first
    /// channel, in turns of 32 KiB for two cores.
    #[test]
    fn channels_and_cores_have_their_parts() {
        let (k, n) = (8192, 2048);
        let index = |row, column| weight_index(k, n, row, column);
        assert_eq!(index(0, 0), 0);
        assert_eq!(index(0, 7), 7);
        assert_eq!(index(1, 0), 8);
        assert_eq!(index(0, 8), 1024);
        assert_eq!(index(128, 0), 8192);
        // The second core of the channel, then the first again.
        assert_eq!(index(2048, 0), 32768);
        assert_eq!(index(512, 0), 65536);
        // The second channel, and the next column of cores.
        assert_eq!(index(4096, 0), k / 2 * n / 4);
        assert_eq!(index(0, n / 4), k * n / 4);
        assert_eq!(index(k - 1, n - 1), k * n - 1);
    }

    #[test]
    fn weights_survive_their_layout() {
        let (k, n) = (2048, 2048);
        let values: Vec<i8> = (0..k * n).map(|at| ((at * 31) ^ (at >> 9)) as i8).collect();
        let bytes = weights(k, n, &values);
        let value = |at: usize| bytes[weight_index(k, n, at / n, at % n)] as i8;
        assert!((0..k * n).all(|at| value(at) == values[at]));
    }

    #[test]
    fn parameters_count_rounds_and_repeats() {
        let word = |bytes: &[u8], at: usize| {
            u32::from_le_bytes(bytes[4 * at..4 * at + 4].try_into().unwrap())
        };
        let bytes = parameters(8192, 2048);
        assert_eq!((word(&bytes, 0), word(&bytes, 1), word(&bytes, 2)), (48, 0, 48 << 16 | 8));
        for (at, repeats, length) in [(3, 1, 15), (18, 14, 15), (33, 1, 17)] {
            assert_eq!(word(&bytes, at), repeats << 16 | length);
            assert_eq!(word(&bytes, at + 1), 0x003c_000f);
        }
        assert_eq!(word(&bytes, 3 + 4), 0x0201_0d01);
        // The operands: 16 x 4 x 8 products, and the flags at their end.
        assert_eq!(bytes[32..40], [0, 0, 0, 0, 16, 4, 8, 0]);
        assert_eq!(bytes[40..44], [16, 0, 32, 0]);
        assert_eq!(word(&bytes, 17), 0x705);
        assert_eq!(bytes[192..], [0; 8]);
    }

    #[test]
    fn products_are_exact() {
        let (k, n) = (3, 2);
        let product = product(k, n, &[1, -2, 3, -128, 127, 0], &[1, 2, 3, 4, -128, 127]);
        assert_eq!(product, [1 - 6 - 384, 2 - 8 + 381, -128 + 381, -256 + 508]);
    }
}
