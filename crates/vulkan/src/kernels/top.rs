//! The largest logits of each row: `shaders/top.comp`.

use bytemuck::{Pod, Zeroable};
use trine_backend::TOP;

use crate::compiler::Compiler;
use crate::dispatch::{Dispatch, Link, Push, Span};
use crate::error::GpuError;
use crate::raw::pipeline::KernelKey;
use crate::shaders::Shader;

/// Places for the logits of a row. More than this reach the threshold only if many are equal or lie
/// in few chunks.
pub const ROOM: usize = 1024;
/// Most chunks of a row.
const CHUNKS: usize = 1024;
/// Invocations of a workgroup.
const LOCAL: u32 = 256;
/// Workgroups that collect the logits of a row.
const COLLECTORS: u32 = 128;

/// A launch over the logits of a step.
#[derive(Debug, Clone, Copy)]
pub struct TopLaunch {
    /// (rows, vocabulary) f32.
    pub logits: Span,
    /// Logits of a row.
    pub vocabulary: usize,
    /// Most rows.
    pub rows: usize,
    /// Address of the number of rows in the step.
    pub row_count: u64,
    /// Working memory, [`maxima_bytes`]: for each chunk of each row the key of its largest logit
    /// and the token, 4 bytes each.
    pub maxima: Span,
    /// For each row two u32: the threshold, and how many logits reach it.
    pub thresholds: Span,
    /// (rows, [`ROOM`]): a logit and its token, 4 bytes each.
    pub found: Span,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Args {
    logits: u64,
    maxima: u64,
    thresholds: u64,
    found: u64,
    rows: u64,
}

/// Returns the bytes of working memory.
pub fn maxima_bytes(rows: usize) -> usize {
    8 * rows * CHUNKS
}

/// Returns the logits of a chunk of a row.
fn chunk_of(vocabulary: usize) -> usize {
    vocabulary.div_ceil(CHUNKS)
}

/// Returns the chunks of a row.
pub(super) fn chunks_of(vocabulary: usize) -> usize {
    vocabulary.div_ceil(chunk_of(vocabulary))
}

impl TopLaunch {
    /// Returns the dispatches of the launch.
    ///
    /// # Errors
    /// If a kernel cannot be compiled.
    pub fn dispatches(&self, gpu: &dyn Compiler, step: usize) -> Result<[Dispatch; 3], GpuError> {
        let chunk = chunk_of(self.vocabulary);
        let chunks = chunks_of(self.vocabulary) as u32;
        let args = Args {
            logits: self.logits.address,
            maxima: self.maxima.address,
            thresholds: self.thresholds.address,
            found: self.found.address,
            rows: self.row_count,
        };
        let subgroups = (LOCAL / gpu.capabilities().subgroup).max(1);
        let dispatch = |mode: u32, groups: u32, reads: Vec<Span>, writes: Vec<Span>| {
            let sizes = [self.vocabulary, chunk, TOP, ROOM].map(|size| size as u32);
            let constants = [LOCAL, mode].into_iter().chain(sizes).collect();
            let key = KernelKey {
                shader: Shader("top"),
                constants,
                subgroup: Some(gpu.capabilities().subgroup),
            };
            Ok(Dispatch {
                label: "top".to_owned(),
                step,
                kernel: gpu.kernel(&key)?,
                push: Push::of(&args),
                groups: [groups, self.rows as u32, 1],
                reads,
                writes,
                link: Link::Outside,
                hands: None,
            })
        };
        let collectors = (self.vocabulary as u32).div_ceil(LOCAL).min(COLLECTORS);
        Ok([
            dispatch(0, chunks.div_ceil(subgroups), vec![self.logits], vec![self.maxima])?,
            dispatch(1, 1, vec![self.maxima], vec![self.thresholds])?,
            dispatch(
                2,
                collectors,
                vec![self.logits, self.thresholds],
                vec![self.thresholds, self.found],
            )?,
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{download, gpu, poisoned, run, upload};

    /// Returns for each row what was found, as (logit bits, token), and how many there were.
    fn found(logits: &[f32], vocabulary: usize) -> Vec<(usize, Vec<(u32, u32)>)> {
        let gpu = gpu();
        let rows = logits.len() / vocabulary;
        let input = upload(&gpu, logits);
        let count = upload(&gpu, &[rows as u32]);
        let maxima = poisoned(&gpu, maxima_bytes(rows) as u64);
        let thresholds = poisoned(&gpu, 8 * rows as u64);
        let output = poisoned(&gpu, (8 * ROOM * rows) as u64);
        let launch = TopLaunch {
            logits: input.span(),
            vocabulary,
            rows,
            row_count: count.address(),
            maxima: maxima.span(),
            thresholds: thresholds.span(),
            found: output.span(),
        };
        run(&gpu, &launch.dispatches(&gpu, 0).unwrap());
        let counts = download::<u32>(&gpu, &thresholds);
        let pairs = download::<u32>(&gpu, &output);
        let row = |row: usize| {
            let count = counts[2 * row + 1] as usize;
            let pairs = pairs[2 * ROOM * row..].chunks_exact(2).take(count.min(ROOM));
            (count, pairs.map(|pair| (pair[0], pair[1])).collect())
        };
        (0..rows).map(row).collect()
    }

    #[test]
    fn the_largest_are_among_what_is_found() {
        use rand::{RngExt, SeedableRng};
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(5);
        for (vocabulary, rows) in
            [(1, 1), (5, 3), (255, 1), (257, 2), (1023, 1), (1025, 2), (40_000, 3)]
        {
            let logits: Vec<f32> =
                (0..vocabulary * rows).map(|_| (random.random::<f32>() - 0.5) * 60.0).collect();
            for (row, (count, pairs)) in found(&logits, vocabulary).into_iter().enumerate() {
                assert!(count <= ROOM && count >= TOP.min(vocabulary), "{vocabulary}: {count}");
                let logits = &logits[row * vocabulary..][..vocabulary];
                // Some random logits are equal, and a device may find them in any order.
                let by_size = |a: &u32, b: &u32| {
                    logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b))
                };
                let mut order: Vec<u32> = (0..vocabulary as u32).collect();
                order.sort_by(by_size);
                let mut tokens: Vec<u32> = pairs.iter().map(|pair| pair.1).collect();
                tokens.sort_by(by_size);
                assert_eq!(tokens, order[..count]);
                assert!(
                    pairs
                        .iter()
                        .all(|&(bits, token)| f32::from_bits(bits) == logits[token as usize])
                );
            }
        }
    }

    #[test]
    fn broken_logits_are_found_and_equal_ones_are_counted() {
        let mut logits = vec![1.0_f32; 2 * 20_000];
        logits[12_345] = -f32::NAN;
        let rows = found(&logits, 20_000);
        assert_eq!(rows[0].0, 20_000.min(rows[0].0).max(1));
        assert!(rows[0].0 > ROOM, "equal logits overflow the room: {}", rows[0].0);
        assert_eq!(rows[1].0, 20_000);
        let mut logits: Vec<f32> =
            (0..20_000).map(|token| -((token * 7919 % 20_000) as f32)).collect();
        logits[19_999] = -f32::NAN;
        let (_, pairs) = found(&logits, 20_000).remove(0);
        assert!(
            pairs.iter().any(|&(bits, token)| token == 19_999 && f32::from_bits(bits).is_nan())
        );
    }
}
