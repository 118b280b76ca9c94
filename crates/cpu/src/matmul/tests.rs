#![allow(unsafe_code, reason = "calls the unsafe entry point, single-threaded")]

use half::f16;
use rand::seq::IndexedRandom;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use trine_weights::{DType, SafetensorsFile, Tensor};

use super::*;
use crate::quantize::quantize_rows;

/// What the codes of a random tensor look like.
#[derive(Clone, Copy, PartialEq)]
enum Fill {
    Random,
    Byte(u8),
}

/// A tensor of random blocks with sensible scales.
fn tensor(
    random: &mut ChaCha8Rng,
    dtype: DType,
    rows: usize,
    columns: usize,
    fill: Fill,
) -> Tensor {
    let mut bytes = vec![0_u8; rows * dtype.row_bytes(columns).unwrap()];
    random.fill_bytes(&mut bytes);
    if let Fill::Byte(value) = fill {
        bytes.fill(value);
    }
    for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
        let number = random.random_range(0.01_f32..1.0);
        match dtype {
            DType::F32 => block.copy_from_slice(&(number - 0.5).to_le_bytes()),
            DType::F16 => block.copy_from_slice(&f16::from_f32(number - 0.5).to_le_bytes()),
            DType::BF16 => block.copy_from_slice(&half::bf16::from_f32(number - 0.5).to_le_bytes()),
            DType::Mxfp4 => block[0] = random.random_range(118..130),
            // From 2^-5 to 4, with a sign that does not count, and what stands for 0.
            DType::Nvfp4 => {
                block[..4].fill_with(|| random.random_range(16..72) | random.random::<u8>() & 0x80);
                block[random.random_range(0..4)] = 0x7f;
            }
            DType::Iq1M => {
                // The nibbles of a half are the highest of four words.
                let bits = f16::from_f32(number).to_bits();
                for word in 0..4 {
                    let high = &mut block[49 + 2 * word];
                    *high = *high & 15 | ((bits >> (4 * word)) as u8) << 4;
                }
            }
            _ => {
                for &offset in dtype.halves() {
                    let sign = if random.random() { 1.0 } else { -1.0 };
                    let number = f16::from_f32(sign * random.random_range(0.01_f32..1.0));
                    block[offset..offset + 2].copy_from_slice(&number.to_le_bytes());
                }
            }
        }
    }
    let tensor = Tensor::from_owned("test", dtype, &[rows, columns], bytes).unwrap();
    match dtype {
        // As many factors as divide the rows, like matrices of experts.
        DType::Nvfp4 => {
            let count = (1..=rows.min(5)).rev().find(|count| rows.is_multiple_of(*count));
            let largest = *[3.0, 3.0, 1e6].choose(random).unwrap();
            let factors = (0..count.unwrap()).map(|_| random.random_range(0.1_f32..largest));
            tensor.with_factors(&factors.collect::<Vec<f32>>()).unwrap()
        }
        _ => tensor,
    }
}

fn activations(random: &mut ChaCha8Rng, count: usize) -> Vec<f32> {
    (0..count).map(|_| random.random_range(-1.0_f32..1.0).powi(3) * 4.0).collect()
}

/// Computes the product, with quantised activations for quantised weights; `parts` cuts the panels.
fn product(matrix: &PackedMatrix, input: &[f32], count: usize, parts: usize) -> Vec<f32> {
    let (rows, columns) = (matrix.rows(), matrix.columns());
    let stride = rows + 3;
    let mut output = vec![f32::NAN; stride * count];
    let mut blocks =
        vec![QuantizedBlock::default(); count * QuantizedRows::blocks_per_row(columns)];
    quantize_rows(matrix.isa(), input, columns, columns, &mut blocks);
    let quantized = QuantizedRows::new(&blocks, columns);
    let input = if matrix.needs_quantized_input() {
        MatmulInput::Quantized(&quantized)
    } else {
        MatmulInput::F32 { values: input, stride: columns, rows: count }
    };
    let mut scratch = Scratch::new().unwrap();
    let shared = SharedSlice::new(&mut output);
    for part in 0..parts {
        let panels = matrix.panels() * part / parts..matrix.panels() * (part + 1) / parts;
        // SAFETY: one thread.
        unsafe { matrix.matmul(input, panels, &shared, stride, &mut scratch) };
    }
    for column in output.chunks(stride) {
        assert!(column[rows..].iter().all(|value| value.is_nan()), "wrote past the rows");
    }
    output.chunks(stride).flat_map(|column| column[..rows].to_vec()).collect()
}

