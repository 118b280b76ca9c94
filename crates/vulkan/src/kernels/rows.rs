//! Norms, additions of norms, and conversions to operands: `shaders/rows.comp`.

use bytemuck::{Pod, Zeroable};

use super::operand::{GROUP, Operand, OperandKind};
use crate::dispatch::{Dispatch, Fill, Link, Push, Span};
use crate::error::GpuError;
use crate::raw::gpu::Gpu;
use crate::raw::pipeline::KernelKey;
use crate::shaders::Shader;

/// Most invocations of a workgroup.
const LOCAL_MAX: usize = 512;
/// Most values of a row that an invocation keeps in registers; with a norm and an addition it keeps
/// that many factors and old values as well.
const REGISTERS_MAX: usize = 64;

/// What is done to a row before it is written.
#[derive(Debug, Clone, Copy)]
pub enum RowWork {
    /// Nothing.
    Convert,
    /// Its norm.
    Norm {
        /// Factors of the columns, f32.
        weight: u64,
    },
    /// The norm is added to the target, which is the result.
    NormAdd {
        /// Factors of the columns, f32.
        weight: u64,
        /// (rows, columns) f32.
        target: Span,
    },
    /// The norm is added to the target, whose norm is the result.
    NormAddNorm {
        /// Factors of the columns, f32.
        weight: u64,
        /// (rows, columns) f32.
        target: Span,
        /// Factors of the columns in the second norm, f32.
        next_weight: u64,
    },
}

