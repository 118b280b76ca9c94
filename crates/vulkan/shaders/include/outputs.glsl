// Outputs of the kernels that take activations in fragment order. Included after operand.glsl and sharing.glsl, and where LEFTS,
// OUT_LEFTS, GATED and `lane` are known.

#ifndef EXPERTS
// Stores an output of a gated product as a half, unless it is beyond the edges.
void store_in_order(const uint feature, const uint token, const float value) {
    if (feature < push.args.features && token < push.args.tokens) {
        const uint at = operand_fragment_half(token, feature, push.args.features / 128);
        OutputHalves(push.args.out0).at[at] = float16_t(value);
        if (feature == 0) MatmulFloats(push.args.out1).at[token] = push.args.unit;
    }
}
#endif

// Stores the outputs of a subgroup for eight tokens, except beyond the edges. `subgroup_feature`: its first feature.
void store_outputs(const uint subgroup_feature, const uint eight_tokens, const vec4 values[LEFTS]) {
    const uint token = eight_tokens + lane % 4 * 2;
    const uint last = push.args.tokens - 1;
    const vec2 both = vec2(MatmulFactors(push.args.operand_scales).at[min(token, last)],
                           MatmulFactors(push.args.operand_scales).at[min(token + 1, last)]);
    const uvec2 rows = uvec2(matmul_row(push.args, token), matmul_row(push.args, token + 1));
    [[unroll]] for (uint i = 0; i < OUT_LEFTS; i++) {
        const uint feature = subgroup_feature + i * 16 + lane / 4;
        vec4 value = values[i] * both.xyxy;
        if (GATED != 0) {
            const vec4 up = values[(i + OUT_LEFTS) % LEFTS] * both.xyxy;
            value = vec4(gelu(value.x), gelu(value.y), gelu(value.z), gelu(value.w)) * up;
        }
#ifndef EXPERTS
        if (GATED == 2) {
            value *= matmul_inverse_unit(push.args);
            store_in_order(feature, token, value.x);
            store_in_order(feature, token + 1, value.y);
            store_in_order(feature + 8, token, value.z);
            store_in_order(feature + 8, token + 1, value.w);
            continue;
        }
#endif
        matmul_store(push.args, feature, rows.x, value.x);
        matmul_store(push.args, feature, rows.y, value.y);
        matmul_store(push.args, feature + 8, rows.x, value.z);
        matmul_store(push.args, feature + 8, rows.y, value.w);
    }
}
