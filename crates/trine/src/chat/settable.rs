//! What can be seen and changed during a chat: `/set` and `/show`.

use anyhow::{Result, anyhow, bail};
use clap::{ArgMatches, Args, Command, FromArgMatches};
use trine_engine::SamplingParams;

use crate::cli::SamplingArgs;
use crate::options::Writing;
use crate::terminal::output;

/// The parameters that can be set, as they are written.
const NAMES: [&str; 10] = [
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "max_tokens",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "stop",
];
/// Names that other programs have for them.
const OTHERS: [(&str, &str); 3] = [
    ("num_predict", "max_tokens"),
    ("n_predict", "max_tokens"),
    ("repeat_penalty", "repetition_penalty"),
];

/// Returns sampling options with one of them changed, as if it were typed on the command line.
///
/// # Errors
/// Returns an error that says what can be set if there is no such parameter or the value is none.
pub(crate) fn changed(options: &SamplingArgs, text: &str) -> Result<SamplingArgs> {
    let text = text.strip_prefix("parameter ").unwrap_or(text).trim();
    let (name, value) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let name = name.to_lowercase().replace('-', "_");
    if matches!(&*name, "num_ctx" | "context") {
        bail!("the context is fixed while a model is loaded; start with --context");
    }
    let name = OTHERS.iter().find(|(other, _)| *other == name).map_or(&*name, |(_, own)| own);
    if !NAMES.contains(&name) {
        let close = output::close_names(name, NAMES);
        let hint = close.first().map_or(String::new(), |name| format!(" Did you mean {name}?"));
        bail!("there is no parameter {name}.{hint} These can be set: {}", NAMES.join(", "));
    }
    let value = value.trim();
    if value.is_empty() {
        bail!("/set {name} needs a value");
    }
    let typed = format!("--{}={value}", name.replace('_', "-"));
    let command = SamplingArgs::augment_args(Command::new("set").no_binary_name(true));
    let matches: ArgMatches = command.try_get_matches_from([typed]).map_err(|error| {
        anyhow!("{}", reason(&error, name).unwrap_or_else(|| error.to_string()))
    })?;
    let mut options = options.clone();
    options.update_from_arg_matches(&matches)?;
    Ok(options)
}

/// Returns the part of an error of the command line that says what is accepted, with the name of
/// the parameter in place of the option's.
fn reason(error: &clap::Error, name: &str) -> Option<String> {
    let text = error.to_string();
    let line = text.lines().next()?;
    let line = line.strip_prefix("error: ").unwrap_or(line);
    let option = line.split_once(" '--").and_then(|(before, rest)| {
        let (_, after) = rest.split_once('\'')?;
        Some(format!("{before} {name}{after}"))
    });
    Some(option.unwrap_or_else(|| line.to_owned()))
}

/// Returns the parameters with which answers are written, one a line.
pub(crate) fn shown(writing: &Writing) -> String {
    let SamplingParams { temperature, top_k, top_p, min_p, .. } = writing.sampling;
    let SamplingParams { repetition_penalty, presence_penalty, frequency_penalty, .. } =
        writing.sampling;
    let most = writing.max_tokens.map_or("no limit".to_owned(), |most| most.to_string());
    let mut lines = vec![
        format!("temperature         {temperature}"),
        format!("top_k               {top_k}"),
        format!("top_p               {top_p}"),
        format!("min_p               {min_p}"),
        format!("max_tokens          {most}"),
        format!("repetition_penalty  {repetition_penalty}"),
        format!("presence_penalty    {presence_penalty}"),
        format!("frequency_penalty   {frequency_penalty}"),
    ];
    lines.extend(writing.stops.iter().map(|stop| format!("stop                {stop:?}")));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Seed;

    #[test]
    fn parameters_are_set_as_options_are() {
        let set = |text: &str| changed(&SamplingArgs::default(), text);
        assert_eq!(set("temperature 0.5").unwrap().temperature, Some(0.5));
        assert_eq!(set("parameter temperature 1").unwrap().temperature, Some(1.0));
        assert_eq!(set("num_predict 7").unwrap().max_tokens, Some(7));
        assert_eq!(set("seed -1").unwrap().seed, Some(Seed::Random));
        assert_eq!(set("Top-K 3").unwrap().top_k, Some(3));
        assert_eq!(set("stop two words").unwrap().stop, ["two words"]);
        let kept = changed(&set("top_k 3").unwrap(), "min_p 0.1").unwrap();
        assert_eq!((kept.top_k, kept.min_p), (Some(3), Some(0.1)));
        for (wrong, said) in [
            ("temprature 1", "Did you mean temperature?"),
            ("temperature", "needs a value"),
            ("temperature hot", "give a number such as 0.7"),
            ("seed abc", "invalid value 'abc' for seed: "),
            ("num_ctx 4096", "start with --context"),
            ("logit_bias 1=2", "These can be set: temperature"),
            ("", "These can be set"),
        ] {
            let error = set(wrong).unwrap_err().to_string();
            assert!(error.contains(said), "{wrong}: {error}");
        }
    }
}
