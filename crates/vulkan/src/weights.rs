//! The model's weights on the device: packed by all threads, directly into device memory if it is
//! mapped.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use half::{bf16, f16};
use rayon::prelude::*;
use trine_backend::BackendError;
use trine_model::{Model, Plan, WeightId, WeightPlace};
use trine_weights::{DType, Tensor, quantize_tensor};

use crate::capabilities::Capabilities;
use crate::error::GpuError;
use crate::kernels::matmul::MatmulShape;
use crate::kernels::operand::OperandKind;
use crate::pack::{Format, Matrix, PlaneBytes, PlanesMut, ROWS_PADDED, pack_rows, put_factors};
use crate::raw::gpu::Gpu;
use crate::raw::memory::{ALIGNMENT, Arena, Buffer, MemoryUse, blocks_bytes};
use crate::raw::transfer::Transfer;

mod joint;
mod reach;

pub(crate) use joint::Joint;
pub use reach::Reach;
pub(crate) use reach::{activated, norm_before};
use reach::{unit, unit_of_weights};

/// Bytes of a file that one thread packs at a time.
const PIECE: usize = 1 << 20;

/// Bytes of neighbouring matrices that are packed at the same time; a larger one is packed by
/// itself. More would leave fewer threads idle at the end of a list, fewer keep small what is
/// converted: the copies of a list are in the host's memory together.
const TOGETHER: u64 = 256 << 20;

/// Called with the bytes done and the bytes in all while weights are loaded: by several threads,
/// but one at a time, and with rising numbers.
pub type Progress = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// All weights of a Plan.
pub(crate) struct Weights {
    /// (the Plan's weights in it, one after another; the matrix).
    matrices: Vec<(Vec<WeightId>, Matrix)>,
    /// Address of each vector, by weight.
    vectors: Vec<Option<u64>>,
    /// A word for each weight, which a norm sets if its sum is not finite (`include/norm.glsl`);
    /// `None` for weights that are nowhere.
    noted: Option<Buffer>,
    /// The power of two in whose units the results of each gated or activated product fit into
    /// halves, by its first weight.
    units: Vec<(WeightId, f32)>,
    /// The memory that the addresses are in.
    _memory: Vec<Buffer>,
    /// The tables that stay in the file.
    tables: Vec<(WeightId, Tensor)>,
    /// Bytes of device memory.
    pub(crate) bytes: u64,
    /// Bytes of the tables that stay in the file.
    pub(crate) mapped: u64,
}

impl Weights {
    /// Returns the matrix of exactly these weights, or of one weight that is a slice or a part of
    /// what was loaded. `plan` is the Plan that names them.
    ///
    /// # Panics
    /// If no Plan that was loaded has a product with them.
    pub(crate) fn matrix(&self, plan: &Plan, ids: &[WeightId]) -> Matrix {
        if let Some((_, matrix)) = self.matrices.iter().find(|(of, _)| of == ids) {
            return *matrix;
        }
        let part = |(of, matrix): &(Vec<WeightId>, Matrix)| {
            let &[id] = ids else { return None };
            Some(matrix.part(first_row(plan, of, id)?, plan.weight(id).rows))
        };
        self.matrices.iter().find_map(part).expect("every product's matrices were loaded")
    }

    /// Returns the address of a vector's f32 values.
    ///
    /// # Panics
    /// If it is not a vector.
    pub(crate) fn vector(&self, id: WeightId) -> u64 {
        self.vectors[id.0].expect("norms have vectors")
    }

    /// Takes the first weight of a Plan whose norm met a sum that was not finite in the steps since
    /// the last call. The device must not be running.
    pub(crate) fn take_noted(&self, plan: &Plan) -> Option<WeightId> {
        let noted = self.noted.as_ref()?;
        let words: &[u32] = noted.values(0, plan.weights.len());
        if words.iter().all(|&word| word == 0) {
            return None;
        }
        let mut weights = plan.steps.iter().flat_map(|step| step.op.weights());
        let first = weights.find(|id| words[id.0] != 0);
        clear(noted);
        first
    }

