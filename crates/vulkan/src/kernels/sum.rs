//! Weighted sums of rows, with norms of terms before them and of the sum after them:
//! `shaders/sum.comp`.

use bytemuck::{Pod, Zeroable};
use trine_model::TERMS_MAX;

use super::mix::addresses;
use super::operand::Operand;
use super::rows::{operand_args, registers};
use crate::compiler::Compiler;
use crate::dispatch::{Dispatch, Fill, Link, Push, Span};
use crate::error::GpuError;
use crate::raw::pipeline::KernelKey;
use crate::shaders::Shader;

/// Most columns of a row if a term is normed or the sum is: an invocation holds all terms and their
/// factors.
pub const NORMED_COLUMNS_MAX: usize = 4096;

/// A term of a sum.
#[derive(Debug, Clone, Copy)]
pub struct SumTerm {
    /// (rows, columns) f32.
    pub values: Span,
    /// Factor on it.
    pub factor: f32,
    /// Address of the factors of its norm, if it is normed first.
    pub norm: Option<u64>,
}

/// What is made of a sum.
#[derive(Debug, Clone, Copy)]
pub struct Finish {
    /// Address of the factors of the columns, f32.
    pub weight: u64,
    /// Where the result goes as f32.
    pub plain: Option<Span>,
    /// Where the result goes as an operand.
    pub operand: Option<Operand>,
}

impl Finish {
    /// Returns the memory that it sets.
    pub(super) fn writes(&self) -> impl Iterator<Item = Span> + '_ {
        self.plain.into_iter().chain(self.operand.iter().flat_map(Operand::spans))
    }
}

/// A launch of `trine_model::Op::Sum`, with norms.
#[derive(Debug, Clone)]
pub struct SumLaunch {
    /// From 1 to [`TERMS_MAX`].
    pub terms: Vec<SumTerm>,
    /// (rows, columns) f32.
    pub sum: Span,
    /// The norm of the sum, if it is wanted too.
    pub finish: Option<Finish>,
    /// Added to the mean squares of all norms.
    pub epsilon: f32,
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
    terms: [u64; TERMS_MAX],
    weights: [u64; TERMS_MAX],
    sum: u64,
    weight: u64,
    plain: u64,
    codes: u64,
    scales: u64,
    rows: u64,
    chain: u64,
}

