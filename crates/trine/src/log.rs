//! The messages of the program and its libraries: to people on standard error, and to a collector
//! of traces if one is named.

use std::io::stderr;

use anyhow::Result;
use tracing::level_filters::LevelFilter;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::traces::{Collector, Traces};
use crate::{output, screen, terminal};

/// The most lines of a server that wait to be written. Further lines are lost.
const WAITING_LINES_MAX: usize = 4096;

/// What runs until the program ends. After it is dropped, messages are written directly.
pub(crate) struct Log {
    /// Dropped first, because it may log a message.
    _traces: Option<Traces>,
    /// When dropped, writes the waiting lines, for at most a second.
    _writer: Option<WorkerGuard>,
}

impl Drop for Log {
    fn drop(&mut self) {
        output::write_by(None);
    }
}

/// Starts the log. Messages go to standard error: warnings always, more with `-v` and `-vv`. They
/// carry the time (UTC) if there are more than warnings, or if a server writes them, because its
/// log may be read long after. A separate thread writes the messages of a server. Traces go to the
/// collector until the returned value is dropped.
///
/// # Errors
/// Returns an error if traces cannot be sent.
pub(crate) fn start(verbosity: u8, is_server: bool, collector: Option<&Collector>) -> Result<Log> {
    let level = match verbosity {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    };
    let people = tracing_subscriber::fmt::layer()
        .with_ansi(terminal::stderr_has_colours())
        .with_target(false);
    let (people, writer) = if is_server {
        let lossy = NonBlockingBuilder::default().lossy(true);
        #[expect(clippy::disallowed_methods, reason = "writes what this log has cleaned")]
        let (writer, guard) = lossy.buffered_lines_limit(WAITING_LINES_MAX).finish(stderr());
        output::write_by(Some(writer.clone()));
        (people.with_writer(writer).with_filter(level).boxed(), Some(guard))
    } else if verbosity > 0 {
        (people.with_writer(screen::log).with_filter(level).boxed(), None)
    } else {
        (people.with_writer(screen::log).without_time().with_filter(level).boxed(), None)
    };
    let traces = collector.map(Traces::start).transpose()?;
    tracing_subscriber::registry().with(people).with(traces.as_ref().map(Traces::layer)).init();
    for problem in collector.into_iter().flat_map(Collector::problems) {
        tracing::warn!("{}", terminal::harmless(problem));
    }
    Ok(Log { _traces: traces, _writer: writer })
}
