use super::*;
use half::{bf16, f16};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use trine_weights::codebook::points;

/// Owned planes of rows.
pub(crate) struct Packed {
    pub(crate) codes: Vec<u8>,
    pub(crate) high: Vec<u8>,
    pub(crate) scales: Vec<u8>,
    pub(crate) supers: Vec<u8>,
}

/// The levels of IQ4_NL and IQ4_XS.
const LEVELS: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0,
    89.0, 113.0,
];

impl Packed {
    /// Packs a matrix with its padding rows.
    pub(crate) fn matrix(format: Format, columns: usize, source: &[u8]) -> Self {
        let rows = source.len() / format.dtype().row_bytes(columns).unwrap();
        let bytes = format.plane_bytes(rows, columns).unwrap();
        // Makes anything that is left unwritten visible.
        let plane = |bytes: u64| vec![0xA5; bytes as usize];
        let mut packed = Self {
            codes: plane(bytes.codes),
            high: plane(bytes.high),
            scales: plane(bytes.scales),
            supers: plane(bytes.supers),
        };
        let row = format.row_bytes(columns);
        let (mut front, mut padding) = packed.planes().split_at_row(row, rows);
        pack_rows(format, columns, source, &mut front).unwrap();
        padding.clear();
        let table = format.table();
        if !table.is_empty() {
            packed.scales = table;
        }
        packed
    }

