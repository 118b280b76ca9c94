//! `trine top` beside servers that answer, refuse, and go away.

use crate::common::trine;
use crate::serving::Serving;

#[test]
fn one_picture_of_a_server() {
    let serving = Serving::start(&["--sequences", "2"]);
    let body =
        r#"{"messages":[{"role":"user","content":"Tell me a story"}],"max_tokens":12,"seed":1}"#;
    assert!(serving.ask("POST", "/v1/chat/completions", body).starts_with("HTTP/1.1 200"));
    let url = format!("http://{}", serving.address);
    // Standard output is not a terminal: --once is understood.
    for once in [&[][..], &["--once"]] {
        let arguments = [&["top", "--url", &url, "--interval", "0.2"], once].concat();
        let picture = trine(&arguments).ok().out;
        assert!(
            picture
                .starts_with(&format!("trine {} at {url}, running\n", env!("CARGO_PKG_VERSION"))),
            "{picture}"
        );
        let has = |label: &str, value: &str| {
            let mut lines = picture.lines().filter_map(|line| line.split_once(' '));
            lines.any(|(name, rest)| name == label && rest.trim_start().starts_with(value))
        };
        assert!(has("model", "demo, gemma3, "), "{picture}");
        assert!(
            has("device", "cpu") && has("running", "0 of 2") && has("queue", "empty"),
            "{picture}"
        );
        assert!(has("generated", "0 tok/s") && has("requests", "1"), "{picture}");
        assert!(!picture.contains('\u{1b}'), "{picture}");
    }
}

#[test]
fn what_keeps_it_from_a_picture_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (right, wrong) = (file("right", "# key\nopen-sesame\n"), file("wrong", "close-sesame\n"));
    let serving = Serving::start(&["--api-key-file", &right]);
    let url = format!("http://{}", serving.address);
    let top = |rest: &[&str]| trine(&[&["top", "--interval", "0.1", "--url", &url], rest].concat());
    let error = top(&[]).fails(1);
    assert!(error.contains("wants a key") && error.contains("--api-key-file"), "{error}");
    let error = top(&["--api-key-file", &wrong]).fails(1);
    assert!(error.contains("--api-key-file") && error.contains(&wrong), "{error}");
    assert!(!error.contains("close-sesame"), "{error}");
    assert!(top(&["--api-key-file", &right]).ok().out.contains("demo"));
    drop(serving);
    let error = top(&[]).fails(1);
    assert!(error.contains("trine serve") && error.contains("--url"), "{error}");
    let error = trine(&["top", "--api-key-file", "/no/such/file"]).fails(1);
    assert!(error.contains("/no/such/file"), "{error}");
    for arguments in [
        &["--url", "127.0.0.1:8080"][..],
        &["--interval", "0"],
        &["--interval", "-1"],
        &["--interval", "nan"],
        &["--api-key-file", &file("empty", "\n")],
        &["--tls-ca", &file("none", "")],
    ] {
        trine(&[&["top"], arguments].concat()).fails(2);
    }
}

#[cfg(target_os = "linux")]
mod on_a_terminal {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::process::{Child, Command, Stdio};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::JoinHandle;
    use std::time::Duration;

    use crate::common::command;
    use crate::pty::{CURSOR, LEFT, Terminal, ended};
    use crate::screen;
    use crate::serving::Serving;

    /// A status that names a model, a version and nothing that happens.
    fn status(model: &str) -> String {
        let engine = serde_json::to_value(trine_engine::Status::default()).unwrap();
        let model =
            serde_json::json!({"name": model, "bytes": 1, "device": "a device", "status": engine});
        let other = serde_json::json!({"name": "another", "bytes": 2, "is_loaded": false});
        serde_json::json!({"version": "1", "phase": "running", "started": 1,
            "models": [model, other]})
        .to_string()
    }

    /// Something that answers every request with one body until it is stopped.
    struct Answering {
        address: String,
        is_stopping: Arc<AtomicBool>,
        thread: Option<JoinHandle<()>>,
    }

    impl Answering {
        fn start(address: &str, body: String) -> Self {
            let listener = TcpListener::bind(address).unwrap();
            let address = listener.local_addr().unwrap().to_string();
            let is_stopping = Arc::new(AtomicBool::new(false));
            let stop = Arc::clone(&is_stopping);
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            let thread = std::thread::spawn(move || {
                while let Ok((mut stream, _)) = listener.accept() {
                    if stop.load(Ordering::SeqCst) {
                        return;
                    }
                    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
                    let _ = stream.read(&mut [0; 4096]);
                    let _ = stream.write_all(answer.as_bytes());
                }
            });
            Self { address, is_stopping, thread: Some(thread) }
        }
    }

    impl Drop for Answering {
        fn drop(&mut self) {
            self.is_stopping.store(true, Ordering::SeqCst);
            let _ = std::net::TcpStream::connect(&self.address);
            let _ = self.thread.take().map(JoinHandle::join);
        }
    }

    fn watch(terminal: &Terminal, address: &str) -> Child {
        let url = format!("http://{address}");
        let mut command = command(&["top", "--url", &url, "--interval", "0.1"]);
        terminal.spawn(command.env("TERM", "xterm").stderr(Stdio::piped()))
    }

