//! Vulkan drivers for tests: Debian's lavapipe (runs on the processor), a newer lavapipe with
//! cooperative matrices, and RADV, which compiles for a Radeon that is not present.
//!
//! The first is a package of the system. The other two belong to other Debian releases: a private
//! apt, whose lists and packages stay in `target/drivers`, fetches them, and `dpkg -x` unpacks them
//! there, so that nothing in the system changes.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::apt::Apt;
use crate::driver::Driver;
use crate::machine::{install, is_program};
use crate::{dist, meter, outside};

/// The drivers of this machine; `None` if a driver is missing.
pub(crate) struct Drivers {
    /// The system's lavapipe: the plain kernels.
    pub(crate) lavapipe: Option<Driver>,
    /// The newer lavapipe: the cooperative matrix kernels.
    pub(crate) matrix: Option<Driver>,
    /// RADV as on a Radeon 780M: compiles, but does not run.
    pub(crate) radv: Option<Driver>,
    /// The missing drivers and the reasons: one sentence each.
    pub(crate) missing: Vec<String>,
}

/// A driver from another Debian release.
struct Fetched {
    /// The folder in `target/drivers`.
    name: &'static str,
    /// The release's archive.
    suite: &'static str,
    /// The releases that are searched: `suite`, and those that its packages depend on.
    suites: &'static str,
    /// Packages with the versions that the reports were made with. If `whole`, the packages that
    /// they depend on are fetched too.
    packages: &'static [(&'static str, &'static str)],
    whole: bool,
    /// Packages of the release, in its own version, for use with the driver.
    tools: &'static [&'static str],
    library: &'static str,
}

/// Mesa 25.0.7 for Debian 12: it uses the libraries of the stock driver. Later versions have no
/// device without hardware.
const RADV: Fetched = Fetched {
    name: "radv",
    suite: "bookworm-backports",
    suites: "bookworm-backports",
    packages: &[
        ("mesa-vulkan-drivers", "25.0.7-2~bpo12+1"),
        ("libdrm2", "2.4.123-1~bpo12+1"),
        ("libdrm-amdgpu1", "2.4.123-1~bpo12+1"),
    ],
    whole: false,
    tools: &[],
    library: "libvulkan_radeon.so",
};

/// Mesa 26 for Debian 13, with that release's C library. `spirv-val` runs on the same library, and
/// so does a validation layer that knows cooperative matrices.
const MATRIX: Fetched = Fetched {
    name: "lavapipe",
    suite: "trixie-backports",
    suites: "trixie trixie-backports",
    packages: &[("mesa-vulkan-drivers", "26.1.6-1~bpo13+1")],
    whole: true,
    tools: &["spirv-tools", "vulkan-validationlayers"],
    library: "libvulkan_lvp.so",
};

/// The folder of the libraries inside a package of Debian for x86-64.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const LOADER: &str = "ld-linux-x86-64.so.2";

/// Names what was unpacked. Written last, so that a folder without it is incomplete.
const STAMP: &str = "version";

/// Installs and fetches what is missing, and prints how each driver is used.
pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    let drivers = ensure(root)?;
    print(&drivers);
    if drivers.missing.is_empty() { Ok(()) } else { bail!("{} are missing", drivers.missing.len()) }
}

/// Installs and fetches what is missing. The result lists the drivers that cannot be had.
pub(crate) fn ensure(root: &Path) -> anyhow::Result<Drivers> {
    let mut reasons = Vec::new();
    // One after the other: a system may know one of them by another name.
    for packages in [missing_packages(), outside::missing()] {
        if let Err(error) = install(root, &packages) {
            reasons.push(format!("{error:#}"));
        }
    }
    if cfg!(not(all(target_os = "linux", target_arch = "x86_64"))) {
        reasons.push("the drivers of other releases are fetched only on x86-64 Linux".to_owned());
    } else {
        for wanted in [&RADV, &MATRIX] {
            if !is_complete(root, wanted)
                && let Err(error) = fetch(root, wanted)
            {
                let Fetched { name, suite, .. } = wanted;
                reasons.push(format!("{name} of {suite} cannot be fetched: {error:#}"));
            }
        }
    }
    let mut drivers = find(root)?;
    if drivers.lavapipe.is_none() && reasons.is_empty() {
        reasons.push("the system has no lavapipe (Debian: mesa-vulkan-drivers)".to_owned());
    }
    drivers.missing = reasons;
    for reason in &drivers.missing {
        eprintln!("== drivers: MISSING: {reason}");
    }
    Ok(drivers)
}

