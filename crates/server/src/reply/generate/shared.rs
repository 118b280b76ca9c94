//! Spans of what a device's partner did for a text.

use tracing::Span;
use trine_engine::SharedStep;

use crate::clock::Moment;

/// The field with a span's true beginning, in nanoseconds since 1970. Spans of what is over when
/// they are made have it.
pub const START_FIELD: &str = "trine.start_unix_nano";

/// The field with a span's true end, in nanoseconds since 1970.
pub const END_FIELD: &str = "trine.end_unix_nano";

/// Makes spans of a step that are over: the step within the span of a text, and within it the times
/// in which the partner computed. Where the two overlap, both worked.
///
/// A span of `tracing` has the time at which it is made, so the true times are fields. Who sends
/// the spans puts them into their place.
pub(super) fn trace(text: &Span, step: &SharedStep) {
    let now = Moment::now();
    let nanoseconds = |at| now.unix_nanoseconds(at);
    let busy: f64 = step.works.iter().map(|work| work.busy.as_secs_f64()).sum();
    let waited = step.waited.as_secs_f64();
    let whole = tracing::info_span!(
        parent: text,
        "step",
        { START_FIELD } = nanoseconds(step.start),
        { END_FIELD } = nanoseconds(step.end),
        trine.prompt_rows = step.prompt_rows as i64,
        trine.partner.busy_seconds = busy,
        trine.partner.waited_seconds = waited,
    );
    for work in &step.works {
        tracing::info_span!(
            parent: &whole,
            "partner",
            { START_FIELD } = nanoseconds(work.start),
            { END_FIELD } = nanoseconds(work.end),
            trine.products = work.products as i64,
            trine.rows = work.rows as i64,
            trine.busy_seconds = work.busy.as_secs_f64(),
        );
    }
}
