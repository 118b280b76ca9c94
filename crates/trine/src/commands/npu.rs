//! `trine npu`

mod doctor;
mod pack;
mod selftest;

use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result, bail};
use trine_npu::generate::{self, Kernel};
use trine_npu::pack::Pack;
use trine_npu::pdi::Pdi;
use trine_npu::txn::Transaction;
use trine_npu::verify::{Proof, Scope, Verifier};
use trine_npu::xclbin::{XCLBIN_BYTES_MAX, Xclbin};
use trine_npu::{UNTESTED, harmless, read_file};
use trine_session::library::ModelLibrary;

use crate::cli::{NpuArgs, NpuCommand, NpuInspectArgs, NpuVerifyArgs};
use crate::failure::usage;
use crate::terminal::output;
use crate::terminal::shown;

/// What an xclbin, and what a PDI begins with.
const XCLBIN_MAGIC: &[u8] = b"xclbin2\0";
const PDI_MAGIC: &[u8] = &[0xdd, 0, 0, 0];
/// The version that a transaction stream begins with.
const STREAM_VERSION: &[u8] = &[0, 1];
/// What Git has in the place of a large file that was not fetched.
const LFS_POINTER: &[u8] = b"version https://git-lfs";

/// Looks for an NPU, tries it, or shows, proves or makes files for one.
///
/// # Errors
/// Returns an error if something is missing, if a file cannot be read or breaks its format, if a
/// stream is not proven, or if standard output cannot be written.
pub(crate) fn run(library: &ModelLibrary, args: NpuArgs) -> Result<()> {
    match args.command {
        NpuCommand::Doctor(args) => doctor::run(library, &args),
        NpuCommand::Inspect(args) => inspect(&args),
        NpuCommand::Pack(args) => pack::run(library, &args, &read(&args.xclbin)?),
        NpuCommand::Selftest(args) => selftest::run(library, &args),
        NpuCommand::Verify(args) => verify(&args),
    }
}

/// Reads a file that is at most as large as the largest kind.
fn read(path: &Path) -> Result<Vec<u8>> {
    let shown = shown(path);
    match read_file(path, XCLBIN_BYTES_MAX) {
        Ok(bytes) => Ok(bytes),
        Err(error) if error.kind() == ErrorKind::InvalidInput => {
            bail!("{shown} is not a regular file; name an xclbin, a PDI or a transaction stream")
        }
        Err(error) if error.kind() == ErrorKind::FileTooLarge => {
            let limit = output::bytes(XCLBIN_BYTES_MAX as u64);
            bail!("{shown} is larger than {limit}; no file for an NPU is")
        }
        Err(error) => Err(error).with_context(|| format!("cannot read {shown}; check the path")),
    }
}

fn inspect(args: &NpuInspectArgs) -> Result<()> {
    let bytes = read(&args.file)?;
    let shown = shown(&args.file);
    let mut unread = 0;
    let mut lines = vec![format!("sha256      {}", trine_npu::sha256(&bytes))];
    if bytes.starts_with(XCLBIN_MAGIC) {
        let xclbin = Xclbin::parse(&bytes).with_context(|| shown.clone())?;
        unread = describe_xclbin(&xclbin, &bytes, &mut lines);
    } else if bytes.starts_with(PDI_MAGIC) {
        let pdi = Pdi::parse(&bytes).with_context(|| shown.clone())?;
        lines.push(format!("PDI         {}", describe_pdi(&pdi)));
    } else {
        let stream = stream(&shown, &bytes)?;
        describe_stream(&stream, args.operations, &mut lines);
    }
    let told = output::line(lines.join("\n"));
    if unread > 0 {
        let pdis = output::counted(unread, "PDI");
        bail!("{shown}: {pdis} cannot be read; trine uses no such file");
    }
    told
}

