//! Programs that cargo builds from this workspace: test programs, examples, and `trine` itself.
//!
//! They are built by one command and started without cargo, because cargo builds the same
//! dependency again for each choice of packages that needs other features of it.

use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::Deserialize;
use wait_timeout::ChildExt;

use crate::driver::Driver;
use crate::meter::{self, Spent};

/// How often it is looked whether a program that writes nothing has ended.
const LOOK: Duration = Duration::from_secs(1);
/// How long the lines of a program that was killed or has ended may take to come.
const REMAINS: Duration = Duration::from_millis(500);

/// A program that cargo built.
#[derive(Debug)]
pub(crate) struct Program {
    /// The kind of its target in cargo's words: `lib`, `bin`, `test`, `example`.
    pub(crate) kind: String,
    /// The target's name.
    pub(crate) name: String,
    /// Whether it is the target's tests, not the target itself.
    pub(crate) is_test: bool,
    /// The path of its file.
    pub(crate) path: PathBuf,
    /// The package's folder, from the repository's root.
    folder: PathBuf,
}

impl Program {
    /// Returns the command that starts the program where cargo starts it: in its package's folder.
    pub(crate) fn command(&self, root: &Path, driver: Option<&Driver>) -> Command {
        let folder = root.join(&self.folder);
        let mut command = match driver {
            Some(driver) => driver.command(&self.path),
            None => Command::new(&self.path),
        };
        command.env("CARGO_MANIFEST_DIR", &folder).current_dir(folder);
        command
    }

    /// Returns the folder of its package, from the repository's root.
    pub(crate) fn folder(&self) -> &str {
        self.folder.to_str().unwrap_or_default()
    }

    /// Returns whether it is the tests of the package in this folder.
    pub(crate) fn is_test_of(&self, folder: &str) -> bool {
        self.is_test && self.folder == Path::new(folder)
    }
}

/// As in `crates/vulkan, test goldens`.
impl fmt::Display for Program {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}, {} {}", self.folder.display(), self.kind, self.name)
    }
}

/// Cargo's message about a target that it built; other messages lack some of these fields.
#[derive(Deserialize)]
struct Artifact {
    manifest_path: PathBuf,
    target: Target,
    profile: Profile,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    name: String,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Builds the targets of a cargo command and returns the programs.
pub(crate) fn build(root: &Path, name: &str, arguments: &[&str]) -> anyhow::Result<Vec<Program>> {
    step(root, name, arguments, |mut cargo| {
        cargo.arg("--message-format=json-render-diagnostics");
        let mut programs = Vec::new();
        let status = lines(&mut cargo, |line| programs.extend(program(root, line)))?;
        Ok((status, programs))
    })
}

/// Returns the cargo that runs this program, to be started in the repository's root.
pub(crate) fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    // What cargo told this program of itself: build scripts would run again for it, and for a
    // cargo that a person starts.
    let is_of_this_program =
        |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(is_of_this_program) {
            command.env_remove(name);
        }
    }
    command
}

/// Announces a command of cargo, runs it, and prints how long it took.
///
/// # Errors
/// Returns an error if it fails. The error says how to repeat it.
fn step<T>(
    root: &Path,
    name: &str,
    arguments: &[&str],
    run: impl FnOnce(Command) -> anyhow::Result<(ExitStatus, T)>,
) -> anyhow::Result<T> {
    eprintln!("== {name}: cargo {}", arguments.join(" "));
    let start = Instant::now();
    let mut command = cargo(root);
    command.args(arguments);
    let (status, result) = run(command).with_context(|| format!("{name} cannot be run"))?;
    if !status.success() {
        bail!("{name} failed; repeat it alone with: cargo {}", arguments.join(" "));
    }
    eprintln!("== {name}: passed in {:.0} s", start.elapsed().as_secs_f64());
    Ok(result)
}

/// Announces a command of cargo, runs it with its output shown, and prints how long it took.
///
/// # Errors
/// Returns an error if it fails. The error says how to repeat it.
pub(crate) fn run(root: &Path, name: &str, arguments: &[&str]) -> anyhow::Result<()> {
    step(root, name, arguments, |mut cargo| {
        Ok((meter::status(&mut cargo).context("cannot start cargo")?, ()))
    })
}

