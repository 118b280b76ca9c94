//! The text side of a model: its tokenizer and chat template.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use trine_text::{
    ChatTemplate, MAX_TEMPLATE_BYTES, Message, Offer, RenderOptions, ReplyDecoder, ReplyFormat,
    ReplyOptions, ReplyReader, ReplySplitter, Specials, Thoughts, Tokenizer, ToolChoice, Tools,
    Written, reply_format,
};
use trine_weights::Checkpoint;

// Every request names them all.
const _: () = assert!(trine_text::MAX_SUPPRESSED <= trine_engine::sampling::SUPPRESSED_MAX);

/// Returns the tokenizer of a checkpoint.
///
/// # Errors
/// Returns an error if there is none, it is damaged, or the file is no model.
pub fn tokenizer(checkpoint: &Checkpoint) -> Result<Tokenizer> {
    trine_model::check_kind(checkpoint)?;
    Tokenizer::from_checkpoint(checkpoint).with_context(|| {
        format!("text cannot be turned into tokens for {}", checkpoint.source().display())
    })
}

/// Returns the chat template of a checkpoint, if it has one.
///
/// # Errors
/// Returns an error if it is damaged.
pub fn template(checkpoint: &Checkpoint) -> Result<Option<ChatTemplate>> {
    ChatTemplate::from_checkpoint(checkpoint)
        .context("the model's chat template cannot be used (--raw does without)")
}

/// Reads a chat template from a file. If the file ends with a line of text, the line break after it
/// is part of the prompt, although Jinja drops the last line break of a template; after a tag it is
/// not.
///
/// # Errors
/// Returns an error that names the file if it cannot be read, or is no template.
pub fn read_template(path: &Path) -> Result<ChatTemplate> {
    let shown = path.display();
    let mut bytes = Vec::new();
    // A line break may have two bytes in the file, and has one in the template.
    let most = 2 * MAX_TEMPLATE_BYTES;
    std::fs::File::open(path)
        .and_then(|file| file.take(most as u64 + 1).read_to_end(&mut bytes))
        .with_context(|| format!("cannot read {shown}; check the path and its permissions"))?;
    let is_whole = bytes.len() <= most;
    let mut source = match String::from_utf8(bytes) {
        Ok(source) => source.strip_prefix('\u{feff}').unwrap_or(&source).replace("\r\n", "\n"),
        Err(_) if is_whole => bail!("{shown} is not UTF-8 text"),
        Err(_) => String::new(),
    };
    if !is_whole || source.len() > MAX_TEMPLATE_BYTES {
        bail!("{shown} has more than {MAX_TEMPLATE_BYTES} bytes; it cannot be a chat template");
    }
    if source.trim().is_empty() {
        bail!("{shown} is empty: prompts would be, too; give the template of the model's family");
    }
    let ends_with_text =
        |line: &str| !["\n", "}}", "%}", "#}"].iter().any(|end| line.ends_with(end));
    if source.strip_suffix('\n').is_some_and(ends_with_text) {
        source.push('\n');
    }
    ChatTemplate::new(source).with_context(|| format!("{shown} is no chat template in Jinja"))
}

/// The tokenizer and the chat template of a model.
#[derive(Debug, Clone)]
pub struct TextSide {
    /// Converts text to tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Formats conversations; `None` for base models.
    pub template: Option<ChatTemplate>,
    /// How the model may think before it answers.
    pub thinking: Thinking,
}

/// Whether a model thinks before it answers, and how long.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Thinking {
    /// `None` leaves it to the template.
    pub on: Option<bool>,
    /// Most tokens of thoughts.
    pub budget: Option<usize>,
}

