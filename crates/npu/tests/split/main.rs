//! Prompts whose products are split between the processor and an NPU, which is a model.

#![allow(clippy::unwrap_used, reason = "test code")]

#[path = "../common/mod.rs"]
mod changed;
mod gate;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use changed::Changed;
use gate::Gate;
use trine_backend::reference::{Products as Arithmetic, ReferenceDevice};
use trine_backend::{BULK_ROWS, BackendError, Device, Guest, Job, Partner, ProgramOptions, Tally};
use trine_cpu::CpuDevice;
use trine_model::{KvType, Model, Weight, WeightKind, Width};
use trine_npu::driver::DEVICE_PATH;
use trine_npu::generate::{self, Kernel};
use trine_npu::pack::Pack;
use trine_npu::partner::{BLOCK, NpuPartner, Share};
use trine_npu::published;
use trine_npu::sys::Sys;
use trine_npu::tile::Tile;
use trine_npu_model::{
    Array, Behaviour, DeviceMemory, Fault, Held, Machine, ModelSys, Task, Tiles, Trap, xclbin,
};
use trine_testing::random::{Random, model_of_layers, relative_difference};
use trine_testing::{divergence, hidden_states, logits};
use trine_weights::{DType, Tensor, blocks};

const KERNELS: [Kernel; 2] =
    [Kernel::Int8 { m: 8, k: 2048, n: 2048 }, Kernel::Int8 { m: 64, k: 2048, n: 2048 }];
/// The largest difference of a value from the definition of the NPU's arithmetic, relative to the
/// largest value. Sums are added in f32 in another order, and a last bit of a value that is rounded
/// again can change a step of the second term, 1/32258 of the largest in a row.
const TOLERANCE: f32 = 3e-4;
/// The largest mean KL divergence of a split prompt from the scalar reference, in nats: the bound
/// for prompts on the processor alone (`cpu/tests/wide_prompts.rs`).
const DIVERGENCE: f64 = 1e-3;

fn pack(kernels: &[Kernel]) -> Pack {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in
        published::stand_in("a.xclbin", &xclbin(Behaviour::Int8.stand_in()), kernels).unwrap()
    {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    Pack::open(folder.path()).unwrap()
}

fn sys(is_wrong: bool) -> ModelSys {
    machine(Machine::default(), is_wrong)
}

fn machine(machine: Machine, is_wrong: bool) -> ModelSys {
    let tiles = Tiles::new(7);
    let tiles = if is_wrong { tiles.with_faulty(Tile::new(3, 2)) } else { tiles };
    ModelSys::new(machine, Box::new(tiles))
}

fn open<S: Sys + 'static>(sys: S, share: Share) -> Arc<NpuPartner> {
    Arc::new(NpuPartner::open(sys, DEVICE_PATH, &pack(&KERNELS), share).unwrap())
}

/// An NPU that takes half of the rows of each matrix, whatever the size of its tiles.
#[derive(Debug)]
struct Half(Arc<NpuPartner>);

impl Partner for Half {
    fn name(&self) -> String {
        self.0.name()
    }
    fn kept(&self, weight: &Weight) -> usize {
        weight.rows / 2
    }
    fn bytes(&self, weight: &Weight) -> u64 {
        self.0.bytes(weight)
    }
    fn load(&self, jobs: &[Vec<Tensor>]) -> Result<Box<dyn Guest>, BackendError> {
        self.0.load(jobs)
    }
    fn tally(&self) -> &Tally {
        self.0.tally()
    }
}

fn processor() -> CpuDevice {
    CpuDevice::new(Some(2), None).unwrap()
}

fn prompt(model: &Model, rows: usize) -> Vec<u32> {
    (0..rows).map(|at| (at * at + 3 * at) as u32 % model.config().vocabulary as u32).collect()
}

fn small(dtype: DType) -> Model {
    let folder = tempfile::tempdir().unwrap();
    model_of_layers(&mut Random(41), dtype, folder.path())
}