/// Returns the drivers that are installed already.
pub(crate) fn find(root: &Path) -> anyhow::Result<Drivers> {
    let system = system_lavapipe().map(|path| Driver {
        environment: vec![
            ("VK_DRIVER_FILES".to_owned(), path.display().to_string()),
            unoptimised(),
            // Device memory is from malloc. glibc fills it with 0xFE, which no test can take for a
            // value that it expects or for an index.
            ("MALLOC_PERTURB_".to_owned(), "1".to_owned()),
            shader_cache(root),
        ],
        layers: system_layers(),
        ..Driver::default()
    });
    Ok(Drivers {
        lavapipe: system,
        matrix: driver(root, &MATRIX)?,
        radv: driver(root, &RADV)?,
        missing: Vec::new(),
    })
}

/// Returns the command of a `spirv-val` that knows cooperative matrices: the fetched one, or the
/// system's if it is of 2024 or later.
pub(crate) fn validator(root: &Path) -> Option<Vec<String>> {
    let folder = folder(root, &MATRIX);
    let fetched = folder.join("usr/bin/spirv-val");
    if is_complete(root, &MATRIX) && fetched.is_file() {
        let mut command = launcher(&folder);
        command.push(fetched.display().to_string());
        return Some(command);
    }
    let output = Command::new("spirv-val").arg("--version").output().ok()?;
    let year = year_of(&String::from_utf8_lossy(&output.stdout))?;
    (year >= 2024).then(|| vec!["spirv-val".to_owned()])
}

/// Returns the year in `SPIRV-Tools v2023.1 v2022.4-...`.
fn year_of(version: &str) -> Option<u32> {
    version.split_once(" v")?.1.split('.').next()?.parse().ok()
}

fn folder(root: &Path, wanted: &Fetched) -> PathBuf {
    root.join("target/drivers").join(wanted.name)
}

/// Returns the description of lavapipe for the Vulkan loader by Debian or another distribution.
fn system_lavapipe() -> Option<PathBuf> {
    let folders = ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d"];
    let files = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten();
    let mut paths: Vec<_> = files.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    let is_lavapipe = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_foreign = name.contains("i686") || name.contains("i386");
        name.starts_with("lvp_icd") && name.ends_with(".json") && !is_foreign
    };
    paths.into_iter().find(is_lavapipe)
}

/// Returns the variable with the folder in which Mesa keeps the machine code of shaders, by driver
/// and shader: compiling is most of the time of tests on lavapipe.
fn shader_cache(root: &Path) -> (String, String) {
    let folder = root.join("target/shader-cache");
    ("MESA_SHADER_CACHE_DIR".to_owned(), folder.display().to_string())
}

/// Returns the variable that makes Mesa compile shaders without optimising them: compiling takes
/// longer than running.
fn unoptimised() -> (String, String) {
    ("GALLIVM_PERF".to_owned(), "nopt".to_owned())
}

/// The description of Khronos' validation layer for the Vulkan loader.
const LAYER: &str = "VkLayer_khronos_validation.json";

/// Returns the folder with the description of the system's validation layer.
fn system_layers() -> Option<PathBuf> {
    let folders = ["/usr/share/vulkan/explicit_layer.d", "/etc/vulkan/explicit_layer.d"];
    folders.iter().map(PathBuf::from).find(|folder| folder.join(LAYER).is_file())
}

/// Returns the stamp of a complete folder: the wanted versions and the fetched versions.
fn stamp(wanted: &Fetched, got: &[String]) -> String {
    let list: Vec<_> =
        wanted.packages.iter().map(|(name, version)| format!("{name}={version}")).collect();
    let tools: String = wanted.tools.iter().map(|tool| format!(" {tool}")).collect();
    format!("wanted {}{tools}\ngot {}\n", list.join(" "), got.join(" "))
}

