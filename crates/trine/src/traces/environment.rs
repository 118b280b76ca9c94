//! OpenTelemetry's variables in the environment: what they ask for, and what is wrong with them
//! (<https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/>,
//! <https://opentelemetry.io/docs/specs/otel/protocol/exporter/>).
//!
//! A value that makes no sense is replaced by the default, and both are reported, so that nobody
//! has to search for the cause when a misspelt variable keeps traces away.

use std::collections::BTreeMap;
use std::time::Duration;

use ureq::http::HeaderName;

/// The variables that name a collector. The command line overrides them.
pub(super) const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
pub(super) const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
/// The number of spans that may wait.
pub(super) const QUEUE: &str = "OTEL_BSP_MAX_QUEUE_SIZE";

/// The default for the longest time that a collector may take for a batch.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// The largest number of milliseconds that is accepted: an hour.
const MILLISECONDS_MAX: u64 = 3_600_000;
/// The protocol in which spans are sent.
const PROTOCOL: &str = "http/protobuf";
/// Headers that determine how the rest of a request is read. The client writes them itself.
pub(super) const FRAMING: [&str; 10] = [
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
const SAMPLERS: [&str; 6] = [
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
];
/// Variables that name files or other things that this program does not use, with what to do
/// instead.
const NOT_HEEDED: [(&str, &str); 12] = [
    ("OTEL_EXPORTER_OTLP_CERTIFICATE", "a collector needs a certificate of a public authority"),
    (
        "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE",
        "a collector needs a certificate of a public authority",
    ),
    ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "no client certificate is sent"),
    ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE", "no client certificate is sent"),
    ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "no client certificate is sent"),
    ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", "no client certificate is sent"),
    ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "values are sent whole"),
    ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "values are sent whole"),
    ("OTEL_ATTRIBUTE_COUNT_LIMIT", "use OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT"),
    ("OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", "spans have no events with attributes"),
    ("OTEL_LINK_ATTRIBUTE_COUNT_LIMIT", "spans have no links"),
    ("OTEL_CONFIG_FILE", "configuration files are not read"),
];
/// Variables that OpenTelemetry's crates read themselves, or that have no effect on traces over
/// HTTP.
const KNOWN: [&str; 5] = [
    "OTEL_SERVICE_NAME",
    "OTEL_LOG_LEVEL",
    "OTEL_EXPORTER_OTLP_INSECURE",
    "OTEL_EXPORTER_OTLP_TRACES_INSECURE",
    "OTEL_ENTITIES",
];
/// Prefixes of variables about metrics and logs, which are not sent.
const OTHER_SIGNALS: [&str; 8] = [
    "OTEL_METRIC_",
    "OTEL_METRICS_",
    "OTEL_LOGS_",
    "OTEL_BLRP_",
    "OTEL_LOGRECORD_",
    "OTEL_EXPORTER_OTLP_METRICS_",
    "OTEL_EXPORTER_OTLP_LOGS_",
    "OTEL_EXPORTER_PROMETHEUS_",
];

