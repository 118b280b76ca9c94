//! `run` as a chat: from a script, and typed on a terminal.

use std::io::{Read, Write};
use std::process::Stdio;

use crate::common::{Ran, finish, model, trine_with};
use crate::stores::Store;

const CHAT: [&str; 6] = ["--interactive", "--temperature", "0", "--max-tokens", "6", "--threads=1"];

fn chat(script: &str) -> Ran {
    chat_with(script, &[])
}

fn chat_with(script: &str, arguments: &[&str]) -> Ran {
    let model = model();
    trine_with(script, &[&["run", model.as_str()][..], &CHAT, arguments].concat())
}

#[test]
fn a_chat_remembers_and_forgets() {
    let script = "hello\nhello\n/reset\nhello\n/exit\nnever sent\n";
    let ran = chat(script).ok();
    assert!(ran.err.contains("forgotten"), "{}", ran.err);
    let alone = chat("hello\n").ok().out;
    assert!(ran.out.starts_with(&alone) && ran.out.ends_with(&alone), "{:?} {alone:?}", ran.out);
    assert!(ran.out.len() > 2 * alone.len(), "three answers");
}

#[test]
fn chat_commands_and_their_mistakes() {
    let ran = chat(
        "/help\n/hlep\n/save\n/system Be brief.\n/load /no/such/file\n/think on\n/think hard\n\n\
         /bye\n",
    );
    assert_eq!((ran.code, ran.out.as_str()), (1, ""), "a script can tell that something failed");
    for expected in [
        "/save FILE",
        "Did you mean /help?",
        "needs a file name",
        "system text is set",
        "/no/such/file",
        "does not think before it answers",
        "on, off, or the most tokens",
    ] {
        assert!(ran.err.contains(expected), "{expected}: {}", ran.err);
    }
}

#[test]
fn parameters_are_seen_and_changed_and_answers_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("chat.json").display().to_string();
    let script = format!(
        "hello\n/retry\n/set parameter temperature 0.5\n/set top_p 7\n/show\n/save {file}\n"
    );
    let ran = chat(&script);
    assert_eq!(ran.code, 1);
    let set = "temperature 0.5 from the next answer on";
    for said in ["temperature         0.5", "2 messages", "top_p", set] {
        assert!(ran.err.contains(said), "{said}: {}", ran.err);
    }
    let saved = std::fs::read_to_string(&file).unwrap();
    let saved: serde_json::Value = serde_json::from_str(&saved).unwrap();
    assert_eq!(saved["parameters"]["temperature"], 0.5);
    assert_eq!(saved["messages"].as_array().unwrap().len(), 2);
    assert_eq!(saved["messages"][1]["earlier"].as_array().unwrap().len(), 1, "{saved}");
    let nothing = chat("/retry\n");
    assert!(nothing.err.contains("no answer to try again"), "{}", nothing.err);
}

/// A chat that continues texts keeps no conversation, and no other model goes on with it.
#[test]
fn a_chat_without_a_template_offers_what_it_does() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("chat.json");
    let script = format!("hello\n/model\n/save {}\n", file.display());
    let told = chat_with(&script, &["--raw"]);
    assert!(told.code == 1 && !file.exists(), "{}", told.err);
    for said in ["/exit leaves, for another one", "it keeps no conversation"] {
        assert!(told.err.contains(said), "{said}: {}", told.err);
    }
    assert!(!told.err.contains("/model NAME"), "{}", told.err);
}

#[test]
fn a_chat_goes_on_with_another_model() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("chat.json").display().to_string();
    let script = format!(
        "/set top_k 7\nhello\n/models\n/model no-such-model\n/model demo-draft\nhello\n/show\n\
         /save {file}\n"
    );
    let ran = chat(&script);
    assert_eq!(ran.code, 1, "one model is not there");
    for said in [
        "/model NAME goes on with another one",
        "there is no model no-such-model",
        "the conversation goes on with demo-draft",
        "model               demo-draft",
        "conversation        4 messages",
        "top_k               7",
    ] {
        assert!(ran.err.contains(said), "{said}: {}", ran.err);
    }
    let saved = std::fs::read_to_string(&file).unwrap();
    let saved: serde_json::Value = serde_json::from_str(&saved).unwrap();
    assert_eq!((&saved["model"], &saved["parameters"]["top_k"]), (&"demo-draft".into(), &7.into()));
    assert_eq!(saved["messages"].as_array().unwrap().len(), 4, "{saved}");
    let options = ["--temperature", "0", "--max-tokens", "6", "--threads=1", "--top-k", "7"];
    let load = format!("/load {file}\nagain\n");
    let alone = trine_with(&load, &[&["run", "demo-draft", "-i"][..], &options].concat()).ok();
    let after = chat(&format!("/load {file}\n/set top_k 7\n/model demo-draft\nagain\n")).ok();
    assert_eq!(after.out, alone.out, "the other model sees the same conversation");
}