    fn planes(&mut self) -> PlanesMut<'_> {
        PlanesMut {
            codes: &mut self.codes,
            high: &mut self.high,
            scales: &mut self.scales,
            supers: &mut self.supers,
        }
    }

    fn half(plane: &[u8], index: usize) -> f32 {
        f16::from_le_bytes([plane[2 * index], plane[2 * index + 1]]).to_f32()
    }

    /// Returns one element, read one bit field at a time.
    pub(crate) fn element(&self, format: Format, columns: usize, row: usize, c: usize) -> f32 {
        let groups = columns.div_ceil(128);
        let (block, i) = (row * groups * 4 + c / 32, c % 32);
        let nibble = || {
            let byte = self.codes[block * 16 + i % 16];
            if i < 16 { byte & 15 } else { byte >> 4 }
        };
        // Of codes with a word of high bits, and with two words of pairs.
        let bit = || self.high[block * 4 + i % 4] >> (i / 4) & 1;
        let pair = |plane: &[u8]| plane[block * 8 + i / 16 * 4 + i % 4] >> (2 * (i % 16 / 4)) & 3;
        let super_at = row * groups.div_ceil(2) + c / 256;
        let at = row * groups * 128 + c;
        match format {
            Format::F32 => f32::from_le_bytes(self.codes[4 * at..][..4].try_into().unwrap()),
            Format::F16 => Self::half(&self.codes, at),
            Format::F16Fragments => Self::half(&self.codes, fragments::place(row, c, columns)),
            Format::Bf16 => {
                bf16::from_le_bytes(self.codes[2 * at..][..2].try_into().unwrap()).to_f32()
            }
            Format::Q8_0 => {
                let byte = block / 4 * 128 + i / 16 * 64 + block % 4 * 16 + i % 16;
                Self::half(&self.scales, block) * f32::from(self.codes[byte] as i8)
            }
            Format::Q4_0 => {
                let value = i16::from(nibble() << 4) as u8 as i8 / 16;
                Self::half(&self.scales, block) * f32::from(value)
            }
            Format::Q4_1 | Format::Q5_1 => {
                let [scale, addend] = [0, 1].map(|k| Self::half(&self.scales, 2 * block + k));
                let high = if format == Format::Q5_1 { bit() } else { 0 };
                scale * f32::from(nibble() | high << 4) + addend
            }
            Format::Q5_0 => {
                let value = (nibble() << 3 | bit() << 7) as i8 / 8;
                Self::half(&self.scales, block) * f32::from(value)
            }
            Format::Iq4Nl => Self::half(&self.scales, block) * LEVELS[usize::from(nibble())],
            Format::Iq4Xs => {
                let factor = Self::half(&self.supers, 2 * super_at);
                factor * f32::from(self.scales[block] as i8) * LEVELS[usize::from(nibble())]
            }
            Format::Mxfp4 => {
                let value = ((nibble() << 4) as i8 / 16) as i32;
                let level =
                    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0][value.unsigned_abs() as usize];
                let power = 2f64.powi(i32::from(self.scales[block]) - 128) as f32;
                power * if value < 0 { -level } else { level }
            }
            Format::Q2K => {
                let byte = self.scales[2 * block + i / 16];
                let [d, d_min] = [0, 1].map(|k| Self::half(&self.supers, 2 * super_at + k));
                d * f32::from(byte & 15) * f32::from(pair(&self.codes))
                    - d_min * f32::from(byte >> 4)
            }
            Format::Q3K => {
                let value = (pair(&self.codes) << 5 | bit() << 7) as i8 / 32;
                let scale = self.scales[2 * block + i / 16] as i8;
                Self::half(&self.supers, 2 * super_at) * f32::from(scale) * f32::from(value)
            }
            Format::Q4K | Format::Q5K => {
                let [scale, minimum] = [0, 1].map(|k| f32::from(self.scales[2 * block + k]));
                let [d, d_min] = [0, 1].map(|k| Self::half(&self.supers, 2 * super_at + k));
                let high = if format == Format::Q5K { bit() } else { 0 };
                d * scale * f32::from(nibble() | high << 4) - d_min * minimum
            }
            Format::Q6K => {
                let code = i32::from(nibble() | pair(&self.high) << 4);
                let code = if code >= 32 { code - 64 } else { code };
                let scale = self.scales[2 * block + i / 16] as i8;
                Self::half(&self.supers, 2 * super_at) * f32::from(scale) * code as f32
            }
            Format::Nvfp4 => self.nvfp4(nibble(), block, i, super_at),
            Format::Tq2_0 => {
                let code = (pair(&self.codes) << 6) as i8 / 64;
                Self::half(&self.supers, 2 * super_at) * f32::from(-code)
            }
            Format::Tq1_0 => self.tq1_0(block, i, super_at),
            Format::Iq2Xxs | Format::Iq2Xs | Format::Iq2S => self.iq2(format, block, i, super_at),
            Format::Iq3Xxs | Format::Iq3S => self.iq3(format, block, i, super_at),
            Format::Iq1S | Format::Iq1M => self.iq1(format, block, i, super_at),
        }
    }

    fn nvfp4(&self, nibble: u8, block: usize, i: usize, super_at: usize) -> f32 {
        let value = ((nibble << 4) as i8 / 16) as i32;
        let level = [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0][value.unsigned_abs() as usize];
        let level = if value < 0 { -level } else { level };
        let bits = self.scales[2 * block + i / 16];
        let fraction = f32::from(bits & 7) / 8.0;
        let exponent = i32::from(bits >> 3);
        let scale = match exponent {
            0 => fraction * 2f32.powi(-6),
            _ => (1.0 + fraction) * 2f32.powi(exponent - 7),
        };
        let factor = &self.supers[4 * super_at..][..4];
        scale / 2.0 * level * f32::from_le_bytes(factor.try_into().unwrap())
    }

    fn tq1_0(&self, block: usize, i: usize, super_at: usize) -> f32 {
        // Of each block the bytes that it has to itself.
        let own = |byte: usize| match byte {
            0..4 => self.codes[4 * block + byte],
            _ => self.high[block / 8 * 20 + block % 8 * 2 + byte - 4],
        };
        let (byte, digit) = match i {
            0..20 => (own(i % 4), i / 4),
            29 | 31 => {
                (self.high[block / 8 * 20 + 16 + block % 8 / 2], block % 2 * 2 + (i - 29) / 2)
            }
            28 | 30 => (own(4 + (i - 28) / 2), 4),
            _ => (own(4 + (i / 2) % 2), (i - 20) / 4 * 2 + i % 2),
        };
        let rest = (0..digit).fold(byte, |rest, _| rest.wrapping_mul(3));
        let code = ((u16::from(rest) * 3) >> 8) as f32;
        Self::half(&self.supers, 2 * super_at) * (code - 1.0)
    }

    fn iq2(&self, format: Format, block: usize, i: usize, super_at: usize) -> f32 {
        let word = u32::from_le_bytes(self.codes[8 * block + 4..][..4].try_into().unwrap());
        let low = usize::from(self.codes[8 * block + i / 8]);
        let spare = |bit: usize| (word >> (25 + 2 * bit) & 1) as usize;
        let (is_even, point, s) = match format {
            Format::Iq2Xxs => {
                let s = (0..4).map(|bit| spare(bit) << bit).sum::<usize>();
                (true, points::IQ2_XXS[low], s)
            }
            Format::Iq2Xs => {
                let s = usize::from(self.high[block] >> (i / 16 * 4) & 15);
                (true, points::IQ2_XS[low | spare(i / 8) << 8], s)
            }
            _ => {
                let high = usize::from(self.high[2 * block] >> (i / 8 * 2) & 3) << 8;
                let s = usize::from(self.high[2 * block + 1] >> (i / 16 * 4) & 15);
                (false, points::IQ2_S[low | high], s)
            }
        };
        let factor = Self::half(&self.supers, 2 * super_at);
        factor * ((s as f32 + 0.5) * 0.25) * signed(point[i % 8], word, i, is_even)
    }

    fn iq3(&self, format: Format, block: usize, i: usize, super_at: usize) -> f32 {
        let low = usize::from(self.codes[8 * block + i / 4]);
        let factor = Self::half(&self.supers, 2 * super_at);
        let at = if format == Format::Iq3S { block / 8 * 44 + block % 8 * 4 } else { 4 * block };
        let word = u32::from_le_bytes(self.high[at..][..4].try_into().unwrap());
        if format == Format::Iq3Xxs {
            let s = (0..4).map(|bit| (word >> (25 + 2 * bit) & 1) << bit).sum::<u32>();
            let magnitude = points::IQ3_XXS[low][i % 4];
            return factor * ((s as f32 + 0.5) * 0.5) * signed(magnitude, word, i, true);
        }
        let others = &self.high[block / 8 * 44 + 32..];
        let high = usize::from(others[block % 8] >> (i / 4) & 1) << 8;
        let s = others[8 + block % 8 / 2] >> (block % 2 * 4) & 15;
        let magnitude = points::IQ3_S[low | high][i % 4];
        factor * (2.0 * f32::from(s) + 1.0) * signed(magnitude, word, i, false)
    }

    fn iq1(&self, format: Format, block: usize, i: usize, super_at: usize) -> f32 {
        let low = usize::from(self.codes[4 * block + i / 8]);
        let word = u16::from_le_bytes([self.high[2 * block], self.high[2 * block + 1]]);
        let (bits, s, is_below, factor) = if format == Format::Iq1S {
            let factor = Self::half(&self.supers, 2 * super_at);
            (word >> (i / 8 * 3) & 7, word >> 12 & 7, word >> 15, factor)
        } else {
            let supers = self.supers[8 * super_at..][..8].try_into().unwrap();
            let s = u64::from_le_bytes(supers) >> (6 * (block % 8) + 3 * (i / 16)) & 7;
            let nibble = word >> (i / 8 * 4);
            (nibble & 7, s as u16, nibble >> 3 & 1, Self::half(&self.supers, 4 * super_at + 3))
        };
        let point = f32::from(points::IQ1[low | usize::from(bits) << 8][i % 8]);
        let shift = if is_below == 1 { 1.125 } else { 0.875 };
        factor * (2.0 * f32::from(s) + 1.0) * (point - shift)
    }
}

