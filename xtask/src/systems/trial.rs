//! Tries `trine` as a program of another system: it writes a story and serves.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::driver::Driver;
use crate::programs::{self, Program};

/// How long a server may take to print something, and to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// The exit code of a program that Ctrl-C has ended.
const INTERRUPTED: i32 = 130;

/// Writes a story. Then requests one from a server and ends that by one Ctrl-C, and another server
/// by two.
pub(super) fn run(root: &Path, driver: &Driver, trine: &Program) -> anyhow::Result<()> {
    eprintln!("== trine: run, serve");
    let start = Instant::now();
    let mut story = trine.command(root, Some(driver));
    story.args(["run", "demo", "Tell me a story", "--max-tokens", "8", "--temperature", "0"]);
    let story = programs::output(&mut story).context("trine run")?;
    if story.split_whitespace().count() < 3 {
        bail!("trine run wrote {story:?}");
    }

    let mut server = Server::start(root, driver, trine)?;
    let mut answer = String::new();
    server.ask(r#"{"prompt":"Once","max_tokens":4}"#)?.read_to_string(&mut answer)?;
    let status = answer.lines().next().unwrap_or_default().to_owned();
    if !status.starts_with("HTTP/1.1 200") || !answer.contains("\"text\"") {
        bail!("trine serve answered {answer:?}");
    }
    server.interrupt()?;
    let ended = server.wait()?;
    if !ended.success() {
        bail!("trine serve ended with {ended} after Ctrl-C; it said {:?}", server.said());
    }

    let mut server = Server::start(root, driver, trine)?;
    let mut stream =
        server.ask(r#"{"prompt":"Once","max_tokens":1000,"ignore_eos":true,"stream":true}"#)?;
    stream.read_exact(&mut [0; 200])?;
    server.interrupt()?;
    server.read_until("finishing the requests in flight")?;
    server.interrupt()?;
    let ended = server.wait()?;
    if ended.code() != Some(INTERRUPTED) {
        bail!(
            "trine serve ended with {ended} after two Ctrl-C in an answer; it said {:?}",
            server.said()
        );
    }
    eprintln!(
        "== trine: wrote {:?}, answered {status:?} and ended by Ctrl-C, {:.0} s",
        story.trim(),
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

/// A running server. Dropping it kills it.
struct Server {
    child: Child,
    /// The lines of its standard error.
    lines: Receiver<String>,
    said: String,
    address: String,
}

impl Server {
    fn start(root: &Path, driver: &Driver, trine: &Program) -> anyhow::Result<Self> {
        let mut command = trine.command(root, Some(driver));
        command.args(["serve", "--port", "0", "--drain-seconds", "600"]);
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot start trine serve")?;
        let errors = BufReader::new(child.stderr.take().context("standard error is piped")?);
        let (sender, lines) = mpsc::channel();
        // Ends with the server, or with the receiver.
        std::thread::spawn(move || {
            errors.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let mut server = Self { child, lines, said: String::new(), address: String::new() };
        const BEFORE: &str = "http://127.0.0.1:";
        let line = server.read_until(BEFORE)?;
        let (_, place) = line.split_once(BEFORE).unwrap_or_default();
        let port: String = place.chars().take_while(char::is_ascii_digit).collect();
        server.address = format!("127.0.0.1:{port}");
        Ok(server)
    }

    /// Reads its output up to a line with these words.
    fn read_until(&mut self, words: &str) -> anyhow::Result<String> {
        loop {
            let Ok(line) = self.lines.recv_timeout(PATIENCE) else {
                bail!("trine serve said {:?} and then nothing with {words:?}", self.said);
            };
            self.said.push_str(&line);
            self.said.push('\n');
            if line.contains(words) {
                return Ok(line);
            }
        }
    }

    /// Waits for its end and returns all its output.
    fn said(&mut self) -> &str {
        for line in self.lines.iter() {
            self.said.push_str(&line);
            self.said.push('\n');
        }
        &self.said
    }

    /// Sends a request for a completion.
    fn ask(&self, body: &str) -> anyhow::Result<TcpStream> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        write!(
            stream,
            "POST /v1/completions HTTP/1.1\r\n\
             Host: localhost\r\n\
             Connection: close\r\n\
             Content-Length: {}\r\n\
             Content-Type: application/json\r\n\
             \r\n\
             {body}",
            body.len()
        )?;
        Ok(stream)
    }

    /// Sends it the interrupt signal, which Wine turns into Ctrl-C.
    fn interrupt(&self) -> anyhow::Result<()> {
        programs::finish(Command::new("kill").arg("-INT").arg(self.child.id().to_string()))
    }

    fn wait(&mut self) -> anyhow::Result<ExitStatus> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let said: Vec<String> = self.lines.try_iter().collect();
        bail!("trine serve did not end after Ctrl-C; it said {:?} and then {said:?}", self.said)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Most servers have ended by then.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
