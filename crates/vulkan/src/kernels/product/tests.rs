use super::*;
use crate::kernels::matmul::MatmulLaunch;
use crate::kernels::matvec::MatvecLaunch;
use crate::kernels::one_row::OneRowLaunch;
use crate::pack::{Arranged, Format, PlaneBytes};

const MATRIX: Matrix = Matrix {
    format: Format::Q4_0,
    rows: 512,
    columns: 256,
    planes: PlaneBytes { codes: 1, high: 2, scales: 3, supers: 4 },
    unit: 1.0,
    arranged: None,
};

fn span(address: u64) -> Span {
    Span { address, bytes: 8 }
}

fn operand(kind: OperandKind, address: u64) -> Operand {
    let is_f32 = matches!(kind, OperandKind::Plain | OperandKind::Interleaved);
    let scales = if is_f32 { Span { address: 0, bytes: 0 } } else { span(address + 1000) };
    Operand { kind, codes: span(address), scales }
}

fn double_norm() -> ProductInput {
    ProductInput::NormAddNorm {
        x: span(100),
        scale: 1.0,
        added: span(200),
        added_weight: 300,
        weight: 400,
        epsilon: 0.5,
        x_out: Some(span(500)),
    }
}

/// Files of measurements hold these: with other keys everything would be measured again.
#[test]
fn keys_stay_as_files_have_them() {
    let rows = ProductOutput::segments(&[]);
    let plain = ProductOutput::Gated(Made::Rows(span(0)));
    let gated = |kind| ProductOutput::Gated(Made::Operand(operand(kind, 0)));
    let fixed = operand(OperandKind::Fixed16, 0);
    let both = ProductOutput::Gated(Made::Both(span(0), fixed));
    let halves = operand(OperandKind::Halves, 0);
    let halves = ProductOutput::GatedHalves { operand: halves, unit: 1.0 };
    let given = |kind| ProductInput::Operand(operand(kind, 0));
    let norm = ProductInput::Norm { x: span(0), weight: 0, epsilon: 0.0 };
    let stream =
        |input, output| OneRowLaunch(Product { matrix: MATRIX, width: 1, input, output }).key();
    let matvec =
        |width, input, output| MatvecLaunch(Product { matrix: MATRIX, width, input, output }).key();
    let matmul = |width, input, output| {
        let product = Product { matrix: MATRIX, width, input, output };
        MatmulLaunch { product, scratch: None }.key()
    };
    let arranged = |width, input, output| {
        let copy = Some(Arranged { address: 0, is_gated: false });
        let matrix = Matrix { arranged: copy, ..MATRIX };
        let product = Product { matrix, width, input, output };
        MatmulLaunch { product, scratch: None }.key()
    };
    let interleaved = OperandKind::Interleaved;
    let keys = [
        stream(given(OperandKind::Plain), rows),
        stream(given(interleaved), plain),
        stream(norm, gated(interleaved)),
        stream(double_norm(), rows),
        matvec(1, norm, rows),
        matvec(2, given(OperandKind::Fixed16), gated(OperandKind::Fixed16)),
        matvec(8, given(OperandKind::Plain), both),
        matmul(16, given(OperandKind::Halves), halves),
        matmul(64, given(OperandKind::Fixed16), plain),
        matmul(512, given(OperandKind::Plain), rows),
        arranged(512, given(OperandKind::Fragments), rows),
    ];
    let known = [
        "one_row q4_0 512x256 w1 f32 rows",
        "one_row q4_0 512x256 w1 interleaved gated",
        "one_row q4_0 512x256 w1 norm gated-operand",
        "one_row q4_0 512x256 w1 norm-add-norm rows",
        "matvec q4_0 512x256 w1 norm rows",
        "matvec q4_0 512x256 w2 fixed16 gated-operand",
        "matvec q4_0 512x256 w8 f32 gated-both",
        "matmul q4_0 512x256 w16 halves gated halves",
        "matmul q4_0 512x256 w64 fixed16 gated",
        "matmul q4_0 512x256 w512 f32 rows",
        "matmul q4_0 512x256 w512 fragments rows arranged",
    ];
    assert_eq!(keys, known);
}

#[test]
fn arguments_say_where_everything_is() {
    let rows_at = |rows: usize, address| Span { address, bytes: 4 * rows as u64 };
    let segments = [(300, 10), (200, 20), (12, 30)]
        .map(|(rows, address)| Segment { rows, target: rows_at(rows, address) });
    let output = ProductOutput::segments(&segments);
    let product = Product { matrix: MATRIX, width: 1, input: double_norm(), output };
    product.check();
    let words = bytemuck::cast::<_, [u64; 9]>(product.front());
    assert_eq!(words, [1, 2, 3, 4, 100, 200, 10, 20, 30]);
    assert_eq!(bytemuck::cast::<_, [u64; 3]>(product.input.norm_args()), [400, 300, 500]);
    assert_eq!(product.split(), ([300, 200, 12], [300, 500]));
    let (reads, writes) = spans(|look| _ = product.visit(look));
    assert_eq!(reads, [span(200), span(100)]);
    assert_eq!(writes, [span(500), rows_at(300, 10), rows_at(200, 20), rows_at(12, 30)]);

    let input = ProductInput::Operand(operand(OperandKind::Halves, 100));
    let output =
        ProductOutput::GatedHalves { operand: operand(OperandKind::Halves, 10), unit: 2.0 };
    let product = Product { input, output, width: 7, ..product };
    product.check();
    let words = bytemuck::cast::<_, [u64; 9]>(product.front());
    assert_eq!(words, [1, 2, 3, 4, 100, 1100, 10, 1010, 0]);
    assert_eq!(product.split(), ([256, 0, 0], [256, 256]));
    let (reads, writes) = spans(|look| _ = product.visit(look));
    assert_eq!((reads, writes), (vec![span(100), span(1100)], vec![span(10), span(1010)]));
}

#[test]
#[should_panic(expected = "rows of the segments")]
fn segments_that_are_not_the_matrix_are_refused() {
    let segments = [Segment { rows: 500, target: span(0) }];
    let output = ProductOutput::segments(&segments);
    Product { matrix: MATRIX, width: 1, input: double_norm(), output }.check();
}
