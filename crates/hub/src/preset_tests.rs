use super::*;
use crate::config::HubConfig;

fn hub() -> (tempfile::TempDir, Hub) {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::new(HubConfig::new(folder.path())).unwrap();
    (folder, hub)
}

fn preset(name: &str, from: &str) -> Preset {
    Preset::new(&PresetName::parse(name).unwrap(), from)
}

fn put(hub: &Hub, file: &str, text: &[u8]) {
    std::fs::create_dir_all(hub.presets_folder()).unwrap();
    std::fs::write(hub.presets_folder().join(file), text).unwrap();
}

fn all(hub: &Hub) -> Vec<Preset> {
    let mut all = Vec::new();
    hub.each_preset(|preset| all.push(preset)).unwrap();
    all
}

#[test]
fn a_preset_comes_back_as_it_was_kept() {
    let (_folder, hub) = hub();
    let mut mario = preset("Mario:Formal", "gemma3:4b");
    mario.system = Some("You are \"Mario\".\nSay so.".to_owned());
    mario.parameters.set("temperature", "0.7").unwrap();
    mario.parameters.set("num_ctx", "4096").unwrap();
    mario.parameters.set("stop", "###").unwrap();
    let message = |role, content: &str| PresetMessage { role, content: content.to_owned() };
    mario.messages = vec![message(PresetRole::User, "Hi"), message(PresetRole::Assistant, "Ciao")];
    hub.save_preset(&mario).unwrap();
    assert_eq!(hub.preset("mario:formal").unwrap().unwrap(), mario);
    assert_eq!(hub.preset("mario").unwrap(), None);
    assert_eq!(all(&hub), [mario.clone()]);

    // Another spelling replaces it, and no temporary file is left.
    let again = preset("MARIO:formal", "gemma3:1b");
    hub.save_preset(&again).unwrap();
    assert_eq!(all(&hub), [again]);
    assert_eq!(std::fs::read_dir(hub.presets_folder()).unwrap().count(), 1);
    assert!(hub.list().unwrap().is_empty(), "presets are not models of the store");

    assert!(hub.remove_preset("mario:Formal").unwrap());
    assert!(!hub.remove_preset("mario:formal").unwrap());
    assert!(!hub.remove_preset("../x").unwrap());
}

/// A client that may not fill the disk is told what is taken and what there is; replacing a preset
/// does not add one.
#[test]
fn presets_have_a_room() {
    let (_folder, hub) = hub();
    let room = PresetRoom { count: 3, bytes: 10_000 };
    let save = |name: &str, bytes: usize| {
        let mut preset = preset(name, "demo");
        preset.system = Some("y".repeat(bytes));
        hub.save_preset_within(&preset, room).map_err(|error| error.to_string())
    };
    save("a", 5000).unwrap();
    save("b", 4000).unwrap();
    let error = save("c", 3000).unwrap_err();
    assert!(
        error.contains("there are 2 presets with 9") && error.contains("at most 3 with 10000"),
        "{error}"
    );
    save("b", 1000).unwrap();
    save("c", 3000).unwrap();
    let error = save("d", 0).unwrap_err();
    assert!(error.contains("there are 3 presets"), "{error}");
    save("C", 10).unwrap();
    assert_eq!(hub.preset_names().unwrap(), ["a", "b", "C"]);
    // The machine's owner is not bound, and what is there counts.
    hub.save_preset(&preset("d", "demo")).unwrap();
    hub.remove_preset("a").unwrap();
    assert!(save("e", 0).is_err());
    hub.remove_preset("d").unwrap();
    save("e", 0).unwrap();
}

