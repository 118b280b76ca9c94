use super::*;
use half::{bf16, f16};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Owned planes of rows.
pub(crate) struct Packed {
    pub(crate) codes: Vec<u8>,
    pub(crate) high: Vec<u8>,
    pub(crate) scales: Vec<u8>,
    pub(crate) supers: Vec<u8>,
}

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
            Format::Q4K | Format::Q5K => {
                let [scale, minimum] = [0, 1].map(|k| f32::from(self.scales[2 * block + k]));
                let [d, d_min] = [0, 1].map(|k| Self::half(&self.supers, 2 * super_at + k));
                let fifth = || self.high[block * 4 + i % 4] >> (i / 4) & 1;
                let high = if format == Format::Q5K { fifth() } else { 0 };
                d * scale * f32::from(nibble() | high << 4) - d_min * minimum
            }
            Format::Q6K => {
                let byte = self.high[block * 8 + i / 16 * 4 + i % 4];
                let pair = byte >> (2 * (i % 16 / 4)) & 3;
                let code = i32::from(nibble() | pair << 4);
                let code = if code >= 32 { code - 64 } else { code };
                let scale = self.scales[2 * block + i / 16] as i8;
                Self::half(&self.supers, 2 * super_at) * f32::from(scale) * code as f32
            }
        }
    }
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

/// Scales in whole bytes take less than 3 % more than those of the file.
#[test]
fn weights_take_their_bits_in_memory() {
    for format in Format::ALL {
        let file = format.dtype().row_bytes(1024).unwrap() as u64;
        let found = format.row_bytes(1024).total();
        assert!((file..=file + file * 3 / 100).contains(&found), "{format:?}: {found}, {file}");
    }
    assert_eq!(Format::Q5K.row_bytes(1024).total(), 1024 / 256 * 180);
}

/// Memory that held other rows serves again.
#[test]
fn every_byte_of_a_plane_is_written() {
    let mut random = ChaCha8Rng::seed_from_u64(5);
    for format in Format::ALL {
        let together = format.rows_together();
        for columns in [32, 64, 96, 160, 256, 512, 768] {
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
    assert_eq!(device_format(DType::Q3K), None);
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
