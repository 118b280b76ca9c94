//! The options about what guesses tokens.

use clap::Args;

use super::values::parse_guesses;
use crate::device::DeviceChoice;

/// What guesses tokens, as typed or set.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum DraftChoice {
    /// The text so far, and the draft model that belongs to an embedded model.
    #[default]
    Auto,
    /// Nothing.
    Off,
    /// The text so far and earlier answers.
    Ngram,
    /// A model of this name, and the text so far.
    Model(String),
}

impl DraftChoice {
    /// Reads `auto`, `off`, `ngram` or a model's name.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "auto" => return Ok(Self::Auto),
            "off" => return Ok(Self::Off),
            "ngram" => return Ok(Self::Ngram),
            _ => {}
        }
        let word = text.trim().to_ascii_lowercase();
        let meant = match word.as_str() {
            "" => return Err("choose auto, off, ngram or a model, such as gemma3:270m".to_owned()),
            "auto" => "auto",
            "off" | "none" | "no" | "false" => "off",
            "ngram" | "n-gram" | "lookup" => "ngram",
            number if number.bytes().all(|byte| byte.is_ascii_digit()) => {
                return Err("--drafts sets the number of guesses".to_owned());
            }
            _ => return Ok(Self::Model(text.to_owned())),
        };
        Err(format!("it is spelled {meant}; a file of that name is ./{}", text.trim()))
    }
}

/// What guesses the tokens that follow, so that a step can verify several. Guesses change how fast
/// tokens come, and never which where logits do not depend on the width of a step.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Drafts")]
pub(crate) struct DraftArgs {
    /// What guesses tokens, which makes text faster and changes none of it on the CPU or with
    /// --batch-invariant: ngram looks them up in the text so far and in earlier answers; a MODEL
    /// with the same tokenizer guesses where that finds nothing or is less often right; auto is
    /// ngram, with demo-draft for demo, and for a Gemma 4 with the draft that was made for it, if
    /// it is on this machine; off [default: auto; bench: off]
    #[arg(long, value_name = "MODEL", value_parser = DraftChoice::parse)]
    pub(crate) draft: Option<DraftChoice>,

    /// Where the draft model runs [default: where the model does, on its first GPU if it has
    /// several]
    #[arg(long, value_name = "DEVICE", value_parser = DeviceChoice::parse)]
    pub(crate) draft_device: Option<DeviceChoice>,

    /// Guesses for each request in every step, as far as there are rows [default: as many as pay;
    /// bench --acceptance: 4]
    #[arg(long, value_name = "N", value_parser = parse_guesses)]
    pub(crate) drafts: Option<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_words_or_models() {
        assert_eq!(DraftChoice::parse("off"), Ok(DraftChoice::Off));
        assert_eq!(DraftChoice::parse("auto"), Ok(DraftChoice::default()));
        assert_eq!(DraftChoice::parse("ngram"), Ok(DraftChoice::Ngram));
        let model = DraftChoice::Model("gemma3:270m".to_owned());
        assert_eq!(DraftChoice::parse("gemma3:270m"), Ok(model));
        assert!(DraftChoice::parse(" ").is_err());
        let file = DraftChoice::Model("./none".to_owned());
        assert_eq!(DraftChoice::parse("./none"), Ok(file));
        for (text, told) in
            [("None", "off"), ("OFF", "off"), ("n-gram", "ngram"), ("5", "--drafts")]
        {
            assert!(DraftChoice::parse(text).unwrap_err().contains(told), "{text}");
        }
    }
}