/// System prompts may be secret.
#[test]
#[cfg(unix)]
fn nobody_else_reads_presets() {
    use std::os::unix::fs::PermissionsExt;
    let (_folder, hub) = hub();
    let file = hub.presets_folder().join("a.toml");
    for before in [None, Some(0o644)] {
        if let Some(mode) = before {
            std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
        }
        hub.save_preset(&preset("a", "demo")).unwrap();
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}

#[test]
fn what_killed_processes_leave_is_removed() {
    let (_folder, hub) = hub();
    hub.save_preset(&preset("a", "demo")).unwrap();
    let folder = hub.presets_folder();
    let at = |name: &str| folder.join(name);
    let dead = [".a.toml.4711.0.tmp", ".p@q.toml.1.12.tmp"];
    let others = [".notes.tmp", "a.toml.1.tmp", ".a.toml.1.2.tmpx"];
    for name in dead.iter().chain(&others) {
        std::fs::write(at(name), "half").unwrap();
    }
    let living = at(".b.toml.1.0.tmp");
    let held = create_temporary(&living, Readers::Nobody).unwrap();
    assert_eq!(hub.preset_names().unwrap(), ["a"]);
    assert!(dead.iter().all(|name| !at(name).exists()));
    assert!(living.exists() && others.iter().all(|name| at(name).exists()));
    drop(held);
    hub.save_preset(&preset("b", "demo")).unwrap();
    assert!(!living.exists());
}

#[test]
fn latest_is_no_tag_of_its_own() {
    let (_folder, hub) = hub();
    hub.save_preset(&preset("mario:latest", "demo")).unwrap();
    assert_eq!(hub.preset("mario").unwrap().unwrap().name, "mario");
    assert_eq!(hub.preset("mario:LATEST").unwrap().unwrap().name, "mario");
}

#[test]
fn names_that_can_be_no_preset() {
    for name in [
        "",
        ":",
        "a:",
        ":b",
        "a/b",
        "..",
        "a..b",
        "../a",
        ".a",
        "a b",
        "ä",
        "a:b:c",
        "con",
        "a\n",
        "-a",
        "gemma3:4b",
        "gemma3",
        "Gemma3:latest",
    ] {
        assert!(PresetName::parse(name).is_err(), "{name:?}");
    }
    let long = "a".repeat(97);
    assert!(PresetName::parse(&long).is_err());
    let error = PresetName::parse("gemma3:4b").unwrap_err().to_string();
    assert!(error.contains("choose another"), "{error}");
}

#[test]
fn presets_are_written_by_several_at_once() {
    let (folder, hub) = hub();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    hub.save_preset(&preset("same", "demo")).unwrap();
                    assert!(hub.preset("same").unwrap().is_some());
                }
            });
        }
    });
    assert_eq!(std::fs::read_dir(folder.path().join(".presets")).unwrap().count(), 1);
}

#[test]
fn presets_stand_on_presets() {
    let (_folder, hub) = hub();
    let mut base = preset("base", "a/b:Q4_0");
    base.system = Some("Be brief.".to_owned());
    base.parameters.temperature = Some(0.5);
    base.parameters.stop = vec!["x".to_owned()];
    hub.save_preset(&base).unwrap();
    let mut near = preset("near", "BASE:latest");
    near.parameters.temperature = Some(0.0);
    hub.save_preset(&near).unwrap();
    let whole = hub.whole_preset("near").unwrap().unwrap();
    assert_eq!((whole.name.as_str(), whole.from.as_str()), ("near", "a/b:Q4_0"));
    assert_eq!(whole.system.as_deref(), Some("Be brief."));
    assert_eq!((whole.parameters.temperature, whole.parameters.stop.len()), (Some(0.0), 1));
}

#[test]
fn circles_and_towers_are_refused() {
    let (_folder, hub) = hub();
    hub.save_preset(&preset("p1", "demo")).unwrap();
    for level in 2..=8 {
        hub.save_preset(&preset(&format!("p{level}"), &format!("p{}", level - 1))).unwrap();
    }
    assert_eq!(hub.whole_preset("p8").unwrap().unwrap().from, "demo");
    let error = hub.save_preset(&preset("p9", "p8")).unwrap_err().to_string();
    assert!(error.contains("eight presets or more"), "{error}");
    let error = hub.save_preset(&preset("p1", "p3")).unwrap_err().to_string();
    assert!(error.contains("p1 on p3 on p2 on p1"), "{error}");
    let error = hub.save_preset(&preset("self", "Self:latest")).unwrap_err().to_string();
    assert!(error.contains("stand on itself"), "{error}");
    // A circle or a tower made by hand ends as well.
    put(&hub, "a.toml", b"version = 1\nname = 'a'\nfrom = 'b'\n");
    put(&hub, "b.toml", b"version = 1\nname = 'b'\nfrom = 'a'\n");
    assert!(hub.whole_preset("a").unwrap_err().to_string().contains("a on b on a"));
    assert!(hub.save_preset(&preset("c", "a")).is_err());
    for level in 1..=12 {
        let text = format!("version = 1\nname = 't{level}'\nfrom = 't{}'\n", level + 1);
        put(&hub, &format!("t{level}.toml"), text.as_bytes());
    }
    assert!(hub.whole_preset("t1").unwrap_err().to_string().contains("more than eight"));
}