    /// Returns a table that stays in the file.
    ///
    /// # Panics
    /// If it does not stay there.
    pub(crate) fn table(&self, id: WeightId) -> &Tensor {
        let found = self.tables.iter().find(|(of, _)| *of == id);
        &found.expect("gathered rows come from tables in the file").1
    }

    /// Returns the power of two in whose units the results of the gated product with this gate, or
    /// of the activated one with this matrix, fit into halves, or NaN if its weights are broken.
    ///
    /// # Panics
    /// If its input is not a norm ([`norm_before`], [`activated`]).
    pub(crate) fn unit(&self, first: WeightId) -> f32 {
        let found = self.units.iter().find(|(of, _)| *of == first);
        found.expect("the bound of every product after a norm was found").1
    }

    /// Loads the weights of a Plan. `lent` is the same Plan as it is lent to a partner, if it is:
    /// its slices are parts of what the Plan multiplies.
    pub(crate) fn load(
        gpu: &Arc<Gpu>,
        model: &Model,
        plan: &Plan,
        lent: Option<&Plan>,
        progress: Option<&Progress>,
    ) -> Result<Self, BackendError> {
        let name = gpu.capabilities().name.clone();
        let joints = joints(gpu.capabilities(), plan);
        let total: u64 = joints.iter().map(|joint| planned_bytes(plan, lent, joint)).sum();
        let mut arena = Arena::new(gpu, MemoryUse::Device, total);
        let (transfer, spare) = (Transfer::new(gpu), Spare::default());
        let done = Mutex::new(0);
        let ids = joints.iter().flat_map(|joint| &joint.weights);
        let file_bytes: u64 = ids.map(|id| plan.weight(*id).bytes()).sum();
        let tell = |bytes: u64| {
            // Held meanwhile, so that nobody is told of fewer bytes after more.
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            *done += bytes;
            if let Some(progress) = progress {
                progress(*done, file_bytes);
            }
        };
        let fail = |error: GpuError| error.on(&name);
        let load = Load {
            gpu,
            plan,
            lent,
            model,
            transfer: &transfer,
            spare: &spare,
            tell: &tell,
            name: &name,
        };
        let mut converted = Vec::new();
        let mut matrices = Vec::with_capacity(joints.len());
        let mut memory = Vec::with_capacity(joints.len() + 1);
        let mut units = Vec::new();
        rayon::in_place_scope(|scope| {
            // Drivers take long for memory: it is allocated while what came before is filled.
            let (sender, buffers) = mpsc::channel();
            let (load, joints, arena) = (&load, &joints, &mut arena);
            let allocate = move || load.allocate(joints, arena, sender);
            match rayon::current_thread_index() {
                None => scope.spawn(|_| allocate()),
                // The thread that waits for the memory might be the one to allocate it.
                Some(_) => allocate(),
            }
            let mut buffers = buffers.into_iter();
            let sizes = joints.iter().map(|joint| planned_bytes(plan, lent, joint));
            for list in together(sizes) {
                let joints = &joints[list];
                let ready: Vec<_> = joints.iter().zip(&mut buffers).collect();
                let fill = |(joint, buffer)| load.joint(joint, buffer?);
                let loaded: Vec<Result<Loaded, _>> = ready.into_par_iter().map(fill).collect();
                // The first error in their order counts.
                for (joint, loaded) in joints.iter().zip(loaded) {
                    let Loaded { matrix, buffer, unit, other_formats } = loaded?;
                    units.extend(unit.map(|unit| (joint.weights[0], unit)));
                    matrices.push((joint.weights.clone(), matrix));
                    memory.push(buffer);
                    converted.extend(other_formats);
                }
            }
            Ok::<_, BackendError>(())
        })?;
        say_converted(&converted);
        let noted = notes(gpu, plan).map_err(fail)?;
        let (vectors, buffer) =
            load_vectors(model, plan, &noted, &mut arena, &transfer).map_err(fail)?;
        memory.push(buffer);
        transfer.finish().map_err(fail)?;
        let noted = Some(noted);
        let (tables, mapped) = (tables(model, plan)?, plan.bytes_at(WeightPlace::File));
        let bytes = arena.allocated();
        Ok(Self { matrices, vectors, noted, units, _memory: memory, tables, bytes, mapped })
    }
}

