//! Tests under Khronos' validation layer, including synchronisation. Every complaint of the layer
//! fails the run, and so does a test program that ran without it.
//!
//! It is switched on from outside, by the variables of the Vulkan loader, and writes to standard
//! output: each instance that a test opens would empty a log file. It is set to introduce itself,
//! which distinguishes silence from absence.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};

/// The beginning of the line in which a test runner sums up.
pub(crate) const SUMMARY: &str = "test result: ";

/// The layer's settings. Everything but verbose messages is reported, as often as it occurs.
const SETTINGS: &str = "\
khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG
khronos_validation.log_filename = stdout
khronos_validation.report_flags = error,warn,perf,info
khronos_validation.enables = VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT
khronos_validation.enable_message_limit = false
";

/// The beginning of the layer's introduction, which continues with the enabled checks.
const INTRODUCTION: &str = "Khronos Validation Layer Active";
const ENABLED: &str = "Current Enables:";
const SYNCHRONISATION: &str = "VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION";

/// Parts of a complaint's first line, as versions 1.3.239 and 1.4.309 write it. Introductions are
/// `Information`.
const COMPLAINTS: [&str; 6] = [
    "Validation Error:",
    "Validation Warning:",
    "Validation Performance Warning:",
    "(ERROR / ",
    "(WARN / ",
    "(PERF / ",
];

/// The folder of the layer's settings.
const FOLDER: &str = "target/validation";

/// Writes the layer's settings. Must be called before the first program that loads the layer.
pub(crate) fn prepare(root: &Path) -> anyhow::Result<()> {
    let folder = root.join(FOLDER);
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make {}", folder.display()))?;
    let settings = folder.join("vk_layer_settings.txt");
    std::fs::write(&settings, SETTINGS)
        .with_context(|| format!("cannot write {}", settings.display()))
}

/// Makes a program load the layer that is described in a folder.
pub(crate) fn apply(root: &Path, layers: &Path, program: &mut Command) {
    program.env("VK_INSTANCE_LAYERS", "VK_LAYER_KHRONOS_validation");
    program.env("VK_LAYER_PATH", layers);
    program.env("VK_LAYER_SETTINGS_PATH", root.join(FOLDER));
}

/// The layer's messages in the output of test programs.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    /// The first lines of the complaints.
    complaints: Vec<String>,
    /// Whether the program whose output is being read has loaded the layer, and whether the layer
    /// checks synchronisation.
    is_active: bool,
    is_synchronising: bool,
    /// The number of programs that ran tests, and of those that ran without the layer.
    programs: usize,
    unseen: usize,
}

impl Messages {
    /// Takes the next line of the output.
    pub(crate) fn add(&mut self, line: &str) {
        if line.starts_with("running ") && line.contains(" test") {
            (self.is_active, self.is_synchronising) = (false, false);
        }
        self.is_active |= line.contains(INTRODUCTION);
        self.is_synchronising |= line.contains(ENABLED) && line.contains(SYNCHRONISATION);
        if COMPLAINTS.iter().any(|mark| line.contains(mark)) {
            self.complaints.push(line.chars().take(300).collect());
        }
        let ran_tests = line.starts_with(SUMMARY) && !line.contains(" 0 passed; 0 failed;");
        if ran_tests {
            self.programs += 1;
            self.unseen += usize::from(!(self.is_active && self.is_synchronising));
        }
    }

    /// Adds the messages of other programs.
    pub(crate) fn join(&mut self, other: Self) {
        self.complaints.extend(other.complaints);
        self.programs += other.programs;
        self.unseen += other.unseen;
    }

    /// Returns the number of complaints so far.
    pub(crate) fn complaints(&self) -> usize {
        self.complaints.len()
    }

    /// Fails if the layer complained, or was not loaded.
    pub(crate) fn judge(&self) -> anyhow::Result<()> {
        if self.unseen > 0 || self.programs == 0 {
            bail!(
                "{} of {} test programs ran without the validation layer and its check of \
                 synchronisation",
                self.unseen,
                self.programs
            );
        }
        if let Some(first) = self.complaints.first() {
            bail!("the validation layer has {} complaints; first: {first}", self.complaints.len());
        }
        Ok(())
    }