#[test]
fn hostile_files_are_errors_that_name_the_place() {
    let (_folder, hub) = hub();
    for (text, said) in [
        (&b"version = 1\nname = 'x'\nfrom = 'm'\ncolour = 3\n"[..], "line 4"),
        (b"version = 1\nname = 'x'\n", "from"),
        (b"version = 2\nname = 'x'\nfrom = 'm'\n", "version 2"),
        (b"version = 1\nname = 'x'\nfrom = ' '\n", "stand on"),
        (b"version = 1\nname = 'x'\nfrom = 'm'\n[parameters]\ntemperature = nan\n", "temperature"),
        (b"version = 1\nname = 'x'\nfrom = 'm'\n[parameters]\ntop_k = -1\n", "line 5"),
        (b"version = 1\nname = 'x'\nfrom = 'm'\n[parameters]\nstop = ['']\n", "stop text is empty"),
        (
            b"version = 1\nname = 'x'\nfrom = 'm'\n[[messages]]\nrole = 'user'\ncontent = ''\n",
            "no answer",
        ),
        (b"\xff\xfe", "UTF-8"),
        (b"", "missing field"),
    ] {
        put(&hub, "x.toml", text);
        let error = hub.preset("x").unwrap_err().to_string();
        assert!(error.contains(said) && error.contains("x.toml"), "{error}");
        assert!(!error.contains('\n'), "{error}");
        assert!(all(&hub).is_empty());
    }
    put(&hub, "x.toml", &vec![b'#'; LARGEST as usize + 1]);
    assert!(hub.preset("x").unwrap_err().to_string().contains("too large"));
    put(&hub, "x.toml", format!("from = {}", "[".repeat(100_000)).as_bytes());
    assert!(hub.preset("x").is_err(), "nesting is bounded");
    // The file's name counts, not the one inside: a preset cannot pose as another.
    put(&hub, "x.toml", b"version = 1\nname = 'y'\nfrom = 'm'\n");
    assert_eq!(hub.preset("x").unwrap().unwrap().name, "x");
}

#[test]
fn parameters_by_their_names_in_ollama() {
    let mut parameters = PresetParameters::default();
    for (name, value) in [
        ("temperature", "0.3"),
        ("repeat_penalty", "1.1"),
        ("num_predict", "100"),
        ("num_ctx", "8192"),
        ("stop", "a"),
        ("stop", "b"),
        ("seed", "7"),
    ] {
        assert_eq!(parameters.set(name, value), Ok(Taken::Set), "{name}");
    }
    assert_eq!(parameters.stop, ["a", "b"]);
    assert_eq!((parameters.max_tokens, parameters.context), (Some(100), Some(8192)));
    assert_eq!(parameters.set("num_predict", "-1"), Ok(Taken::Set));
    assert_eq!(parameters.max_tokens, None);
    let before = parameters.clone();
    for (name, value, said) in [
        ("temperature", "hot", "not a number"),
        ("temperature", "-1", "from 0"),
        ("top_p", "1.5", "from 0 to 1"),
        ("top_k", "-1", "not a number"),
        ("mirostat", "2", "temperature"),
        ("temprature", "1", "near: temperature"),
        ("num_ctx", "0", "context"),
        ("stop", "", "empty"),
    ] {
        let error = parameters.set(name, value).unwrap_err();
        assert!(error.contains(said), "{name}: {error}");
        assert_eq!(parameters, before, "{name}");
    }
    assert!(matches!(parameters.set("num_gpu", "99"), Ok(Taken::Ignored(_))));
    assert!(matches!(parameters.set("mirostat", "0"), Ok(Taken::Ignored(_))));
}
