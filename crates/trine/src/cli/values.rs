//! From texts of the command line to values, or to messages that say what is accepted instead.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use trine_engine::Pooling;
use trine_foreign::Host;
use trine_model::KvType;
use trine_session::machine::parse_size;
use trine_session::quantize::Recipe;
use trine_weights::{DType, blocks};

/// Formats that matrices take while loading.
const TARGETS: [DType; 4] = [DType::Q8_0, DType::Q4_0, DType::Q4K, DType::Q6K];

pub(super) fn parse_target(text: &str) -> Result<DType, String> {
    let found = DType::parse(text).filter(|dtype| TARGETS.contains(dtype));
    found.ok_or_else(|| {
        let [others @ .., last] = TARGETS.map(DType::name);
        format!("choose {} or {last}", others.join(", "))
    })
}

/// Parses a type of files, or a format for all matrices.
pub(super) fn parse_recipe(text: &str) -> Result<Recipe, String> {
    Recipe::parse(text).ok_or_else(|| {
        let names: Vec<&str> = Recipe::all().map(Recipe::name).collect();
        format!("choose one of {}", names.join(", "))
    })
}

/// Parses a format that trine writes.
pub(super) fn parse_format(text: &str) -> Result<DType, String> {
    let written = || DType::ALL.into_iter().filter(|&dtype| blocks::can_encode(dtype));
    DType::parse(text).filter(|&dtype| blocks::can_encode(dtype)).ok_or_else(|| {
        let names: Vec<&str> = written().map(DType::name).collect();
        format!("choose one of {}", names.join(", "))
    })
}

pub(super) fn parse_kv(text: &str) -> Result<KvType, String> {
    KvType::parse(text).ok_or_else(|| "choose f32, f16 or int8".to_owned())
}

/// Parses the name of a host, without a port.
pub(super) fn parse_host_name(text: &str) -> Result<Host, String> {
    Host::parse(text)
        .ok_or_else(|| "give the name of a host, such as box.lan, without a port".to_owned())
}

pub(super) fn parse_pooling(text: &str) -> Result<Pooling, String> {
    Pooling::parse(text).ok_or_else(|| "choose mean or last".to_owned())
}

/// The seed of random numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seed {
    /// Another seed each time.
    Random,
    /// This seed.
    Given(u64),
}

impl Seed {
    /// Returns the number, if one was chosen.
    pub(crate) fn chosen(self) -> Option<u64> {
        match self {
            Self::Random => None,
            Self::Given(seed) => Some(seed),
        }
    }
}

pub(super) fn parse_seed(text: &str) -> Result<Seed, String> {
    if text == "-1" {
        return Ok(Seed::Random);
    }
    let wrong =
        |_| format!("give a whole number from 0 to {}, or -1 for another one each time", u64::MAX);
    text.parse().map(Seed::Given).map_err(wrong)
}

/// Returns a parser of whole numbers of a range.
pub(super) fn whole<T>(
    range: RangeInclusive<T>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text: &str| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number
            .ok_or_else(|| format!("give a whole number from {} to {}", range.start(), range.end()))
    }
}

/// Parses a number of positions, rows or tokens, which may be 0.
pub(super) fn parse_count(text: &str) -> Result<usize, String> {
    whole(0..=u32::MAX as usize)(text)
}

/// As many layers on GPUs as fit.
pub(crate) const FITTING_LAYERS: usize = usize::MAX;

/// Parses a number of layers on GPUs.
pub(super) fn parse_layers(text: &str) -> Result<usize, String> {
    match text {
        "auto" | "all" => Ok(FITTING_LAYERS),
        _ => parse_count(text).map_err(|_| "give a whole number from 0, or auto".to_owned()),
    }
}

/// As many tokens as the context has room for.
pub(crate) const NO_LIMIT: usize = u32::MAX as usize;

/// Parses the most tokens of an answer; -1 is no limit.
pub(super) fn parse_limit(text: &str) -> Result<usize, String> {
    if text == "-1" {
        return Ok(NO_LIMIT);
    }
    parse_positive(text).map_err(|told| format!("{told}, or -1 for no limit"))
}

/// Parses such a number that is at least 1.
pub(super) fn parse_positive(text: &str) -> Result<usize, String> {
    whole(1..=u32::MAX as usize)(text)
}

/// Parses a number whose range is checked where its meaning is known.
pub(super) fn parse_number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| "give a number such as 0.7".to_owned())
}

/// Most sequences, and most positions, of a forecast, so that its sums stay within 64 bits and its
/// time stays short.
const FORECAST_BATCH_MAX: usize = 4096;
const FORECAST_CONTEXT_MAX: usize = 1 << 20;

