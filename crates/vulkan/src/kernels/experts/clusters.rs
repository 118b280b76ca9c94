//! Logits of the tokens of some clusters: `shaders/clusters.comp`.
//!
//! The products of a row with the tokens of its clusters are those of a row with its experts
//! ([`product`](super::product)); here they become a row of logits of all tokens.
//!
//! Bound: 4 bytes for each token and row, written once. Each of `tokens / PART` workgroups reads
//! the products of its row and their tokens as well, `8 * used * size` bytes, from a cache.

use bytemuck::{Pod, Zeroable};

use crate::compiler::Compiler;
use crate::dispatch::{Dispatch, Link, Push};
use crate::error::GpuError;
use crate::kernels::handles::{Addresses, Extent, Handles, Visitor, spans};
use crate::raw::pipeline::KernelKey;
use crate::shaders::Shader;

/// Invocations of a workgroup.
const LOCAL: u32 = 256;
/// Logits of a workgroup, which it holds in shared memory: few enough to fill a device with one
/// row of 262,144, and as many as 16 KiB hold, since each part takes a look at all products.
const PART: usize = 4000;

/// A launch after the products of rows with the tokens of their clusters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClustersLaunch<H: Handles = Addresses> {
    /// (rows, used, size) f32.
    pub products: H::Rows,
    /// (rows, used) f32: the clusters of each row.
    pub chosen: H::Rows,
    /// (rows, used) f32, as [`ChoiceLaunch`](super::ChoiceLaunch) writes them: NaN for broken
    /// scores.
    pub shares: H::Rows,
    /// The tokens of all clusters, f32.
    pub tokens: H::Vector,
    /// (rows, clusters x size) f32.
    pub logits: H::Rows,
    /// All clusters.
    pub clusters: usize,
    /// Tokens of a cluster.
    pub size: usize,
    /// Clusters of a row.
    pub used: usize,
    /// The rows, and all tokens.
    pub extent: H::Extent,
}

impl<H: Handles> ClustersLaunch<H> {
    /// Returns the launch over what a visitor gives for its operands.
    pub(crate) fn visit<B: Handles>(&self, by: &mut impl Visitor<H, B>) -> ClustersLaunch<B> {
        ClustersLaunch {
            products: by.read(self.products),
            chosen: by.read(self.chosen),
            shares: by.read(self.shares),
            tokens: by.vector(self.tokens),
            logits: by.write(self.logits),
            clusters: self.clusters,
            size: self.size,
            used: self.used,
            extent: by.extent(self.extent, self.logits),
        }
    }

    /// Returns what is launched.
    pub(crate) fn name(&self) -> &'static str {
        "logits of clusters"
    }
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Args {
    products: u64,
    chosen: u64,
    shares: u64,
    tokens: u64,
    logits: u64,
    rows: u64,
}

