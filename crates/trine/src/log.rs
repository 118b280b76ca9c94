//! What the program and its libraries note: for people on standard error, and for a collector of traces where one is named.

use anyhow::Result;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::traces::{Collector, Traces};
use crate::{screen, terminal};

/// Messages go to standard error: warnings always, more with `-v` and `-vv`; with the time (UTC) where there is more or a
/// server says them, which may be read long after. Traces go to the collector for as long as what
/// is returned lives.
///
/// # Errors
/// If traces cannot be sent.
pub(crate) fn start(
    verbosity: u8,
    is_server: bool,
    collector: Option<&Collector>,
) -> Result<Option<Traces>> {
    let level = match verbosity {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    };
    let people = tracing_subscriber::fmt::layer()
        .with_writer(screen::log)
        .with_ansi(terminal::stderr_has_colours())
        .with_target(false);
    let people = if verbosity > 0 || is_server {
        people.with_filter(level).boxed()
    } else {
        people.without_time().with_filter(level).boxed()
    };
    let traces = collector.map(Traces::start).transpose()?;
    tracing_subscriber::registry().with(people).with(traces.as_ref().map(Traces::layer)).init();
    for problem in collector.into_iter().flat_map(Collector::problems) {
        tracing::warn!("{}", terminal::harmless(problem));
    }
    Ok(traces)
}
