//! The shapes of the catalogue's models: what a token reads and what a context takes, without a
//! file.
//!
//! The numbers are those of the published configurations (`config.json` of google/gemma-3-4b-it and
//! so on). Norms and other vectors are left out: they are less than a thousandth.

/// The rows of every Gemma's embedding table, which is its output matrix too.
const VOCABULARY: u64 = 262_144;
/// The bytes of a key or value: f16.
const KV_BYTES: u64 = 2;

/// A part of a model's layers that have the same attention.
#[derive(Debug, PartialEq, Eq)]
struct Attention {
    /// Layers that keep keys and values of their own.
    own: u64,
    /// Layers that read the keys and values of another layer.
    sharing: u64,
    /// Columns of all heads' queries.
    queries: u64,
    /// Columns of all heads' keys, and of their values.
    keys: u64,
    /// Matrices for keys and values: 1 if the values are the keys.
    matrices: u64,
}

impl Attention {
    /// Returns the weights of the projections of all layers.
    const fn weights(&self, hidden: u64) -> u64 {
        let own = self.own * self.matrices * hidden * self.keys;
        own + (self.own + self.sharing) * 2 * hidden * self.queries
    }

    /// Returns the bytes of keys and values of all layers for one position.
    const fn position_bytes(&self) -> u64 {
        self.own * 2 * self.keys * KV_BYTES
    }
}

/// The shape of a model.
#[derive(Debug, PartialEq)]
pub(super) struct Shape {
    /// The parameters as the name counts them, in billions. Of an "effective" size it is the
    /// geometric mean of all weights and those that a token reads.
    pub(super) billions: f64,
    hidden: u64,
    local: Attention,
    global: Attention,
    /// Positions that local layers see.
    window: u64,
    /// Columns of the feed-forward part, summed over all layers; of experts those that a token
    /// reads.
    forward: u64,
    /// Weights that a token reads besides, in all layers.
    others: u64,
}

const fn attention(own: u64, sharing: u64, queries: u64, keys: u64) -> Attention {
    Attention { own, sharing, queries, keys, matrices: 2 }
}

/// Returns the shape of a Gemma 3, whose layers differ only in what they see.
const fn gemma3(
    billions: f64,
    hidden: u64,
    (locals, globals): (u64, u64),
    (queries, keys): (u64, u64),
    forward: u64,
    window: u64,
) -> Shape {
    Shape {
        billions,
        hidden,
        local: attention(locals, 0, queries, keys),
        global: attention(globals, 0, queries, keys),
        window,
        forward: (locals + globals) * forward,
        others: 0,
    }
}

pub(super) const GEMMA3_270M: Shape = gemma3(0.27, 640, (15, 3), (1024, 256), 2048, 512);
/// EmbeddingGemma, with its two products after the last norm.
pub(super) const EMBEDDING_300M: Shape =
    Shape { others: 2 * 768 * 3072, ..gemma3(0.3, 768, (20, 4), (768, 256), 1152, 512) };
pub(super) const GEMMA3_1B: Shape = gemma3(1.0, 1152, (22, 4), (1024, 256), 6912, 512);
pub(super) const GEMMA3_4B: Shape = gemma3(4.0, 2560, (29, 5), (2048, 1024), 10_240, 1024);
pub(super) const GEMMA3_12B: Shape = gemma3(12.0, 3840, (40, 8), (4096, 2048), 15_360, 1024);
pub(super) const GEMMA3_27B: Shape = gemma3(27.0, 5376, (52, 10), (4096, 2048), 21_504, 1024);

/// Weights of the inputs of each layer: one projection for all of them, two in each layer.
const fn per_layer(hidden: u64, layers: u64) -> u64 {
    3 * layers * 256 * hidden
}

/// Gemma 3n's four streams: three projections at each end, and LAuReL's two in each layer.
const fn streams(hidden: u64, layers: u64) -> u64 {
    6 * hidden * hidden + layers * 2 * 64 * hidden
}

