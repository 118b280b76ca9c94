use trine_model::{
    Ahead, Buffer, BufferId, Cache, CacheId, Heads, Input, KvType, Op, Plan, Rows, Source, Step,
    Weight, WeightId, WeightKind, WeightPlace, Width, Workload,
};
use trine_weights::DType;

use super::*;
use crate::batch::{BLOCK, ProgramOptions};
use crate::device::LayerChoice;
use crate::device_memory::{DeviceMemory, MemoryKind};
use crate::program::Memory;

/// Bytes of a layer's weights.
const LAYER: u64 = 100;
/// Bytes of the output matrix.
const HEAD: u64 = 50;
/// Bytes of a block of a global layer.
const BLOCK_BYTES: u64 = 4;
/// Bytes of a ring of a local layer.
const RING_BYTES: u64 = 10;
/// Working memory of each part.
const SCRATCH: u64 = 7;

/// Returns a model whose layers add to the residual stream. Layer 1 and every second one after it
/// are global, the others local.
fn plan(layers: usize) -> Plan {
    let buffer = |name: &str, rows| Buffer { name: name.to_owned(), rows, columns: 1 };
    let [stream, attended, wanted] = [0, 1, 2].map(BufferId);
    let mut steps = Vec::new();
    let mut step = |op| steps.push(Step { label: String::new(), op });
    for layer in 0..layers {
        let heads = Heads { query: 1, kv: 1, dim: 1 };
        let cache = CacheId(layer);
        step(Op::Attend {
            query: stream,
            cache,
            heads,
            scale: 1.0,
            window: window(layer),
            ahead: Ahead::All,
            output: attended,
        });
        step(Op::Add { source: attended, target: stream });
    }
    step(Op::Select { input: stream, output: wanted });
    let cache = |layer| Cache { layer, kv_heads: 1, head_dim: 1, window: window(layer) };
    Plan {
        buffers: vec![
            buffer("stream", Rows::Tokens),
            buffer("attended", Rows::Tokens),
            buffer("logits", Rows::Outputs),
        ],
        weights: Vec::new(),
        caches: (0..layers).map(cache).collect(),
        steps,
        inputs: vec![Input { buffer: stream, source: Source::Part }],
        outputs: vec![wanted],
        ends: Vec::new(),
    }
}

fn window(layer: usize) -> Option<usize> {
    layer.is_multiple_of(2).then_some(8)
}

fn forecast(plan: &Plan, options: &ProgramOptions) -> Memory {
    let has_head = plan.steps.iter().any(|step| matches!(step.op, Op::Select { .. }));
    let cache = |cache: &Cache| match cache.window {
        Some(_) => RING_BYTES * options.sequences as u64,
        None => BLOCK_BYTES * options.blocks as u64,
    };
    Memory {
        weights: LAYER * plan.layers() as u64 + if has_head { HEAD } else { 0 },
        mapped: 0,
        caches: plan.caches.iter().map(cache).sum(),
        scratch: SCRATCH,
    }
}

fn site(kind: MemoryKind, free: Option<u64>) -> Site<'static> {
    Site {
        name: format!("{kind:?}"),
        memory: DeviceMemory { kind, free, largest_buffer: None },
        free,
        most_rows: None,
        most_context: None,
        forecast: Box::new(forecast),
        timing: Box::new(|_, _, _| None),
    }
}

fn host() -> Site<'static> {
    site(MemoryKind::Host, None)
}

fn gpu(free: u64) -> Site<'static> {
    site(MemoryKind::Own, Some(free))
}

/// Contexts of 16 blocks.
const BOUNDS: Bounds = Bounds {
    context: 512,
    is_context_open: false,
    kv: KvType::F16,
    sequences: 8,
    further: 0,
    kept: 2,
    rows: 64,
    further_rows: 0,
    unit: 0,
    outputs: 8,
    kv_memory: None,
};

/// Returns the memory of the last `layers` of 4 layers with the output matrix.
fn needed(layers: u64, slots: u64, blocks: u64) -> u64 {
    let (global, local) = (layers.div_ceil(2), layers / 2);
    LAYER * layers + HEAD + SCRATCH + global * BLOCK_BYTES * blocks + local * RING_BYTES * slots
}

