use std::collections::BTreeSet;

use super::table::TOWER_MEGABYTES;
use super::*;
use crate::name::Selection;

fn repository(name: &str) -> String {
    match find(name) {
        Some(Known::Model(model)) => model.model().to_string(),
        other => panic!("{name}: {other:?}"),
    }
}

#[test]
fn names_of_ollama_mean_what_they_mean_there() {
    for (name, model) in [
        ("gemma3", "ggml-org/gemma-3-4b-it-GGUF:Q4_K_M"),
        ("gemma3:latest", "ggml-org/gemma-3-4b-it-GGUF:Q4_K_M"),
        ("Gemma3:4B", "ggml-org/gemma-3-4b-it-GGUF:Q4_K_M"),
        ("library/gemma3:4b", "ggml-org/gemma-3-4b-it-GGUF:Q4_K_M"),
        ("gemma3:270m", "ggml-org/gemma-3-270m-it-GGUF:Q8_0"),
        ("gemma3:1b-it-qat", "ggml-org/gemma-3-1b-it-qat-GGUF:Q4_0"),
        ("gemma3:4b-it-q8_0", "ggml-org/gemma-3-4b-it-GGUF:Q8_0"),
        ("gemma3:12b-it-q4_K_M", "ggml-org/gemma-3-12b-it-GGUF:Q4_K_M"),
        ("gemma3:27b-it-fp16", "ggml-org/gemma-3-27b-it-GGUF:f16"),
        ("gemma3n", "unsloth/gemma-3n-E4B-it-GGUF:Q4_K_M"),
        ("gemma3n:e2b", "unsloth/gemma-3n-E2B-it-GGUF:Q4_K_M"),
        ("gemma3n:e2b-it-q8_0", "ggml-org/gemma-3n-E2B-it-GGUF:Q8_0"),
        ("gemma4", "google/gemma-4-E4B-it-qat-q4_0-gguf:Q4_0"),
        ("gemma4:26B-A4B", "google/gemma-4-26B-A4B-it-qat-q4_0-gguf:Q4_0"),
        ("gemma4:26b", "google/gemma-4-26B-A4B-it-qat-q4_0-gguf:Q4_0"),
        ("gemma4:31b-it-qat", "google/gemma-4-31B-it-qat-q4_0-gguf:Q4_0"),
        ("gemma4:31b-it-bf16", "ggml-org/gemma-4-31B-it-GGUF:BF16"),
        ("medgemma:27b", "lmstudio-community/medgemma-27b-text-it-GGUF:Q4_K_M"),
        ("medgemma1.5:4b-it-q8_0", "unsloth/medgemma-1.5-4b-it-GGUF:Q8_0"),
    ] {
        assert_eq!(repository(name), model, "{name}");
    }
    for unknown in ["gemma3:5b", "philosophy", "gemma3:", ":4b", "", "gemma-3-4b", "a/gemma3"] {
        assert_eq!(find(unknown), None, "{unknown}");
    }
}

/// Which models read images is what their makers say, and what trine has a tower for: model cards
/// of Gemma 3 (4B and larger), Gemma 4 and MedGemma.
#[test]
fn models_that_read_images_are_known() {
    let seeing = ["gemma3:4b", "gemma3:12b-it-qat", "gemma3:27b", "gemma4:e2b", "gemma4:26b"];
    for name in seeing.into_iter().chain(["gemma4:31b-it-q8_0", "medgemma", "medgemma1.5"]) {
        assert!(matches!(find(name), Some(Known::Model(model)) if model.sees), "{name}");
    }
    for name in ["gemma3:270m", "gemma3:1b", "gemma3n:e4b", "functiongemma", "translategemma"] {
        assert!(matches!(find(name), Some(Known::Model(model)) if !model.sees), "{name}");
    }
}

