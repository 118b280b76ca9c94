//! The choice of experts with the router before it.

use trine_backend::reference::ops;

use super::super::router::{ROUTED_ROWS_MAX, RouterLaunch, routes};
use super::*;
use crate::kernels::handles::{Extent, Made};
use crate::kernels::rows::tests::{allocated, check_operand};
use crate::kernels::sum::Finish;
use crate::raw::transfer::Transfer;

struct Case {
    experts: usize,
    used: usize,
    columns: usize,
    rows: usize,
    format: Format,
    /// What the other norm gives, if it is wanted.
    other: Option<OperandKind>,
    /// Workgroups that share the experts of a row.
    slices: usize,
}

fn check(case: &Case) {
    let gpu = gpu();
    let Case { experts, used, columns, rows, format, other, slices } = *case;
    let (all, epsilon, scale) = (rows + 1, 1e-4, 0.5);
    let seed = (experts + columns) as u64;
    let source = random(all * columns, seed, 4.0);
    let [weight, other_weight] = [1, 2].map(|at| random(columns, seed + at, 2.0));
    let bytes = random_rows(format, experts, columns, seed + 3);
    let values = decoded(format, &bytes, experts * columns);
    let (router, _held) = device_matrix(&gpu, format, columns, &bytes);
    let factors = random(experts, seed + 4, 4.0);
    let [source_memory, weight_memory, other_memory, factors_memory] =
        [&source, &weight, &other_weight, &factors].map(|values| upload(&gpu, values));
    let count = upload(&gpu, &[rows as u32]);
    let counters = upload(&gpu, &[0_u32; ROUTED_ROWS_MAX]);
    let [logits, chosen, shares, plain] =
        [experts, used, used, columns].map(|columns| poisoned(&gpu, (4 * all * columns) as u64));
    let kind = other.unwrap_or(OperandKind::Fixed16);
    let codes = poisoned(&gpu, (allocated(kind, all) * kind.code_bytes(columns)) as u64);
    let scales = poisoned(&gpu, (all * kind.scale_bytes(columns)).max(4) as u64);
    let operand = Operand { kind, codes: codes.span(), scales: scales.span() };
    let launch = RouterLaunch {
        choice: ChoiceLaunch {
            logits: logits.span(),
            factors: Some(factors_memory.address()),
            scale,
            experts,
            used,
            chosen: chosen.span(),
            shares: shares.span(),
            extent: Extent { columns: experts, rows: all, row_count: count.address() },
        },
        source: source_memory.span(),
        norm: weight_memory.address(),
        epsilon,
        router,
        other: other.map(|_| Finish {
            weight: other_memory.address(),
            made: Made::Both(plain.span(), operand),
        }),
        counters: counters.span(),
    };
    // Twice: a choice that the counters keep from being made again leaves the second one's memory
    // as it is.
    let dispatch = || launch.dispatch_sliced(&gpu, slices, "router", 0).unwrap();
    run(&gpu, &[dispatch()]);
    let poison = vec![0xFF_u8; 4 * all * used];
    let transfer = Transfer::new(&gpu);
    for buffer in [&chosen, &shares] {
        transfer.write(buffer, 0, &poison).unwrap();
    }
    transfer.finish().unwrap();
    run(&gpu, &[dispatch()]);
    assert_eq!(download::<u32>(&gpu, &counters), [0; ROUTED_ROWS_MAX], "counters");

    let normed = |weight: &[f32]| {
        let mut output = vec![0.0; rows * columns];
        ops::norm(&source[..rows * columns], weight, epsilon, &mut output);
        output
    };
    let product = |row: &[f32], expert: usize| -> f32 {
        let terms = row.iter().zip(&values[expert * columns..][..columns]);
        terms.map(|(x, w)| f64::from(*x) * f64::from(*w)).sum::<f64>() as f32
    };
    let found: Vec<f32> = first_of(&logits, all * experts);
    let input = normed(&weight);
    for (row, input) in input.chunks_exact(columns).enumerate() {
        let size = input.iter().map(|x| x * x).sum::<f32>().sqrt();
        for expert in 0..experts {
            let (found, wanted) = (found[row * experts + expert], product(input, expert));
            assert!(
                (found - wanted).abs() <= 1e-4 * (1.0 + size),
                "{row} {expert}: {found} {wanted}"
            );
        }
    }
    let [mut wanted, mut parts] = [0, 1].map(|_| vec![0.0; rows * used]);
    ops::route(&found[..rows * experts], &factors, scale, &mut wanted, &mut parts);
    let [chosen, shares] = [chosen, shares].map(|buffer| first_of::<f32>(&buffer, all * used));
    assert_eq!(chosen[..rows * used], wanted, "{used} of {experts}");
    for (found, wanted) in shares.iter().zip(&parts) {
        assert!((found - wanted).abs() <= 1e-5 * wanted.abs() + 1e-9, "{found} {wanted}");
    }
    let beyond = [&chosen[rows * used..], &shares[rows * used..], &found[rows * experts..]];
    assert!(beyond.concat().iter().all(|x| x.is_nan()), "beyond the step");
    if other.is_some() {
        let wanted = normed(&other_weight);
        let found: Vec<f32> = first_of(&plain, all * columns);
        for (found, wanted) in found.iter().zip(&wanted) {
            assert!((found - wanted).abs() <= 2e-5 * (1.0 + wanted.abs()), "{found} {wanted}");
        }
        assert!(found[rows * columns..].iter().all(|x| x.is_nan()), "beyond the step");
        let (codes, scales): (Vec<u8>, Vec<f32>) =
            (download(&gpu, &codes), download(&gpu, &scales));
        check_operand(kind, &codes, &scales, &wanted, columns);
    }
}

