//! `trine doctor`: the GPUs, as Vulkan and the kernel's driver report them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use trine_hub::catalog;
use trine_session::fitting::Room;
use trine_session::gpus::{
    self, Capabilities, Description, DeviceKind, Gpu, GpuError, TuningState,
};
use trine_session::machine;
use trine_session::measured::{self, Reads};

use crate::commands::finding::Finding;
use crate::terminal::output;
use trine_session::amdgpu::{self, Memory, Timeout};

/// The advice to install a driver.
const INSTALL: &str = "for a GPU install its Vulkan driver (Debian: libvulkan1 with \
    mesa-vulkan-drivers for AMD and Intel, NVIDIA's own driver for NVIDIA); without one nothing is \
    to be done";
/// The advice to update the driver.
const UPDATE: &str = "update the GPU's driver; until then use another --device";
/// The shortest timeout of a driver that counts as safe. A submission is predicted to take at most
/// 100 ms, but predictions err, and other programs share the GPU.
const TIMEOUT_MIN: Duration = Duration::from_secs(1);
/// Where Linux lists its devices.
const SYS: &str = "/sys";
/// The size of a memory page in the unit of `ttm.pages_limit`, in bytes.
const PAGE: u64 = 4096;

/// Returns findings about all Vulkan devices, without measurements if `quick`.
pub(super) fn findings(quick: bool) -> Vec<Finding> {
    let devices = match gpus::devices() {
        Ok(devices) => devices,
        Err(error) => return vec![unavailable(&error)],
    };
    let best = gpus::open(None);
    let mut findings = vec![chosen(&devices, best.as_deref().map(Gpu::capabilities))];
    for (index, device) in devices.iter().enumerate() {
        findings.extend(device_findings(index, device, quick));
    }
    findings
}

/// Returns the finding for a machine on which Vulkan itself does not work.
fn unavailable(error: &GpuError) -> Finding {
    match error {
        GpuError::NoLoader { reason } => {
            let found = format!("no Vulkan ({reason}); models run on the CPU");
            Finding::warn("gpu", found, INSTALL)
        }
        error => Finding::warn("gpu", format!("{error}; models run on the CPU"), remedy(error)),
    }
}

/// Returns what to do about a device that cannot be used.
fn remedy(error: &GpuError) -> &'static str {
    match error {
        GpuError::OutOfMemory { .. } => "close other programs that use the GPU",
        GpuError::Lost { .. } | GpuError::Timeout { .. } => {
            "look into the kernel's log (dmesg) for the reason, and update the GPU's driver"
        }
        GpuError::NoLoader { .. } | GpuError::NoDevice { .. } => INSTALL,
        GpuError::Missing { .. }
        | GpuError::TooWide { .. }
        | GpuError::NoKernel { .. }
        | GpuError::Unwritten { .. }
        | GpuError::NoPass { .. }
        | GpuError::Short { .. }
        | GpuError::Call { .. } => UPDATE,
    }
}

/// Returns which device `--device auto` selects.
fn chosen(devices: &[Description], best: Result<&Capabilities, &GpuError>) -> Finding {
    const CHECK: &str = "gpu";
    let is_software = |device: &Description| device.capabilities.kind == DeviceKind::Processor;
    match best {
        Ok(best) => {
            let same = |device: &Description| {
                device.capabilities.uuid == best.uuid && device.capabilities.name == best.name
            };
            let index = devices.iter().position(same).unwrap_or_default();
            let name = &best.name;
            Finding::ok(
                CHECK,
                format!("models run on gpu {index}, {name}, unless --device says otherwise"),
            )
        }
        Err(_) if devices.is_empty() => {
            Finding::warn(CHECK, "Vulkan has no device; models run on the CPU", INSTALL)
        }
        Err(_) if devices.iter().all(is_software) => {
            let count = devices.len();
            let what = if count == 1 { "one software device" } else { "software devices" };
            let found = format!(
                "Vulkan has only {what}; models run on the CPU, and with --device vulkan:INDEX in \
                 software, slowly"
            );
            Finding::ok(CHECK, found)
        }
        Err(error) => {
            let found = format!("no GPU can be used: {error}; models run on the CPU");
            Finding::warn(CHECK, found, remedy(error))
        }
    }
}

