//! Compares forecasts with numbers computed by hand, and with a table from another implementation
//! of the same formulas.

use trine_weights::DType;

use super::*;
use crate::placing::placed::plans::{llama_8b, plan as gemma_27b, plan_with_experts};

/// Returns a machine with round rates, so that the expected times can be computed in the head.
pub(super) fn round() -> Machine {
    Machine {
        name: "round".to_owned(),
        gbps: 100.0,
        gbps_limit: 200.0,
        tops_skinny: 1.0,
        tops_wide: 4.0,
        tops_limit: 8.0,
        gap_us: 10.0,
        memory_bytes: None,
        has_own_memory: false,
        has_npu: false,
        sources: Vec::new(),
    }
}

/// Says that a machine runs the steps of a Plan one by one.
pub(super) fn stepwise() -> CountLaunches {
    Box::new(|plan, _, _| Ok(plan.steps.len()))
}

#[track_caller]
pub(super) fn close(found: f64, expected: f64, share: f64) {
    assert!((found / expected - 1.0).abs() <= share, "{found}, expected {expected}");
}

#[test]
fn a_pass_by_hand() {
    let work = Work {
        weight_bytes: 2_000_000_000,
        cache_bytes: 500_000_000,
        product_operations: 4_000_000_000,
        attention_operations: 1_000_000_000,
        rows: 1,
        launches: 100,
    };
    // 20 ms of weights (products would take 4), 5 ms of cache (attention 2), 100 x 10 us.
    let seconds = round().seconds(&work);
    close(seconds.total(), 0.026, 1e-12);
    assert_eq!(seconds.bound(), Bound::Memory);
    // Half of each, and no gaps.
    close(round().limit(&work).total(), 0.0125, 1e-12);

    // 64 rows: 400 ms of products at 1 Top/s; 65 rows: 100 ms at 4. Attention: twice 40 ms, at 4
    // Top/s twice 10.
    let many = Work {
        product_operations: 400_000_000_000,
        attention_operations: 40_000_000_000,
        rows: 64,
        ..work
    };
    let skinny = round().seconds(&many);
    close(skinny.total(), 0.4 + 0.08 + 0.001, 1e-12);
    assert_eq!(skinny.bound(), Bound::Arithmetic);
    close(round().seconds(&Work { rows: 65, ..many }).total(), 0.1 + 0.02 + 0.001, 1e-12);
    close(round().limit(&many).total(), 0.05 + 0.005, 1e-12);

    let small = Work { weight_bytes: 1000, cache_bytes: 0, product_operations: 0, ..work };
    let small = Work { attention_operations: 0, ..small };
    assert_eq!(round().seconds(&small).bound(), Bound::Gaps);
}

#[test]
fn tokens_of_a_verifying_pass() {
    let of = |tokens, acceptance| Drafts { tokens, acceptance }.tokens_per_pass();
    close(of(4, 0.7), (1.0 - 0.7_f64.powi(5)) / 0.3, 1e-12);
    close(of(4, 0.7), 2.7731, 1e-6);
    assert_eq!(of(0, 0.7), 1.0, "no drafts, no gain");
    assert_eq!(of(6, 1.0), 7.0, "certain drafts");
    assert_eq!(of(6, 0.0), 1.0, "hopeless drafts");
}

#[test]
fn work_is_the_plans_cost() {
    let plan = gemma_27b(DType::Q8_0);
    let workload = Workload::decode(8, 511, KvType::F16);
    let (work, cost) = (Work::of(&plan, workload, 7), plan.cost(workload));
    assert_eq!(work.weight_bytes, cost.weight_bytes);
    assert_eq!(work.cache_bytes, cost.cache_bytes);
    assert_eq!(work.product_operations + work.attention_operations, cost.operations);
    // Written scores and sums: 4 operations for each query head, element and position, in 62
    // layers.
    assert_eq!(work.attention_operations, 8 * 512 * 62 * 4 * 32 * 128);
    assert_eq!((work.rows, work.launches), (8, 7));
    // 25.60 G parameters of layers and 1.41 G of the head, at 8.5 bits: 28.70 GB, 54.0 G operations
    // for each token.
    close(work.weight_bytes as f64, 28.70e9, 2e-3);
    close(work.product_operations as f64 / 8.0, 54.0e9, 2e-3);
    // 2 x 16 heads x 128 x 2 bytes x 62 layers x 512 positions: 260 MB a sequence.
    close(work.cache_bytes as f64 / 8.0, 260e6, 5e-3);
}

/// Returns a machine with the rates for which the table below was computed.
fn rates(gbps: f64, skinny: f64, wide: f64, gap_us: f64) -> Machine {
    Machine { gbps, tops_skinny: skinny, tops_wide: wide, gap_us, ..round() }
}