/// Reads a transaction stream, which is what is neither an xclbin nor a PDI.
fn stream(shown: &str, bytes: &[u8]) -> Result<Transaction> {
    if bytes.starts_with(LFS_POINTER) {
        bail!("{shown} is a pointer of Git LFS and not the file; fetch it with `git lfs pull`");
    }
    // No stream has another version, and text begins otherwise.
    if !bytes.starts_with(STREAM_VERSION) {
        bail!(
            "{shown} is neither an xclbin nor a PDI nor a transaction stream; check what was \
             fetched"
        );
    }
    Transaction::parse(bytes).with_context(|| shown.to_owned())
}

/// Returns how many PDIs cannot be read.
fn describe_xclbin(xclbin: &Xclbin, bytes: &[u8], lines: &mut Vec<String>) -> usize {
    let (major, minor, patch) = xclbin.version;
    let Xclbin { platform, uuid, .. } = xclbin;
    lines.push(format!("xclbin      version {major}.{minor}.{patch}, {platform:?}, {uuid}"));
    for section in &xclbin.sections {
        let (kind, name) = (section.kind, &section.name);
        let bytes = section.range.len();
        lines.push(format!("section     kind {kind}, {bytes} bytes, {name:?}"));
    }
    for kernel in &xclbin.kernels {
        let name = &kernel.name;
        lines.push(format!("kernel      {name:?}"));
        for argument in &kernel.arguments {
            let trine_npu::xclbin::Argument { name, id, offset, bytes } = argument;
            lines.push(format!("  argument  {id} at {offset:#x}, {bytes} bytes, {name:?}"));
        }
    }
    for unit in &xclbin.units {
        let (name, kind) = (&unit.name, unit.kind);
        let (function, kernel) = (unit.function(), unit.kernel_id());
        lines.push(format!(
            "unit        kind {kind}, function {function}, kernel {kernel:#x}, {name:?}"
        ));
    }
    let Some(partition) = &xclbin.partition else { return 0 };
    let mut unread = 0;
    let (columns, starts) = (partition.columns, &partition.start_columns);
    lines.push(format!("partition   {columns} columns from one of {starts:?}"));
    for image in &partition.pdis {
        let pdi = Pdi::parse(&bytes[image.range.clone()]);
        let told = match &pdi {
            Ok(pdi) => describe_pdi(pdi),
            Err(error) => {
                unread += 1;
                format!("{error} (counted from the PDI's begin)")
            }
        };
        lines.push(format!(
            "PDI         ids {:x?}, {} bytes, {told}",
            image.ids,
            image.range.len()
        ));
    }
    unread
}

fn describe_pdi(pdi: &Pdi) -> String {
    let cores = pdi.cores();
    let enabled = cores.iter().filter(|core| core.is_enabled).count();
    let program = cores.iter().map(|core| core.program_bytes).max().unwrap_or(0);
    let commands = pdi.commands.len();
    format!("{commands} commands, {enabled} cores run, programs of up to {program} bytes")
}

fn describe_stream(stream: &Transaction, lists: bool, lines: &mut Vec<String>) {
    let header = stream.header;
    let (rows, columns) = (header.rows, header.columns);
    let generation = header.generation;
    let (operations, bytes) = (stream.operations.len(), stream.file_bytes());
    lines.push(format!(
        "stream      generation {generation}, {rows} rows, {columns} columns, {operations} \
         operations, {bytes} bytes"
    ));
    let canonical = stream.canonical();
    lines.push(format!("canonical   {}", trine_npu::sha256(&canonical.to_bytes())));
    let known = Kernel::all()
        .into_iter()
        .find(|kernel| generate::stream(*kernel).is_ok_and(|known| known == canonical));
    let known = known.map_or("of no kernel that trine generates".to_owned(), |kernel| {
        format!("the one for {kernel}")
    });
    lines.push(format!("it is       {known}"));
    if lists {
        let mut offset = trine_npu::txn::HEADER_BYTES;
        for (index, operation) in stream.operations.iter().enumerate() {
            lines.push(format!("{index:6} {offset:8}  {}", operation.action));
            offset += operation.action.file_bytes();
        }
    }
}