/// Returns all findings about one device.
fn device_findings(index: usize, device: &Description, quick: bool) -> Vec<Finding> {
    let capabilities = &device.capabilities;
    let mut findings = vec![identity(index, device)];
    if !device.missing.0.is_empty() {
        return findings;
    }
    let gpu = gpus::open(Some(index));
    let budgets = gpu.as_ref().ok().and_then(|gpu| gpu.budgets());
    findings.push(memory(index, capabilities, budgets.as_deref()));
    findings.push(abilities(index, capabilities));
    if capabilities.vendor == amdgpu::VENDOR {
        let sys = Path::new(SYS);
        findings.extend(amdgpu::timeout(sys).map(|timeout| watchdog(index, &timeout)));
        if capabilities.kind == DeviceKind::Integrated
            && let Some(found) = amdgpu::memory(sys, capabilities.vendor, capabilities.device)
        {
            let system = (machine::kernel(Path::new("/proc")), machine::firmware(sys));
            findings.push(shared_memory(index, found, machine::total_memory(), system));
        }
    }
    if capabilities.kind != DeviceKind::Processor
        && let Some(state) = gpus::tuning(capabilities)
    {
        findings.push(tuning(index, &state));
    }
    match gpu {
        Err(error) => findings.push(Finding::warn(
            format!("gpu {index}"),
            format!("it cannot be opened: {error}"),
            remedy(&error),
        )),
        Ok(gpu) if !quick && capabilities.kind != DeviceKind::Processor => {
            findings.push(bandwidth(index, &gpu));
        }
        Ok(_) => (),
    }
    findings
}

/// Reports name, kind, driver, version, UUID, and which requirements the device lacks.
fn identity(index: usize, device: &Description) -> Finding {
    let Capabilities { name, kind, driver, api, .. } = &device.capabilities;
    let missing = &device.missing.0;
    let uuid = device.capabilities.uuid_text();
    let mut found = format!(
        "{name} ({}); {}; Vulkan {}.{}; UUID {uuid}",
        kind.name(),
        driver.trim(),
        api.0,
        api.1
    );
    let check = format!("gpu {index}");
    let details = json!({
        "index": index,
        "name": name,
        "kind": kind.name(),
        "driver": driver.trim(),
        "vulkan": format!("{}.{}", api.0, api.1),
        "uuid": uuid,
        "vendor": device.capabilities.vendor,
        "device": device.capabilities.device,
        "missing": missing,
    });
    let finding = if missing.is_empty() {
        if *kind == DeviceKind::Processor {
            found.push_str(&format!("; taken only if --device names it, as vulkan:{index}"));
        }
        Finding::ok(check, found)
    } else {
        found.push_str(&format!("; it lacks {}", missing.join(", ")));
        Finding::warn(check, found, UPDATE)
    };
    finding.with_details(details)
}

/// Reports the heaps, and how much of them is used and free if the driver reports it.
fn memory(index: usize, capabilities: &Capabilities, budgets: Option<&[(u64, u64)]>) -> Finding {
    let heaps = capabilities.heaps.iter().enumerate();
    let described = heaps.map(|(at, heap)| {
        let budget = budgets.and_then(|budgets| budgets.get(at));
        let owner = if heap.device_local { "the device's" } else { "the machine's" };
        let mut text = format!("{} of {owner}", output::bytes(heap.bytes));
        if heap.device_local && heap.host_visible {
            text.push_str(", mapped");
        }
        if let Some((used, available)) = budget {
            let free = available.saturating_sub(*used);
            text.push_str(&format!(" ({} free for this program)", output::bytes(free)));
        }
        let details = json!({
            "bytes": heap.bytes,
            "device_local": heap.device_local,
            "host_visible": heap.host_visible,
            "used_bytes": budget.map(|budget| budget.0),
            "budget_bytes": budget.map(|budget| budget.1),
        });
        (text, details)
    });
    let (texts, heaps): (Vec<String>, Vec<serde_json::Value>) = described.unzip();
    let untold = if budgets.is_none() { "; the driver does not tell what is free" } else { "" };
    let largest = output::bytes(capabilities.allocation_bytes);
    let found = format!("{}; at most {largest} at once{untold}", texts.join("; "));
    let details = json!({ "heaps": heaps, "allocation_bytes": capabilities.allocation_bytes });
    Finding::ok(format!("gpu {index} memory"), found).with_details(details)
}