/// Weights that are nowhere.
impl Weights {
    /// Returns the weights of a Plan on a device, without tables, at addresses from `first` on,
    /// where nothing is: for launches that never run. Returns `None` if they do not fit into
    /// addresses.
    pub(crate) fn described(capabilities: &Capabilities, plan: &Plan, first: u64) -> Option<Self> {
        let (mut next, mut matrices, mut units) = (first, Vec::new(), Vec::new());
        for Joint { weights, format, columns } in joints(capabilities, plan) {
            let rows = weights.iter().map(|id| plan.weight(*id).rows).sum();
            let (matrix, bytes) = Matrix::at(next, format, rows, columns)?;
            next += bytes.next_multiple_of(256);
            units.push((weights[0], 1.0));
            matrices.push((weights, matrix));
        }
        let address = |weight: &trine_model::Weight| (!weight.is_matrix()).then_some(next);
        let vectors = plan.weights.iter().map(address).collect();
        let (memory, tables) = (Vec::new(), Vec::new());
        let (bytes, mapped) = (next - first, 0);
        let noted = None;
        Some(Self { matrices, vectors, noted, units, _memory: memory, tables, bytes, mapped })
    }
}

/// Returns the matrices that are packed together, each once.
fn joints(capabilities: &Capabilities, plan: &Plan) -> Vec<Joint> {
    let mut all: Vec<Joint> = Vec::new();
    for joint in plan.steps.iter().flat_map(|step| Joint::all(capabilities, plan, &step.op)) {
        if !all.contains(&joint) {
            all.push(joint);
        }
    }
    all
}

/// Returns lists of neighbours among matrices of these sizes that are packed at the same time.
fn together(sizes: impl Iterator<Item = u64>) -> Vec<Range<usize>> {
    let mut lists: Vec<Range<usize>> = Vec::new();
    let mut bytes = 0;
    for (index, more) in sizes.enumerate() {
        match lists.last_mut().filter(|_| bytes + more <= TOGETHER) {
            Some(list) => list.end = index + 1,
            None => {
                lists.push(index..index + 1);
                bytes = 0;
            }
        }
        bytes += more;
    }
    lists
}

/// Returns the tables that stay in the file.
fn tables(model: &Model, plan: &Plan) -> Result<Vec<(WeightId, Tensor)>, BackendError> {
    let ids = (0..plan.weights.len()).map(WeightId);
    let in_file = ids.filter(|id| plan.weight(*id).place == WeightPlace::File);
    in_file.map(|id| Ok((id, model.converted(plan.weight(id))?))).collect()
}

/// Returns the row of matrices that lie together at which one of them, or a slice of one, begins;
/// `None` if it is none of theirs.
fn first_row(plan: &Plan, together: &[WeightId], id: WeightId) -> Option<usize> {
    let at = together.iter().position(|whole| *whole == plan.holder(id))?;
    let before: usize = together[..at].iter().map(|id| plan.weight(*id).rows).sum();
    match plan.weight(id).place {
        WeightPlace::Slice { first, .. } => Some(before + first),
        WeightPlace::Device | WeightPlace::Held | WeightPlace::File | WeightPlace::Aside => {
            Some(before)
        }
    }
}

/// Returns the rows of memory of matrices that lie together. Kernels read whole padded matrices, so
/// there is memory after the parts that are multiplied by themselves, too.
fn planned_rows(plan: &Plan, lent: Option<&Plan>, joint: &Joint) -> usize {
    let rows = joint.weights.iter().map(|id| plan.weight(*id).rows).sum();
    let end = |lent: &Plan| {
        let ids = (0..lent.weights.len()).map(WeightId);
        let end = |id| {
            let first = first_row(lent, &joint.weights, id)?;
            Some(first + lent.weight(id).rows.next_multiple_of(ROWS_PADDED))
        };
        ids.filter_map(end).max()
    };
    lent.and_then(end).map_or(rows, |end| end.max(rows))
}