/// With all products of a prompt on the NPU, the prompt is what the definition of its arithmetic
/// says.
#[test]
fn the_npu_computes_as_defined() {
    for dtype in [DType::Q4_0, DType::BF16] {
        let model = small(dtype);
        let ids = prompt(&model, BULK_ROWS + 5);
        let states =
            |device: &dyn Device| hidden_states(device, &model, &ids, ids.len(), KvType::F32);
        let int8 = Arithmetic::Int8 { block: BLOCK, terms: 2 };
        let expected = states(&ReferenceDevice::computing(int8));
        let sys = sys(false);
        let partner = open(sys.clone(), Share::Fraction(1.0));
        let found = states(&processor().with_partner(partner.clone()));
        let worst = relative_difference(&[expected], &[found]);
        assert!(worst <= TOLERANCE, "{dtype:?}: {worst}");
        let tally = partner.tally();
        assert!(tally.products() > 0 && tally.instead() == 0);
        assert_eq!(tally.rows(), tally.products() * ids.len() as u64);
        drop(partner);
        assert_eq!((sys.held(), sys.leaked()), (Held::default(), Held::default()));
    }
}

/// A trained model, half of each matrix on the NPU: as close to the reference as the processor is.
#[test]
fn a_split_prompt_is_as_good_as_the_processors() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo-draft.gguf");
    let model = Model::open(&path).unwrap();
    let ids: Vec<u32> = (0..BULK_ROWS + 8)
        .map(|at| if at == 0 { 2 } else { 400 + (at * at % 1500) as u32 })
        .collect();
    let of = |device: &dyn Device| logits(device, &model, &ids, ids.len(), KvType::F32);
    let expected = of(&ReferenceDevice::new());
    let partner = open(sys(false), Share::Fraction(1.0));
    let half = Arc::new(Half(partner.clone()));
    let (alone, split) = (of(&processor()), of(&processor().with_partner(half)));
    assert!(partner.tally().products() > 0 && partner.tally().instead() == 0);
    let vocabulary = model.config().vocabulary;
    let mean = |found: &[f32]| {
        let rows = expected.chunks_exact(vocabulary).zip(found.chunks_exact(vocabulary));
        rows.map(|(expected, found)| divergence(expected, found)).sum::<f64>() / ids.len() as f64
    };
    let (alone, split) = (mean(&alone), mean(&split));
    println!("mean KL divergence {alone:.1e} on the processor, {split:.1e} split");
    assert!(split <= DIVERGENCE, "{split}");
}

/// After any failure the processor computes everything, and the bits are those without an NPU.
#[test]
fn what_the_npu_does_not_do_the_processor_does() {
    let model = small(DType::Q8_0);
    let ids = prompt(&model, BULK_ROWS + 1);
    let states = |device: &dyn Device| hidden_states(device, &model, &ids, ids.len(), KvType::F32);
    let alone = states(&processor());
    for fault in [
        Fault::Hangs,
        Fault::Dropped,
        Fault::DroppedAndCounted,
        Fault::Uncounted,
        Fault::StopsAfter(8),
        Fault::Fails,
        Fault::Aborted,
    ] {
        let sys = sys(false);
        let partner = open(sys.clone(), Share::Fraction(1.0));
        let device = processor().with_partner(Arc::new(Half(partner.clone())));
        sys.inject([fault]);
        assert!(states(&device) == alone, "{fault:?}");
        assert_eq!(partner.tally().products(), 0, "{fault:?}: nothing counts as the NPU's");
        assert!(partner.tally().instead() > 0, "{fault:?}");
        assert_eq!(partner.tally().failures(), 1, "{fault:?}: nothing more is delegated");
    }
}

#[test]
fn an_npu_that_is_wrong_or_missing_is_no_partner() {
    let open = |sys: ModelSys, kernels: &[Kernel]| {
        NpuPartner::open(sys, DEVICE_PATH, &pack(kernels), Share::Fraction(1.0)).unwrap_err()
    };
    assert!(open(sys(true), &KERNELS).contains("is wrong"));
    let nothing = Machine { is_there: false, ..Machine::default() };
    let nothing = machine(nothing, false);
    assert!(!open(nothing, &KERNELS).is_empty());
    let few = [Kernel::Int8 { m: 8, k: 2048, n: 2048 }];
    assert!(open(sys(false), &few).contains("no stream of a8w8acc32 for 64 rows"));
}