#[test]
fn names_of_the_store_mean_models() {
    for (name, short) in [
        ("ggml-org/gemma-3-4b-it-GGUF:Q4_K_M", Some("gemma3:4b")),
        ("ggml-org/gemma-3-4b-it-gguf:q8_0", Some("gemma3:4b-it-q8_0")),
        ("ggml-org/gemma-3-4b-it-GGUF", None),
        ("owner/gemma-3-4b-it-GGUF:Q4_K_M", None),
    ] {
        let found = of(&ModelName::parse(name).unwrap()).map(CatalogModel::name);
        assert_eq!(found.as_deref(), short, "{name}");
    }
}

/// What is said of a name that does not run.
fn reason(name: &str) -> String {
    match find(name) {
        Some(Known::Refused(refused)) => refused.reason(usual()),
        other => panic!("{name}: {other:?}"),
    }
}

/// Names of the public catalogues: Ollama's library by its page, and what LM Studio and Hugging
/// Face list first.
#[test]
fn names_of_the_public_catalogues_are_known() {
    const NAMES: &str = "llama3.2 llama3.1:8b llama3 llama2 llama2-uncensored llama4 \
        llama3-gradient llama3-chatqa codellama tinyllama llama-guard3 qwen qwen2 qwen2.5 \
        qwen2.5-coder:7b qwen2.5vl qwen3 qwen3:0.6b qwen3-coder:30b qwen3-vl qwen3-embedding \
        qwen3-next qwen2-math qwq codeqwen marco-o1 mistral mistral-nemo mistral-small \
        mistral-large mistral-small3.2 mistral-openorca mixtral:8x7b ministral-3 magistral \
        devstral codestral mathstral mistrallite phi phi3 phi3.5 phi4 phi4-mini phi4-reasoning \
        phind-codellama deepseek-r1:8b deepseek-v3 deepseek-v2 deepseek-coder deepseek-coder-v2 \
        deepseek-llm deepseek-ocr deepcoder deepscaler gpt-oss gpt-oss:20b gpt-oss-safeguard \
        granite3.3 granite4 granite-code granite3-moe granite-embedding smollm smollm2 falcon \
        falcon2 falcon3 yi yi-coder command-r command-r-plus command-r7b command-a aya aya-expanse \
        exaone3.5 exaone-deep solar solar-pro glm4 glm-4.6 glm-4.7-flash codegeex4 kimi-k2 \
        kimi-k2-thinking minimax-m2 nemotron nemotron-mini nemotron-3-nano olmo2 olmo-3 olmo-3.1 \
        tulu3 lfm2 lfm2.5-thinking internlm2 dbrx cogito cogito-2.1 athene-v2 reflection sailor2 \
        nous-hermes nous-hermes2 nous-hermes2-mixtral hermes3 openhermes vicuna wizard-vicuna \
        wizard-vicuna-uncensored wizardlm wizardlm2 wizardlm-uncensored wizardcoder wizard-math \
        orca2 orca-mini open-orca-platypus2 stable-beluga xwinlm neural-chat starling-lm zephyr \
        stablelm2 stable-code stablelm-zephyr starcoder starcoder2 openthinker openchat opencoder \
        dolphin3 dolphin-mixtral dolphin-mistral dolphin-llama3 dolphin-phi dolphincoder \
        megadolphin tinydolphin samantha-mistral meditron medllama2 bespoke-minicheck reader-lm \
        nuextract duckdb-nsql sqlcoder magicoder everythinglm notux notus goliath yarn-llama2 \
        yarn-mistral firefunction-v2 llava llava-llama3 llava-phi3 bakllava moondream minicpm-v \
        rnj-1 alfred nexusraven codebooga codeup r1-1776 smallthinker llama-pro nomic-embed-text \
        nomic-embed-text-v2-moe mxbai-embed-large all-minilm bge-m3 bge-large \
        snowflake-arctic-embed snowflake-arctic-embed2 paraphrase-multilingual whisper gemma \
        gemma:7b gemma2 gemma2:9b codegemma shieldgemma embeddinggemma-2 t5gemma paligemma \
        vaultgemma translategemma:27b diffusiongemma stable-diffusion claude gpt-4o gemini";
    for name in NAMES.split_whitespace() {
        let said = reason(name);
        assert!(said.contains("trine") || said.contains("Gemma"), "{name}: {said}");
        assert!(!said.contains("take a gemma") && said.len() < 240, "{name}: {said}");
    }
    for ours in [
        "gemma4",
        "gemma3n",
        "embeddinggemma:300m",
        "functiongemma",
        "medgemma",
        "medgemma1.5:4b",
        "translategemma:4b",
    ] {
        assert!(matches!(find(ours), Some(Known::Model(_))), "{ours}");
    }
}

