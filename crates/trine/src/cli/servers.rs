//! The command lines of the commands that ask a running server.

use std::path::PathBuf;

use clap::Args;

use crate::address::Address;

/// Which server is asked.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServerArgs {
    /// Where the server is
    #[arg(
        long, value_name = "URL", default_value = "http://127.0.0.1:8080",
        value_parser = Address::parse
    )]
    pub(crate) url: Address,

    /// Send the first key of this file, the one that `trine serve` got
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,

    /// Trust an https server by the certificates of this file, PEM [default: by public authorities]
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,
}

/// `trine ps`
#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,

    /// Print the list as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `trine stop`
#[derive(Debug, Args)]
#[command(after_help = "\
Requests in flight finish first. The next request that names the model loads it again.")]
pub(crate) struct StopArgs {
    /// The model, as `trine ps` names it
    #[arg(value_name = "MODEL", required_unless_present = "all")]
    pub(crate) model: Option<String>,

    /// Unload all models
    #[arg(short, long, conflicts_with = "model")]
    pub(crate) all: bool,

    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// `trine config`
#[derive(Debug, Args)]
#[command(
    after_help = "An option comes before a variable of the environment, that before the file, that \
        before the default. The file is trine/config.toml in the user's folder for configuration, \
        or the one that TRINE_CONFIG names. --help shows an example.",
    after_long_help = "\
An option comes before a variable of the environment, that before the file, that before the default.
The file is trine/config.toml in the user's folder for configuration (~/.config on Linux), or the
one that TRINE_CONFIG names:

  model = \"gemma3:4b\"
  device = \"vulkan:0\"
  context = 16384

  [sampling]
  temperature = 0.7

  [server]
  port = 9000
  api-key-file = \"keys\"

Each has a variable too: server.port is TRINE_SERVER_PORT; the folder of downloaded models is
TRINE_HOME. Relative paths start at the file's folder; ~/ is your home."
)]
pub(crate) struct ConfigArgs {
    /// Print everything as JSON
    #[arg(long)]
    pub(crate) json: bool,
}
