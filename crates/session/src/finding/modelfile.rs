//! Modelfiles of Ollama: the part of them that describes a preset. Ollama's `docs/modelfile.md`
//! describes the format.

use trine_hub::{PresetMessage, PresetParameters, PresetRole, Taken};
use trine_text::ChatTemplate;

/// The most turns that a file may hold.
const MESSAGES_MAX: usize = 1000;

/// The contents of a Modelfile.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Modelfile {
    /// The model that it is based on.
    pub from: String,
    /// Instructions before a conversation.
    pub system: Option<String>,
    /// The source of the chat template, in Jinja.
    pub template: Option<String>,
    /// How answers are written.
    pub parameters: PresetParameters,
    /// Turns that every conversation begins with.
    pub messages: Vec<PresetMessage>,
    /// What was left out, for people.
    pub notes: Vec<String>,
}

/// The known instructions.
const INSTRUCTIONS: [&str; 8] =
    ["FROM", "PARAMETER", "SYSTEM", "MESSAGE", "TEMPLATE", "ADAPTER", "LICENSE", "REQUIRES"];

/// Parses a Modelfile.
///
/// # Errors
/// Returns a message that begins with the line if an instruction is unknown or cannot be followed,
/// or a value is wrong.
pub fn parse(text: &str) -> Result<Modelfile, String> {
    let mut file = Modelfile::default();
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = text.lines().enumerate();
    // The line number of each message.
    let mut numbers = Vec::new();
    while let Some((index, line)) = lines.next() {
        let number = index + 1;
        let at = |problem: String| format!("line {number}: {problem}");
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let word = word.to_ascii_uppercase();
        if !INSTRUCTIONS.contains(&word.as_str()) {
            let close = crate::words::close_names(&word, INSTRUCTIONS);
            let hint =
                close.first().map_or(String::new(), |close| format!(". Did you mean {close}?"));
            return Err(at(format!("there is no instruction {word:?}{hint}")));
        }
        // PARAMETER and MESSAGE have another word before the value.
        let (argument, rest) = match word.as_str() {
            "PARAMETER" | "MESSAGE" => {
                let (argument, rest) =
                    rest.trim_start().split_once(char::is_whitespace).unwrap_or((rest.trim(), ""));
                (argument, rest)
            }
            _ => ("", rest),
        };
        let value = value(rest.trim(), &mut lines).map_err(at)?;
        file.take(&word, argument, value, number).map_err(at)?;
        if numbers.len() < file.messages.len() {
            numbers.push(number);
        }
    }
    check_turns(&file.messages, &numbers)?;
    if file.from.is_empty() {
        let last = text.lines().count().max(1);
        return Err(format!(
            "line {last}: there is no FROM up to here: write the model on a line such as FROM \
             gemma3:4b"
        ));
    }
    Ok(file)
}

/// Parses a value: the rest of the line, or a text in quotes. A text in triple quotes may span
/// several lines.
fn value<'a>(
    rest: &str,
    lines: &mut impl Iterator<Item = (usize, &'a str)>,
) -> Result<String, String> {
    const QUOTES: &str = "\"\"\"";
    if let Some(first) = rest.strip_prefix(QUOTES) {
        let closed = |text: &str| text.trim_end().strip_suffix(QUOTES).map(str::to_owned);
        if let Some(text) = closed(first) {
            return Ok(text);
        }
        let mut text = first.to_owned();
        if !first.is_empty() {
            text.push('\n');
        }
        for (_, line) in lines {
            if let Some(last) = closed(line) {
                text.push_str(&last);
                return Ok(text);
            }
            text.push_str(line);
            text.push('\n');
        }
        return Err(format!("the text that begins here has no {QUOTES} at its end"));
    }
    let inner = rest.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    Ok(inner.unwrap_or(rest).to_owned())
}

impl Modelfile {
    fn take(
        &mut self,
        word: &str,
        argument: &str,
        value: String,
        number: usize,
    ) -> Result<(), String> {
        if value.is_empty() && word != "LICENSE" && word != "SYSTEM" {
            return Err(format!("{word} has no value"));
        }
        match word {
            "FROM" if !self.from.is_empty() => Err("there is a FROM already".to_owned()),
            "FROM" => {
                self.from = value;
                Ok(())
            }
            "SYSTEM" => {
                self.system = Some(value);
                Ok(())
            }
            "PARAMETER" => {
                let taken = self.parameters.set(argument, &value);
                match taken.map_err(|problem| format!("PARAMETER {argument}: {problem}"))? {
                    Taken::Set => {}
                    Taken::Ignored(reason) => {
                        self.notes.push(format!("line {number}: {argument} is left out: {reason}"));
                    }
                }
                Ok(())
            }
            "MESSAGE" => self.message(argument, value),
            "TEMPLATE" if ChatTemplate::is_jinja(&value) => {
                self.template = Some(value);
                Ok(())
            }
            "TEMPLATE" => {
                self.notes.push(format!(
                    "line {number}: TEMPLATE is left out: it is not written in Jinja; the model's \
                     own template is used"
                ));
                Ok(())
            }
            "ADAPTER" => Err(
                "ADAPTER: trine has no adapters (LoRA); merge it into the model and quantise that"
                    .to_owned(),
            ),
            _ => {
                let reason = match word {
                    "LICENSE" => "the licence is the model's own",
                    _ => "it names a version of Ollama",
                };
                self.notes.push(format!("line {number}: {word} is left out: {reason}"));
                Ok(())
            }
        }
    }