impl ClustersLaunch {
    /// Returns the dispatch of the launch.
    ///
    /// # Errors
    /// If the kernel cannot be compiled.
    pub fn dispatch(
        &self,
        gpu: &dyn Compiler,
        label: &str,
        step: usize,
    ) -> Result<Dispatch, GpuError> {
        let Self { products, chosen, shares, tokens, logits, clusters, size, used, .. } = *self;
        let Extent { rows, row_count, .. } = self.extent;
        let all = clusters * size;
        let part = PART.min(all);
        let numbers = [clusters, size, used, part].map(|number| number as u32);
        let constants = [LOCAL].into_iter().chain(numbers).collect();
        let key = KernelKey { shader: Shader("clusters"), constants, subgroup: None };
        let args = Args {
            products: products.address,
            chosen: chosen.address,
            shares: shares.address,
            tokens,
            logits: logits.address,
            rows: row_count,
        };
        let (reads, writes) = spans(|by| _ = self.visit(by));
        Ok(Dispatch {
            label: label.to_owned(),
            step,
            kernel: gpu.kernel(&key)?,
            push: Push::of(&args),
            groups: [all.div_ceil(part) as u32, rows as u32, 1],
            reads,
            writes,
            link: Link::Outside,
            hands: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use rand::seq::SliceRandom;
    use rand::{RngExt, SeedableRng};
    use trine_backend::reference::ops::{self, Searched};

    use super::*;
    use crate::testing::{download, gpu, poisoned, run, upload};

    /// What rows are made of; the last one is not in the step.
    struct Case {
        sizes: [usize; 3],
        chosen: Vec<f32>,
        shares: Vec<f32>,
        products: Vec<f32>,
        tokens: Vec<f32>,
    }

    impl Case {
        fn random(clusters: usize, size: usize, used: usize, rows: usize) -> Self {
            let mut random = rand_chacha::ChaCha8Rng::seed_from_u64((clusters * size) as u64);
            let mut tokens: Vec<f32> = (0..clusters * size).map(|token| token as f32).collect();
            tokens.shuffle(&mut random);
            let mut chosen = Vec::new();
            for _ in 0..rows {
                let mut numbers: Vec<f32> = (0..clusters).map(|own| own as f32).collect();
                numbers.shuffle(&mut random);
                chosen.extend(&numbers[..used]);
            }
            let mut number = || random.random_range(-3.0..3.0);
            let shares = (0..rows * used).map(|_| number()).collect();
            let products = (0..rows * used * size).map(|_| number()).collect();
            Self { sizes: [clusters, size, used], chosen, shares, products, tokens }
        }

        /// Compares the launch with the reference.
        fn check(&self) {
            let gpu = gpu();
            let [clusters, size, used] = self.sizes;
            let rows = self.chosen.len() / used;
            let count = upload(&gpu, &[rows as u32 - 1]);
            let parts = [&self.products, &self.chosen, &self.shares, &self.tokens];
            let [products, chosen, shares, tokens] = parts.map(|part| upload(&gpu, part));
            let all = clusters * size;
            let logits = poisoned(&gpu, (4 * rows * all) as u64);
            let launch = ClustersLaunch {
                products: products.span(),
                chosen: chosen.span(),
                shares: shares.span(),
                tokens: tokens.address(),
                logits: logits.span(),
                clusters,
                size,
                used,
                extent: Extent { columns: all, rows, row_count: count.address() },
            };
            run(&gpu, &[launch.dispatch(&gpu, "clusters", 0).unwrap()]);
            let mut expected = vec![0.0; (rows - 1) * all];
            let searched = Searched {
                chosen: &self.chosen[..(rows - 1) * used],
                shares: &self.shares[..(rows - 1) * used],
                products: &self.products[..(rows - 1) * used * size],
                tokens: &self.tokens,
                used,
            };
            ops::search(searched, &mut expected);
            let found: Vec<f32> = download(&gpu, &logits);
            for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let is_same = found == expected || found.is_nan() && expected.is_nan();
                assert!(is_same, "{:?}, {at}: {found} {expected}", self.sizes);
            }
            let beyond = &found[expected.len()..rows * all];
            assert!(beyond.iter().all(|logit| logit.is_nan()), "{:?}", self.sizes);
        }
    }

    #[test]
    fn logits_are_those_of_the_reference() {
        for (clusters, size, used, rows) in [
            (1, 1, 1, 2),
            (33, 16, 4, 4),
            (7, 3, 7, 3),
            (528, 1, 5, 2),
            (2048, 3, 32, 3),
            // The last part is not full.
            (61, 128, 32, 3),
            (3, 4001, 2, 2),
        ] {
            Case::random(clusters, size, used, rows).check();
        }
    }

    #[test]
    fn infinite_and_broken_numbers_are_those_of_the_reference() {
        let mut case = Case::random(9, 5, 3, 7);
        let (high, nan) = (f32::INFINITY, f32::NAN);
        let mut rows = case.products.chunks_exact_mut(15);
        rows.next().unwrap()[7] = nan;
        rows.next().unwrap()[14] = -nan;
        rows.next().unwrap()[0] = -high;
        rows.next().unwrap().fill(high);
        rows.next().unwrap().fill(-0.0);
        case.shares[3 * 5 + 2] = nan;
        case.check();
    }
}
