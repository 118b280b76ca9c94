//! The thread that owns the device: the one hardware context of a process, its kernels, and the
//! matrices of all guests.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use trine_backend::{PartnerWork, Tally};
use trine_weights::Tensor;

use super::band::{Band, in_parallel};
use super::cutting::{MatrixTile, tiles};
use super::int8;
use super::share::Timed;
use super::sizes::{BLOCK, ROWS_MAX};
use crate::cores::CoreProgram;
use crate::driver::{
    Context, Device, DeviceBuffer, DriverError, Executed, HostBuffer, PoisonedBuffer, Program,
    ProvenStream, Run,
};
use crate::kernel::Kernel;
use crate::layout;
use crate::pack::Pack;
use crate::sys::Sys;

/// Terms of an activation.
const TERMS: usize = 2;
/// The most commands whose results are in memory at once.
const RUNS_MAX: usize = 8;
/// The most threads that convert matrices: each has a band of tiles in memory.
const THREADS_MAX: usize = 8;
/// How often a command is timed, after one that is not.
const TIMES: usize = 3;

/// The unit in which Linux locks memory.
const PAGE_BYTES: usize = 4096;

/// What the thread is asked for. An answer goes nowhere if nobody waits for it any more.
pub(super) enum Request {
    /// Takes in further matrices of a guest.
    Load { number: usize, matrices: Vec<Tensor>, done: Sender<Result<(), String>> },
    /// Multiplies `input`, (rows, in-features), with matrices of a guest.
    Multiply {
        guest: usize,
        input: Vec<f32>,
        matrices: Range<usize>,
        done: Sender<Result<Vec<Vec<f32>>, String>>,
    },
    /// Frees the matrices of a guest.
    Forget { number: usize },
    /// Ends the thread, whoever may still ask.
    End,
}

/// The streams of a pack that are used, by out-features and rows.
pub(super) struct Kernels {
    columns: u8,
    cores: CoreProgram,
    proven: BTreeMap<(usize, usize), ProvenStream>,
}

impl Kernels {
    /// Proves the streams of the kernel with [`BLOCK`] in-features.
    pub(super) fn of(pack: &Pack) -> Result<Self, String> {
        let mut proven = BTreeMap::new();
        for (entry, part) in pack.manifest.stream.iter().zip(&pack.streams) {
            if let Some(Kernel::Int8 { m, k, n }) = entry.kernel
                && k as usize == BLOCK
            {
                let stream = ProvenStream::new(&part.verifier, &part.stream)
                    .map_err(|error| format!("{}: {error}", entry.file))?;
                proven.insert((n as usize, m as usize), stream);
            }
        }
        // Each width needs a kernel for all rows; tiles count in the smallest width.
        let widths: Vec<usize> =
            proven.keys().filter(|(_, rows)| *rows == ROWS_MAX).map(|(width, _)| *width).collect();
        proven.retain(|(width, _), _| widths.contains(width));
        let (Some(least), Some(cores)) = (widths.first(), pack.cores()) else {
            return Err(format!(
                "the pack has no stream of a8w8acc32 for {ROWS_MAX} rows of {BLOCK}; make one of \
                 AMD's xclbin with `trine npu pack`"
            ));
        };
        if let Some(odd) = widths.iter().find(|width| !width.is_multiple_of(*least)) {
            return Err(format!(
                "the pack's streams of {least} and {odd} columns do not fit one another"
            ));
        }
        Ok(Self { columns: pack.manifest.partition.columns, cores: cores.clone(), proven })
    }

    pub(super) fn widths(&self) -> Vec<usize> {
        let mut widths: Vec<usize> = self.proven.keys().map(|(width, _)| *width).collect();
        widths.dedup();
        widths
    }
}

/// A matrix in the NPU's memory.
struct Matrix<S: Sys> {
    rows: usize,
    columns: usize,
    tiles: Vec<(MatrixTile, DeviceBuffer<S>)>,
    /// (rows, blocks).
    scales: Vec<f32>,
}

impl<S: Sys> Matrix<S> {
    /// A matrix of which nothing is in the NPU's memory yet.
    fn empty(tensor: &Tensor) -> Self {
        let (rows, columns) = (tensor.rows(), tensor.columns());
        Self { rows, columns, tiles: Vec::new(), scales: Vec::new() }
    }
}

