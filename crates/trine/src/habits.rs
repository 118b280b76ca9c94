//! Command lines as people type them who come from other programs: llama.cpp's options, Ollama's
//! commands, and `run` left out. What means the same here is turned into that; for the rest there
//! is one sentence with the right command and what was typed.

use std::ffi::OsString;
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};
use trine_session::picture_file::{expanded, is_picture};

use crate::terminal::output;

/// Commands whose first argument is a model: `-m FILE` names it.
const MODEL_FIRST: [&str; 12] = [
    "run", "chat", "serve", "server", "bench", "eval", "explain", "plan", "quantize", "show",
    "pull", "logits",
];
/// How llama.cpp's programs take a model: a file, or a repository of Hugging Face.
const MODEL_OPTIONS: [&str; 4] = ["-m", "--model", "-hf", "--hf-repo"];
/// Options of llama.cpp, and the same here or under the name that [`OPTIONS`] and [`ALWAYS`] have.
const RENAMED: [(&str, &str); 11] = [
    ("-ub", "--ubatch-size"),
    ("-np", "--parallel"),
    ("-sys", "--system"),
    ("-cnv", "--interactive"),
    ("--conversation", "--interactive"),
    ("-no-cnv", "--raw"),
    ("--no-conversation", "--raw"),
    ("-fa", "--flash-attn"),
    ("-cb", "--cont-batching"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
];
/// Options of llama.cpp that ask for what is always so here.
const ALWAYS: [&str; 4] = ["--flash-attn", "--cont-batching", "--jinja", "--no-display-prompt"];
/// How llama.cpp's programs take the number of layers on GPUs.
const LAYER_OPTIONS: [&str; 2] = ["-ngl", "--n-gpu-layers"];
/// The layers that llama.cpp's users give for all: more than any model has.
const ALL_LAYERS: u64 = 99;

/// Words that are no commands, and what does what they say.
const COMMANDS: [(&[&str], &str); 11] = [
    (&["get", "download", "fetch", "install", "add"], "pull"),
    (&["clone", "copy", "duplicate"], "cp"),
    (&["load", "start", "ask", "prompt", "generate", "complete", "cli"], "run"),
    (&["models", "tags", "local"], "list"),
    (&["remove", "delete", "del"], "rm"),
    (&["status", "running", "loaded"], "ps"),
    (&["unload", "kill"], "stop"),
    (&["find", "catalog", "catalogue", "library", "available"], "search"),
    (&["info", "inspect", "describe"], "show"),
    (&["benchmark", "perf", "llama-bench"], "bench"),
    (&["convert", "quantise"], "quantize"),
];

/// Words that are no commands, and what there is in place of what they do.
const WORDS: [(&[&str], &str); 8] = [
    (
        &["launch"],
        "write: trine serve, and give the program its address, http://127.0.0.1:8080/v1; \
         docs/server.md shows how",
    ),
    (
        &["login", "signin", "logout", "signout", "whoami"],
        "trine has no accounts; for gated models of Hugging Face, set HF_TOKEN to a token of your \
         account there",
    ),
    (
        &["push", "publish", "upload", "share"],
        "trine publishes nothing; for Hugging Face, write: hf upload OWNER/REPO FILE",
    ),
    (
        &["import"],
        "files need no import; write: trine run FILE, or for a short name: trine create NAME \
         --from FILE",
    ),
    (
        &["log", "logs"],
        "the server writes its log to standard error; with systemd: journalctl -u trine",
    ),
    (
        &["daemon", "app", "gui", "ui"],
        "write: trine serve, and open http://127.0.0.1:8080 in a browser",
    ),
    (
        &["uninstall"],
        "trine does not remove itself; docs/installing.md says how. A model is removed by: trine \
         rm MODEL",
    ),
    (
        &["update", "upgrade"],
        "trine does not update itself; docs/installing.md says how it is installed",
    ),
];

/// Options that other programs have, and what there is here.
const OPTIONS: [(&str, &str); 16] = [
    (
        "--format",
        "the server's API takes a JSON schema; see \"Structured output\" in docs/server.md",
    ),
    ("--nowordwrap", "words are wrapped on a terminal only: add `| cat`"),
    ("--hidethinking", "--no-think has the model answer at once"),
    ("--n-cpu-moe", "experts that the GPU has no room for run on the CPU by themselves"),
    ("--flash-attn", "attention is always computed so; leave it out"),
    (
        "--api-key",
        "write the key to a file, and give --api-key-file FILE: other users of this machine see \
         command lines",
    ),
    ("--no-mmap", MAPPED),
    ("--mmap", MAPPED),
    ("--mlock", MAPPED),
    ("-b", BATCHES),
    ("--batch-size", BATCHES),
    ("--modelfile", "`trine show NAME` prints what a preset sets, and what it stands on"),
    ("--system", "`trine show NAME` prints the system text of a preset"),
    ("--parameters", "`trine show NAME` prints the parameters of a preset"),
    ("--cache-type-k", "--kv f32, f16 or int8 sets the format of the KV cache"),
    ("--cache-type-v", "--kv f32, f16 or int8 sets the format of the KV cache"),
];

/// What is said of options about how a file is read.
const MAPPED: &str =
    "files are mapped, and what a device computes with is copied from them; leave it out";
/// What is said of options about the tokens of a prompt that are read at once.
const BATCHES: &str = "how many tokens of a prompt are read at once follows from the device; leave \
                       it out, or write --prefill N";

/// Returns the command line that is meant, without the program's name.
pub(crate) fn understood(typed: Vec<OsString>, program: &Command) -> Vec<OsString> {
    if typed == ["version"] || typed == ["-v"] {
        return vec!["--version".into()];
    }
    let end = typed.iter().position(|word| word == "--").unwrap_or(typed.len());
    let (typed, rest) = typed.split_at(end);
    let mut meant = renamed(typed, program);
    let at = match command_at(&meant, program) {
        Some(at) => at,
        None if lacks_command(&meant) => {
            meant.insert(0, implied(&meant, program).into());
            0
        }
        None => return meant.into_iter().chain(rest.iter().cloned()).collect(),
    };
    if MODEL_FIRST.iter().any(|name| meant[at] == **name) {
        let (others, models) = without_models(meant.split_off(at + 1));
        meant.extend(models);
        meant.extend(others);
    }
    if meant[at] == "server" && meant.get(at + 1).is_some_and(|word| word == "start") {
        // LM Studio's command.
        meant.remove(at + 1);
    }
    meant.extend(rest.iter().cloned());
    meant
}

/// Gives the options of a command line the names that they have here, and leaves out those that ask
/// for what is always so. Values of options stay what they are.
fn renamed(typed: &[OsString], program: &Command) -> Vec<OsString> {
    let mut meant = Vec::with_capacity(typed.len());
    let mut words = typed.iter().peekable();
    while let Some(word) = words.next() {
        let found = RENAMED.iter().find(|(theirs, _)| word == *theirs);
        let word = found.map_or_else(|| word.clone(), |(_, ours)| (*ours).into());
        let text = word.to_string_lossy();
        let (name, value) =
            text.split_once('=').map_or((&*text, None), |(name, value)| (name, Some(value)));
        if ALWAYS.contains(&name) {
            let is_yes = |value: &str| matches!(value, "on" | "auto" | "1" | "true");
            let is_off = |word: &&OsString| *word == "off" || *word == "0";
            if value.is_none_or(is_yes) && words.peek().is_none_or(|next| !is_off(next)) {
                words.next_if(|next| is_yes(&next.to_string_lossy()));
                continue;
            }
        }
        if LAYER_OPTIONS.contains(&name) {
            let layers = value.map(OsString::from).or_else(|| words.next().cloned());
            meant.push("--gpu-layers".into());
            meant.extend(layers.map(|layers| {
                match layers.to_str().and_then(|text| text.parse().ok()) {
                    Some(ALL_LAYERS..) => "auto".into(),
                    _ => layers,
                }
            }));
            continue;
        }
        let takes = takes_value(&text, program);
        meant.push(word);
        if takes {
            meant.extend(words.next().cloned());
        }
    }
    meant
}

/// Returns the command that is left out: `serve` if there is an option that only servers have.
fn implied(typed: &[OsString], program: &Command) -> &'static str {
    let has = |command: &str, option: &str| {
        program
            .find_subcommand(command)
            .is_some_and(|found| found.get_arguments().any(|arg| is_named(arg, option)))
    };
    let is_servers = |word: &OsString| {
        let word = word.to_string_lossy();
        let option = word.split('=').next().unwrap_or_default();
        option.starts_with("--") && has("serve", option) && !has("run", option)
    };
    if typed.iter().any(is_servers) { "serve" } else { "run" }
}

