//! Spans of the server to a collector: OTLP over HTTP (<https://opentelemetry.io/docs/specs/otlp/#otlphttp>).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use async_trait::async_trait;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{SpanKind, Status, TracerProvider};
use opentelemetry::{KeyValue, Value};
use opentelemetry_http::{Bytes, HeaderExtractor, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter as OtlpExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData, SpanExporter};
use tracing::{Level, Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::Layer;
use tracing_subscriber::registry::LookupSpan;
use ureq::Agent;
use ureq::http::HeaderMap;

use crate::address::Address;
use crate::failure::usage;
use crate::terminal;

/// Names the collector where the command line does not.
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
/// What a collector answers under, behind its address.
const PATH: &str = "/v1/traces";
/// The name of this program among others, unless the environment gives another.
const SERVICE: &str = "trine";
/// Whose spans are sent.
const TARGET: &str = "trine_server";
/// Longest time that a collector may take for a batch, and largest answer that is read, in bytes.
const ANSWER_TIME: Duration = Duration::from_secs(10);
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Says how many spans may wait, and how many that are at most: the exporter makes room for all at its start.
const QUEUE: &str = "OTEL_BSP_MAX_QUEUE_SIZE";
const QUEUE_MAX: u64 = 1 << 16;
/// Longest time that the program's end waits for the last batch.
const END_TIME: Duration = Duration::from_secs(3);

/// The collector that is named on the command line or else in the environment, if one is.
///
/// # Errors
/// If the environment names something else.
pub(crate) fn collector(given: Option<&Address>) -> Result<Option<Address>> {
    if let Some(given) = given {
        return Ok(Some(given.clone()));
    }
    match std::env::var(ENDPOINT) {
        Ok(text) if !text.trim().is_empty() => {
            let address = Address::parse(text.trim());
            address.map(Some).map_err(|problem| usage(format!("{ENDPOINT}: {problem}")))
        }
        _ => Ok(None),
    }
}

/// Puts a request's span into the trace that its headers name (<https://www.w3.org/TR/trace-context/>). Without a collector
/// nothing happens.
pub(crate) fn follow(span: &Span, headers: &HeaderMap) {
    let context = TraceContextPropagator::new().extract(&HeaderExtractor(headers));
    // The one error that can be, that nobody makes traces, is none here.
    let _ = span.set_parent(context);
}

/// Sends spans in batches from a thread of its own, the last ones when it is dropped.
#[derive(Debug)]
pub(crate) struct Traces(SdkTracerProvider);

impl Traces {
    /// Whether a collector is there is seen when there is something to send.
    ///
    /// # Errors
    /// If the variables of OpenTelemetry in the environment ask for what is not supported.
    pub(crate) fn start(collector: &Address) -> Result<Self> {
        let queue = std::env::var(QUEUE).ok().and_then(|size| size.trim().parse::<u64>().ok());
        if let Some(size) = queue.filter(|size| *size > QUEUE_MAX) {
            return Err(usage(format!("{QUEUE} is {size}; use at most {QUEUE_MAX}")));
        }
        let url = format!("{collector}{PATH}");
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_global(Some(ANSWER_TIME))
            .user_agent(concat!("trine/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        let client = Client { agent, is_failing: AtomicBool::new(false) };
        let exporter = OtlpExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_endpoint(url)
            .build()
            .context("traces cannot be sent")?;
        let mut resource = Resource::builder()
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
        let names = |variable: &str, what: &str| {
            std::env::var(variable).is_ok_and(|value| value.contains(what) && !value.is_empty())
        };
        if !names("OTEL_SERVICE_NAME", "") && !names("OTEL_RESOURCE_ATTRIBUTES", "service.name=") {
            resource = resource.with_service_name(SERVICE);
        }
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(Named(exporter))
            .with_resource(resource.build())
            .build();
        Ok(Self(provider))
    }

    /// Takes the spans.
    pub(crate) fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'span> LookupSpan<'span>,
    {
        tracing_opentelemetry::layer()
            .with_tracer(self.0.tracer(SERVICE))
            .with_location(false)
            .with_target(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_filter(Targets::new().with_target(TARGET, Level::INFO))
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        // Spans that the collector did not take are lost, which the client has said.
        let _ = self.0.shutdown_with_timeout(END_TIME);
    }
}

/// Gives spans of requests the name, kind and status that OpenTelemetry has for them: with `tracing` these would be fields,
/// which people would read in the log too.
#[derive(Debug)]
struct Named(OtlpExporter);

impl SpanExporter for Named {
    async fn export(&self, mut batch: Vec<SpanData>) -> OTelSdkResult {
        batch.iter_mut().for_each(name);
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

/// As <https://opentelemetry.io/docs/specs/semconv/http/http-spans/> has it for servers.
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

/// Sends batches. Says once that the collector does not take them, and once that it does again.
#[derive(Debug)]
struct Client {
    agent: Agent,
    is_failing: AtomicBool,
}

#[async_trait]
impl HttpClient for Client {
    /// Blocks: the exporter has a thread.
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
        let (head, body) = request.into_parts();
        let answer = self.agent.run(Request::from_parts(head, body.to_vec()))?;
        let (head, mut body) = answer.into_parts();
        let body = body.with_config().limit(ANSWER_BYTES_MAX).read_to_vec()?;
        Ok(Response::from_parts(head, body.into()))
    }
}
