//! Workflows, and what else repeats the commands of this program, name commands that there are.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::path::PathBuf;

use clap::Parser;
use yaml_rust2::{Yaml, YamlLoader};

use crate::{Arguments, root};

const FOLDER: &str = ".github/workflows";
/// The command that tests everything, in README and in `.ci/run`.
const TESTS: &str = "cargo xtask ci";

/// Returns the workflows' names and contents.
fn workflows() -> Vec<(String, Yaml)> {
    let entries = std::fs::read_dir(root().join(FOLDER)).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        let mut documents = YamlLoader::load_from_str(&text).unwrap();
        assert_eq!(documents.len(), 1, "{}", path.display());
        (path.file_name().unwrap().to_str().unwrap().to_owned(), documents.remove(0))
    };
    paths.into_iter().map(read).collect()
}

/// Returns the steps of a workflow's jobs.
fn steps(workflow: &Yaml) -> Vec<&Yaml> {
    let jobs = workflow["jobs"].as_hash().expect("there are jobs");
    for (job, field) in jobs.values().flat_map(|job| [(job, "runs-on"), (job, "timeout-minutes")]) {
        assert_ne!(job[field], Yaml::BadValue, "{job:?} has no {field}");
    }
    jobs.values().flat_map(|job| job["steps"].as_vec().expect("a job has steps")).collect()
}

/// Returns whether this program takes a command line that is written for a shell.
fn is_taken(line: &str) -> bool {
    let words = line.split_whitespace().map(|word| word.trim_matches('"').replace('$', ""));
    Arguments::try_parse_from(words.skip(1)).is_ok()
}

#[test]
fn workflows_run_commands_that_there_are() {
    let workflows = workflows();
    let names: Vec<&str> = workflows.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["ci.yml", "release.yml"]);
    for (name, workflow) in &workflows {
        let mut commands = 0;
        for step in steps(workflow) {
            let (uses, run) = (step["uses"].as_str(), step["run"].as_str());
            assert!(uses.is_some() != run.is_some(), "{name}: {step:?}");
            if let Some(uses) = uses {
                let (action, version) = uses.split_once('@').unwrap_or((uses, ""));
                assert!(action.starts_with("actions/"), "{name}: {uses} is of somebody else");
                let number = version.strip_prefix('v').unwrap_or_default();
                assert!(number.parse::<u32>().is_ok(), "{name}: {uses} has no version");
            }
            for line in run.unwrap_or_default().lines() {
                if line.starts_with("cargo xtask") {
                    commands += 1;
                    assert!(is_taken(line), "{name}: {line}");
                } else if line.starts_with('.') {
                    assert!(root().join(line).is_file(), "{name}: {line}");
                }
            }
        }
        assert!(commands > 1, "{name}");
    }
    assert!(!is_taken("cargo xtask nothing") && !is_taken("cargo xtask windows --debug"));
}

/// GitHub's machines have little disk, and minutes that are counted.
#[test]
fn workflows_save_disk_and_end_checks_that_nobody_waits_for() {
    for (name, workflow) in workflows() {
        assert_eq!(workflow["env"]["CARGO_PROFILE_DEV_DEBUG"].as_str(), Some("0"), "{name}");
        let is_of_tags = workflow["on"]["push"]["tags"] != Yaml::BadValue;
        let cancels = workflow["concurrency"]["cancel-in-progress"].as_bool().unwrap_or_default();
        assert_eq!(cancels, !is_of_tags, "{name}: a release is not ended half-way");
        let group = workflow["concurrency"]["group"].as_str().unwrap_or_default();
        assert!(is_of_tags || group.contains("github.ref"), "{name}: branches end one another");
    }
}

#[test]
fn a_job_needs_jobs_that_there_are() {
    for (name, workflow) in workflows() {
        let jobs = workflow["jobs"].as_hash().unwrap();
        for job in jobs.values() {
            let needs = &job["needs"];
            let one = needs.as_str().map(|_| std::slice::from_ref(needs));
            for needed in one.or(needs.as_vec().map(Vec::as_slice)).unwrap_or_default() {
                assert!(jobs.contains_key(needed), "{name}: {needed:?}");
            }
        }
    }
}

#[test]
fn the_readme_names_the_command_that_the_checks_run() {
    let read = |name: &str| std::fs::read_to_string(root().join(name)).unwrap();
    let script = read(".ci/run");
    assert_eq!(script.lines().last(), Some(TESTS), ".ci/run");
    let readme = read("README.md");
    assert!(readme.contains(&format!("\n```\n{TESTS}\n```\n")), "README.md");
    assert!(readme.lines().count() <= 120, "README.md is longer than a page");
    assert!(is_taken(TESTS));
}
