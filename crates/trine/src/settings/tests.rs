use std::collections::HashMap;

use clap::{CommandFactory, FromArgMatches};
use trine_server::OriginPattern;

use super::*;
use crate::cli::{self, Cli};

/// Reads settings from the text of a file and from variables.
fn settings(text: &str, variables: &[(&str, &str)]) -> Result<Settings> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("trine")).unwrap();
    std::fs::write(folder.path().join("trine/config.toml"), text).unwrap();
    let variables: HashMap<String, OsString> =
        variables.iter().map(|(name, value)| ((*name).to_owned(), OsString::from(value))).collect();
    let lookup = |name: &str| variables.get(name).cloned();
    Settings::from_lookup(&lookup, Some(Path::new("/home/me")), Some(folder.path()))
}

fn problem(text: &str) -> String {
    format!("{:#}", settings(text, &[]).unwrap_err())
}

#[test]
fn the_environment_comes_before_the_file() {
    let text = "model = 'gemma3:4b'\nthreads = 3\nkv = 'int8'\n[sampling]\ntop-p = 0.5\nstop = \
        ['a', 'b']\n";
    let settings = settings(text, &[("TRINE_THREADS", "2"), ("TRINE_MODEL", "")]).unwrap();
    assert_eq!(settings.library.model.as_deref(), Some("gemma3:4b"));
    assert_eq!(settings.placement().threads, Some(2));
    assert_eq!(
        settings.value("threads").unwrap().origin,
        Origin::Environment("TRINE_THREADS".into())
    );
    assert_eq!(settings.value("kv").unwrap().origin, Origin::File(3));
    assert_eq!(settings.sampling().top_p, Some(0.5));
    assert_eq!(settings.sampling().stop, ["a", "b"]);
    assert!(settings.value("device").is_none());
}

#[test]
fn what_cannot_be_used_names_its_line() {
    for (text, said) in [
        (
            "thread = 3\n",
            "line 1: there is no setting thread. Did you mean threads? `trine config`",
        ),
        ("\n\nport = 1\n", "line 3: there is no setting port. Did you mean server.port?"),
        (
            "[servr]\n\nport = 1\n",
            "line 3: there is no setting servr.port. Did you mean server.port?",
        ),
        ("[nothing]\n", "line 1: there is no setting nothing; `trine config`"),
        ("device = 'toaster'\n", "line 1: device: \"toaster\""),
        ("threads = 'many'\n", "line 1: threads: this is of type string; write a number"),
        ("threads = 0\n", "line 1: threads: \"0\""),
        ("context = 99999999999999999999\n", "line 1"),
        ("kv = 3\n", "line 1: kv: this is of type integer; write a text"),
        ("batch-invariant = 1\n", "write true or false"),
        (
            "[server]\nport = 99999\n",
            "line 2: server.port: \"99999\": give a whole number from 0 to 65535",
        ),
        ("[server]\nmemory = '5 apples'\n", "line 2: server.memory"),
        ("[server]\nurl = 'localhost'\n", "line 2: server.url"),
        ("[sampling]\nstop = [1]\n", "line 2: sampling.stop"),
        ("[sampling]\nseed = 1.5\n", "line 2: sampling.seed"),
        ("[sampling]\ntemperature = -1\n", "line 2: sampling.temperature: temperature is -1"),
        ("[sampling]\n\ntop-p = 7\n", "line 3: sampling.top-p: top_p is 7"),
        ("[sampling]\nrepetition-penalty = 0\n", "line 2: sampling.repetition-penalty"),
        ("model = ''\n", "line 1: model: it is empty"),
        ("model = 'a'\nmodel = 'b'\n", "line 2"),
        ("model = \n", "line 1"),
        ("[device]\nname = 'cpu'\n", "line 1: device: this is of type table"),
        ("\u{1b}[31m = 3\n", "line 1"),
    ] {
        let error = problem(text);
        assert!(error.contains(said) && error.contains("config.toml"), "{text:?}: {error}");
        assert!(!error.contains(['\n', '\u{1b}']), "{error:?}");
    }
    let error = settings("", &[("TRINE_KV", "f8")]).unwrap_err().to_string();
    assert!(error.contains("TRINE_KV") && error.contains("int8"), "{error}");
}

