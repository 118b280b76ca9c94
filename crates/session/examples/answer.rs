//! Loads a model and prints its answer while it is written:
//! `cargo run --release -p trine-session --example answer -- demo "Tell me a story about a fox."`

use std::io::{Write, stdout};

use anyhow::Result;
use trine_engine::{Request, Update};
use trine_session::{ModelLibrary, Options, open};
use trine_text::{Message, ReplyPart};

#[expect(clippy::disallowed_methods, reason = "prints what a model says as it is")]
fn main() -> Result<()> {
    let [model, prompt] = [1, 2].map(|at| std::env::args().nth(at));
    answer(model.as_deref(), prompt.unwrap_or("Tell me a story.".to_owned()), &mut stdout())
}

pub(crate) fn answer(model: Option<&str>, prompt: String, out: &mut dyn Write) -> Result<()> {
    let mut session = open(&ModelLibrary::default(), model, &Options::default())?;
    let text = session.text()?;
    let prompt = text.prompt(vec![Message::new("user", prompt)])?;
    let mut reply = text.reply(&prompt, &[]);
    let stop_ids = text.tokenizer.eos_ids().to_vec();
    session.engine.submit(Request { stop_ids, ..Request::new(prompt, 256) })?;
    while !session.engine.is_idle() {
        for event in session.engine.step()? {
            let parts = match event.update {
                Update::Token { token, .. } => reply.push(token).parts,
                Update::Finished { .. } => reply.finish().parts,
                _ => continue,
            };
            for part in parts {
                if let ReplyPart::Text(text) = part {
                    write!(out, "{text}")?;
                    out.flush()?;
                }
            }
        }
    }
    Ok(())
}