/// Starts a program, passes on each line of its standard output, and waits for its end.
///
/// # Errors
/// Returns an error if the program cannot be started or its output cannot be read.
pub(crate) fn lines(command: &mut Command, take: impl FnMut(&str)) -> anyhow::Result<ExitStatus> {
    let (mut child, output) = start(command)?;
    pass_on(output, &shown(command), take)?;
    meter::wait(&mut child).context("cannot wait for a program")
}

/// Does the same with a program that may hang, which is killed after `most`, and says of each line
/// what the program had taken when it came. Returns what it took in all, and its status, or `None`
/// if it was killed. Programs that it started are left, and what they still write is not waited
/// for.
///
/// # Errors
/// Returns an error if the program cannot be started, waited for or killed, or its output cannot be
/// read; it is killed then.
pub(crate) fn lines_within(
    most: Duration,
    command: &mut Command,
    take: impl FnMut(&str, Spent),
) -> anyhow::Result<(Option<ExitStatus>, Spent)> {
    let (child, output) = start(command)?;
    follow(child, (output, shown(command)), most, take)
}

/// Passes on each line of a program's output until its end. Errors name the program as `shown`.
fn follow(
    mut child: Child,
    (output, shown): (impl Read + Send + 'static, String),
    most: Duration,
    mut take: impl FnMut(&str, Spent),
) -> anyhow::Result<(Option<ExitStatus>, Spent)> {
    let begin = Instant::now();
    let end = begin + most;
    // Its status is taken below: until then the system tells what it has taken.
    let id = child.id();
    let so_far = || Spent { wall: begin.elapsed(), processor: meter::processor_time(id) };
    let rest = |end: Instant| end.saturating_duration_since(Instant::now());
    let (sender, received) = mpsc::channel();
    // Ends with the output, which another program may hold for longer.
    std::thread::spawn(move || {
        // Nobody receives it once the program has ended.
        let send = |line: anyhow::Result<String>| drop(sender.send(line));
        let read = pass_on(output, &shown, |line| send(Ok(line.to_owned())));
        read.unwrap_or_else(|error| send(Err(error)));
    });
    let (mut failure, mut spent) = (None, Spent::default());
    while failure.is_none() && !rest(end).is_zero() {
        match received.recv_timeout(rest(end).min(LOOK)) {
            Ok(Ok(line)) => {
                spent = so_far();
                take(&line, spent);
            }
            Ok(Err(error)) => failure = Some(error),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                spent = so_far();
                if child.try_wait().context("cannot wait for a program")?.is_some() {
                    break;
                }
            }
        }
    }
    // A program may close its output and go on.
    let left = if failure.is_none() { rest(end) } else { Duration::ZERO };
    spent.processor = spent.processor.max(so_far().processor);
    let ended = child.wait_timeout(left).context("cannot wait for a program")?;
    if ended.is_none() {
        child.kill().context("cannot kill a program")?;
        child.wait().context("cannot wait for a program")?;
    }
    if let Some(error) = failure {
        return Err(error);
    }
    // What it had written.
    let end = Instant::now() + REMAINS;
    while !rest(end).is_zero()
        && let Ok(line) = received.recv_timeout(rest(end))
    {
        take(&line?, spent);
    }
    spent.wall = begin.elapsed();
    meter::add(spent.processor);
    Ok((ended, spent))
}

fn shown(command: &Command) -> String {
    command.get_program().display().to_string()
}

fn start(command: &mut Command) -> anyhow::Result<(Child, ChildStdout)> {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", shown(command)))?;
    let output = child.stdout.take().expect("the output is piped");
    Ok((child, output))
}

fn pass_on(output: impl Read, shown: &str, mut take: impl FnMut(&str)) -> anyhow::Result<()> {
    for (at, line) in BufReader::new(output).split(b'\n').enumerate() {
        let line =
            line.with_context(|| format!("cannot read line {} of the output of {shown}", at + 1))?;
        take(&String::from_utf8_lossy(&line));
    }
    Ok(())
}

/// Returns the program in a message of cargo.
fn program(root: &Path, message: &str) -> Option<Program> {
    let artifact: Artifact = serde_json::from_str(message).ok()?;
    let folder = artifact.manifest_path.parent()?;
    Some(Program {
        kind: artifact.target.kind.into_iter().next()?,
        name: artifact.target.name,
        is_test: artifact.profile.test,
        path: artifact.executable?,
        folder: folder.strip_prefix(root).unwrap_or(folder).to_owned(),
    })
}

