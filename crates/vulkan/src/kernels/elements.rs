//! Work on single elements: `shaders/elements.comp`.

use bytemuck::{Pod, Zeroable};

use super::handles::{Addresses, Extent, Handles, Visitor, spans};
use crate::compiler::Compiler;
use crate::dispatch::{Dispatch, Fill, Link, Push};
use crate::error::GpuError;
use crate::raw::pipeline::KernelKey;
use crate::shaders::Shader;

/// Invocations of a workgroup.
const LOCAL: usize = 256;
/// Elements that hardly fill a device.
const LITTLE: usize = 1 << 18;

/// What is done to each element.
/// A `target` is changed in place: it is where the result goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ElementWork<H: Handles = Addresses> {
    /// `result = gelu(gate) * up`.
    Geglu {
        /// (rows, columns) f32.
        gate: H::Rows,
        /// (rows, `stride`) f32.
        up: H::Rows,
        /// The first column of `up` that is used; 0 over addresses, where `up` begins with it.
        first: usize,
        /// Columns of a row of `up`.
        stride: usize,
    },
    /// `target += source`.
    Add {
        /// (rows, columns) f32.
        source: H::Rows,
        /// (rows, columns) f32.
        target: H::Rows,
    },
    /// `target = cap * tanh(target / cap)`.
    Softcap {
        /// Largest magnitude.
        cap: f32,
        /// (rows, columns) f32.
        target: H::Rows,
    },
    /// `result[row] = source[picks[row]]`.
    Select {
        /// (tokens, columns) f32.
        source: H::Rows,
        /// The row numbers.
        picks: H::Numbers,
    },
    /// `result = source * weight`.
    Scale {
        /// (rows, columns) f32.
        source: H::Rows,
        /// Factors of the columns, f32.
        weight: H::Vector,
    },
    /// `target += bias`.
    Bias {
        /// Values of the columns, f32.
        bias: H::Vector,
        /// (rows, columns) f32.
        target: H::Rows,
    },
    /// `target = gelu(target)`.
    Gelu {
        /// (rows, columns) f32.
        target: H::Rows,
    },
    /// `result[row]` = the mean of `count` rows from `source[picks[row]]` on.
    Pool {
        /// (tokens, columns) f32.
        source: H::Rows,
        /// The row numbers.
        picks: H::Numbers,
        /// Rows of a mean.
        count: usize,
    },
    /// `target[row] = source[i]` where the token of the row is the `i`-th soft one.
    Insert {
        /// (soft tokens, columns) f32.
        source: H::Rows,
        /// The step's frame ([`EmbedLaunch::frame`](super::embed::EmbedLaunch::frame)).
        frame: H::Numbers,
        /// (rows, columns) f32. Other rows stay.
        target: H::Rows,
    },
    /// `result = min(max(source, low), high)`; NaN stays NaN.
    Clamp {
        /// (rows, columns) f32.
        source: H::Rows,
        /// The least value.
        low: f32,
        /// The largest value.
        high: f32,
    },
    /// `result = first, second`: the columns of the one and then those of the other.
    Join {
        /// (rows, `split`) f32.
        first: H::Rows,
        /// (rows, columns - `split`) f32; `None` if the first has all columns.
        second: Option<H::Rows>,
        /// Columns of `first`.
        split: usize,
    },
}

