//! `trine logits`

pub(crate) mod pictures;

use std::fs::File;
use std::io::{BufWriter, Read, Write, stdout};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use trine_engine::Guess;
use trine_model::KvType;
use trine_session::draft::{DraftChoice, Drafting};
use trine_session::fetch::Download;
use trine_session::forecast::PREFILL;
use trine_session::library::ModelLibrary;
use trine_session::model_source::{Source, find};
use trine_session::options::Options;
use trine_session::session::{Session, Sizes};
use trine_weights::create_part;

use crate::callbacks::tell;
use crate::cli::LogitsArgs;
use crate::destination;
use crate::failure::{output_error, usage};
use crate::interrupt::Watch;
use crate::options;
use crate::settings::Settings;
use crate::terminal;
use crate::terminal::output;

/// The largest list of ids that is read, in bytes of JSON.
const IDS_BYTES_MAX: u64 = 1 << 26;

/// Writes the logits of every position.
///
/// # Errors
/// Returns an error if the ids are not a list of this model's tokens or do not fit into its
/// context, a file cannot be read or written, or the model produces logits that are not finite.
pub(crate) fn run(set: &Settings, args: LogitsArgs, verbose: bool) -> Result<()> {
    let library = &set.library;
    let ids = read_ids(&args.ids)?;
    let source = find(library, Some(&args.model), args.fetch.download())?.source;
    let mut settings = options::measuring(set, &args.placement, KvType::F32);
    check_context(&settings, &ids, &args.ids)?;
    let out = destination_of(&args.out, &source)?;
    settings.context = settings.context.or(Some(ids.len()));
    let chunk = args.chunk.unwrap_or(PREFILL).min(ids.len());
    check_length(&source, &ids, &args.ids)?;
    let sizes = Sizes { prefill: Some(chunk), outputs: chunk, ..Sizes::default() };
    let drafting = match &args.draft {
        None => Drafting::default(),
        Some(draft) => named_draft(library, draft, args.fetch.download())?,
    };
    let mut session =
        Session::open_with(library, &source, &settings, sizes, &drafting, |program| program)?;
    tell(&session, verbose);
    let chunk = chunk.min(session.engine.program().facts().options.width.tokens);
    let vocabulary = session.engine.vocabulary();
    check_ids(&ids, vocabulary, &args.ids)?;
    let watch = Watch::new();
    let facts = json!({
        "producer": concat!("trine ", env!("CARGO_PKG_VERSION")),
        "device": session.device,
        "kv": settings.kv.name(),
        "chunk": chunk.to_string(),
    });
    let steps = if args.draft.is_some() { args.steps } else { 0 };
    let mut tensors = vec![("logits", "F32", vec![ids.len(), vocabulary])];
    if steps > 0 {
        let hidden = session.model.config().hidden;
        tensors.push(("draft_tokens", "I64", vec![steps]));
        tensors.push(("draft_logits", "F32", vec![steps, vocabulary]));
        tensors.push(("draft_hidden", "F32", vec![steps, hidden]));
    }
    let mut file = LogitsFile::create(out.as_deref(), &tensors, &facts)?;
    let guesses = session.logits_and_guesses(&ids, chunk, steps, |_, row| {
        file.row(row).and_then(|()| Ok(watch.check()?))
    })?;
    file.guesses(&guesses)?;
    file.finish()?;
    if verbose {
        output::note(&format!(
            "{} positions of {vocabulary} logits in {}",
            ids.len(),
            args.out.display()
        ));
    }
    Ok(())
}

/// Returns the draft whose guesses are written. It has to be named, for what is found differs from
/// machine to machine.
fn named_draft(
    library: &ModelLibrary,
    draft: &DraftChoice,
    download: Download,
) -> Result<Drafting> {
    let word = match draft {
        DraftChoice::Model(name) => return Drafting::reading(library, name, download),
        DraftChoice::Auto => "auto",
        DraftChoice::Off => "off",
        DraftChoice::Ngram => "ngram",
    };
    Err(usage(format!(
        "--draft {word} is not a draft whose guesses can be written; name one that reads the \
         model's caches, or leave it out"
    )))
}