impl TextSide {
    /// Reads both. `stop_ids` are the end tokens that the model's configuration names. Text that is
    /// only continued needs no template, so with `needs_template` false even a damaged one is no
    /// error. `own` takes the place of the checkpoint's.
    ///
    /// # Errors
    /// Returns an error if the tokenizer is missing, or something that is needed is damaged.
    pub fn read(
        checkpoint: &Checkpoint,
        stop_ids: &[u32],
        needs_template: bool,
        own: Option<ChatTemplate>,
    ) -> Result<Self> {
        let mut tokenizer = tokenizer(checkpoint)?;
        tokenizer.add_eos_ids(stop_ids);
        let template = match own {
            _ if !needs_template => None,
            Some(own) => Some(own),
            None => template(checkpoint)?,
        };
        Ok(Self { tokenizer: Arc::new(tokenizer), template, thinking: Thinking::default() })
    }

    /// Returns a conversation as the template writes it. What its messages say never becomes a
    /// control token if it is encoded with [`Specials::ParseGuarded`].
    ///
    /// # Errors
    /// Returns an error if the model has no chat template, or that refuses the conversation.
    pub fn rendered(&self, messages: Vec<Message>) -> Result<String> {
        let template = self.template.as_ref();
        let template = template.context("the model has no chat template; use --raw")?;
        let tokenizer = &self.tokenizer;
        let written = self.written(messages)?;
        let messages = template.arranged(written.messages).into_iter();
        let messages: Vec<Message> = messages.map(|message| message.guarded(tokenizer)).collect();
        let options = RenderOptions {
            bos_token: tokenizer.bos_text().into_owned(),
            eos_token: tokenizer.eos_text().into_owned(),
            extra: written.variables,
            ..RenderOptions::default()
        };
        let rendered = template.render(&messages, &options)?;
        Ok(self.format().mended(rendered, options.add_generation_prompt))
    }

    /// Returns the tokens that ask for the next message of a conversation without pictures.
    ///
    /// # Errors
    /// As [`TextSide::rendered`].
    pub fn prompt(&self, messages: Vec<Message>) -> Result<Vec<u32>> {
        let rendered = self.rendered(messages)?;
        Ok(self.tokenizer.encode_prompt(&rendered, Specials::ParseGuarded)?)
    }

    /// Returns what makes text of the tokens of an answer to a prompt, which ends before any of
    /// `stops`.
    pub fn reply(&self, prompt: &[u32], stops: &[String]) -> ReplySplitter {
        let stops = stops.to_vec();
        let options = ReplyOptions { stops, skip_special: true, ..ReplyOptions::default() };
        let decoder = ReplyDecoder::new(Arc::clone(&self.tokenizer), options);
        ReplySplitter::new(decoder, self.reader(prompt))
    }

    /// Returns how the model writes conversations and replies.
    pub fn format(&self) -> Arc<dyn ReplyFormat> {
        reply_format(&self.tokenizer, self.template.as_ref())
    }

    /// Returns how thoughts of an answer to these tokens are held.
    pub fn thoughts(&self, prompt: &[u32]) -> Option<Thoughts> {
        let format = self.format();
        let allowed = self.thinking.on == Some(true);
        Some(Thoughts {
            marks: format.thoughts()?,
            allowed,
            budget: self.thinking.budget.filter(|_| allowed),
            is_open: format.opens_thought(prompt),
        })
    }

    /// Returns what splits an answer to these tokens into thoughts and words; `None` if it is all
    /// words.
    pub fn reader(&self, prompt: &[u32]) -> Option<Box<dyn ReplyReader>> {
        let format = self.format();
        with_no_tools(|offer| format.reader(offer, format.opens_thought(prompt)))
    }

    /// Writes messages for the template, and its variables.
    ///
    /// # Errors
    /// Returns an error if a message has calls of tools in a wrong form.
    pub fn written(&self, messages: Vec<Message>) -> Result<Written> {
        let format = self.format();
        let mut written = with_no_tools(|offer| format.write(messages, offer))?;
        if let (Some(_), Some(on)) = (format.thoughts(), self.thinking.on) {
            written.variables.insert("enable_thinking".to_owned(), on.into());
        }
        Ok(written)
    }
}

/// Calls `work` with an offer of no tools: the program declares none.
fn with_no_tools<T>(work: impl FnOnce(&Offer<'_>) -> T) -> T {
    work(&Offer { tools: &Tools::default(), choice: &ToolChoice::None, parallel: true })
}