#[test]
fn a_model_that_a_chat_cannot_go_on_with_leaves_the_one_at_hand() {
    let other = model();
    let script =
        format!("hello\n/model gemma3:27b\n/model {other}\nhello\n/model demo-draft\n/show\n");
    // The other one has no token of this number, and its draft has no room for this context.
    let options =
        ["--logit-bias", "8000=1", "--context", "900", "--max-tokens", "4", "--threads=1"];
    let ran = trine_with(&script, &[&["run", "demo", "-i"][..], &options].concat());
    assert_eq!(ran.code, 1);
    assert!(!ran.err.contains("error: gemma3:27b"), "it is a question: {}", ran.err);
    for said in [
        "Repeat /model gemma3:27b to download it, about",
        "logit_bias is for token id 8000",
        "the conversation goes on with demo\n",
        "model               demo-draft",
        "4 messages",
        "context             900 tokens",
    ] {
        assert!(ran.err.contains(said), "{said}: {}", ran.err);
    }
}

/// The other model cannot be opened, and the one at hand is gone meanwhile.
#[test]
fn a_conversation_that_no_model_goes_on_with_is_in_a_file() {
    let store = Store::new();
    let own = store.folder.path().join("own.gguf");
    let asset = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/demo.gguf");
    std::fs::copy(asset, &own).unwrap();
    // The other one has no token of this number.
    let options = [&["run", own.to_str().unwrap(), "--logit-bias", "8000=1"][..], &CHAT].concat();
    let mut command = store.command(&options);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let (mut typed, mut out) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    typed.write_all(b"hello there\n").unwrap();
    out.read_exact(&mut [0]).unwrap();
    // It is open, and the next line is read after the answer.
    std::fs::remove_file(&own).unwrap();
    writeln!(typed, "/model {}", model()).unwrap();
    drop(typed);
    let mut rest = Vec::new();
    out.read_to_end(&mut rest).unwrap();
    let ran = finish(child.wait_with_output().unwrap());
    assert_eq!(ran.code, 1, "{}", ran.err);
    let rescued = store.folder.path().join(".chat-rescued");
    let said = format!("the conversation is saved; /load {} goes on", rescued.display());
    assert!(ran.err.contains(&said), "{}", ran.err);
    let again = chat(&format!("/load {}\n/show\n", rescued.display())).ok();
    assert!(again.err.contains("2 messages"), "{}", again.err);
    assert!(std::fs::read_to_string(rescued).unwrap().contains("hello there"));
}

#[test]
fn conversations_are_saved_and_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("chat.json").display().to_string();
    let first = chat(&format!("/system Be brief.\nhello\n/save {file}\nwhat?\n")).ok();
    let saved: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(saved["system"], "Be brief.");
    assert_eq!(saved["messages"][0]["content"], "hello");
    assert_eq!(saved["messages"].as_array().unwrap().len(), 2);
    assert_eq!(saved["trine_conversation"], 2);
    assert_eq!(saved["parameters"], serde_json::json!({"temperature": 0.0, "max_tokens": 6}));
    let second = chat(&format!("/load {file}\nwhat?\n")).ok();
    assert!(first.out.ends_with(&second.out), "{:?} {:?}", first.out, second.out);
}

#[test]
fn several_lines_are_one_input() {
    let block = chat("\"\"\"one\ntwo\"\"\"\n").ok().out;
    assert_eq!(chat("one\\\ntwo\n").ok().out, block);
    assert_ne!(chat("one\ntwo\n").ok().out, block);
}