/// The time of a command on the model is 2 ms, so a fast processor keeps everything, and one that
/// is slow lends.
#[test]
fn the_share_follows_from_measured_times() {
    let model = small(DType::F32);
    let plan = model.plan();
    let lent = |operations_per_second| {
        let partner = open(sys(false), Share::Fastest { operations_per_second });
        plan.weights.iter().filter(|weight| partner.kept(weight) < weight.rows).count()
    };
    assert_eq!(lent(1e15), 0);
    assert!(lent(1.0) > 0);
}

/// A model whose clock goes on while memory is mapped, and while each MiB is written or flushed.
fn slow(mapping: Duration, each_mib: Duration) -> Changed {
    let mut changed = Changed::of(sys(false));
    let moved = move |model: &ModelSys, bytes: u64| {
        model.pass(each_mib.mul_f64(bytes as f64 / f64::from(1 << 20)));
    };
    changed.map = Arc::new(move |model, file, offset, bytes, alignment| {
        model.pass(mapping);
        model.map(file, offset, bytes, alignment)
    });
    changed.write = Arc::new(move |model, address, bytes| {
        moved(model, bytes.len() as u64);
        model.write(address, bytes)
    });
    changed.flush = Arc::new(move |model, address, bytes| {
        moved(model, bytes);
        model.flush(address, bytes)
    });
    changed
}

/// What is measured is a command as prompts have it: the matrix is on the device by then, and
/// activations and results are moved for each. For 2048 x 2048 the processor takes 20 ms, the
/// model's two commands 4 ms.
#[test]
fn the_time_of_a_command_is_that_of_one_in_use() {
    let operations_per_second = 2.0 * 64.0 * 2048.0 * 2048.0 / 0.02;
    let share = Share::Fastest { operations_per_second };
    let weights = small(DType::F32).plan().weights.clone();
    let matrix = weights.into_iter().find(|weight| weight.kind == WeightKind::Matrix).unwrap();
    let weight = Weight { rows: 2048, columns: 2048, ..matrix };
    let kept = |mapping: u64, each_mib: u64| {
        let time = Duration::from_millis;
        open(slow(time(mapping), time(each_mib)), share).kept(&weight)
    };
    let quick = kept(0, 0);
    assert!(quick < 2048, "{quick}");
    assert_eq!(kept(10_000, 0), quick, "mapping is for loading");
    // Activations of 128 KiB are written and flushed for each term, results of 512 KiB three times.
    let moved = kept(0, 1);
    assert!(quick < moved && moved < 2048, "{quick}, {moved}");
    assert_eq!(kept(0, 6), 2048);
}

/// Each kernel that prompts may use is compared, and not only the smallest.
#[test]
fn a_kernel_that_is_wrong_is_found_whichever_it_is() {
    for (index, kernel) in KERNELS.into_iter().enumerate() {
        let instructions = generate::stream(kernel).unwrap().to_bytes();
        let array = WrongFor { tiles: Tiles::new(7), instructions };
        let sys = ModelSys::new(Machine::default(), Box::new(array));
        let opened = NpuPartner::open(sys, DEVICE_PATH, &pack(&KERNELS), Share::Fraction(1.0));
        let rows = [8, 64][index];
        let error = opened.map(drop).unwrap_err();
        assert!(error.contains(&format!("a product of {rows} x 2048 x 2048")), "{error}");
    }
}

/// An array that is wrong about one element of one kernel's results.
struct WrongFor {
    tiles: Tiles,
    instructions: Vec<u8>,
}

impl Array for WrongFor {
    fn run(&mut self, task: &Task, memory: &mut dyn DeviceMemory) -> Result<(), Trap> {
        self.tiles.run(task, memory)?;
        if task.instructions == self.instructions {
            let mut word = [0; 4];
            memory.read(task.arguments[0] + 4096, &mut word)?;
            word[0] ^= 1;
            memory.write(task.arguments[0] + 4096, &word)?;
        }
        Ok(())
    }
}

