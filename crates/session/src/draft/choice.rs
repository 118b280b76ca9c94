//! What guesses tokens, as it is asked for.

use crate::device::DeviceChoice;

/// What guesses tokens, as typed or set.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum DraftChoice {
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
    pub fn parse(text: &str) -> Result<Self, String> {
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

/// What guesses tokens, as it was asked for.
#[derive(Debug, Clone, Default)]
pub struct DraftOptions {
    /// What guesses; `None` for what is usual.
    pub draft: Option<DraftChoice>,
    /// The device of a draft model; `None` for the model's.
    pub device: Option<DeviceChoice>,
    /// The guesses of each sequence in every step; `None` for as many as pay.
    pub depth: Option<usize>,
    /// Whether `draft` was asked for this time, and not set for always.
    pub is_typed: bool,
    /// Whether `device` was asked for this time.
    pub is_device_typed: bool,
    /// Where `draft` is set, for people, if it is.
    pub origin: Option<String>,
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
