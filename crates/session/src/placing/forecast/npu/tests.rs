//! Compares splits with numbers computed by hand, and the kernels' traffic with proven streams.

use trine_model::KvType;
use trine_npu::generate;
use trine_npu::registers::{Direction, Register, register};
use trine_npu::tile::Address;
use trine_npu::txn::Action;
use trine_npu::verify::{Scope, Verifier};

use super::super::tests::{close, round, stepwise};
use super::super::{PREFILL, PRESETS, preset, prompt};
use super::*;
use crate::placing::placed::plans::plan as gemma_27b;
use trine_weights::DType;

/// A product of 256 rows with 4096 x 4096 weights of 4 bits: 8.39 MB, 8.59 G operations.
const PRODUCT: Product = Product {
    rows: 256,
    depth: 4096,
    columns: 4096,
    tiles: 2,
    weight_bytes: 8_388_608.0,
    operations: 8_589_934_592.0,
};

fn kernel(name: &str) -> &'static Kernel {
    KERNELS.iter().find(|kernel| kernel.name == name).unwrap()
}

/// On a machine of 100 GB/s and 1 Top/s, where the GPU takes 8590 us.
#[test]
fn a_product_by_hand() {
    let split = |name, tops, conditions| {
        let Split { seconds, tiles } = PRODUCT.split(kernel(name), &round(), tops, conditions);
        (seconds * 1e6, tiles)
    };
    // One tile of columns is two commands along the depth of 1310.72 + 37 us: 2695 us. The GPU's
    // half takes longer, and two tiles would take 5391 us.
    assert_eq!(split("bf16", 1.0, BEST).1, 1);
    close(split("bf16", 1.0, BEST).0, 8589.934592 / 2.0, 1e-9);
    // The GPU's half at 19.3 / 25.9 of its speed: 5764 us. The NPU takes 2 x (2147.405 + 130) us
    // and, in front of that, 231 us of the host: 4786 us.
    assert_eq!(split("bf16", 1.0, WORST).1, 1);
    close(split("bf16", 1.0, WORST).0, 8589.934592 / 2.0 * 25.9 / 19.3, 1e-9);
    // 4 blocks of rows x 2 runs x 2 blocks of depth are 16 commands a tile of 87.04 + 37 us: both
    // tiles take 3969 us, less than the GPU with a half.
    assert_eq!(split("int8, twice", 1.0, BEST).1, 2);
    close(split("int8, twice", 1.0, BEST).0, 32.0 * (87.04 + 37.0), 1e-9);
    // Four commands at 3.14 Top/s.
    assert_eq!(split("best bf16", 1.0, BEST).1, 2);
    close(split("best bf16", 1.0, BEST).0, 8589.934592 / BEST_BF16_TOPS.highest, 1e-9);
    // A GPU that takes 2147 us is done before one tile is.
    assert_eq!(split("bf16", 4.0, BEST), (8589.934592 / 4.0, 0));
}

#[test]
fn the_host_and_the_memory_by_hand() {
    // 100 GB/s as above, and one hundredth of that, where a GPU of any speed takes 8389 us.
    let seconds = |name, gbps, conditions, tiles| {
        let alone = PRODUCT.weight_bytes / (gbps * 1e9);
        PRODUCT.seconds(kernel(name), tiles, (alone, gbps), conditions) * 1e6
    };
    // 8.39 MB of weights, 16.78 written as bf16, 16.78 read, 16.78 of activations, 2.10 of results,
    // twice.
    close(seconds("bf16", 1.0, BEST, 1), 62_914.56, 1e-9);
    // 8.39 MB, 16.78 written as int8, 16 x 8.39 read, 32 x 0.13 of activations, 16.78 of results,
    // twice.
    close(seconds("int8, twice", 1.0, BEST, 2), 197_132.288, 1e-9);
    // Half of the weights, 16.78 MB written as bf16, 2.10 of results: 23.07 MB at 100 GB/s.
    close(
        seconds("bf16", 100.0, WORST, 1),
        2.0 * (8_388_608.0 / (3.8 * 1028.0) + 130.0) + 230.6867,
        1e-6,
    );
}

