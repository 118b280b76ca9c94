//! Work on single elements: `shaders/elements.comp`.

use bytemuck::{Pod, Zeroable};

use crate::compiler::Compiler;
use crate::dispatch::{Dispatch, Fill, Link, Push, Span};
use crate::error::GpuError;
use crate::raw::pipeline::KernelKey;
use crate::shaders::Shader;

/// Invocations of a workgroup.
const LOCAL: usize = 256;
/// Elements that hardly fill a device.
const LITTLE: usize = 1 << 18;

/// What is done to each element.
#[derive(Debug, Clone, Copy)]
pub enum ElementWork {
    /// `result = gelu(gate) * up`.
    Geglu {
        /// (rows, columns) f32.
        gate: Span,
        /// (rows, `stride`) f32, from the first column that is used on.
        up: Span,
        /// Columns of a row of `up`.
        stride: usize,
    },
    /// `result += source`.
    Add {
        /// (rows, columns) f32.
        source: Span,
    },
    /// `result = cap * tanh(result / cap)`.
    Softcap {
        /// Largest magnitude.
        cap: f32,
    },
    /// `result[row] = source[picks[row]]`.
    Select {
        /// (tokens, columns) f32.
        source: Span,
        /// Address of the row numbers, u32.
        picks: u64,
    },
    /// `result = source * weight`.
    Scale {
        /// (rows, columns) f32.
        source: Span,
        /// Factors of the columns, f32.
        weight: u64,
    },
    /// `result += bias`.
    Bias {
        /// Values of the columns, f32.
        bias: u64,
    },
    /// `result = gelu(result)`.
    Gelu,
    /// `result[row]` = the mean of `count` rows from `source[picks[row]]` on.
    Pool {
        /// (tokens, columns) f32.
        source: Span,
        /// Address of the row numbers, u32.
        picks: u64,
        /// Rows of a mean.
        count: usize,
    },
    /// `result[row] = source[i]` where the token of the row is the `i`-th soft one.
    Insert {
        /// (soft tokens, columns) f32.
        source: Span,
        /// Address of the step's frame ([`EmbedLaunch::frame`](super::embed::EmbedLaunch::frame)).
        frame: u64,
    },
    /// `result = min(max(source, low), high)`; NaN stays NaN.
    Clamp {
        /// (rows, columns) f32.
        source: Span,
        /// The least value.
        low: f32,
        /// The largest value.
        high: f32,
    },
    /// `result = first, second`: the columns of the one and then those of the other.
    Join {
        /// (rows, `split`) f32.
        first: Span,
        /// (rows, columns - `split`) f32; nowhere if the first has all columns.
        second: Span,
        /// Columns of `first`.
        split: usize,
    },
}

impl ElementWork {
    /// Returns its number in the shader.
    fn mode(&self) -> u32 {
        match self {
            ElementWork::Geglu { .. } => 0,
            ElementWork::Add { .. } => 1,
            ElementWork::Softcap { .. } => 2,
            ElementWork::Select { .. } => 3,
            ElementWork::Scale { .. } => 4,
            ElementWork::Join { .. } => 5,
            ElementWork::Bias { .. } => 6,
            ElementWork::Gelu => 7,
            ElementWork::Pool { .. } => 8,
            ElementWork::Insert { .. } => 9,
            ElementWork::Clamp { .. } => 10,
        }
    }
}