pub(super) const GEMMA3N_E2B: Shape = Shape {
    billions: 3.2,
    hidden: 2048,
    local: attention(16, 8, 2048, 512),
    global: attention(4, 2, 2048, 512),
    window: 512,
    forward: 30 * 8192,
    others: per_layer(2048, 30) + streams(2048, 30),
};
pub(super) const GEMMA3N_E4B: Shape = Shape {
    billions: 5.2,
    hidden: 2048,
    local: attention(16, 12, 2048, 512),
    global: attention(4, 3, 2048, 512),
    window: 512,
    forward: 35 * 16_384,
    others: per_layer(2048, 35) + streams(2048, 35),
};
pub(super) const GEMMA4_E2B: Shape = Shape {
    billions: 3.4,
    hidden: 1536,
    local: attention(12, 16, 2048, 256),
    global: attention(3, 4, 4096, 512),
    window: 512,
    forward: 15 * 6144 + 20 * 12_288,
    others: per_layer(1536, 35),
};
pub(super) const GEMMA4_E4B: Shape = Shape {
    billions: 6.0,
    hidden: 2560,
    local: attention(20, 15, 2048, 512),
    global: attention(4, 3, 4096, 1024),
    window: 512,
    forward: 42 * 10_240,
    others: per_layer(2560, 42),
};
pub(super) const GEMMA4_12B: Shape = Shape {
    billions: 12.0,
    hidden: 3840,
    local: attention(40, 0, 4096, 2048),
    global: Attention { matrices: 1, ..attention(8, 0, 8192, 512) },
    window: 1024,
    forward: 48 * 15_360,
    others: 0,
};
pub(super) const GEMMA4_26B: Shape = Shape {
    billions: 26.0,
    hidden: 2816,
    local: attention(25, 0, 4096, 2048),
    global: Attention { matrices: 1, ..attention(5, 0, 8192, 1024) },
    window: 1024,
    forward: 30 * (2112 + 8 * 704),
    // The router.
    others: 30 * 128 * 2816,
};
pub(super) const GEMMA4_31B: Shape = Shape {
    billions: 31.0,
    hidden: 5376,
    local: attention(50, 0, 8192, 4096),
    global: Attention { matrices: 1, ..attention(10, 0, 16_384, 2048) },
    window: 1024,
    forward: 60 * 21_504,
    others: 0,
};

impl Shape {
    /// Returns the weights that a token reads in all layers.
    fn layers(&self) -> u64 {
        self.local.weights(self.hidden)
            + self.global.weights(self.hidden)
            + 3 * self.hidden * self.forward
            + self.others
    }

    /// Returns the weights of the output matrix.
    fn output(&self) -> u64 {
        VOCABULARY * self.hidden
    }

    /// Returns the bytes of weights that a token reads, and twice their number, the operations that
    /// it takes.
    pub(super) fn token(&self, quant: &str) -> (u64, u64) {
        let (layers, output) = bits(quant);
        let bytes = self.layers() as f64 * layers / 8.0 + self.output() as f64 * output / 8.0;
        (bytes as u64, 2 * (self.layers() + self.output()))
    }

    /// Returns the bytes of the KV cache of one conversation of `context` tokens.
    pub(super) fn cache_bytes(&self, context: u64) -> u64 {
        let local = self.local.position_bytes() * context.min(self.window);
        local + self.global.position_bytes() * context
    }
}

/// Returns the bits of a weight in the layers and in the output matrix, which the files with about
/// 4 bits keep in Q6_K. Q4_K_M has some matrices of its layers in Q6_K too.
fn bits(quant: &str) -> (f64, f64) {
    match quant {
        "Q4_0" => (4.5, 6.5625),
        "Q4_K_M" => (4.8, 6.5625),
        "Q8_0" => (8.5, 8.5),
        _ => (16.0, 16.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parameters that Google's reports count: every weight of a Gemma 3 is read for a token.
    #[test]
    fn a_token_of_gemma_3_reads_all_parameters() {
        for (shape, parameters) in [
            (&GEMMA3_270M, 268e6),
            (&GEMMA3_1B, 1.0e9),
            (&GEMMA3_4B, 3.88e9),
            (&GEMMA3_12B, 11.77e9),
            (&GEMMA3_27B, 27.01e9),
        ] {
            let read = (shape.layers() + shape.output()) as f64;
            assert!((read / parameters - 1.0).abs() < 0.01, "{shape:?}: {read}");
        }
        // 3.1 G of the layers' weights and 0.74 G of the output matrix.
        let (layers, output) = (GEMMA4_26B.layers() as f64, GEMMA4_26B.output() as f64);
        assert!((layers / 3.1e9 - 1.0).abs() < 0.03 && (output / 0.74e9 - 1.0).abs() < 0.01);
        // Of the tables of the layers' inputs a token reads one row.
        for (shape, parameters, layers) in
            [(&GEMMA3N_E2B, 4.46e9, 30.0), (&GEMMA3N_E4B, 6.87e9, 35.0)]
        {
            let read = (shape.layers() + shape.output()) as f64;
            let wanted = parameters - 262_144.0 * 256.0 * layers;
            assert!((read / wanted - 1.0).abs() < 0.02, "{shape:?}: {read}");
        }
    }

    /// The caches of Gemma 4 by their heads: bytes of a position in global layers, and of all
    /// positions of the window in local ones.
    #[test]
    fn caches_have_the_sizes_of_their_heads() {
        for (shape, position, window) in [
            (&GEMMA4_E2B, 6 << 10, 6 << 20),
            (&GEMMA4_E4B, 16 << 10, 20 << 20),
            (&GEMMA4_12B, 16 << 10, 320 << 20),
            (&GEMMA4_26B, 20 << 10, 200 << 20),
            (&GEMMA4_31B, 80 << 10, 800 << 20),
        ] {
            let long = 100_000;
            assert_eq!(shape.cache_bytes(long), window + position * long, "{shape:?}");
        }
    }
}
