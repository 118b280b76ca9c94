//! Multiplying activations with weights: `output[c][r] = sum_k weight[r][k] * input[c][k]`.
//!
//! [`PackedMatrix::pack`] rearranges a tensor once, at load, into panels of rows (see `layout`);
//! codes keep the bits that they have in the file, so nothing grows. [`PackedMatrix::matmul`] then
//! multiplies any range of panels with any number of columns, on any thread, without allocating.
//!
//! Quantised weights are multiplied with quantised activations ([`crate::quantize`]) in exact
//! integer arithmetic, block by block. The only errors are that of quantising the activations and
//! that of adding the blocks in f32. F32, F16 and BF16 weights are multiplied in f32.
//!
//! | module | holds |
//! |---|---|
//! | `layout`, `pack` | panels, and the way from the file's blocks into them |
//! | `format` | how each format's panels become codes and scales |
//! | `tile` | what one call of a kernel works on |
//! | `kernel`, `drive` | tiles and their order, written once |
//! | `simd` | what an instruction set and a format offer |
//! | `scalar`, `avx2`, `avx_vnni`, `avx512`, `neon` | the instruction sets |
//!
//! A NaN or an infinity in a column makes every product of it with a quantised matrix NaN.

#[allow(unsafe_code, reason = "tiles over raw pointers, see `simd`")]
mod drive;
#[allow(unsafe_code, reason = "reads panels through raw pointers, see `simd`")]
mod format;
#[allow(unsafe_code, reason = "decoders for the interface of `simd`")]
mod formats;
#[allow(unsafe_code, reason = "tiles over raw pointers, see `simd`")]
mod kernel;
mod layout;
#[allow(unsafe_code, reason = "reserves memory from the system")]
mod memory;
mod pack;
mod panel;
#[allow(unsafe_code, reason = "the interface of the instruction sets is unsafe")]
mod simd;
#[allow(unsafe_code, reason = "tiles over raw pointers, see `simd`")]
mod tile;

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "intrinsics")]
mod avx2;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "intrinsics")]
mod avx512;
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code, reason = "intrinsics")]
mod avx_vnni;
#[cfg(target_arch = "aarch64")]
#[allow(unsafe_code, reason = "intrinsics")]
mod neon;
#[allow(unsafe_code, reason = "the interface of `simd` is unsafe")]
mod scalar;

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use trine_weights::{DType, Tensor};

use crate::isa::Isa;
use crate::quantize::{QuantizedBlock, QuantizedRows};
use crate::shared::SharedSlice;
use drive::Job;
use format::{Brain, Half, Single};
use layout::Layout;
use memory::AlignedBytes;
use simd::Simd;

/// The bytes of the file that are packed before their pages are given back.
const RELEASE_BYTES: usize = 8 << 20;

/// Why a tensor could not be packed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PackError {
    /// The machine has no room for the packed copy.
    #[error(
        "no memory for the weights of `{name}` ({bytes} bytes): close other programs, or use a \
         smaller or more strongly quantised model"
    )]
    OutOfMemory {
        /// The tensor.
        name: String,
        /// Bytes asked for.
        bytes: usize,
    },
    /// The size of the packed matrix overflows.
    #[error(
        "`{name}` ({dtype}, {rows} x {columns}) is too large to be packed: is the file damaged?"
    )]
    TooLarge {
        /// The tensor.
        name: String,
        /// Its format.
        dtype: DType,
        /// Its rows.
        rows: usize,
        /// Its columns.
        columns: usize,
    },
    /// This processor cannot run the requested kernels.
    #[error("this processor cannot run the {isa:?} kernels: choose one of {available:?}")]
    Unavailable {
        /// The requested instruction set.
        isa: Isa,
        /// The instruction sets that it can run.
        available: Vec<Isa>,
    },
}

/// Columns to multiply with.
#[derive(Debug, Clone, Copy)]
pub enum MatmulInput<'a> {
    /// For matrices that [need quantised input](PackedMatrix::needs_quantized_input).
    Quantized(&'a QuantizedRows<'a>),
    /// For F32, F16 and BF16 matrices: `rows` vectors that start `stride` floats apart.
    F32 {
        /// All vectors.
        values: &'a [f32],
        /// Floats from one vector to the next.
        stride: usize,
        /// Number of vectors.
        rows: usize,
    },
}

