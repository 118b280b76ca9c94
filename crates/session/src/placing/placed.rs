//! A model on its devices before it is loaded, as text: parts, memory, and the work of each device
//! in a step.

pub mod drafts;
#[cfg(test)]
pub(crate) mod plans;

use std::sync::Arc;

use anyhow::Result;
use serde_json::{Value, json};
use trine_backend::placement::{FlightGain, Part, Site, place};
use trine_backend::{
    BLOCK, BackendError, Demand, Device, DeviceMemory, LayerChoice, Memory, MemoryKind, Placement,
    ProgramOptions,
};
use trine_model::lend::lend;
use trine_model::{KvType, Plan, Width, aside};

use crate::device::Opened;
use crate::placing::forecast::PREFILL;
use crate::words;

/// Sizes with room for whole contexts, whatever device has them: what a model needs.
#[derive(Debug, Clone, Copy)]
pub struct Needs(ProgramOptions);

impl Needs {
    /// Returns the needs of `sequences` sequences of `context` positions that run at the same time.
    pub fn new(sequences: usize, context: usize, kv: KvType) -> Self {
        let width = Width { tokens: PREFILL.min(context).max(sequences), outputs: sequences };
        let blocks = sequences * context.div_ceil(BLOCK);
        Self(ProgramOptions { width, kv, context, sequences, blocks })
    }

    /// Returns the needs with room for the logits of as many rows more in a step.
    pub fn with_outputs(mut self, more: usize) -> Self {
        let Width { tokens, outputs } = &mut self.0.width;
        *outputs += more;
        *tokens = (*tokens).max(*outputs);
        self
    }

    /// Returns the memory of a Plan, with weights as they are stored.
    pub fn memory(&self, plan: &Plan) -> Memory {
        Memory::of_plan(plan, &self.0)
    }

    /// Returns which parts of a Plan fit into a GPU's memory of `bytes` bytes, where the processor
    /// runs the rest.
    ///
    /// # Errors
    /// As [`place`].
    pub fn fitting(&self, plan: &Plan, bytes: u64) -> Result<Fitting, BackendError> {
        let site = |memory: DeviceMemory| Site {
            name: String::new(),
            memory,
            free: memory.free,
            most_rows: None,
            most_context: None,
            forecast: Box::new(Memory::of_plan),
            timing: Box::new(|_, _, _| None),
        };
        let own = DeviceMemory { kind: MemoryKind::Own, free: Some(bytes), largest_buffer: None };
        let sites = [site(DeviceMemory::host(None)), site(own)];
        let found = place(plan, &sites, LayerChoice::Fitting, &Demand::Exactly(self.0))?;
        let on_gpu = || found.parts.iter().filter(|part| part.site == 1);
        Ok(Fitting {
            layers: on_gpu().map(|part| part.plan.layers()).sum(),
            without_experts: on_gpu().map(|part| aside::aside_layers(&part.plan).len()).sum(),
        })
    }
}

/// The parts of a model that fit into a GPU's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fitting {
    /// Layers.
    pub layers: usize,
    /// How many of these leave their experts to the processor.
    pub without_experts: usize,
}

/// Returns the parts of a memory, for programs.
pub fn memory_json(memory: &Memory) -> Value {
    json!({
        "weight_bytes": memory.weights,
        "mapped_bytes": memory.mapped,
        "cache_bytes": memory.caches,
        "scratch_bytes": memory.scratch,
        "total_bytes": memory.total(),
    })
}

/// Where a model would run.
pub struct Placed {
    placement: Placement,
    /// The GPUs, which are the sites after the first one.
    gpus: Vec<Arc<dyn Device>>,
    /// The context that was asked for, if it is longer than the one that there is memory for.
    longer: Option<usize>,
}

/// The work of a part in a step.
pub struct Launches {
    /// Index of the part.
    part: usize,
    /// The kind of step, in words.
    step: String,
    /// Tokens of the step, if their number is fixed.
    tokens: Option<usize>,
    text: String,
}

impl Placed {
    /// Makes the result of a demand on these devices.
    pub fn new(mut placement: Placement, opened: &Opened, demand: &Demand) -> Self {
        // A GPU has passes of its own for a partner.
        if let Some(npu) = opened.npu.as_ref().filter(|_| opened.gpus.is_empty()) {
            for part in &mut placement.parts {
                part.plan = lend(part.plan.clone(), &|weight| npu.kept(weight));
            }
        }
        let longer = Some(demand.context()).filter(|&asked| asked > placement.options.context);
        Self { placement, gpus: opened.gpus.clone(), longer }
    }