#[test]
fn the_nearest_size_is_offered() {
    for (name, model) in [
        ("llama3.2:1b", "gemma3:1b"),
        ("llama3.2:3b", "gemma4:e2b"),
        ("qwen3:4b", "gemma4:e2b"),
        ("deepseek-r1:8b", "gemma4:e4b"),
        ("qwen2.5-coder:14b", "gemma4:12b"),
        ("gpt-oss:20b", "gemma4:26b"),
        ("mixtral:8x7b", "gemma4:31b"),
        ("deepseek-r1:70b", "gemma4:31b"),
        ("smollm2:135m", "gemma3:270m"),
        ("gemma2:9b", "gemma4:12b"),
    ] {
        let said = reason(name);
        assert!(
            said.contains(&format!("About the same size: `trine run {model}` (")),
            "{name}: {said}"
        );
    }
    assert!(reason("llama3.2").contains("not Llama. Take: `trine run gemma4:e4b` (6.1 GB)"));
    assert!(reason("bge-m3").contains("`trine serve embeddinggemma` makes embeddings"));
}

/// The tags of Ollama's page of Gemma 4 whose files are no GGUF, and those of its servers.
#[test]
fn forms_of_other_programs_name_the_same_model_here() {
    for (name, model) in [
        ("gemma4:e2b-mlx-bf16", "gemma4:e2b"),
        ("gemma4:e4b-nvfp4", "gemma4:e4b"),
        ("gemma4:12b-nvfp4", "gemma4:12b"),
        ("gemma4:26b-mxfp8", "gemma4:26b"),
        ("gemma4:31b-coding-mtp-bf16", "gemma4:31b-it-bf16"),
        ("gemma4:31b-cloud", "gemma4:31b"),
        ("gemma3:27b-cloud", "gemma3:27b"),
    ] {
        let said = reason(name);
        assert!(said.contains(&format!("The same model: `trine run {model}` (")), "{name}: {said}");
    }
    for unknown in ["gemma4:7b-cloud", "gemma4:e4b-clouds", "gemma-4-e4b-nvfp4"] {
        assert_eq!(find(unknown), None, "{unknown}");
    }
}

#[test]
fn the_table_is_consistent() {
    let mut names = BTreeSet::new();
    for model in models() {
        assert!(matches!(model.model().selection(), Selection::Quant(_)), "{model:?}");
        for name in model.names() {
            assert!(names.insert(name.to_lowercase()), "{name} is there twice");
            assert_eq!(find(&name), Some(Known::Model(model)), "{name}");
        }
    }
}

/// Sizes follow from the number of parameters and the bits of a format.
#[test]
fn sizes_are_those_of_parameters_and_bits() {
    let dense = ["gemma3", "gemma3n"];
    for model in models().iter().filter(|model| dense.contains(&model.family)) {
        let bytes = model.bytes;
        let parameters = match model.tags[0].split('-').next() {
            Some("270m") => 268e6,
            Some("1b") => 1.0e9,
            Some("4b") => 3.88e9,
            Some("12b") => 11.77e9,
            Some("27b") => 27.01e9,
            Some("e2b") => 4.46e9,
            Some("e4b") => 6.87e9,
            other => panic!("{other:?}"),
        };
        // Small models have large tables of embeddings, which stay in 6 or 8 bits.
        let bits = match model.quant {
            "f16" => 15.9..=16.2,
            "Q8_0" => 8.45..=8.8,
            "Q4_0" => 4.5..=7.3,
            "Q4_K_M" => 4.8..=6.6,
            other => panic!("{other}"),
        };
        let has_tower = ["4b", "12b", "27b"].iter().any(|size| model.tags[0].starts_with(size));
        let own = bytes - u64::from(has_tower) * TOWER_MEGABYTES * 1_000_000;
        let found = own as f64 * 8.0 / parameters;
        assert!(bits.contains(&found), "{}: {found:.2} bits", model.name());
    }
}

