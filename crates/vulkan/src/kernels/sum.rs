//! Weighted sums of rows, with norms of terms before them and of the sum after them:
//! `shaders/sum.comp`.

use bytemuck::{Pod, Zeroable};
use trine_model::TERMS_MAX;

use super::handles::{Addresses, Extent, Handles, Made, Visitor, spans};
use super::mix::addresses;
use super::rows::{operand_args, registers};
use crate::compiler::Compiler;
use crate::dispatch::{Dispatch, Fill, Link, Push};
use crate::error::GpuError;
use crate::raw::pipeline::KernelKey;
use crate::shaders::Shader;

/// Most columns of a row if a term is normed or the sum is: an invocation holds all terms and their
/// factors.
pub const NORMED_COLUMNS_MAX: usize = 4096;

/// A term of a sum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SumTerm<H: Handles = Addresses> {
    /// (rows, columns) f32, or (rows, parts, columns) with shares.
    pub values: H::Rows,
    /// (rows, parts) f32 with which the parts of a row are added in their order, and the number of
    /// parts. At most one term has them, of fewer than [`TERMS_MAX`].
    pub shares: Option<(H::Rows, usize)>,
    /// Factor on it.
    pub factor: f32,
    /// The factors of its norm, if it is normed first.
    pub norm: Option<H::Vector>,
}

impl<H: Handles> SumTerm<H> {
    /// A term of whole rows.
    pub fn of(values: H::Rows, factor: f32) -> Self {
        Self { values, factor, shares: None, norm: None }
    }
}

/// What is made of a row beside the result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Finish<H: Handles = Addresses> {
    /// The factors of the columns, f32.
    pub weight: H::Vector,
    /// Where it goes.
    pub made: Made<H>,
}

impl<H: Handles> Finish<H> {
    pub(crate) fn visit<B: Handles>(&self, by: &mut impl Visitor<H, B>) -> Finish<B> {
        Finish { weight: by.vector(self.weight), made: self.made.visit(by) }
    }
}

/// How the norm of a sum is added to a row, which the result replaces.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SumAdd<H: Handles = Addresses> {
    /// The factors of the norm, f32.
    pub norm: H::Vector,
    /// (rows, columns) f32, where the result goes.
    pub target: H::Rows,
    /// Factor on the result of the addition.
    pub scale: f32,
}

/// A launch of `trine_model::Op::Sum`, with norms.
#[derive(Debug, Clone, PartialEq)]
pub struct SumLaunch<H: Handles = Addresses> {
    /// From 1 to [`TERMS_MAX`].
    pub terms: Vec<SumTerm<H>>,
    /// If there is one, the result is `(target + norm(sum)) * scale`, otherwise the sum.
    pub added: Option<SumAdd<H>>,
    /// The result, (rows, columns) f32.
    pub sum: H::Rows,
    /// The norm of the result, if it is wanted too.
    pub finish: Option<Finish<H>>,
    /// Added to the mean squares of all norms; 0 without norms.
    pub epsilon: f32,
    /// The rows and columns.
    pub extent: H::Extent,
}

impl<H: Handles<Extent = ()>> SumLaunch<H> {
    /// A sum without norms.
    pub(crate) fn of(terms: Vec<SumTerm<H>>, sum: H::Rows) -> Self {
        Self { terms, added: None, sum, finish: None, epsilon: 0.0, extent: () }
    }
}

impl<H: Handles> SumLaunch<H> {
    /// Returns the launch over what a visitor gives for its operands.
    pub(crate) fn visit<B: Handles>(&self, by: &mut impl Visitor<H, B>) -> SumLaunch<B> {
        let term = |term: &SumTerm<H>| SumTerm {
            values: by.read(term.values),
            shares: term.shares.map(|(shares, parts)| (by.read(shares), parts)),
            factor: term.factor,
            norm: term.norm.map(|norm| by.vector(norm)),
        };
        SumLaunch {
            terms: self.terms.iter().map(term).collect(),
            added: self.added.map(|SumAdd { norm, target, scale }| SumAdd {
                norm: by.vector(norm),
                target: by.read(target),
                scale,
            }),
            sum: by.write(self.sum),
            finish: self.finish.map(|finish| finish.visit(by)),
            epsilon: self.epsilon,
            extent: by.extent(self.extent, self.sum),
        }
    }

    /// Returns what is launched.
    pub(crate) fn name(&self) -> String {
        let norms = self.terms.iter().filter(|term| term.norm.is_some()).map(|_| "norm + ");
        let parts = self.terms.iter().any(|term| term.shares.is_some());
        let what = if parts { "sum of parts" } else { "sum" };
        let added = if self.added.is_some() { " + norm_add" } else { "" };
        let after = if self.finish.is_some() { " + norm" } else { "" };
        format!("{}{what}{added}{after}", norms.collect::<String>())
    }