    /// Returns whether there is no memory for the context that was asked for.
    pub fn is_shorter(&self) -> bool {
        self.longer.is_some()
    }

    /// Returns the placement.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Returns the work of each part for one token, for one token of each sequence if there are
    /// several, and for up to `prompt` tokens of a prompt: on a GPU the launches, on another device
    /// the steps of its Plan. With `plans`, those of GPUs too. `guess` is the Plan of a guess by a
    /// draft that is a part of the model.
    ///
    /// # Errors
    /// Returns an error if a GPU cannot run its part.
    pub fn launches(
        &self,
        prompt: usize,
        plans: bool,
        guess: Option<&Plan>,
    ) -> Result<Vec<Launches>> {
        let mut all = Vec::new();
        for (index, part) in self.placement.parts.iter().enumerate() {
            let gpu = part.site.checked_sub(1).and_then(|gpu| self.gpus.get(gpu));
            if plans || gpu.is_none() {
                let step = "its Plan (n: tokens of the step, m: tokens whose logits are wanted)";
                let step = step.to_owned();
                let text = part.plan.listing().to_string();
                all.push(Launches { part: index, step, tokens: None, text });
            }
            if let Some(aside) = &part.aside {
                let step = format!("the Plan of the experts that {} computes", aside.device);
                let text = aside.plan.listing().to_string();
                all.push(Launches { part: index, step, tokens: None, text });
            }
            let Some(gpu) = gpu else { continue };
            let Width { tokens, outputs } = part.options.width;
            let sequences = self.placement.running.min(tokens);
            let piece = prompt.min(tokens);
            let mut steps = vec![(1, true, "one token".to_owned())];
            if sequences > 1 {
                steps.push((
                    sequences,
                    true,
                    format!("one token of each of {sequences} sequences"),
                ));
            }
            if piece > 1 {
                steps.push((piece, false, format!("{piece} tokens of a prompt")));
            }
            for (tokens, is_lone, step) in steps {
                let wanted = if is_lone { tokens } else { 1 };
                let width = Width { tokens, outputs: outputs.min(wanted) };
                let text = gpu.explain(&part.plan, &part.options, width, is_lone)?;
                let text = text.unwrap_or_default();
                all.push(Launches { part: index, step, tokens: Some(tokens), text });
            }
            if let Some(guess) = guess {
                let width = Width { tokens: 1, outputs: 1 };
                let text = gpu.explain(guess, &part.options, width, true)?.unwrap_or_default();
                all.push(Launches { part: index, step: "a guess".to_owned(), tokens: None, text });
            }
        }
        Ok(all)
    }

    /// Returns the placement and the work of its parts, for people.
    pub fn text(&self, launches: &[Launches]) -> String {
        let mut text = format!("{}\n", self.placement);
        if let Some(longer) = self.longer {
            text.push_str(&format!(
                "the context would be {longer} if there were more memory; --context chooses one\n"
            ));
        }
        if let Some((taken, free)) = self.overdrawn() {
            text.push_str(&format!(
                "the CPU and the GPU share {} of memory, and their parts take {}; what does not \
                 fit goes to swap space\n",
                words::bytes(free),
                words::bytes(taken)
            ));
        }
        for (index, gpu) in self.gpus.iter().enumerate() {
            if !self.placement.parts.iter().any(|part| part.site == index + 1) {
                text.push_str(&format!("{} runs no layer\n", gpu.name()));
            }
        }
        for Launches { part, step, text: lines, .. } in launches {
            let device = &self.placement.parts[*part].device;
            text.push_str(&format!("\nPart {part} on {device}: {step}\n{lines}"));
        }
        text
    }

    /// Returns the bytes that parts take of the processor's memory and the free bytes of it, if
    /// those are fewer. The processor refuses no part for lack of memory.
    fn overdrawn(&self) -> Option<(u64, u64)> {
        let parts = || self.placement.all_parts();
        let host = parts().find(|part| part.device_memory.kind == MemoryKind::Host)?;
        let free = host.device_memory.free?;
        let sharing = parts().filter(|part| part.device_memory.kind != MemoryKind::Own);
        let taken = sharing.map(|part| part.memory.total()).sum();
        (taken > free).then_some((taken, free))
    }

