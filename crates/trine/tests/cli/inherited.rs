//! What a server inherits from whoever starts it: ignored signals, closed files, a limit on open
//! files.

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{command, signals};
use crate::serving::Serving;

/// As `nohup` starts it, and as a shell without job control does.
#[test]
fn signals_that_were_ignored_stay_so() {
    let mut command = Serving::command(&[]);
    signals::set(&mut command, libc::SIG_IGN);
    let mut serving = Serving::start_by(&mut command);
    let ignored = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", serving.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    };
    let all = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM];
    assert!(all.iter().all(|signal| ignored() >> (signal - 1) & 1 == 1), "{:x}", ignored());
    for signal in ["-HUP", "-INT", "-TERM"] {
        serving.signal(signal);
        serving.signal(signal);
        assert!(serving.ask("GET", "/ready", "").starts_with("HTTP/1.1 200"), "{signal}");
    }
    serving.signal("-KILL");
    assert_eq!(serving.wait().code(), None);
}

/// The others are still heeded.
#[test]
fn a_server_under_nohup_can_be_ended() {
    let outer = Serving::command(&[]);
    let mut command = Command::new("nohup");
    command.arg(outer.get_program()).args(outer.get_args()).env_clear();
    command.envs(outer.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    signals::set(&mut command, libc::SIG_DFL);
    let mut serving = Serving::start_by(&mut command);
    serving.signal("-HUP");
    assert!(serving.ask("GET", "/ready", "").starts_with("HTTP/1.1 200"));
    serving.signal("-TERM");
    assert_eq!(serving.wait().code(), Some(0));
}

/// Nothing that the server opens gets the number of a standard stream, where messages would be
/// written into it.
#[test]
fn closed_standard_streams_are_not_reused() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let direct = command(&["serve", "--device", "cpu", "--port", &port.to_string()]);
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "exec \"$0\" \"$@\" <&- >&- 2>&-"]).arg(direct.get_program());
    shell.args(direct.get_args()).env_clear();
    shell.envs(direct.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut child = shell.spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    let id = child.id();
    let files = || -> Vec<_> {
        (0..3).map(|number| std::fs::read_link(format!("/proc/{id}/fd/{number}")).ok()).collect()
    };
    let is_null = |path: &Option<PathBuf>| path.as_deref() == Some(Path::new("/dev/null"));
    // Another program may have taken the port meanwhile, and answer before this one has begun.
    while TcpStream::connect(("127.0.0.1", port)).is_err() || !files().iter().all(is_null) {
        assert_eq!(child.try_wait().unwrap(), None, "it has ended");
        assert!(Instant::now() < deadline, "it does not listen, or has {:?}", files());
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The same command under a limit on open files.
fn limited(files: u32, direct: &Command) -> Command {
    let mut limited = Command::new("/bin/sh");
    let script = format!("ulimit -n {files} && exec \"$0\" \"$@\"");
    limited.args(["-c", &script]).arg(direct.get_program()).args(direct.get_args()).env_clear();
    limited.envs(direct.get_envs().filter_map(|(name, value)| Some((name, value?))));
    limited.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    limited
}

#[test]
fn a_low_limit_on_open_files_is_told() {
    let direct = Serving::command(&[]);
    let mut child = limited(128, &direct).spawn().unwrap();
    let mut lines = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut first = String::new();
    std::io::BufRead::read_line(&mut lines, &mut first).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(first.contains("48 connections at once, not 1024"), "{first}");
    let direct = command(&["serve", "--device", "cpu", "--port", "0"]);
    let ended = limited(64, &direct).output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("64 open files") && said.contains("ulimit -n"), "{said}");
}
