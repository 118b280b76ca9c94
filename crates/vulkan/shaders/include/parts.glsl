// Parts of tiles that several workgroups share, of the kernels whose sums stay in registers. Included after sharing.glsl, and where
// LEFTS, RIGHTS, LANES, SUBGROUPS and `lane` are known.

// Parts of a tile that are loaded together when they are added.
const uint PARTS_TOGETHER = 4;

// Returns where a subgroup's sums for eight tokens lie in a part of a shared tile.
uint part_at(const uint first_part, const uint split, const uint right) {
    return (((first_part + split) * RIGHTS + right) * SUBGROUPS + gl_SubgroupID) * (LEFTS * LANES) + lane;
}

// Returns the sums of all parts of a tile for eight tokens, in the order of the workgroups.
vec4[LEFTS] add_parts(const uint first_part, const uint splits, const uint right) {
    vec4 values[LEFTS];
    [[unroll]] for (uint i = 0; i < LEFTS; i++) values[i] = vec4(0.0);
    [[dont_unroll]] for (uint split = 0; split < splits; split += PARTS_TOGETHER) {
        vec4 loaded[PARTS_TOGETHER * LEFTS];
        [[unroll]] for (uint n = 0; n < PARTS_TOGETHER; n++) {
            const uint at = part_at(first_part, min(split + n, splits - 1), right);
            [[unroll]] for (uint i = 0; i < LEFTS; i++) loaded[n * LEFTS + i] = parts().at[at + i * LANES];
        }
        [[unroll]] for (uint n = 0; n < PARTS_TOGETHER; n++) {
            [[unroll]] for (uint i = 0; i < LEFTS; i++) {
                if (split + n < splits) values[i] += loaded[n * LEFTS + i];
            }
        }
    }
    return values;
}