/// Up to [`ROWS_MAX`] rows of activations in terms of 8 bits.
struct ActivationTile {
    rows: usize,
    /// For each block and term, (rows, [`BLOCK`]).
    terms: Vec<[Vec<i8>; TERMS]>,
    /// (blocks, rows): scales of the first term.
    scales: Vec<f32>,
}

impl ActivationTile {
    /// Rounds rows of `columns` values.
    fn new(input: &[f32], columns: usize) -> Self {
        let rows = input.len() / columns;
        let blocks = columns.div_ceil(BLOCK);
        let empty = || std::array::from_fn(|_| vec![0; rows * BLOCK]);
        let mut terms: Vec<[Vec<i8>; TERMS]> = (0..blocks).map(|_| empty()).collect();
        let mut scales = vec![0.0; blocks * rows];
        for (row, values) in input.chunks_exact(columns).enumerate() {
            for (block, values) in values.chunks(BLOCK).enumerate() {
                let [first, rest] = &mut terms[block];
                let own = row * BLOCK..row * BLOCK + values.len();
                let (first, rest) = (&mut first[own.clone()], &mut rest[own]);
                scales[block * rows + row] = int8::quantize(values, first, Some(rest));
            }
        }
        Self { rows, terms, scales }
    }
}

/// Which activations a buffer holds: the block, the term, and the kernel's out-features and rows,
/// on which the parameters after them depend.
type InputKey = (usize, usize, usize, usize);

/// An open NPU with kernels and matrices.
pub(super) struct Worker<S: Sys> {
    // Dropped in this order.
    context: Context<S>,
    programs: BTreeMap<(usize, usize), Program<S>>,
    guests: BTreeMap<usize, Vec<Matrix<S>>>,
    /// Buffers of activations and results that are kept, by what they hold and by their bytes.
    inputs: BTreeMap<InputKey, HostBuffer<S>>,
    results: Vec<HostBuffer<S>>,
    device: Device<S>,
    widths: Vec<usize>,
    tally: Arc<Tally>,
}

impl<S: Sys> Worker<S> {
    /// Opens the device and copies the streams to it.
    pub(super) fn open(
        sys: S,
        path: &str,
        kernels: Kernels,
        tally: Arc<Tally>,
    ) -> Result<Self, String> {
        let open = || -> Result<Self, DriverError> {
            let device = Device::open(sys, path)?;
            let context = Context::new(&device, kernels.columns, &kernels.cores)?;
            let program = |(key, stream): (&(usize, usize), &ProvenStream)| {
                Program::new(&device, stream).map(|program| (*key, program))
            };
            let programs = kernels.proven.iter().map(program).collect::<Result<_, _>>()?;
            Ok(Self {
                context,
                programs,
                guests: BTreeMap::new(),
                inputs: BTreeMap::new(),
                results: Vec::new(),
                device,
                widths: kernels.widths(),
                tally,
            })
        };
        open().map_err(|error| error.to_string())
    }

    /// Does what it is asked for until nobody can ask any more.
    pub(super) fn serve(&mut self, requests: &Receiver<Request>) {
        for request in requests {
            match request {
                Request::Load { number, matrices, done } => {
                    let loaded = self.load(&matrices);
                    let answer = loaded
                        .map(|matrices| self.guests.entry(number).or_default().extend(matrices));
                    let _ = done.send(answer);
                }
                Request::Multiply { guest, input, matrices, done } => {
                    let _ = done.send(self.noted(|own| own.multiply(guest, &input, matrices)));
                }
                Request::Forget { number } => drop(self.guests.remove(&number)),
                Request::End => break,
            }
        }
    }

    /// Notes the time of products, and whether they failed, before anybody sees them.
    fn noted<T>(
        &mut self,
        multiply: impl FnOnce(&mut Self) -> Result<T, String>,
    ) -> Result<T, String> {
        // Nobody else counts products.
        let counts = |tally: &Tally| (tally.products() as usize, tally.rows() as usize);
        let (products, rows) = counts(&self.tally);
        let start = Instant::now();
        let outcome = multiply(self);
        let end = Instant::now();
        if outcome.is_err() {
            self.tally.failed(self.device.process().quarantine().is_some());
        }
        let (products_after, rows_after) = counts(&self.tally);
        self.tally.worked(PartnerWork {
            start,
            end,
            products: products_after - products,
            rows: rows_after - rows,
            busy: end.saturating_duration_since(start),
        });
        outcome
    }