/// Reports the abilities that kernels can use.
fn abilities(index: usize, capabilities: &Capabilities) -> Finding {
    let Capabilities { subgroup, subgroup_range: (least, most), shared_bytes, .. } = capabilities;
    let subgroups = match (least, most) {
        (0, _) | (_, 0) => subgroup.to_string(),
        (least, most) if least == most => subgroup.to_string(),
        (least, most) => format!("{subgroup} ({least} to {most})"),
    };
    let mut shapes: Vec<String> = Vec::new();
    for shape in &capabilities.cooperative {
        let element = |element| format!("{element:?}").to_lowercase();
        let (input, sum) = (element(shape.input), element(shape.output));
        let text = format!("{}x{}x{} {input} to {sum}", shape.m, shape.n, shape.k);
        if !shapes.contains(&text) {
            shapes.push(text);
        }
    }
    let matrices = if shapes.is_empty() { "none".to_owned() } else { shapes.join(", ") };
    let dots = if capabilities.integer_dot_accelerated { "accelerated" } else { "not accelerated" };
    let cores =
        capabilities.cores.map(|cores| format!("{cores} compute units; ")).unwrap_or_default();
    let found = format!(
        "{cores}subgroups of {subgroups}; {} KiB of shared memory; matrix units: {matrices}; \
         integer dot products: {dots}",
        shared_bytes / 1024
    );
    let details = json!({
        "compute_units": capabilities.cores,
        "subgroup": subgroup,
        "subgroup_range": [least, most],
        "shared_bytes": shared_bytes,
        "workgroup": capabilities.invocations,
        "cooperative_matrices": shapes,
        "integer_dot_accelerated": capabilities.integer_dot_accelerated,
    });
    Finding::ok(format!("gpu {index} kernels"), found).with_details(details)
}

/// Reports how many of the device's kernels were measured, and where the results are kept.
fn tuning(index: usize, state: &TuningState) -> Finding {
    const REMEDY: &str = "`trine bench` measures again what a model needs, and `trine serve` does \
        while it has nothing to do";
    let check = format!("gpu {index} tuning");
    let path = state.path.display();
    let details = json!({
        "path": path.to_string(),
        "kernels": state.kernels.unwrap_or(0),
        "improved": state.improved,
    });
    let finding = match (&state.damage, state.kernels) {
        (Some(damage), _) => Finding::warn(check, format!("{path} is not used: {damage}"), REMEDY),
        (None, Some(kernels)) => {
            let found = format!(
                "{kernels} kernels measured on this device, {} of them in a better shape than the \
                 usual one: {path}",
                state.improved
            );
            Finding::ok(check, found)
        }
        (None, None) => {
            let found = format!(
                "nothing measured yet; `trine bench` does it once, and `trine serve` while it has \
                 nothing to do, into {path}"
            );
            Finding::ok(check, found)
        }
    };
    finding.with_details(details)
}