fn is_complete(root: &Path, wanted: &Fetched) -> bool {
    // A stamp with other pins was written by another version of this program.
    let expected = stamp(wanted, &[]);
    let first = expected.lines().next().unwrap_or_default();
    std::fs::read_to_string(folder(root, wanted).join(STAMP))
        .is_ok_and(|text| text.lines().next() == Some(first))
}

fn driver(root: &Path, wanted: &Fetched) -> anyhow::Result<Option<Driver>> {
    if !is_complete(root, wanted) {
        return Ok(None);
    }
    let folder = folder(root, wanted);
    let text = std::fs::read_to_string(folder.join(STAMP)).context("the stamp is gone")?;
    let got = text.lines().nth(1).and_then(|line| line.strip_prefix("got ")).unwrap_or_default();
    let is_pinned = wanted.packages.iter().all(|(name, version)| {
        got.split(' ').any(|package| package == format!("{name}={version}"))
    });
    let version = got
        .split(' ')
        .find_map(|package| package.strip_prefix("mesa-vulkan-drivers="))
        .unwrap_or_default();
    let description = folder.join("driver.json").display().to_string();
    let mut environment = vec![("VK_DRIVER_FILES".to_owned(), description)];
    let mut launch = Vec::new();
    let mut layers = None;
    if wanted.whole {
        launch = launcher(&folder);
        environment.extend([unoptimised(), shader_cache(root)]);
        let described = folder.join("usr/share/vulkan/explicit_layer.d");
        layers = described.join(LAYER).is_file().then_some(described);
    } else {
        let libraries = folder.join(LIBRARIES).display().to_string();
        // Uses a launcher, because cargo, which starts the program, must keep its own libraries.
        launch.extend(["/usr/bin/env".to_owned(), format!("LD_LIBRARY_PATH={libraries}")]);
        environment.push(("RADV_FORCE_FAMILY".to_owned(), "phoenix".to_owned()));
    }
    let version = version.to_owned();
    Ok(Some(Driver { environment, launcher: launch, version, is_pinned, layers }))
}

/// Returns the launcher that starts a program on the C library of the release in the folder.
fn launcher(folder: &Path) -> Vec<String> {
    let libraries = folder.join(LIBRARIES);
    let loader = libraries.join(LOADER).display().to_string();
    vec![loader, "--library-path".to_owned(), libraries.display().to_string()]
}

/// Returns the system's packages for the missing drivers.
fn missing_packages() -> Vec<&'static str> {
    let mut packages = Vec::new();
    if system_lavapipe().is_none() {
        packages.extend(["mesa-vulkan-drivers", "libvulkan1"]);
    }
    if system_layers().is_none() {
        packages.push("vulkan-validationlayers");
    }
    if std::env::var_os("CXX").is_none() && !["c++", "g++"].iter().any(|name| is_program(name)) {
        packages.push("g++");
    }
    if is_program("dpkg") && !dist::is_possible() {
        packages.push("dpkg-dev");
    }
    packages
}

