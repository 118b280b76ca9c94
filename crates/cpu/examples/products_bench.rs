//! Speed of the matrix multiplications in the shapes of Gemma 3 1B.
//!
//! `cargo run --release -p trine-cpu --example products_bench -- [FORMAT,...] [COLUMNS,...] [ISA]`
//!
//! Weights are cycled through more memory than the caches hold. Streaming reads of the same
//! memory are timed alternately with the products; the last figure is the share of that rate.
//! Every figure is a median. A busy neighbour halves anything: run it on an idle machine.

#![allow(unsafe_code, reason = "threads write disjoint rows of one output")]
#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first surprise")]

use std::sync::Barrier;
use std::time::Instant;

use trine_cpu::isa::Isa;
use trine_cpu::matmul::{MatmulInput, PackedMatrix, Scratch};
use trine_cpu::quantize::{QuantizedBlock, QuantizedRows, quantize_rows};
use trine_cpu::shared::SharedSlice;
use trine_weights::{DType, Tensor};

/// Memory that the copies of one matrix fill together.
const COLD_BYTES: usize = 256 << 20;
const REPEATS: usize = 7;

struct Shape {
    name: &'static str,
    rows: usize,
    columns: usize,
}

const SHAPES: [Shape; 5] = [
    Shape { name: "qkv", rows: 1536, columns: 1152 },
    Shape { name: "out", rows: 1152, columns: 1024 },
    Shape { name: "gate+up", rows: 13824, columns: 1152 },
    Shape { name: "down", rows: 1152, columns: 6912 },
    Shape { name: "head", rows: 262_144, columns: 1152 },
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let list = |index: usize, default: &str| -> Vec<String> {
        let text = arguments.get(index).map_or(default, String::as_str);
        text.split(',').map(str::to_owned).collect()
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(2);
    let isa = match arguments.get(2).map(String::as_str) {
        Some("scalar") => Isa::Scalar,
        Some("avx2") => Isa::Avx2,
        Some("avx-vnni") => Isa::AvxVnni,
        Some("avx512") => Isa::Avx512Vnni,
        Some("neon") => Isa::Neon,
        Some("neon-dot") => Isa::NeonDot,
        _ => Isa::detect(),
    };
    println!("{isa:?}, {threads} threads");
    println!("shape    format    n   us/pass    GB/s  GMAC/s  read GB/s  share");
    for format in list(0, "Q4_0,Q8_0") {
        let dtype = DType::parse(&format).unwrap();
        for shape in &SHAPES {
            for count in list(1, "1,4,8,512") {
                let count: usize = count.parse().unwrap();
                if shape.name == "head" && count > 8 {
                    continue;
                }
                measure(shape, dtype, count, isa, threads);
            }
        }
    }
}

fn tensor(shape: &Shape, dtype: DType) -> Tensor {
    let mut state = 1_u64;
    let bytes = dtype.row_bytes(shape.columns).unwrap() * shape.rows;
    let mut data: Vec<u8> = (0..bytes)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8 & 0x3b
        })
        .collect();
    // Keeps every f16 anywhere in a block small.
    data.truncate(bytes);
    Tensor::from_owned(shape.name, dtype, &[shape.rows, shape.columns], data).unwrap()
}

fn measure(shape: &Shape, dtype: DType, count: usize, isa: Isa, threads: usize) {
    let source = tensor(shape, dtype);
    let first = PackedMatrix::pack(&source, isa, threads).unwrap();
    let copies = if count <= 8 { COLD_BYTES.div_ceil(first.bytes()).max(1) } else { 2 };
    let mut matrices = vec![first];
    for _ in 1..copies {
        matrices.push(PackedMatrix::pack(&source, isa, threads).unwrap());
    }
    let streamed = vec![1_u64; COLD_BYTES / 8];
    let values: Vec<f32> =
        (0..count * shape.columns).map(|i| ((i * 7919) % 997) as f32 / 500.0 - 1.0).collect();
    let mut blocks =
        vec![QuantizedBlock::default(); count * QuantizedRows::blocks_per_row(shape.columns)];
    quantize_rows(isa, &values, shape.columns, shape.columns, &mut blocks);
    let rows = QuantizedRows::new(&blocks, shape.columns);
    let input = if matrices[0].needs_quantized_input() {
        MatmulInput::Quantized(&rows)
    } else {
        MatmulInput::F32 { values: &values, stride: shape.columns, rows: count }
    };
    let mut output = vec![0.0_f32; count * shape.rows];
    let shared = SharedSlice::new(&mut output);
    let barrier = Barrier::new(threads);
    let mut results = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let (matrices, shared, barrier, streamed) =
                    (&matrices, &shared, &barrier, &streamed);
                scope.spawn(move || {
                    let mut scratch = Scratch::new().unwrap();
                    let mut times = Vec::new();
                    for _ in 0..REPEATS {
                        barrier.wait();
                        let start = Instant::now();
                        let part = streamed.len() / threads;
                        let sum = stream(&streamed[thread * part..][..part]);
                        barrier.wait();
                        let read = start.elapsed().as_secs_f64();
                        let start = Instant::now();
                        for matrix in matrices {
                            let panels = matrix.panels();
                            let own = panels * thread / threads..panels * (thread + 1) / threads;
                            // SAFETY: every thread writes the rows of its own panels.
                            unsafe {
                                matrix.matmul(input, own, shared, shape.rows, &mut scratch);
                            }
                            barrier.wait();
                        }
                        times.push((read, start.elapsed().as_secs_f64(), sum));
                    }
                    times
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).next().unwrap()
    });
    results.iter_mut().for_each(|result| result.1 /= matrices.len() as f64);
    report(shape, dtype, count, matrices[0].bytes(), &results);
}

/// Sums eight interleaved streams, which the compiler turns into wide loads.
fn stream(words: &[u64]) -> u64 {
    let mut sums = [0_u64; 32];
    for chunk in words.as_chunks::<32>().0 {
        for (sum, word) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().sum()
}

fn report(shape: &Shape, dtype: DType, count: usize, bytes: usize, results: &[(f64, f64, u64)]) {
    let median = |pick: fn(&(f64, f64, u64)) -> f64| {
        let mut times: Vec<f64> = results.iter().map(pick).collect();
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let (read, pass) = (median(|result| result.0), median(|result| result.1));
    let sum = results.iter().fold(0_u64, |sum, result| sum.wrapping_add(result.2));
    assert!(sum > 0, "the streamed memory holds ones");
    let rate = bytes as f64 / pass / 1e9;
    let limit = COLD_BYTES as f64 / read / 1e9;
    let products = (shape.rows * shape.columns * count) as f64 / pass / 1e9;
    println!(
        "{:8} {:7} {count:4} {:9.1} {rate:7.2} {products:7.1} {limit:10.2} {:6.2}",
        shape.name,
        dtype.name(),
        pass * 1e6,
        rate / limit,
    );
}
