//! The bill of materials in CycloneDX 1.5 (<https://cyclonedx.org/docs/1.5/json/>).

use anyhow::{Context, bail};
use cyclonedx_bom::external_models::uri::{Purl, Uri};
use cyclonedx_bom::models::bom::{Bom, SpecVersion};
use cyclonedx_bom::models::component::{Classification, Component, Components};
use cyclonedx_bom::models::dependency::{Dependencies, Dependency};
use cyclonedx_bom::models::external_reference::{
    ExternalReference, ExternalReferenceType, ExternalReferences,
};
use cyclonedx_bom::models::hash::{Hash, HashAlgorithm, HashValue, Hashes};
use cyclonedx_bom::models::license::{LicenseChoice, Licenses};
use cyclonedx_bom::models::metadata::Metadata;
use cyclonedx_bom::prelude::{NormalizedString, Validate};

use super::inventory::{Inventory, Package};
use super::release::Release;

/// Writes the bill of a program as JSON. The same packages produce the same text: it has neither a
/// serial number nor a time.
pub(super) fn write(inventory: &Inventory, release: &Release) -> anyhow::Result<String> {
    let packages = &inventory.packages;
    let (program, others) = packages.split_first().context("the inventory is empty")?;
    let mut main = component(program, Classification::Application)?;
    main.description = Some(NormalizedString::new(&format!(
        "trine {}, built for {}",
        release.version, release.target
    )));
    let components = others.iter().map(|package| component(package, Classification::Library));
    let dependency = |package: &Package| Dependency {
        dependency_ref: reference(package),
        dependencies: package.uses.iter().map(|&place| reference(&packages[place])).collect(),
    };
    let bom = Bom {
        serial_number: None,
        metadata: Some(Metadata { component: Some(main), ..Metadata::default() }),
        components: Some(Components(components.collect::<anyhow::Result<_>>()?)),
        dependencies: Some(Dependencies(packages.iter().map(dependency).collect())),
        ..Bom::default()
    };
    let validation = bom.validate_version(SpecVersion::V1_5);
    if !validation.passed() {
        bail!("the bill of materials is wrong: {validation:?}");
    }
    let mut text = Vec::new();
    bom.output_as_json_v1_5(&mut text).context("the bill of materials cannot be written")?;
    let mut text = String::from_utf8(text)?;
    text.push('\n');
    Ok(text)
}

/// Returns the name of a component within the bill.
fn reference(package: &Package) -> String {
    format!("{}@{}", package.name, package.version)
}

fn component(package: &Package, kind: Classification) -> anyhow::Result<Component> {
    let mut component =
        Component::new(kind, &package.name, &package.version, Some(reference(package)));
    component.description = package.description.as_deref().map(NormalizedString::new);
    component.licenses = Some(Licenses(vec![LicenseChoice::expression(&package.licence)]));
    if package.is_foreign {
        component.purl = Some(Purl::new("cargo", &package.name, &package.version)?);
    }
    component.hashes = package.checksum.as_ref().map(|checksum| {
        Hashes(vec![Hash { alg: HashAlgorithm::SHA_256, content: HashValue(checksum.clone()) }])
    });
    component.external_references = package.repository.as_deref().map(|repository| {
        let uri = Uri::new(repository);
        ExternalReferences(vec![ExternalReference::new(ExternalReferenceType::Vcs, uri)])
    });
    Ok(component)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bill_names_every_package_and_what_it_uses() {
        let package = |name: &str, uses: &[usize]| Package {
            name: name.into(),
            version: "1.2.3".into(),
            licence: "MIT OR Apache-2.0".into(),
            description: Some("with\ttabs and\nlines".into()),
            repository: Some("https://example.org/source".into()),
            is_foreign: name != "trine",
            checksum: (name != "trine").then(|| "ab".repeat(32)),
            folder: "/".into(),
            uses: uses.into(),
        };
        let inventory = Inventory { packages: vec![package("trine", &[1]), package("other", &[])] };
        let release = Release::example();
        let text = write(&inventory, &release).unwrap();
        assert_eq!(text, write(&inventory, &release).unwrap());
        let bill: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(bill["bomFormat"], "CycloneDX");
        assert_eq!(bill["metadata"]["component"]["name"], "trine");
        assert_eq!(bill["components"].as_array().unwrap().len(), 1);
        assert_eq!(bill["components"][0]["purl"], "pkg:cargo/other@1.2.3");
        assert_eq!(bill["components"][0]["hashes"][0]["content"], "ab".repeat(32));
        assert_eq!(bill["dependencies"][0]["dependsOn"], serde_json::json!(["other@1.2.3"]));
    }
}
