// References to device memory by address.

#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types : require

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Floats { float at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer Vec4s { vec4 at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Words { uint at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer Vec2s { vec2 at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer Pairs { uvec2 at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer Quads { uvec4 at[]; };

// Memory that dispatches of a chain pass on (chain.glsl): not kept in a cache that only one core sees.
layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer ActiveFloats { float at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer ActiveWords { uint at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) coherent buffer ActiveVec2s { vec2 at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) coherent buffer ActivePairs { uvec2 at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) coherent buffer ActiveVec4s { vec4 at[]; };