/// Checks whether the kernel's driver could mistake a long submission for a hung GPU.
fn watchdog(index: usize, timeout: &Timeout) -> Finding {
    const REMEDY: &str = "set amdgpu.lockup_timeout=10000,10000,10000,10000 on the kernel's \
        command line: a GPU that is reset in the middle of its work ends every request";
    let check = format!("gpu {index} watchdog");
    let seconds = |timeout: &Duration| output::seconds(timeout.as_secs_f64());
    match timeout {
        Timeout::Default => Finding::ok(
            check,
            "the driver's own timeout for compute: 2 s or more; trine's submissions are made to \
             take 0.1 s at most",
        ),
        Timeout::Never => {
            Finding::ok(check, "no timeout for compute; a GPU that hangs is not reset")
        }
        Timeout::After(time) if *time >= TIMEOUT_MIN => {
            Finding::ok(check, format!("a GPU that computes for {} is reset", seconds(time)))
        }
        Timeout::Single(time) if *time >= TIMEOUT_MIN => Finding::ok(
            check,
            format!(
                "a GPU that works for {} is reset; older kernels except compute from that",
                seconds(time)
            ),
        ),
        Timeout::After(time) | Timeout::Single(time) => {
            let found =
                format!("a GPU that works for {} is reset: amdgpu.lockup_timeout", seconds(time));
            Finding::warn(check, found, REMEDY)
        }
        Timeout::Unclear(text) => {
            let found =
                format!("amdgpu.lockup_timeout is {text:?}, which is not a list of numbers");
            Finding::warn(check, found, REMEDY)
        }
    }
}

/// Checks whether an integrated GPU may use enough of the machine's memory. By default the kernel
/// allows it half.
fn shared_memory(
    index: usize,
    found: Memory,
    total: Option<u64>,
    (kernel, firmware): (Option<String>, Option<String>),
) -> Finding {
    let check = format!("gpu {index} GTT");
    let usable = found.shared.saturating_add(found.own);
    let mut text = format!(
        "the GPU may use {} of the machine's memory (GTT) and {} that the firmware sets aside \
         (UMA)",
        output::bytes(found.shared),
        output::bytes(found.own)
    );
    for (what, version) in [("kernel", &kernel), ("firmware", &firmware)] {
        text.push_str(&version.as_ref().map_or(String::new(), |it| format!("; {what} {it}")));
    }
    let room = Room { free: Some(usable), beside: 0 };
    let fitting = catalog::offered().into_iter().rev().find(|model| room.fits(model) == Some(true));
    if let Some(model) = fitting {
        text.push_str(&format!("; the largest model that fits into that is {}", model.name()));
    }
    let details = json!({
        "gtt_bytes": found.shared,
        "vram_bytes": found.own,
        "kernel": kernel,
        "firmware": firmware,
        "largest_model": fitting.map(|model| model.name()),
    });
    let finding = match total {
        // The two numbers have different sources, so slightly less than half counts as half.
        Some(total) if usable < total / 2 - total / 32 => {
            let wanted = total / 4 * 3;
            let remedy = format!(
                "put ttm.pages_limit={} (for older kernels amdgpu.gttsize={}) on the kernel's \
                 command line: then models of up to {} fit",
                wanted / PAGE,
                wanted >> 20,
                output::bytes(wanted)
            );
            Finding::warn(check, text, remedy)
        }
        _ => Finding::ok(
            check,
            format!("{text}; ttm.pages_limit (older kernels: amdgpu.gttsize) allows more"),
        ),
    };
    finding.with_details(details)
}

