use super::*;
use crate::kernels::elements::{ElementWork, ElementsLaunch};
use crate::kernels::handles::Extent;
use crate::raw::memory::MemoryUse;
use crate::testing::{self, gpu, upload};

/// The first submission is still held back when the failure is noticed, so that only a run that
/// waits for it sees what it writes.
#[test]
fn a_run_that_fails_leaves_nothing_running() {
    // A device of its own: other tests run on theirs at the same time.
    let gpu = testing::own_gpu();
    let [result, source] = [1.0_f32, 2.0].map(|value| upload(&gpu, &[value; 64]));
    let rows = upload(&gpu, &[1_u32]);
    let launch = ElementsLaunch {
        work: ElementWork::Add { source: source.span(), target: result.span() },
        result: result.span(),
        extent: Extent { columns: 64, rows: 1, row_count: rows.address() },
    };
    let dispatches = [launch.dispatch(&gpu, "a test", 0).unwrap()];
    let mut recording = Recording::record(&gpu, &dispatches, &[], &[1]).unwrap();
    let mut expected = 1.0;
    for (failure, mark) in [
        (Injected::Timeout, "did not finish"),
        (Injected::Loss, "was lost"),
        (Injected::Refusal, "vkQueueSubmit while a test failed"),
    ] {
        gpu.inject(failure);
        let error = recording.run("a test").unwrap_err().to_string();
        assert!(error.contains(mark), "{failure:?}: {error}");
        expected += 2.0;
        assert_eq!(result.values::<f32>(0, 64), [expected; 64], "{failure:?}");
    }
    recording.run("a test").unwrap();
    assert_eq!(result.values::<f32>(0, 64), [expected + 2.0; 64]);
}

#[test]
fn more_workgroups_than_the_device_takes_are_refused() {
    let gpu = gpu();
    let memory = upload(&gpu, &[0_f32; 64]);
    let launch = ElementsLaunch {
        work: ElementWork::Softcap { cap: 1.0, target: memory.span() },
        result: memory.span(),
        extent: Extent { columns: 64, rows: 1, row_count: memory.address() },
    };
    let good = launch.dispatch(&gpu, "a test", 0).unwrap();
    for axis in 0..3 {
        let mut wide = good.clone();
        let Some(more) = gpu.capabilities().groups[axis].checked_add(1) else { continue };
        wide.groups[axis] = more;
        let error = Recording::record(&gpu, &[good.clone(), wide], &[], &[]).err().unwrap();
        let error = error.to_string();
        assert!(error.contains("a test in [") && error.contains("--chunk"), "{error}");
    }
}

/// Wrong on purpose: there are no barriers between the copies of a recording, so none may write
/// what another one writes.
#[test]
#[ignore = "a hazard that the validation layer has to see: cargo xtask ci runs it"]
fn copies_over_each_other_are_a_hazard() {
    let gpu = gpu();
    let from = gpu.allocate(256, MemoryUse::Upload, "a test's source").unwrap();
    let to = gpu.allocate(256, MemoryUse::Readback, "a test's target").unwrap();
    from.write(0, &[1; 256]);
    let copy = Copy { from, to, bytes: 256 };
    let copies = [copy.clone(), copy];
    let recording = Recording::record(&gpu, &[], &copies, &[]);
    recording.and_then(|mut recording| recording.run("a test")).unwrap();
}