/// Returns the file to write; `None` for standard output.
pub(super) fn destination_of(path: &Path, source: &Source) -> Result<Option<PathBuf>> {
    if path == Path::new("-") {
        if terminal::stdout_is_terminal() {
            return Err(usage(
                "--out -: logits cannot be shown on a terminal; redirect standard output",
            ));
        }
        return Ok(None);
    }
    let file = destination::behind_links(path)?;
    destination::check_logits(&file, source)?;
    Ok(Some(file))
}

/// Checks the number of ids against the context that was asked for.
pub(super) fn check_context(settings: &Options, ids: &[u32], path: &Path) -> Result<()> {
    match settings.context.filter(|&context| context < ids.len()) {
        None => Ok(()),
        Some(context) => Err(usage(format!(
            "{} holds {} ids, more than --context {context}; leave --context out or raise it",
            path.display(),
            ids.len()
        ))),
    }
}

/// Checks the number of ids against the model's context, which is known from its files before
/// anything is loaded.
pub(super) fn check_length(source: &Source, ids: &[u32], path: &Path) -> Result<()> {
    let most = source.open(None)?.config().context;
    if ids.len() > most {
        bail!(
            "{} holds {} ids, more than the {most} tokens that {} was made for; give fewer ids",
            path.display(),
            ids.len(),
            source.name()
        );
    }
    Ok(())
}

/// Reads a list of token ids.
pub(super) fn read_ids(path: &Path) -> Result<Vec<u32>> {
    let name = path.display();
    let fail = || format!("cannot read {name}; check the path and its permissions");
    let file = File::open(path).with_context(fail)?;
    let mut bytes = Vec::new();
    file.take(IDS_BYTES_MAX + 1).read_to_end(&mut bytes).with_context(fail)?;
    if bytes.len() as u64 > IDS_BYTES_MAX {
        bail!("{name} is larger than {IDS_BYTES_MAX} bytes; give a shorter list of token ids");
    }
    let value: Value = serde_json::from_slice(&bytes).map_err(|error| {
        anyhow!("{name} is not JSON ({error}); write a list of token ids such as [2, 10, 11]")
    })?;
    parse_ids(&value).map_err(|problem| {
        anyhow!("{name}: {problem}; write a list of token ids such as [2, 10, 11]")
    })
}

fn parse_ids(value: &Value) -> Result<Vec<u32>, String> {
    let list = value.as_array().ok_or_else(|| format!("{} is not a list", kind(value)))?;
    if list.is_empty() {
        return Err("the list is empty".to_owned());
    }
    let id = |(index, value): (usize, &Value)| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| match value {
            Value::Number(number) => {
                format!("entry {index} is {number}, not a whole number from 0 to {}", u32::MAX)
            }
            other => format!("entry {index} is {}, not a number", kind(other)),
        })
    };
    list.iter().enumerate().map(id).collect()
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Checks ids, which a file has, against the number of the model's tokens.
pub(super) fn check_ids(ids: &[u32], vocabulary: usize, path: &Path) -> Result<()> {
    match ids.iter().position(|&id| id as usize >= vocabulary) {
        None => Ok(()),
        Some(index) => Err(anyhow!(
            "{}: entry {index} is {}, the model's token ids go from 0 to {}; use the model's own \
             tokenizer",
            path.display(),
            ids[index],
            vocabulary - 1
        )),
    }
}

/// A safetensors file that is written in the order of its tensors: to standard output, or under a
/// `.part` name.
///
/// Layout (<https://github.com/huggingface/safetensors>): u64 length of the JSON header, the
/// header, the data.
pub(super) struct LogitsFile {
    /// The path that is written and the final name; `None` for standard output.
    names: Option<[PathBuf; 2]>,
    writer: Option<BufWriter<Box<dyn Write>>>,
    bytes: Vec<u8>,
}