/// Loading takes turns with products of what is loaded.
#[test]
fn products_go_on_while_another_model_is_loaded() {
    let gate = Gate::default();
    let partner = open(gate.before_maps(sys(false)), Share::Fraction(1.0));
    let tensor = zeros();
    let mut guest = partner.load(&[vec![tensor.clone()]]).unwrap();
    let mut product = move || {
        guest.begin(&ONES).unwrap();
        finished(guest.as_mut(), &ONES).unwrap()
    };
    // Buffers of activations and results are there after that.
    product();
    gate.close();
    let (of_load, of_product) = (channel(), channel());
    let loading = partner.clone();
    // Eight are loaded at once.
    thread::spawn(move || of_load.0.send(loading.load(&[vec![tensor; 9]]).map(drop)));
    gate.wait_until_somebody_waits();
    thread::spawn(move || of_product.0.send(product()));
    gate.let_pass(8);
    let found = of_product.1.recv_timeout(PATIENCE).expect("the product waits for all matrices");
    assert_eq!(found, vec![0.0; 64]);
    assert!(of_load.1.try_recv().is_err(), "the last matrix is held");
    gate.open();
    of_load.1.recv_timeout(PATIENCE).unwrap().unwrap();
}

/// How long a test waits for what does not come if there is a defect.
const PATIENCE: Duration = Duration::from_secs(120);

/// A matrix of 64 x 32, which takes 4 MiB on the device.
fn zeros() -> Tensor {
    Tensor::from_owned("w", DType::F32, &[64, 32], vec![0; 64 * 32 * 4]).unwrap()
}

/// A row for that matrix.
const ONES: Job = Job { number: 0, inputs: &[&[1.0; 32]], rows: 1, exact: 0 };

fn finished(guest: &mut dyn Guest, job: &Job<'_>) -> Result<Vec<f32>, BackendError> {
    let mut found = Vec::new();
    guest.finish(job, &mut |_, rows| found.extend(rows))?;
    Ok(found)
}

/// Whoever is dropped last, the thread ends.
#[test]
fn a_partner_ends_before_and_after_what_uses_it() {
    let (done, ended) = channel();
    thread::spawn(move || {
        let sys = sys(false);
        let partner = open(sys.clone(), Share::Fraction(1.0));
        let mut guest = partner.load(&[vec![zeros()]]).unwrap();
        drop(partner);
        assert!(guest.begin(&ONES).is_err(), "nobody is there");
        drop(guest);
        assert_eq!((sys.held(), sys.leaked()), (Held::default(), Held::default()));
        // A Program has the last hold of its partner.
        let device = processor().with_partner(open(sys.clone(), Share::Fraction(1.0)));
        let model = small(DType::Q8_0);
        let width = Width { tokens: 7, outputs: 1 };
        let kv = KvType::F32;
        let options = ProgramOptions { width, kv, context: 16, sequences: 1, blocks: 1 };
        let program = device.load_plan(&model, model.plan(), &options).unwrap();
        drop((device, model));
        assert!(sys.held().contexts == 1);
        drop(program);
        assert_eq!((sys.held(), sys.leaked()), (Held::default(), Held::default()));
        done.send(()).unwrap();
    });
    ended.recv_timeout(PATIENCE).expect("it ends");
}

/// What does not fit into the memory that may be locked is refused before it is brought there, with
/// the limit that it needs.
#[test]
fn matrices_beyond_the_locked_memory_are_refused_with_the_number() {
    let lockable_bytes = 80 << 20;
    let sys = machine(Machine { lockable_bytes, ..Machine::default() }, false);
    let partner = open(sys.clone(), Share::Fraction(1.0));
    let guest = partner.load(&[vec![zeros()]]).unwrap();
    let held = sys.held();
    let error = partner.load(&[vec![zeros(); 10]]).map(drop).unwrap_err().to_string();
    assert!(error.contains("take 40 MiB") && error.contains("may lock 80 MiB"), "{error}");
    // The heap, what products work with, one matrix and ten.
    assert!(error.contains("ulimit -l 115712"), "{error}");
    assert_eq!(sys.held(), held);
    drop(guest);
    partner.load(&[vec![zeros()], vec![zeros()]]).unwrap();
    // A model that does not fit is loaded without an NPU.
    let model = small(DType::Q8_0);
    let ids = prompt(&model, BULK_ROWS + 1);
    let states = |device: &dyn Device| hidden_states(device, &model, &ids, ids.len(), KvType::F32);
    let whole = processor().with_partner(partner.clone());
    assert!(states(&whole).iter().all(|value| value.is_finite()));
    assert_eq!(partner.tally().products(), 0, "the model has more matrices than fit");
}

