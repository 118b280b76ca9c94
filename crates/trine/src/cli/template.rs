//! The option of the chat template.

use std::path::PathBuf;

use clap::Args;

/// The chat template.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct TemplateArgs {
    /// Use this chat template, in Jinja, in place of the model's own
    #[arg(long, value_name = "FILE")]
    pub(crate) chat_template: Option<PathBuf>,
}

impl TemplateArgs {
    /// Reads the template, if one was given.
    ///
    /// # Errors
    /// Returns an error that names the file.
    pub(crate) fn read(&self) -> anyhow::Result<Option<trine_text::ChatTemplate>> {
        self.chat_template.as_deref().map(trine_session::vocabulary::read_template).transpose()
    }
}
