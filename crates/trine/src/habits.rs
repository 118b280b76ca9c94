//! Command lines as people type them who come from other programs: llama.cpp's options, Ollama's
//! commands, and `run` left out. What means the same here is turned into that; for the rest there
//! is one sentence with the right command and what was typed.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};

use crate::output;
use crate::picture_file::{expanded, is_picture};

/// Commands whose first argument is a model: `-m FILE` names it.
const MODEL_FIRST: [&str; 12] = [
    "run", "chat", "serve", "server", "bench", "eval", "explain", "plan", "quantize", "show",
    "pull", "logits",
];
/// How llama.cpp's programs take a model: a file, or a repository of Hugging Face.
const MODEL_OPTIONS: [&str; 4] = ["-m", "--model", "-hf", "--hf-repo"];
/// Options of llama.cpp with one dash and several letters, and the same here.
const LONG: [(&str, &str); 3] =
    [("-ngl", "--gpu-layers"), ("-np", "--parallel"), ("-sys", "--system")];

/// Words that are no commands, and what does what they say.
const COMMANDS: [(&[&str], &str); 10] = [
    (&["get", "download", "fetch", "install", "add"], "pull"),
    (&["load", "start", "ask", "prompt", "generate", "complete", "cli"], "run"),
    (&["models", "tags", "local"], "list"),
    (&["remove", "delete", "del", "uninstall"], "rm"),
    (&["status", "running", "loaded"], "ps"),
    (&["unload", "kill"], "stop"),
    (&["find", "catalog", "catalogue", "library", "available"], "search"),
    (&["info", "inspect", "describe"], "show"),
    (&["benchmark", "perf", "llama-bench"], "bench"),
    (&["convert", "quantise"], "quantize"),
];

/// Options that other programs have, and what there is here.
const OPTIONS: [(&str, &str); 5] = [
    (
        "--format",
        "the server's API takes a JSON schema; see \"Structured output\" in docs/server.md",
    ),
    ("--nowordwrap", "words are wrapped on a terminal only: add `| cat`"),
    ("--hidethinking", "--no-think has the model answer at once"),
    ("--n-cpu-moe", "experts that the GPU has no room for run on the CPU by themselves"),
    ("--flash-attn", "attention is always computed so; leave it out"),
];

/// Returns the command line that is meant, without the program's name.
pub(crate) fn understood(typed: Vec<OsString>, program: &Command) -> Vec<OsString> {
    if typed == ["version"] || typed == ["-v"] {
        return vec!["--version".into()];
    }
    let end = typed.iter().position(|word| word == "--").unwrap_or(typed.len());
    let (typed, rest) = typed.split_at(end);
    let mut meant: Vec<OsString> = typed.iter().map(|word| renamed(word)).collect();
    let at = match command_at(&meant, program) {
        Some(at) => at,
        None if is_run(&meant) => {
            meant.insert(0, "run".into());
            0
        }
        None => return meant.into_iter().chain(rest.iter().cloned()).collect(),
    };
    if MODEL_FIRST.iter().any(|name| meant[at] == **name) {
        let (others, models) = without_models(meant.split_off(at + 1));
        meant.extend(models);
        meant.extend(others);
    }
    meant.extend(rest.iter().cloned());
    meant
}

fn renamed(word: &OsStr) -> OsString {
    let found = LONG.iter().find(|(theirs, _)| word == *theirs);
    found.map_or_else(|| word.to_owned(), |(_, ours)| (*ours).into())
}

/// Returns whether a command line without a command begins with an option of `run`.
fn is_run(typed: &[OsString]) -> bool {
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
    let is_it = |arg: &&Arg| match option.strip_prefix("--") {
        Some(name) => {
            let names = arg.get_long_and_visible_aliases().unwrap_or_default();
            let hidden = arg.get_all_aliases().unwrap_or_default();
            names.contains(&name) || hidden.contains(&name)
        }
        None => {
            let mut letters = option.chars().skip(1);
            arg.get_short() == letters.next() && letters.next().is_none()
        }
    };
    let run = program.find_subcommand("run");
    let all = program.get_arguments().chain(run.into_iter().flat_map(Command::get_arguments));
    all.into_iter().find(is_it).is_some_and(|arg| arg.get_action().takes_values())
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
    let text = if let Some((_, command)) =
        COMMANDS.iter().find(|(words, _)| words.contains(&&*lower))
    {
        write(command, &rest)
    } else if lower == "launch" {
        "write: trine serve, and give the program its address, http://127.0.0.1:8080/v1; docs/server.md shows how".to_owned()
    } else if is_for_run(&unknown) {
        write("run", &others.join(" "))
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
        || crate::embedded::Embedded::find(word).is_some()
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
            ("-m m.gguf -c 4096 -ngl 99 -t 4", "run m.gguf -c 4096 --gpu-layers 99 -t 4"),
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
            let found = understood(words, &program).join(OsStr::new(" "));
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
