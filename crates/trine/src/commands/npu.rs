//! `trine npu`

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};
use trine_npu::UNTESTED;
use trine_npu::generate::{self, Kernel};
use trine_npu::pack::Pack;
use trine_npu::pdi::Pdi;
use trine_npu::txn::Stream;
use trine_npu::verify::{Proof, Scope, Verifier};
use trine_npu::xclbin::{XCLBIN_BYTES_MAX, Xclbin};

use super::{npu_doctor, npu_pack, npu_selftest};
use crate::cli::{NpuArgs, NpuCommand, NpuInspectArgs, NpuVerifyArgs};
use crate::failure::usage;
use crate::output;

/// What an xclbin, and what a PDI begins with.
const XCLBIN_MAGIC: &[u8] = b"xclbin2\0";
const PDI_MAGIC: &[u8] = &[0xdd, 0, 0, 0];

/// Looks for an NPU, tries it, or shows, proves or makes files for one.
///
/// # Errors
/// Returns an error if something is missing, if a file cannot be read or breaks its format, if a
/// stream is not proven, or if standard output cannot be written.
pub(crate) fn run(args: NpuArgs) -> Result<()> {
    match args.command {
        NpuCommand::Doctor(args) => npu_doctor::run(&args),
        NpuCommand::Inspect(args) => inspect(&args),
        NpuCommand::Pack(args) => npu_pack::run(&args, &read(&args.xclbin)?),
        NpuCommand::Selftest(args) => npu_selftest::run(&args),
        NpuCommand::Verify(args) => verify(&args),
    }
}

/// Reads a file that is at most as large as the largest kind.
fn read(path: &Path) -> Result<Vec<u8>> {
    let shown = path.display();
    let fail = || format!("cannot read {shown}; check the path");
    // Opening a pipe would wait for a writer.
    if !std::fs::metadata(path).with_context(fail)?.is_file() {
        bail!("{shown} is not a file; name an xclbin, a PDI or a transaction stream");
    }
    let mut bytes = Vec::new();
    let limit = XCLBIN_BYTES_MAX as u64 + 1;
    File::open(path).with_context(fail)?.take(limit).read_to_end(&mut bytes).with_context(fail)?;
    if bytes.len() > XCLBIN_BYTES_MAX {
        bail!("{shown} is larger than {}; no file for an NPU is", output::bytes(limit - 1));
    }
    Ok(bytes)
}

fn inspect(args: &NpuInspectArgs) -> Result<()> {
    let bytes = read(&args.file)?;
    let shown = args.file.display();
    let mut lines = vec![format!("sha256      {}", trine_npu::sha256(&bytes))];
    if bytes.starts_with(XCLBIN_MAGIC) {
        let xclbin = Xclbin::parse(&bytes).with_context(|| format!("{shown}"))?;
        describe_xclbin(&xclbin, &bytes, &mut lines);
    } else if bytes.starts_with(PDI_MAGIC) {
        let pdi = Pdi::parse(&bytes).with_context(|| format!("{shown}"))?;
        lines.push(format!("PDI         {}", describe_pdi(&pdi)));
    } else {
        let stream = Stream::parse(&bytes).with_context(|| format!("{shown}"))?;
        describe_stream(&stream, args.operations, &mut lines);
    }
    output::line(lines.join("\n"))
}

fn describe_xclbin(xclbin: &Xclbin, bytes: &[u8], lines: &mut Vec<String>) {
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
    let Some(partition) = &xclbin.partition else { return };
    let (columns, starts) = (partition.columns, &partition.start_columns);
    lines.push(format!("partition   {columns} columns from one of {starts:?}"));
    for image in &partition.pdis {
        let pdi = Pdi::parse(&bytes[image.range.clone()]);
        let told = pdi.map_or_else(|error| error.to_string(), |pdi| describe_pdi(&pdi));
        lines.push(format!(
            "PDI         ids {:x?}, {} bytes, {told}",
            image.ids,
            image.range.len()
        ));
    }
}

fn describe_pdi(pdi: &Pdi) -> String {
    let cores = pdi.cores();
    let enabled = cores.iter().filter(|core| core.is_enabled).count();
    let program = cores.iter().map(|core| core.program_bytes).max().unwrap_or(0);
    let commands = pdi.commands.len();
    format!("{commands} commands, {enabled} cores run, programs of up to {program} bytes")
}

fn describe_stream(stream: &Stream, lists: bool, lines: &mut Vec<String>) {
    let header = stream.header;
    let (rows, columns) = (header.rows, header.columns);
    let generation = header.generation;
    let (operations, bytes) = (stream.operations.len(), stream.file_bytes());
    lines.push(format!(
        "stream      generation {generation}, {rows} rows, {columns} columns, {operations} operations, {bytes} bytes"
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
    let shown = args.path.display();
    if bytes.starts_with(XCLBIN_MAGIC) || bytes.starts_with(PDI_MAGIC) {
        bail!(
            "{shown} is a kernel's container; `trine npu inspect` shows it, and what is verified is a stream or a pack's folder"
        );
    }
    let stream = Stream::parse(&bytes).with_context(|| format!("{shown}"))?;
    let stem = args.path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let name = args.kernel.clone().or(stem).unwrap_or_default();
    let Some(kernel) = Kernel::from_name(&name) else {
        bail!(
            "{name} is no kernel that trine generates; pass --kernel such as {}, or make a pack with a manifest",
            Kernel::Int8 { m: 8, k: 2048, n: 2048 }
        );
    };
    let contract = generate::contract(kernel).map_err(anyhow::Error::msg)?;
    let verifier = Verifier::new(contract).map_err(anyhow::Error::msg)?;
    let proof = verifier.verify(&stream).with_context(|| format!("{shown} is refused"))?;
    tell(&shown.to_string(), &proof, &verifier)
}

fn verify_pack(folder: &Path) -> Result<()> {
    let pack = Pack::open(folder).with_context(|| format!("{} is refused", folder.display()))?;
    if let Some(cores) = pack.cores() {
        let family = cores.family();
        output::line(if cores.is_stand_in() {
            format!("cores: a program in the place of {family}'s, for trine's model only")
        } else {
            format!("cores: the program that AMD published for {family}")
        })?;
    }
    let mut refused = 0;
    for (entry, part) in pack.manifest.stream.iter().zip(&pack.streams) {
        match part.verifier.verify(&part.stream) {
            Ok(proof) => tell(&entry.file, &proof, &part.verifier)?,
            Err(refusal) => {
                refused += 1;
                output::line(format!("{}: refused: {refusal}", entry.file))?;
            }
        }
    }
    if refused > 0 {
        let all = pack.streams.len();
        bail!("{refused} of {all} streams are refused; the pack must not be used");
    }
    Ok(())
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
