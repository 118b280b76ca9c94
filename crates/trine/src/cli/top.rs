//! The command line of `trine top`.

use std::time::Duration;

use clap::Args;

use super::servers::ServerArgs;
use super::values::parse_interval;

pub(super) const SHORT: &str = "\
Keys: q, Esc or Ctrl-C end it; Tab and arrows choose a model; ? explains the numbers.";

pub(super) const DETAILS: &str = "\
Shown are tokens per second (generated, and of prompts whose requests started), rows and
requests of the last step, running and queued requests, KV blocks in use, shared, kept for later
prompts and free, prompt tokens found in the cache, and how busy the device is.

Keys:
  q, Esc, Ctrl-C         end
  Tab, Right, Down       the next model
  Shift-Tab, Left, Up    the model before
  ?                      what the numbers mean

Where standard output is not a terminal, one look is printed as text, as with --once. That takes
two looks, --interval apart: rates are differences. A server that does not answer is asked again
until it does; with --once it is an error.";

/// `trine top`
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,

    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    pub(crate) interval: Duration,

    /// Print one look as text and end
    #[arg(long)]
    pub(crate) once: bool,
}