/// Arguments with which an answer goes on as long as it may.
const ENDLESS: [&str; 4] = ["--logit-bias", "1=-100", "--logit-bias", "106=-100"];

#[test]
fn a_chat_goes_on_when_the_context_is_full() {
    let messages = "/system Be brief.\n".to_owned() + &"hello there, my good friend\n".repeat(20);
    let arguments = [&["--context", "200"][..], &ENDLESS].concat();
    let ran = chat_with(&messages, &arguments).ok();
    assert!(ran.err.contains("the context of 200 tokens is full"), "{}", ran.err);
    assert!(ran.err.contains("but still the system text"), "{}", ran.err);
    assert_eq!(ran.err.matches("(stopped at --max-tokens)").count(), 20, "{}", ran.err);
    let notes = ran.err.matches("does not see").count();
    assert!((1..=5).contains(&notes), "several messages leave at once: {notes}");
}

#[test]
fn an_answer_that_reaches_the_end_of_the_context_does_not_end_the_chat() {
    let arguments = [&["--context", "64", "--max-tokens", "1000"][..], &ENDLESS].concat();
    let model = model();
    let arguments = [&["run", &model, "-i", "--temperature", "0"][..], &arguments].concat();
    let ran = trine_with("hello\nhello again\n", &arguments).ok();
    assert_eq!(
        ran.err.matches("(stopped: the context of 64 tokens is full").count(),
        2,
        "{}",
        ran.err
    );
    assert!(!ran.err.contains("--context"), "the chat goes on by itself: {}", ran.err);
}

#[test]
fn a_message_without_room_is_refused_with_its_length() {
    let long = "word ".repeat(500);
    let ran = chat_with(&format!("hello\n{long}\nhello\n"), &["--context", "100"]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("the message has") && ran.err.contains("takes 100"), "{}", ran.err);
    assert!(ran.err.contains("larger --context (up to 32768)"), "{}", ran.err);
    assert_eq!(ran.err.matches("(stopped at --max-tokens)").count(), 2, "{}", ran.err);
    let longer = "word ".repeat(20_000);
    for raw in [&[][..], &["--raw"]] {
        let ran = chat_with(&format!("{longer}\n"), &[raw, &["--context", "32768"]].concat());
        assert!(ran.err.contains("the message has"), "{}", ran.err);
        assert!(!ran.err.contains("--context"), "there is no larger one: {}", ran.err);
    }
}

#[test]
fn files_of_the_page_are_loaded_with_their_parameters() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("page.json").display().to_string();
    let page = r#"{"format":1,"model":"demo","system":"Be brief.","parameters":{"top_k":3,"max_tokens":2},
        "turns":[{"role":"user","content":"hi"},{"role":"assistant","content":"ho","figures":{"tokens":1}}]}"#;
    std::fs::write(&file, page).unwrap();
    let ran = chat(&format!("/load {file}\nhello\n/save {file}\n")).ok();
    assert!(ran.err.contains("2 messages from") && ran.err.contains("top_k 3"), "{}", ran.err);
    let saved: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(saved["trine_conversation"], 2);
    assert_eq!(saved["messages"].as_array().unwrap().len(), 4);
    assert_eq!(saved["messages"][1]["figures"]["tokens"], 1, "what the page noted is kept");
    // What was typed comes before what the file says.
    let expected = serde_json::json!({"temperature": 0.0, "top_k": 3, "max_tokens": 6});
    assert_eq!(saved["parameters"], expected);
    let wrong = page.replace("\"top_k\":3", "\"top_p\":7");
    std::fs::write(&file, wrong).unwrap();
    let ran = chat(&format!("/load {file}\n"));
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("parameters of") && ran.err.contains("top_p"), "{}", ran.err);
}

#[test]
fn a_system_text_without_room_is_named() {
    let system = format!("/system {}\nhi\n", "word ".repeat(60));
    let model = model();
    let ran = trine_with(&system, &["run", &model, "--interactive", "--context", "20"]);
    assert!(ran.err.contains("with the system text") && ran.err.contains("/system"), "{}", ran.err);
}