/// Working memory of one thread, reusable for every matrix.
#[derive(Debug)]
pub struct Scratch {
    bytes: AlignedBytes,
}

impl Scratch {
    /// Bytes that [`Scratch::new`] reserves.
    pub const BYTES: usize = drive::SCRATCH_BYTES;

    /// Reserves the memory.
    ///
    /// # Errors
    ///
    /// Returns an error if the machine has no room for it.
    pub fn new() -> Result<Self, PackError> {
        let bytes = Self::BYTES;
        let failed = || PackError::OutOfMemory { name: "thread scratch".to_owned(), bytes };
        Ok(Scratch { bytes: AlignedBytes::zeroed(bytes).ok_or_else(failed)? })
    }
}

/// Rows of a [`PackedMatrix`] as a matrix of their own: rows and panels are counted from its first.
#[derive(Debug, Clone)]
pub struct MatrixSlice<'a> {
    matrix: &'a PackedMatrix,
    panels: Range<usize>,
    rows: Range<usize>,
}

impl MatrixSlice<'_> {
    /// The number of outputs per column.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// The number of panels.
    pub fn panels(&self) -> usize {
        self.panels.len()
    }

    /// Rows per panel; the last panel may have fewer.
    pub fn rows_per_panel(&self) -> usize {
        self.matrix.rows_per_panel()
    }

    /// The bytes of the packed weights.
    pub fn bytes(&self) -> usize {
        self.panels.len() * self.matrix.layout.panel_bytes
    }

    /// As [`PackedMatrix::needs_quantized_input`].
    pub fn needs_quantized_input(&self) -> bool {
        self.matrix.needs_quantized_input()
    }

    /// As [`PackedMatrix::rows_of`].
    pub fn rows_of(&self, panels: Range<usize>) -> Range<usize> {
        let first = self.panels.start;
        let rows = self.matrix.rows_of(first + panels.start..first + panels.end);
        rows.start - self.rows.start..rows.end.min(self.rows.end) - self.rows.start
    }

    /// As [`PackedMatrix::panels_of`].
    ///
    /// # Panics
    ///
    /// Panics if the range cuts a panel.
    pub fn panels_of(&self, rows: Range<usize>) -> Range<usize> {
        let (first, start) = (self.panels.start, self.rows.start);
        let panels = self.matrix.panels_of(start + rows.start..start + rows.end);
        panels.start - first..panels.end - first
    }

    /// As [`PackedMatrix::matmul_window`].
    ///
    /// # Panics
    ///
    /// Panics for the same reasons.
    ///
    /// # Safety
    ///
    /// The caller has the same duties.
    #[allow(unsafe_code, reason = "hands checked sizes to the kernels")]
    pub unsafe fn matmul_window(
        &self,
        input: MatmulInput<'_>,
        panels: Range<usize>,
        output: &SharedSlice<'_, f32>,
        output_stride: usize,
        first_row: usize,
        scratch: &mut Scratch,
    ) {
        let first = self.panels.start;
        let panels = first + panels.start..first + panels.end;
        let first_row = self.rows.start + first_row;
        // SAFETY: the caller's promise.
        unsafe {
            self.matrix.matmul_window(input, panels, output, output_stride, first_row, scratch);
        }
    }
}

/// A weight matrix of `rows` x `columns`, arranged for one instruction set.
#[derive(Debug)]
pub struct PackedMatrix {
    layout: Layout,
    isa: Isa,
    storage: AlignedBytes,
}