/// Returns whether a command line without a command begins with an option.
fn lacks_command(typed: &[OsString]) -> bool {
    let asks = ["-h", "--help", "-V", "--version"];
    let is_option = |word: &OsString| word.to_string_lossy().starts_with('-') && word != "-";
    typed.first().is_some_and(is_option)
        && !typed.iter().any(|word| asks.iter().any(|ask| word == *ask))
}

/// Returns where the command's name is: the first word that is neither an option nor its value.
fn command_at(typed: &[OsString], program: &Command) -> Option<usize> {
    let mut at = 0;
    while let Some(word) = typed.get(at) {
        let word = word.to_string_lossy();
        if !word.starts_with('-') {
            return program.find_subcommand(&*word).map(|_| at);
        }
        at += if takes_value(&word, program) { 2 } else { 1 };
    }
    None
}

/// Returns whether the word after an option is its value.
fn takes_value(option: &str, program: &Command) -> bool {
    if option.contains('=') {
        return false;
    }
    if MODEL_OPTIONS.contains(&option) {
        return true;
    }
    let commands = ["run", "serve"].into_iter().filter_map(|name| program.find_subcommand(name));
    let mut all = program.get_arguments().chain(commands.flat_map(Command::get_arguments));
    all.find(|arg| is_named(arg, option)).is_some_and(|arg| arg.get_action().takes_values())
}