/// For each part its site and layers; slots, blocks and the number of sequences that run at the
/// same time.
type Found = (Vec<(usize, usize)>, usize, usize, usize);

fn placed(sites: &[Site<'_>], layers: LayerChoice, bounds: Bounds) -> Result<Found, String> {
    let placement = place(&plan(4), sites, layers, &Demand::Within(bounds));
    let placement = placement.map_err(|error| error.to_string())?;
    for part in &placement.parts {
        assert_eq!(part.memory, forecast(&part.plan, &part.options));
        if let (MemoryKind::Own, Some(free)) =
            (sites[part.site].memory.kind, part.device_memory.free)
        {
            assert!(part.memory.total() <= free || layers != LayerChoice::Fitting);
        }
    }
    if let Some(budget) = bounds.kv_memory {
        assert!(placement.cache_bytes() <= budget);
    }
    let parts = placement.parts.iter().map(|part| (part.site, part.plan.layers())).collect();
    Ok((parts, placement.options.sequences, placement.options.blocks, placement.running))
}

#[test]
fn layers_come_before_slots_and_blocks() {
    let full = needed(4, 10, 128);
    let fitting = |free| placed(&[host(), gpu(free)], LayerChoice::Fitting, BOUNDS).unwrap();
    let whole = vec![(1, 4)];
    assert_eq!(fitting(full), (whole.clone(), 10, 128, 8));
    assert_eq!(fitting(u64::MAX), (whole.clone(), 10, 128, 8));
    // Fewer blocks, but slots for kept sequences as long as half of the blocks are left.
    assert_eq!(fitting(full - 1), (whole.clone(), 10, 127, 8));
    assert_eq!(fitting(needed(4, 10, 64)), (whole.clone(), 10, 64, 8));
    // Next, the slots for kept sequences are given up.
    assert_eq!(fitting(needed(4, 8, 64)), (whole.clone(), 8, 64, 8));
    assert_eq!(fitting(needed(4, 8, 32)), (whole.clone(), 8, 32, 8));
    // Next, fewer sequences run at the same time, as many as have a quarter of their contexts.
    assert_eq!(fitting(needed(4, 7, 28)), (whole.clone(), 7, 28, 7));
    assert_eq!(fitting(needed(4, 7, 28) - 1), (whole.clone(), 6, 30, 6));
    assert_eq!(fitting(needed(4, 4, 16)), (whole.clone(), 4, 16, 4));
    assert_eq!(fitting(needed(4, 1, 16)), (whole, 1, 16, 1));
    // Finally, layers go to the processor, and there is room again.
    assert_eq!(fitting(needed(4, 1, 16) - 1), (vec![(0, 1), (1, 3)], 5, 24, 5));
    assert_eq!(fitting(0), (vec![(0, 4)], 10, 128, 8));
}

/// However many sequences are asked for, the GPU keeps the layers that it has for one.
#[test]
fn layers_do_not_leave_for_the_sake_of_sequences() {
    for free in (0..=needed(4, 2, 16)).chain([needed(4, 20, 80)]) {
        let sites = [host(), gpu(free)];
        let layers = |sequences| {
            let bounds = Bounds { sequences, outputs: 1, ..BOUNDS };
            placed(&sites, LayerChoice::Fitting, bounds).unwrap().0
        };
        let one = layers(1);
        for sequences in [2, 3, 8, 100, 4096] {
            assert_eq!(layers(sequences), one, "{sequences} sequences, {free} bytes");
        }
    }
}

/// Rows with logits take working memory, so fewer sequences have fewer.
#[test]
fn logits_are_of_the_sequences_that_run() {
    let outputs = |sequences, free| {
        let bounds = Bounds { sequences, outputs: 3, ..BOUNDS };
        let sites = [gpu(free)];
        let placement = place(&plan(4), &sites, LayerChoice::Fitting, &Demand::Within(bounds));
        let Placement { options, running, .. } = placement.unwrap();
        (running, options.width.outputs)
    };
    assert_eq!(outputs(50, u64::MAX), (50, 50));
    assert_eq!(outputs(50, needed(4, 5, 20)), (5, 5));
    assert_eq!(outputs(50, needed(4, 1, 16)), (1, 3));
}

/// A layer's keys and values are one buffer, which may have less than the memory that is free.
#[test]
fn caches_are_no_larger_than_a_buffer_may_be() {
    const GLOBAL_BLOCK: u64 = 4 * BLOCK as u64;
    let fitting = |blocks: u64| {
        let mut gpu = gpu(u64::MAX);
        gpu.memory.largest_buffer = Some(GLOBAL_BLOCK * blocks);
        placed(&[host(), gpu], LayerChoice::Fitting, BOUNDS).unwrap()
    };
    let whole = vec![(1, 4)];
    assert_eq!(fitting(128), (whole.clone(), 10, 128, 8));
    assert_eq!(fitting(64), (whole.clone(), 10, 64, 8));
    assert_eq!(fitting(63), (whole.clone(), 8, 63, 8));
    assert_eq!(fitting(32), (whole, 8, 32, 8));
    assert_eq!(fitting(8).0, [(0, 4)], "not even one context");
}

#[test]
fn several_gpus_share_evenly_where_all_fit() {
    let place = |free: &[u64], has_host: bool, layers| {
        let gpus = free.iter().map(|&free| gpu(free));
        let sites: Vec<Site<'_>> = has_host.then(host).into_iter().chain(gpus).collect();
        placed(&sites, layers, BOUNDS).map(|(parts, ..)| parts)
    };
    use LayerChoice::{Exactly, Fitting};
    let much = u64::MAX;
    assert_eq!(place(&[much, much], true, Fitting).unwrap(), [(1, 2), (2, 2)]);
    assert_eq!(place(&[much, much], false, Fitting).unwrap(), [(0, 2), (1, 2)]);
    assert_eq!(place(&[much, much, much], false, Fitting).unwrap(), [(0, 2), (1, 1), (2, 1)]);
    assert_eq!(place(&[much, much], true, Exactly(3)).unwrap(), [(0, 1), (1, 2), (2, 1)]);
    assert_eq!(place(&[much, much], true, Exactly(0)).unwrap(), [(0, 4)]);
    // One takes what the other has no room for.
    let one = needed(1, 1, 16);
    assert_eq!(place(&[much, one], true, Fitting).unwrap(), [(1, 3), (2, 1)]);
    assert_eq!(place(&[one, much], true, Fitting).unwrap(), [(2, 4)]);
    // What neither has room for goes to the processor. Without one, that is an error that says what
    // is missing.
    assert_eq!(place(&[116, needed(1, 8, 16)], true, Fitting).unwrap(), [(0, 3), (2, 1)]);
    let error = place(&[180, one], false, Fitting).unwrap_err();
    assert!(error.contains("a context of 512 needs") && error.contains("Own with Own"), "{error}");
}

/// Logits take working memory where the last layers are, whichever site that is.
#[test]
fn the_site_with_the_last_layers_has_room_for_logits() {
    const ROW: u64 = 20;
    let with_logits = |free| Site {
        forecast: Box::new(|plan, options| {
            let memory = forecast(plan, options);
            Memory { scratch: SCRATCH + ROW * options.width.outputs as u64, ..memory }
        }),
        ..gpu(free)
    };
    let bounds = Bounds { sequences: 1, kept: 0, outputs: 8, ..BOUNDS };
    let layers = |free: [u64; 2]| {
        let sites: Vec<Site<'_>> = std::iter::once(host()).chain(free.map(with_logits)).collect();
        let placement = place(&plan(4), &sites, LayerChoice::Fitting, &Demand::Within(bounds));
        let parts = placement.unwrap().parts;
        parts.iter().map(|part| (part.site, part.plan.layers())).collect::<Vec<_>>()
    };
    let three = needed(3, 1, 16) + 8 * ROW;
    assert_eq!(layers([0, three]), [(0, 1), (2, 3)]);
    assert_eq!(layers([0, three - 1]), [(0, 2), (2, 2)]);
    assert_eq!(layers([three, 0]), [(0, 1), (1, 3)]);
    assert_eq!(layers([three - 1, 0]), [(0, 2), (1, 2)]);
}

#[test]
fn kv_memory_is_a_budget() {
    let placed = |kv_memory| {
        let bounds = Bounds { kv_memory: Some(kv_memory), ..BOUNDS };
        placed(&[host(), gpu(u64::MAX)], LayerChoice::Fitting, bounds)
    };
    let caches = |slots: u64, blocks: u64| 2 * (BLOCK_BYTES * blocks + RING_BYTES * slots);
    let whole = vec![(1, 4)];
    assert_eq!(placed(caches(10, 128)).unwrap(), (whole.clone(), 10, 128, 8));
    assert_eq!(placed(caches(10, 128) / 2).unwrap(), (whole.clone(), 8, 56, 8));
    assert_eq!(placed(caches(10, 128) / 4).unwrap(), (whole.clone(), 5, 25, 5));
    assert_eq!(placed(caches(1, 16)).unwrap(), (whole, 1, 16, 1));
    let error = placed(caches(1, 16) - 1).unwrap_err();
    let mark =
        "one request of 512 tokens takes 148 bytes, more than the 147 that --kv-memory allows";
    assert!(error.contains(mark), "{error}");
}

/// A GPU without memory of its own and the processor take theirs from the same.
#[test]
fn memory_that_is_shared_is_counted_once() {
    let shared = |free| site(MemoryKind::Shared, Some(free));
    let chosen = |bytes, gpus: &[u64], layers| {
        let gpus = gpus.iter().map(|&free| shared(free));
        let sites: Vec<Site<'_>> =
            std::iter::once(site(MemoryKind::Host, Some(bytes))).chain(gpus).collect();
        placed(&sites, layers, BOUNDS).unwrap()
    };
    let placed = |bytes, gpus: &[u64]| chosen(bytes, gpus, LayerChoice::Fitting);
    // All layers, with half of what is left for keys and values.
    let fixed = 4 * LAYER + HEAD + SCRATCH;
    let caches = |slots: u64, blocks: u64| 2 * (BLOCK_BYTES * blocks + RING_BYTES * slots);
    let all = fixed + 2 * caches(10, 128);
    assert_eq!(placed(all, &[all]), (vec![(1, 4)], 10, 128, 8));
    assert_eq!(placed(all - 1, &[all]), (vec![(1, 4)], 10, 127, 8));
    // The GPU offers more than is free.
    assert_eq!(placed(needed(3, 1, 16), &[all]).0, [(0, 1), (1, 3)]);
    // Two of them need working memory twice.
    assert_eq!(placed(needed(4, 1, 16) + SCRATCH, &[all, all]).0, [(1, 2), (2, 2)]);
    assert_eq!(placed(needed(4, 1, 16), &[all, all]).0, [(2, 4)]);
    assert_eq!(placed(needed(4, 1, 16) - 1, &[all, all]).0, [(0, 1), (2, 3)]);
    // What the GPU can have of it may be full.
    assert_eq!(placed(all, &[needed(4, 10, 128)]), (vec![(1, 4)], 10, 128, 8));
    assert_eq!(placed(all, &[needed(4, 1, 16)]), (vec![(1, 4)], 1, 16, 1));
    // The keys and values of both parts together leave half.
    let both = fixed + SCRATCH + 2 * caches(10, 128);
    let three = |bytes| chosen(bytes, &[both], LayerChoice::Exactly(3));
    assert_eq!(three(both), (vec![(0, 1), (1, 3)], 10, 128, 8));
    assert_eq!(three(both - 1), (vec![(0, 1), (1, 3)], 10, 127, 8));
}

#[test]
fn an_open_context_shrinks_and_a_chosen_one_does_not() {
    let bounds = Bounds { context: 8192, is_context_open: true, sequences: 1, kept: 0, ..BOUNDS };
    let context = |sites: &[Site<'_>], bounds| {
        let placement = place(&plan(4), sites, LayerChoice::Fitting, &Demand::Within(bounds));
        placement.map(|placement| placement.options.context).map_err(|error| error.to_string())
    };
    let host = |free| [site(MemoryKind::Host, Some(free))];
    // Half of what weights and working memory leave.
    let with =
        |blocks: u64| 2 * (2 * (BLOCK_BYTES * blocks + RING_BYTES)) + 4 * LAYER + HEAD + SCRATCH;
    assert_eq!(context(&host(with(256)), bounds), Ok(8192));
    assert_eq!(context(&host(with(256) - 1), bounds), Ok(8160));
    // The processor's memory refuses nothing.
    assert_eq!(context(&host(0), bounds), Ok(CONTEXT_LEAST));
    let chosen = Bounds { is_context_open: false, ..bounds };
    assert_eq!(context(&host(0), chosen), Ok(8192));
    // Layers that fill a GPU's share of the processor's memory leave the context as it is.
    let full = site(MemoryKind::Shared, Some(needed(3, 1, 256)));
    let sites = [site(MemoryKind::Host, Some(with(1000))), full];
    assert_eq!(context(&sites, bounds), Ok(8192));
    // A GPU without the processor's help does.
    let alone = |blocks| [gpu(needed(4, 1, blocks))];
    assert_eq!(context(&alone(128), bounds), Ok(4096));
    assert!(context(&alone(128), chosen).unwrap_err().contains("a context of 8192"));
    assert!(context(&alone(15), bounds).unwrap_err().contains("a context of 512"));
}

#[test]
fn an_open_context_takes_the_memory_that_is_left() {
    let bounds = Bounds { context: 131_072, is_context_open: true, kept: 0, ..BOUNDS };
    let chosen = |sites: &[Site<'_>], bounds| {
        let demand = Demand::Within(bounds);
        place(&plan(4), sites, LayerChoice::Fitting, &demand).unwrap()
    };
    let sizes = |sites: &[Site<'_>], bounds| {
        let Placement { options, running, full_blocks, .. } = chosen(sites, bounds);
        (options.context, options.blocks, running, full_blocks)
    };
    // All of it: one sequence of that length, and no more for the other seven.
    let whole = [gpu(needed(4, 8, 4096))];
    assert_eq!(sizes(&whole, bounds), (131_072, 4096, 8, 8 * 4096));
    assert_eq!(sizes(&[gpu(1 << 40)], bounds), (131_072, 4096, 8, 8 * 4096));
    // Each of them adds a usual one where the model has no more.
    let short = Bounds { context: 16_384, ..bounds };
    assert_eq!(sizes(&[gpu(1 << 40)], short), (16_384, 8 * 256, 8, 8 * 512));
    // A part of it, to a 256th of the whole.
    let less = sizes(&[gpu(needed(4, 8, 3000))], bounds);
    assert!((2984 * BLOCK..=3000 * BLOCK).contains(&less.0), "{less:?}");
    assert_eq!((less.1, less.2), (less.0 / BLOCK, 8));
    // No layer leaves a GPU for it.
    let tight = [site(MemoryKind::Host, Some(1 << 40)), gpu(needed(4, 8, 256))];
    let placement = chosen(&tight, bounds);
    assert_eq!((placement.parts.len(), placement.parts[0].site), (1, 1));
    assert_eq!(placement.options.context, 8192);
    // A limit for keys and values counts, and memory of unknown size gives no more than usual.
    let caches = 2 * (BLOCK_BYTES * 1000 + RING_BYTES);
    let limited = Bounds { kv_memory: Some(caches), sequences: 1, ..bounds };
    assert!((984 * BLOCK..=1000 * BLOCK).contains(&sizes(&[host()], limited).0));
    assert_eq!(sizes(&[host()], bounds).0, 8192);
    // What a device computes, too, but not for a context that was chosen.
    let software = || [Site { most_context: Some(10_000), ..gpu(1 << 40) }];
    assert_eq!(sizes(&software(), bounds).0, 10_000);
    let typed = Bounds { is_context_open: false, ..bounds };
    assert_eq!(sizes(&software(), typed).0, 131_072);
    // Numbers of files that say anything.
    let endless = Bounds { context: usize::MAX, ..bounds };
    assert!(sizes(&whole, endless).0 >= 8192);
}

#[test]
fn sizes_follow_from_what_is_asked() {
    let place = |bounds| {
        let plan = plan(4);
        place(&plan, &[host()], LayerChoice::Fitting, &Demand::Within(bounds)).unwrap().options
    };
    let single = Bounds { sequences: 1, kept: 0, outputs: 1, ..BOUNDS };
    assert_eq!(place(single).width, Width { tokens: 64, outputs: 1 });
    assert_eq!(place(Bounds { rows: 1000, ..single }).width.tokens, 512);
    assert_eq!(place(Bounds { outputs: 1, ..BOUNDS }).width.outputs, 8, "one for each sequence");
    assert_eq!(place(Bounds { rows: 1, ..BOUNDS }).width, Width { tokens: 1, outputs: 1 });
    assert_eq!(place(Bounds { context: 33, ..single }).blocks, 2);
    let narrow = [Site { most_rows: Some(16), ..host() }];
    for (unit, expected) in [(0, 16), (10, 16), (40, 40), (100, 64)] {
        let demand = Demand::Within(Bounds { unit, ..BOUNDS });
        let placement = super::place(&plan(4), &narrow, LayerChoice::Fitting, &demand).unwrap();
        assert_eq!(placement.options.width.tokens, expected, "a unit of {unit} rows");
    }
    let demand = Demand::Within(BOUNDS);
    let placement = super::place(&plan(4), &narrow, LayerChoice::Fitting, &demand).unwrap();
    assert_eq!(placement.options.width.tokens, 16);
}

#[test]
fn a_placement_prints_its_parts() {
    let sites = [host(), gpu(needed(4, 1, 16) - 1)];
    let demand = Demand::Within(BOUNDS);
    let placement = place(&plan(4), &sites, LayerChoice::Fitting, &demand).unwrap();
    let text = placement.to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[1].starts_with("0     0           2  ") && lines[1].ends_with("  Host"),
        "{text}"
    );
    assert!(lines[2].starts_with("1     1-3         7  ") && lines[2].ends_with("  Own"), "{text}");
    let sizes = "5 requests at once of up to 512 tokens, 5 slots; 1 step at once of up to 64 \
        tokens, 8 with logits";
    assert_eq!(lines[3], sizes);
    let columns: Vec<&str> = lines[2].split_whitespace().collect();
    assert_eq!(columns[2..8], ["7", "0.00", "0.00", "0.00", "0.00", "0.00"], "{text}");
    assert!(lines[0].contains("free MB"), "{text}");
    let blocks = "24 blocks of 32 tokens: 80 would hold every request's whole context";
    assert!(lines[4].ends_with(blocks), "{text}");
    let limited = |largest| {
        let mut site = Site { most_rows: Some(16), ..gpu(100_000) };
        site.memory.largest_buffer = Some(largest);
        place(&plan(4), &[site], LayerChoice::Fitting, &demand).unwrap().to_string()
    };
    let text = limited(100_000);
    assert!(text.contains("\npart 0 suits steps of up to 16 tokens\n"), "{text}");
    assert!(!text.contains("a buffer"), "it has more than is free: {text}");
    assert!(limited(4 * BLOCK as u64 * 100).contains("of each layer's KV cache"), "{text}");
    let whole = place(&plan(4), &[host()], LayerChoice::Fitting, &demand).unwrap().to_string();
    assert!(whole.ends_with("128 blocks of 32 tokens: every request's whole context"), "{whole}");
}

