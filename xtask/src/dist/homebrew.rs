//! The formula of the archives for macOS and Linux in a tap of Homebrew's:
//! <https://docs.brew.sh/Formula-Cookbook>.

use super::packages::{LINUX, MACOS, Packages};
use super::release::Release;

/// Targets, and how a formula names their system and processor.
const SYSTEMS: [(&str, &str, &str); 2] = [(MACOS, "macos", "arm"), (LINUX, "linux", "intel")];

/// Returns the name and the text of the formula, below the folder of results, or nothing if there
/// is no archive for it.
pub(super) fn formula(packages: &Packages, release: &Release) -> Option<(String, String)> {
    let mut sources = String::new();
    for (target, system, processor) in SYSTEMS {
        let Some((archive, sum)) = packages.archive(release, target) else { continue };
        let address = release.download(&archive);
        sources.push_str(&format!(
            "  on_{system} do\n    on_{processor} do\n      url \"{address}\"\n      sha256 \
             \"{sum}\"\n    end\n  end\n\n"
        ));
    }
    if sources.is_empty() {
        return None;
    }
    let (url, version) = (release.address.url(), &release.version);
    let text = format!(
        r##"class Trine < Formula
  desc "Runs Google's Gemma models on this computer"
  homepage "{url}"
  version "{version}"
  license any_of: ["Apache-2.0", "MIT"]

{sources}  def install
    bin.install "bin/trine"
    man1.install Dir["share/man/man1/*.1"]
    bash_completion.install "share/bash-completion/completions/trine"
    zsh_completion.install "share/zsh/vendor-completions/_trine"
    fish_completion.install "share/fish/vendor_completions.d/trine.fish"
    doc.install Dir["share/doc/trine/*"]
  end

  test do
    story = shell_output("#{{bin}}/trine run demo hello --device cpu --max-tokens 8")
    assert_operator story.split.length, :>, 2
  end
end
"##
    );
    Some(("homebrew/trine.rb".to_owned(), text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_formula_names_the_archives_that_are_there() {
        let release = Release::example();
        let formula = |targets: &[&str]| formula(&Packages::example(&release, targets), &release);
        assert!(formula(&[]).is_none());
        let (_, both) = formula(&[LINUX, MACOS]).unwrap();
        let (_, linux) = formula(&[LINUX]).unwrap();
        assert!(!linux.contains("on_macos") && both.contains("on_macos"));
        for target in [LINUX, MACOS] {
            let url = format!(
                "url \"https://git.example/some-one/trine/releases/download/v1.2.3/\
                 trine-1.2.3-{target}.tar.gz\"\n"
            );
            assert!(both.contains(&url), "{both}");
        }
        assert_eq!(both.matches(&format!("sha256 \"{}\"\n", "12".repeat(32))).count(), 2);
        for text in [both, linux] {
            let is = |line: &&str, end: &str| line.trim_end().ends_with(end);
            let opened = text.lines().filter(|line| {
                is(line, " do") || line.starts_with("class ") || line.trim().starts_with("def ")
            });
            assert_eq!(opened.count(), text.lines().filter(|line| line.trim() == "end").count());
            assert_eq!(text.matches('"').count() % 2, 0);
            // Ruby's own opinion, where there is one.
            if crate::machine::is_program("ruby") {
                let ruby = Command::new("ruby").args(["-c", "-e", &text]).output().unwrap();
                assert!(ruby.status.success(), "{}", String::from_utf8_lossy(&ruby.stderr));
            }
        }
    }
}