/// The files of Gemma 4 and their towers, in bytes, as public lists pin them.
#[test]
fn sizes_of_gemma_4_are_those_of_its_files() {
    for (name, bytes) in [
        ("gemma4:e2b", 3_349_516_256_u64 + 986_833_664),
        ("gemma4:e4b", 5_154_941_280 + 991_552_256),
        ("gemma4:12b", 6_975_879_296 + 175_115_616),
        ("gemma4:26b", 14_439_363_584 + 1_194_828_160),
        ("gemma4:31b", 17_651_001_568 + 1_200_000_000),
        ("gemma4:e2b-it-q8_0", 4_967_497_152 + 557_368_064),
        ("functiongemma", 291_558_624),
    ] {
        let Some(Known::Model(model)) = find(name) else { panic!("{name}") };
        let error = model.bytes.abs_diff(bytes) as f64 / bytes as f64;
        assert!(error < 0.005, "{name}: {}", model.bytes);
    }
}

#[test]
fn what_a_model_takes_is_forecast_without_its_file() {
    let demand = |name: &str, context| match find(name) {
        Some(Known::Model(model)) => model.demand(context),
        other => panic!("{other:?}"),
    };
    for model in models() {
        let demand = model.demand(8192);
        assert!(demand.memory_bytes > model.bytes, "{}", model.name());
        assert!(demand.weight_bytes < model.bytes, "{}: {demand:?}", model.name());
    }
    // A token of 26B-A4B reads a seventh of its file, one of 31B nearly all.
    assert!(demand("gemma4:26b", 8192).weight_bytes < 14_440_000_000 / 5);
    assert!(demand("gemma4:31b", 8192).weight_bytes > 16_000_000_000);
    // 800 MiB of local layers, and 80 KiB for each token.
    let grown = demand("gemma4:31b", 8192).memory_bytes - demand("gemma4:31b", 4096).memory_bytes;
    assert_eq!(grown, 4096 * (80 << 10));
    let names: Vec<String> = offered().into_iter().map(CatalogModel::name).collect();
    let sizes = ["3:270m", "3:1b", "4:e2b", "4:e4b", "4:12b", "4:26b", "4:31b"];
    assert_eq!(names, sizes.map(|size| format!("gemma{size}")));
    assert_eq!(usual().name(), "gemma4:e4b");
}

#[test]
fn search_takes_words_in_any_order() {
    let names =
        |text: &str| -> Vec<String> { search(text).into_iter().map(CatalogModel::name).collect() };
    assert_eq!(names("").len(), models().len());
    assert_eq!(names("QAT gemma-3-4b"), ["gemma3:4b-it-qat"]);
    assert_eq!(names("gemma-3-1b q8"), ["gemma3:1b-it-q8_0"]);
    assert!(names("llama").is_empty());
    // A4B is no 4B, and the end of a word is none.
    assert_eq!(names("4b qat"), ["gemma3:4b-it-qat"]);
    assert_eq!(names("26b-a4b q4_0"), ["gemma4:26b"]);
    assert_eq!(names("gemma4 31 q8"), ["gemma4:31b-it-q8_0"]);
    assert!(names("gemma 4 e4b").contains(&"gemma4:e4b".to_owned()));
    assert!(names("med 1.5").contains(&"medgemma1.5:4b".to_owned()));
}

