//! How fast one thread packs rows, and bounds results from them: rows of 27B, in pieces of about
//! the size that a load has, from and to ordinary memory.
//!
//! ```text
//! cargo test --release -p trine-vulkan --lib -- --ignored --nocapture weights::speed
//! ```

use std::time::Instant;

use super::*;
use crate::pack::tests::random_rows;

/// Columns of a row.
const COLUMNS: usize = 5376;
/// Bytes that are read one piece after another. More than caches hold.
const BYTES: usize = 256 << 20;
/// How often; the median counts.
const ROUNDS: usize = 15;

/// Prints GB/s of the file.
fn time(what: &str, format: Format, bytes: usize, mut work: impl FnMut()) {
    let mut rates: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let begin = Instant::now();
            work();
            bytes as f64 / begin.elapsed().as_secs_f64() / 1e9
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    let [slowest, median, fastest] = [0, ROUNDS / 2, ROUNDS - 1].map(|at| rates[at]);
    println!("{what} {}: {median:.2} GB/s ({slowest:.2} to {fastest:.2})", format.name());
}

#[test]
#[ignore = "measures speed"]
fn rows_of_27b() {
    let factors = [1.0; COLUMNS];
    let formats = Format::ALL.into_iter().filter(|format| *format != Format::F32);
    for format in formats.chain([Format::F16Fragments]) {
        let source_row = format.dtype().row_bytes(COLUMNS).expect("whole blocks");
        let count = PIECE / source_row / ROWS_PADDED * ROWS_PADDED;
        let piece = count * source_row;
        let source = random_rows(format, count, COLUMNS, 1).repeat(BYTES / piece);
        let row = format.row_bytes(COLUMNS);
        let mut planes = Planes::default();
        planes.resize(row, count);
        time("pack", format, source.len(), || {
            for bytes in source.chunks_exact(piece) {
                pack_rows(format, COLUMNS, bytes, &mut planes.as_mut()).expect("planes of rows");
            }
        });
        let reach = Reach::new(&factors, count);
        time("pack and bound", format, source.len(), || {
            for bytes in source.chunks_exact(piece) {
                pack_rows(format, COLUMNS, bytes, &mut planes.as_mut()).expect("planes of rows");
                reach.see(format, COLUMNS, 0, bytes);
            }
        });
        time("bound", format, piece * 64, || {
            for _ in 0..64 {
                reach.see(format, COLUMNS, 0, &source[..piece]);
            }
        });
    }
}