fn planned_bytes(plan: &Plan, lent: Option<&Plan>, joint: &Joint) -> u64 {
    let planes = joint.format.plane_bytes(planned_rows(plan, lent, joint), joint.columns);
    planes.and_then(|planes| planes.layout()).map_or(0, |(_, bytes)| bytes)
}

/// Returns the bytes of device memory that the weights of a Plan take, which may be `lent` as in
/// [`Weights::load`].
pub(crate) fn forecast(capabilities: &Capabilities, plan: &Plan, lent: Option<&Plan>) -> u64 {
    let bytes = |joint| planned_bytes(plan, lent, joint);
    let mut sizes: Vec<u64> = joints(capabilities, plan).iter().map(bytes).collect();
    let matrices = sizes.iter().sum();
    sizes.push(vector_bytes(plan));
    blocks_bytes(matrices, &sizes)
}

/// Where rows go, and what examines them on their way.
#[derive(Clone, Copy)]
struct Packed<'a> {
    format: Format,
    buffer: &'a Buffer,
    starts: PlaneBytes,
    reach: Option<&'a Reach>,
}

/// Matrices that lie together on the device.
struct Loaded {
    matrix: Matrix,
    buffer: Buffer,
    unit: Option<f32>,
    /// Formats without kernels, and bytes in them.
    other_formats: Vec<(DType, u64)>,
}

/// What loading a matrix needs.
struct Load<'a> {
    gpu: &'a Gpu,
    plan: &'a Plan,
    lent: Option<&'a Plan>,
    model: &'a Model,
    transfer: &'a Transfer,
    spare: &'a Spare,
    tell: &'a (dyn Fn(u64) + Sync),
    name: &'a str,
}

