//! `trine npu`: AMD's XDNA1 NPU and its files.

use std::path::PathBuf;

use clap::{Args, Subcommand};

pub(super) const SHORT: &str = "Nothing of this was ever run on silicon.";

pub(super) const DETAILS: &str = "For AMD's XDNA1 NPUs (Phoenix, Hawk Point). Nothing of this was \
    ever run on silicon: the formats and the rules come from the published driver and files. \
    `--npu` lets one take part in prompts.";

/// `trine npu`
#[derive(Debug, Args)]
pub(crate) struct NpuArgs {
    #[command(subcommand)]
    pub(crate) command: NpuCommand,
}

/// What can be done with an NPU and its files.
#[derive(Debug, Subcommand)]
pub(crate) enum NpuCommand {
    /// Say what this machine has for an NPU, and what is missing
    #[command(after_long_help = DOCTOR_DETAILS)]
    Doctor(NpuDoctorArgs),
    /// Show what is in an xclbin, a PDI or a transaction stream
    Inspect(NpuInspectArgs),
    /// Make a kernel pack of an xclbin that AMD published
    #[command(after_long_help = PACK_DETAILS)]
    Pack(NpuPackArgs),
    /// Try the NPU with products, and compare them with exact ones (never run on silicon)
    #[command(after_long_help = SELFTEST_DETAILS)]
    Selftest(NpuSelftestArgs),
    /// Prove that transaction streams are safe to submit, or say what is wrong with them
    #[command(after_long_help = VERIFY_DETAILS)]
    Verify(NpuVerifyArgs),
}

const DOCTOR_DETAILS: &str = "It reads files of Linux and asks the driver. Nothing is changed and \
    nothing is submitted to the NPU.\n\
    \n\
    It ends with code 0 if nothing is known that keeps the NPU from being used, and with 1 if \
    something is, or if there is no NPU. trine has never run on one: code 0 is no promise that it \
    works.";

/// `trine npu doctor`
#[derive(Debug, Args)]
pub(crate) struct NpuDoctorArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

const PACK_DETAILS: &str = "\
The xclbin is one file of AMD's, which is known by its SHA-256: gemm_4x4_a8w8acc32.xclbin, or \
gemm_4x4_a16fw4acc32f.xclbin. The streams are generated. trine does not download the file.";

/// `trine npu pack`
#[derive(Debug, Args)]
pub(crate) struct NpuPackArgs {
    /// The xclbin
    #[arg(value_name = "XCLBIN")]
    pub(crate) xclbin: PathBuf,

    /// The folder to make [default: one in .npu of the folder of downloaded models]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) to: Option<PathBuf>,
}

const SELFTEST_DETAILS: &str = "Whole numbers of 8 bits are multiplied on the NPU and compared \
    with the exact product. Only streams that are proven as a whole are submitted, the smallest \
    first. It stops at the first command that does not end in time: a device that hangs may need a \
    restart of the machine. trine has never run on an NPU, so it asks before it submits anything.\n\
    \n\
    A report has what `doctor` finds, versions, times, results and errors, and no names of users, \
    hosts or folders.\n\
    \n\
    It ends with code 0 if all products are exact, and with 1 if not.";

/// `trine npu selftest`
#[derive(Debug, Args)]
pub(crate) struct NpuSelftestArgs {
    /// A pack's folder [default: the one in .npu of the folder of downloaded models]
    #[arg(value_name = "PACK")]
    pub(crate) pack: Option<PathBuf>,

    /// Submit without a question
    #[arg(long)]
    pub(crate) yes: bool,

    /// Write a report as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
}

const VERIFY_DETAILS: &str = "A pack is a folder with manifest.toml, an xclbin and streams; the \
    hashes of all files are compared. A single stream needs a kernel, which says what it is to do: \
    --kernel a8w8acc32_8_2048_2048, or the name of the file.\n\
    \n\
    A stream of a kernel that trine knows is proven as a whole: its accesses to memory, and that \
    its part inside of the array is the published one. Of another stream only the accesses to \
    memory are proven; whether the array stops is not known.";

/// `trine npu inspect`
#[derive(Debug, Args)]
pub(crate) struct NpuInspectArgs {
    /// The file
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// List all operations of a stream
    #[arg(long)]
    pub(crate) operations: bool,
}

/// `trine npu verify`
#[derive(Debug, Args)]
pub(crate) struct NpuVerifyArgs {
    /// A pack's folder, or a stream
    #[arg(value_name = "PATH")]
    pub(crate) path: PathBuf,

    /// The kernel and shape of a single stream [default: the name of the file]
    #[arg(long, value_name = "NAME")]
    pub(crate) kernel: Option<String>,
}
