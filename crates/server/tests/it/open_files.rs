//! A process that has no more files: row 115 of the list of bad inputs. A shell of Unix sets the
//! limit.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};

use crate::client::{self, ask, connect, head};
use crate::harness::Harness;

/// A server in a process of its own.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        // Without its input it ends.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// The server of the test below.
#[test]
#[ignore = "runs as a child of another test"]
fn child() {
    let server = Harness::start();
    println!("\nlistens at {}", server.address);
    let _ = std::io::stdin().read(&mut [0]);
}

/// Row 115: more connections than the process may have files. Open ones go on, and when some have
/// closed others come in.
#[test]
fn running_out_of_files_is_survived() {
    let mut child = Command::new("sh")
        .args(["-c", "ulimit -n 64 && exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "open_files::child", "--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let served = Served(child);
    let mut line = String::new();
    let address = loop {
        line.clear();
        assert!(lines.read_line(&mut line).unwrap() > 0, "the child ended");
        if let Some((_, address)) = line.split_once("listens at ") {
            break address.trim().parse().unwrap();
        }
    };
    let mut stream = connect(address);
    let mut answers = BufReader::new(stream.try_clone().unwrap());
    let mut ask_again = || {
        stream.write_all(head("GET", "/health", &[]).as_bytes()).unwrap();
        client::read(&mut answers, "GET").status
    };
    assert_eq!(ask_again(), 200);
    let idle: Vec<_> = (0..100).map(|_| connect(address)).collect();
    for _ in 0..20 {
        assert_eq!(ask_again(), 200, "the connection that there was is served");
    }
    drop(idle);
    assert_eq!(ask(address, "GET", "/health", &[], b"").status, 200);
    drop(served);
}