#[test]
fn routers_agree_with_the_reference() {
    let case = |(experts, used), columns, rows, format, other, slices| {
        check(&Case { experts, used, columns, rows, format, other, slices });
    };
    let [fixed, halves, fragments] =
        [OperandKind::Fixed16, OperandKind::Halves, OperandKind::Fragments].map(Some);
    case((128, 8), 2816, 3, Format::F32, fixed, 8);
    case((128, 8), 640, 1, Format::F32, None, 1);
    case((1, 1), 3, 2, Format::F32, halves, 1);
    // Slices of different sizes, and some without experts.
    case((7, 3), 129, 5, Format::F16, fragments, 2);
    case((7, 3), 40, 2, Format::F32, None, 16);
    case((300, 20), 34, 4, Format::Bf16, fixed, 16);
    case((33, 2), 4096, ROUTED_ROWS_MAX - 1, Format::F32, halves, 2);
}

/// Needs no device: a choice that has no room in shared memory is not launched.
#[test]
fn choices_need_shared_memory() {
    use crate::capabilities::presets::{h200, radeon_780m};
    let sizes = (128, 8);
    for (capabilities, most) in [(h200(), ROUTED_ROWS_MAX), (radeon_780m(), 8)] {
        assert!(routes(&capabilities, sizes, 2816, most));
        assert!(!routes(&capabilities, sizes, 2816, most + 1), "too many rows");
        assert!(!routes(&capabilities, sizes, 4097, 1), "too many columns");
        assert!(!routes(&capabilities, (EXPERTS_MAX + 1, 8), 64, 1), "too many experts");
        assert!(chooses(&capabilities, EXPERTS_MAX, USED_MAX));
        let small = Capabilities { shared_bytes: 16 << 10, ..capabilities };
        assert!(routes(&small, sizes, 2816, 1), "15 KB");
        assert!(!routes(&small, sizes, 4096, 1), "20 KB");
        assert!(!chooses(&small, EXPERTS_MAX, 32), "16.6 KB");
    }
}