impl Load<'_> {
    /// Returns what determines how large the results of matrices can get: one for each matrix of a
    /// gated or activated product after a norm, if products take halves, otherwise none.
    fn reaches(&self, joint: &Joint) -> Vec<Reach> {
        let ids = &joint.weights;
        let by_rows = |factors: &[f32]| -> Vec<Reach> {
            ids.iter().map(|id| Reach::new(factors, self.plan.weight(*id).rows)).collect()
        };
        if self.counts_in_units(joint) {
            return by_rows(&vec![1.0; joint.columns]);
        }
        if !joint.takes_halves(self.gpu.capabilities(), self.plan.is_of_picture()) {
            return Vec::new();
        }
        let factors = match ids[..] {
            [gate, _] => norm_before(self.plan, gate).map(|norm| self.vector(norm)),
            [id] if joint.format == Format::F16Fragments => {
                activated(self.plan, id).map(|_| vec![1.0; joint.columns])
            }
            _ => None,
        };
        factors.map_or_else(Vec::new, |factors| by_rows(&factors))
    }

    /// Returns whether a kernel of the device counts the matrices in units
    /// ([`Matrix::unit`](crate::pack::Matrix::unit)).
    fn counts_in_units(&self, joint: &Joint) -> bool {
        let capabilities = self.gpu.capabilities();
        matches!(joint.format, Format::Bf16 | Format::F32)
            && !joint.takes_halves(capabilities, self.plan.is_of_picture())
            && MatmulShape::operand_for(capabilities, joint.format, usize::MAX)
                == OperandKind::Split
    }

    fn vector(&self, id: WeightId) -> Vec<f32> {
        self.model.vector(self.plan.weight(id))
    }

    /// Returns the power of two for the results of matrices that were examined on their way.
    fn unit(&self, joint: &Joint, reaches: &[Reach]) -> Option<f32> {
        match reaches {
            [gate, up] => Some(unit(joint.columns, gate, up)),
            [reach] => {
                let found = activated(self.plan, joint.weights[0])?;
                Some(found.unit(reach, |id| self.vector(id)))
            }
            _ => None,
        }
    }

    /// Allocates the memory of matrices in turn and hands it over, until there is no more or nobody
    /// takes it.
    fn allocate(
        &self,
        joints: &[Joint],
        arena: &mut Arena,
        sender: mpsc::Sender<Result<Buffer, BackendError>>,
    ) {
        for joint in joints {
            let bytes = planned_bytes(self.plan, self.lent, joint);
            let buffer = arena.allocate(bytes, &self.plan.weight(joint.weights[0]).name);
            let is_last = buffer.is_err();
            let is_taken = sender.send(buffer.map_err(|error| error.on(self.name))).is_ok();
            if is_last || !is_taken {
                break;
            }
        }
    }

    /// Fills the memory of a joint.
    fn joint(&self, joint: &Joint, buffer: Buffer) -> Result<Loaded, BackendError> {
        let reaches = self.reaches(joint);
        let (mut matrix, other_formats) = self.matrix(joint, &reaches, &buffer)?;
        let mut unit = None;
        if self.counts_in_units(joint) {
            matrix.unit = unit_of_weights(&reaches);
        } else {
            unit = self.unit(joint, &reaches);
        }
        Ok(Loaded { matrix, buffer, unit, other_formats })
    }

    /// Fills the memory of a matrix. Returns also the formats without kernels, and the bytes in
    /// them.
    fn matrix(
        &self,
        joint: &Joint,
        reaches: &[Reach],
        buffer: &Buffer,
    ) -> Result<(Matrix, Vec<(DType, u64)>), BackendError> {
        let Joint { weights: ids, format, columns } = joint;
        let (first, format, columns) = (self.plan.weight(ids[0]), *format, *columns);
        let rows: usize = ids.iter().map(|id| self.plan.weight(*id).rows).sum();
        let too_large = || BackendError::Unsupported {
            device: self.name.to_owned(),
            what: format!("{} with {rows} x {columns} elements is too large", first.name),
        };
        let planned = planned_rows(self.plan, self.lent, joint);
        let planes = format.plane_bytes(planned, columns).ok_or_else(too_large)?;
        let (starts, _) = planes.layout().ok_or_else(too_large)?;
        let fail = |error: GpuError| error.on(self.name);
        let firsts = ids.iter().scan(0, |row, id| {
            let rows = self.plan.weight(*id).rows;
            Some(std::mem::replace(row, *row + rows))
        });
        let fill = |(index, (id, row)): (usize, (&WeightId, usize))| {
            let weight = self.plan.weight(*id);
            let place = Packed { format, buffer, starts, reach: reaches.get(index) };
            let tensor = self.model.converted(weight)?;
            let is_held = format.holds(tensor.dtype());
            if is_held {
                self.rows(&tensor, place, row).map_err(fail)?;
            } else {
                let copy = quantize_tensor(&tensor, DType::Q8_0)?;
                self.rows(&copy, place, row).map_err(fail)?;
            }
            tensor.release_pages(0..tensor.bytes().len());
            (self.tell)(weight.bytes());
            Ok((!is_held).then(|| (tensor.dtype(), weight.bytes())))
        };
        let tensors: Vec<_> = ids.iter().zip(firsts).enumerate().collect();
        let filled: Vec<Result<_, BackendError>> = tensors.into_par_iter().map(fill).collect();
        let other_formats: Vec<Option<_>> = filled.into_iter().collect::<Result<_, _>>()?;
        self.padding(planes, format.row_bytes(columns), buffer, starts, rows).map_err(fail)?;
        let table = format.table();
        if !table.is_empty() {
            self.transfer.write(buffer, starts.scales, &table).map_err(fail)?;
        }
        self.model.checkpoint().check_intact()?;
        let base = buffer.address();
        let planes = PlaneBytes {
            codes: base + starts.codes,
            high: base + starts.high,
            scales: base + starts.scales,
            supers: base + starts.supers,
        };
        let other_formats = other_formats.into_iter().flatten().collect();
        Ok((Matrix { format, rows, columns, planes, unit: 1.0 }, other_formats))
    }

    /// Packs a tensor's rows, beginning at row `first`.
    fn rows(&self, tensor: &Tensor, place: Packed<'_>, first: usize) -> Result<(), GpuError> {
        let Packed { format, buffer, starts, reach } = place;
        let row = format.row_bytes(tensor.columns());
        let source = tensor.row_bytes().max(1);
        let piece = (PIECE / source).max(1).next_multiple_of(format.rows_together());
        let needs_halves = format == Format::F16Fragments && tensor.dtype() == DType::BF16;
        tensor.bytes().par_chunks(piece * source).enumerate().try_for_each(|(index, bytes)| {
            let count = bytes.len() / source;
            let mut planes = self.spare.take();
            planes.resize(row, count);
            let halves = needs_halves.then(|| f16_from_bf16(bytes));
            let bytes = halves.as_deref().unwrap_or(bytes);
            pack_rows(format, tensor.columns(), bytes, &mut planes.as_mut())
                .expect("the planes have the sizes that the format states");
            if let Some(reach) = reach {
                reach.see(format, tensor.columns(), index * piece, bytes);
            }
            if !tensor.factors().is_empty() {
                let factor = |at: usize| tensor.factor(index * piece + at);
                put_factors(&mut planes.as_mut(), row, factor);
                if let Some(reach) = reach {
                    reach.multiply(index * piece, count, factor);
                }
            }
            let at = (first + index * piece) as u64;
            planes.each(starts, row, at, |offset, bytes| {
                self.transfer.write(buffer, offset, bytes)
            })?;
            self.spare.give(planes);
            Ok(())
        })
    }

    /// Writes zeros after the last row.
    fn padding(
        &self,
        planes: PlaneBytes,
        row: PlaneBytes,
        buffer: &Buffer,
        starts: PlaneBytes,
        rows: usize,
    ) -> Result<(), GpuError> {
        let all = [
            (planes.codes, row.codes, starts.codes),
            (planes.high, row.high, starts.high),
            (planes.scales, row.scales, starts.scales),
            (planes.supers, row.supers, starts.supers),
        ];
        for (bytes, row, start) in all {
            let used = row * rows as u64;
            // A plane without rows is empty or a table.
            if row > 0 && bytes > used {
                let zeros = vec![0; (bytes - used) as usize];
                self.transfer.write(buffer, start + used, &zeros)?;
            }
        }
        Ok(())
    }
}

