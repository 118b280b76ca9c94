//! Sends spans of the server to a collector: OTLP over HTTP
//! (<https://opentelemetry.io/docs/specs/otlp/#otlphttp>).

mod environment;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::{Context, Result};
use async_trait::async_trait;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{SpanKind, Status, TracerProvider};
use opentelemetry::{KeyValue, Value};
use opentelemetry_http::{Bytes, HeaderExtractor, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{
    Protocol, SpanExporter as OtlpExporter, WithExportConfig, WithHttpConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider, SpanData, SpanExporter,
};
use tracing::{Level, Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::Layer;
use tracing_subscriber::registry::LookupSpan;
use trine_server::{END_FIELD, START_FIELD};
use ureq::Agent;
use ureq::http::HeaderMap;
use ureq::http::header::{CONTENT_TYPE, HeaderValue};

use crate::address::Address;
use crate::failure::usage;
use crate::terminal;
use environment::{ENDPOINT, Environment, FRAMING, QUEUE};

/// The path that follows the address of a collector.
const PATH: &str = "/v1/traces";
/// The service name of this program, unless the environment gives another.
const SERVICE: &str = "trine";
/// The target whose spans are sent.
const TARGET: &str = "trine_server";
/// The largest answer of a collector that is read, in bytes.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// The most spans that may wait. The exporter allocates room for all of them at its start.
const QUEUE_MAX: usize = 1 << 16;
/// The longest and the shortest time that the end of the program waits for the last batch.
const END_TIME: Duration = Duration::from_secs(3);
const END_TIME_LEAST: Duration = Duration::from_millis(50);

/// When the program has to end, once that is known.
static END: OnceLock<Instant> = OnceLock::new();

/// Where spans are sent, and how.
#[derive(Debug)]
pub(crate) struct Collector {
    /// The address, including the path of traces.
    url: String,
    environment: Environment,
}

impl Collector {
    /// Returns what is wrong with OpenTelemetry's variables in the environment, one sentence each.
    pub(crate) fn problems(&self) -> &[String] {
        &self.environment.problems
    }
}

/// Returns the collector that the command line or else the environment names, if any.
///
/// # Errors
/// Returns an error if the environment names something that is not an address, or asks for a
/// longer queue than is possible.
pub(crate) fn collector(given: Option<&Address>) -> Result<Option<Collector>> {
    let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    let variables = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
    collector_in(given, Environment::read(variables))
}

fn collector_in(given: Option<&Address>, environment: Environment) -> Result<Option<Collector>> {
    let url = match (given, &environment.endpoint) {
        (Some(given), _) => format!("{given}{PATH}"),
        (None, None) => return Ok(None),
        (None, Some((name, text))) => {
            let address = Address::parse(text);
            let address = address.map_err(|problem| usage(format!("{name}: {problem}")))?;
            if *name == ENDPOINT { format!("{address}{PATH}") } else { address.to_string() }
        }
    };
    if environment.queue > QUEUE_MAX {
        let size = environment.queue;
        return Err(usage(format!("{QUEUE} is {size}; use at most {QUEUE_MAX}")));
    }
    if environment.is_disabled {
        return Ok(None);
    }
    Ok(Some(Collector { url, environment }))
}

/// Sets when the program has to end. Spans that the collector has not accepted by then are lost.
pub(crate) fn end_by(end: Instant) {
    let _ = END.set(end);
}

/// Returns how long the end of the program waits for the last batch.
fn patience(end: Option<Instant>, now: Instant) -> Duration {
    let left = end.map_or(END_TIME, |end| end.saturating_duration_since(now));
    left.clamp(END_TIME_LEAST, END_TIME)
}

/// Puts a request's span into the trace that its headers name
/// (<https://www.w3.org/TR/trace-context/>). Does nothing without a collector.
pub(crate) fn follow(span: &Span, headers: &HeaderMap) {
    let context = TraceContextPropagator::new().extract(&HeaderExtractor(headers));
    // The only possible error, that no traces are recorded, does not matter here.
    let _ = span.set_parent(context);
}

/// Sends spans in batches from a separate thread. Dropping it sends the last ones.
#[derive(Debug)]
pub(crate) struct Traces {
    provider: SdkTracerProvider,
    url: String,
}

impl Traces {
    /// Starts to send spans. Connects only when there is something to send.
    ///
    /// # Errors
    /// Returns an error if the exporter cannot be created.
    pub(crate) fn start(collector: &Collector) -> Result<Self> {
        let Collector { url, environment } = collector;
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_global(Some(environment.timeout))
            .user_agent(concat!("trine/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        let client = Client { agent, is_failing: AtomicBool::new(false) };
        let exporter = OtlpExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_protocol(Protocol::HttpBinary)
            .with_timeout(environment.timeout)
            .with_endpoint(url)
            .build()
            .context("traces cannot be sent")?;
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(environment.queue)
            .with_max_export_batch_size(environment.batch)
            .with_scheduled_delay(environment.delay)
            .build();
        let mut resource = Resource::builder()
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
        if !environment.names_service {
            resource = resource.with_service_name(SERVICE);
        }
        let processor =
            BatchSpanProcessor::builder(Named(exporter)).with_batch_config(batches).build();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(processor)
            .with_resource(resource.build())
            .build();
        Ok(Self { provider, url: url.clone() })
    }

    /// Returns the layer that receives the spans.
    pub(crate) fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer(SERVICE))
            .with_location(false)
            .with_target(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_filter(Targets::new().with_target(TARGET, Level::INFO))
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        let patience = patience(END.get().copied(), Instant::now());
        if let Err(error) = self.provider.shutdown_with_timeout(patience) {
            let url = &self.url;
            tracing::warn!("the last traces are lost, {url} did not take them in time: {error}");
        }
    }
}

/// Gives spans of requests the name, kind and status that OpenTelemetry defines, and spans of what
/// was over when they were made their times. With `tracing` these would be fields, which would also
/// appear in the log for people.
#[derive(Debug)]
struct Named(OtlpExporter);

impl SpanExporter for Named {
    async fn export(&self, mut batch: Vec<SpanData>) -> OTelSdkResult {
        batch.iter_mut().for_each(|span| {
            name(span);
            set_times(span);
        });
        self.0.export(batch).await
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.0.set_resource(resource);
    }
}

/// Applies <https://opentelemetry.io/docs/specs/semconv/http/http-spans/> for servers.
fn name(span: &mut SpanData) {
    let attribute = |key: &str| {
        span.attributes.iter().find(|attribute| attribute.key.as_str() == key).map(|it| &it.value)
    };
    let Some(method) = attribute("http.request.method") else { return };
    let name = match attribute("http.route") {
        Some(route) => format!("{} {}", method.as_str(), route.as_str()),
        None => method.as_str().into_owned(),
    };
    if matches!(attribute("http.response.status_code"), Some(Value::I64(500..))) {
        span.status = Status::error("");
    }
    span.name = name.into();
    span.span_kind = SpanKind::Server;
}

/// Moves a span's true times from its fields to their place.
fn set_times(span: &mut SpanData) {
    let mut take = |key: &str| {
        let index = span.attributes.iter().position(|it| it.key.as_str() == key)?;
        let Value::I64(nanoseconds) = span.attributes.remove(index).value else { return None };
        Some(UNIX_EPOCH + Duration::from_nanos(u64::try_from(nanoseconds).ok()?))
    };
    if let (Some(start), Some(end)) = (take(START_FIELD), take(END_FIELD)) {
        (span.start_time, span.end_time) = (start, end.max(start));
    }
}

/// Sends batches. Logs once that the collector does not accept them, and once that it does again.
#[derive(Debug)]
struct Client {
    agent: Agent,
    is_failing: AtomicBool,
}

#[async_trait]
impl HttpClient for Client {
    /// Blocks, because the exporter has its own thread.
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let url = request.uri().to_string();
        let sent = self.send(request);
        let problem = match &sent {
            Ok(response) if response.status().is_success() => None,
            Ok(response) => Some(format!("it answers {}", response.status())),
            Err(error) => Some(error.to_string()),
        };
        let was_failing = self.is_failing.swap(problem.is_some(), Ordering::Relaxed);
        match problem {
            Some(problem) if !was_failing => tracing::warn!(
                "traces are lost until {url} takes them: {}",
                terminal::harmless(&problem)
            ),
            None if was_failing => tracing::warn!("{url} takes traces again"),
            _ => {}
        }
        Ok(sent?)
    }
}

impl Client {
    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ureq::Error> {
        let (mut head, body) = request.into_parts();
        // Some of these headers may come from the environment, where they describe another body.
        for name in FRAMING {
            head.headers.remove(name);
        }
        head.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        let answer = self.agent.run(Request::from_parts(head, body.to_vec()))?;
        let (head, mut body) = answer.into_parts();
        let body = body.with_config().limit(ANSWER_BYTES_MAX).read_to_vec()?;
        Ok(Response::from_parts(head, body.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::environment::TRACES_ENDPOINT;
    use super::*;

    fn named(given: Option<&str>, variables: &[(&str, &str)]) -> Option<String> {
        let given = given.map(|text| Address::parse(text).unwrap());
        let owned = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let collector = collector_in(given.as_ref(), Environment::read(owned)).unwrap();
        collector.map(|collector| collector.url)
    }

    #[test]
    fn collectors_are_found_in_their_order() {
        let generic = (ENDPOINT, "http://b:1/otlp/");
        let own = (TRACES_ENDPOINT, "https://c/spans");
        assert_eq!(named(None, &[]), None);
        assert_eq!(named(None, &[generic]).unwrap(), "http://b:1/otlp/v1/traces");
        assert_eq!(named(None, &[generic, own]).unwrap(), "https://c/spans");
        assert_eq!(named(Some("http://a"), &[generic, own]).unwrap(), "http://a/v1/traces");
        assert_eq!(named(Some("http://a"), &[("OTEL_SDK_DISABLED", "true")]), None);
    }

    #[test]
    fn the_end_waits_no_longer_than_it_may() {
        let now = Instant::now();
        assert_eq!(patience(None, now), END_TIME);
        assert_eq!(patience(Some(now + Duration::from_secs(60)), now), END_TIME);
        assert_eq!(patience(Some(now + Duration::from_secs(1)), now), Duration::from_secs(1));
        assert_eq!(patience(Some(now), now + Duration::from_secs(1)), END_TIME_LEAST);
    }
}