/// Fetches and unpacks a driver.
fn fetch(root: &Path, wanted: &Fetched) -> anyhow::Result<()> {
    if !is_program("apt-get") || !is_program("dpkg") {
        bail!("it takes apt-get and dpkg (Debian, Ubuntu)");
    }
    let drivers = root.join("target/drivers");
    let apt = Apt::new(&drivers, wanted.name, wanted.suites)?;
    let mut chosen = Vec::new();
    for (package, pin) in wanted.packages {
        let versions = apt.versions(package, wanted.suite)?;
        let version = if versions.iter().any(|version| version == pin) {
            (*pin).to_owned()
        } else {
            let newest = versions.into_iter().next();
            let newest = newest.with_context(|| format!("{} has no {package}", wanted.suite))?;
            eprintln!("== drivers: {package} {pin} is gone from {}; taking {newest}", wanted.suite);
            newest
        };
        chosen.push(format!("{package}={version}"));
    }
    eprintln!("== drivers: fetching {}", chosen.join(" "));
    let packages = if wanted.whole {
        let tools: Vec<_> = wanted.tools.iter().map(|&tool| tool.to_owned()).collect();
        apt.download_whole(wanted.suite, &[chosen.as_slice(), &tools].concat())?
    } else {
        apt.download(&chosen)?
    };

    let folder = folder(root, wanted);
    if folder.exists() {
        std::fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    std::fs::create_dir_all(&folder)?;
    for package in &packages {
        let mut unpack = Command::new("dpkg");
        let status = meter::status(unpack.arg("-x").arg(package).arg(&folder))?;
        if !status.success() {
            bail!("cannot unpack {}", package.display());
        }
    }
    let library = folder.join(LIBRARIES).join(wanted.library);
    if !library.is_file() {
        bail!("the packages hold no {}", wanted.library);
    }
    let missing = missing_libraries(&folder, &library, wanted.whole)?;
    if !missing.is_empty() {
        bail!("{} needs {}, which this system has not", wanted.library, missing.join(", "));
    }
    // Relative to the file itself, so that the folder can be moved.
    let library = format!("./{LIBRARIES}/{}", wanted.library);
    let description = serde_json::json!({
        "file_format_version": "1.0.0",
        "ICD": { "library_path": library, "api_version": "1.4.0" },
    });
    std::fs::write(folder.join("driver.json"), format!("{description:#}\n"))?;
    std::fs::write(folder.join(STAMP), stamp(wanted, &chosen))?;
    apt.clear()
}

/// Returns the libraries that the dynamic loader does not find.
fn missing_libraries(folder: &Path, library: &Path, whole: bool) -> anyhow::Result<Vec<String>> {
    let output = if whole {
        let launcher = launcher(folder);
        Command::new(&launcher[0]).arg("--list").args(&launcher[1..]).arg(library).output()
    } else {
        Command::new("ldd").env("LD_LIBRARY_PATH", folder.join(LIBRARIES)).arg(library).output()
    };
    let text = output.context("cannot list the driver's libraries")?.stdout;
    let text = String::from_utf8_lossy(&text);
    let missing = text.lines().filter(|line| line.contains("not found"));
    Ok(missing.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect())
}

fn print(drivers: &Drivers) {
    for (title, driver) in [
        ("lavapipe of the system", &drivers.lavapipe),
        ("lavapipe with cooperative matrices", &drivers.matrix),
        ("RADV for the Radeon 780M (compiles, does not run)", &drivers.radv),
    ] {
        println!("# {title}");
        let Some(driver) = driver else {
            println!("#   missing\n");
            continue;
        };
        if !driver.version.is_empty() {
            let pin = if driver.is_pinned { "" } else { ", not the pinned version" };
            println!("#   Mesa {}{pin}", driver.version);
        }
        let mut words: Vec<_> =
            driver.environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
        words.extend(driver.launcher.iter().cloned());
        println!("{} PROGRAM\n", words.join(" "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_year_of_a_validator_is_read() {
        assert_eq!(year_of("SPIRV-Tools v2023.1 v2022.4-51-g8ef21a2\n"), Some(2023));
        assert_eq!(year_of("SPIRV-Tools v2025.1.rc1 unknown hash\n"), Some(2025));
        assert_eq!(year_of("spirv-val 7"), None);
    }

    #[test]
    fn a_folder_without_its_stamp_or_with_one_for_other_pins_is_not_whole() {
        let root = tempfile::tempdir().unwrap();
        let folder = folder(root.path(), &RADV);
        std::fs::create_dir_all(&folder).unwrap();
        assert!(driver(root.path(), &RADV).unwrap().is_none());

        let got = ["mesa-vulkan-drivers=25.0.8".to_owned()];
        std::fs::write(folder.join(STAMP), stamp(&RADV, &got)).unwrap();
        let driver_found = driver(root.path(), &RADV).unwrap().unwrap();
        assert_eq!(driver_found.version, "25.0.8");
        assert!(!driver_found.is_pinned);

        std::fs::write(folder.join(STAMP), stamp(&MATRIX, &got)).unwrap();
        assert!(driver(root.path(), &RADV).unwrap().is_none());
    }
}