/// Compares with a product in f64, and returns the largest error relative to sum |w| |x|.
fn check(tensor: &Tensor, isa: Isa, input: &[f32], count: usize, what: &str) {
    let matrix = PackedMatrix::pack(tensor, isa, 2).unwrap();
    let (rows, columns) = (tensor.rows(), tensor.columns());
    let weights = tensor.to_f32().unwrap();
    let mut seen = input.to_vec();
    if matrix.needs_quantized_input() {
        let per_row = QuantizedRows::blocks_per_row(columns);
        let mut quantized = vec![QuantizedBlock::default(); count * per_row];
        quantize_rows(isa, input, columns, columns, &mut quantized);
        for (index, value) in seen.iter_mut().enumerate() {
            let (row, column) = (index / columns, index % columns);
            *value = quantized[row * per_row + column / 32].value(column % 32);
        }
    }
    let found = product(&matrix, input, count, 3);
    for column in 0..count {
        let x = &seen[column * columns..][..columns];
        for row in 0..rows {
            let w = &weights[row * columns..][..columns];
            let terms = || w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
            let (exact, mut size) = (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>());
            // A zero is a difference: of NVFP4 of 12 scales, each at most 2, times a factor, of
            // ternary codes of factors up to 1.
            if matches!(tensor.dtype(), DType::Nvfp4 | DType::Tq1_0 | DType::Tq2_0) {
                size += x.iter().map(|x| f64::from(x.abs() * tensor.factor(row))).sum::<f64>();
            }
            let error = (f64::from(found[column * rows + row]) - exact).abs();
            assert!(
                error <= 1e-5 * size + 1e-30,
                "{what}: {} {isa:?} {rows}x{columns}, {count} columns, at ({row}, {column}): \
                 {} instead of {exact}, sum of magnitudes {size}",
                tensor.dtype(),
                found[column * rows + row],
            );
        }
    }
}

#[test]
fn products_match_the_decoded_weights() {
    let mut random = ChaCha8Rng::seed_from_u64(11);
    for isa in Isa::available() {
        for dtype in DType::ALL {
            for case in 0..24 {
                let step = dtype.block_elements();
                let most = if step == 256 {
                    5
                } else if step == 32 {
                    40
                } else {
                    300
                };
                let rows = random.random_range(1..=70);
                let columns = step * random.random_range(1..=most);
                // Every tile width first, then anything.
                let count = if case < 9 { case + 1 } else { random.random_range(1..=37) };
                let tensor = tensor(&mut random, dtype, rows, columns, Fill::Random);
                let input = activations(&mut random, columns * count);
                check(&tensor, isa, &input, count, "random");
            }
        }
    }
}

/// A matrix takes what the file does, and up to 4 % more, of three codebooks 7 %.
#[test]
fn matrices_take_their_bits_in_memory() {
    for isa in Isa::available() {
        for dtype in DType::ALL {
            let (rows, columns) = (64, 1024);
            let file = vec![0; rows * dtype.row_bytes(columns).unwrap()];
            let bytes = file.len();
            let tensor = Tensor::from_owned("test", dtype, &[rows, columns], file).unwrap();
            let found = PackedMatrix::pack(&tensor, isa, 1).unwrap().bytes();
            let percent = match dtype {
                DType::Iq2Xxs | DType::Iq2Xs | DType::Iq3Xxs => 7,
                _ => 4,
            };
            let most = bytes + bytes * percent / 100;
            assert!((bytes..=most).contains(&found), "{dtype}, {isa:?}: {found} of {bytes}");
        }
    }
}

#[test]
fn extreme_codes_do_not_saturate() {
    let mut random = ChaCha8Rng::seed_from_u64(12);
    for isa in Isa::available() {
        for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_quantized()) {
            for byte in [0x00, 0xff, 0x80, 0x7f, 0x81, 0x88, 0x77, 0xf0, 0x0f] {
                let tensor = tensor(&mut random, dtype, 17, 512, Fill::Byte(byte));
                for sign in [1.0, -1.0] {
                    for count in [1, 4, 9] {
                        check(&tensor, isa, &vec![sign; 512 * count], count, "extreme");
                        let mixed: Vec<f32> = (0..512 * count)
                            .map(|index| if index / 2 % 2 == 0 { sign } else { -sign })
                            .collect();
                        check(&tensor, isa, &mixed, count, "alternating");
                    }
                }
            }
        }
    }
}

#[test]
fn long_rows_and_many_columns_use_groups_and_chunks() {
    let mut random = ChaCha8Rng::seed_from_u64(13);
    for isa in Isa::available() {
        for dtype in [DType::Q4_0, DType::Q8_0, DType::Q4K, DType::Q6K, DType::Q5_0, DType::F16] {
            let (rows, columns, count) = (21, 6912, 67);
            let tensor = tensor(&mut random, dtype, rows, columns, Fill::Random);
            let input = activations(&mut random, columns * count);
            check(&tensor, isa, &input, count, "long");
        }
    }
}

