//! Which format each matrix of a file gets.
//!
//! The types of files that llama-quantize knows mean what they mean there: the choices are those
//! of llama.cpp v0.5.0 without an importance matrix, as its dry runs over nine Gemmas state them
//! (`tests/goldens/quantize/mixtures.json`).

use trine_model::{Config, Weight, names};
use trine_weights::DType;
use trine_weights::DType::{Iq4Nl, Iq4Xs, Mxfp4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K};
use trine_weights::DType::{Q6K, Q8_0};

/// What `trine quantize --type` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recipe {
    /// One format for all matrices.
    Plain(DType),
    /// A type of files with several formats.
    Mixture(&'static Mixture),
}

/// A type of files with several formats.
#[derive(Debug, PartialEq, Eq)]
pub struct Mixture {
    name: &'static str,
    /// llama.cpp's number (`enum llama_ftype`).
    file_type: u32,
    /// The format of all matrices that have no rule.
    base: DType,
    /// That of the tables of embeddings, and so of the output.
    table: DType,
    /// That of experts.
    experts: DType,
    /// That of the attention's output.
    output: DType,
    /// That of values.
    values: Rule,
    /// That of values where at least four heads share them.
    shared_values: Option<DType>,
    /// That of the feed-forward's last matrix.
    down: Rule,
}

/// What the choices depend on.
#[derive(Debug, Clone, Copy)]
struct Facts {
    layers: usize,
    /// Whether at least four heads share keys and values.
    shares_values: bool,
    /// Whether the table of embeddings is the output as well.
    is_tied: bool,
}

/// The format of one kind of matrix by its place among `count` of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    Base,
    All(DType),
    /// So many first ones, and the rest in another format.
    First(usize, DType, DType),
    /// The first 1/N, and the rest in another format.
    Early(usize, DType, DType),
    /// The first and the last eighth, and of the others every third.
    More(DType),
}

const fn mixture(name: &'static str, file_type: u32, base: DType) -> Mixture {
    Mixture {
        name,
        file_type,
        base,
        table: Q6K,
        experts: base,
        output: base,
        values: Rule::Base,
        shared_values: None,
        down: Rule::Base,
    }
}

const MIXTURES: [Mixture; 18] = [
    Mixture { table: Q8_0, ..mixture("Q8_0", 7, Q8_0) },
    mixture("Q6_K", 18, Q6K),
    Mixture { values: Rule::More(Q6K), down: Rule::More(Q6K), ..mixture("Q5_K_M", 17, Q5K) },
    mixture("Q5_K_S", 16, Q5K),
    mixture("Q5_1", 9, Q5_1),
    mixture("Q5_0", 8, Q5_0),
    Mixture { values: Rule::More(Q6K), down: Rule::More(Q6K), ..mixture("Q4_K_M", 15, Q4K) },
    Mixture {
        values: Rule::First(4, Q5K, Q4K),
        down: Rule::Early(8, Q5K, Q4K),
        ..mixture("Q4_K_S", 14, Q4K)
    },
    Mixture {
        shared_values: Some(Q5K),
        down: Rule::Early(8, Q5K, Iq4Nl),
        ..mixture("IQ4_NL", 25, Iq4Nl)
    },
    Mixture {
        shared_values: Some(Q5K),
        down: Rule::Early(8, Q5K, Iq4Xs),
        ..mixture("IQ4_XS", 30, Iq4Xs)
    },
    mixture("Q4_1", 3, Q4_1),
    mixture("Q4_0", 2, Q4_0),
    Mixture { table: Q8_0, experts: Mxfp4, ..mixture("MXFP4_MOE", 38, Q8_0) },
    Mixture {
        output: Q5K,
        values: Rule::All(Q5K),
        down: Rule::All(Q5K),
        ..mixture("Q3_K_L", 13, Q3K)
    },
    Mixture {
        output: Q4K,
        values: Rule::First(2, Q5K, Q4K),
        down: Rule::Early(16, Q5K, Q4K),
        ..mixture("Q3_K_M", 12, Q3K)
    },
    mixture("Q3_K_S", 11, Q3K),
    Mixture {
        output: Q3K,
        values: Rule::All(Q3K),
        shared_values: Some(Q4K),
        down: Rule::All(Q3K),
        ..mixture("Q2_K", 10, Q2K)
    },
    Mixture {
        shared_values: Some(Q4K),
        down: Rule::Early(8, Q4K, Q2K),
        ..mixture("Q2_K_S", 21, Q2K)
    },
];

