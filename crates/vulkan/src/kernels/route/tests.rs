use trine_backend::reference::ops::{self, Coefficients};

use super::*;
use crate::kernels::handles::Made;
use crate::kernels::operand::Operand;
use crate::kernels::rows::tests::{KINDS, allocated, check_operand, random};
use crate::pack::tests::{decoded, device_matrix, random_rows};
use crate::raw::memory::Buffer;
use crate::testing::{download, gpu, poisoned, run, upload};

const EPSILON: f32 = 1e-3;

#[derive(Debug, Clone, Copy)]
struct Case {
    streams: usize,
    corrects: bool,
    adds: bool,
    /// 0: nothing, 1: a norm, 2: a product.
    finish: usize,
    formats: [Format; 2],
    columns: usize,
    rows: usize,
}

/// The values of a launch, in f32.
struct Values {
    streams: Vec<Vec<f32>>,
    row: Vec<f32>,
    added: Vec<f32>,
    /// Factors of the norm of what is added, of the router's norm, and of the first stream.
    weights: [Vec<f32>; 3],
    router: Vec<u8>,
    coefficients: Vec<u8>,
}

impl Values {
    fn new(case: Case, seed: u64) -> Self {
        let Case { streams, columns, rows, .. } = case;
        let sources = if case.corrects { 1 } else { streams };
        let values = |at: usize| random(columns * rows, seed + at as u64, 3.0);
        Self {
            streams: (0..streams).map(values).collect(),
            row: values(5),
            added: values(6),
            weights: [7, 8, 9].map(|at| random(columns, seed + at, 2.0)),
            router: random_rows(case.formats[0], streams, columns, seed + 10),
            coefficients: random_rows(case.formats[1], streams * sources, streams, seed + 11),
        }
    }

    /// Returns the streams and what is made of the first, by the plain operations.
    fn expected(&self, case: Case) -> (Vec<Vec<f32>>, Vec<f32>) {
        let Case { streams, corrects, columns, rows, .. } = case;
        let sources = if corrects { 1 } else { streams };
        let mut before = self.streams.clone();
        let mut row = if corrects { self.row.clone() } else { before[0].clone() };
        if case.adds {
            let mut normed = self.added.clone();
            ops::norm(&self.added, &self.weights[0], EPSILON, &mut normed);
            if corrects {
                ops::add(&normed, &mut row);
            } else {
                before[1..].iter_mut().for_each(|stream| ops::add(&normed, stream));
            }
        }
        let mut normed = row.clone();
        ops::norm(&row, &self.weights[1], EPSILON, &mut normed);
        let router = decoded(case.formats[0], &self.router, streams * columns);
        let matrix = decoded(case.formats[1], &self.coefficients, streams * sources * streams);
        let product = |input: &[f32], matrix: &[f32], columns: usize| {
            let outputs = matrix.len() / columns;
            let mut output = vec![0.0; rows * outputs];
            for (out, weight) in matrix.chunks_exact(columns).enumerate() {
                ops::matmul_column(input, weight, out, outputs, &mut output);
            }
            output
        };
        let mut routed = product(&normed, &router, columns);
        ops::softcap(&mut routed, 7.0);
        let values = product(&routed, &matrix, streams);
        let mut innovation = row.clone();
        ops::sum(&[(1.0, &row), (-1.0, &before[0])], &mut innovation);
        let all: Vec<&[f32]> = match corrects {
            true => vec![&innovation],
            false => before.iter().map(Vec::as_slice).collect(),
        };
        let mixed: Vec<Vec<f32>> = (0..streams)
            .map(|stream| {
                let coefficients = Coefficients {
                    values: &values,
                    width: streams * sources,
                    first: stream * sources,
                    bias: 0.5,
                    scale: 0.25,
                };
                let mut output = before[stream].clone();
                ops::mix(&before[stream], &all, &coefficients, columns, &mut output);
                output
            })
            .collect();
        let mut first = mixed[0].clone();
        match case.finish {
            1 => ops::norm(&mixed[0], &self.weights[2], EPSILON, &mut first),
            _ => ops::scale(&mixed[0], &self.weights[2], &mut first),
        }
        (mixed, first)
    }
}