#[test]
fn error_of_quantised_activations_is_bounded() {
    let mut random = ChaCha8Rng::seed_from_u64(14);
    for isa in Isa::available() {
        let tensor = tensor(&mut random, DType::Q8_0, 40, 1152, Fill::Random);
        let input = activations(&mut random, 1152);
        let matrix = PackedMatrix::pack(&tensor, isa, 1).unwrap();
        let found = product(&matrix, &input, 1, 1);
        let weights = tensor.to_f32().unwrap();
        for (row, weights) in weights.chunks(1152).enumerate() {
            let mut exact = 0.0_f64;
            let mut bound = 0.0_f64;
            for (w, x) in weights.chunks(32).zip(input.chunks(32)) {
                let step = x.iter().fold(0.0_f32, |most, x| most.max(x.abs())) / 127.0;
                for (w, x) in w.iter().zip(x) {
                    exact += f64::from(*w) * f64::from(*x);
                    bound += f64::from(w.abs()) * f64::from(step) * 0.501;
                }
            }
            let error = (f64::from(found[row]) - exact).abs();
            assert!(error <= bound, "{isa:?} row {row}: {error} above {bound}");
            assert!(error <= 0.15 * bound, "{isa:?} row {row}: rounding errors do not cancel");
        }
    }
}

#[test]
fn broken_activations_poison_their_column_only() {
    let mut random = ChaCha8Rng::seed_from_u64(15);
    for isa in Isa::available() {
        for dtype in DType::ALL {
            for broken in [f32::NAN, f32::INFINITY] {
                let tensor = tensor(&mut random, dtype, 19, 256, Fill::Random);
                let matrix = PackedMatrix::pack(&tensor, isa, 1).unwrap();
                let mut input = activations(&mut random, 256 * 6);
                input[256 * 2 + 77] = broken;
                let found = product(&matrix, &input, 6, 1);
                for (index, value) in found.iter().enumerate() {
                    assert_eq!(value.is_finite(), index / 19 != 2, "{isa:?} {dtype} {index}");
                }
            }
        }
    }
}

#[test]
fn result_is_independent_of_the_other_columns_and_of_the_split() {
    let mut random = ChaCha8Rng::seed_from_u64(16);
    for isa in Isa::available() {
        for dtype in DType::ALL {
            let tensor = tensor(&mut random, dtype, 45, 2304, Fill::Random);
            let matrix = PackedMatrix::pack(&tensor, isa, 2).unwrap();
            let input = activations(&mut random, 2304 * 19);
            let whole = product(&matrix, &input, 19, 1);
            assert_eq!(whole, product(&matrix, &input, 19, 3), "{isa:?} {dtype}");
            for (first, count) in [(0, 1), (7, 1), (1, 2), (9, 4), (3, 8), (2, 17)] {
                let part = &input[first * 2304..][..count * 2304];
                let part = product(&matrix, part, count, 2);
                assert_eq!(part, whole[first * 45..][..count * 45], "{isa:?} {dtype} {first}");
            }
        }
    }
}

/// Long rows are cut into sections only where there are many columns, and many columns into groups:
/// one column by itself takes another way through the same sums.
#[test]
fn one_of_many_long_columns_has_the_bits_that_it_has_alone() {
    let mut random = ChaCha8Rng::seed_from_u64(22);
    let (rows, columns, count) = (21, 6912, 67);
    for isa in Isa::available() {
        for dtype in DType::ALL {
            let tensor = tensor(&mut random, dtype, rows, columns, Fill::Random);
            let matrix = PackedMatrix::pack(&tensor, isa, 2).unwrap();
            let input = activations(&mut random, columns * count);
            let whole = product(&matrix, &input, count, 1);
            // 1 to 16 columns are few for floats, up to 32 for codes, and 64 are a group.
            for (first, some) in [(0, 1), (31, 1), (63, 1), (64, 1), (66, 1), (50, 17), (1, 33)] {
                let part = &input[first * columns..][..some * columns];
                let part = product(&matrix, part, some, 2);
                let expected = &whole[first * rows..][..some * rows];
                assert!(part == expected, "{isa:?} {dtype}, {some} from {first} on");
            }
        }
    }
}