impl PackedMatrix {
    /// Packs `tensor` with `threads` threads (0 counts as 1). Pages of a mapped file are given back
    /// as they are consumed, so that the file and its packed copy are never both fully resident.
    ///
    /// # Errors
    ///
    /// Returns an error if memory is short, the size overflows or the processor lacks `isa`.
    pub fn pack(tensor: &Tensor, isa: Isa, threads: usize) -> Result<Self, PackError> {
        if !isa.is_available() {
            return Err(PackError::Unavailable { isa, available: Isa::available() });
        }
        let (rows, columns, dtype) = (tensor.rows(), tensor.columns(), tensor.dtype());
        let name = || tensor.name().to_owned();
        let layout = formats::layout(dtype, rows, columns, isa)
            .ok_or_else(|| PackError::TooLarge { name: name(), dtype, rows, columns })?;
        let bytes = layout.panels() * layout.panel_bytes;
        let mut storage = AlignedBytes::zeroed(bytes)
            .ok_or_else(|| PackError::OutOfMemory { name: name(), bytes })?;
        if bytes > 0 {
            let share = layout.panels().div_ceil(threads.max(1));
            let parts = storage.as_mut_slice().chunks_mut(share * layout.panel_bytes).enumerate();
            let parts = Mutex::new(parts);
            let take = || parts.lock().unwrap_or_else(PoisonError::into_inner).next();
            let pack_parts = || {
                while let Some((index, part)) = take() {
                    pack_part(tensor, &layout, index * share, part);
                }
            };
            std::thread::scope(|scope| {
                for _ in 1..threads {
                    // If the system grants no more threads, the ones already started do the rest.
                    if std::thread::Builder::new().spawn_scoped(scope, pack_parts).is_err() {
                        break;
                    }
                }
                pack_parts();
            });
        }
        Ok(PackedMatrix { layout, isa, storage })
    }

    /// Returns the bytes of a packed matrix; `None` if it cannot be packed.
    pub fn packed_bytes(dtype: DType, rows: usize, columns: usize, isa: Isa) -> Option<usize> {
        formats::layout(dtype, rows, columns, isa)
            .map(|layout| layout.panels() * layout.panel_bytes)
    }

    /// The number of outputs per column.
    pub fn rows(&self) -> usize {
        self.layout.rows
    }

    /// The length of the vectors that it multiplies.
    pub fn columns(&self) -> usize {
        self.layout.columns
    }

    /// The format of the weights.
    pub fn dtype(&self) -> DType {
        self.layout.dtype
    }

    /// The instruction set that it was packed for.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The number of panels, the units in which threads share the work.
    pub fn panels(&self) -> usize {
        self.layout.panels()
    }

    /// Rows per panel; the last panel may have fewer.
    pub fn rows_per_panel(&self) -> usize {
        self.layout.rows_per_panel
    }

    /// Returns the rows that a range of panels computes.
    pub fn rows_of(&self, panels: Range<usize>) -> Range<usize> {
        let row = |panel: usize| panel.saturating_mul(self.rows_per_panel()).min(self.rows());
        row(panels.start)..row(panels.end)
    }

    /// Returns the panels that compute a range of rows, which must begin and end at borders of
    /// panels.
    ///
    /// # Panics
    ///
    /// Panics if the range cuts a panel.
    pub fn panels_of(&self, rows: Range<usize>) -> Range<usize> {
        let height = self.rows_per_panel();
        let panels = rows.start / height..rows.end.div_ceil(height);
        assert_eq!(self.rows_of(panels.clone()), rows, "a range of whole panels");
        panels
    }