pub(super) fn parse_batch(text: &str) -> Result<usize, String> {
    whole(1..=FORECAST_BATCH_MAX)(text)
}

pub(super) fn parse_context(text: &str) -> Result<usize, String> {
    whole(1..=FORECAST_CONTEXT_MAX)(text)
}

pub(super) fn parse_drafts(text: &str) -> Result<usize, String> {
    whole(0..=trine_engine::GUESSES_MAX)(text)
}

/// Parses how many guesses a step of an engine verifies for each sequence.
pub(super) fn parse_guesses(text: &str) -> Result<usize, String> {
    whole(1..=trine_engine::GUESSES_MAX)(text)
}

/// Parses a bandwidth or a rate of operations: from a microcontroller's to a thousand times the
/// fastest device's.
pub(super) fn parse_rate(text: &str) -> Result<f64, String> {
    parse_real(text, 1e-6, 1e7)
}

pub(super) fn parse_gap(text: &str) -> Result<f64, String> {
    parse_real(text, 0.0, 1e6)
}

/// Parses the time between two looks at a server.
pub(super) fn parse_interval(text: &str) -> Result<Duration, String> {
    parse_real(text, 0.1, 3600.0).map(Duration::from_secs_f64)
}

pub(super) fn parse_probability(text: &str) -> Result<f64, String> {
    parse_real(text, 0.0, 1.0)
}

fn parse_real(text: &str, least: f64, most: f64) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("give a number from {least} to {most}"))
}

pub(super) fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let wrong = || "write ID=VALUE, a token id and a number, such as 106=-2.5".to_owned();
    let (id, value) = text.split_once('=').ok_or_else(wrong)?;
    Ok((id.trim().parse().map_err(|_| wrong())?, value.trim().parse().map_err(|_| wrong())?))
}

/// Parses a number of bytes, with K, M, G or T for powers of 1024.
pub(super) fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || "give a size such as 800M or 24G".to_owned();
    let text = text.to_ascii_uppercase();
    let plain =
        text.strip_suffix('B').map_or(&*text, |text| text.strip_suffix('I').unwrap_or(text));
    parse_size(plain).filter(|&bytes| bytes > 0).ok_or_else(wrong)
}

pub(super) fn parse_alias(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, model))
            if !name.is_empty() && !model.is_empty() && (name == "*" || !name.contains('*')) =>
        {
            Ok((name.to_owned(), model.to_owned()))
        }
        // Every name, for the first model.
        None if text == "*" => Ok((text.to_owned(), String::new())),
        Some((name, _)) if name.len() > 1 && name.contains('*') => {
            Err("`*` is a name only by itself: write `*=MODEL` for all names".to_owned())
        }
        _ => Err("write NAME=MODEL, such as gpt-4o=demo, or `*`".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use clap::error::ErrorKind;

    use super::*;

    use crate::cli::Cli;

    #[test]
    fn sizes_and_aliases_are_read() {
        assert_eq!((parse_bytes("24G"), parse_bytes("5 MiB")), (Ok(24 << 30), Ok(5 << 20)));
        assert_eq!((parse_bytes("7"), parse_bytes("1kb")), (Ok(7), Ok(1024)));
        for wrong in ["", "G", "-1G", "0", "99999999T", "1.5G", "x", "5GBB", "iB"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
        assert!(
            parse_alias("a=b").is_ok() && parse_alias("a").is_err() && parse_alias("=b").is_err()
        );
        assert_eq!(parse_alias("*"), Ok(("*".to_owned(), String::new())));
        assert!(parse_alias("*=b").is_ok() && parse_alias("claude-*=b").is_err());
    }

    /// No option answers in the words of Rust's own parsers, which name no remedy.
    #[test]
    fn every_wrong_value_is_answered_with_what_to_give() {
        let program = Cli::command();
        let mut refused = 0;
        for command in program.get_subcommands() {
            for option in command.get_arguments().filter_map(clap::Arg::get_long) {
                for wrong in ["x", "-1", "1.5", "nan", "99999999999999999999999"] {
                    let typed = format!("--{option}={wrong}");
                    let words = ["trine", command.get_name(), &typed];
                    let Err(error) = program.clone().try_get_matches_from(words) else { continue };
                    refused += usize::from(error.kind() == ErrorKind::ValueValidation);
                    let error = error.to_string();
                    for word in ["invalid digit", "invalid float", "too large to fit", "..="] {
                        assert!(!error.contains(word), "{words:?}: {error}");
                    }
                }
            }
        }
        assert!(refused > 100, "{refused}");
    }
}