#[test]
fn hostile_files_are_bounded() {
    assert!(problem(&"#".repeat(FILE_BYTES_MAX as usize + 1)).contains("not a file of settings"));
    assert!(settings(&format!("model = {}", "[".repeat(100_000)), &[]).is_err());
    let many: String = (0..20_000).map(|index| format!("k{index} = 1\n")).collect();
    assert!(problem(&many).contains("line 1"));
    let missing =
        |name: &str| (name == FILE_VARIABLE).then(|| OsString::from("/no/such/file.toml"));
    let error = Settings::from_lookup(&missing, None, None).unwrap_err().to_string();
    assert!(error.contains("/no/such/file.toml") && error.contains(FILE_VARIABLE), "{error}");
    let folder = |name: &str| (name == FILE_VARIABLE).then(|| OsString::from("/"));
    assert!(Settings::from_lookup(&folder, None, None).is_err());
}

#[test]
fn paths_stand_beside_the_file_or_at_home() {
    let settings = settings("store = '~/models'\n[server]\napi-key-file = 'keys'\n", &[]).unwrap();
    assert_eq!(settings.library.store.as_deref().unwrap(), Path::new("/home/me/models"));
    let keys = Path::new(settings.text("server.api-key-file").unwrap());
    assert!(keys.ends_with("trine/keys") && keys.is_absolute(), "{keys:?}");
}

fn origins(texts: &[&str]) -> Vec<OriginPattern> {
    texts.iter().map(|text| OriginPattern::parse(text).unwrap()).collect()
}

#[test]
fn options_of_the_server_get_the_files_values() {
    let text = "[server]\nport = 9000\nsequences = 3\nmemory = '2G'\norigin = ['https://a', \
        'https://b']\napi-key-file = '/k'\n";
    let settings = settings(text, &[]).unwrap();
    let parse = |typed: &[&str]| {
        let mut matches = settings.fill(Cli::command()).try_get_matches_from(typed).unwrap();
        Cli::from_arg_matches_mut(&mut matches).unwrap().command
    };
    let cli::Command::Serve(args) = parse(&["trine", "serve"]) else { panic!("no server") };
    assert_eq!((args.port, args.sequences, args.memory), (9000, Some(3), Some(2 << 30)));
    assert_eq!(args.origin, origins(&["https://a", "https://b"]));
    assert_eq!(args.host, "127.0.0.1");
    let shared = self::settings("[server]\nshare-prefixes = true\n", &[]).unwrap();
    let mut matches = shared.fill(Cli::command()).try_get_matches_from(["trine", "serve"]).unwrap();
    let shares = Cli::from_arg_matches_mut(&mut matches).unwrap().command;
    assert!(matches!(shares, cli::Command::Serve(args) if args.share_prefixes));
    // What is typed wins, even over settings that it would contradict.
    let typed = ["trine", "serve", "--port", "1", "--insecure-no-auth", "--origin", "https://c"];
    let cli::Command::Serve(args) = parse(&typed) else { panic!("no server") };
    assert_eq!((args.port, args.insecure_no_auth), (1, true));
    assert_eq!(args.origin, origins(&["https://c"]));
    let cli::Command::Top(args) = parse(&["trine", "top"]) else { panic!("no top") };
    assert_eq!(args.server.url.to_string(), "http://127.0.0.1:9000");
    let keys = args.server.api_key_file.unwrap();
    assert!(keys.has_root() && keys.ends_with("k"), "{keys:?}");
}

/// Each setting belongs to an option of the same name.
#[test]
fn every_setting_is_an_option() {
    let command = Cli::command();
    for key in &KEYS {
        let commands: &[&str] = match key.place {
            OptionGroup::Program => continue,
            OptionGroup::Run => &["run"],
            OptionGroup::Serve => &["serve"],
            OptionGroup::Client => &["top"],
        };
        for name in commands {
            let found = command.find_subcommand(name).unwrap();
            let option = found.get_arguments().find(|option| *option.get_id() == key.argument());
            let option = option.unwrap_or_else(|| panic!("{name} has no option of {}", key.name));
            // A default that the command line states is the one that the table states.
            let stated: Vec<_> = option.get_default_values().iter().collect();
            if let ([stated], OptionGroup::Serve) = (stated.as_slice(), key.place) {
                assert_eq!(stated.to_str(), Some(key.default), "{}", key.name);
            }
        }
    }
    let mut names: Vec<String> = KEYS.iter().map(Key::variable).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), KEYS.len());
}