/// Returns the program of a target of this kind and name.
pub(crate) fn find<'a>(
    programs: &'a [Program],
    kind: &str,
    name: &str,
) -> anyhow::Result<&'a Program> {
    let is_wanted =
        |program: &&Program| !program.is_test && program.kind == kind && program.name == name;
    let found = programs.iter().find(is_wanted);
    found.with_context(|| format!("cargo built no {kind} {name}"))
}

/// Runs a command to its end.
pub(crate) fn finish(command: &mut Command) -> anyhow::Result<()> {
    output(command).map(drop)
}

/// Returns the output of a command.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let name = shown(command);
    let output = meter::output(command).with_context(|| format!("cannot start {name}"))?;
    if !output.status.success() {
        bail!("{name} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::at_once;

    /// Returns a message as cargo writes it, shortened.
    fn message(kind: &str, name: &str, is_test: bool, executable: &str) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","manifest_path":"/root/crates/vulkan/Cargo.toml",
            "target":{{"kind":["{kind}"],"crate_types":["bin"],"name":"{name}"}},
            "profile":{{"opt_level":"1","test":{is_test}}},"executable":{executable},"fresh":true}}"#
        )
    }

    #[test]
    fn programs_are_told_apart() {
        let root = Path::new("/root");
        let goldens = program(root, &message("test", "goldens", true, "\"/x/goldens-1\"")).unwrap();
        assert_eq!(goldens.to_string(), "crates/vulkan, test goldens");
        assert!(goldens.is_test_of("crates/vulkan") && !goldens.is_test_of("crates/cpu"));

        let example = program(root, &message("example", "report", false, "\"/x/report\"")).unwrap();
        assert!(!example.is_test_of("crates/vulkan"));
        let programs = [goldens, example];
        assert_eq!(find(&programs, "example", "report").unwrap().path, Path::new("/x/report"));
        find(&programs, "test", "goldens").unwrap_err();
    }

    #[test]
    fn messages_without_a_program_are_passed_over() {
        let root = Path::new("/root");
        assert!(program(root, &message("lib", "vulkan", false, "null")).is_none());
        assert!(program(root, r#"{"reason":"build-finished","success":true}"#).is_none());
        assert!(program(root, "not JSON").is_none());
    }

    #[test]
    fn a_program_that_hangs_is_killed_and_its_lines_are_kept() {
        let run = |most, script| {
            let mut found = Vec::new();
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            let take = |line: &str, _| found.push(line.to_owned());
            let (status, _) = lines_within(most, &mut command, take).unwrap();
            (status.map(|status| status.code()), found)
        };
        let lines = vec!["a".to_owned(), "b".to_owned()];
        let (long, short) = (Duration::from_secs(600), Duration::from_secs(4));
        let cases = [
            (long, "echo a; echo b; exit 3", (Some(Some(3)), lines.clone())),
            (short, "echo a; echo b; exec sleep 600", (None, lines.clone())),
            (short, "exec >&-; exec sleep 600", (None, Vec::new())),
            // Another program holds the output.
            (short, "echo a; echo b; sleep 60 & exit 3", (Some(Some(3)), lines)),
        ];
        at_once(cases.map(|(most, script, expected)| {
            move || assert_eq!(run(most, script), expected, "{script}")
        }));
        assert!(run(short, "while :; do echo a; sleep 0.1; done").0.is_none());
    }

    /// An output of which only a part can be read.
    struct Torn(&'static [u8]);

    impl Read for Torn {
        fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
            match self.0.read(bytes) {
                Ok(0) => Err(std::io::Error::other("it is torn")),
                read => read,
            }
        }
    }

    #[test]
    fn an_output_that_cannot_be_read_is_an_error_with_its_place() {
        for script in ["exec sleep 600", "exit 0"] {
            let (child, _) = start(Command::new("sh").args(["-c", script])).unwrap();
            let mut found = Vec::new();
            let output = (Torn(b"a\nb\nc"), "the tests".to_owned());
            let take = |line: &str, _| found.push(line.to_owned());
            let error = follow(child, output, Duration::from_secs(600), take).unwrap_err();
            let error = format!("{error:#}");
            assert_eq!(error, "cannot read line 3 of the output of the tests: it is torn");
            assert_eq!(found, ["a", "b"]);
        }
    }
}