/// The values of the variables.
#[derive(Debug)]
pub(super) struct Environment {
    /// Whether no traces are sent, even if a collector is named.
    pub(super) is_disabled: bool,
    /// The variable that names a collector, and the address in it. The path of traces is appended
    /// to an address from [`ENDPOINT`].
    pub(super) endpoint: Option<(&'static str, String)>,
    /// The time that a collector may take for a batch.
    pub(super) timeout: Duration,
    /// The number of spans that may wait, and below it the most spans in a batch.
    pub(super) queue: usize,
    pub(super) batch: usize,
    /// The time between batches.
    pub(super) delay: Duration,
    /// Whether the environment gives a service name other than this program's.
    pub(super) names_service: bool,
    /// What is wrong, and what is used instead, one sentence each.
    pub(super) problems: Vec<String>,
}

impl Environment {
    /// Reads the variables. An empty one counts as unset.
    pub(super) fn read(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let ours = variables.into_iter().filter(|(name, _)| name.starts_with("OTEL_"));
        let trimmed = ours.map(|(name, value)| (name, value.trim().to_owned()));
        let values = trimmed.filter(|(_, value)| !value.is_empty()).collect();
        let mut reader = Reader { values, problems: Vec::new() };
        let exporter = reader.one_of("OTEL_TRACES_EXPORTER", &["otlp", "none"], "otlp");
        let is_disabled = reader.truth("OTEL_SDK_DISABLED") || exporter == "none";
        let endpoint = [TRACES_ENDPOINT, ENDPOINT].map(|name| Some((name, reader.take(name)?)));
        let endpoint = endpoint.into_iter().flatten().next();
        let timeout =
            reader.either("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT");
        let timeout = reader.number(timeout, 1..=MILLISECONDS_MAX, ANSWER_TIME.as_millis() as u64);
        reader.only("PROTOCOL", PROTOCOL);
        reader.only("COMPRESSION", "none");
        reader.headers();
        reader.sampling();
        reader.propagators();
        let queue = reader.number(QUEUE, 1..=u64::MAX, 2048);
        let batch = reader.number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 1..=queue, queue.min(512));
        let delay = reader.number("OTEL_BSP_SCHEDULE_DELAY", 1..=MILLISECONDS_MAX, 5000);
        // These two are only checked: the exporter's own limit of time, above, is the one that
        // applies, and it sends one batch at a time.
        reader.number("OTEL_BSP_EXPORT_TIMEOUT", 0..=u64::MAX, 30_000);
        reader.number("OTEL_BSP_MAX_CONCURRENT_EXPORTS", 1..=1, 1);
        for kind in ["ATTRIBUTE", "EVENT", "LINK"] {
            let name = format!("OTEL_SPAN_{kind}_COUNT_LIMIT");
            reader.number(&name, 0..=u64::from(u32::MAX), 128);
        }
        let names_service = reader.names_service();
        Self {
            is_disabled,
            endpoint,
            timeout: Duration::from_millis(timeout),
            queue: usize::try_from(queue).unwrap_or(usize::MAX),
            batch: usize::try_from(batch).unwrap_or(usize::MAX),
            delay: Duration::from_millis(delay),
            names_service,
            problems: reader.rest(),
        }
    }
}

/// The variables that were not yet looked at, and the problems with the others.
struct Reader {
    values: BTreeMap<String, String>,
    problems: Vec<String>,
}

impl Reader {
    fn take(&mut self, name: &str) -> Option<String> {
        self.values.remove(name)
    }

    fn wrong(&mut self, name: &str, value: &str, expected: &str, used: &str) {
        self.problems.push(format!("{name} is {value:?}, not {expected}; {used}"));
    }

    fn truth(&mut self, name: &str) -> bool {
        match self.take(name) {
            Some(value) if value.eq_ignore_ascii_case("true") => true,
            Some(value) if !value.eq_ignore_ascii_case("false") => {
                self.wrong(name, &value, "true or false", "false is used");
                false
            }
            _ => false,
        }
    }

    fn one_of(
        &mut self,
        name: &str,
        values: &[&'static str],
        default: &'static str,
    ) -> &'static str {
        let Some(value) = self.take(name) else { return default };
        let found = values.iter().find(|known| known.eq_ignore_ascii_case(&value));
        found.copied().unwrap_or_else(|| {
            let used = format!("{default} is used");
            self.wrong(name, &value, &values.join(", "), &used);
            default
        })
    }