impl<H: Handles> ElementWork<H> {
    fn visit<B: Handles>(&self, by: &mut impl Visitor<H, B>) -> ElementWork<B> {
        match *self {
            ElementWork::Geglu { gate, up, first, stride } => {
                let (gate, up) = (by.read(gate), by.read_from(up, first));
                ElementWork::Geglu { gate, up, first: 0, stride }
            }
            ElementWork::Add { source, target } => {
                ElementWork::Add { source: by.read(source), target: by.read(target) }
            }
            ElementWork::Softcap { cap, target } => {
                ElementWork::Softcap { cap, target: by.read(target) }
            }
            ElementWork::Select { source, picks } => {
                ElementWork::Select { source: by.read(source), picks: by.numbers(picks) }
            }
            ElementWork::Scale { source, weight } => {
                ElementWork::Scale { source: by.read(source), weight: by.vector(weight) }
            }
            ElementWork::Bias { bias, target } => {
                ElementWork::Bias { bias: by.vector(bias), target: by.read(target) }
            }
            ElementWork::Gelu { target } => ElementWork::Gelu { target: by.read(target) },
            ElementWork::Pool { source, picks, count } => {
                ElementWork::Pool { source: by.read(source), picks: by.numbers(picks), count }
            }
            ElementWork::Insert { source, frame, target } => ElementWork::Insert {
                source: by.read(source),
                frame: by.numbers(frame),
                target: by.read(target),
            },
            ElementWork::Clamp { source, low, high } => {
                ElementWork::Clamp { source: by.read(source), low, high }
            }
            ElementWork::Join { first, second, split } => {
                let (first, second) = (by.read(first), second.map(|second| by.read(second)));
                ElementWork::Join { first, second, split }
            }
        }
    }

    /// Returns what is launched.
    fn name(&self) -> &'static str {
        match self {
            ElementWork::Geglu { .. } => "geglu",
            ElementWork::Add { .. } => "add",
            ElementWork::Softcap { .. } => "softcap",
            ElementWork::Select { .. } => "select",
            ElementWork::Scale { .. } => "scale",
            ElementWork::Bias { .. } => "bias",
            ElementWork::Gelu { .. } => "gelu",
            ElementWork::Pool { .. } => "pool",
            ElementWork::Insert { .. } => "insert",
            ElementWork::Clamp { .. } => "clamp",
            ElementWork::Join { .. } => "join",
        }
    }

    /// Returns what is changed in place.
    fn target(&self) -> Option<H::Rows> {
        match *self {
            ElementWork::Add { target, .. }
            | ElementWork::Softcap { target, .. }
            | ElementWork::Bias { target, .. }
            | ElementWork::Gelu { target }
            | ElementWork::Insert { target, .. } => Some(target),
            _ => None,
        }
    }

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
            ElementWork::Gelu { .. } => 7,
            ElementWork::Pool { .. } => 8,
            ElementWork::Insert { .. } => 9,
            ElementWork::Clamp { .. } => 10,
        }
    }
}

/// A launch over elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ElementsLaunch<H: Handles = Addresses> {
    /// What is done.
    pub work: ElementWork<H>,
    /// (rows, columns) f32.
    pub result: H::Rows,
    /// The rows and columns.
    pub extent: H::Extent,
}

impl<H: Handles> ElementsLaunch<H> {
    /// Returns the launch over what a visitor gives for its operands.
    pub(crate) fn visit<B: Handles>(&self, by: &mut impl Visitor<H, B>) -> ElementsLaunch<B> {
        ElementsLaunch {
            work: self.work.visit(by),
            result: by.write(self.result),
            extent: by.extent(self.extent, self.result),
        }
    }