/// The formats that are no types of files by themselves.
const PLAIN: [DType; 4] = [Q5K, Q4K, Q3K, Mxfp4];

impl Recipe {
    /// Returns all, those with more bits first.
    pub fn all() -> impl Iterator<Item = Self> {
        let plain = PLAIN.into_iter().map(Self::Plain);
        MIXTURES.iter().map(Self::Mixture).chain(plain)
    }

    /// Returns the one of a name, in upper or lower case.
    pub fn parse(name: &str) -> Option<Self> {
        Self::all().find(|recipe| recipe.name().eq_ignore_ascii_case(name))
    }

    /// Returns its name, as llama.cpp spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain(dtype) => dtype.name(),
            Self::Mixture(mixture) => mixture.name,
        }
    }

    /// Returns llama.cpp's number of a file of this type.
    pub const fn file_type(self) -> Option<u32> {
        match self {
            Self::Plain(dtype) => dtype.file_type(),
            Self::Mixture(mixture) => Some(mixture.file_type),
        }
    }

    /// Returns the formats of matrices, before rows that do not fit them fall back; `None` for one
    /// that keeps the format that it has.
    pub fn formats(self, config: &Config, weights: &[Weight]) -> Vec<Option<DType>> {
        let model = Facts {
            layers: config.layers.len(),
            // As in llama.cpp, by the first layer.
            shares_values: config
                .layers
                .first()
                .is_some_and(|layer| layer.heads >= 4 * layer.kv_heads.max(1)),
            is_tied: !weights.iter().any(|weight| weight.name == names::OUTPUT),
        };
        let is_value = |weight: &Weight| part_of(&weight.name).1 == "attn_v.weight";
        let all_values = weights.iter().filter(|weight| is_value(weight)).count();
        let mut values = 0;
        let format = |weight: &Weight| {
            let place = (values, all_values);
            values += usize::from(is_value(weight));
            match self {
                Self::Plain(_) if names::keeps_format(config.family, &weight.name) => None,
                Self::Plain(dtype) => Some(dtype),
                Self::Mixture(mixture) => mixture.format(model, &weight.name, place),
            }
        };
        weights.iter().map(format).collect()
    }
}

impl Mixture {
    /// Returns the format of a matrix. `value` is the place of the next values among all.
    fn format(&self, model: Facts, name: &str, value: (usize, usize)) -> Option<DType> {
        if name == names::PER_LAYER_PROJECTION || name == names::DRAFT_CENTROIDS {
            return None;
        }
        if name == names::OUTPUT {
            return Some(self.table);
        }
        if [names::TOKEN_EMBEDDING, names::PER_LAYER_EMBEDDING].contains(&name) {
            return Some(if model.is_tied { self.table } else { self.base });
        }
        let (layer, part) = part_of(name);
        let place = (layer.unwrap_or(0), model.layers);
        Some(match part {
            "attn_output.weight" => self.output,
            "attn_v.weight" => match self.shared_values.filter(|_| model.shares_values) {
                Some(shared) => shared,
                None => self.values.format(value, self.base),
            },
            "ffn_down.weight" => self.down.format(place, self.base),
            "ffn_down_exps.weight" if self.experts == self.base => {
                self.down.format(place, self.base)
            }
            part if part.contains("_exps.") => self.experts,
            part if part.starts_with("altup_") || part.starts_with("laurel_") => return None,
            "ffn_gate_inp.weight" => return None,
            _ => self.base,
        })
    }
}