    /// Returns some of the rows as a matrix of their own. They must begin at the border of a panel.
    ///
    /// # Panics
    ///
    /// Panics if the range cuts a panel.
    pub fn slice(&self, rows: Range<usize>) -> MatrixSlice<'_> {
        MatrixSlice { matrix: self, panels: self.panels_of(rows.clone()), rows }
    }

    /// The bytes of the packed weights, all of which a product with one column reads.
    pub fn bytes(&self) -> usize {
        self.storage.as_slice().len()
    }

    /// Returns whether the input must be [`MatmulInput::Quantized`]; otherwise it must be
    /// [`MatmulInput::F32`].
    pub fn needs_quantized_input(&self) -> bool {
        self.layout.dtype.is_quantized()
    }

    /// Writes the weights of row `row` as floats, for looking up embeddings.
    ///
    /// # Panics
    ///
    /// Panics if the row does not exist or `output` is not [`columns`](Self::columns) long.
    pub fn decode_row(&self, row: usize, output: &mut [f32]) {
        assert!(row < self.rows(), "row {row} of a matrix of {} rows", self.rows());
        assert_eq!(output.len(), self.columns(), "a row has as many weights as columns");
        let (panel, row) = (row / self.rows_per_panel(), row % self.rows_per_panel());
        let bytes = self.layout.panel_bytes;
        let panel = &self.storage.as_slice()[panel * bytes..][..bytes];
        pack::decode_row(&self.layout, panel, row, output);
    }

    /// Multiplies the rows of `panels` with all columns of `input`:
    /// `output[c * output_stride + r] = row r . column c`. Nothing else of `output` is touched.
    ///
    /// # Panics
    ///
    /// Panics if the panels do not exist, the input has the wrong kind or width, or the output is
    /// too small.
    ///
    /// # Safety
    ///
    /// Until it returns, nothing else reads or writes those elements of `output`.
    #[allow(unsafe_code, reason = "hands checked sizes to the kernels")]
    pub unsafe fn matmul(
        &self,
        input: MatmulInput<'_>,
        panels: Range<usize>,
        output: &SharedSlice<'_, f32>,
        output_stride: usize,
        scratch: &mut Scratch,
    ) {
        // SAFETY: the caller's promise.
        unsafe { self.matmul_window(input, panels, output, output_stride, 0, scratch) }
    }

    /// Does the same as [`matmul`](Self::matmul) into an output that holds only the rows from
    /// `first_row` on: `output[c * output_stride + r - first_row] = row r . column c`.
    ///
    /// # Panics
    ///
    /// Same as `matmul`; also panics if `first_row` lies after the first row of `panels`.
    ///
    /// # Safety
    ///
    /// Same as `matmul`.
    #[allow(unsafe_code, reason = "hands checked sizes to the kernels")]
    pub unsafe fn matmul_window(
        &self,
        input: MatmulInput<'_>,
        panels: Range<usize>,
        output: &SharedSlice<'_, f32>,
        output_stride: usize,
        first_row: usize,
        scratch: &mut Scratch,
    ) {
        let columns = self.check(input, &panels, output.len(), output_stride, first_row);
        if columns == 0 || panels.is_empty() {
            return;
        }
        // The kernels count rows from the matrix's first, which may lie before the output's first.
        // `check` has made sure that the elements that they write exist.
        let output = output.as_mut_ptr().wrapping_sub(first_row);
        let weights = self.storage.as_slice().as_ptr();
        let scratch = scratch.bytes.as_mut_slice().as_mut_ptr();
        let layout = &self.layout;
        match input {
            MatmulInput::Quantized(rows) => {
                let job = Job {
                    layout,
                    weights,
                    panels,
                    input: rows.blocks().as_ptr(),
                    input_stride: layout.blocks,
                    columns,
                    output,
                    output_stride,
                    scratch,
                };
                // SAFETY: sizes are checked, and packing checked the instruction set.
                unsafe { self.run_quantized(&job) }
            }
            MatmulInput::F32 { values, stride, .. } => {
                let job = Job {
                    layout,
                    weights,
                    panels,
                    input: values.as_ptr(),
                    input_stride: stride,
                    columns,
                    output,
                    output_stride,
                    scratch,
                };
                // SAFETY: as above.
                unsafe { self.run_float(&job) }
            }
        }
    }

    /// Checks every size that the kernels rely on and returns the number of columns.
    fn check(
        &self,
        input: MatmulInput<'_>,
        panels: &Range<usize>,
        output: usize,
        output_stride: usize,
        first_row: usize,
    ) -> usize {
        assert!(
            panels.start <= panels.end && panels.end <= self.panels(),
            "panels {panels:?} of {}",
            self.panels()
        );
        let columns = match input {
            MatmulInput::Quantized(rows) => {
                assert!(self.needs_quantized_input(), "{} weights need floats", self.dtype());
                assert_eq!(rows.columns(), self.columns(), "width of the quantised input");
                rows.rows()
            }
            MatmulInput::F32 { values, stride, rows } => {
                assert!(!self.needs_quantized_input(), "{} weights need blocks", self.dtype());
                let end = last_element(rows, stride, self.columns());
                assert!(end.is_some_and(|end| end <= values.len()), "the input is too short");
                rows
            }
        };
        let written = self.rows_of(panels.clone());
        assert!(first_row <= written.start, "the output starts after the first row");
        let width = written.end - first_row;
        let end = last_element(columns, output_stride, width);
        assert!(end.is_some_and(|end| end <= output), "the output is too short");
        assert!(columns <= 1 || output_stride >= width, "outputs of columns overlap");
        columns
    }

    /// # Safety
    /// The job's sizes are checked and the processor has the instruction set.
    #[allow(unsafe_code, reason = "calls the kernels")]
    unsafe fn run_quantized(&self, job: &Job<'_, QuantizedBlock>) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => formats::run::<avx2::Avx2Kernel>(job),
                #[cfg(target_arch = "x86_64")]
                Isa::AvxVnni => formats::run::<avx_vnni::AvxVnni>(job),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512Vnni => formats::run::<avx512::Avx512Kernel>(job),
                #[cfg(target_arch = "aarch64")]
                Isa::Neon => formats::run::<neon::NeonKernel<false>>(job),
                #[cfg(target_arch = "aarch64")]
                Isa::NeonDot => formats::run::<neon::NeonKernel<true>>(job),
                _ => formats::run::<scalar::Scalar>(job),
            }
        }
    }

    /// # Safety
    /// The job's sizes are checked and the processor has the instruction set.
    #[allow(unsafe_code, reason = "calls the kernels")]
    unsafe fn run_float(&self, job: &Job<'_, f32>) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 | Isa::AvxVnni => run_float::<avx2::Avx2Kernel>(job),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512Vnni => run_float::<avx512::Avx512Kernel>(job),
                #[cfg(target_arch = "aarch64")]
                Isa::Neon | Isa::NeonDot => run_float::<neon::NeonKernel<false>>(job),
                _ => run_float::<scalar::Scalar>(job),
            }
        }
    }
}