/// Returns whether an argument is the option of a name, with its dashes.
fn is_named(arg: &Arg, option: &str) -> bool {
    match option.strip_prefix("--") {
        Some(name) => {
            arg.get_long() == Some(name)
                || arg.get_all_aliases().unwrap_or_default().contains(&name)
        }
        None => {
            let mut letters = option.chars().skip(1);
            let (letter, more) = (letters.next(), letters.next());
            let others = arg.get_all_short_aliases().unwrap_or_default();
            more.is_none()
                && letter.is_some_and(|it| arg.get_short() == Some(it) || others.contains(&it))
        }
    }
}

/// Takes the models that options name out of a command's arguments.
fn without_models(typed: Vec<OsString>) -> (Vec<OsString>, Vec<OsString>) {
    let (mut others, mut models) = (Vec::new(), Vec::new());
    let mut words = typed.into_iter().peekable();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        let glued =
            MODEL_OPTIONS.iter().find_map(|name| text.strip_prefix(name)?.strip_prefix('='));
        if let Some(model) = glued {
            models.push(model.into());
        } else if MODEL_OPTIONS.contains(&&*text) && words.peek().is_some() {
            models.extend(words.next());
        } else {
            others.push(word);
        }
    }
    (others, models)
}

/// Corrects what is suggested for a command line that cannot be understood.
pub(crate) fn correct(told: &mut clap::Error, typed: &[OsString]) {
    match told.kind() {
        ErrorKind::UnknownArgument => correct_option(told),
        ErrorKind::ArgumentConflict => correct_conflict(told),
        ErrorKind::InvalidSubcommand => correct_command(told, typed),
        _ => {}
    }
}

fn tip(told: &mut clap::Error, text: String) {
    told.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![text.into()]));
}

fn correct_option(told: &mut clap::Error) {
    // The way to pass an option as a text is never what was meant.
    told.remove(ContextKind::Suggested);
    let Some(ContextValue::String(unknown)) = told.get(ContextKind::InvalidArg).cloned() else {
        return;
    };
    if is_picture(&expanded(Path::new(&unknown))) {
        // `--image a.png b.png`, where a list was meant.
        let text = "give each image by an option of its own: --image FILE --image FILE";
        tip(told, text.to_owned());
        return;
    }
    let known = OPTIONS.iter().find(|(option, _)| *option == unknown);
    let near = match told.get(ContextKind::SuggestedArg) {
        Some(ContextValue::String(near)) => {
            !output::close_names(&unknown, [near.as_str()]).is_empty()
        }
        _ => false,
    };
    if known.is_some() || !near {
        told.remove(ContextKind::SuggestedArg);
        // It shows the option that was suggested.
        told.remove(ContextKind::Usage);
    }
    if let Some((_, text)) = known {
        tip(told, (*text).to_owned());
    }
}

fn correct_conflict(told: &mut clap::Error) {
    let kinds = [ContextKind::InvalidArg, ContextKind::PriorArg];
    let named: String =
        kinds.iter().filter_map(|&kind| told.get(kind)).map(ToString::to_string).collect();
    if named.contains("--interactive") && named.to_lowercase().contains("prompt") {
        let text = "a chat takes no prompt: leave it out, and type it in the chat; without \
            --interactive (-cnv) it is answered once";
        tip(told, text.to_owned());
    }
}

fn correct_command(told: &mut clap::Error, typed: &[OsString]) {
    let Some(ContextValue::String(unknown)) = told.get(ContextKind::InvalidSubcommand).cloned()
    else {
        return;
    };
    let lower = unknown.to_lowercase();
    let others: Vec<String> = typed.iter().map(|word| quoted(&word.to_string_lossy())).collect();
    let rest = others.get(1..).map(|rest| rest.join(" ")).unwrap_or_default();
    let write = |command: &str, rest: &str| {
        let space = if rest.is_empty() { "" } else { " " };
        format!("write: trine {command}{space}{rest}")
    };
    let text =
        if let Some((_, command)) = COMMANDS.iter().find(|(words, _)| words.contains(&&*lower)) {
            write(command, &rest)
        } else if let Some((_, text)) = WORDS.iter().find(|(words, _)| words.contains(&&*lower)) {
            (*text).to_owned()
        } else if is_for_run(&unknown) {
            write("run", &others.join(" "))
        } else if is_sentence(typed) && told.get(ContextKind::SuggestedSubcommand).is_none() {
            let words: Vec<_> = typed.iter().map(|word| word.to_string_lossy()).collect();
            write("run", &quoted(&words.join(" ")))
        } else {
            return;
        };
    told.remove(ContextKind::SuggestedSubcommand);
    tip(told, text);
}