    /// Returns out-features and rows of each kernel.
    pub(super) fn kernels(&self) -> Vec<(usize, usize)> {
        self.programs.keys().copied().collect()
    }

    /// Returns whether the driver says that it is trine's model.
    pub(super) fn is_model(&self) -> bool {
        self.device.is_model()
    }

    /// Multiplies whole numbers with each kernel and compares the products with the exact ones.
    /// Returns the widths of kernels, with the time of a command of [`ROWS_MAX`] rows each if
    /// `timed`.
    pub(super) fn try_out(&mut self, timed: bool) -> Result<Timed, String> {
        let mut commands = Vec::new();
        for width in self.widths.clone() {
            commands.push((width, self.try_width(width, timed)?));
        }
        Ok(Timed::new(commands))
    }

    /// Tries the kernels of a width, and returns the time of a command if `timed`.
    fn try_width(&mut self, width: usize, timed: bool) -> Result<Duration, String> {
        let value = |at: usize| ((at * 37) ^ (at >> 7)) as i8;
        let activations: Vec<i8> = (0..ROWS_MAX * BLOCK).map(value).collect();
        let weights: Vec<i8> = (0..BLOCK * width).map(|at| value(at + 5)).collect();
        let expected = layout::product(BLOCK, width, &activations, &weights);
        let weights = self.upload(&layout::weights(BLOCK, width, &weights));
        let weights = weights.map_err(|error| error.to_string())?;
        let kernels = self.programs.range((width, 0)..=(width, ROWS_MAX));
        let rows_of_kernels: Vec<usize> = kernels.map(|((_, rows), _)| *rows).collect();
        for rows in rows_of_kernels {
            let found = self.once(width, rows, &activations[..rows * BLOCK], &weights);
            if found.map_err(|error| error.to_string())? != expected[..rows * width] {
                return Err(format!(
                    "a product of {rows} x {BLOCK} x {width} on the NPU is wrong; `trine npu \
                     selftest` tells more"
                ));
            }
        }
        if !timed {
            return Ok(Duration::ZERO);
        }
        // As in use: the matrix is there, and what else a product takes is a part of the time.
        let tile = MatrixTile { rows: 0..width, columns: 0..BLOCK, width };
        let (tiles, scales) = (vec![(tile, weights)], vec![1.0; width]);
        let matrix = Matrix { rows: width, columns: BLOCK, tiles, scales };
        let values: Vec<f32> = activations.iter().map(|value| f32::from(*value)).collect();
        let terms = ActivationTile::new(&values, BLOCK);
        let mut output = vec![0.0; ROWS_MAX * width];
        let mut times = Vec::new();
        for _ in 0..=TIMES {
            let start = self.device.now();
            let outcome = self.group(&mut [(&matrix, &mut output)], &terms);
            outcome.map_err(|error| error.to_string())?;
            times.push(self.device.now().saturating_sub(start));
        }
        let best = times.into_iter().skip(1).min().unwrap_or_default();
        Ok(best / TERMS as u32)
    }

    /// Returns the product of one command.
    fn once(
        &mut self,
        width: usize,
        rows: usize,
        activations: &[i8],
        weights: &DeviceBuffer<S>,
    ) -> Result<Vec<i32>, DriverError> {
        let activations = self.upload(&layout::activations(BLOCK, width, activations))?;
        let result = self.result(rows, width)?;
        let program = &self.programs[&(width, rows)];
        let inputs = vec![(1, &activations), (2, weights)];
        let done = self.context.execute(vec![Run { program, inputs, result }])?;
        Ok(done.iter().flat_map(|executed| sums(executed, rows * width)).collect())
    }

    /// Returns the rows of the smallest kernel of a width that takes `rows`.
    fn least_rows(&self, rows: usize, width: usize) -> usize {
        let mut fitting = self.programs.range((width, rows)..=(width, ROWS_MAX));
        fitting.next().map_or(ROWS_MAX, |((_, rows), _)| *rows)
    }