/// Returns one past the last element of `count` vectors of `length`; `None` on overflow.
fn last_element(count: usize, stride: usize, length: usize) -> Option<usize> {
    match count.checked_sub(1) {
        None => Some(0),
        Some(last) => last.checked_mul(stride)?.checked_add(length),
    }
}

/// # Safety
/// Same as [`drive::run_fused`].
#[allow(unsafe_code, reason = "calls the kernels")]
unsafe fn run_float<S: Simd>(job: &Job<'_, f32>) {
    // SAFETY: the caller's promise.
    unsafe {
        match job.layout.dtype {
            DType::F16 => drive::run_float::<S, Half>(job),
            DType::BF16 => drive::run_float::<S, Brain>(job),
            _ => drive::run_float::<S, Single>(job),
        }
    }
}

/// Packs the panels from `first` on into `part`, giving back the file's pages as it goes.
fn pack_part(tensor: &Tensor, layout: &Layout, first: usize, part: &mut [u8]) {
    let row_bytes = tensor.row_bytes();
    let mut released = first * layout.rows_per_panel * row_bytes;
    let mut rows: Vec<(&[u8], f32)> = Vec::with_capacity(layout.rows_per_panel);
    for (index, panel) in part.chunks_exact_mut(layout.panel_bytes).enumerate() {
        let start = (first + index) * layout.rows_per_panel;
        let end = start + layout.rows_in(first + index);
        rows.clear();
        rows.extend((start..end).map(|row| (tensor.row(row), tensor.factor(row))));
        pack::pack_panel(layout, &rows, panel);
        if end * row_bytes - released >= RELEASE_BYTES {
            tensor.release_pages(released..end * row_bytes);
            released = end * row_bytes;
        }
    }
    let end = (first + part.len() / layout.panel_bytes) * layout.rows_per_panel;
    tensor.release_pages(released..end.min(layout.rows) * row_bytes);
}

#[cfg(test)]
mod tests;