    /// Returns what is launched.
    pub(crate) fn name(&self) -> &'static str {
        self.work.name()
    }
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
        if self.extent.rows * self.extent.columns <= LITTLE { Fill::Little } else { Fill::Anywhere }
    }

    /// Returns the dispatch of the launch.
    ///
    /// # Errors
    /// If the kernel cannot be compiled.
    ///
    /// # Panics
    /// If the result does not go where the target is that is changed in place.
    pub fn dispatch(
        &self,
        gpu: &dyn Compiler,
        label: &str,
        step: usize,
    ) -> Result<Dispatch, GpuError> {
        let Extent { columns, rows, row_count } = self.extent;
        let is_in_place = self.work.target().is_none_or(|target| target == self.result);
        assert!(is_in_place, "{label} gives its result elsewhere");
        let mut args = Args {
            first: 0,
            second: 0,
            result: self.result.address,
            rows: row_count,
            picks: 0,
            chain: 0,
            columns: columns as u32,
            stride: columns as u32,
            cap: 1.0,
            high: 1.0,
        };
        match self.work {
            ElementWork::Geglu { gate, up, stride, .. } => {
                (args.first, args.second, args.stride) = (gate.address, up.address, stride as u32);
            }
            ElementWork::Add { source, .. } => args.first = source.address,
            ElementWork::Softcap { cap, .. } => args.cap = cap,
            ElementWork::Select { source, picks } => {
                (args.first, args.picks) = (source.address, picks);
            }
            ElementWork::Scale { source, weight } => {
                (args.first, args.second) = (source.address, weight);
            }
            ElementWork::Join { first, second, split } => {
                args.first = first.address;
                args.second = second.map_or(0, |second| second.address);
                args.stride = split as u32;
            }
            ElementWork::Bias { bias, .. } => args.second = bias,
            ElementWork::Gelu { .. } => {}
            ElementWork::Pool { source, picks, count } => {
                (args.first, args.picks, args.stride) = (source.address, picks, count as u32);
            }
            ElementWork::Clamp { source, low, high } => {
                (args.first, args.cap, args.high) = (source.address, low, high);
            }
            ElementWork::Insert { source, frame, .. } => {
                (args.first, args.picks) = (source.address, frame);
            }
        }
        let (reads, writes) = spans(|by| _ = self.visit(by));
        let constants = vec![LOCAL as u32, self.work.mode()];
        let key = KernelKey { shader: Shader("elements"), constants, subgroup: None };
        Ok(Dispatch {
            label: label.to_owned(),
            step,
            kernel: gpu.kernel(&key)?,
            push: Push::of(&args),
            groups: [columns.div_ceil(LOCAL) as u32, rows as u32, 1],
            reads,
            writes,
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
    use crate::dispatch::Span;
    use crate::testing::{download, gpu, poisoned, run, upload};

    fn launch(work: ElementWork, result: Span, columns: usize, row_count: u64) {
        let gpu = gpu();
        let rows = result.bytes as usize / (4 * columns);
        let launch = ElementsLaunch { work, result, extent: Extent { columns, rows, row_count } };
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
            ElementWork::Geglu { gate: first.span(), up: second.span(), first: 0, stride: 8 },
            result.span(),
            8,
            count.address(),
        );
        close(&download(&gpu, &result), &|at| gelu(f64::from(a[at])) * f64::from(b[at]));

        let result = upload(&gpu, &b);
        let work = ElementWork::Add { source: first.span(), target: result.span() };
        launch(work, result.span(), 16, count.address());
        close(&download(&gpu, &result), &|at| f64::from(a[at]) + f64::from(b[at]));

        let result = upload(&gpu, &a);
        let work = ElementWork::Softcap { cap: 3.0, target: result.span() };
        launch(work, result.span(), 64, count.address());
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
            let second = (split < 16).then_some(second.span());
            let work = ElementWork::Join { first: first.span(), second, split };
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
        for (is_bias, expected) in [true, false].into_iter().zip(expected) {
            let result = upload(&gpu, &values);
            let target = result.span();
            let work = match is_bias {
                true => ElementWork::Bias { bias: biases.address(), target },
                false => ElementWork::Gelu { target },
            };
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
        let (frame, target) = (frame.address(), Span { bytes: 40, ..result.span() });
        launch(ElementWork::Insert { source: soft.span(), frame, target }, target, 2, frame);
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
            ElementWork::Geglu { gate: gate.span(), up: up.span(), first: 0, stride: 64 },
            result.span(),
            64,
            count.address(),
        );
        let found: Vec<f32> = download(&gpu, &result);
        assert!(found[2].is_nan());
        assert_eq!((found[3], found[4]), (80.0, 0.0));
        assert!(found[0] >= 1e30 && found[1] == 0.0, "{found:?}");
        let capped = upload(&gpu, &values);
        let work = ElementWork::Softcap { cap: 30.0, target: capped.span() };
        launch(work, capped.span(), 64, count.address());
        let found: Vec<f32> = download(&gpu, &capped);
        assert_eq!((found[0], found[1]), (30.0, -30.0));
        assert!(found[2].is_nan());
    }
}