#[test]
fn no_conversation_is_lost_without_a_second_word() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (own, other) = (file("own.json"), file("other.json"));
    chat(&format!("hello\n/save {other}\n")).ok();
    let before = std::fs::read(&other).unwrap();

    // Refused, and the conversation goes on.
    let ran = chat(&format!("Bob\n/load {other}\n/save {own}\n"));
    assert!(ran.err.contains("not saved") && ran.err.contains("repeat /load"), "{}", ran.err);
    assert!(std::fs::read_to_string(&own).unwrap().contains("Bob"));
    let ran = chat(&format!("Ann\n/save {other}\n"));
    assert!(ran.err.contains("another conversation"), "{}", ran.err);
    assert_eq!(std::fs::read(&other).unwrap(), before);
    // Something else in between is no repetition.
    chat(&format!("Ann\n/save {other}\nAnn\n/save {other}\n"));
    assert_eq!(std::fs::read(&other).unwrap(), before);

    // Repeated it is obeyed, and what is its own file needs no second word.
    let ran = chat(&format!("Bob\n/load {other}\n/load {other}\n/save {other}\n"));
    assert!(ran.err.contains("2 messages from"), "{}", ran.err);
    assert!(!ran.err.contains("another conversation"), "{}", ran.err);
    chat(&format!("Ann\n/save {other}\n/save {other}\n"));
    assert!(std::fs::read_to_string(&other).unwrap().contains("Ann"));
}

#[cfg(target_os = "linux")]
mod typed {
    use std::process::Child;

    use crate::common::command;
    use crate::pty::{Terminal, ended};

    /// What Ctrl-C types where a line is edited.
    const CTRL_C: &str = "\u{3}";

    fn start(terminal: &Terminal, arguments: &[&str]) -> Child {
        let fixed = ["run", "--threads", "1", "--seed", "1"];
        terminal.spawn_whole(command(&[&fixed[..], arguments].concat()).env("TERM", "xterm"))
    }