/// Returns a magnitude with its sign of a word (`codebook.rs`).
fn signed(magnitude: u8, word: u32, element: usize, is_even: bool) -> f32 {
    let bit = |element: usize| word >> (element % 4 * 8 + element / 4) & 1;
    let first = element / 8 * 8;
    let is_negative = match element % 8 {
        7 if is_even => (first..first + 7).map(bit).sum::<u32>() % 2,
        _ => bit(element),
    };
    if is_negative == 1 { -f32::from(magnitude) } else { f32::from(magnitude) }
}

/// Returns the formats with this many elements in a block of the file.
pub(crate) fn of_blocks(elements: usize) -> impl Iterator<Item = Format> {
    Format::ALL.into_iter().filter(move |format| format.dtype().block_elements() == elements)
}

/// Returns the formats that are no floats.
pub(crate) fn quantised() -> Vec<Format> {
    Format::ALL.into_iter().filter(|format| !format.is_float()).collect()
}

/// Packs rows as a matrix in device memory, and returns it and that memory.
pub(crate) fn device_matrix(
    gpu: &std::sync::Arc<crate::raw::gpu::Gpu>,
    format: Format,
    columns: usize,
    source: &[u8],
) -> (Matrix, crate::raw::memory::Buffer) {
    let rows = source.len() / format.dtype().row_bytes(columns).unwrap();
    let packed = Packed::matrix(format, columns, source);
    let (_, total) = Matrix::at(0, format, rows, columns).unwrap();
    // Between the planes and after them lies what no kernel may use.
    let mut bytes = vec![0xFF; total as usize];
    let (starts, _) = format.plane_bytes(rows, columns).unwrap().layout().unwrap();
    let planes = [
        (starts.codes, &packed.codes),
        (starts.high, &packed.high),
        (starts.scales, &packed.scales),
        (starts.supers, &packed.supers),
    ];
    for (start, plane) in planes {
        bytes[start as usize..][..plane.len()].copy_from_slice(plane);
    }
    let memory = crate::testing::upload(gpu, &bytes);
    (Matrix::at(memory.address(), format, rows, columns).unwrap().0, memory)
}