#[test]
fn rows_decode_as_the_file_says() {
    let mut random = ChaCha8Rng::seed_from_u64(17);
    for isa in Isa::available() {
        for dtype in DType::ALL {
            let tensor = tensor(&mut random, dtype, 35, 512, Fill::Random);
            let matrix = PackedMatrix::pack(&tensor, isa, 3).unwrap();
            let expected = tensor.to_f32().unwrap();
            let mut row = vec![f32::NAN; 512];
            for (index, expected) in expected.chunks(512).enumerate() {
                matrix.decode_row(index, &mut row);
                // An element may be the difference of two that are as large as the row's largest.
                let largest = expected.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
                let bound = (2e-6 * 64.0_f32).max(2e-7 * largest);
                for (found, expected) in row.iter().zip(expected) {
                    let error = (found - expected).abs();
                    assert!(error <= bound, "{dtype} row {index}: {found}, {expected}");
                }
            }
        }
    }
}

#[test]
fn rows_decode_to_the_golden_floats() {
    let golden = "../../tests/goldens/gguf/formats/blocks.safetensors";
    let file = SafetensorsFile::open(std::path::Path::new(golden)).unwrap();
    let entry = |name: String| file.entries().iter().find(|own| own.name == name).unwrap();
    for isa in Isa::available() {
        for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_quantized()) {
            for set in ["", ".random", ".edge"] {
                let floats = entry(format!("{dtype}{set}.floats"));
                let bytes = file.bytes(entry(format!("{dtype}{set}.bytes"))).to_vec();
                let tensor = Tensor::from_owned("golden", dtype, &floats.shape, bytes).unwrap();
                let matrix = PackedMatrix::pack(&tensor, isa, 1).unwrap();
                let mut row = vec![f32::NAN; floats.shape[1]];
                for (index, expected) in file.bytes(floats).chunks(4 * row.len()).enumerate() {
                    matrix.decode_row(index, &mut row);
                    for (at, (found, expected)) in
                        row.iter().zip(expected.as_chunks::<4>().0).enumerate()
                    {
                        let expected = f32::from_le_bytes(*expected);
                        assert_eq!(*found, expected, "{isa:?} {dtype}{set} at ({index}, {at})");
                    }
                }
            }
        }
    }
}

#[test]
fn sizes_are_reported() {
    let mut random = ChaCha8Rng::seed_from_u64(18);
    let tensor = tensor(&mut random, DType::Q4_0, 21, 64, Fill::Random);
    let matrix = PackedMatrix::pack(&tensor, Isa::Scalar, 0).unwrap();
    assert_eq!((matrix.rows(), matrix.columns(), matrix.panels()), (21, 64, 3));
    assert_eq!((matrix.rows_of(1..3), matrix.rows_of(3..3)), (8..21, 21..21));
    assert_eq!((matrix.dtype(), matrix.isa()), (DType::Q4_0, Isa::Scalar));
    assert!(matrix.bytes() >= 21 * 36 && matrix.needs_quantized_input());
}

#[test]
#[should_panic(expected = "the output is too short")]
fn short_outputs_are_refused() {
    let mut random = ChaCha8Rng::seed_from_u64(19);
    let tensor = tensor(&mut random, DType::F32, 5, 7, Fill::Random);
    let matrix = PackedMatrix::pack(&tensor, Isa::Scalar, 1).unwrap();
    let mut output = vec![0.0; 9];
    let shared = SharedSlice::new(&mut output);
    let input = MatmulInput::F32 { values: &[0.0; 14], stride: 7, rows: 2 };
    // SAFETY: one thread; the call panics before any access.
    unsafe { matrix.matmul(input, 0..1, &shared, 5, &mut Scratch::new().unwrap()) };
}

#[test]
#[should_panic(expected = "width of the quantised input")]
fn other_widths_are_refused() {
    let mut random = ChaCha8Rng::seed_from_u64(20);
    let tensor = tensor(&mut random, DType::Q8_0, 5, 64, Fill::Random);
    let matrix = PackedMatrix::pack(&tensor, Isa::Scalar, 1).unwrap();
    let mut output = vec![0.0; 9];
    let shared = SharedSlice::new(&mut output);
    let blocks = [QuantizedBlock::default(); 1];
    let rows = QuantizedRows::new(&blocks, 32);
    // SAFETY: one thread; the call panics before any access.
    unsafe {
        let input = MatmulInput::Quantized(&rows);
        matrix.matmul(input, 0..1, &shared, 5, &mut Scratch::new().unwrap())
    };
}

#[cfg(not(target_arch = "aarch64"))]
#[test]
fn foreign_instruction_sets_are_refused() {
    let mut random = ChaCha8Rng::seed_from_u64(21);
    let tensor = tensor(&mut random, DType::Q8_0, 5, 64, Fill::Random);
    let error = PackedMatrix::pack(&tensor, Isa::Neon, 1).unwrap_err();
    assert!(error.to_string().contains("Scalar"), "{error}");
}