#[test]
fn wide_commands_are_used_where_tiles_suffice() {
    let int8 = kernel("int8, twice");
    assert_eq!(int8.commands(11), (2.0, 3.0));
    assert_eq!(kernel("bf16").commands(11), (0.0, 11.0));
    // 64 x 2048 x 8192: four times the weights, once the activations and the dispatch.
    close(int8.command_seconds(4, BEST) * 1e6, 4.0 * 81.92 + 5.12 + 37.0, 1e-9);
    // The firmware reads the stream beside the data, or before.
    let stream = (20_160.0 + 19_691.0 + 4_924.5 + 47_700.0 + 2_780.0) / 1028.0;
    close(int8.command_seconds(1, WORST) * 1e6, 557_056.0 / (3.8 * 1028.0) + stream + 130.0, 1e-9);
    // Half a tile's bytes flow in less time than the firmware takes.
    let short = Kernel {
        speed: Speed::Channel {
            tile: INT8_BYTES / 2.0,
            activations: 0.0,
            stream: INT8_STREAM_CYCLES,
        },
        ..KERNELS[0]
    };
    let stream = (20_160.0 + 19_691.0 + 4_924.5 + 43_990.0) / 1600.0;
    close(short.command_seconds(1, BEST) * 1e6, stream + 37.0, 1e-9);
}

/// The streams of the int8 kernel are proven: their traffic is what the forecast counts.
#[test]
fn the_int8_kernel_moves_what_its_streams_move() {
    let int8 = kernel("int8, twice");
    for tiles in [1, 4] {
        let shape = generate::Kernel::Int8 { m: 64, k: 2048, n: 2048 * tiles };
        let contract = generate::contract(shape).unwrap();
        let stream = generate::stream(shape).unwrap();
        let proof = Verifier::new(contract).unwrap().verify(&stream).unwrap();
        assert_eq!(proof.scope, Scope::Whole);
        let actions = || stream.operations.iter().map(|operation| &operation.action);
        let is_queue = |address: &Address| {
            matches!(register(address.tile(), address.offset()), Register::Queue(_))
        };
        let writes = |to_queues| {
            let is = |action: &&Action| {
                matches!(action,
                    Action::Write { address, .. } if is_queue(address) == to_queues)
            };
            actions().filter(is).count()
        };
        // What the cycles of INT8_STREAM_CYCLES are counted for.
        assert_eq!(actions().filter(|is| matches!(is, Action::MaskWrite { .. })).count(), 96);
        assert_eq!(actions().filter(|is| matches!(is, Action::BlockWrite { .. })).count(), 97);
        assert_eq!((writes(true), writes(false)), (53, 49));
        let sum = |argument| -> u64 {
            let of = proof.traffic.iter().filter(|traffic| traffic.argument == argument);
            of.map(|traffic| traffic.bytes).sum()
        };
        // A has 200 bytes of the kernel's parameters after it.
        let parameters = 200;
        assert_eq!(sum(0), u64::from(tiles) * int8.result_bytes as u64);
        assert_eq!(sum(1), (int8.activation_bytes + parameters) as u64);
        assert_eq!(sum(2), u64::from(tiles) * (TILE * TILE * int8.weight_bytes) as u64);
        let mut channels = std::collections::HashMap::<_, u64>::new();
        for traffic in &proof.traffic {
            if traffic.channel.direction == Direction::FromMemory {
                *channels.entry((traffic.column, traffic.channel.index)).or_default() +=
                    traffic.bytes;
            }
        }
        assert_eq!(channels.len(), 8);
        let busiest = *channels.values().max().unwrap() as f64;
        let counted = f64::from(tiles) * INT8_BYTES + INT8_ROW_BYTES;
        assert_eq!(busiest, counted + parameters as f64);
    }
}

#[test]
fn the_figures_are_what_others_published() {
    let span = |at: usize| (FIGURES[at].span.lowest, FIGURES[at].span.highest);
    close(span(0).0, 3.9, 2e-3);
    close(span(0).1, 6.4, 1e-9);
    // 88,766 cycles at 1.6 GHz, and 95,256 at 1.028.
    close(span(1).0, 55.5, 1e-3);
    close(span(1).1, 92.7, 1e-3);
    assert_eq!(span(2), (37.0, 130.0));
    // At 1.6 GHz 1.31 ms, which is 1.64 Top/s; 0.087 ms, which is 6.2 Top/s.
    close(span(3).0, 1.31, 1e-3);
    close(span(4).0, 0.087, 1e-3);
    assert_eq!(CHANNELS_GBPS, 51.2);
    for figure in &FIGURES {
        assert!(figure.span.lowest < figure.span.highest, "{}", figure.what);
    }
}