/// Runs a case and compares it with the plain operations. There is room for a row that the step
/// does not have.
fn check(case: Case, seed: u64) {
    let Case { columns, rows, .. } = case;
    let gpu = gpu();
    let values = Values::new(case, seed);
    let padded = |values: &[f32]| {
        let mut values = values.to_vec();
        values.resize((rows + 1) * columns, f32::NAN);
        upload(&gpu, &values)
    };
    let streams: Vec<Buffer> = values.streams.iter().map(|values| padded(values)).collect();
    let (row, added) = (padded(&values.row), padded(&values.added));
    let weights = [0, 1, 2].map(|at| upload(&gpu, &values.weights[at]));
    let (router, _kept) = device_matrix(&gpu, case.formats[0], columns, &values.router);
    let (coefficients, _also) =
        device_matrix(&gpu, case.formats[1], case.streams, &values.coefficients);
    let kind = KINDS[seed as usize % KINDS.len()];
    let plain = poisoned(&gpu, (4 * columns * (rows + 1)) as u64);
    let codes = poisoned(&gpu, (allocated(kind, rows + 1) * kind.code_bytes(columns)) as u64);
    let scales = poisoned(&gpu, ((rows + 1) * kind.scale_bytes(columns)).max(4) as u64);
    let finish = Finish {
        weight: weights[2].address(),
        made: Made::Both(
            plain.span(),
            Operand { kind, codes: codes.span(), scales: scales.span() },
        ),
    };
    let count = upload(&gpu, &[rows as u32]);
    let launch = RouteLaunch {
        streams: streams
            .iter()
            .map(|stream| Stream { input: stream.span(), output: stream.span() })
            .collect(),
        row: case.corrects.then(|| row.span()),
        added: case.adds.then(|| Added { values: added.span(), weight: weights[0].address() }),
        router: Router { norm: weights[1].address(), router, coefficients, cap: 7.0 },
        bias: 0.5,
        scale: 0.25,
        first: [None, Some(FirstStream::Normed(finish)), Some(FirstStream::Scaled(finish))]
            [case.finish],
        epsilon: EPSILON,
        extent: Extent { columns, rows: rows + 1, row_count: count.address() },
    };
    run(&gpu, &[launch.dispatch(&gpu, "route", 0).unwrap()]);
    let (expected, first) = values.expected(case);
    let compare = |memory: &Buffer, expected: &[f32]| {
        let found: Vec<f32> = download(&gpu, memory);
        for (found, wanted) in found.iter().zip(expected) {
            assert!((found - wanted).abs() <= 1e-4 * (1.0 + wanted.abs()), "{case:?}");
        }
        let rest = &found[columns * rows..columns * (rows + 1)];
        assert!(rest.iter().all(|x| x.is_nan()), "a row beyond the step");
    };
    streams.iter().zip(&expected).for_each(|(memory, expected)| compare(memory, expected));
    if case.finish > 0 {
        compare(&plain, &first);
        let (codes, scales): (Vec<u8>, Vec<f32>) =
            (download(&gpu, &codes), download(&gpu, &scales));
        check_operand(kind, &codes, &scales, &first, columns);
    }
}

#[test]
fn routed_mixes_agree_with_the_reference() {
    let (f32, f16, bf16) = (Format::F32, Format::F16, Format::Bf16);
    let cases = [
        (4, false, true, 1, [f16, f16], 2048, 1),
        (4, true, true, 2, [bf16, f32], 320, 3),
        (3, false, false, 0, [f32, bf16], 132, 2),
        (2, true, false, 1, [f16, bf16], 36, 1),
        (1, false, true, 2, [f32, f16], 4, 2),
        (4, false, false, 2, [bf16, f16], 2500, 1),
        (4, true, true, 0, [f16, f32], 64, 4),
        (3, false, true, 1, [bf16, f16], 31, 2),
    ];
    for (seed, (streams, corrects, adds, finish, formats, columns, rows)) in (0..).zip(cases) {
        check(Case { streams, corrects, adds, finish, formats, columns, rows }, 100 * seed + seed);
    }
}
