//! The messages of the program and its libraries: to people on standard error, and to a collector
//! of traces if one is named.

use std::fmt;
use std::io::{self, Write, stderr};

use anyhow::Result;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use crate::traces::{Collector, Traces};
use crate::{terminal, terminal::output, terminal::screen};

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

/// Starts the log. Messages go to standard error: warnings always, more with `-v` and `-vv`. A
/// server's messages carry the time (UTC), because they may be read long after, and so do those for
/// developers (`-vv`); others are sentences. A separate thread writes the messages of a server.
/// Traces go to the collector until the returned value is dropped.
///
/// # Errors
/// Returns an error if traces cannot be sent.
pub(crate) fn start(verbosity: u8, is_server: bool, collector: Option<&Collector>) -> Result<Log> {
    let level = match verbosity {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(terminal::stderr_has_colours())
        .with_target(false);
    let (people, writer) = if is_server {
        let lossy = NonBlockingBuilder::default().lossy(true);
        #[expect(clippy::disallowed_methods, reason = "writes what this log has cleaned")]
        let (writer, guard) =
            lossy.buffered_lines_limit(WAITING_LINES_MAX).finish(Visible(stderr()));
        output::write_by(Some(writer.clone()));
        (lines.with_writer(writer).with_filter(level).boxed(), Some(guard))
    } else if verbosity > 1 {
        (lines.with_writer(|| Visible(screen::log())).with_filter(level).boxed(), None)
    } else {
        let sentences = lines.event_format(Sentences).with_writer(|| Visible(screen::log()));
        (sentences.with_filter(level).boxed(), None)
    };
    let traces = collector.map(Traces::start).transpose()?;
    tracing_subscriber::registry().with(people).with(traces.as_ref().map(Traces::layer)).init();
    for problem in collector.into_iter().flat_map(Collector::problems) {
        tracing::warn!("{}", terminal::harmless(problem));
    }
    Ok(Log { _traces: traces, _writer: writer })
}

/// Writes lines whose control characters are escaped, and shows what else misleads in them.
struct Visible<W>(W);

impl<W: Write> Write for Visible<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        self.0.write_all(trine_foreign::lines(&text).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Messages as people write them: `warning: what is so; file "a", bytes 3`.
struct Sentences;

impl<S, N> FormatEvent<S, N> for Sentences
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut sentence = Sentence::default();
        event.record(&mut sentence);
        let Sentence { message, facts } = &sentence;
        let (kind, style) = match *event.metadata().level() {
            Level::ERROR => ("error: ", terminal::ERROR),
            Level::WARN => ("warning: ", terminal::WARNING),
            _ => ("", terminal::FAINT),
        };
        let colon = if message.is_empty() || facts.is_empty() { "" } else { "; " };
        let kind = terminal::on_stderr(kind, style);
        writeln!(
            writer,
            "{kind}{}{colon}{}",
            terminal::harmless(message),
            terminal::harmless(facts)
        )
    }
}

/// The parts of a message.
#[derive(Default)]
struct Sentence {
    message: String,
    facts: String,
}

impl Visit for Sentence {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
            return;
        }
        let comma = if self.facts.is_empty() { "" } else { ", " };
        let name = field.name().replace('_', " ");
        self.facts.push_str(&format!("{comma}{name} {value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_misleads_is_shown_in_lines() {
        let mut written = Vec::new();
        let line = "no model \u{1b}[2mE\u{202e}vil\u{3164}\n";
        Visible(&mut written).write_all(line.as_bytes()).unwrap();
        let written = String::from_utf8(written).unwrap();
        assert_eq!(written, "no model \u{1b}[2mE\u{fffd}vil\u{fffd}\n");
    }

    #[test]
    fn messages_for_people_are_sentences() {
        let written = Written::default();
        let to = written.clone();
        let layer = tracing_subscriber::fmt::layer()
            .event_format(Sentences)
            .with_writer(move || to.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            tracing::warn!(file = "a\u{1b}.gguf", "only the size was checked");
            tracing::info!(most_bytes = 3, model = 4, "the context is long");
            tracing::info!("images are read on the CPU");
        });
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        assert!(!text.contains('\u{1b}') && text.contains(".gguf\n"), "{text:?}");
        assert!(text.starts_with("warning: only the size was checked; file a"), "{text:?}");
        let rest = "the context is long; most bytes 3, model 4\nimages are read on the CPU\n";
        assert!(text.ends_with(rest), "{text:?}");
    }
}