/// Further rows take a sixteenth of what slots leave at most, on GPUs with memory of their own.
#[test]
fn steps_get_more_rows_where_memory_and_speed_allow() {
    const ROW: u64 = 100;
    type Seconds = fn(&Plan, &ProgramOptions, Workload) -> Option<f64>;
    let place = |kinds: &[MemoryKind], free: u64, seconds: Seconds, bounds: Bounds| {
        let of_rows = |plan: &Plan, options: &ProgramOptions| Memory {
            scratch: ROW * options.width.tokens as u64,
            ..forecast(plan, options)
        };
        let of_kind = |&kind: &MemoryKind| Site {
            forecast: Box::new(of_rows),
            timing: Box::new(seconds),
            ..site(kind, Some(free))
        };
        let sites: Vec<_> = kinds.iter().map(of_kind).collect();
        let layers = LayerChoice::Exactly(if kinds.len() > 1 { 2 } else { 4 });
        super::place(&plan(4), &sites, layers, &Demand::Within(bounds)).unwrap().options
    };
    let bounds = Bounds { sequences: 8, kept: 0, further_rows: 448, ..BOUNDS };
    let quick: Seconds = |_, options, step| {
        assert!(step.tokens <= options.width.tokens);
        Some(step.tokens as f64 / 1e4)
    };
    let (slow, unknown): (Seconds, Seconds) =
        (|_, _, step| Some(step.tokens as f64 / 3e2), |_, _, _| None);
    let (much, own) = (1 << 24, &[MemoryKind::Own][..]);
    for (kinds, seconds, bounds, rows) in [
        (own, quick, bounds, 512),
        (own, quick, Bounds { further_rows: 200, ..bounds }, 264),
        (own, quick, Bounds { further_rows: 0, ..bounds }, 64),
        (own, quick, Bounds { context: 20, ..bounds }, 160),
        (own, slow, bounds, 128),
        (own, unknown, bounds, 64),
        (&[MemoryKind::Shared], quick, bounds, 64),
        (&[MemoryKind::Host, MemoryKind::Own], quick, bounds, 64),
        (&[MemoryKind::Own, MemoryKind::Own], quick, bounds, 64),
    ] {
        let found = place(kinds, much, seconds, bounds);
        assert_eq!(found.width.tokens, rows, "{kinds:?} {bounds:?}");
        assert_eq!(found.blocks, place(kinds, much, unknown, bounds).blocks);
    }
    // 64 rows more are 6400 bytes.
    let slots = needed(4, 8, 8 * 16 / 4) - SCRATCH + 64 * ROW;
    for (left, rows) in [(16 * 64 * ROW - 1, 64), (16 * 64 * ROW, 128), (16 * 192 * ROW, 256)] {
        assert_eq!(place(own, slots + left, quick, bounds).width.tokens, rows, "{left}");
    }
}