    /// Fails unless the layer was loaded and complained about hazards and nothing else, as the
    /// deliberately wrong test requires.
    pub(crate) fn judge_wrong(&self) -> anyhow::Result<()> {
        let others: Vec<_> =
            self.complaints.iter().filter(|line| !line.contains("SYNC-HAZARD")).collect();
        if self.unseen > 0 || self.complaints.is_empty() || !others.is_empty() {
            bail!("the validation layer does not see a hazard that is there: {self:?}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: [&str; 4] = [
        "UNASSIGNED-khronos-validation-createinstance-status-message(INFO / SPEC): msgNum: \
         -671457468 - Validation Information: [ \
         UNASSIGNED-khronos-validation-createinstance-status-message ] Object 0: handle = \
         0x7fbebcbd2640, type = VK_OBJECT_TYPE_INSTANCE; | MessageID = 0xd7fa5f44 | Khronos \
         Validation Layer Active:",
        "    Settings File: Found at /x/vk_layer_settings.txt specified by environment variable \
         (VK_LAYER_SETTINGS_PATH).",
        "    Current Enables: VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION.",
        "    Current Disables: None.",
    ];
    const NEW: [&str; 4] = [
        "test a ... Validation Information: [ WARNING-CreateInstance-status-message ] | MessageID \
         = 0x23dfd876",
        "vkCreateInstance(): Khronos Validation Layer Active:",
        "    Current Enables: VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT.",
        "    Current Disables: None.",
    ];
    const PASSED: &str = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered \
        out; finished in 0.1s";
    const EMPTY: &str = "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered \
        out; finished in 0.0s";

    fn messages(lines: &[&str]) -> Messages {
        let mut messages = Messages::default();
        lines.iter().for_each(|line| messages.add(line));
        messages
    }

    fn program(lines: &[&'static str]) -> Vec<&'static str> {
        [&["running 3 tests"], lines, &[PASSED]].concat()
    }

    #[test]
    fn silence_passes_where_the_layer_is_there() {
        for introduction in [OLD, NEW] {
            let empty = ["running 0 tests", EMPTY];
            let output = [program(&introduction), empty.to_vec()].concat();
            messages(&output).judge().unwrap();
        }
    }

    #[test]
    fn a_program_without_the_layer_fails_whatever_others_said() {
        let missing = [program(&NEW), program(&[])].concat();
        let error = messages(&missing).judge().unwrap_err().to_string();
        assert!(error.contains("1 of 2"), "{error}");
        let unsynchronised = program(&NEW[..2]);
        assert!(messages(&unsynchronised).judge().is_err());
        assert!(messages(&[]).judge().is_err(), "no program ran");
    }

    #[test]
    fn every_complaint_fails() {
        for complaint in [
            "VUID-vkDestroyDevice-device-00378(ERROR / SPEC): msgNum: 1901072314 - Validation \
             Error: [ VUID-vkDestroyDevice ]",
            "UNASSIGNED-x(WARN / SPEC): msgNum: 1 - Validation Warning: [ UNASSIGNED-x ] Object 0: \
             handle = 0x1",
            "UNASSIGNED-x(PERF / SPEC): msgNum: 1 - Validation Performance Warning: [ UNASSIGNED-x \
             ]",
            "Validation Error: [ SYNC-HAZARD-WRITE-AFTER-WRITE ] | MessageID = 0x5c0ec5d6",
            "Validation Warning: [ WARNING-Setting ] | MessageID = 0x1",
        ] {
            let output = program(&[NEW[0], NEW[1], NEW[2], complaint]);
            let error = messages(&output).judge().unwrap_err().to_string();
            assert!(error.contains(&complaint[..20]), "{error}");
            let is_hazard = complaint.contains("SYNC-HAZARD");
            assert_eq!(messages(&output).judge_wrong().is_ok(), is_hazard, "{complaint}");
        }
        assert!(messages(&program(&NEW)).judge_wrong().is_err(), "no hazard was seen");
    }
}