/// Compares with forecasts that the same formulas give from parameter counts, for 27B with weights
/// of 14.63 GB (4 bits, groups of 128 with f16 scales, an 8-bit head) and of 27.43 GB (8 bits), on
/// four machines. The Plan has 8 steps in each layer where that table counts 9, and it leaves out
/// the last layer's unwanted rows: hence the tolerances.
#[test]
fn forecasts_agree_with_those_from_parameter_counts() {
    let plan = gemma_27b(DType::Q8_0);
    let drafts = Drafts { tokens: 4, acceptance: 0.7 };
    let passes = |machine: &Machine, bytes: u64, batch: usize, tokens: usize, context: usize| {
        let outputs = batch * tokens;
        let workload =
            Workload { sequences: batch, tokens, context: context - 1, outputs, kv: KvType::F16 };
        let launches = plan.steps.len();
        let work = Work { weight_bytes: bytes, ..Work::of(&plan, workload, launches) };
        batch as f64 / machine.seconds(&work).total()
    };
    let (int4, int8) = (14_630_000_000, 27_430_000_000);
    let radeon = rates(89.6 * 0.82, 5.0, 7.0, 5.0);
    let strix = rates(256.0 * 0.84, 18.0, 26.0, 4.0);
    let geforce = rates(1008.0 * 0.91, 80.0, 130.0, 2.0);
    let hopper = rates(4300.0 * 0.92, 250.0, 400.0, 2.0);
    for (machine, bytes, batch, context, expected) in [
        (&radeon, int4, 1, 512, 4.87),
        (&radeon, int4, 1, 8192, 4.6),
        (&radeon, int4, 8, 512, 34.7),
        (&radeon, int4, 8, 8192, 24.8),
        (&radeon, int4, 32, 512, 69.3),
        (&radeon, int8, 1, 512, 2.63),
        (&radeon, int8, 8, 8192, 16.1),
        (&radeon, int8, 32, 512, 65.4),
        (&strix, int4, 1, 512, 13.99),
        (&strix, int8, 32, 512, 190.0),
        (&geforce, int4, 1, 512, 57.6),
        (&geforce, int4, 8, 8192, 299.0),
        (&hopper, int4, 1, 512, 204.6),
        (&hopper, int8, 1, 512, 123.1),
        (&hopper, int4, 8, 512, 1496.0),
    ] {
        close(passes(machine, bytes, batch, 1, context), expected, 0.03);
    }
    // With drafts that cost nothing.
    for (machine, bytes, batch, expected) in
        [(&radeon, int4, 1, 13.5), (&radeon, int8, 1, 7.3), (&geforce, int4, 1, 160.0)]
    {
        let verifies = passes(machine, bytes, batch, drafts.tokens + 1, 512);
        close(verifies * drafts.tokens_per_pass(), expected, 0.03);
    }
    // Prompts are bound by arithmetic, whatever the format.
    for (machine, tokens, expected) in [
        (&radeon, 512, 135.0),
        (&radeon, 8192, 129.0),
        (&strix, 512, 503.0),
        (&geforce, 8192, 2400.0),
    ] {
        let launches = stepwise();
        let passes =
            Passes { plan: &plan, machine, launches: &launches, kv: KvType::F16, piece: PREFILL };
        let found = prompt(passes, tokens).unwrap();
        close(found.tokens_per_second, expected, 0.04);
        assert_eq!(found.bound, Bound::Arithmetic);
        close(found.first_token_seconds, tokens as f64 / found.tokens_per_second, 1e-9);
    }
}

#[test]
fn the_whole_forecast_of_generation() {
    let plan = gemma_27b(DType::Q4_0);
    let machine = preset("780m").unwrap().machine();
    let drafts = Drafts { tokens: 4, acceptance: 0.7 };
    let launches = stepwise();
    let f16 = Passes {
        plan: &plan,
        machine: &machine,
        launches: &launches,
        kv: KvType::F16,
        piece: PREFILL,
    };
    let one = generation(f16, (drafts, Guesser::Text), 1, 512).unwrap();
    // 27.0 G parameters at 4.5 bits are 15.2 GB: 208 ms, 3.6 ms of cache, 2.5 ms of gaps.
    close(one.tokens_per_second, 1.0 / 0.2142, 0.01);
    close(one.limit, 89.6 / (15.19 + 0.26), 0.01);
    assert_eq!((one.batch, one.context, one.bound), (1, 512, Bound::Memory));
    close(one.with_drafts / one.tokens_per_second, 2.773, 0.02);
    let many = generation(f16, (drafts, Guesser::Text), 32, 512).unwrap();
    assert_eq!(many.bound, Bound::Arithmetic);
    assert!(many.tokens_per_second > 10.0 * one.tokens_per_second);
    let small_cache = Passes { kv: KvType::Int8, ..f16 };
    let small_cache = generation(small_cache, (drafts, Guesser::Text), 32, 8192).unwrap();
    let large_cache = generation(f16, (drafts, Guesser::Text), 32, 8192).unwrap();
    assert!(small_cache.tokens_per_second > 1.2 * large_cache.tokens_per_second);
}