/// Odd shapes: rows of several commands, more in-features than a block, and values that are no
/// numbers, which stay in their rows.
#[test]
fn products_of_odd_shapes_are_exact_sums_of_rounded_numbers() {
    let (outputs, columns, rows) = (70, BLOCK + 37, 67);
    let mut random = Random(5);
    let weights: Vec<f32> = (0..outputs * columns).map(|_| random.unit()).collect();
    let bytes: Vec<u8> = weights.iter().flat_map(|value| value.to_le_bytes()).collect();
    let tensor = Tensor::from_owned("w", DType::F32, &[outputs, columns], bytes).unwrap();
    let mut input: Vec<f32> = (0..rows * columns).map(|_| random.unit()).collect();
    input[3 * columns + BLOCK + 1] = f32::NAN;
    input[66 * columns] = f32::INFINITY;
    let partner = open(sys(false), Share::Fraction(1.0));
    // Its second job is this matrix.
    let mut guest = partner.load(&[vec![zeros(); 2], vec![tensor.clone()]]).unwrap();
    let job = Job { number: 1, inputs: &[&input], rows, exact: 0 };
    guest.begin(&job).unwrap();
    // One that was begun and not finished is forgotten.
    guest.begin(&job).unwrap();
    let found = finished(guest.as_mut(), &job).unwrap();
    assert_eq!(found.len(), rows * outputs);
    assert!(finished(guest.as_mut(), &job).is_err(), "it was finished");
    for (row, found) in found.chunks_exact(outputs).enumerate() {
        if row == 3 || row == 66 {
            assert!(found.iter().all(|value| value.is_nan()), "row {row}");
            continue;
        }
        let input = &input[row * columns..(row + 1) * columns];
        for (output, found) in found.iter().enumerate() {
            let weights = &weights[output * columns..(output + 1) * columns];
            let exact: f64 =
                input.iter().zip(weights).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
            // Weights have an error of up to 1/254 of the largest, which add up like random steps.
            let most = 5.0 * (columns as f64).sqrt() / 254.0;
            assert!((exact - f64::from(*found)).abs() < most, "{row}, {output}: {found}, {exact}");
        }
    }
    let mut row = vec![0.0; columns];
    blocks::decode(DType::F32, tensor.row(0), &mut row).unwrap();
    assert_eq!(row[..], weights[..columns]);
    let job = Job { inputs: &[&input[1..]], ..job };
    assert!(guest.begin(&job).is_err(), "no whole rows");
}

/// The device goes on while the NPU computes: a product is begun although the NPU does not end, and
/// ends only after that.
#[test]
fn both_compute_at_once() {
    let gate = Gate::default();
    let partner = open(gate.before(sys(false)), Share::Fraction(1.0));
    let mut guest = partner.load(&[vec![zeros()]]).unwrap();
    gate.close();
    let begun = Instant::now();
    guest.begin(&ONES).unwrap();
    gate.wait_until_somebody_waits();
    assert_eq!(partner.tally().products(), 0);
    assert!(partner.tally().works_since(begun).is_empty());
    let meanwhile = Instant::now();
    gate.open();
    assert_eq!(finished(guest.as_mut(), &ONES).unwrap(), vec![0.0; 64]);
    assert_eq!(partner.tally().products(), 1);
    let works = partner.tally().works_since(begun);
    let [work] = works[..] else { panic!("{works:?}") };
    assert!(begun <= work.start && work.start < meanwhile && meanwhile < work.end, "{work:?}");
    assert_eq!((work.products, work.rows), (1, 1));
    assert_eq!((work.end - work.start, partner.tally().busy()), (work.busy, work.busy));
}