    /// Returns the same for programs.
    pub fn json(&self, launches: &[Launches]) -> Value {
        let Placement { parts, options, running, full_blocks, depth, gain } = &self.placement;
        let gain =
            gain.map(|FlightGain { texts, prompts }| json!({ "texts": texts, "prompts": prompts }));
        let part = |(index, part): (usize, &Part)| {
            let Memory { weights, mapped, caches, scratch } = part.memory;
            let steps = launches.iter().filter(|launches| launches.part == index);
            let step = |launches: &Launches| {
                let Launches { step, tokens, text, .. } = launches;
                json!({ "what": step, "tokens": tokens, "text": text })
            };
            let experts = part.aside.as_ref().map(|aside| {
                json!({
                    "device": aside.device,
                    "layers": self.placement.aside_layers(index),
                    "token_bytes": part.aside_bytes(),
                    "memory": memory_json(&aside.memory),
                })
            });
            json!({
                "device": part.device,
                "experts_aside": experts,
                "layers": part.plan.layers(),
                "plan_steps": part.plan.steps.len(),
                "weight_bytes": weights,
                "mapped_bytes": mapped,
                "cache_bytes": caches,
                "scratch_bytes": scratch,
                "total_bytes": part.memory.total(),
                "free_bytes": part.device_memory.free,
                "largest_buffer_bytes": part.device_memory.largest_buffer,
                "most_step_tokens": part.most_rows,
                "steps": steps.map(step).collect::<Vec<_>>(),
            })
        };
        json!({
            "sequences": running,
            "slots": options.sequences,
            "blocks": options.blocks,
            "full_blocks": full_blocks,
            "step_tokens": options.width.tokens,
            "steps_at_once": depth,
            "gain_of_steps_at_once": gain,
            "parts": parts.iter().enumerate().map(part).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use trine_backend::placement::decide;
    use trine_engine::EngineOptions;
    use trine_vulkan::capabilities::{Capabilities, presets};
    use trine_weights::DType;

    use super::plans::{plan, plan_with_experts, small_plan};
    use super::*;
    use crate::placing::forecast::absent;

    /// Places a Plan on a machine with a GPU and this memory.
    fn place_on(
        (gpu, bytes): (Capabilities, u64),
        plan: &Plan,
        layers: Option<usize>,
        demand: &Demand,
    ) -> Placed {
        let opened = absent::machine(gpu, false, Some(bytes), layers);
        let placement = decide(plan, opened.device.as_ref(), demand, &[]).unwrap();
        Placed::new(placement, &opened, demand)
    }

    /// Experts leave a GPU with little memory before layers do, and layers only where nothing else
    /// helps.
    #[test]
    fn experts_leave_before_layers() {
        let options = EngineOptions { context: Some(8192), ..EngineOptions::default() };
        let demand = options.demand(262_144).unwrap();
        let plan = plan_with_experts(30, DType::Q4_0);
        let place = |capabilities: Capabilities, mib: u64, layers| {
            place_on((capabilities, mib << 20), &plan, layers, &demand)
        };
        let found = |placed: &Placed| {
            let parts = placed.placement().parts.iter();
            let of_part = |part: &Part| {
                (part.site, part.plan.layers(), aside::aside_layers(&part.plan).len())
            };
            parts.map(of_part).collect::<Vec<_>>()
        };
        let gpu = |mib| found(&place(presets::h200(), mib, None));
        assert_eq!(gpu(24 << 10), [(1, 30, 0)]);
        let [(1, 30, twelve)] = gpu(12 << 10)[..] else { panic!("all layers") };
        let [(1, 30, eight)] = gpu(8 << 10)[..] else { panic!("all layers") };
        assert!(0 < twelve && twelve < eight && eight < 20, "{twelve}, {eight}");
        let [(0, first, 0), (1, last, without)] = gpu(1536)[..] else { panic!("{:?}", gpu(1536)) };
        assert_eq!((first + last, without), (30, last));
        // A number of layers is one of whole layers.
        let given = place(presets::h200(), 12 << 10, Some(9));
        assert_eq!(found(&given), [(0, 21, 0), (1, 9, 0)]);
        // A GPU that shares the processor's memory may have half of it.
        let shared = place(presets::radeon_780m(), 16 << 10, None);
        let [(1, 30, shared_eight)] = found(&shared)[..] else { panic!("all layers") };
        assert!(shared_eight.abs_diff(eight) <= 1, "{shared_eight}, {eight}");
        for (name, placed) in [
            ("26b-a4b-8-gib", place(presets::h200(), 8 << 10, None)),
            ("26b-a4b-16-gib-shared", shared),
            ("26b-a4b-2-gib", place(presets::h200(), 1536, None)),
        ] {
            insta::assert_snapshot!(name, placed.text(&[]));
        }
        // Numbers of layers are those of the model, in both forms.
        let two = place(presets::h200(), 1536, None);
        let numbers: Vec<usize> = (first..30).collect();
        let json = two.json(&[]);
        assert!(first > 0 && json["parts"][0]["experts_aside"].is_null(), "{json}");
        assert_eq!(json["parts"][1]["experts_aside"]["layers"], json!(numbers));
        // The processor's Plan is shown, and what the GPU hands over.
        let eight = place(presets::h200(), 8 << 10, None);
        let text = eight.text(&eight.launches(1, false, None).unwrap());
        for part in ["sum_experts experts_gated[n,5632]", "for the guest", "collect"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    const DEVICES: [(fn() -> Capabilities, u64); 3] =
        [(presets::h200, 139), (presets::radeon_780m, 32), (presets::software, 64)];

    /// Places the model on a device with this many GiB.
    fn placed(device: (fn() -> Capabilities, u64), dtype: DType, options: EngineOptions) -> Placed {
        let (capabilities, gib) = device;
        let demand = options.demand(131_072).unwrap();
        place_on((capabilities(), gib << 30), &plan(dtype), None, &demand)
    }

    /// The text that is printed for 27B on each kind of device.
    #[test]
    fn the_largest_model_on_each_kind_of_device() {
        for device in DEVICES {
            for dtype in [DType::Q4_0, DType::Q8_0] {
                let placed = placed(device, dtype, EngineOptions::default());
                let text = placed.text(&placed.launches(512, false, None).unwrap());
                let name = format!("27b-{}-{}", (device.0)().name, dtype.name());
                insta::assert_snapshot!(name.replace(' ', "-").to_lowercase(), text);
            }
        }
    }

    /// What a server runs at once where nobody chooses: 8, and more where memory is left and all
    /// together are faster.
    #[test]
    fn a_server_has_as_many_places_as_are_of_use() {
        let open = EngineOptions {
            sequences: 8,
            further: 248,
            kept: 8,
            outputs: 32,
            ..EngineOptions::default()
        };
        let place = |plan: &Plan, gpu: fn() -> Capabilities, gib: u64, options: EngineOptions| {
            let demand = options.demand(131_072).unwrap();
            let placed = place_on((gpu(), gib << 30), plan, None, &demand);
            (placed.placement.running, placed.placement.options.context)
        };
        let [small, large] = [small_plan(34, DType::Q4_0), plan(DType::Q4_0)];
        for (plan, gpu, gib, expected) in [
            (&small, presets::h200 as fn() -> Capabilities, 139, 256),
            (&large, presets::h200, 139, 98),
            (&small, presets::rtx_4090, 24, 32),
            (&large, presets::rtx_4090, 24, 8),
            (&small, presets::rtx_4090, 6, 8),
            (&small, presets::rtx_4090, 3, 3),
            (&small, presets::radeon_780m, 32, 25),
            (&large, presets::radeon_780m, 64, 8),
            (&small, presets::radeon_780m, 16, 8),
            (&small, presets::software, 64, 8),
        ] {
            let (running, context) = place(plan, gpu, gib, open);
            let name = gpu().name;
            assert_eq!(running, expected, "{name} with {gib} GiB: a context of {context}");
            // Further places shorten no context.
            let eight = place(plan, gpu, gib, EngineOptions { further: 0, ..open });
            assert_eq!((eight.0, eight.1), (running.min(8), context), "{name} with {gib} GiB");
        }
    }

    /// Where a server with 32 sequences of 32,768 positions has room.
    #[test]
    fn the_largest_model_for_many_sequences() {
        let options = EngineOptions {
            context: Some(32_768),
            sequences: 32,
            kept: 8,
            outputs: 32,
            ..EngineOptions::default()
        };
        let text = |device| {
            let name = (device as (fn() -> Capabilities, u64)).0().name;
            let formats = [DType::Q4_0, DType::Q8_0].map(|dtype| {
                format!("{name}, {}\n{}", dtype.name(), placed(device, dtype, options).text(&[]))
            });
            formats.join("\n")
        };
        insta::assert_snapshot!("27b-served", DEVICES.map(text).join("\n"));
    }
}
