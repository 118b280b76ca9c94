//! Products of more tiles than a dispatch may have workgroups.

use super::*;

/// Products of Gemma's vocabulary with 256 rows are more tiles than many devices take workgroups.
#[test]
fn a_product_of_too_many_tiles_is_done_in_pieces() {
    const WIDTH: usize = 300;
    const ALLOCATED: usize = 512;
    let (gpu, columns) = (gpu(), 64);
    let mut random = ChaCha8Rng::seed_from_u64(77);
    for (format, gated) in [(Format::Q8_0, false), (Format::F32, false), (Format::F32, true)] {
        let weights = weights(&mut random, format, 96, columns);
        let kind = MatmulShape::operand_for(gpu.capabilities(), format, WIDTH);
        let rows = values(&mut random, ALLOCATED * columns, 6.0);
        let operand = activations(kind, &rows, columns);
        let parts: &[usize] = if gated { &[48] } else { &[50, 46] };
        let scratch = scratch(&gpu, 1 << 20);
        // Returns what a run of the pieces, or of the whole, leaves in the targets.
        let outputs = |limit: Option<u32>| -> (usize, Vec<Vec<f32>>) {
            let targets: Vec<Buffer> =
                parts.iter().map(|rows| poisoned(&gpu, (4 * rows * ALLOCATED) as u64)).collect();
            let segments: Vec<Segment> = parts
                .iter()
                .zip(&targets)
                .map(|(&rows, target)| Segment { rows, target: target.span() })
                .collect();
            let output = match gated {
                true => ProductOutput::Gated(Made::Rows(targets[0].span())),
                false => ProductOutput::segments(&segments),
            };
            let product = Product {
                matrix: weights.matrix,
                width: WIDTH,
                input: ProductInput::Operand(operand.operand),
                output,
            };
            let launch = MatmulLaunch { product, scratch: Some(scratch.span()) };
            let real = gpu.capabilities();
            let [most, ..] = real.groups;
            let groups = [limit.unwrap_or(most); 3];
            let capabilities = Capabilities { groups, ..real.clone() };
            let at_once = launch.rows_at_once(&capabilities, ALLOCATED);
            let mut dispatches = Vec::new();
            for first in (0..WIDTH).step_by(at_once) {
                let piece = launch.piece(first, at_once);
                let shape = MatmulShape::default_for(&capabilities, &piece);
                dispatches.push(piece.dispatch(&gpu, shape, "a piece", 0).unwrap());
            }
            let tiles = |dispatch: &Dispatch| limit.is_none_or(|limit| dispatch.groups[0] <= limit);
            assert!(dispatches.iter().all(tiles));
            run(&gpu, &dispatches);
            (at_once, targets.iter().map(|target| download(&gpu, target)).collect())
        };
        let (at_once, whole) = outputs(None);
        assert_eq!(at_once, WIDTH);
        let product = Product {
            matrix: weights.matrix,
            width: PIECE_ROWS,
            input: ProductInput::Operand(operand.operand),
            output: ProductOutput::Gated(Made::Rows(scratch.span())),
        };
        let small = MatmulLaunch { product, scratch: None };
        // One workgroup fewer than the whole takes in the shape that takes fewest.
        let whole_segments = [Segment { rows: 96, target: scratch.span() }];
        let output = match gated {
            true => product.output,
            false => ProductOutput::segments(&whole_segments),
        };
        let all = MatmulLaunch { product: Product { width: WIDTH, output, ..product }, ..small };
        let shapes = MatmulShape::candidates(gpu.capabilities(), &all);
        let fewest = shapes.iter().map(|shape| shape.workgroups(&all)).min().unwrap();
        let (at_once, pieces) = outputs(Some(fewest - 1));
        assert!(at_once < WIDTH && at_once.is_multiple_of(PIECE_ROWS), "{at_once}");
        for ((rows, whole), pieces) in parts.iter().zip(whole).zip(pieces) {
            let own = rows * WIDTH;
            let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-4 * a.abs().max(1.0);
            assert!(whole[..own].iter().zip(&pieces[..own]).all(close), "{format:?} {gated}");
        }
        // One row of tiles, which may be a single tile, is more than the device can launch: an
        // error that says so and what helps.
        let none = Capabilities { groups: [0; 3], ..gpu.capabilities().clone() };
        assert_eq!(small.rows_at_once(&none, ALLOCATED), PIECE_ROWS);
        let error = small.misfit(&none, &MatmulShape::default_for(&none, &small), "logits");
        assert!(matches!(error, GpuError::TooWide { .. }), "{error}");
    }
}
