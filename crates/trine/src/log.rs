//! What the program and its libraries note: for people on standard error, and for a collector of traces where one is named.

use std::io::stderr;

use anyhow::Result;
use tracing::level_filters::LevelFilter;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::traces::{Collector, Traces};
use crate::{output, screen, terminal};

/// Lines of a server that wait for somebody to read them. What comes beyond them is lost.
const WAITING_LINES_MAX: usize = 4096;

/// What runs until the program ends. What is said after it is dropped is written at once.
pub(crate) struct Log {
    /// Dropped first: it may have something to say.
    _traces: Option<Traces>,
    /// Writes what waits when it is dropped, for a second at most.
    _writer: Option<WorkerGuard>,
}

impl Drop for Log {
    fn drop(&mut self) {
        output::write_by(None);
    }
}

/// Messages go to standard error: warnings always, more with `-v` and `-vv`; with the time (UTC) where there is more or a
/// server says them, which may be read long after. A server's are written by a thread of their own. Traces go to the collector for
/// as long as what is returned lives.
///
/// # Errors
/// If traces cannot be sent.
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