    fn message(&mut self, role: &str, content: String) -> Result<(), String> {
        let role = match role.to_ascii_lowercase().as_str() {
            "user" => PresetRole::User,
            "assistant" => PresetRole::Assistant,
            "system" => {
                self.system = Some(content);
                return Ok(());
            }
            _ => return Err(format!("MESSAGE takes user, assistant or system, not {role:?}")),
        };
        if self.messages.len() >= MESSAGES_MAX {
            return Err(format!("there are more than {MESSAGES_MAX} messages"));
        }
        self.messages.push(PresetMessage { role, content });
        Ok(())
    }
}

/// Checks that turns alternate, the user's first, and end with an answer. `numbers` are their
/// lines.
fn check_turns(messages: &[PresetMessage], numbers: &[usize]) -> Result<(), String> {
    let is_wrong = |(index, message): (usize, &PresetMessage)| {
        (message.role == PresetRole::User) != (index % 2 == 0)
    };
    let unanswered = (messages.len() % 2 == 1).then_some(messages.len().saturating_sub(1));
    let wrong = messages.iter().enumerate().position(is_wrong).or(unanswered);
    match wrong.and_then(|index| numbers.get(index)) {
        None => Ok(()),
        Some(number) => Err(format!(
            "line {number}: MESSAGE lines must alternate, user first, and end with assistant"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_a_preset_is_read() {
        let file = parse(
            "# A comment\n\
             FROM gemma3:4b\n\
             \n\
             parameter temperature 0.5\n\
             PARAMETER stop \"<end>\"\n\
             PARAMETER stop STOP\n\
             PARAMETER num_ctx 4096\n\
             PARAMETER num_gpu 99\n\
             SYSTEM \"\"\"You are \"Mario\".\n\
             # no comment\n\
             \n\
             Say so.\"\"\"\n\
             MESSAGE user Is Toronto in Canada?\n\
             MESSAGE assistant \"\"\"yes\"\"\"\n\
             LICENSE \"\"\"\n\
             long\n\
             \"\"\"\n",
        )
        .unwrap();
        assert_eq!(file.from, "gemma3:4b");
        assert_eq!(file.system.as_deref(), Some("You are \"Mario\".\n# no comment\n\nSay so."));
        assert_eq!(file.parameters.temperature, Some(0.5));
        assert_eq!(file.parameters.stop, ["<end>", "STOP"]);
        assert_eq!(file.parameters.context, Some(4096));
        assert_eq!(file.messages[0].content, "Is Toronto in Canada?");
        assert_eq!(file.messages[1].content, "yes");
        assert_eq!(file.notes.len(), 2, "{:?}", file.notes);
        assert!(file.notes[0].starts_with("line 8: num_gpu"), "{:?}", file.notes);
    }

    #[test]
    fn templates_in_jinja_are_read_and_those_in_go_left_out() {
        let jinja = "{% for m in messages %}{{ m.content }}{% endfor %}";
        let file = parse(&format!("FROM a\nTEMPLATE \"\"\"{jinja}\"\"\"\n")).unwrap();
        assert_eq!((file.template.as_deref(), file.notes.len()), (Some(jinja), 0));
        let file = parse("FROM a\nTEMPLATE \"\"\"{{ .System }}\n{{ .Prompt }}\"\"\"\n").unwrap();
        assert_eq!(file.template, None);
        assert!(file.notes[0].starts_with("line 2: TEMPLATE is left out"), "{:?}", file.notes);
    }

    #[test]
    fn what_cannot_be_followed_names_its_line() {
        for (text, said) in [
            ("", "line 1: there is no FROM"),
            ("MESSAGE user a\nMESSAGE assistant b\n", "line 2: there is no FROM"),
            ("MESSAGE user a\n\n", "line 1: MESSAGE lines must alternate"),
            ("FROM\n", "line 1: FROM has no value"),
            ("FROM a\nFROM b\n", "line 2"),
            ("FROM a\n\nADAPTER ./lora.gguf\n", "line 3: ADAPTER"),
            (
                "FROM a\nSYSTM hi\n",
                "line 2: there is no instruction \"SYSTM\". Did you mean SYSTEM?",
            ),
            (
                "FROM a\nPARAMETER temprature 1\n",
                "line 2: PARAMETER temprature: there is no such parameter; near: temperature",
            ),
            ("FROM a\nPARAMETER temperature\n", "line 2: PARAMETER has no value"),
            ("FROM a\nPARAMETER mirostat 2\n", "line 2"),
            ("FROM a\nSYSTEM \"\"\"no end\n", "line 2: the text that begins here"),
            ("FROM a\nMESSAGE robot hi\n", "line 2: MESSAGE takes"),
            ("FROM a\nMESSAGE assistant hi\n", "line 2: MESSAGE lines must alternate"),
            ("FROM a\nMESSAGE user hi\nMESSAGE user ho\n", "line 3: MESSAGE lines must alternate"),
            (
                "FROM a\nMESSAGE user \"\"\"x\ny\"\"\"\nMESSAGE assistant z\n\nMESSAGE user hi\n",
                "line 6: MESSAGE lines must alternate",
            ),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(said), "{text:?}: {error}");
        }
    }
}
