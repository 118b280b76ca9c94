//! What the program does on a Vulkan device: here one in software, which every machine can have.

use crate::common::{model, software_device, trine, trine_on_vulkan};

/// Text that the embedded model writes without chance.
const GREEDY: [&str; 7] =
    ["run", "demo", "Once upon a time", "--temperature", "0", "--max-tokens", "24"];

#[test]
fn the_embedded_model_writes_the_same_text_as_on_the_cpu() {
    let (details, device) = software_device();
    let expected = trine(&[&GREEDY[..], &["--device", "cpu"]].concat()).ok().out;
    assert!(expected.len() > 24, "{expected}");
    let found = trine_on_vulkan(&[&GREEDY[..], &["--device", &device, "-v"]].concat()).ok();
    assert_eq!(found.out, expected);
    let name = details["name"].as_str().unwrap();
    assert!(found.err.contains(name) && found.err.contains("software"), "{}", found.err);
}

/// Nobody who asks for a GPU, or for nothing, gets one in software.
#[test]
fn software_runs_only_where_it_is_named() {
    let (details, device) = software_device();
    let name = details["name"].as_str().unwrap();
    let taken = |device: &str| {
        let arguments = ["run", &model(), "hi", "-v", "--max-tokens", "1", "--device", device];
        trine_on_vulkan(&arguments)
    };
    let auto = taken("auto").ok();
    assert!(!auto.err.contains(name), "{}", auto.err);
    let best = taken("vulkan");
    assert!(best.code == 1 || !best.err.contains(&format!("device: {name}")), "{}", best.err);
    let uuid = details["uuid"].as_str().unwrap();
    for named in [device, format!("vulkan:{}", name.to_uppercase()), format!("vulkan:{uuid}")] {
        let ran = taken(&named).ok();
        assert!(ran.err.contains(name), "{named}: {}", ran.err);
    }
    for wrong in ["vulkan:999", "vulkan:no such GPU"] {
        let error = taken(wrong).fails(1);
        assert!(error.contains(name), "the devices of the machine: {error}");
        assert!(error.contains("--device cpu"), "{error}");
    }
}