/// Returns random rows in the file's format: every code is possible, scales are moderate.
pub(crate) fn random_rows(format: Format, rows: usize, columns: usize, seed: u64) -> Vec<u8> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let dtype = format.dtype();
    let mut bytes = vec![0; rows * dtype.row_bytes(columns).unwrap()];
    random.fill_bytes(&mut bytes);
    let mut number = |size: f32| (random.random::<f32>() - 0.5) * size;
    for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
        match format {
            Format::F32 => block.copy_from_slice(&number(2.0).to_le_bytes()),
            Format::F16 => block.copy_from_slice(&f16::from_f32(number(2.0)).to_le_bytes()),
            Format::Bf16 => block.copy_from_slice(&bf16::from_f32(number(2.0)).to_le_bytes()),
            // The powers of two that those of other formats lie between.
            Format::Mxfp4 => block[0] = 119 + block[0] % 4,
            Format::Iq1M => {
                // The nibbles of the factor.
                let factor = f16::from_f32(number(0.02)).to_bits();
                (0..4).for_each(|at| {
                    let nibble = (factor >> (4 * at) & 15) as u8;
                    block[49 + 2 * at] = block[49 + 2 * at] & 15 | nibble << 4;
                });
            }
            Format::Nvfp4 => block[..4].iter_mut().for_each(|s| *s = *s & 0x80 | (*s % 24)),
            _ => {}
        }
        for &at in dtype.halves() {
            block[at..at + 2].copy_from_slice(&f16::from_f32(number(0.02)).to_le_bytes());
        }
    }
    bytes
}

/// Returns the values of rows in the file's format.
pub(crate) fn decoded(format: Format, source: &[u8], elements: usize) -> Vec<f32> {
    let mut values = vec![f32::NAN; elements];
    trine_weights::blocks::decode(format.dtype(), source, &mut values).unwrap();
    values
}

