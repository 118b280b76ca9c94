//! The script that installs a release for one user, from `packaging/install.sh`.

use std::path::Path;

use anyhow::{Context, ensure};

use super::release::Release;

pub(super) const NAME: &str = "install.sh";

/// Fills in the version and the address of the repository. Neither has a sign that means something
/// to a shell.
pub(super) fn script(root: &Path, release: &Release) -> anyhow::Result<String> {
    let path = root.join("packaging").join(NAME);
    let template = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let mut text = template;
    for (line, value) in [
        ("\nversion=@VERSION@\n", &*release.version),
        ("\nrepository=@REPOSITORY@\n", release.address.url()),
    ] {
        ensure!(text.contains(line), "{} has no line {}", path.display(), line.trim());
        let (name, _) = line.split_once('@').unwrap_or((line, ""));
        text = text.replace(line, &format!("{name}{value}\n"));
    }
    Ok(text)
}

#[cfg(all(test, target_os = "linux", target_arch = "x86_64"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]

    use super::*;
    use crate::dist::packages::{LINUX, SUMS};
    use crate::dist::release::Address;
    use crate::dist::tree::Tree;
    use crate::dist::{archive, publish};
    use crate::machine::is_program;
    use std::fs;
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::path::PathBuf;
    use std::process::Command;
    use tempfile::TempDir;

    /// A release in a folder, and a person's home.
    struct Case {
        folder: TempDir,
        home: TempDir,
        release: Release,
    }

    impl Case {
        fn new() -> Self {
            let release = Release { target: LINUX.into(), ..Release::example() };
            let (folder, home) = (TempDir::new().unwrap(), TempDir::new().unwrap());
            let mut tree = Tree::default();
            tree.add_program("bin/trine", b"#!/bin/sh\necho \"$0 told a story\"\n".to_vec());
            tree.add("share/man/man1/trine.1", b"page".to_vec());
            archive::write(&tree, folder.path(), &release).unwrap();
            publish::write(&crate::root(), folder.path(), &release).unwrap();
            Self { folder, home, release }
        }

        fn archive(&self) -> PathBuf {
            self.folder.path().join(self.release.archive())
        }

        fn files(&self) -> String {
            format!("file://{}", self.folder.path().display())
        }

        /// Runs the script and returns whether it succeeded, and all that it said.
        fn run(&self, arguments: &[&str]) -> (bool, String) {
            self.run_in(&std::env::var("PATH").unwrap(), arguments)
        }

        fn run_in(&self, path: &str, arguments: &[&str]) -> (bool, String) {
            let mut sh = Command::new("/bin/sh");
            sh.arg(self.folder.path().join(NAME)).args(arguments);
            sh.env_clear().env("PATH", path).env("HOME", self.home.path());
            let output = sh.output().unwrap();
            let said = [output.stdout, output.stderr].concat();
            (output.status.success(), String::from_utf8(said).unwrap())
        }

        /// Runs it with a folder of its own, which has to stay as it was, and returns its error.
        fn refused(&self, arguments: &[&str]) -> String {
            let to = self.home.path().join("refused");
            let to_there = ["--to", to.to_str().unwrap()];
            let (is_done, said) = self.run(&[&to_there, arguments].concat());
            assert!(!is_done && !to.exists(), "{arguments:?}: {said}");
            said
        }
    }

    /// Answers requests for the files of a folder, until this program ends. Returns the address.
    fn serve(folder: PathBuf) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let first = lines.next().unwrap().unwrap();
                lines.map_while(Result::ok).take_while(|line| !line.is_empty()).for_each(drop);
                let name = first.split(' ').nth(1).unwrap().trim_start_matches('/');
                let (status, body) = match fs::read(folder.join(name)) {
                    Ok(body) => ("200 OK", body),
                    Err(_) => ("404 Not Found", b"a page".to_vec()),
                };
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
                );
                // A client may have seen enough of it.
                let _ = stream.write_all(&[head.as_bytes(), &body].concat());
            }
        });
        address
    }

    #[test]
    fn it_installs_what_has_the_published_hash() {
        let case = Case::new();
        let to = case.home.path().join("a folder");
        let program = to.join("bin/trine");
        let told = format!("{} told a story\n", program.display());
        let mut places = vec![case.files()];
        // With neither, the next test says what the script does.
        if is_program("curl") || is_program("wget") {
            places.push(serve(case.folder.path().to_owned()));
        }
        for from in places {
            let (is_done, said) = case.run(&["--from", &from, "--to", to.to_str().unwrap()]);
            assert!(is_done && said.contains("installed trine 1.2.3"), "{from}: {said}");
            let output = Command::new(&program).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), told);
            assert!(to.join("share/man/man1/trine.1").exists());
            assert_eq!(fs::read_dir(to.join("bin")).unwrap().count(), 1, "nothing else is left");
        }
    }

    /// Programs that write SHA256SUMS do so in several ways.
    #[test]
    fn it_reads_every_spelling_of_hashes() {
        let case = Case::new();
        let sums = case.folder.path().join(SUMS);
        let usual = fs::read_to_string(&sums).unwrap();
        let upper = |text: &str| {
            let lines = text.lines().map(|line| {
                let (hash, name) = line.split_once("  ").unwrap();
                format!("{}  {name}\n", hash.to_uppercase())
            });
            lines.collect::<String>()
        };
        for (number, text) in [
            usual.replace("  ", " *"),
            usual.replace('\n', "\r\n"),
            upper(&usual),
            upper(&usual).replace("  ", " *").replace('\n', "\r\n"),
        ]
        .iter()
        .enumerate()
        {
            fs::write(&sums, text).unwrap();
            let to = case.home.path().join(number.to_string());
            let (is_done, said) =
                case.run(&["--from", &case.files(), "--to", to.to_str().unwrap()]);
            assert!(is_done && to.join("bin/trine").exists(), "{text}: {said}");
        }
    }

    /// A link in an archive could lead what is copied out of the folder that was named.
    #[test]
    fn it_follows_no_links_of_an_archive() {
        let case = Case::new();
        let unpacked = TempDir::new().unwrap();
        let inside = unpacked.path().join(case.release.archive().replace(".tar.gz", ""));
        let run = |program: &str, arguments: &[&str]| {
            let output = Command::new(program).args(arguments).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        let (archive, folder) = (case.archive(), unpacked.path().to_str().unwrap());
        let archive = archive.to_str().unwrap();
        run("tar", &["-xzf", archive, "-C", folder]);
        std::os::unix::fs::symlink(case.home.path(), inside.join("share/led")).unwrap();
        run("tar", &["-czf", archive, "-C", folder, "."]);
        let hash = run("sha256sum", &[archive]);
        let (hash, _) = hash.split_once(' ').unwrap();
        let line = format!("{hash}  {}\n", case.release.archive());
        fs::write(case.folder.path().join(SUMS), line).unwrap();
        let said = case.refused(&["--from", &case.files()]);
        assert!(said.contains("neither a file nor a folder"), "{said}");
    }

    #[test]
    fn it_installs_nothing_else() {
        let case = Case::new();
        let places = [case.files(), serve(case.folder.path().to_owned())];
        let whole = fs::read(case.archive()).unwrap();
        for from in &places {
            for wrong in [&whole[..whole.len() - 1], b"", b"<html>not found</html>"] {
                fs::write(case.archive(), wrong).unwrap();
                let said = case.refused(&["--from", from]);
                let is_without = said.contains("neither curl nor wget");
                assert!(is_without || said.contains("nothing was installed"), "{said}");
            }
        }
        fs::write(case.archive(), &whole).unwrap();
        for from in &places {
            let said = case.refused(&["--from", from, "--version", "9.9.9"]);
            let is_without = said.contains("neither curl nor wget");
            assert!(is_without || said.contains("does not name trine-9.9.9"), "{said}");
        }
        for (sums, expected) in [
            ("", "does not name"),
            ("zz  trine-1.2.3-x86_64-unknown-linux-gnu.tar.gz\n", "has no SHA-256"),
        ] {
            fs::write(case.folder.path().join(SUMS), sums).unwrap();
            let said = case.refused(&["--from", &case.files()]);
            assert!(said.contains(expected), "{sums:?}: {said}");
        }
        // What is printed of a file from outside has no signs that a terminal obeys.
        let name = case.release.archive();
        for (hash, expected) in [
            ("\u{1b}[31m".repeat(16), "has no SHA-256"),
            ("0".repeat(63), "has no SHA-256"),
            ("0".repeat(64), "SHA256SUMS says 0000"),
        ] {
            fs::write(case.folder.path().join(SUMS), format!("{hash}  {name}\n")).unwrap();
            let said = case.refused(&["--from", &case.files()]);
            assert!(said.contains(expected) && !said.contains('\u{1b}'), "{hash:?}: {said}");
        }
        fs::remove_file(case.folder.path().join(SUMS)).unwrap();
        for (from, expected) in places.iter().zip(["cannot read", "cannot download"]) {
            let said = case.refused(&["--from", from]);
            assert!(said.contains(expected) || said.contains("neither curl"), "{said}");
        }
    }

    #[test]
    fn it_refuses_what_it_does_not_understand() {
        let case = Case::new();
        for (arguments, expected) in [
            (&["--from", "http://mirror.example/trine"][..], "is neither https:// nor file:///"),
            (&["--from", "http://127.0.0.1.mirror.example/trine"], "is neither https://"),
            (&["--from", "ftp://127.0.0.1/"], "is neither https://"),
            (&["--version", "../../etc"], "is not a version"),
            (&["--version", "1;id"], "is not a version"),
            (&["--from"], "--from takes a value"),
            (&["--force"], "unknown option --force"),
        ] {
            let said = case.refused(arguments);
            assert!(said.contains(expected), "{arguments:?}: {said}");
        }
        let address = Address::new("https://git.invalid/some-one/trine").unwrap();
        let unpublished = Release { address, ..case.release.clone() };
        let script = script(&crate::root(), &unpublished).unwrap();
        fs::write(case.folder.path().join(NAME), script).unwrap();
        assert!(case.refused(&[]).contains("trine is not published yet"));
    }

    /// Puts programs in a folder that say what a test wants, and otherwise links to those that the
    /// script needs. Returns a PATH of this folder.
    fn path_with(folder: &Path, own: &[(&str, &str)]) -> String {
        for name in [
            "awk",
            "chmod",
            "cp",
            "cut",
            "find",
            "grep",
            "gzip",
            "head",
            "mkdir",
            "mktemp",
            "mv",
            "rm",
            "sha256sum",
            "sort",
            "tar",
        ] {
            let found = std::env::split_paths(&std::env::var_os("PATH").unwrap())
                .map(|place| place.join(name))
                .find(|path| path.is_file());
            std::os::unix::fs::symlink(found.unwrap(), folder.join(name)).unwrap();
        }
        for (name, says) in own {
            use std::os::unix::fs::PermissionsExt;
            let path = folder.join(name);
            fs::write(&path, format!("#!/bin/sh\necho '{says}'\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        folder.to_str().unwrap().to_owned()
    }

    #[test]
    fn it_looks_at_the_user_and_the_system() {
        let case = Case::new();
        let files = case.files();
        let from = ["--from", files.as_str()];
        let linux = [
            ("id", "1000"),
            ("uname", "Linux\nx86_64"),
            ("ldd", "ldd (GNU libc) 2.36"),
            ("getconf", "glibc 2.36"),
        ];
        let with = |changed: &[(&str, &str)], arguments: &[&str]| {
            let folder = TempDir::new().unwrap();
            let mut own = linux.to_vec();
            own.extend(changed);
            // uname answers both of its questions with the words that were asked for.
            let path = path_with(folder.path(), &own);
            let system = own.iter().rev().find(|(name, _)| *name == "uname").unwrap().1;
            let (name, machine) = system.split_once('\n').unwrap();
            let uname =
                format!("#!/bin/sh\ncase $1 in -s) echo {name} ;; *) echo {machine} ;; esac\n");
            fs::write(folder.path().join("uname"), uname).unwrap();
            case.run_in(&path, arguments)
        };
        let (is_done, said) = with(&[], &from);
        assert!(is_done && case.home.path().join(".local/bin/trine").exists(), "{said}");
        fs::remove_dir_all(case.home.path().join(".local")).unwrap();
        for (changed, expected) in [
            (("id", "0"), "you are root"),
            (("uname", "Linux\naarch64"), "no archive for Linux on aarch64"),
            (("uname", "Darwin\nx86_64"), "no archive for Darwin on x86_64"),
            (("uname", "Darwin\narm64"), "does not name trine-1.2.3-aarch64-apple-darwin"),
            (("ldd", "musl libc (x86_64)"), "musl instead of glibc"),
            (("getconf", "glibc 2.35"), "takes 2.36 or later"),
            (("getconf", "glibc 2.4"), "takes 2.36 or later"),
        ] {
            let (is_done, said) = with(&[changed], &from);
            assert!(!is_done && said.contains(expected), "{changed:?}: {said}");
            assert!(!case.home.path().join(".local").exists(), "{changed:?}");
        }
        let to = case.home.path().join("chosen");
        let (is_done, said) =
            with(&[("id", "0")], &[&from[..], &["--to", to.to_str().unwrap()]].concat());
        assert!(is_done && to.join("bin/trine").exists(), "{said}");
        let (_, said) = with(&[], &["--from", "http://127.0.0.1:1"]);
        assert!(said.contains("neither curl nor wget"), "{said}");
    }
}