    /// Returns the name of the variable that is set. If both are, the first one wins and the second
    /// one is ignored.
    fn either(&mut self, first: &'static str, second: &'static str) -> &'static str {
        if !self.values.contains_key(first) {
            return second;
        }
        self.take(second);
        first
    }

    fn number(&mut self, name: &str, range: std::ops::RangeInclusive<u64>, default: u64) -> u64 {
        let Some(value) = self.take(name) else { return default };
        let number = value.parse().ok().filter(|number| range.contains(number));
        number.unwrap_or_else(|| {
            let expected = match (*range.start(), *range.end()) {
                (least, most) if least == most => least.to_string(),
                (least, u64::MAX) => format!("a whole number from {least} on"),
                (least, most) => format!("a whole number from {least} to {most}"),
            };
            self.wrong(name, &value, &expected, &format!("{default} is used"));
            default
        })
    }

    /// Checks a property of the exporter that has only one possible value here.
    fn only(&mut self, property: &str, only: &str) {
        for name in [
            format!("OTEL_EXPORTER_OTLP_TRACES_{property}"),
            format!("OTEL_EXPORTER_OTLP_{property}"),
        ] {
            if let Some(value) = self.take(&name)
                && !value.eq_ignore_ascii_case(only)
            {
                self.wrong(&name, &value, "supported", &format!("{only} is used"));
            }
        }
    }

    /// Checks the headers that are sent with each batch. Their values may be secrets and are not
    /// repeated in messages.
    fn headers(&mut self) {
        let name = self.either("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS");
        let Some(value) = self.take(name) else { return };
        for pair in value.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let Some((header, _)) = pair.split_once('=') else {
                self.problems.push(format!(
                    "{name} has an entry that is not of the form header=value; it is left out"
                ));
                continue;
            };
            let header = header.trim();
            let problem = match header.parse::<HeaderName>() {
                Err(_) => "is not a name of a header",
                Ok(parsed) if FRAMING.contains(&parsed.as_str()) => {
                    "is written by the client itself"
                }
                Ok(_) => continue,
            };
            self.problems.push(format!("{name}: {header:?} {problem}; it is left out"));
        }
    }

    fn sampling(&mut self) {
        const DEFAULT: &str = "parentbased_always_on";
        const ARGUMENT: &str = "OTEL_TRACES_SAMPLER_ARG";
        let sampler = self.one_of("OTEL_TRACES_SAMPLER", &SAMPLERS, DEFAULT);
        let argument = self.take(ARGUMENT);
        if !sampler.ends_with("traceidratio") {
            return;
        }
        let is_share =
            |text: &str| text.parse::<f64>().is_ok_and(|share| (0.0..=1.0).contains(&share));
        match argument {
            Some(value) if is_share(&value) => {}
            Some(value) => {
                self.wrong(
                    ARGUMENT,
                    &value,
                    "a number from 0 to 1",
                    "out of range the nearest is used, otherwise 1",
                );
            }
            None => self.problems.push(format!(
                "OTEL_TRACES_SAMPLER is {sampler} and {ARGUMENT} is missing; 1 is used"
            )),
        }
    }

    fn propagators(&mut self) {
        const NAME: &str = "OTEL_PROPAGATORS";
        let Some(value) = self.take(NAME) else { return };
        let is_known = |name: &str| matches!(name.trim(), "tracecontext" | "baggage");
        if !value.split(',').all(is_known) || !value.contains("tracecontext") {
            self.wrong(
                NAME,
                &value,
                "tracecontext",
                "the header traceparent is read, and no other",
            );
        }
    }

    fn names_service(&mut self) -> bool {
        const ATTRIBUTES: &str = "OTEL_RESOURCE_ATTRIBUTES";
        let attributes = self.take(ATTRIBUTES).unwrap_or_default();
        let pairs = || attributes.split(',').map(str::trim).filter(|pair| !pair.is_empty());
        if pairs().any(|pair| !pair.contains('=')) {
            self.problems.push(format!(
                "{ATTRIBUTES} has an entry that is not of the form name=value; it is left out"
            ));
        }
        let names = |pair: &str| {
            pair.split_once('=').is_some_and(|(name, _)| name.trim() == "service.name")
        };
        self.values.contains_key("OTEL_SERVICE_NAME") || pairs().any(names)
    }

    /// Checks the remaining variables and returns all problems.
    fn rest(mut self) -> Vec<String> {
        for name in self.values.keys() {
            let name = name.as_str();
            if let Some((_, instead)) = NOT_HEEDED.iter().find(|(known, _)| *known == name) {
                self.problems.push(format!("{name} is not heeded: {instead}"));
            } else if !KNOWN.contains(&name)
                && !OTHER_SIGNALS.iter().any(|start| name.starts_with(start))
            {
                self.problems
                    .push(format!("{name} is not a variable that is known here; it is not heeded"));
            }
        }
        self.problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Environment {
        let owned = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Environment::read(owned)
    }

    #[test]
    fn sound_variables_are_heeded_without_a_word() {
        let found = read(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4318"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", " http://b/v1/other "),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "9"),
            ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "250"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "none"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x, x-tenant=1"),
            ("OTEL_TRACES_SAMPLER", "traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
            ("OTEL_PROPAGATORS", "tracecontext,baggage"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "100"),
            ("OTEL_BSP_SCHEDULE_DELAY", "20"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=models,host.name=a"),
            ("OTEL_SDK_DISABLED", "False"),
            ("OTEL_METRICS_EXPORTER", "prometheus"),
            ("OTEL_LOG_LEVEL", ""),
            ("PATH", "/bin"),
        ]);
        assert_eq!(found.problems, Vec::<String>::new());
        assert_eq!(found.endpoint, Some((TRACES_ENDPOINT, "http://b/v1/other".to_owned())));
        assert_eq!(found.timeout, Duration::from_millis(250));
        assert_eq!((found.queue, found.batch, found.delay), (100, 100, Duration::from_millis(20)));
        assert!(!found.is_disabled && found.names_service);
        let none = read(&[]);
        assert_eq!((none.endpoint, none.timeout), (None, ANSWER_TIME));
        assert_eq!((none.queue, none.batch, none.delay), (2048, 512, Duration::from_secs(5)));
        assert!(!none.names_service && none.problems.is_empty());
    }

    #[test]
    fn traces_can_be_turned_off() {
        assert!(read(&[("OTEL_SDK_DISABLED", "TRUE")]).is_disabled);
        assert!(read(&[("OTEL_TRACES_EXPORTER", "none")]).is_disabled);
    }

    /// Each problem names the variable and what is used instead.
    #[test]
    fn senseless_variables_are_told() {
        for (name, value, instead) in [
            ("OTEL_SDK_DISABLED", "yes", "false is used"),
            ("OTEL_TRACES_EXPORTER", "zipkin", "otlp is used"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "http/protobuf is used"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json", "http/protobuf is used"),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip", "none is used"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon", "10000 is used"),
            ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "0", "10000 is used"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "-1", "10000 is used"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "0", "2048 is used"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4096", "512 is used"),
            ("OTEL_BSP_SCHEDULE_DELAY", "5s", "5000 is used"),
            ("OTEL_BSP_MAX_CONCURRENT_EXPORTS", "8", "1 is used"),
            ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "many", "128 is used"),
            ("OTEL_TRACES_SAMPLER", "sometimes", "parentbased_always_on is used"),
            ("OTEL_TRACES_SAMPLER", "traceidratio", "1 is used"),
            ("OTEL_PROPAGATORS", "b3", "traceparent is read"),
            ("OTEL_RESOURCE_ATTRIBUTES", "nothing", "left out"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "Content-Length=3", "left out"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "transfer-encoding=chunked", "left out"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a b=3", "left out"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "secret", "left out"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/a.pem", "not heeded"),
            ("OTEL_EXPORTER_OTLP_ENDPIONT", "http://a", "not heeded"),
        ] {
            let problems = read(&[(name, value)]).problems;
            let [problem] = &problems[..] else { panic!("{name}={value}: {problems:?}") };
            assert!(problem.contains(name) || problem.contains("SAMPLER"), "{problem}");
            assert!(problem.contains(instead), "{name}={value}: {problem}");
            assert!(!problem.contains("secret"), "{problem}");
        }
    }
}