impl Rule {
    fn format(self, (index, count): (usize, usize), base: DType) -> DType {
        let either = |is_first: bool, first, rest| if is_first { first } else { rest };
        match self {
            Self::Base => base,
            Self::All(dtype) => dtype,
            Self::First(many, first, rest) => either(index < many, first, rest),
            Self::Early(part, first, rest) => either(index < count / part, first, rest),
            Self::More(dtype) => {
                let eighth = count / 8;
                let is_end = index < eighth || index >= 7 * count / 8;
                either(is_end || (index - eighth) % 3 == 2, dtype, base)
            }
        }
    }
}

/// Returns the layer of a tensor's name, and the name without it.
fn part_of(name: &str) -> (Option<usize>, &str) {
    let found = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    found.map_or((None, name), |(layer, part)| (layer.parse().ok(), part))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::Value;
    use trine_model::{AttentionKind, Family, LayerConfig, Rope, Values, WeightKind, WeightPlace};
    use trine_weights::{blocks, fallback};

    use super::*;

    /// The columns of matrices, where they are not the hidden size: of the attention's output, of
    /// the feed-forward's last matrix and of the experts', by the models' published sizes.
    const COLUMNS: [(&str, [usize; 4]); 9] = [
        ("gemma-3-270m", [640, 1024, 2048, 0]),
        ("gemma-3-1b", [1152, 1024, 6912, 0]),
        ("gemma-3-4b", [2560, 2048, 10_240, 0]),
        ("gemma-3-12b", [3840, 4096, 15_360, 0]),
        ("gemma-3-27b", [5376, 4096, 21_504, 0]),
        ("gemma-4-E2B", [1536, 2048, 6144, 0]),
        ("gemma-4-E4B", [2560, 2048, 10_240, 0]),
        ("gemma-4-31B", [5376, 8192, 21_504, 0]),
        ("gemma-4-26B-A4B", [2816, 4096, 2112, 704]),
    ];

    /// Returns the format that llama-quantize chose for each layer that has the matrix.
    fn by_layer(chosen: &Value, layers: &[usize]) -> BTreeMap<usize, String> {
        if let Some(all) = chosen.as_str() {
            return layers.iter().map(|&layer| (layer, all.to_owned())).collect();
        }
        let of = |(format, own): (&String, &Value)| {
            let own: Vec<usize> = serde_json::from_value(own.clone()).unwrap();
            own.into_iter().map(|layer| (layer, format.clone())).collect::<Vec<_>>()
        };
        chosen.as_object().unwrap().iter().flat_map(of).collect()
    }

    /// Returns a model of which the choices see the layers and the heads.
    fn config(layers: usize, hidden: usize, heads: usize, kv_heads: usize) -> Config {
        let layer = |index| LayerConfig {
            attention: AttentionKind::Global,
            heads,
            kv_heads,
            head_dim: 256,
            score_scale: 1.0,
            rope: Rope::full(1e4, 1.0),
            feed_forward: 1024,
            values: Values::Plain,
            experts: None,
            output_scale: 1.0,
            cutoff: None,
            kv_owner: index,
        };
        Config {
            family: Family::Gemma3,
            hidden,
            vocabulary: 256,
            context: 512,
            norm_epsilon: 1e-6,
            embedding_scale: 1.0,
            final_softcap: None,
            layers: (0..layers).map(layer).collect(),
        }
    }

    fn matrix(name: &str, columns: usize) -> Weight {
        Weight {
            name: name.to_owned(),
            kind: WeightKind::Matrix,
            rows: 256,
            columns,
            dtype: DType::BF16,
            place: WeightPlace::File,
        }
    }

    #[test]
    fn mixtures_are_those_of_llama_quantize() {
        let path =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/goldens/quantize/mixtures.json");
        let golden: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let mut compared = 0;
        for (model, types) in golden.as_object().unwrap() {
            let (name, facts) = model.split_once(" (").unwrap();
            let (_, [hidden, output, down, expert]) =
                COLUMNS.iter().find(|(own, _)| *own == name).unwrap();
            let numbers: Vec<usize> = facts
                .split(|c: char| !c.is_ascii_digit())
                .filter_map(|number| number.parse().ok())
                .collect();
            let [_, layers, heads, kv_heads, ..] = numbers[..] else { panic!("{facts}") };
            let config = config(layers, *hidden, heads, kv_heads);
            let all: Vec<usize> = (0..layers).collect();
            // Layers whose values are their keys have no matrix of values.
            let valued = by_layer(&types["Q4_K_M"]["attn_v"], &all);
            for mixture in &MIXTURES {
                // Name, columns and expected format of each matrix, layers in their order.
                let mut rows: Vec<(Option<usize>, String, usize, String)> = Vec::new();
                for (part, chosen) in types[mixture.name].as_object().unwrap() {
                    let is_layers = !part.starts_with("token") && !part.starts_with("per_layer");
                    let columns = match part.as_str() {
                        "attn_output" => output,
                        "ffn_down" => down,
                        "ffn_down_exps" => expert,
                        "proj" | "per_layer_token_embd" => &256,
                        "size_MiB" | "bits_per_weight" => continue,
                        _ => hidden,
                    };
                    let here: Vec<usize> = match part.as_str() {
                        "attn_v" => valued.keys().copied().collect(),
                        _ if is_layers => all.clone(),
                        _ => vec![0],
                    };
                    for (layer, expected) in by_layer(chosen, &here) {
                        let (layer, name) = match is_layers {
                            true => (Some(layer), format!("blk.{layer}.{part}.weight")),
                            false => (None, format!("{part}.weight")),
                        };
                        rows.push((layer, name, *columns, expected));
                    }
                }
                rows.sort();
                let weights: Vec<Weight> =
                    rows.iter().map(|(_, name, columns, _)| matrix(name, *columns)).collect();
                let found = Recipe::Mixture(mixture).formats(&config, &weights);
                for ((_, name, columns, expected), found) in rows.iter().zip(found) {
                    let kept = if name.contains("ffn_gate_inp") { "F32" } else { "F16" };
                    let found = found.map_or(kept, |dtype| fallback(dtype, *columns).name());
                    assert_eq!(found, expected, "{mixture:?}: {name}");
                    compared += 1;
                }
            }
        }
        assert!(compared > 30_000, "{compared}");
    }

    /// llama.cpp gives the table the format of the output only if it is the output.
    #[test]
    fn a_table_beside_an_output_is_as_other_matrices() {
        let untied = Facts { layers: 8, shares_values: false, is_tied: false };
        let Some(Recipe::Mixture(mixture)) = Recipe::parse("q4_k_m") else { panic!("a mixture") };
        let of = |facts, name| mixture.format(facts, name, (0, 8));
        assert_eq!(of(untied, names::TOKEN_EMBEDDING), Some(Q4K));
        assert_eq!(of(untied, names::OUTPUT), Some(Q6K));
        assert_eq!(of(Facts { is_tied: true, ..untied }, names::TOKEN_EMBEDDING), Some(Q6K));
    }

    #[test]
    fn every_recipe_has_a_name_of_its_own_and_can_be_written() {
        for recipe in Recipe::all() {
            assert_eq!(Recipe::parse(&recipe.name().to_lowercase()), Some(recipe));
            let dtypes = match recipe {
                Recipe::Plain(dtype) => vec![dtype],
                Recipe::Mixture(Mixture { base, table, experts, output, .. }) => {
                    vec![*base, *table, *experts, *output]
                }
            };
            assert!(dtypes.into_iter().all(blocks::can_encode), "{recipe:?}");
        }
        assert_eq!(Recipe::parse("IQ2_XXS"), None);
    }
}