/// A launch over elements.
#[derive(Debug, Clone, Copy)]
pub struct ElementsLaunch {
    /// What is done.
    pub work: ElementWork,
    /// (rows, columns) f32.
    pub result: Span,
    /// Columns of a row.
    pub columns: usize,
    /// Most rows.
    pub rows: usize,
    /// Address of the number of rows in the step.
    pub row_count: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Args {
    first: u64,
    second: u64,
    result: u64,
    rows: u64,
    picks: u64,
    chain: u64,
    columns: u32,
    stride: u32,
    cap: f32,
    high: f32,
}

impl ElementsLaunch {
    fn fill(&self) -> Fill {
        if self.rows * self.columns <= LITTLE { Fill::Little } else { Fill::Anywhere }
    }

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
        let mut args = Args {
            first: 0,
            second: 0,
            result: self.result.address,
            rows: self.row_count,
            picks: 0,
            chain: 0,
            columns: self.columns as u32,
            stride: self.columns as u32,
            cap: 1.0,
            high: 1.0,
        };
        let mut reads = Vec::new();
        match self.work {
            ElementWork::Geglu { gate, up, stride } => {
                (args.first, args.second, args.stride) = (gate.address, up.address, stride as u32);
                reads.extend([gate, up]);
            }
            ElementWork::Add { source } => {
                args.first = source.address;
                reads.extend([source, self.result]);
            }
            ElementWork::Softcap { cap } => {
                args.cap = cap;
                reads.push(self.result);
            }
            ElementWork::Select { source, picks } => {
                (args.first, args.picks) = (source.address, picks);
                reads.push(source);
            }
            ElementWork::Scale { source, weight } => {
                (args.first, args.second) = (source.address, weight);
                reads.push(source);
            }
            ElementWork::Join { first, second, split } => {
                (args.first, args.second) = (first.address, second.address);
                args.stride = split as u32;
                reads.push(first);
                reads.extend((split < self.columns).then_some(second));
            }
            ElementWork::Bias { bias } => {
                args.second = bias;
                reads.push(self.result);
            }
            ElementWork::Gelu => {
                reads.push(self.result);
            }
            ElementWork::Pool { source, picks, count } => {
                (args.first, args.picks, args.stride) = (source.address, picks, count as u32);
                reads.push(source);
            }
            ElementWork::Clamp { source, low, high } => {
                (args.first, args.cap, args.high) = (source.address, low, high);
                reads.push(source);
            }
            ElementWork::Insert { source, frame } => {
                (args.first, args.picks) = (source.address, frame);
                // Other rows stay.
                reads.extend([source, self.result]);
            }
        }
        let constants = vec![LOCAL as u32, self.work.mode()];
        let key = KernelKey { shader: Shader("elements"), constants, subgroup: None };
        Ok(Dispatch {
            label: label.to_owned(),
            step,
            kernel: gpu.kernel(&key)?,
            push: Push::of(&args),
            groups: [self.columns.div_ceil(LOCAL) as u32, self.rows as u32, 1],
            reads,
            writes: vec![self.result],
            link: Link::Able {
                offset: std::mem::offset_of!(Args, chain),
                early: None,
                fill: self.fill(),
            },
            hands: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use trine_backend::reference::ops;

    use super::*;
    use crate::testing::{download, gpu, poisoned, run, upload};

    fn launch(work: ElementWork, result: Span, columns: usize, count: u64) {
        let gpu = gpu();
        let rows = result.bytes as usize / (4 * columns);
        let launch = ElementsLaunch { work, result, columns, rows, row_count: count };
        run(&gpu, &[launch.dispatch(&gpu, "elements", 0).unwrap()]);
    }

    #[test]
    fn elements_agree_with_their_definitions() {
        let gpu = gpu();
        // 64 floats: a whole allocation, so that it divides into rows.
        let a: Vec<f32> = (0..64).map(|i| (i as f32 - 31.5) * 0.4).collect();
        let b: Vec<f32> = (0..64).map(|i| (i as f32 * 37.0) % 11.0 - 5.0).collect();
        let (first, second, count) = (upload(&gpu, &a), upload(&gpu, &b), upload(&gpu, &[64_u32]));
        let close = |found: &[f32], wanted: &dyn Fn(usize) -> f64| {
            for (at, &found) in found.iter().enumerate() {
                let wanted = wanted(at);
                assert!(
                    (f64::from(found) - wanted).abs() <= 1e-5 * wanted.abs() + 2e-6,
                    "{at}: {found} {wanted}"
                );
            }
        };
        let gelu = |x: f64| {
            0.5 * x
                * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        };
        let result = poisoned(&gpu, 256);
        launch(
            ElementWork::Geglu { gate: first.span(), up: second.span(), stride: 8 },
            result.span(),
            8,
            count.address(),
        );
        close(&download(&gpu, &result), &|at| gelu(f64::from(a[at])) * f64::from(b[at]));

        let result = upload(&gpu, &b);
        launch(ElementWork::Add { source: first.span() }, result.span(), 16, count.address());
        close(&download(&gpu, &result), &|at| f64::from(a[at]) + f64::from(b[at]));

        let result = upload(&gpu, &a);
        launch(ElementWork::Softcap { cap: 3.0 }, result.span(), 64, count.address());
        close(&download(&gpu, &result), &|at| 3.0 * (f64::from(a[at]) / 3.0).tanh());

        let (result, picks) = (poisoned(&gpu, 256), upload(&gpu, &[7_u32, 0, 3, 7, 1, 1, 6, 2]));
        launch(
            ElementWork::Select { source: first.span(), picks: picks.address() },
            result.span(),
            8,
            count.address(),
        );
        let order = [7, 0, 3, 7, 1, 1, 6, 2];
        close(&download(&gpu, &result), &|at| f64::from(a[8 * order[at / 8] + at % 8]));
    }

    #[test]
    fn columns_are_joined_row_by_row_and_only_rows_of_the_step() {
        let gpu = gpu();
        let a: Vec<f32> = (0..64).map(|i| i as f32).collect();
        let b: Vec<f32> = (0..64).map(|i| -1.0 - i as f32).collect();
        let (first, second, count) = (upload(&gpu, &a), upload(&gpu, &b), upload(&gpu, &[3_u32]));
        for split in [1, 5, 16] {
            let result = upload(&gpu, &[0.5_f32; 64]);
            let work = ElementWork::Join { first: first.span(), second: second.span(), split };
            launch(work, result.span(), 16, count.address());
            for (at, found) in download::<f32>(&gpu, &result).into_iter().enumerate() {
                let (row, column) = (at / 16, at % 16);
                let wanted = match (row < 3, column < split) {
                    (false, _) => 0.5,
                    (true, true) => a[row * split + column],
                    (true, false) => b[row * (16 - split) + column - split],
                };
                assert_eq!(found, wanted, "split {split}, row {row}, column {column}");
            }
        }
    }

    #[test]
    fn biases_and_activations_change_rows_of_the_step() {
        let gpu = gpu();
        let values: Vec<f32> = (0..64).map(|i| (i as f32 - 31.5) * 0.2).collect();
        let bias: Vec<f32> = (0..16).map(|i| (i as f32 * 37.0) % 11.0 - 5.0).collect();
        let (biases, count) = (upload(&gpu, &bias), upload(&gpu, &[3_u32]));
        let mut expected = [values.clone(), values.clone()];
        ops::bias(&mut expected[0][..48], &bias);
        ops::gelu_all(&mut expected[1][..48]);
        let works = [ElementWork::Bias { bias: biases.address() }, ElementWork::Gelu];
        for (work, expected) in works.into_iter().zip(expected) {
            let result = upload(&gpu, &values);
            launch(work, result.span(), 16, count.address());
            for (found, wanted) in download::<f32>(&gpu, &result).into_iter().zip(expected) {
                assert!((found - wanted).abs() <= 2e-6, "{work:?}: {found} {wanted}");
            }
        }
    }

    #[test]
    fn values_stay_within_limits_and_broken_ones_broken() {
        let gpu = gpu();
        let mut values: Vec<f32> = (0..64).map(|i| (i as f32 - 31.5) * 0.2).collect();
        (values[3], values[17], values[40]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
        let (source, count) = (upload(&gpu, &values), upload(&gpu, &[3_u32]));
        let no_limits = (f32::NEG_INFINITY, f32::INFINITY);
        for (low, high) in [(-2.5, 1.25), (0.5, 0.5), no_limits, (f32::NEG_INFINITY, 0.0)] {
            let result = poisoned(&gpu, 256);
            let work = ElementWork::Clamp { source: source.span(), low, high };
            launch(work, result.span(), 16, count.address());
            let mut expected = vec![f32::NAN; 64];
            ops::clamp(&values[..48], [low, high], &mut expected[..48]);
            let found: Vec<f32> = download(&gpu, &result);
            let same = |(a, b): (&f32, &f32)| a == b || (a.is_nan() && b.is_nan());
            assert!(found.iter().zip(&expected).all(same), "{found:?} {expected:?}");
        }
    }

    #[test]
    fn means_begin_with_the_picked_rows() {
        let gpu = gpu();
        let (columns, count) = (16, 3);
        let values: Vec<f32> = (0..9 * columns).map(|i| (i * i % 23) as f32 - 11.0).collect();
        let firsts = [6_u32, 0, 5, 0];
        let (source, picks) = (upload(&gpu, &values), upload(&gpu, &firsts));
        let rows = upload(&gpu, &[3_u32]);
        let result = poisoned(&gpu, (4 * 4 * columns) as u64);
        let work = ElementWork::Pool { source: source.span(), picks: picks.address(), count };
        launch(work, result.span(), columns, rows.address());
        let mut expected = vec![0.0; 3 * columns];
        ops::pool(&values, &firsts[..3], count, columns, &mut expected);
        let found = download::<f32>(&gpu, &result);
        for (found, wanted) in found.iter().zip(expected) {
            assert!((found - wanted).abs() <= 2e-6, "{found} {wanted}");
        }
        assert!(found[3 * columns..].iter().all(|x| x.is_nan()));
    }

    #[test]
    fn rows_of_soft_tokens_take_their_places() {
        let gpu = gpu();
        // The last row is none of the step.
        let tokens = [7, 1 << 31, 9, (1 << 31) + 1, 1 << 31];
        let mut frame = vec![4_u32, 0, 0, 0];
        tokens.iter().for_each(|&token| frame.extend([token, 1 << 31, 0, 0]));
        let (frame, soft) = (upload(&gpu, &frame), upload(&gpu, &[3.0_f32, 4.0, 5.0, 6.0]));
        let result = upload(&gpu, &[0.5_f32; 10]);
        let work = ElementWork::Insert { source: soft.span(), frame: frame.address() };
        launch(work, Span { bytes: 40, ..result.span() }, 2, frame.address());
        let found = download::<f32>(&gpu, &result);
        assert_eq!(found[..10], [0.5, 0.5, 3.0, 4.0, 0.5, 0.5, 5.0, 6.0, 0.5, 0.5]);
    }

    #[test]
    fn extremes_do_not_break_and_nan_stays() {
        let gpu = gpu();
        let mut values = vec![0.0_f32; 64];
        values[..5].copy_from_slice(&[1e30, -1e30, f32::NAN, 80.0, -80.0]);
        let count = upload(&gpu, &[1_u32]);
        let (gate, up, result) =
            (upload(&gpu, &values), upload(&gpu, &[1.0_f32; 64]), poisoned(&gpu, 256));
        launch(
            ElementWork::Geglu { gate: gate.span(), up: up.span(), stride: 64 },
            result.span(),
            64,
            count.address(),
        );
        let found: Vec<f32> = download(&gpu, &result);
        assert!(found[2].is_nan());
        assert_eq!((found[3], found[4]), (80.0, 0.0));
        assert!(found[0] >= 1e30 && found[1] == 0.0, "{found:?}");
        let capped = upload(&gpu, &values);
        launch(ElementWork::Softcap { cap: 30.0 }, capped.span(), 64, count.address());
        let found: Vec<f32> = download(&gpu, &capped);
        assert_eq!((found[0], found[1]), (30.0, -30.0));
        assert!(found[2].is_nan());
    }
}