#[test]
fn mistyped_names_find_their_neighbours() {
    assert_eq!(close("gema3:4b")[0], "gemma3:4b");
    assert!(close("gemma3:5b").contains(&"gemma3:4b".to_owned()));
    assert!(close("gemma3n:e3b").contains(&"gemma3n:e4b".to_owned()));
    assert!(close("gemma3:4b-q8_0").contains(&"gemma3:4b-it-q8_0".to_owned()));
    assert!(close("gemma3:70b-it-nonsense-tag").contains(&"gemma3:27b".to_owned()));
    // Tags that are nothing like the family's own, and a family that is spelled almost so.
    for (name, model) in [
        ("embeddinggemma:quantized-int8", "embeddinggemma:300m"),
        ("google/embeddinggemma-1b-of-someone", "embeddinggemma:300m"),
        ("embedinggema:whatever-that-is", "embeddinggemma:300m"),
        ("functiongemma:some-other-tag", "functiongemma:270m"),
        ("medgemma:27b-text-it-q4_K_M", "medgemma:4b"),
    ] {
        assert!(close(name).contains(&model.to_owned()), "{name}: {:?}", close(name));
    }
    assert!(close("mistral-large-instruct").is_empty());
    assert!(close("gema-3-4b-it").contains(&"gemma3:4b".to_owned()));
}

#[test]
fn names_of_hugging_face_find_the_model() {
    for (name, model) in [
        ("gemma-3-4b-it", "gemma3:4b"),
        ("Gemma-3-1B-it-GGUF", "gemma3:1b"),
        ("gemma-3-27b", "gemma3:27b"),
        ("gemma-3n-E2B-it", "gemma3n:e2b"),
        ("gemma-3-12b-it-qat-q4_0-gguf", "gemma3:12b-it-qat"),
        ("gemma-4-31B-it-qat-q4_0-gguf", "gemma4:31b"),
        ("gemma-4-12B-it-qat", "gemma4:12b"),
    ] {
        assert_eq!(close(name), [model], "{name}");
    }
}

/// What the words say counts, not how many letters differ.
#[test]
fn names_are_compared_by_their_parts() {
    for (name, models) in [
        ("gemma-4-e4b-it", &["gemma4:e4b"][..]),
        ("gemma-4-E4B", &["gemma4:e4b"]),
        ("google/gemma-4-26b-a4b-it", &["gemma4:26b"]),
        ("gemma4-12b", &["gemma4:12b"]),
        ("gemma-3-4b-it", &["gemma3:4b"]),
        ("gemma_3_4b_it", &["gemma3:4b"]),
        ("gemma3-27b-it-q8_0", &["gemma3:27b-it-q8_0"]),
        ("gemma-4-31b-it-qat", &["gemma4:31b"]),
        ("gemma-3n-e4b-it-q8_0", &["gemma3n:e4b-it-q8_0"]),
        ("gemma4:7b", &["gemma4:e2b", "gemma4:e4b", "gemma4:12b", "gemma4:26b", "gemma4:31b"]),
        ("gemma4:e4b-it-bf16", &["gemma4:e4b", "gemma4:e4b-it-q4_K_M", "gemma4:e4b-it-q8_0"]),
        ("bge-m9", &[]),
        ("gemmatron", &[]),
    ] {
        let mut found = close(name);
        if models.len() > 1 {
            found.retain(|name| models.contains(&name.as_str()));
        }
        assert_eq!(found, models, "{name}");
    }
    let studio = |name: &str| match find(name) {
        Some(Known::Model(model)) => Some(model.name()),
        _ => None,
    };
    assert_eq!(studio("google/gemma-3-4b").as_deref(), Some("gemma3:4b"));
    assert_eq!(studio("google/gemma-4-E4B").as_deref(), Some("gemma4:e4b"));
    for repository in
        ["google/gemma-3-4b-it", "google/gemma-3-4b-pt", "lmstudio-community/gemma-3-4b"]
    {
        assert_eq!(studio(repository), None, "{repository}");
    }
}