fn verify(args: &NpuVerifyArgs) -> Result<()> {
    if args.path.is_dir() {
        if args.kernel.is_some() {
            return Err(usage("--kernel is for a single stream; a pack's manifest names kernels"));
        }
        return verify_pack(&args.path);
    }
    let bytes = read(&args.path)?;
    let shown = shown(&args.path);
    if bytes.starts_with(XCLBIN_MAGIC) || bytes.starts_with(PDI_MAGIC) {
        bail!(
            "{shown} is a kernel's container; `trine npu inspect` shows it, and what is verified \
             is a stream or a pack's folder"
        );
    }
    let stream = stream(&shown, &bytes)?;
    let stem = args.path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let name = args.kernel.clone().or(stem).unwrap_or_default();
    let Some(kernel) = Kernel::from_name(&name) else {
        bail!(
            "{} is no kernel that trine generates; pass --kernel such as {}, or make a pack with a \
             manifest",
            harmless(&name),
            Kernel::Int8 { m: 8, k: 2048, n: 2048 }
        );
    };
    let contract = generate::contract(kernel).map_err(anyhow::Error::msg)?;
    let verifier = Verifier::new(contract).map_err(anyhow::Error::msg)?;
    let proof = verifier.verify(&stream).with_context(|| format!("{shown} is refused"))?;
    tell(&shown, &proof, &verifier)
}

/// Proves all streams of a pack. The verdict decides how the command ends, also if nobody reads it.
fn verify_pack(folder: &Path) -> Result<()> {
    let pack = Pack::open(folder).with_context(|| format!("{} is refused", shown(folder)))?;
    let mut printed = Ok(());
    if let Some(cores) = pack.cores() {
        let family = cores.family();
        printed = output::line(if cores.is_stand_in() {
            format!("cores: a program in the place of {family}'s, for trine's model only")
        } else {
            format!("cores: the program that AMD published for {family}")
        });
    }
    let (mut refused, mut whole) = (0, 0);
    for (entry, part) in pack.manifest.stream.iter().zip(&pack.streams) {
        let told = match part.verifier.verify(&part.stream) {
            Ok(proof) => {
                whole += usize::from(proof.scope == Scope::Whole);
                tell(&entry.file, &proof, &part.verifier)
            }
            Err(refusal) => {
                refused += 1;
                output::line(format!("{}: refused: {refusal}", entry.file))
            }
        };
        printed = printed.and(told);
    }
    let all = pack.streams.len();
    if refused > 0 {
        bail!("{refused} of {all} streams are refused; the pack must not be used");
    }
    let which = match whole == all {
        true => "what they do to memory, and that the array's side is the published one",
        false => "trine submits no others",
    };
    printed.and_then(|()| {
        output::line(format!("Proven as a whole: {whole} of {all} streams; {which} ({UNTESTED})."))
    })
}

/// Prints what was proven.
fn tell(name: &str, proof: &Proof, verifier: &Verifier) -> Result<()> {
    let scope = match proof.scope {
        Scope::Whole => match verifier.contract().kernel {
            Some(kernel) => {
                format!("proven as a whole, for the published cores of {}", kernel.family())
            }
            None => "proven as a whole".to_owned(),
        },
        Scope::Memory => "proven for memory only; whether the array stops is not known".to_owned(),
    };
    output::line(format!("{name}: {scope} ({UNTESTED})"))?;
    for traffic in &proof.traffic {
        let buffers = &verifier.contract().buffers;
        let buffer = buffers.iter().find(|buffer| buffer.argument == traffic.argument);
        let name = buffer.map_or("?", |buffer| buffer.name.as_str());
        let (column, index, bytes) = (traffic.column, traffic.channel.index, traffic.bytes);
        let direction = traffic.channel.direction.name();
        output::line(format!("  column {column}, {direction} {index}: {bytes} bytes of {name}"))?;
    }
    Ok(())
}