/// Shares of the requests read the weights once each, and a slow device lets the other wait.
#[test]
fn steps_in_flight_bring_what_the_parts_leave_one_another() {
    let gain = |running: usize, slowness: [f64; 2]| {
        let site = |slowness: f64| Site {
            timing: Box::new(move |plan: &Plan, _: &ProgramOptions, step: Workload| {
                let rows = (step.sequences * step.tokens) as f64;
                Some(slowness * plan.layers() as f64 * (10.0 + rows))
            }),
            ..gpu(1 << 24)
        };
        let demand = Demand::Within(Bounds { sequences: running, ..BOUNDS });
        let placement = super::place(&plan(4), &slowness.map(site), LayerChoice::Fitting, &demand);
        let placement = placement.unwrap();
        let layers: Vec<_> = placement.parts.iter().map(|part| part.plan.layers()).collect();
        assert_eq!((layers, placement.depth), (vec![2, 2], 2));
        assert!(placement.to_string().contains("times as fast"), "{placement}");
        let found = placement.gain.expect("the speed is known");
        [found.texts, found.prompts].map(|gain| (1000.0 * gain).round())
    };
    assert_eq!(gain(8, [1.0, 1.0]), [1286.0, 2000.0], "18 in place of 14");
    assert_eq!(gain(1, [1.0, 1.0]), [1000.0, 2000.0], "nobody takes turns with it");
    assert_eq!(gain(8, [1.0, 3.0]), [857.0, 1333.0]);
    let alone =
        super::place(&plan(4), &[gpu(1 << 24)], LayerChoice::Fitting, &Demand::Within(BOUNDS));
    assert_eq!(alone.unwrap().gain, None);
}

