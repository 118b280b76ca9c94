//! Models that trine does not run, by the beginning of their names: those of the public catalogues
//! of Ollama, LM Studio and Hugging Face, and the Gemmas that are something else than a Gemma 3, 3n
//! or 4.

use super::parts::{Parts, size, words};
use super::table::{CatalogModel, nearest};

/// Why a family does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// The family is another maker's, or another kind of Google's; this is its name for people.
    Other(&'static str),
    /// The family turns texts into vectors.
    Embeds(&'static str),
    /// The family turns sound into text.
    Hears(&'static str),
    /// The family makes images.
    Paints(&'static str),
    /// The family has no files to download.
    Hosted(&'static str),
    /// The family is a Gemma of an earlier generation, or made of one.
    Earlier(&'static str),
    /// The name is of a Gemma that runs here, in a form that does not: this says what form.
    Form(&'static str),
    /// A sentence of its own.
    Told(&'static str),
}

/// A family that does not run here.
#[derive(Debug, PartialEq, Eq)]
struct Family {
    /// The beginnings of its models' names; a version or a variant may follow.
    names: &'static [&'static str],
    why: Why,
}

/// A model that trine does not run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Refused {
    family: &'static Family,
    /// Billions of parameters, if the name says them.
    billions: Option<f64>,
    /// The same model in a form that runs here.
    instead: Option<&'static CatalogModel>,
}

const fn other(called: &'static str, names: &'static [&'static str]) -> Family {
    Family { names, why: Why::Other(called) }
}

const GOOGLES: [Family; 11] = [
    Family {
        names: &["gemma", "gemma2", "gemma1", "gemma1.1"],
        why: Why::Earlier("this model is"),
    },
    Family { names: &["codegemma", "recurrentgemma"], why: Why::Earlier("this model is built on") },
    Family {
        names: &["paligemma", "paligemma2", "datagemma", "txgemma", "vaultgemma"],
        why: Why::Earlier("this model is built on"),
    },
    Family {
        names: &["shieldgemma", "shieldgemma2"],
        why: Why::Told(
            "ShieldGemma says whether a text or an image breaks a rule and does not chat; trine \
             runs the Gemmas that chat",
        ),
    },
    Family {
        names: &["embeddinggemma-2", "embeddinggemma2"],
        why: Why::Told(
            "trine runs the first EmbeddingGemma and not the second: take embeddinggemma, whose \
             vectors are others",
        ),
    },
    Family {
        names: &["t5gemma", "t5gemma2", "diffusiongemma"],
        why: Why::Told("it does not write one token after the other as Gemma 3, 3n and 4 do"),
    },
    Family {
        names: &["medgemma", "medgemma1.5", "translategemma", "functiongemma"],
        why: Why::Told(
            "trine's list has no file of this size; it is made of Gemma 3, so that a repository \
             with its GGUF files (owner/repo) runs",
        ),
    },
    Family {
        names: &["medsiglip", "siglip", "siglip2"],
        why: Why::Told("it is no language model"),
    },
    Family { names: &["gemini"], why: Why::Hosted("Gemini") },
    Family {
        names: &["t5", "flan-t5", "bert", "bge-reranker"],
        why: Why::Other("models of that kind"),
    },
    Family { names: &["gemma-scope", "gemma-scope2"], why: Why::Told("it is no language model") },
];

/// Words of Ollama's tags that say another form than GGUF (pages `library/gemma4/tags`).
const FORMS: [Family; 2] = [
    Family {
        names: &["mlx", "mtp", "nvfp4", "mxfp8", "mxfp4"],
        why: Why::Form("Ollama's files of this form are for Apple's MLX"),
    },
    Family { names: &["cloud"], why: Why::Form("it runs on Ollama's servers only") },
];

const OTHERS: [Family; 95] = [
    other("Llama", &["llama", "meta-llama", "codellama", "tinyllama", "medllama2", "llama-guard"]),
    other("Qwen", &["qwen", "qwq", "qvq", "codeqwen", "marco-o1"]),
    other(
        "Mistral",
        &[
            "mistral",
            "mixtral",
            "ministral",
            "magistral",
            "devstral",
            "codestral",
            "pixtral",
            "mathstral",
            "mistrallite",
            "voxtral",
        ],
    ),
    other("Phi", &["phi", "phind"]),
    other("DeepSeek", &["deepseek", "deepcoder", "deepscaler", "janus"]),
    other("gpt-oss", &["gpt-oss"]),
    other("Granite", &["granite"]),
    other("SmolLM", &["smollm", "smolvlm"]),
    other("Falcon", &["falcon"]),
    other("Yi", &["yi"]),
    other("Command", &["command-r", "command-a", "command-r-plus", "command-r7b", "c4ai"]),
    other("Aya", &["aya", "aya-expanse"]),
    other("EXAONE", &["exaone"]),
    other("Solar", &["solar", "solar-pro"]),
    other("GLM", &["glm", "chatglm", "codegeex"]),
    other("Kimi", &["kimi", "moonlight"]),
    other("MiniMax", &["minimax"]),
    other("Nemotron", &["nemotron"]),
    other("OLMo", &["olmo", "olmoe", "tulu"]),
    other("LFM", &["lfm"]),
    other("InternLM", &["internlm", "internvl"]),
    other("Baichuan", &["baichuan"]),
    other("BLOOM", &["bloom", "bloomz"]),
    other("MPT", &["mpt"]),
    other("DBRX", &["dbrx"]),
    other("Grok", &["grok"]),
    other("Jamba", &["jamba"]),
    other("Mamba", &["mamba", "codestral-mamba"]),
    other("RWKV", &["rwkv"]),
    other("Cogito", &["cogito"]),
    other("Athene", &["athene"]),
    other("Reflection", &["reflection"]),
    other("Sailor", &["sailor"]),
    other("Hermes", &["nous-hermes", "hermes", "openhermes"]),
    other("Vicuna", &["vicuna", "wizard-vicuna"]),
    other("Alpaca", &["alpaca", "alpaca-lora"]),
    other("WizardLM", &["wizardlm", "wizardcoder", "wizard-math", "wizardlm-uncensored"]),
    other("Orca", &["orca", "orca-mini", "open-orca-platypus"]),
    other("Stable Beluga", &["stable-beluga"]),
    other("Xwin-LM", &["xwinlm", "xwin-lm"]),
    other("Neural Chat", &["neural-chat"]),
    other("Starling", &["starling-lm", "starling"]),
    other("Zephyr", &["zephyr"]),
    other("StableLM", &["stablelm", "stable-code", "stablelm-zephyr"]),
    other("StarCoder", &["starcoder", "starcoderbase"]),
    other("OpenThinker", &["openthinker"]),
    other("OpenChat", &["openchat"]),
    other("OpenCoder", &["opencoder"]),
    other("Dolphin", &["dolphin", "megadolphin", "tinydolphin"]),
    other("Samantha", &["samantha-mistral", "samantha"]),
    other("Meditron", &["meditron"]),
    other("Bespoke-MiniCheck", &["bespoke-minicheck"]),
    other("Reader-LM", &["reader-lm"]),
    other("NuExtract", &["nuextract"]),
    other("DuckDB-NSQL", &["duckdb-nsql"]),
    other("SQLCoder", &["sqlcoder"]),
    other("Magicoder", &["magicoder"]),
    other("EverythingLM", &["everythinglm"]),
    other("Notux", &["notux", "notus"]),
    other("Goliath", &["goliath"]),
    other("Yarn", &["yarn-llama2", "yarn-mistral"]),
    other("FireFunction", &["firefunction"]),
    other("Hunyuan", &["hunyuan"]),
    other("ERNIE", &["ernie"]),
    other("Seed-OSS", &["seed-oss"]),
    other("Apertus", &["apertus"]),
    other("ALIA", &["alia", "salamandra"]),
    other("EuroLLM", &["eurollm"]),
    other("Teuken", &["teuken"]),
    other("Rnj", &["rnj"]),
    other("Nanbeige", &["nanbeige"]),
    other("MiMo", &["mimo"]),
    other("LLaVA", &["llava", "bakllava"]),
    other("Moondream", &["moondream"]),
    other("MiniCPM", &["minicpm"]),
    other("CogVLM", &["cogvlm"]),
    other("Molmo", &["molmo"]),
    other(
        "GPT-2 and its kind",
        &["gpt2", "gpt-2", "gpt-j", "gpt-neo", "gpt-neox", "pythia", "opt"],
    ),
    Family {
        names: &[
            "nomic-embed-text",
            "nomic-embed",
            "mxbai-embed-large",
            "mxbai-embed",
            "all-minilm",
            "bge",
            "bge-m3",
            "bge-large",
            "snowflake-arctic-embed",
            "paraphrase-multilingual",
            "jina-embeddings",
            "multilingual-e5",
            "e5",
            "gte",
        ],
        why: Why::Embeds("other embedding models"),
    },
    Family {
        names: &["whisper", "parakeet", "canary"],
        why: Why::Hears("this is a speech recogniser"),
    },
    Family {
        names: &["stable-diffusion", "sdxl", "flux", "flux.1", "z-image"],
        why: Why::Paints("this image generator"),
    },
    Family { names: &["kokoro", "orpheus", "bark", "piper"], why: Why::Other("models that speak") },
    Family { names: &["claude"], why: Why::Hosted("Claude") },
    Family {
        names: &["chatgpt", "gpt-3", "gpt-4", "gpt-4o", "gpt-4.1", "gpt-5", "gpt3", "gpt4", "gpt5"],
        why: Why::Hosted("ChatGPT"),
    },
    other("Laguna", &["laguna"]),
    other("Ling", &["ling-mini", "ling-flash", "ling-lite"]),
    other("Arctic", &["snowflake-arctic", "arctic"]),
    other("Trinity", &["trinity-mini", "trinity-nano", "trinity-large"]),
    other("Step", &["step-3", "step3"]),
    other("Alfred", &["alfred"]),
    other("NexusRaven", &["nexusraven"]),
    other("CodeUp", &["codeup", "codebooga"]),
    other("R1 1776", &["r1-1776"]),
    other("SmallThinker", &["smallthinker"]),
    other("DolphinCoder", &["dolphincoder"]),
];

/// Returns the family that a name begins with, if it does not run here. The longest beginning
/// counts.
pub(super) fn find(name: &str) -> Option<Refused> {
    let name = name.to_lowercase();
    let own = name.split(':').next().unwrap_or_default();
    let begins = |start: &&&str| {
        let rest = own.strip_prefix(**start);
        rest.is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_alphabetic()))
    };
    let all = GOOGLES.iter().chain(&OTHERS);
    let found = all.filter_map(|family| {
        let longest = family.names.iter().filter(begins).map(|start| start.len()).max()?;
        // The plain Gemmas: any other generation is a slip, or to come.
        let is_plain = family.names[0] == "gemma";
        let is_earlier = || {
            let generation = Parts::of(own).and_then(|parts| parts.generation);
            matches!(generation.as_deref(), Some("1" | "2"))
        };
        (!is_plain || family.names.contains(&own) || is_earlier()).then_some((longest, family))
    });
    let (_, family) = found.max_by_key(|(longest, _)| *longest)?;
    let billions = words(&name).iter().find_map(|word| size(word));
    Some(Refused { family, billions, instead: None })
}

/// Returns why a tag of Ollama for a Gemma that runs here does not run itself: it is for another
/// program's files, or a model on Ollama's servers. `same` are the models of its size.
pub(super) fn form(name: &str, same: &[&'static CatalogModel]) -> Option<Refused> {
    let tag = words(name.split_once(':')?.1);
    let family =
        FORMS.iter().find(|form| form.names.iter().any(|mark| tag.iter().any(|word| word == mark)));
    Some(Refused { family: family?, billions: None, instead: Some(same.first().copied()?) })
}

/// Returns the family that the name of a repository says, if it does not say Gemma.
pub(super) fn of_repository(repository: &str) -> Option<Refused> {
    let name = repository.rsplit('/').next().unwrap_or_default().to_lowercase();
    if name.contains("gemma") {
        return None;
    }
    // A maker's name may come first: Meta-Llama-3.1-8B-Instruct-GGUF.
    let rest = name.split_once('-').map(|(_, rest)| rest);
    [Some(name.as_str()), rest].into_iter().flatten().find_map(find)
}

impl Refused {
    /// Returns a sentence that says why it does not run, and what does: a model of about the same
    /// size, or the one that is recommended where no size is known.
    pub fn reason(&self, recommended: &CatalogModel) -> String {
        let models = "trine runs Google's Gemma models only (3, 3n and 4)";
        let why = match self.family.why {
            Why::Other(called) => format!("{models}, not {called}"),
            Why::Embeds(what) => {
                return format!(
                    "{models}, not {what}. `trine serve embeddinggemma` makes embeddings"
                );
            }
            Why::Hears(what) => format!("{models}, which take no sound here, and {what}"),
            Why::Paints(what) => format!("{models}, which write and do not paint, not {what}"),
            Why::Hosted(what) => {
                format!(
                    "{what} runs on its maker's servers only and cannot be downloaded; {models}"
                )
            }
            Why::Earlier(what) => {
                format!("{models}, and {what} an earlier Gemma")
            }
            Why::Told(sentence) => return sentence.to_owned(),
            Why::Form(what) => {
                let same = self.instead.unwrap_or(recommended);
                return format!("{what}. The same model: {}", offer(same));
            }
        };
        let (model, about) = match self.billions {
            Some(billions) => (nearest(billions), "About the same size"),
            None => (recommended, "Take"),
        };
        format!("{why}. {about}: {}", offer(model))
    }
}

/// Returns the command that runs a model, and its size.
fn offer(model: &CatalogModel) -> String {
    format!("`trine run {}` ({})", model.name(), crate::error::shown(model.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginnings_are_words_and_the_longest_counts() {
        let called = |name: &str| find(name).map(|found| found.family.names[0]);
        for (name, family) in [
            ("llama3.2:3b", "llama"),
            ("Llama-Guard-3", "llama"),
            ("snowflake-arctic-embed:22m", "nomic-embed-text"),
            ("snowflake-arctic", "snowflake-arctic"),
            ("gemma2:9b", "gemma"),
            ("gemma-2-9b-it", "gemma"),
            ("bge-m3", "nomic-embed-text"),
        ] {
            assert_eq!(called(name), Some(family), "{name}");
        }
        for free in ["philosophy", "gemma3:5b", "gemma-3-4b", "yirgacheffe", "optimal", ""] {
            assert_eq!(called(free), None, "{free}");
        }
    }

    #[test]
    fn repositories_say_their_family_too() {
        for (name, family) in [
            ("acme/llama-3-GGUF", Some("llama")),
            ("bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", Some("llama")),
            ("Qwen/Qwen3-8B-GGUF", Some("qwen")),
            ("someone/gemma-3-4b-like-llama", None),
            ("owner/repo", None),
        ] {
            let found = of_repository(name).map(|found| found.family.names[0]);
            assert_eq!(found, family, "{name}");
        }
    }
}