/// Returns numbers in bf16 as f16, rounded to nearest.
fn f16_from_bf16(bytes: &[u8]) -> Vec<u8> {
    let (brains, _) = bytes.as_chunks::<2>();
    let half = |&brain: &[u8; 2]| f16::from_f32(bf16::from_le_bytes(brain).to_f32()).to_le_bytes();
    brains.iter().flat_map(half).collect()
}

/// Planes for the threads that pack: a piece's memory serves the next one. Where pieces come from
/// the system and go back to it, as in a server (decision 024), that costs more than packing.
#[derive(Default)]
struct Spare(Mutex<Vec<Planes>>);

impl Spare {
    /// Returns planes that hold anything.
    fn take(&self) -> Planes {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    fn give(&self, planes: Planes) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(planes);
    }
}

/// The planes of some rows in host memory.
#[derive(Default)]
struct Planes {
    codes: Vec<u8>,
    high: Vec<u8>,
    scales: Vec<u8>,
    supers: Vec<u8>,
}

impl Planes {
    fn resize(&mut self, row: PlaneBytes, rows: usize) {
        let fit = |plane: &mut Vec<u8>, bytes: u64| plane.resize(rows * bytes as usize, 0);
        fit(&mut self.codes, row.codes);
        fit(&mut self.high, row.high);
        fit(&mut self.scales, row.scales);
        fit(&mut self.supers, row.supers);
    }