/// A gap is counted for each launch that a machine says it has, not for each step of the Plan.
#[test]
fn gaps_are_between_launches() {
    let plan = gemma_27b(DType::Q4_0);
    let machine = Machine { gap_us: 1e8, ..round() };
    let launches: CountLaunches = Box::new(|_, options, step| {
        assert!(options.width.tokens >= step.sequences * step.tokens);
        assert!(options.width.outputs >= step.outputs && options.context > step.context);
        Ok(10 + step.tokens)
    });
    let passes = Passes {
        plan: &plan,
        machine: &machine,
        launches: &launches,
        kv: KvType::F16,
        piece: PREFILL,
    };
    let drafts = Drafts { tokens: 4, acceptance: 1.0 };
    let one = generation(passes, (drafts, Guesser::Text), 2, 512).unwrap();
    // 1100 seconds of gaps, and 1500 for five rows; the rest takes less than one.
    close(one.tokens_per_second, 2.0 / 1100.0, 1e-3);
    close(one.with_drafts, 2.0 * 5.0 / 1500.0, 1e-3);
    assert_eq!(one.bound, Bound::Gaps);
    // A draft model as large makes four guesses in a pass each, as far as its context goes.
    let model = |most| generation(passes, (drafts, Guesser::Model(passes, most)), 2, 512).unwrap();
    close(model(516).with_drafts, 2.0 * 5.0 / (1500.0 + 4.0 * 1100.0), 1e-3);
    assert_eq!(model(515).with_drafts, model(515).tokens_per_second);
    // Two pieces of 512 tokens and one of 100.
    let prompt = prompt(passes, 1124).unwrap();
    close(prompt.first_token_seconds, 1e2 * (2.0 * 522.0 + 110.0), 1e-3);
}

/// Compares with what others publish of llama.cpp on a Radeon 780M (Vulkan, files in Q4_K_M): how
/// many times as fast the forecast is. Such a file has 5 bits a weight on average of the 8B, 5.5 of
/// 26B-A4B.
///
/// - 8B: Llama 3.1 with LPDDR5-6400 (102.4 GB/s, of which a 780M's share is reached here),
///   normiebench issue 10. It reads 80 GB/s, 78 % of what the memory gives, and computes prompts at
///   24 % of the peak, where the forecast assumes 42 %.
/// - 26B-A4B: llama.cpp pull request 22462, with AMDVLK, whose prompts are 3.7 to 13 times as slow
///   as RADV's on a Radeon 8060S (kyuz0, amd-strix-halo-toolboxes). Others have 16.5 (open-xdna,
///   Ollama) and 19.5 tokens/s (stochasticsandbox) with DDR5-5600. It reads 55 GB/s of experts,
///   where a dense model has 73, and computes prompts at 1.3 Top/s; a Radeon 680M without matrix
///   units reads 313 tokens/s (gemmaclaw pull request 350).
#[test]
fn forecasts_beside_published_speeds() {
    let preset = preset("780m").unwrap();
    let machine = |limit: f64| {
        let rates = preset.machine();
        Machine { gbps: limit * rates.gbps / rates.gbps_limit, gbps_limit: limit, ..rates }
    };
    let (dense, experts) = (llama_8b(DType::Q4_1), plan_with_experts(30, DType::Q5_0));
    for (plan, limit, context, generated, read, times) in [
        (&dense, 102.4, 512, 16.3, 253.6, [1.06, 1.99]),
        (&experts, 89.6, 512, 20.6, 171.0, [1.24, 6.5]),
        (&experts, 89.6, 8192, 16.7, 76.0, [1.41, 11.7]),
    ] {
        let (machine, gpu) = (machine(limit), preset.gpu());
        let launches: CountLaunches =
            Box::new(move |plan, options, step| gpu.launches(plan, options, step));
        let passes = Passes {
            plan,
            machine: &machine,
            launches: &launches,
            kv: KvType::F16,
            piece: PREFILL,
        };
        let none = Drafts { tokens: 0, acceptance: 0.0 };
        let one = generation(passes, (none, Guesser::Text), 1, context).unwrap();
        close(one.tokens_per_second / generated, times[0], 0.05);
        close(prompt(passes, context).unwrap().tokens_per_second / read, times[1], 0.05);
        assert_eq!(one.bound, Bound::Memory);
    }
}

#[test]
fn presets_are_sound_and_found_by_their_names() {
    for preset_ in &PRESETS {
        let machine = preset(preset_.key).unwrap().machine();
        assert!(machine.gbps <= machine.gbps_limit, "{}", machine.name);
        assert!(
            machine.tops_skinny <= machine.tops_wide && machine.tops_wide <= machine.tops_limit
        );
        assert!(machine.gap_us > 0.0);
        // Rates of matrix kernels that were never measured must be marked as assumed.
        assert!(machine.sources.iter().any(|basis| basis.kind == BasisKind::Assumed));
    }
    for (typed, name) in [
        ("Radeon 780M", "Radeon 780M, DDR5-5600"),
        ("Strix Halo", "Strix Halo (Radeon 8060S)"),
        ("RTX 4090", "GeForce RTX 4090"),
        ("NVIDIA H200", "NVIDIA H200"),
        ("890M", "Radeon 890M, LPDDR5X-7500"),
    ] {
        assert_eq!(preset(typed).unwrap().machine().name, name);
    }
    assert!(preset("").is_none() && preset("900m").is_none());
}