fn bandwidth(index: usize, gpu: &Arc<Gpu>) -> Finding {
    let check = format!("gpu {index} bandwidth");
    let reads = gpus::reader(gpu).map_err(Into::into);
    match reads.and_then(|read| measured::gpu_reads(read, None)) {
        Ok(Reads { usual, best, how, .. }) => {
            let (usual_text, best_text) = (output::rate(usual / 1e9), output::rate(best / 1e9));
            let found = format!(
                "{usual_text} GB/s, at best {best_text} ({how}): a model of 1 GB writes at most \
                 {best_text} tokens/s"
            );
            let details = json!({ "bytes_per_second": usual, "best_bytes_per_second": best });
            Finding::ok(check, found).with_details(details)
        }
        Err(error) => {
            let remedy = error.downcast_ref().map_or(UPDATE, remedy);
            Finding::warn(check, error.to_string(), remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use trine_session::gpus::{CooperativeShape, Element, MemoryHeap, MissingFeatures};

    use super::*;
    use crate::commands::finding::State;

    fn device(kind: DeviceKind) -> Description {
        let shape = |input, output| CooperativeShape { m: 16, n: 16, k: 16, input, output };
        let capabilities = Capabilities {
            name: "Radeon 780M".to_owned(),
            driver: "radv Mesa 25.0.7".to_owned(),
            kind,
            vendor: amdgpu::VENDOR,
            device: 0x15bf,
            uuid: [0xab; 16],
            driver_version: 1,
            pipeline_cache_uuid: [0; 16],
            api: (1, 4),
            subgroup: 64,
            subgroup_range: (32, 64),
            shared_bytes: 65_536,
            invocations: 1024,
            groups: [65_535; 3],
            allocation_bytes: 4 << 30,
            timestamp_ns: 10.0,
            integer_dot_accelerated: true,
            fragments: false,
            cooperative: vec![
                shape(Element::F16, Element::F32),
                shape(Element::F16, Element::F32),
                shape(Element::S8, Element::S32),
            ],
            cores: Some(12),
            heaps: vec![
                MemoryHeap { bytes: 10_000_000_000, device_local: true, host_visible: true },
                MemoryHeap { bytes: 5_000_000_000, device_local: false, host_visible: true },
            ],
            extensions: Vec::new(),
        };
        Description { capabilities, missing: MissingFeatures::default() }
    }

    #[test]
    fn a_device_is_described() {
        let device = device(DeviceKind::Integrated);
        let finding = identity(1, &device);
        assert_eq!(finding.state, State::Ok);
        for part in ["Radeon 780M (integrated)", "radv Mesa 25.0.7", "Vulkan 1.4", "abababab-abab"]
        {
            assert!(finding.found.contains(part), "{part}: {}", finding.found);
        }
        let found = abilities(1, &device.capabilities).found;
        assert_eq!(
            found,
            "12 compute units; subgroups of 64 (32 to 64); 64 KiB of shared memory; matrix units: \
             16x16x16 f16 to f32, 16x16x16 s8 to s32; integer dot products: accelerated"
        );
        let found =
            memory(1, &device.capabilities, Some(&[(1_000_000_000, 9_000_000_000), (2, 1)])).found;
        assert_eq!(
            found,
            "10.0 GB of the device's, mapped (8.0 GB free for this program); 5.0 GB of the \
             machine's (0 B free for this program); at most 4.3 GB at once"
        );
        let short = memory(1, &device.capabilities, Some(&[]));
        assert!(
            !short.found.contains("free"),
            "a driver that tells of fewer heaps: {}",
            short.found
        );
        assert!(memory(1, &device.capabilities, None).found.contains("does not tell"));
    }

    #[test]
    fn missing_features_are_named() {
        let mut device = device(DeviceKind::Integrated);
        device.missing = MissingFeatures(vec!["8-bit storage", "maintenance4"]);
        let finding = identity(0, &device);
        assert_eq!(finding.state, State::Warn);
        assert!(finding.found.contains("lacks 8-bit storage, maintenance4"), "{}", finding.found);
        assert!(finding.remedy.unwrap().contains("driver"));
        assert_eq!(device_findings(0, &device, true).len(), 1, "nothing more is tried with it");
    }

    #[test]
    fn the_device_that_is_taken_is_named() {
        let missing = GpuError::Missing { device: "X".to_owned(), what: "Y".to_owned() };
        let none = GpuError::NoDevice { wanted: String::new(), found: String::new() };
        let finding = chosen(&[], Err(&none));
        assert_eq!(finding.state, State::Warn);
        let finding = chosen(&[device(DeviceKind::Processor)], Err(&none));
        assert_eq!(finding.state, State::Ok, "only software is not an error");
        assert!(
            finding.found.contains("software") && finding.found.contains("CPU"),
            "{}",
            finding.found
        );
        let finding =
            chosen(&[device(DeviceKind::Processor), device(DeviceKind::Discrete)], Err(&missing));
        assert_eq!(finding.state, State::Warn);
        assert!(finding.found.contains("X lacks Y"), "{}", finding.found);
        let (mut first, second) = (device(DeviceKind::Integrated), device(DeviceKind::Integrated));
        first.capabilities.uuid = [1; 16];
        let finding = chosen(&[first, second.clone()], Ok(&second.capabilities));
        assert!(finding.found.contains("gpu 1, Radeon 780M"), "{}", finding.found);
        let finding = unavailable(&GpuError::NoLoader { reason: "libvulkan.so.1".to_owned() });
        assert!(finding.found.contains("libvulkan.so.1"), "{}", finding.found);
        assert!(finding.remedy.unwrap().contains("install"));
    }

    #[test]
    fn measurements_are_counted_and_their_file_named() {
        let state = |kernels, damage: Option<&str>| TuningState {
            path: "/cache/0a.tuning.json".into(),
            kernels,
            improved: 3,
            damage: damage.map(str::to_owned),
        };
        let finding = tuning(1, &state(Some(40), None));
        assert_eq!((finding.check.as_ref(), finding.state), ("gpu 1 tuning", State::Ok));
        assert!(finding.found.contains("40 kernels") && finding.found.contains("3 of them"));
        let none = tuning(0, &state(None, None));
        assert_eq!(none.state, State::Ok, "every machine begins so");
        let damaged = tuning(0, &state(None, Some("EOF while parsing")));
        assert_eq!(damaged.state, State::Warn);
        for finding in [finding, none, damaged] {
            assert!(finding.found.contains("/cache/0a.tuning.json"), "{}", finding.found);
        }
    }

    #[test]
    fn short_timeouts_are_warned_of() {
        let after = |milliseconds| Timeout::After(Duration::from_millis(milliseconds));
        let single = |milliseconds| Timeout::Single(Duration::from_millis(milliseconds));
        let fine = [Timeout::Default, Timeout::Never, after(1000), single(2000), after(u64::MAX)];
        for timeout in fine {
            assert_eq!(watchdog(0, &timeout).state, State::Ok, "{timeout:?}");
        }
        for timeout in [after(999), after(1), single(500), Timeout::Unclear("soon\u{7}".to_owned())]
        {
            let finding = watchdog(0, &timeout);
            assert_eq!(finding.state, State::Warn, "{timeout:?}");
            assert!(finding.remedy.unwrap().contains("amdgpu.lockup_timeout="), "{timeout:?}");
        }
    }

    #[test]
    fn little_shared_memory_is_warned_of() {
        const GIB: u64 = 1 << 30;
        let system = || (Some("6.12".to_owned()), Some("F.21".to_owned()));
        let state = |shared, own, total| shared_memory(0, Memory { shared, own }, total, system());
        assert_eq!(state(16 * GIB, GIB / 2, Some(32 * GIB)).state, State::Ok);
        assert_eq!(
            state(2 * GIB, 16 * GIB, Some(16 * GIB)).state,
            State::Ok,
            "the firmware sets aside"
        );
        let little = state(3 * GIB, GIB / 2, Some(32 * GIB));
        assert_eq!(little.state, State::Warn);
        let remedy = little.remedy.unwrap();
        assert!(
            remedy.contains("ttm.pages_limit=6291456") && remedy.contains("amdgpu.gttsize=24576"),
            "{remedy}"
        );
        // The check must also survive numbers that no machine has.
        for (shared, own, total) in [
            (0, 0, Some(0)),
            (u64::MAX, u64::MAX, Some(u64::MAX)),
            (0, 0, Some(u64::MAX)),
            (0, 0, None),
        ] {
            assert!(!state(shared, own, total).found.is_empty());
        }
    }
}