    fn as_mut(&mut self) -> PlanesMut<'_> {
        PlanesMut {
            codes: &mut self.codes,
            high: &mut self.high,
            scales: &mut self.scales,
            supers: &mut self.supers,
        }
    }

    /// Calls `write` with the offset and bytes of each plane, for rows from `first` on.
    fn each(
        &self,
        starts: PlaneBytes,
        row: PlaneBytes,
        first: u64,
        write: impl Fn(u64, &[u8]) -> Result<(), GpuError>,
    ) -> Result<(), GpuError> {
        let planes = [
            (&self.codes, starts.codes + first * row.codes),
            (&self.high, starts.high + first * row.high),
            (&self.scales, starts.scales + first * row.scales),
            (&self.supers, starts.supers + first * row.supers),
        ];
        planes.iter().filter(|(bytes, _)| !bytes.is_empty()).try_for_each(|(b, at)| write(*at, b))
    }
}

/// Bytes before a vector, the last eight of which are the address of its word: as many as keep the
/// vector aligned.
pub(crate) const BEFORE_VECTOR: u64 = ALIGNMENT;

/// Returns the bytes that a vector takes, with what is before it.
fn vector_size(weight: &trine_model::Weight) -> u64 {
    BEFORE_VECTOR + (4 * weight.columns as u64).next_multiple_of(ALIGNMENT)
}

/// Returns a word for each weight, all 0.
fn notes(gpu: &Arc<Gpu>, plan: &Plan) -> Result<Buffer, GpuError> {
    let words =
        gpu.allocate(4 * plan.weights.len() as u64, MemoryUse::Readback, "the norms' notes")?;
    clear(&words);
    Ok(words)
}

/// Makes all words 0.
fn clear(words: &Buffer) {
    words.write(0, &vec![0; words.bytes() as usize]);
}

fn vector_bytes(plan: &Plan) -> u64 {
    plan.weights.iter().filter(|weight| !weight.is_matrix()).map(vector_size).sum()
}

fn load_vectors(
    model: &Model,
    plan: &Plan,
    noted: &Buffer,
    arena: &mut Arena,
    transfer: &Transfer,
) -> Result<(Vec<Option<u64>>, Buffer), GpuError> {
    let memory = arena.allocate(vector_bytes(plan), "the norms")?;
    let mut offset = 0;
    let mut vectors = Vec::with_capacity(plan.weights.len());
    for (index, weight) in plan.weights.iter().enumerate() {
        if weight.is_matrix() {
            vectors.push(None);
            continue;
        }
        let first = offset + BEFORE_VECTOR;
        let word = noted.address() + 4 * index as u64;
        transfer.write(&memory, first - 8, bytemuck::bytes_of(&word))?;
        transfer.write(&memory, first, bytemuck::cast_slice(&model.vector(weight)))?;
        vectors.push(Some(memory.address() + first));
        offset += vector_size(weight);
    }
    Ok((vectors, memory))
}

/// Warns of the formats that the device has no kernels for.
fn say_converted(converted: &[(DType, u64)]) {
    let mut formats: Vec<DType> = converted.iter().map(|(dtype, _)| *dtype).collect();
    formats.sort_by_key(|dtype| dtype.name());
    formats.dedup();
    for dtype in formats {
        let bytes: u64 =
            converted.iter().filter(|(found, _)| *found == dtype).map(|(_, bytes)| bytes).sum();
        tracing::warn!(
            format = dtype.name(),
            bytes,
            "the GPU has no kernels for this format: its matrices were converted to Q8_0"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_matrices_are_packed_one_by_one_and_small_ones_together() {
        let lists = |sizes: &[u64]| together(sizes.iter().copied());
        assert_eq!(lists(&[]), []);
        assert_eq!(lists(&[TOGETHER + 1]), vec![0..1; 1]);
        assert_eq!(lists(&[1, TOGETHER + 1, 1]), [0..1, 1..2, 2..3]);
        assert_eq!(lists(&[TOGETHER / 2; 5]), [0..2, 2..4, 4..5]);
        assert_eq!(lists(&[TOGETHER, 0, 1, TOGETHER - 1, 1]), [0..2, 2..4, 4..5]);
    }
}
