//! Steps that are stopped between two operations.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use trine_backend::{BackendError, Device, ProgramOptions};
use trine_cpu::CpuDevice;
use trine_model::{KvType, Width};
use trine_testing::{BATCH, Golden};

#[test]
fn a_step_stops_on_all_threads_and_the_next_one_runs() {
    let golden = Golden::load("gemma3-a");
    let options = ProgramOptions {
        width: Width { tokens: 4, outputs: 1 },
        kv: KvType::F16,
        context: 32,
        ..trine_testing::OPTIONS
    };
    for threads in 1..=3 {
        let device = CpuDevice::new(Some(threads), None).unwrap();
        let mut program = device.load_plan(&golden.model, golden.model.plan(), &options).unwrap();
        let expected = program.run(&BATCH).unwrap().to_vec();
        let stop = Arc::new(AtomicBool::new(true));
        program.stop_on(Arc::clone(&stop));
        assert!(matches!(program.run(&BATCH), Err(BackendError::Stopped)), "{threads} threads");
        // The flag is raised at any moment, and the step must end in the same way on all threads.
        for turn in 0..60 {
            stop.store(false, Ordering::Relaxed);
            let raised = std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_micros(20 * turn));
                    stop.store(true, Ordering::Relaxed);
                });
                program.run(&BATCH).map(<[f32]>::to_vec)
            });
            match raised {
                Ok(logits) => assert_eq!(logits, expected, "{threads} threads, turn {turn}"),
                Err(error) => assert!(matches!(error, BackendError::Stopped), "{error}"),
            }
            stop.store(false, Ordering::Relaxed);
            assert_eq!(program.run(&BATCH).unwrap(), expected, "{threads} threads, turn {turn}");
        }
    }
}