    fn signal(child: &Child, name: &str) {
        let id = child.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }

    /// Ends a picture in some way; the terminal must be as before, and nothing be said.
    fn ends_well(how: impl FnOnce(&Terminal, &Child), code: i32) {
        let server = Answering::start("127.0.0.1:0", status("demo"));
        let terminal = Terminal::open();
        let mut child = watch(&terminal, &server.address);
        terminal.wait_for("a device");
        assert!(!terminal.is_cooked(), "keys come at once");
        how(&terminal, &child);
        let status = ended(&mut child);
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!((status.code(), &*said), (Some(code), ""));
        assert!(terminal.is_cooked());
        terminal.wait_for_written(LEFT);
        terminal.wait_for_written(CURSOR);
    }

    #[test]
    fn keys_end_it() {
        ends_well(|terminal, _| terminal.press("q"), 0);
        ends_well(|terminal, _| terminal.press("\u{1b}"), 0);
        ends_well(|terminal, _| terminal.press("\u{3}"), 130);
    }

    #[test]
    fn signals_end_it() {
        ends_well(|_, child| signal(child, "-TERM"), 143);
        ends_well(|_, child| signal(child, "-HUP"), 129);
        ends_well(|_, child| signal(child, "-QUIT"), 131);
        ends_well(|_, child| signal(child, "-INT"), 130);
        ends_well(
            |_, child| {
                // Whether the second one finds it still there or not.
                signal(child, "-INT");
                let _ = Command::new("kill")
                    .args(["-INT", &child.id().to_string()])
                    .stderr(Stdio::null())
                    .status();
            },
            130,
        );
    }

    #[test]
    fn a_terminal_that_is_gone_ends_it() {
        let server = Answering::start("127.0.0.1:0", status("demo"));
        let terminal = Terminal::open();
        let mut child = watch(&terminal, &server.address);
        terminal.wait_for("a device");
        terminal.close();
        ended(&mut child);
    }

    #[test]
    fn a_server_goes_away_and_comes_back() {
        // At 127.0.0.1 another test may take the port while no server has it.
        let server = Answering::start("127.77.0.1:0", status("first"));
        let address = server.address.clone();
        let terminal = Terminal::open();
        let mut child = watch(&terminal, &address);
        terminal.wait_for("first (1 of 2)");
        terminal.press("\t");
        terminal.wait_for("another (2 of 2), 2 B, not loaded");
        terminal.press("\u{1b}[A");
        terminal.wait_for("first (1 of 2)");
        terminal.press("?");
        terminal.wait_for("tokens generated per second");
        terminal.press("?");
        drop(server);
        terminal.wait_for(&format!("no server at http://{address}"));
        terminal.wait_for("no answer");
        let server = Answering::start(&address, "<html>".to_owned());
        terminal.wait_for("is not a trine server");
        drop(server);
        let _server = Answering::start(&address, status("second\u{1b}[31m"));
        terminal.wait_for("second\u{fffd}[31m (1 of 2)");
        assert!(!terminal.page().contains("no answer"), "{}", terminal.page());
        terminal.press("q");
        assert_eq!(ended(&mut child).code(), Some(0));
    }

    #[test]
    fn a_server_that_wants_a_key_ends_it() {
        let folder = tempfile::tempdir().unwrap();
        let keys = folder.path().join("keys");
        std::fs::write(&keys, "open-sesame\n").unwrap();
        let serving = Serving::start(&["--api-key-file", keys.to_str().unwrap()]);
        let terminal = Terminal::open();
        let mut child = watch(&terminal, &serving.address);
        assert_eq!(ended(&mut child).code(), Some(1));
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(said.contains("--api-key-file"), "{said}");
        assert!(terminal.is_cooked());
    }

    /// Run by the test below, in a process of its own with a terminal.
    #[test]
    #[ignore = "takes the terminal and panics"]
    fn a_panic_beside_a_picture() {
        use ratatui::widgets::Paragraph;

        std::panic::set_hook(Box::new(|_| {
            screen::leave();
            eprintln!("reported");
        }));
        let mut screen = screen::Screen::take().unwrap();
        let mut draw = |text| {
            screen.draw(|frame| frame.render_widget(Paragraph::new(text), frame.area())).unwrap();
        };
        draw("before");
        std::thread::spawn(|| panic!("on purpose")).join().unwrap_err();
        draw("afterwards");
    }

    #[test]
    fn a_panic_gives_the_terminal_back_before_it_is_reported() {
        let terminal = Terminal::open();
        assert!(terminal.is_cooked());
        let name = "watching::on_a_terminal::a_panic_beside_a_picture";
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", name, "--ignored", "--nocapture"]);
        let status = ended(&mut terminal.spawn_whole(&mut command));
        terminal.wait_for_written("test result");
        let written = terminal.written();
        assert!(status.success(), "{written}");
        let place =
            |text: &str| written.find(text).unwrap_or_else(|| panic!("no {text} in {written:?}"));
        assert!(place("before") < place(LEFT) && place(LEFT) < place("reported"), "{written:?}");
        assert!(!written.contains("afterwards"), "{written:?}");
        assert!(written.contains(CURSOR) && terminal.is_cooked(), "{written:?}");
    }
}