impl SumLaunch {
    /// Returns the dispatch of the launch.
    ///
    /// # Errors
    /// If the kernel cannot be compiled.
    ///
    /// # Panics
    /// If a row has more columns than the kernel takes ([`super::rows::COLUMNS_MAX`], with norms
    /// [`NORMED_COLUMNS_MAX`]), or there are more terms than [`TERMS_MAX`].
    pub fn dispatch(
        &self,
        gpu: &dyn Compiler,
        label: &str,
        step: usize,
    ) -> Result<Dispatch, GpuError> {
        let norms = self.finish.is_some() || self.terms.iter().any(|term| term.norm.is_some());
        assert!(!norms || self.columns <= NORMED_COLUMNS_MAX, "rows of {}", self.columns);
        let (local, per) = registers(self.columns);
        let finish = self.finish;
        let (kind, codes, scales) = operand_args(finish.and_then(|finish| finish.operand));
        let mut weights = [0; TERMS_MAX];
        let mut factors = [0.0_f32; TERMS_MAX];
        let mut normed = 0;
        for (index, term) in self.terms.iter().enumerate() {
            factors[index] = term.factor;
            weights[index] = term.norm.unwrap_or(0);
            normed |= u32::from(term.norm.is_some()) << index;
        }
        let plain = finish.and_then(|finish| finish.plain);
        let values: Vec<Span> = self.terms.iter().map(|term| term.values).collect();
        let args = Args {
            terms: addresses(&values),
            weights,
            sum: self.sum.address,
            weight: finish.map_or(0, |finish| finish.weight),
            plain: plain.map_or(0, |plain| plain.address),
            codes,
            scales,
            rows: self.row_count,
            chain: 0,
        };
        let mut constants = vec![
            local as u32,
            self.terms.len() as u32,
            normed,
            u32::from(finish.is_some()),
            kind,
            u32::from(plain.is_some()),
            self.columns as u32,
            per as u32,
        ];
        constants.extend(factors.map(f32::to_bits));
        constants.push(self.epsilon.to_bits());
        let key = KernelKey { shader: Shader("sum"), constants, subgroup: None };
        let mut writes = vec![self.sum];
        writes.extend(finish.iter().flat_map(Finish::writes));
        Ok(Dispatch {
            label: label.to_owned(),
            step,
            kernel: gpu.kernel(&key)?,
            push: Push::of(&args),
            groups: [self.rows as u32, 1, 1],
            reads: values,
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
    use trine_backend::reference::ops;

    use super::*;
    use crate::kernels::operand::OperandKind;
    use crate::kernels::rows::tests::{allocated, check_operand, random};
    use crate::raw::memory::Buffer;
    use crate::testing::{download, gpu, poisoned, run, upload};

    /// Terms, which of them are normed as bits, whether the sum is, columns, rows.
    const CASES: [(usize, usize, bool, usize, usize); 7] = [
        (1, 0, false, 1, 1),
        (2, 0, false, 9000, 2),
        (4, 0b1010, true, 320, 3),
        (4, 0b1111, false, 2048, 1),
        (3, 0b001, true, 33, 2),
        (2, 0, true, 2500, 1),
        (4, 0b0110, true, 128, 4),
    ];

    #[test]
    fn sums_agree_with_the_reference() {
        let gpu = gpu();
        for (case, (count, normed, finishes, columns, rows)) in CASES.into_iter().enumerate() {
            let seed = 30 * case as u64;
            let values = |at: usize| random(columns * rows, seed + at as u64, 3.0);
            let weight = |at: usize| random(columns, seed + 10 + at as u64, 2.0);
            let factors = [0.7, -1.0, 0.25, 1.5];
            let terms: Vec<Vec<f32>> = (0..count).map(values).collect();
            let weights: Vec<Vec<f32>> = (0..=count).map(weight).collect();
            let memory: Vec<Buffer> = terms.iter().map(|values| upload(&gpu, values)).collect();
            let held: Vec<Buffer> = weights.iter().map(|values| upload(&gpu, values)).collect();
            let bytes = 4 * (columns * (rows + 1)) as u64;
            let (sum, plain) = (poisoned(&gpu, bytes), poisoned(&gpu, bytes));
            let kind =
                [OperandKind::Fixed16, OperandKind::Halves, OperandKind::Fragments][case % 3];
            let codes =
                poisoned(&gpu, (allocated(kind, rows + 1) * kind.code_bytes(columns)) as u64);
            let scales = poisoned(&gpu, ((rows + 1) * kind.scale_bytes(columns)).max(4) as u64);
            let operand = Operand { kind, codes: codes.span(), scales: scales.span() };
            let finish = Finish {
                weight: held[count].address(),
                plain: Some(plain.span()),
                operand: Some(operand),
            };
            let is_normed = |at: usize| normed >> at & 1 != 0;
            let term = |at: usize| SumTerm {
                values: memory[at].span(),
                factor: factors[at],
                norm: is_normed(at).then(|| held[at].address()),
            };
            let row_count = upload(&gpu, &[rows as u32]);
            let launch = SumLaunch {
                terms: (0..count).map(term).collect(),
                sum: sum.span(),
                finish: finishes.then_some(finish),
                epsilon: 1e-3,
                columns,
                rows: rows + 1,
                row_count: row_count.address(),
            };
            run(&gpu, &[launch.dispatch(&gpu, "sum", 0).unwrap()]);
            let prepared: Vec<Vec<f32>> = (0..count)
                .map(|at| {
                    let mut output = terms[at].clone();
                    if is_normed(at) {
                        ops::norm(&terms[at], &weights[at], 1e-3, &mut output);
                    }
                    output
                })
                .collect();
            let all: Vec<(f32, &[f32])> = prepared
                .iter()
                .enumerate()
                .map(|(at, values)| (factors[at], &values[..]))
                .collect();
            let mut expected = vec![0.0; columns * rows];
            ops::sum(&all, &mut expected);
            let check = |memory: &Buffer, expected: &[f32]| {
                let found: Vec<f32> = download(&gpu, memory);
                for (at, wanted) in expected.iter().enumerate() {
                    let near = (found[at] - wanted).abs() <= 2e-5 * (1.0 + wanted.abs());
                    assert!(near, "{case} {at}: {} {wanted}", found[at]);
                }
                let rest = &found[columns * rows..columns * (rows + 1)];
                assert!(rest.iter().all(|x| x.is_nan()), "beyond the step");
            };
            check(&sum, &expected);
            if finishes {
                let mut result = expected.clone();
                ops::norm(&expected, &weights[count], 1e-3, &mut result);
                check(&plain, &result);
                let (codes, scales): (Vec<u8>, Vec<f32>) =
                    (download(&gpu, &codes), download(&gpu, &scales));
                check_operand(kind, &codes, &scales, &result, columns);
            }
        }
    }
}