    /// What Ctrl-C does while nobody reads keys: the terminal is not the program's own.
    fn interrupt(child: &Child) {
        let id = child.id().to_string();
        assert!(std::process::Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    }

    /// Waits until a text was written `times` times.
    #[track_caller]
    fn wait_for(terminal: &Terminal, text: &str, times: usize) {
        terminal.wait(text, || terminal.written().matches(text).count() >= times);
    }

    #[test]
    fn lines_break_between_words() {
        let story = ["demo", "Once upon a time", "--raw", "--max-tokens", "80"];
        let terminal = Terminal::of_columns(40);
        let mut child = start(&terminal, &[&story[..], &["--quiet"]].concat());
        assert!(ended(&mut child).success());
        let plain = [&["run", "--threads", "1", "--seed", "1"][..], &story].concat();
        let plain = crate::common::trine(&plain).ok().out;
        wait_for(&terminal, plain.split_whitespace().last().unwrap(), 1);
        let written = terminal.written().replace('\r', "");
        assert!(written.lines().count() > 4, "{written}");
        assert!(written.lines().all(|line| line.chars().count() <= 40), "{written}");
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&written), words(&plain), "no word is cut");
    }

    #[test]
    fn what_is_typed_while_the_model_writes_is_the_next_line() {
        let terminal = Terminal::open();
        let endless = ["--logit-bias=1=-100", "--logit-bias=106=-100", "--max-tokens", "400"];
        let mut child = start(&terminal, &[&["demo", "--context", "1024"][..], &endless].concat());
        terminal.wait_for_written(">>> ");
        terminal.press("Tell a story\r");
        let begun = || terminal.written().split("Tell a story").nth(1).map_or(0, str::len) > 40;
        terminal.wait("the beginning of a story", begun);
        terminal.press("/show\n");
        interrupt(&child);
        terminal.wait_for_written("repetition_penalty");
        let story = terminal.written();
        let story = story.split("(stopped)").next().unwrap_or_default();
        assert!(!story.contains("/show") && !story.contains("^C"), "{story}");
        terminal.press("/exit\r");
        assert!(ended(&mut child).success());
        assert!(terminal.is_cooked(), "the terminal is as it was");
    }

    #[test]
    fn a_word_that_leaves_elsewhere_is_asked_about() {
        let terminal = Terminal::open();
        let mut child = start(&terminal, &["demo", "--max-tokens", "3"]);
        terminal.wait_for_written("demo on cpu");
        assert!(!terminal.written().contains("draft:"), "{}", terminal.written());
        terminal.wait_for_written(">>> ");
        terminal.press("exit\r");
        terminal.wait_for_written("/exit to leave; type exit again to say it to the model");
        terminal.press("exit\r");
        wait_for(&terminal, "first after", 1);
        terminal.press("/exit\r");
        assert!(ended(&mut child).success());
    }

    #[test]
    fn statistics_are_for_people() {
        let terminal = Terminal::open();
        let mut child = start(&terminal, &["demo", "Hello", "--max-tokens", "3"]);
        assert!(ended(&mut child).success());
        wait_for(&terminal, "first after", 1);
        let written = terminal.written();
        assert!(written.contains("3 tokens in") && !written.contains("GB/s"), "{written}");
    }

    #[test]
    fn lines_that_are_typed_ahead_are_not_lost() {
        let terminal = Terminal::open();
        let mut child = start(&terminal, &["demo", "--max-tokens", "3"]);
        terminal.wait_for_written(">>> ");
        terminal.press("one\rtwo\rthree\r");
        wait_for(&terminal, "first after", 3);
        terminal.press("/exit\r");
        assert!(ended(&mut child).success());
    }

    #[test]
    fn leaving_takes_two_interrupts_and_names_what_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let terminal = Terminal::open();
        let mut child = start(&terminal, &["demo", "--max-tokens", "3"]);
        terminal.wait_for_written(">>> ");
        terminal.press("hello\r");
        wait_for(&terminal, "first after", 1);
        wait_for(&terminal, ">>> ", 2);
        terminal.press_key(CTRL_C);
        terminal.wait_for_written("Ctrl-C again leaves without it");
        // Anything else begins the count again.
        terminal.press(&format!("/save {}\r", folder.path().join("chat.json").display()));
        terminal.wait_for_written("2 messages in");
        terminal.press_key(CTRL_C);
        terminal.wait_for_written("Ctrl-C again, or /exit, to leave");
        terminal.press_key(CTRL_C);
        assert!(ended(&mut child).success());
    }

    /// Ctrl-C is a signal until the editor of lines has the terminal again.
    #[test]
    fn an_interrupt_between_two_lines_counts_like_a_key() {
        let terminal = Terminal::open();
        let mut child = start(&terminal, &["demo", "--max-tokens", "3"]);
        terminal.wait_for_written(">>> ");
        terminal.press("hello\r");
        wait_for(&terminal, "first after", 1);
        wait_for(&terminal, ">>> ", 2);
        terminal.press_key(CTRL_C);
        terminal.wait_for_written("Ctrl-C again leaves without it");
        interrupt(&child);
        assert!(ended(&mut child).success());
        assert!(terminal.is_cooked(), "the terminal is as it was");
    }

    #[test]
    fn an_impatient_interrupt_does_not_lose_the_conversation() {
        let terminal = Terminal::open();
        let endless = ["--logit-bias=1=-100", "--logit-bias=106=-100"];
        let mut child = start(&terminal, &[&["demo", "--context", "1024"][..], &endless].concat());
        terminal.wait_for_written(">>> ");
        terminal.press("Tell a story\r");
        // The story itself, whatever it is.
        let begun = || terminal.written().split("Tell a story").nth(1).map_or(0, str::len) > 40;
        terminal.wait("the beginning of a story", begun);
        // The second one comes while the answer is stopped, or just after.
        interrupt(&child);
        interrupt(&child);
        wait_for(&terminal, "(stopped)", 1);
        wait_for(&terminal, ">>> ", 2);
        terminal.press("/exit\r");
        assert!(ended(&mut child).success());
    }

    /// One pass over this prompt also samples the first token.
    #[test]
    fn an_interrupt_stops_the_reading_of_a_prompt() {
        let terminal = Terminal::open();
        let long = "word ".repeat(500);
        let mut child = start(&terminal, &["demo", &long, "--device", "reference", "-v"]);
        terminal.wait_for_written("reading the prompt");
        interrupt(&child);
        assert_eq!(ended(&mut child).code(), Some(130));
        wait_for(&terminal, "generated: 0 tokens", 1);
    }
}
