//! Other systems: Windows, whose programs are built with mingw-w64 and run under Wine, and macOS, for which code is checked.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::drivers::{self, Driver};
use crate::programs::{self, Program};
use crate::standard_library::{self, Purpose};
use crate::test_runs::TestRun;

const WINDOWS: &str = "x86_64-pc-windows-gnu";
const MACOS: &str = "aarch64-apple-darwin";
/// What Windows takes, and Debian's packages of it.
const NEEDS: [(&str, &str); 2] =
    [("x86_64-w64-mingw32-gcc", "gcc-mingw-w64-x86-64"), ("wine", "wine")];
/// Packages whose tests run under Wine. Those of the program drive it through what Unix has.
const PORTABLE: [&str; 7] = [
    "trine-weights",
    "trine-model",
    "trine-backend",
    "trine-cpu",
    "trine-text",
    "trine-engine",
    "trine-hub",
];
/// Packages that are checked for macOS beside the portable ones. Vulkan's is not, nor is the program, which uses it.
const CHECKED_TOO: &str = "trine-server";

/// Builds the workspace for Windows, runs the program and the tests of the portable packages under Wine.
pub(crate) fn windows(root: &Path) -> anyhow::Result<()> {
    let missing: Vec<&str> = NEEDS
        .iter()
        .filter(|(program, _)| !drivers::is_program(program))
        .map(|&(_, package)| package)
        .collect();
    drivers::install(root, &missing)?;
    let mut arguments = standard_library::arguments(root, WINDOWS, Purpose::Programs)?;
    let linker = format!("target.{WINDOWS}.linker=\"{}\"", NEEDS[0].0);
    arguments.extend(["--locked".to_owned(), "--config".to_owned(), linker]);
    let wine = wine(root)?;

    let name = "building for Windows";
    let built = build(root, name, &["build", "--workspace"], &arguments)?;
    let trine = programs::find(&built, "bin", "trine")?;
    try_program(root, &wine, trine)?;
    let packages: Vec<&str> = PORTABLE.iter().flat_map(|&name| ["--package", name]).collect();
    let test = ["test", "--no-run", "--lib", "--tests"];
    let name = "building the tests for Windows";
    let tests = build(root, name, &[&test[..], &packages].concat(), &arguments)?;
    let tests: Vec<&Program> = tests.iter().filter(|program| program.is_test).collect();
    TestRun { driver: Some(&wine), place: "Wine", ..TestRun::new("portable tests", tests) }
        .run(root)
}

/// Checks the types of what macOS would run.
pub(crate) fn macos(root: &Path) -> anyhow::Result<()> {
    let arguments = standard_library::arguments(root, MACOS, Purpose::Checks)?;
    let packages: Vec<&str> =
        PORTABLE.iter().chain([&CHECKED_TOO]).flat_map(|&name| ["--package", name]).collect();
    build(root, "checking for macOS", &[&["check"][..], &packages].concat(), &arguments).map(drop)
}

fn build(
    root: &Path,
    name: &str,
    command: &[&str],
    arguments: &[String],
) -> anyhow::Result<Vec<Program>> {
    let arguments: Vec<&str> =
        command.iter().copied().chain(arguments.iter().map(String::as_str)).collect();
    programs::build(root, name, &arguments)
}

/// Wine with a folder of its own for Windows' files.
fn wine(root: &Path) -> anyhow::Result<Driver> {
    let folder = root.join("target/wine");
    let prefix = folder.join("prefix");
    std::fs::create_dir_all(&prefix).with_context(|| folder.display().to_string())?;
    let library = random_source(root, &folder)?;
    let environment = [
        ("WINEPREFIX", prefix.display().to_string()),
        ("WINEDEBUG", "-all".to_owned()),
        // No window of it is to be seen.
        ("DISPLAY", String::new()),
        ("WINEPATH", format!("Z:{}", library.display().to_string().replace('/', "\\"))),
    ];
    Ok(Driver {
        environment: environment.map(|(name, value)| (name.to_owned(), value)).into(),
        launcher: vec![NEEDS[1].0.to_owned()],
        ..Driver::default()
    })
}

/// The folder of a library that Wine before version 9 lacks and every program of Rust's needs: a source of random numbers.
fn random_source(root: &Path, folder: &Path) -> anyhow::Result<PathBuf> {
    let mut compiler = Command::new(NEEDS[0].0);
    compiler.args(["-shared", "-O1", "-o"]).arg(folder.join("bcryptprimitives.dll"));
    compiler.arg(root.join("tools/windows/bcryptprimitives.c")).arg("-ladvapi32");
    let output = compiler.output().context("cannot start mingw-w64's compiler")?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(folder.to_owned())
}

/// Writes a story, and asks a server for one, with the program under Wine.
fn try_program(root: &Path, wine: &Driver, trine: &Program) -> anyhow::Result<()> {
    let run = |arguments: &[&str]| {
        let mut command = trine.command(root, Some(wine));
        command.args(arguments).stdin(Stdio::null());
        let output = command.output().context("cannot start wine")?;
        if !output.status.success() {
            bail!(
                "trine {} under Wine: {}",
                arguments.join(" "),
                String::from_utf8_lossy(&output.stderr)
            );
        }
        anyhow::Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    eprintln!("== trine under Wine");
    let story =
        run(&["run", "demo", "Tell me a story", "--max-tokens", "8", "--temperature", "0"])?;
    if story.split_whitespace().count() < 3 {
        bail!("trine run under Wine wrote {story:?}");
    }
    let mut serve = trine.command(root, Some(wine));
    serve.args(["serve", "--port", "0"]).stdin(Stdio::null()).stderr(Stdio::piped());
    let mut serve = serve.spawn().context("cannot start wine")?;
    let asked = ask(&mut serve);
    let _ = serve.kill();
    let _ = serve.wait();
    eprintln!("== trine under Wine: wrote {:?} and answered {}", story.trim(), asked?);
    Ok(())
}

/// Asks the server that says on its standard error where it is; the status line of its answer.
fn ask(serve: &mut std::process::Child) -> anyhow::Result<String> {
    use std::io::{BufRead, BufReader, Read, Write};
    let errors = serve.stderr.take().context("standard error is piped")?;
    let mut said = String::new();
    let mut address = None;
    for line in BufReader::new(errors).lines() {
        let line = line?;
        said.push_str(&line);
        if let Some((_, place)) = line.split_once("http://127.0.0.1:") {
            let port: String = place.chars().take_while(char::is_ascii_digit).collect();
            address = Some(format!("127.0.0.1:{port}"));
            break;
        }
    }
    let address = address.with_context(|| format!("trine serve under Wine said {said:?}"))?;
    let mut stream = std::net::TcpStream::connect(address)?;
    let body = r#"{"prompt":"Once","max_tokens":4}"#;
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\
         Content-Type: application/json\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.lines().next().unwrap_or_default().to_owned();
    if !status.starts_with("HTTP/1.1 200") || !answer.contains("\"text\"") {
        bail!("trine serve under Wine answered {answer:?}");
    }
    Ok(status)
}
