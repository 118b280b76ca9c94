// Weights as matmul_turned.comp takes them (kernels/matmul/turned.rs draws them): which row of the matrix stands where.

// Right factors of 8 rows of weights of a subgroup.
const uint ARRANGED_FACTORS = 8;

// Returns the feature whose weights are row n, up to 8, of right factor j of a tile; in a gated product j counts those of the gate.
// A lane holds the results of rows 2 c and 2 c + 1 of each factor: of two factors these are four features in a row, and in a gated
// product four columns of a piece of the next product's left factors (operand_fragment).
uint arranged_feature(const bool is_gated, const uint tile, const uint j, const uint n) {
    const uint four = 2 * (j % 2) + n % 2;
    if (is_gated) return tile / 4 * 128 + n / 2 * 32 + tile % 4 * 8 + j / 2 * 4 + four;
    return tile * (8 * ARRANGED_FACTORS) + j / 2 * 16 + n / 2 * 4 + four;
}
