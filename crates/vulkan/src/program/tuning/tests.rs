use std::sync::LazyLock;

use super::*;
use crate::dispatch::Span;
use crate::kernels::product::{Layout, Product, ProductInput, ProductLaunch, ProductOutput};
use crate::pack::{Format, Matrix, PlaneBytes};
use crate::program::rehearsal::Rehearsals;
use crate::testing::gpu;

/// A launch that offers these shapes and never runs.
struct Offer(Vec<[u32; 2]>);

impl ProductLaunch for Offer {
    type Shape = [u32; 2];

    const KERNEL: &'static str = "fake";

    fn product(&self) -> &Product {
        static PRODUCT: LazyLock<Product> = LazyLock::new(|| {
            let nowhere = Span { address: 0, bytes: 0 };
            let planes = PlaneBytes { codes: 0, high: 0, scales: 0, supers: 0 };
            Product {
                matrix: Matrix {
                    format: Format::F32,
                    rows: 1,
                    columns: 2,
                    planes,
                    unit: 1.0,
                    arranged: None,
                },
                width: 3,
                input: ProductInput::Norm { x: nowhere, weight: 0, epsilon: 0.0 },
                output: ProductOutput::segments(&[]),
            }
        });
        &PRODUCT
    }

    fn offer(&self, _: &Capabilities) -> Vec<[u32; 2]> {
        self.0.clone()
    }

    fn parameters(shape: &[u32; 2]) -> Vec<u32> {
        shape.to_vec()
    }

    fn lay_out(&self, _: &Capabilities, shape: [u32; 2], _: &str) -> Result<Layout, GpuError> {
        panic!("{shape:?} is not to be launched")
    }
}

/// The launch of one pass.
impl Passes for Offer {
    fn show(&self, number: usize, survey: &RefCell<Survey>) -> Result<bool, GpuError> {
        if number == 0 {
            survey.borrow_mut().see(self)?;
        }
        Ok(number == 0)
    }

    fn rehearsals(&self, _: usize, _: &str, _: usize) -> Result<Option<Rehearsals>, GpuError> {
        Ok(None)
    }

    fn rehearse(&self, _: usize, _: Shapes, _: &mut Rehearsals) -> Result<bool, GpuError> {
        Ok(false)
    }
}

/// Its key.
const KEY: &str = "fake f32 1x2 w3 norm rows";

fn chosen(parameters: &[u32]) -> Shapes {
    let shape = (KEY.to_owned(), Some(parameters.to_vec()));
    Shapes::Chosen(Arc::new(ChosenShapes::from([shape])))
}

#[test]
fn only_what_a_kernel_offers_is_launched() {
    let gpu = gpu();
    let launch = Offer(vec![[1, 2], [3, 4], [5, 6]]);
    let of = |shapes: &Shapes| shapes.of(&launch, gpu.capabilities());
    assert_eq!(of(&Shapes::Static), [1, 2]);
    assert_eq!(of(&chosen(&[3, 4])), [3, 4]);
    for wrong in [&[4, 3][..], &[3], &[3, 4, 0], &[], &[u32::MAX, u32::MAX]] {
        assert_eq!(of(&chosen(wrong)), [1, 2], "{wrong:?}");
    }
    let unmeasured = ChosenShapes::from([(launch.key(), None)]);
    assert_eq!(of(&Shapes::Chosen(Arc::new(unmeasured))), [1, 2]);
    assert_eq!(of(&Shapes::Chosen(Arc::default())), [1, 2]);
    assert_eq!([0, 2, 9].map(|at| of(&Shapes::Forced(at))), [[1, 2], [5, 6], [5, 6]]);
}

/// Returns what a survey makes of a table: the shape, or `None` if the key has to be measured.
fn surveyed(launch: &Offer, table: Table) -> Option<Option<Vec<u32>>> {
    let mut survey = Survey::new(gpu(), ChosenShapes::new(), table);
    survey.see(launch).unwrap();
    survey.see(launch).unwrap();
    let chosen = survey.chosen.get(KEY).cloned();
    assert_eq!(chosen.is_none(), survey.missing.contains(KEY));
    chosen
}

#[test]
fn a_measurement_counts_for_the_shapes_that_it_compared() {
    let launch = Offer(vec![[1, 2], [3, 4]]);
    let digest = survey::digest(&[vec![1, 2], vec![3, 4]]);
    let table = |offer: &str, shape: &[u32]| {
        let (offer, shape) = (offer.to_owned(), shape.to_vec());
        Table::from([(KEY.to_owned(), Measured { offer, shape, us: 1.0, default_us: 2.0 })])
    };
    assert_eq!(surveyed(&launch, Table::new()), None);
    assert_eq!(surveyed(&launch, table(&digest, &[3, 4])), Some(Some(vec![3, 4])));
    assert_eq!(surveyed(&launch, table(&digest, &[4, 3])), None, "a shape that is not offered");
    assert_eq!(surveyed(&launch, table("0", &[3, 4])), None, "compared with other shapes");
    assert_eq!(surveyed(&Offer(vec![[1, 2]]), Table::new()), Some(None), "nothing to choose");
}

#[test]
fn software_is_not_measured_and_what_is_missing_stays_missing_in_a_process() {
    let gpu = gpu();
    let launch = Offer(vec![[1, 2], [3, 4]]);
    if gpu.capabilities().kind == DeviceKind::Processor {
        let tuner = Tuner::new(Tuning { mode: TuningMode::Missing, ..Tuning::default() });
        assert!(matches!(tuner.settle(&gpu, &launch).unwrap(), Shapes::Static));
    }
    let tuner = Tuner::new(Tuning { mode: TuningMode::Kept, software: true, ..Tuning::default() });
    let shapes = tuner.settle(&gpu, &launch).unwrap();
    assert_eq!(shapes.of(&launch, gpu.capabilities()), [1, 2]);
    let of_device = tuner.tuning.settled.of(&fingerprint(gpu.capabilities()));
    assert!(of_device.choices().chosen.contains_key(KEY), "it stays so in this process");
    assert!(of_device.choices().unmeasured.is_empty(), "nobody wants it to be measured");
}

#[test]
fn a_model_that_is_loaded_again_has_the_shapes_that_it_had() {
    let gpu = gpu();
    let launch = Offer(vec![[1, 2], [3, 4]]);
    let folder = tempfile::tempdir().unwrap();
    let cache = Some(PipelineCache::in_folder(folder.path()));
    let tuning = Tuning { mode: TuningMode::Idle, software: true, cache, ..Tuning::default() };
    let shape = |tuning: &Tuning| {
        let shapes = Tuner::new(tuning.clone()).settle(&gpu, &launch).unwrap();
        shapes.of(&launch, gpu.capabilities())
    };
    assert_eq!(shape(&tuning), [1, 2]);
    let of_device = tuning.settled.of(&fingerprint(gpu.capabilities()));
    assert!(of_device.choices().unmeasured.contains(KEY));
    let offer = survey::digest(&[vec![1, 2], vec![3, 4]]);
    let measured = Measured { offer, shape: vec![3, 4], us: 1.0, default_us: 2.0 };
    let file = Tuner::new(tuning.clone()).file(gpu.capabilities()).unwrap();
    file.add(Table::from([(KEY.to_owned(), measured)])).unwrap();
    assert_eq!(shape(&tuning), [1, 2], "in this process");
    assert_eq!(shape(&Tuning { settled: Settled::default(), ..tuning }), [3, 4], "in another");
}