/// 27 G weights at 4.5 bits on a 780M: products of 512 rows take nearly all of the time.
#[test]
fn a_whole_prompt() {
    let plan = gemma_27b(DType::Q4_0);
    let machine = preset("phoenix").unwrap().machine();
    let launches = stepwise();
    let passes = Passes {
        plan: &plan,
        machine: &machine,
        launches: &launches,
        kv: KvType::F16,
        piece: PREFILL,
    };
    let gpu = prompt(passes, 512).unwrap();
    let forecasts = npu_prompts(passes, 512).unwrap();
    assert_eq!(forecasts.len(), KERNELS.len());
    for forecast in &forecasts {
        let NpuPrompt { tokens_per_second, gain, npu_share, .. } = *forecast;
        assert!(gain.lowest >= 0.0 && gain.lowest < gain.highest, "{forecast:?}");
        assert!(npu_share.lowest < npu_share.highest && npu_share.highest < 0.5, "{forecast:?}");
        close(tokens_per_second.highest, gpu.tokens_per_second * (1.0 + gain.highest), 1e-9);
        // If the NPU has a share s of all products, the GPU needs 1 - s of its time.
        assert!(gain.highest <= 1.0 / (1.0 - npu_share.highest) - 1.0 + 1e-9, "{forecast:?}");
    }
    // A layer takes the GPU 60.4 ms: 6.44 for queries, keys and values, 3.22 for attention's
    // output, 33.8 for gate and up, 16.9 for down. A tile of columns of the first and the third
    // takes the bf16 kernel 2 x 3 x 1.348 = 8.1 ms, of down 2 x 11 x 1.348 = 29.7. So only the
    // third gains: 3 of 21 tiles, 29.0 ms.
    close(forecasts[0].gain.highest, 60.4 / (60.4 - 33.8 + 29.0) - 1.0, 0.05);
    close(forecasts[0].npu_share.highest, 3.0 / 21.0 * 33.8 / 60.4, 0.05);
    // int8 takes 8 x 2 x 3 x 0.124 = 5.95 ms, and 17.75 for four: 5 of 21 tiles, 25.8 ms, and 1 of
    // 4, 5.95 ms.
    close(forecasts[1].gain.highest, 60.4 / (60.4 - 33.8 + 25.8 - 6.44 + 5.95) - 1.0, 0.05);
    // At 3.14 Top/s 4.10 ms: 24.6 and 4.83 ms; 2.74 of 3.22 and 15.05 of 16.9 with two and 11
    // blocks along the depth.
    close(forecasts[2].gain.highest, 60.4 / (24.6 + 4.83 + 2.74 + 15.05) - 1.0, 0.05);
}

/// A token of one sequence is bound by memory, of which expanded weights take more.
#[test]
fn generation_gains_nothing() {
    let machine = preset("780m").unwrap().machine();
    for dtype in [DType::Q4_0, DType::Q8_0, DType::BF16] {
        let plan = gemma_27b(dtype);
        for (kernel, conditions) in
            KERNELS.iter().flat_map(|kernel| [(kernel, WORST), (kernel, BEST)])
        {
            let workload = Workload::decode(1, 511, KvType::F16);
            let splits = Splits::of(&plan, workload, kernel, &machine, conditions);
            assert_eq!((splits.npu_operations, splits.seconds), (0.0, splits.alone));
        }
    }
    let plan = gemma_27b(DType::Q4_0);
    let launches = stepwise();
    let gain = |machine: &Machine| {
        let passes =
            Passes { plan: &plan, machine, launches: &launches, kv: KvType::F16, piece: PREFILL };
        npu_generation(passes, 512).unwrap()
    };
    assert_eq!(gain(&machine), Span { lowest: 0.0, highest: 0.0 });
    // A GPU that is bound by arithmetic even by one row leaves something to do.
    let slow = Machine { tops_skinny: 0.02, ..machine };
    assert!(gain(&slow).highest > 0.1, "{:?}", gain(&slow));
}

#[test]
fn one_machine_has_an_npu() {
    let with: Vec<&str> =
        PRESETS.iter().filter(|preset| preset.machine().has_npu).map(|preset| preset.key).collect();
    assert_eq!(with, ["780m"]);
    assert_eq!(preset("Hawk Point").unwrap().key, "780m");
}