#[test]
fn packed_rows_hold_what_the_file_holds() {
    for format in Format::ALL {
        let shapes: &[(usize, usize)] = match format.dtype().block_elements() {
            256 => &[(1, 256), (3, 512), (17, 768)],
            64 => &[(1, 64), (3, 192), (17, 128), (5, 1152)],
            32 => &[(1, 32), (3, 96), (2, 160), (17, 128), (5, 1152)],
            _ => &[(1, 1), (3, 20), (16, 128), (5, 131)],
        };
        for &(rows, columns) in shapes {
            let source = random_rows(format, rows, columns, columns as u64);
            let expected = decoded(format, &source, rows * columns);
            let packed = Packed::matrix(format, columns, &source);
            for (at, wanted) in expected.iter().enumerate() {
                let found = packed.element(format, columns, at / columns, at % columns);
                assert_eq!(found.to_bits(), wanted.to_bits(), "{format:?} {columns} {at}");
            }
            let padded_columns = columns.next_multiple_of(128);
            for row in 0..rows.next_multiple_of(16) {
                let first = if row < rows { columns } else { 0 };
                for c in first..padded_columns {
                    assert_eq!(packed.element(format, columns, row, c), 0.0, "{format:?}");
                }
            }
        }
    }
}

/// Scales in whole bytes and factors in words take at most 4 % more than those of the file; 5.5 %
/// of three bits.
#[test]
fn weights_take_their_bits_in_memory() {
    for format in Format::ALL {
        let file = format.dtype().row_bytes(1024).unwrap() as u64;
        let found = format.row_bytes(1024).total();
        let more = if format == Format::Q3K { file * 55 / 1000 } else { file * 4 / 100 };
        assert!((file..=file + more).contains(&found), "{format:?}: {found}, {file}");
    }
    assert_eq!(Format::Q5K.row_bytes(1024).total(), 1024 / 256 * 180);
}

#[test]
fn rows_have_factors_of_their_own() {
    let (format, rows, columns) = (Format::Nvfp4, 3, 320);
    let mut source = random_rows(format, rows, columns, 3);
    // What is no number is 0, with a sign 480.
    source[..4].copy_from_slice(&[0x7F, 0xFF, 0x3C, 0xBC]);
    let expected = decoded(format, &source, rows * columns);
    let mut packed = Packed::matrix(format, columns, &source);
    let factor = |row: usize| [0.5, -3.0, 1e-9][row.min(2)];
    put_factors(&mut packed.planes(), format.row_bytes(columns), factor);
    for (at, wanted) in expected.iter().enumerate() {
        let found = packed.element(format, columns, at / columns, at % columns);
        assert_eq!(found, wanted * factor(at / columns), "{at}");
    }
}

/// Memory that held other rows serves again.
#[test]
fn every_byte_of_a_plane_is_written() {
    let mut random = ChaCha8Rng::seed_from_u64(5);
    for format in Format::ALL {
        let together = format.rows_together();
        for columns in [32, 64, 96, 160, 192, 256, 512, 768] {
            let Some(bytes) = format.dtype().row_bytes(columns) else { continue };
            let rows = 3 * together;
            let mut source = vec![0; rows * bytes];
            random.fill_bytes(&mut source);
            let planes = format.row_bytes(columns);
            let packed = |before: u8| {
                let plane = |bytes: u64| vec![before; rows * bytes as usize];
                let mut packed = Packed {
                    codes: plane(planes.codes),
                    high: plane(planes.high),
                    scales: plane(planes.scales),
                    supers: plane(planes.supers),
                };
                pack_rows(format, columns, &source, &mut packed.planes()).unwrap();
                [packed.codes, packed.high, packed.scales, packed.supers]
            };
            assert!(packed(0xA5) == packed(0x5A), "{format:?}, {columns} columns");
        }
    }
}