    /// Returns whether it norms anything.
    pub(crate) fn norms(&self) -> bool {
        let is_normed = self.terms.iter().any(|term| term.norm.is_some());
        is_normed || self.added.is_some() || self.finish.is_some()
    }
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Args {
    terms: [u64; TERMS_MAX],
    weights: [u64; TERMS_MAX],
    added_weight: u64,
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
    /// [`NORMED_COLUMNS_MAX`]), there are more terms than [`TERMS_MAX`], or the result does not
    /// replace the row that it is added to.
    pub fn dispatch(
        &self,
        gpu: &dyn Compiler,
        label: &str,
        step: usize,
    ) -> Result<Dispatch, GpuError> {
        let Extent { columns, rows, row_count } = self.extent;
        assert!(!self.norms() || columns <= NORMED_COLUMNS_MAX, "rows of {columns}");
        assert!(self.added.is_none_or(|added| added.target == self.sum), "{label} adds elsewhere");
        let (local, per) = registers(columns);
        let finish = self.finish;
        let (kind, codes, scales) = operand_args(finish.and_then(|finish| finish.made.operand()));
        let mut weights = [0; TERMS_MAX];
        let mut factors = [0.0_f32; TERMS_MAX];
        let mut normed = 0;
        for (index, term) in self.terms.iter().enumerate() {
            factors[index] = term.factor;
            weights[index] = term.norm.unwrap_or(0);
            normed |= u32::from(term.norm.is_some()) << index;
        }
        let plain = finish.and_then(|finish| finish.made.rows());
        let parted = self.terms.iter().position(|term| term.shares.is_some());
        let shares = parted.and_then(|index| self.terms[index].shares);
        let many = self.terms.iter().filter(|term| term.shares.is_some()).count();
        assert!(many <= 1, "{many} terms of parts");
        let mut terms = addresses(self.terms.iter().map(|term| term.values));
        if let Some((shares, _)) = shares {
            assert!(self.terms.len() < TERMS_MAX, "no place for shares");
            terms[TERMS_MAX - 1] = shares.address;
        }
        let args = Args {
            terms,
            weights,
            added_weight: self.added.map_or(0, |added| added.norm),
            sum: self.sum.address,
            weight: finish.map_or(0, |finish| finish.weight),
            plain: plain.map_or(0, |plain| plain.address),
            codes,
            scales,
            rows: row_count,
            chain: 0,
        };
        let mut constants = vec![
            local as u32,
            self.terms.len() as u32,
            normed,
            u32::from(finish.is_some()),
            kind,
            u32::from(plain.is_some()),
            columns as u32,
            per as u32,
        ];
        constants.extend(factors.map(f32::to_bits));
        constants.push(self.epsilon.to_bits());
        constants.push(parted.unwrap_or(TERMS_MAX) as u32);
        constants.push(shares.map_or(1, |(_, used)| used) as u32);
        constants.push(u32::from(self.added.is_some()));
        constants.push(self.added.map_or(1.0, |added| added.scale).to_bits());
        let key = KernelKey { shader: Shader("sum"), constants, subgroup: None };
        let (reads, writes) = spans(|by| _ = self.visit(by));
        Ok(Dispatch {
            label: label.to_owned(),
            step,
            kernel: gpu.kernel(&key)?,
            push: Push::of(&args),
            groups: [rows as u32, 1, 1],
            reads,
            writes,
            link: Link::Able {
                offset: std::mem::offset_of!(Args, chain),
                early: None,
                fill: Fill::Little,
            },
            hands: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use trine_backend::reference::ops;

    use super::*;
    use crate::kernels::operand::Operand;
    use crate::kernels::rows::tests::{KINDS, allocated, check_operand, random};
    use crate::raw::memory::Buffer;
    use crate::testing::{download, gpu, poisoned, run, upload};

    #[derive(Clone, Copy)]
    struct Case {
        terms: usize,
        /// Which terms are normed, as bits.
        normed: usize,
        /// Whether the result is normed, too.
        finishes: bool,
        /// The term of parts, and how many they are.
        parted: Option<(usize, usize)>,
        adds: bool,
        columns: usize,
        rows: usize,
    }

    fn cases() -> Vec<Case> {
        let case = |terms, normed, finishes, columns, rows| {
            let (parted, adds) = (None, false);
            Case { terms, normed, finishes, parted, adds, columns, rows }
        };
        let parts = |parted, adds, case| Case { parted: Some(parted), adds, ..case };
        vec![
            case(1, 0, false, 1, 1),
            case(2, 0, false, 9000, 2),
            case(4, 0b1010, true, 320, 3),
            case(4, 0b1111, false, 2048, 1),
            case(3, 0b001, true, 33, 2),
            case(2, 0, true, 2500, 1),
            case(4, 0b0110, true, 128, 4),
            parts((0, 8), false, case(1, 0, false, 33, 3)),
            parts((0, 3), false, case(1, 0, false, 5000, 2)),
            parts((1, 9), false, case(2, 0b11, false, 2816, 2)),
            parts((2, 1), true, case(3, 0b101, true, 130, 2)),
            parts((1, 8), true, case(2, 0b11, true, 2816, 3)),
            Case { adds: true, ..case(2, 0b10, true, 65, 3) },
            Case { adds: true, ..case(1, 0, false, 640, 1) },
        ]
    }

    /// Returns the sums of `used` parts of each row, by their shares.
    fn sums_of_parts(parts: &[f32], shares: &[f32], used: usize, columns: usize) -> Vec<f32> {
        let sum = |row: usize, column: usize| -> f32 {
            let part =
                |u: usize| shares[row * used + u] * parts[(row * used + u) * columns + column];
            (0..used).map(part).sum()
        };
        let rows = shares.len() / used;
        (0..rows * columns).map(|at| sum(at / columns, at % columns)).collect()
    }

    #[test]
    fn sums_agree_with_the_reference() {
        let gpu = gpu();
        for (case, numbers) in cases().into_iter().enumerate() {
            let Case { terms: count, normed, finishes, parted, adds, columns, rows } = numbers;
            let seed = 30 * case as u64;
            let used = |at: usize| match parted {
                Some((term, used)) if term == at => used,
                _ => 1,
            };
            let values = |at: usize| random(used(at) * columns * rows, seed + at as u64, 3.0);
            let shares = random(parted.map_or(1, |(_, used)| used) * rows, seed + 20, 1.0);
            let target = random(columns * rows, seed + 21, 2.0);
            let added_weight = random(columns, seed + 22, 2.0);
            let [shares_memory, added_memory] =
                [&shares, &added_weight].map(|values| upload(&gpu, values));
            let weight = |at: usize| random(columns, seed + 10 + at as u64, 2.0);
            let factors = [0.7, -1.0, 0.25, 1.5];
            let terms: Vec<Vec<f32>> = (0..count).map(values).collect();
            let weights: Vec<Vec<f32>> = (0..=count).map(weight).collect();
            let memory: Vec<Buffer> = terms.iter().map(|values| upload(&gpu, values)).collect();
            let held: Vec<Buffer> = weights.iter().map(|values| upload(&gpu, values)).collect();
            let bytes = 4 * (columns * (rows + 1)) as u64;
            let beyond = vec![f32::NAN; columns];
            let sum = match adds {
                true => upload(&gpu, &[&target[..], &beyond[..]].concat()),
                false => poisoned(&gpu, bytes),
            };
            let plain = poisoned(&gpu, bytes);
            let kind = KINDS[case % KINDS.len()];
            let codes =
                poisoned(&gpu, (allocated(kind, rows + 1) * kind.code_bytes(columns)) as u64);
            let scales = poisoned(&gpu, ((rows + 1) * kind.scale_bytes(columns)).max(4) as u64);
            let operand = Operand { kind, codes: codes.span(), scales: scales.span() };
            let finish =
                Finish { weight: held[count].address(), made: Made::Both(plain.span(), operand) };
            let is_normed = |at: usize| normed >> at & 1 != 0;
            let term = |at: usize| SumTerm {
                values: memory[at].span(),
                factor: factors[at],
                shares: (parted.map(|(term, _)| term) == Some(at))
                    .then(|| (shares_memory.span(), used(at))),
                norm: is_normed(at).then(|| held[at].address()),
            };
            let row_count = upload(&gpu, &[rows as u32]);
            let launch = SumLaunch {
                terms: (0..count).map(term).collect(),
                added: adds.then(|| SumAdd {
                    norm: added_memory.address(),
                    target: sum.span(),
                    scale: 0.5,
                }),
                sum: sum.span(),
                finish: finishes.then_some(finish),
                epsilon: 1e-3,
                extent: Extent { columns, rows: rows + 1, row_count: row_count.address() },
            };
            run(&gpu, &[launch.dispatch(&gpu, "sum", 0).unwrap()]);
            let prepared: Vec<Vec<f32>> = (0..count)
                .map(|at| {
                    let mut whole = terms[at].clone();
                    if parted.map(|(term, _)| term) == Some(at) {
                        whole = sums_of_parts(&terms[at], &shares, used(at), columns);
                    }
                    let mut output = whole.clone();
                    if is_normed(at) {
                        ops::norm(&whole, &weights[at], 1e-3, &mut output);
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
            if adds {
                let mut normed = expected.clone();
                ops::norm(&expected, &added_weight, 1e-3, &mut normed);
                let both = target.iter().zip(&normed);
                expected = both.map(|(target, normed)| 0.5 * (target + normed)).collect();
            }
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