/// Further places take two thirds of what is left at most, and nothing of what there would be
/// without them.
#[test]
fn further_places_take_what_is_left_and_of_use() {
    let open = Bounds { context: 16_384, is_context_open: true, kept: 0, ..BOUNDS };
    let place = |seconds: fn(f64) -> Option<f64>, free: Option<u64>, bounds: Bounds| {
        let timing = move |_: &Plan, options: &ProgramOptions, step: Workload| {
            assert!(options.sequences >= step.sequences && options.width.outputs >= step.outputs);
            seconds(step.sequences as f64)
        };
        let sites = [Site { timing: Box::new(timing), free, ..gpu(free.unwrap_or(0)) }];
        super::place(&plan(4), &sites, LayerChoice::Fitting, &Demand::Within(bounds)).unwrap()
    };
    let further = Bounds { further: 248, ..open };
    let wide = Bounds { rows: 512, ..further };
    let shared = |places: f64| Some(100.0 + places / 100.0);
    let own = |places: f64| Some(10.0 + places);
    let much = 1 << 20;
    for (seconds, free, bounds, expected) in [
        (shared as fn(f64) -> Option<f64>, Some(much), wide, 256),
        (shared, Some(much), further, 64),
        (shared, Some(much), open, 8),
        (own, Some(much), wide, 128),
        (|_| None, Some(much), wide, 8),
        (shared, None, wide, 8),
    ] {
        let before = place(seconds, free, Bounds { further: 0, ..bounds });
        let found = place(seconds, free, bounds);
        assert_eq!((before.running, found.running), (8, expected), "{free:?} {bounds:?}");
        assert_eq!(found.options.context, before.options.context);
        // Blocks for 2048 positions, a slot, and a row with logits.
        let more = expected - 8;
        assert_eq!(found.options.blocks, before.options.blocks + 64 * more);
        assert_eq!(found.options.sequences, before.options.sequences + more);
        assert_eq!(found.options.width.outputs, expected);
    }
    // Two rings and twice 64 blocks: 532 bytes each, of which there have to be half as many
    // more.
    let before = place(shared, Some(much), Bounds { further: 0, ..wide });
    let taken: u64 = before.parts.iter().map(|part| part.memory.total()).sum();
    for (more, places) in [(0, 8), (531, 8), (2 * 532, 9), (21 * 532, 22)] {
        let found = place(shared, Some(taken + more), wide);
        assert_eq!((found.running, found.options.context), (places, 16_384), "{more}");
    }
    // What has no room for what was asked for has none for more.
    let little = place(shared, Some(needed(4, 3, 256)), wide);
    assert!(little.running < 8, "{}", little.running);
    let exact = Demand::Exactly(little.options);
    let sites = [gpu(much)];
    let exact = super::place(&plan(4), &sites, LayerChoice::Fitting, &exact).unwrap();
    assert_eq!(exact.options, little.options);
}