#[test]
fn threads_pack_disjoint_rows_of_one_allocation() {
    let (format, rows, columns) = (Format::Q6K, 40, 512);
    let source = random_rows(format, rows, columns, 7);
    let planes = format.plane_bytes(rows, columns).unwrap();
    let (starts, total) = planes.layout().unwrap();
    assert!([starts.high, starts.scales, starts.supers].iter().all(|at| at % 256 == 0));
    let mut memory = vec![0; total as usize];
    let all = PlanesMut::of_allocation(&mut memory, planes).unwrap();
    let row = format.row_bytes(columns);
    let (mut front, mut back) = all.split_at_row(row, 13);
    let (mut back, _) = back_rows(&mut back, row, rows - 13);
    let (first, second) = source.split_at(13 * format.dtype().row_bytes(columns).unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| pack_rows(format, columns, first, &mut front).unwrap());
        scope.spawn(|| pack_rows(format, columns, second, &mut back).unwrap());
    });
    let whole = Packed::matrix(format, columns, &source);
    assert_eq!(memory[..whole.codes.len()], whole.codes);
    assert_eq!(memory[starts.high as usize..][..whole.high.len()], whole.high);
    assert_eq!(memory[starts.scales as usize..][..whole.scales.len()], whole.scales);
    assert_eq!(memory[starts.supers as usize..][..whole.supers.len()], whole.supers);
}

fn back_rows<'a>(
    planes: &'a mut PlanesMut<'_>,
    row: PlaneBytes,
    rows: usize,
) -> (PlanesMut<'a>, PlanesMut<'a>) {
    let all = PlanesMut {
        codes: planes.codes,
        high: planes.high,
        scales: planes.scales,
        supers: planes.supers,
    };
    all.split_at_row(row, rows)
}

#[test]
fn lengths_that_do_not_fit_are_errors() {
    let mut codes = [0; 64];
    let mut scales = [0; 8];
    let mut planes = PlanesMut { codes: &mut codes, scales: &mut scales, ..Default::default() };
    let source = [0; 18];
    assert!(pack_rows(Format::Q4_0, 32, &source, &mut planes).is_ok());
    let short = pack_rows(Format::Q4_0, 32, &source[1..], &mut planes);
    assert!(matches!(short, Err(PackError::Source { bytes: 17, .. })));
    let odd = pack_rows(Format::Q4_0, 33, &source, &mut planes);
    assert!(matches!(odd, Err(PackError::Source { columns: 33, .. })));
    let none = pack_rows(Format::F32, 0, &[], &mut planes);
    assert!(matches!(none, Err(PackError::Source { columns: 0, .. })));
    let more = pack_rows(Format::Q4_0, 32, &[0; 36], &mut planes);
    let expected = PackError::Plane { plane: "codes", rows: 2, expected: 128, found: 64 };
    assert_eq!(more, Err(expected));
    assert_eq!(Format::F32.plane_bytes(usize::MAX, 128), None);
    for format in Format::ALL {
        assert_eq!(device_format(format.dtype()), Some(format));
    }
}

#[test]
fn every_element_stands_where_a_lane_loads_it() {
    for (rows, columns) in [(16, 128), (48, 20), (32, 131), (16, 1152)] {
        let number = |row: usize, column: usize| (row * columns + column) as u16 + 1;
        let all = (0..rows).flat_map(|row| (0..columns).map(move |c| number(row, c)));
        let source: Vec<u8> = all.flat_map(u16::to_le_bytes).collect();
        let format = Format::F16Fragments;
        let bytes = format.plane_bytes(rows, columns).unwrap().codes as usize;
        let mut codes = vec![0xFF; bytes];
        let mut planes = PlanesMut { codes: &mut codes, ..PlanesMut::default() };
        pack_rows(format, columns, &source, &mut planes).unwrap();
        let halves: &[u16] = bytemuck::cast_slice(&codes);
        let mut expected = vec![0; halves.len()];
        for row in 0..rows {
            for column in 0..columns {
                expected[fragments::place(row, column, columns)] = number(row, column);
            }
        }
        assert!(halves == expected, "{rows} x {columns}");
    }
}

#[test]
fn rows_that_are_no_whole_factors_are_refused() {
    let mut codes = vec![0; 24 * 256];
    let mut planes = PlanesMut { codes: &mut codes, ..PlanesMut::default() };
    let packed = pack_rows(Format::F16Fragments, 128, &[0; 24 * 256], &mut planes);
    assert!(packed.is_err());
}