/// A launch over rows.
#[derive(Debug, Clone)]
pub struct RowsLaunch {
    /// What is done.
    pub work: RowWork,
    /// (rows, columns) f32.
    pub source: Span,
    /// Columns of a row.
    pub columns: usize,
    /// Most rows.
    pub rows: usize,
    /// Address of the number of rows in the step.
    pub row_count: u64,
    /// Added to the mean square of the norms.
    pub epsilon: f32,
    /// Where the result goes as f32.
    pub plain: Option<Span>,
    /// Where the result goes as an operand.
    pub operand: Option<Operand>,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Args {
    source: u64,
    weight: u64,
    target: u64,
    next_weight: u64,
    plain: u64,
    codes: u64,
    scales: u64,
    rows: u64,
    chain: u64,
    epsilon: f32,
    _padding: u32,
}

/// Most columns of a row.
pub const COLUMNS_MAX: usize = LOCAL_MAX * REGISTERS_MAX;

impl RowsLaunch {
    /// Returns the dispatch of the launch.
    ///
    /// # Errors
    /// If the kernel cannot be compiled.
    ///
    /// # Panics
    /// If a row has more than [`COLUMNS_MAX`] columns.
    pub fn dispatch(&self, gpu: &Gpu, label: &str, step: usize) -> Result<Dispatch, GpuError> {
        let padded = self.columns.next_multiple_of(GROUP);
        assert!(padded <= COLUMNS_MAX, "rows of {} columns", self.columns);
        let local = (padded / 4).next_power_of_two().clamp(64, LOCAL_MAX);
        let per = padded.div_ceil(4 * local);
        let mut reads = vec![self.source];
        let mut writes: Vec<Span> = self.plain.into_iter().collect();
        let none = Span { address: 0, bytes: 0 };
        let (mode, weight, target, next_weight) = match self.work {
            RowWork::Convert => (0, 0, none, 0),
            RowWork::Norm { weight } => (1, weight, none, 0),
            RowWork::NormAdd { weight, target } => (2, weight, target, 0),
            RowWork::NormAddNorm { weight, target, next_weight } => {
                (3, weight, target, next_weight)
            }
        };
        if target.bytes > 0 {
            reads.push(target);
            writes.push(target);
        }
        let operand = self.operand.map_or((0, none, none), |operand| {
            let kind = match operand.kind {
                OperandKind::Plain => 0,
                OperandKind::Fixed16 => 1,
                OperandKind::Halves => 2,
                OperandKind::Interleaved => unreachable!("only products interleave rows"),
            };
            writes.extend(operand.spans());
            (kind, operand.codes, operand.scales)
        });
        let constants = vec![
            local as u32,
            mode,
            operand.0,
            u32::from(self.plain.is_some()),
            self.columns as u32,
            per as u32,
        ];
        let kernel =
            gpu.kernel(&KernelKey { shader: Shader("rows"), constants, subgroup: None })?;
        let args = Args {
            source: self.source.address,
            weight,
            target: target.address,
            next_weight,
            plain: self.plain.map_or(0, |span| span.address),
            codes: operand.1.address,
            scales: operand.2.address,
            rows: self.row_count,
            chain: 0,
            epsilon: self.epsilon,
            _padding: 0,
        };
        Ok(Dispatch {
            label: label.to_owned(),
            step,
            kernel,
            push: Push::of(&args),
            groups: [self.rows as u32, 1, 1],
            reads,
            writes,
            link: Link::Able {
                offset: std::mem::offset_of!(Args, chain),
                early: None,
                fill: Fill::Little,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{download, gpu, poisoned, run, upload};
    use half::f16;

    /// Returns the values of a row as a Fixed16 operand holds them, and the sums of its blocks.
    fn fixed(codes: &[i8], scales: &[f32], columns: usize) -> (Vec<f64>, Vec<f32>) {
        let value = |c: usize| {
            let (group, block, within) = (c / 128, c % 128 / 32, c % 32);
            let at = group * 256 + within / 16 * 64 + block * 16 + within % 16;
            let whole = 256 * i32::from(codes[at]) + i32::from(codes[at + 128]);
            f64::from(scales[2 * (c / 32)]) * f64::from(whole)
        };
        let padded = columns.next_multiple_of(GROUP);
        let sums = (0..padded / 32).map(|block| scales[2 * block + 1]).collect();
        ((0..padded).map(value).collect(), sums)
    }

    fn random(count: usize, seed: u64, size: f32) -> Vec<f32> {
        use rand::{RngExt, SeedableRng};
        let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        (0..count).map(|_| (random.random::<f32>() - 0.5) * size).collect()
    }

    struct Found {
        plain: Vec<f32>,
        target: Vec<f32>,
        codes: Vec<u8>,
        scales: Vec<f32>,
    }

    /// Runs a launch of `rows` of `width` rows.
    fn launch(
        kind: OperandKind,
        mode: u32,
        source: &[f32],
        columns: usize,
        rows: u32,
        others: [&[f32]; 3],
    ) -> Found {
        let gpu = gpu();
        let width = source.len() / columns;
        let input = upload(&gpu, source);
        let count = upload(&gpu, &[rows]);
        let [weight, target, next] = others.map(|values| upload(&gpu, values));
        let plain = poisoned(&gpu, (4 * width * columns) as u64);
        let codes = poisoned(&gpu, (width * kind.code_bytes(columns)) as u64);
        let scales = poisoned(&gpu, (width * kind.scale_bytes(columns)).max(4) as u64);
        let work = match mode {
            0 => RowWork::Convert,
            1 => RowWork::Norm { weight: weight.address() },
            2 => RowWork::NormAdd { weight: weight.address(), target: target.span() },
            _ => RowWork::NormAddNorm {
                weight: weight.address(),
                target: target.span(),
                next_weight: next.address(),
            },
        };
        let launch = RowsLaunch {
            work,
            source: input.span(),
            columns,
            rows: width,
            row_count: count.address(),
            epsilon: 1e-6,
            plain: Some(plain.span()),
            operand: Some(Operand { kind, codes: codes.span(), scales: scales.span() }),
        };
        run(&gpu, &[launch.dispatch(&gpu, "rows", 0).unwrap()]);
        Found {
            plain: download(&gpu, &plain),
            target: download(&gpu, &target),
            codes: download(&gpu, &codes),
            scales: download(&gpu, &scales),
        }
    }

    fn norm(row: &[f32], weight: &[f32]) -> Vec<f64> {
        let total: f64 = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        let factor = 1.0 / (total / row.len() as f64 + 1e-6).sqrt();
        row.iter().zip(weight).map(|(&x, &w)| f64::from(x) * factor * f64::from(w)).collect()
    }

    #[test]
    fn norms_and_operands_agree_with_their_definitions() {
        let cases = [(1, 1), (31, 2), (32, 3), (100, 2), (320, 3), (1152, 2), (2500, 1)];
        for (case, (columns, rows)) in cases.into_iter().enumerate() {
            let seed = 10 * case as u64;
            let source = random(columns * rows, seed, 3.0);
            let target = random(columns * rows, seed + 1, 5.0);
            let [weight, next] = [2, 3].map(|add| random(columns, seed + add, 2.0));
            for mode in 0..4 {
                let kind = [OperandKind::Fixed16, OperandKind::Halves][(mode as usize + case) % 2];
                let others = [weight.as_slice(), &target, &next];
                let found = launch(kind, mode, &source, columns, rows as u32, others);
                for row in 0..rows {
                    let range = row * columns..(row + 1) * columns;
                    let before = &source[range.clone()];
                    let normed = norm(before, &weight);
                    let added: Vec<f64> = normed
                        .iter()
                        .zip(&target[range.clone()])
                        .map(|(a, &b)| a + f64::from(b))
                        .collect();
                    let singles: Vec<f32> = added.iter().map(|&x| x as f32).collect();
                    let expected = match mode {
                        0 => before.iter().map(|&x| f64::from(x)).collect(),
                        1 => normed,
                        2 => added.clone(),
                        _ => norm(&singles, &next),
                    };
                    let high = expected.iter().fold(0.0_f64, |high, x| high.max(x.abs()));
                    let close = |found: f64, wanted: f64, part: f64| {
                        assert!(
                            (found - wanted).abs() <= part * high + 1e-12,
                            "{kind:?} {mode} {columns}: {found} {wanted}"
                        );
                    };
                    for (at, &wanted) in range.clone().zip(&expected) {
                        close(f64::from(found.plain[at]), wanted, 2e-6);
                        if mode > 1 {
                            assert!(
                                (f64::from(found.target[at]) - added[at - range.start]).abs()
                                    < 1e-4
                            );
                        }
                    }
                    let codes =
                        &found.codes[row * kind.code_bytes(columns)..][..kind.code_bytes(columns)];
                    if kind == OperandKind::Halves {
                        let halves: &[f16] = bytemuck::cast_slice(codes);
                        let factor = found.scales[row];
                        let largest =
                            halves.iter().fold(0.0_f32, |high, x| high.max(x.to_f32().abs()));
                        assert!((8192.0..=16384.0).contains(&largest), "{largest}");
                        for (c, half) in halves.iter().enumerate() {
                            let wanted = expected.get(c).copied().unwrap_or(0.0);
                            let value = f64::from(half.to_f32()) * f64::from(factor);
                            assert!(
                                (value - wanted).abs() <= 5e-4 * wanted.abs() + 5e-6 * high,
                                "{value} {wanted}"
                            );
                        }
                    } else {
                        let count = kind.scale_bytes(columns) / 4;
                        let scales = &found.scales[row * count..][..count];
                        let (values, sums) = fixed(bytemuck::cast_slice(codes), scales, columns);
                        for (c, value) in values.iter().enumerate() {
                            close(*value, expected.get(c).copied().unwrap_or(0.0), 2e-5);
                        }
                        for (block, sum) in sums.iter().enumerate() {
                            let wanted: f64 = expected.iter().skip(32 * block).take(32).sum();
                            close(f64::from(*sum), wanted, 1e-5);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn rows_beyond_the_step_are_left_alone() {
        let found = launch(
            OperandKind::Fixed16,
            1,
            &random(3 * 64, 1, 1.0),
            64,
            2,
            [&[1.0; 64], &[0.0], &[0.0]],
        );
        assert!(found.plain[..128].iter().all(|x| x.is_finite()));
        assert!(found.plain[128..192].iter().all(|x| x.is_nan()));
        assert!(found.codes[2 * 256..3 * 256].iter().all(|&byte| byte == 0xFF));
    }

    #[test]
    fn magnitudes_of_every_size_are_carried_and_broken_ones_stay_broken() {
        for kind in [OperandKind::Fixed16, OperandKind::Halves] {
            for size in [1e-20_f32, 1e-3, 1.0, 7e4, 1e6, 1e30] {
                let mut source = random(2 * 64, 5, size);
                source[64] = f32::NAN;
                let found = launch(kind, 0, &source, 64, 2, [&[0.0]; 3]);
                let value = |c: usize| match kind {
                    OperandKind::Halves => {
                        let halves: &[f16] = bytemuck::cast_slice(&found.codes);
                        f64::from(halves[c].to_f32()) * f64::from(found.scales[0])
                    }
                    _ => fixed(bytemuck::cast_slice(&found.codes), &found.scales, 64).0[c],
                };
                for (c, &wanted) in source[..64].iter().enumerate() {
                    let wanted = f64::from(wanted);
                    assert!(
                        (value(c) - wanted).abs() <= 6e-4 * wanted.abs() + f64::from(size) * 2e-5
                    );
                }
                let second = if kind == OperandKind::Halves { 1 } else { 8 };
                assert!(found.scales[second].is_nan(), "{kind:?}");
            }
        }
    }

    #[test]
    fn norms_of_broken_rows_give_broken_operands() {
        for broken in [f32::NAN, f32::INFINITY] {
            for mode in [1, 3] {
                let mut source = random(2 * 64, 6, 1.0);
                source[64 + 7] = broken;
                let others = [&[1.0; 64][..], &[0.5; 2 * 64], &[1.0; 64]];
                let found = launch(OperandKind::Halves, mode, &source, 64, 2, others);
                let halves: &[f16] = bytemuck::cast_slice(&found.codes);
                assert!(found.scales[0].is_finite() && halves[..64].iter().all(|x| x.is_finite()));
                assert!(found.scales[1].is_nan(), "{broken} in mode {mode}");
            }
        }
    }
}