/// Returns whether a word in the place of a command is a model or a prompt.
fn is_for_run(word: &str) -> bool {
    word.contains(char::is_whitespace)
        || word.contains([':', '/'])
        || Path::new(word).exists()
        || word.ends_with(".gguf")
        || trine_hub::catalog::find(word).is_some()
        || trine_session::embedded::Embedded::find(word).is_some()
}

/// Returns whether a command line is a prompt without quotes: words, and no options.
fn is_sentence(typed: &[OsString]) -> bool {
    typed.len() > 1 && !typed.iter().any(|word| word.to_string_lossy().starts_with('-'))
}

/// Returns a word as it is typed in a shell.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=,@%+".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    /// What llama.cpp's and Ollama's documents say to type.
    #[test]
    fn command_lines_of_other_programs_are_understood() {
        let program = cli::command();
        for (typed, meant) in [
            ("-m m.gguf -p hi -n 20", "run m.gguf -p hi -n 20"),
            ("-m m.gguf -c 4096 -ngl 99 -t 4", "run m.gguf -c 4096 --gpu-layers auto -t 4"),
            ("run m.gguf -ngl all", "run m.gguf --gpu-layers all"),
            ("run m.gguf --n-gpu-layers=999 -p -ngl", "run m.gguf --gpu-layers auto -p -ngl"),
            ("bench -m m.gguf -ngl 12 -fa 1", "bench m.gguf --gpu-layers 12"),
            ("-m m.gguf -cnv -sys hi", "run m.gguf --interactive --system hi"),
            ("-m m.gguf -no-cnv -p hi", "run m.gguf --raw -p hi"),
            ("-m m.gguf -fa -p hi", "run m.gguf -p hi"),
            ("-m m.gguf -fa on --jinja -f a.txt -s 4", "run m.gguf -f a.txt -s 4"),
            ("run m.gguf --flash-attn=on hi", "run m.gguf hi"),
            ("run m.gguf -fa off", "run m.gguf --flash-attn off"),
            ("run m.gguf -p -fa", "run m.gguf -p -fa"),
            ("-m m.gguf -f -fa -n -1", "run m.gguf -f -fa -n -1"),
            ("-m m.gguf --port 9000 -c 0", "serve m.gguf --port 9000 -c 0"),
            ("--host=0.0.0.0 -m m.gguf", "serve m.gguf --host=0.0.0.0"),
            ("-m m.gguf -np 4 -cb", "serve m.gguf --parallel 4"),
            ("-hf a/b --port run", "serve a/b --port run"),
            ("server start --port 9", "server --port 9"),
            ("run m.gguf -ctk q8_0", "run m.gguf --cache-type-k q8_0"),
            ("--model=m.gguf -p run", "run m.gguf -p run"),
            ("run -p hi -m m.gguf", "run m.gguf -p hi"),
            ("run -hf a/b hello", "run a/b hello"),
            ("serve -m m.gguf --port 1 -np 4", "serve m.gguf --port 1 --parallel 4"),
            ("bench -m m.gguf -p 16 -n 8", "bench m.gguf -p 16 -n 8"),
            ("--context 4096", "run --context 4096"),
            ("--device cpu run demo hi", "--device cpu run demo hi"),
            ("--device cpu -v list", "--device cpu -v list"),
            ("version", "--version"),
            ("-v", "--version"),
            ("-v --help", "-v --help"),
            ("create x --from demo", "create x --from demo"),
            ("run demo -- -m x", "run demo -- -m x"),
            ("gemma3:4b hi", "gemma3:4b hi"),
            ("stop -m", "stop -m"),
            ("run -m", "run -m"),
        ] {
            let words = typed.split(' ').map(OsString::from).collect();
            let found = understood(words, &program).join(std::ffi::OsStr::new(" "));
            assert_eq!(found.to_string_lossy(), meant, "{typed}");
        }
    }

    #[test]
    fn words_are_quoted_as_a_shell_takes_them() {
        assert_eq!(quoted("gemma3:4b"), "gemma3:4b");
        assert_eq!(quoted("say \"hi\""), "\"say \\\"hi\\\"\"");
        assert_eq!(quoted(""), "\"\"");
    }
}
