//! The manifests of the archive for Windows in winget's repository, schema 1.6.0:
//! <https://github.com/microsoft/winget-cli/tree/master/schemas/JSON/manifests/v1.6.0>.

use super::packages::{Packages, WINDOWS};
use super::release::Release;

const SCHEMA: &str = "1.6.0";

/// Returns the names and texts of the manifests, below the folder of results. Empty if there is no
/// archive for Windows.
pub(super) fn manifests(packages: &Packages, release: &Release) -> Vec<(String, String)> {
    let Some((archive, sum)) = packages.archive(release, WINDOWS) else { return Vec::new() };
    let (owner, url, version) = (release.address.owner(), release.address.url(), &release.version);
    let identifier = format!("{owner}.trine");
    let manifest = |kind: &str, schema: &str, fields: &str| {
        let name = match kind {
            "version" => identifier.clone(),
            "defaultLocale" => format!("{identifier}.locale.en-US"),
            _ => format!("{identifier}.{kind}"),
        };
        let text = format!(
            "# yaml-language-server: \
             $schema=https://aka.ms/winget-manifest.{schema}.{SCHEMA}.schema.json\n\
             PackageIdentifier: {identifier}\n\
             PackageVersion: \"{version}\"\n\
             {fields}ManifestType: {kind}\n\
             ManifestVersion: {SCHEMA}\n"
        );
        (format!("winget/{name}.yaml"), text)
    };
    let program = release_program(release);
    let (address, sum) = (release.download(&archive), sum.to_uppercase());
    let installer = format!(
        "InstallerType: zip\nNestedInstallerType: portable\nNestedInstallerFiles:\n\
         - RelativeFilePath: {program}\n  PortableCommandAlias: trine\n\
         Installers:\n- Architecture: x64\n  InstallerUrl: {address}\n  InstallerSha256: {sum}\n"
    );
    let locale = format!(
        "PackageLocale: en-US\n\
         Publisher: {owner}\n\
         PublisherUrl: {url}\n\
         PackageName: trine\n\
         PackageUrl: {url}\n\
         License: Apache-2.0 OR MIT\n\
         LicenseUrl: {url}/blob/{tag}/LICENSE-MIT\n\
         ShortDescription: Runs Google's Gemma models on this computer\n\
         Moniker: trine\n\
         ReleaseNotesUrl: {url}/releases/tag/{tag}\n\
         Tags:\n\
         - gemma\n\
         - llm\n\
         - vulkan\n",
        tag = release.tag()
    );
    vec![
        manifest("version", "version", "DefaultLocale: en-US\n"),
        manifest("installer", "installer", &installer),
        manifest("defaultLocale", "defaultLocale", &locale),
    ]
}

/// Returns the path of the program in the archive, as Windows writes it.
fn release_program(release: &Release) -> String {
    let windows = Release { target: WINDOWS.to_owned(), ..release.clone() };
    format!("{}/{}", windows.name(), windows.program()).replace('/', "\\")
}

#[cfg(test)]
mod tests {
    use super::*;
    use yaml_rust2::{Yaml, YamlLoader};

    /// The fields that each schema requires.
    const REQUIRED: [(&str, &[&str]); 3] = [
        ("version", &["DefaultLocale"]),
        ("installer", &["Installers"]),
        (
            "defaultLocale",
            &["PackageLocale", "Publisher", "PackageName", "License", "ShortDescription"],
        ),
    ];
    const REQUIRED_OF_ALL: [&str; 4] =
        ["PackageIdentifier", "PackageVersion", "ManifestType", "ManifestVersion"];

    #[test]
    fn manifests_have_what_their_schemas_require() {
        let release = Release::example();
        let made = manifests(&Packages::example(&release, &[WINDOWS]), &release);
        assert_eq!(
            made.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
            [
                "winget/some-one.trine.yaml",
                "winget/some-one.trine.installer.yaml",
                "winget/some-one.trine.locale.en-US.yaml"
            ]
        );
        for ((name, text), (kind, required)) in made.iter().zip(REQUIRED) {
            let documents = YamlLoader::load_from_str(text).unwrap();
            let [document] = &documents[..] else { panic!("{name} is not one document") };
            let field = |name: &str| document[name].as_str().unwrap_or_default();
            for required in required.iter().chain(&REQUIRED_OF_ALL) {
                assert_ne!(document[*required], Yaml::BadValue, "{name} lacks {required}");
            }
            assert_eq!(field("PackageVersion"), "1.2.3", "a version is a text: {name}");
            assert_eq!(field("PackageIdentifier"), "some-one.trine");
            assert_eq!((field("ManifestType"), field("ManifestVersion")), (kind, "1.6.0"));
        }
        let installer = &YamlLoader::load_from_str(&made[1].1).unwrap()[0];
        let nested = &installer["NestedInstallerFiles"][0];
        assert_eq!(
            nested["RelativeFilePath"].as_str(),
            Some("trine-1.2.3-x86_64-pc-windows-gnu\\bin\\trine.exe")
        );
        let one = &installer["Installers"][0];
        assert_eq!(one["InstallerSha256"].as_str(), Some("AB".repeat(32).as_str()));
        assert_eq!(
            one["InstallerUrl"].as_str(),
            Some(
                "https://git.example/some-one/trine/releases/download/v1.2.3/\
                 trine-1.2.3-x86_64-pc-windows-gnu.zip"
            )
        );
    }

    #[test]
    fn without_an_archive_for_windows_there_is_no_manifest() {
        let release = Release::example();
        assert!(manifests(&Packages::example(&release, &[]), &release).is_empty());
    }
}