    fn upload(&self, bytes: &[u8]) -> Result<DeviceBuffer<S>, DriverError> {
        let mut buffer = self.device.buffer(bytes.len() as u64)?;
        buffer.write(0, bytes)?;
        buffer.to_device()
    }

    /// Returns a buffer for the result of a kernel: a kept one if there is one.
    fn result(&mut self, rows: usize, width: usize) -> Result<PoisonedBuffer<S>, DriverError> {
        let bytes = (rows * width * 4) as u64;
        let kept = self.results.iter().position(|buffer| buffer.bytes() == bytes);
        match kept.map(|index| self.results.swap_remove(index)) {
            Some(buffer) => buffer.poison(),
            None => self.device.buffer(bytes)?.poison(),
        }
    }

    /// Brings matrices, (out-features, in-features) each, into the kernel's layout and to the
    /// device. Several threads convert, as there are processors, each some rows of a matrix.
    fn load(&mut self, tensors: &[Tensor]) -> Result<Vec<Matrix<S>>, String> {
        let mut matrices: Vec<Matrix<S>> = tensors.iter().map(Matrix::empty).collect();
        let mut bands = Vec::new();
        for (matrix, tensor) in tensors.iter().enumerate() {
            let tiles = tiles(tensor.rows(), tensor.columns(), &self.widths);
            let same = tiles.chunk_by(|a, b| a.rows == b.rows);
            bands.extend(same.map(|tiles| (matrix, tiles.to_vec())));
        }
        let threads =
            thread::available_parallelism().map_or(1, |count| count.get()).min(THREADS_MAX);
        for bands in bands.chunks(threads) {
            let convert = |(matrix, tiles): &(usize, Vec<MatrixTile>)| {
                Band::convert(&tensors[*matrix], tiles)
            };
            let converted = in_parallel(bands, convert);
            for ((matrix, tiles), band) in bands.iter().zip(converted) {
                let Band { scales, tiles: bytes } = band?;
                let matrix = &mut matrices[*matrix];
                matrix.scales.extend(scales);
                for (tile, bytes) in tiles.iter().zip(bytes) {
                    let buffer = self.upload(&bytes).map_err(|error| error.to_string())?;
                    matrix.tiles.push((tile.clone(), buffer));
                }
            }
        }
        Ok(matrices)
    }

    /// Returns the products of `input` with matrices of a guest, each (rows, out-features).
    fn multiply(
        &mut self,
        guest: usize,
        input: &[f32],
        matrices: Range<usize>,
    ) -> Result<Vec<Vec<f32>>, String> {
        // Taken out, so that buffers can change while they are used.
        let loaded = self.guests.remove(&guest).ok_or("its matrices were not loaded")?;
        let products = self.products(&loaded[matrices], input);
        self.guests.insert(guest, loaded);
        products.map_err(|error| error.to_string())
    }

    fn products(
        &mut self,
        matrices: &[Matrix<S>],
        input: &[f32],
    ) -> Result<Vec<Vec<f32>>, DriverError> {
        let columns = matrices.first().map_or(1, |matrix| matrix.columns);
        let rows = input.len() / columns;
        let mut outputs: Vec<Vec<f32>> =
            matrices.iter().map(|matrix| vec![0.0; rows * matrix.rows]).collect();
        for (group, input) in input.chunks(ROWS_MAX * columns).enumerate() {
            let terms = ActivationTile::new(input, columns);
            let own = matrices.iter().zip(&mut outputs).map(|(matrix, output)| {
                let first = group * ROWS_MAX * matrix.rows;
                (matrix, &mut output[first..first + terms.rows * matrix.rows])
            });
            self.group(&mut own.collect::<Vec<_>>(), &terms)?;
        }
        matrices.iter().for_each(|_| self.tally.computed(rows));
        Ok(outputs)
    }

    /// Adds the products of up to [`ROWS_MAX`] rows with matrices to outputs, each (rows,
    /// out-features). Activations are laid out once for all of them.
    fn group(
        &mut self,
        products: &mut [(&Matrix<S>, &mut [f32])],
        terms: &ActivationTile,
    ) -> Result<(), DriverError> {
        let mut inputs = BTreeMap::new();
        for (matrix, output) in products {
            self.product(matrix, terms, &mut inputs, output)?;
        }
        for (key, buffer) in inputs {
            self.inputs.insert(key, buffer.to_host()?);
        }
        Ok(())
    }