impl LogitsFile {
    /// Begins a file with tensors of a name, a format and a shape.
    pub(super) fn create(
        path: Option<&Path>,
        tensors: &[(&str, &str, Vec<usize>)],
        facts: &Value,
    ) -> Result<Self> {
        let mut header = serde_json::Map::new();
        header.insert("__metadata__".to_owned(), facts.clone());
        let mut start = 0;
        for (name, dtype, shape) in tensors {
            let values: u64 = shape.iter().map(|&size| size as u64).product();
            let end = start + values * if *dtype == "I64" { 8 } else { 4 };
            let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]});
            header.insert((*name).to_owned(), entry);
            start = end;
        }
        let mut header = serde_json::to_string(&header)?;
        // Spaces at the end keep the data aligned.
        header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
        let (names, writer): (_, Box<dyn Write>) = match path {
            #[expect(clippy::disallowed_methods, reason = "numbers, not text")]
            None => (None, Box::new(stdout())),
            Some(path) => {
                destination::clear(path);
                destination::check_room(path, start + header.len() as u64)?;
                let (part, file) = create_part(path).with_context(|| {
                    format!("cannot write {}; check the path and its permissions", path.display())
                })?;
                (Some([part, path.to_owned()]), Box::new(file))
            }
        };
        let writer = Some(BufWriter::with_capacity(1 << 20, writer));
        let mut created = Self { names, writer, bytes: Vec::new() };
        created.write(&(header.len() as u64).to_le_bytes())?;
        created.write(header.as_bytes())?;
        Ok(created)
    }

    pub(super) fn row(&mut self, row: &[f32]) -> Result<()> {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        bytes.extend(row.iter().flat_map(|value| value.to_le_bytes()));
        let written = self.write(&bytes);
        self.bytes = bytes;
        written
    }

    /// Writes guesses: all tokens, then all logits, then all hidden states.
    fn guesses(&mut self, guesses: &[Guess]) -> Result<()> {
        for guess in guesses {
            self.write(&i64::from(guess.token).to_le_bytes())?;
        }
        guesses.iter().try_for_each(|guess| self.row(&guess.logits))?;
        guesses.iter().try_for_each(|guess| self.row(&guess.state))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let writer = self.writer.as_mut().expect("it is open until it is finished");
        writer.write_all(bytes).map_err(|error| self.failure(error))
    }

    fn failure(&self, error: std::io::Error) -> anyhow::Error {
        match &self.names {
            None => output_error(error),
            Some([_, path]) => anyhow::Error::new(error)
                .context(format!("cannot write {}; check the space on its disk", path.display())),
        }
    }

    pub(super) fn finish(mut self) -> Result<()> {
        let mut writer = self.writer.take().expect("it is open until it is finished");
        let flushed = writer.flush();
        let Some([part, path]) = &self.names else {
            return flushed.map_err(output_error);
        };
        // `writer` is open, and so its file locked, until that has its name.
        let saved = flushed
            // On Windows only a file that is open for writing can be flushed to disk.
            .and_then(|()| File::options().write(true).open(part)?.sync_all())
            .and_then(|()| std::fs::rename(part, path));
        if saved.is_err() {
            let _ = std::fs::remove_file(part);
        }
        drop(writer);
        saved.map_err(|error| self.failure(error))
    }
}

impl Drop for LogitsFile {
    fn drop(&mut self) {
        let Some(writer) = self.writer.take() else { return };
        // The rest of the buffer is of no use to anybody.
        let _ = writer.into_parts();
        if let Some([part, _]) = &self.names {
            let _ = std::fs::remove_file(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_ids() {
        let parse = |text: &str| parse_ids(&serde_json::from_str(text).unwrap());
        assert_eq!(parse("[2, 10, 11]"), Ok(vec![2, 10, 11]));
        let wrong = [
            ("[]", "empty"),
            ("{}", "not a list"),
            ("[-1]", "entry 0 is -1"),
            ("[1, 2.5]", "entry 1 is 2.5"),
            ("[4294967296]", "4294967296"),
            ("[[1]]", "a list"),
            ("[\"a\"]", "a text"),
            ("[null]", "null"),
            ("3", "not a list"),
        ];
        for (text, expected) in wrong {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn the_file_is_what_the_format_says() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.safetensors");
        let mut file =
            LogitsFile::create(Some(&path), &[("logits", "F32", vec![2, 3])], &json!({"a": "b"}))
                .unwrap();
        file.row(&[1.0, 2.0, 3.0]).unwrap();
        file.row(&[4.0, 5.0, f32::MIN_POSITIVE]).unwrap();
        file.finish().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let logits = tensors.tensor("logits").unwrap();
        assert_eq!(logits.shape(), [2, 3]);
        assert_eq!(logits.data()[12..16], 4.0_f32.to_le_bytes());
        drop(LogitsFile::create(Some(&path.with_extension("x")), &[], &json!({})).unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "unfinished files vanish");
    }
}