/// Tables take what nothing else would, on GPUs with memory of their own that can hold them.
#[test]
fn tables_are_held_in_what_all_else_leaves() {
    const TABLE: u64 = 4 * 100;
    let looking_up = |layers| {
        let mut plan = plan(layers);
        let place = WeightPlace::Device;
        let (name, kind, dtype) = ("table".to_owned(), WeightKind::Matrix, DType::F32);
        plan.weights.push(Weight { name, kind, rows: 100, columns: 1, dtype, place });
        let op = Op::Embed { table: WeightId(0), scale: 1.0, output: plan.inputs[0].buffer };
        plan.inputs.clear();
        plan.steps.insert(0, Step { label: String::new(), op });
        plan
    };
    let with_table = |can_hold: bool| {
        move |plan: &Plan, options: &ProgramOptions| {
            let all: u64 = plan.weights.iter().map(Weight::bytes).sum();
            let held = if can_hold { plan.bytes_at(WeightPlace::Held) } else { 0 };
            let own = forecast(plan, options);
            Memory { weights: own.weights + held, mapped: all - held, ..own }
        }
    };
    let place = |plan: &Plan, kind, free: Option<u64>, can_hold| {
        let demand = Demand::Within(Bounds { kept: 0, ..BOUNDS });
        let sites = [Site { forecast: Box::new(with_table(can_hold)), ..site(kind, free) }];
        super::place(plan, &sites, LayerChoice::Fitting, &demand).unwrap()
    };
    let own = MemoryKind::Own;
    let full = needed(4, 8, 8 * 16);
    for (kind, free, can_hold, is_held) in [
        (own, Some(full + 4 * TABLE), true, true),
        (own, Some(full + 4 * TABLE - 1), true, false),
        (own, Some(full + 4 * TABLE), false, false),
        (own, Some(full), true, false),
        // Fewer blocks leave nothing that a table could take.
        (own, Some(full - 1), true, false),
        (own, None, true, false),
        (MemoryKind::Shared, Some(1 << 30), true, false),
        (MemoryKind::Host, Some(1 << 30), true, false),
    ] {
        let found = place(&looking_up(4), kind, free, can_hold);
        let [part] = &found.parts[..] else { panic!("{found}") };
        let held = if is_held { TABLE } else { 0 };
        assert_eq!(part.plan.bytes_at(WeightPlace::Held), held, "{kind:?} {free:?} {can_hold}");
        assert_eq!(part.memory, with_table(can_hold)(&part.plan, &part.options));
        assert_eq!(found.options, place(&plan(4), kind, free, can_hold).options);
    }
}