    /// Adds the product of up to [`ROWS_MAX`] rows with a matrix to `output`, (rows, out-features).
    fn product(
        &mut self,
        matrix: &Matrix<S>,
        terms: &ActivationTile,
        inputs: &mut BTreeMap<InputKey, DeviceBuffer<S>>,
        output: &mut [f32],
    ) -> Result<(), DriverError> {
        let parts: Vec<(&MatrixTile, &DeviceBuffer<S>, usize)> = matrix
            .tiles
            .iter()
            .flat_map(|(tile, weights)| (0..TERMS).map(move |term| (tile, weights, term)))
            .collect();
        for parts in parts.chunks(RUNS_MAX) {
            let key = |(tile, _, term): &(&MatrixTile, _, usize)| self.key(tile, *term, terms.rows);
            let keys: Vec<InputKey> = parts.iter().map(key).collect();
            let mut results = Vec::new();
            for (key, (tile, ..)) in keys.iter().zip(parts) {
                if !inputs.contains_key(key) {
                    inputs.insert(*key, self.input(*key, terms)?);
                }
                results.push(self.result(key.3, tile.width)?);
            }
            let runs = keys.iter().zip(parts).zip(results).map(|((key, part), result)| Run {
                program: &self.programs[&(key.2, key.3)],
                inputs: vec![(1, &inputs[key]), (2, part.1)],
                result,
            });
            let runs = runs.collect();
            let done = self.context.execute(runs)?;
            for ((tile, _, term), executed) in parts.iter().zip(done) {
                let sums = sums(&executed, terms.rows * tile.width);
                add(matrix, tile, *term, terms, &sums, output);
                self.results.push(executed.into_result());
            }
        }
        Ok(())
    }

    fn key(&self, tile: &MatrixTile, term: usize, rows: usize) -> InputKey {
        (tile.columns.start / BLOCK, term, tile.width, self.least_rows(rows, tile.width))
    }

    /// Hands activations to the device, with zeros for the rows that they lack.
    fn input(
        &mut self,
        key: InputKey,
        terms: &ActivationTile,
    ) -> Result<DeviceBuffer<S>, DriverError> {
        let (block, term, width, rows) = key;
        let mut values = terms.terms[block][term].clone();
        values.resize(rows * BLOCK, 0);
        let bytes = layout::activations(BLOCK, width, &values);
        let mut buffer = match self.inputs.remove(&key) {
            Some(kept) => kept,
            None => self.device.buffer(bytes.len() as u64)?,
        };
        buffer.write(0, &bytes)?;
        buffer.to_device()
    }
}

/// Returns the most bytes of activations and results that a kernel of these out-features and rows
/// keeps for matrices of up to `columns` in-features.
pub(super) fn working_bytes((width, rows): (usize, usize), columns: usize) -> usize {
    let input = (rows * BLOCK + layout::PARAMETER_BYTES).next_multiple_of(PAGE_BYTES);
    let inputs = columns.div_ceil(BLOCK) * TERMS * input;
    inputs + RUNS_MAX * 4 * rows * width
}

/// Returns the first sums of a result.
fn sums<S: Sys>(executed: &Executed<S>, count: usize) -> Vec<i32> {
    let words = executed.bytes().as_chunks().0;
    words.iter().take(count).map(|word| i32::from_le_bytes(*word)).collect()
}

/// Adds the sums of a tile, (rows, the kernel's out-features), to a product of floats.
fn add<S: Sys>(
    matrix: &Matrix<S>,
    tile: &MatrixTile,
    term: usize,
    terms: &ActivationTile,
    sums: &[i32],
    output: &mut [f32],
) {
    let (block, blocks) = (tile.columns.start / BLOCK, matrix.columns.div_ceil(BLOCK));
    for (row, sums) in sums.chunks_exact(tile.width).enumerate() {
        let scale = terms.scales[block * terms.rows + row];
        let scale = if term == 0 { scale } else { int8::second(scale) };
        let output = &mut output[row * matrix.rows..][tile.rows.clone()];
        let scales = matrix.scales[tile.rows.start * blocks..].iter().skip(block).step_by(blocks);
        for ((output, sum), weight) in output.iter_mut().zip(sums).zip(scales) {
            *output += *sum as f32 * scale * weight;
        }
    }
}