#[test]
fn doctor_describes_each_device() {
    let (details, device) = software_device();
    assert_eq!(details["missing"].as_array().unwrap().len(), 0, "{details}");
    assert_eq!(details["uuid"].as_str().unwrap().len(), 36);
    let index = device.strip_prefix("vulkan:").unwrap();
    let text = trine_on_vulkan(&["doctor", "--quick"]).ok().out;
    let name = details["name"].as_str().unwrap();
    for part in [
        name,
        "(software)",
        details["driver"].as_str().unwrap(),
        details["uuid"].as_str().unwrap(),
        &format!("taken only if --device names it, as {device}"),
        &format!("gpu {index} memory"),
        "subgroups of",
        "KiB of shared memory",
        "matrix units: ",
        "integer dot products: ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains(&format!("gpu {index} bandwidth")), "software is not measured: {text}");
    let findings = trine_on_vulkan(&["doctor", "--quick", "--json"]).ok().json();
    let of = |check: String| {
        let findings = findings.as_array().unwrap();
        findings.iter().find(|finding| finding["check"] == check).unwrap()["details"].clone()
    };
    let heaps = of(format!("gpu {index} memory"))["heaps"].clone();
    assert!(heaps[0]["bytes"].as_u64().unwrap() > 1 << 20, "{heaps}");
    let kernels = of(format!("gpu {index} kernels"));
    assert!(kernels["subgroup"].as_u64().unwrap() >= 4, "{kernels}");
    assert!(kernels["shared_bytes"].as_u64().unwrap() >= 16_384, "{kernels}");
}

#[test]
fn a_machine_without_vulkan_is_no_error() {
    let ran = trine(&["doctor", "--quick", "--json"]).ok();
    let findings = ran.json();
    let gpu =
        findings.as_array().unwrap().iter().find(|finding| finding["check"] == "gpu").unwrap();
    assert_eq!(gpu["state"], "warn", "{gpu}");
    assert!(gpu["remedy"].as_str().unwrap().contains("install"), "{gpu}");
    assert!(gpu["found"].as_str().unwrap().contains("models run on the CPU"), "{gpu}");
}

#[test]
fn steps_are_timed_on_a_device() {
    let (_, device) = software_device();
    let base = ["bench", "demo", "--device", &device, "--steps", "-p", "16", "-n", "4", "-r", "1"];
    let value = trine_on_vulkan(&[&base[..], &["--json"]].concat()).ok().json();
    let tests = value["tests"].as_array().unwrap();
    assert_eq!(tests.len(), 2, "{value}");
    for test in tests {
        let steps = test["steps"].as_array().unwrap();
        assert!(steps.len() > 4, "{test}");
        let seconds = |step: &serde_json::Value| step["seconds"].as_f64().unwrap();
        assert!(steps.iter().all(|step| seconds(step) >= 0.0));
        assert!(steps.iter().map(seconds).sum::<f64>() > 0.0, "{test}");
    }
    let table = trine_on_vulkan(&base).ok().out;
    assert!(table.contains("us each") && table.contains("of read"), "{table}");
}

#[test]
fn a_forecast_for_a_device_as_measured() {
    let (details, device) = software_device();
    let model = model();
    let base = ["plan", &model, "--device", &device, "--batch", "1", "--context", "64"];
    let value = trine_on_vulkan(&[&base[..], &["--json"]].concat()).ok().json();
    let machine = &value["machine"];
    let name = details["name"].as_str().unwrap();
    assert!(machine["name"].as_str().unwrap().contains(name), "{machine}");
    for rate in ["gbps", "gbps_limit", "tops_skinny", "tops_wide", "tops_limit"] {
        assert!(machine[rate].as_f64().unwrap() > 0.0, "{machine}");
    }
    assert!(machine["gbps"].as_f64() <= machine["gbps_limit"].as_f64());
    let kinds: Vec<_> = machine["sources"].as_array().unwrap().iter().collect();
    assert!(kinds.iter().any(|source| source["kind"] == "measured"), "{machine}");
    let error = trine_on_vulkan(&[&base[..], &["--threads", "2"]].concat()).fails(2);
    assert!(error.contains("--device cpu"), "{error}");
}

/// The last layers on the device, the others on the processor.
#[test]
fn two_devices_share_a_model() {
    let (details, device) = software_device();
    let name = details["name"].as_str().unwrap();
    let expected = trine(&[&GREEDY[..], &["--device", "cpu"]].concat()).ok().out;
    let with = |layers: &str, more: &[&str]| {
        let fixed = ["--device", &device, "--gpu-layers", layers];
        trine_on_vulkan(&[&GREEDY[..], &fixed, more].concat()).ok()
    };
    let shared = with("2", &["-v", "--threads", "2"]);
    assert_eq!(shared.out, expected);
    let line = shared.err.lines().find(|line| line.contains("device: ")).unwrap();
    let (gpu, cpu) = line.split_once("; cpu (").unwrap();
    assert!(gpu.contains(name) && gpu.contains("): 2 of "), "{line}");
    assert!(gpu.contains(" free)") && cpu.contains("2 threads): "), "{line}");
    // What was asked for need not be said.
    let quiet = with("2", &[]);
    assert_eq!(quiet.out, expected);
    assert!(!quiet.err.contains(name), "{}", quiet.err);
    let report = with("2", &["--json"]).json();
    assert!(report["device"].as_str().unwrap().contains(": 2 of "), "{report}");
    assert_eq!(report["text"], expected.trim_end_matches('\n'));
}

#[test]
fn all_layers_or_none_is_one_device() {
    let (details, device) = software_device();
    let name = details["name"].as_str().unwrap();
    let runs = |layers: &str| {
        let model = model();
        let arguments = ["run", &model, "hi", "-v", "--max-tokens", "1", "--device", &device];
        let ran = trine_on_vulkan(&[&arguments[..], &["--gpu-layers", layers]].concat()).ok();
        let line = ran.err.lines().find(|line| line.contains("device: ")).unwrap().to_owned();
        assert!(!line.contains(" of "), "{line}");
        line
    };
    for all in ["99", "4294967295"] {
        assert!(runs(all).contains(name));
    }
    assert!(runs("0").contains("device: cpu ("));
}

/// A device is itself under its index, its name and its UUID.
#[test]
fn a_device_is_named_once() {
    let (details, device) = software_device();
    let uuid = details["uuid"].as_str().unwrap();
    let list = format!("{device},vulkan:{uuid}");
    let error = trine_on_vulkan(&[&GREEDY[..], &["--device", &list]].concat()).fails(2);
    assert!(error.contains(&format!("{device} and vulkan:{uuid} are the same device")), "{error}");
    for other in ["cpu", "reference", "auto", "vulkan"] {
        let list = format!("{device},{other}");
        let error = trine(&[&GREEDY[..], &["--device", &list]].concat()).fails(2);
        assert!(error.contains("a list has"), "{error}");
        assert_eq!(error.contains("--gpu-layers"), other == "cpu", "{error}");
    }
    let list = format!("{device},vulkan:999");
    let error = trine(&["plan", &model(), "--device", &list]).fails(2);
    assert!(error.contains("one GPU"), "{error}");
}

#[test]
fn layers_for_a_gpu_need_one() {
    let model = model();
    let run =
        |more: &[&str]| trine(&[&["run", &model, "hi", "--max-tokens", "1"][..], more].concat());
    for device in ["cpu", "reference"] {
        let error = run(&["--device", device, "--gpu-layers", "2"]).fails(2);
        assert!(error.contains("--gpu-layers 2 needs a GPU"), "{error}");
        run(&["--device", device, "--gpu-layers", "0"]).ok();
        run(&["--device", device, "--gpu-layers", "auto"]).ok();
    }
    // No Vulkan at all.
    let error = run(&["--gpu-layers", "2"]).fails(1);
    assert!(
        error.contains("--gpu-layers 2 needs a GPU") && error.contains("leave it out"),
        "{error}"
    );
    run(&["--gpu-layers", "0"]).ok();
    for wrong in ["-1", "1.5", "most", "99999999999999999999999"] {
        let error = run(&["--gpu-layers", wrong]).fails(2);
        assert!(error.contains("--gpu-layers"), "{error}");
    }
    let error = trine(&["--gpu-layers", "2", "plan", &model]).fails(2);
    assert!(error.contains("--gpu-layers") && error.contains("plan --help"), "{error}");
}

#[test]
fn a_shared_model_is_measured_without_a_bandwidth() {
    let (_, device) = software_device();
    let base = ["bench", "demo", "--device", &device, "--gpu-layers", "1", "--steps"];
    let numbers = ["-p", "16", "-n", "4", "-r", "1", "--json"];
    let ran = trine_on_vulkan(&[&base[..], &numbers].concat()).ok();
    assert!(ran.err.contains("several devices share the model"), "{}", ran.err);
    let report = ran.json();
    for test in report["tests"].as_array().unwrap() {
        assert!(test["bandwidth_share"].is_null(), "{test}");
        // The first step is the processor's, the last one the device's.
        let steps = test["steps"].as_array().unwrap();
        let seconds = |name: &str| {
            let step = steps.iter().find(|step| step["step"] == name).unwrap();
            step["seconds"].as_f64().unwrap()
        };
        assert!(seconds("embed (embed)") > 0.0 && seconds("logits (matmul)") > 0.0, "{test}");
    }
}
