//! Counts and times for Prometheus, under the names that routers read from vLLM and under trine's
//! own.
//!
//! Each model has exactly one series of each gauge: routers take one and do not add several up.

mod towers;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use trine_engine::{PartnerCounts, Status, TowerCounts};

use crate::service::sensors::{Reading, Sensors};
use towers::{Labels, TowerFamilies};

/// Media type of [`Metrics::text`].
pub(crate) const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Media type of what [`plain`] makes of it.
pub(crate) const PLAIN_MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Rewrites OpenMetrics in Prometheus' older format: there a counter is described under the name of
/// its samples, and units and the mark of the end are not known.
pub(crate) fn plain(text: &str) -> String {
    let of_type = |line: &'_ str| {
        let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
        Some((name.to_owned(), kind.to_owned()))
    };
    let counters: HashSet<String> = text
        .lines()
        .filter_map(of_type)
        .filter(|(_, kind)| kind == "counter")
        .map(|(name, _)| name)
        .collect();
    let mut plain = String::with_capacity(text.len());
    for line in text.lines() {
        let described = ["# HELP ", "# TYPE "].into_iter().find_map(|begin| {
            let (name, rest) = line.strip_prefix(begin)?.split_once(' ')?;
            Some((begin, name, rest))
        });
        match described {
            _ if line.starts_with("# UNIT ") || line == "# EOF" => continue,
            Some((begin, name, rest)) => {
                let suffix = if counters.contains(name) { "_total" } else { "" };
                let rest = match rest {
                    "unknown" if begin == "# TYPE " => "untyped",
                    "info" | "stateset" if begin == "# TYPE " => "gauge",
                    rest => rest,
                };
                plain.extend([begin, name, suffix, " ", rest]);
            }
            None => plain.push_str(line),
        }
        plain.push('\n');
    }
    plain
}

/// Bounds of the histograms, those of vLLM, in seconds.
const FIRST_TOKEN: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0,
];
const BETWEEN_TOKENS: &[f64] =
    &[0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0];
const WHOLE_REQUEST: &[f64] = &[
    0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0,
    240.0, 480.0,
];
/// Bounds of the histograms of tokens, those of vLLM.
const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0,
    50000.0,
];

type Counters = Family<Labels, Counter>;
type Gauges = Family<Labels, Gauge<i64, AtomicI64>>;
type Fractions = Family<Labels, Gauge<f64, AtomicU64>>;
type Joules = Family<Labels, Counter<f64, AtomicU64>>;
type Histograms = Family<Labels, Histogram, Bounds>;

#[derive(Debug, Clone, Copy)]
struct Bounds(&'static [f64]);

impl MetricConstructor<Histogram> for Bounds {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

/// All metrics of a server.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    families: Families,
    models: Mutex<HashMap<String, Arc<ModelMetrics>>>,
    /// The sensors. The lock admits one text at a time: it begins with the removal of the series
    /// that it does not write again.
    sensors: Mutex<Sensors>,
    /// Joules by sensor.
    energy: Joules,
    /// Watts by sensor.
    power: Fractions,
    /// Requests by path and status.
    http: Counters,
    /// Handlers that panicked.
    pub(crate) panics: Counter,
    connections: Gauge,
}

#[derive(Debug)]
struct Families {
    running: Gauges,
    waiting: Gauges,
    kv_usage: Fractions,
    cache_config: Gauges,
    prefix_queries: Counters,
    prefix_hits: Counters,
    preemptions: Counters,
    prompt_tokens: Counters,
    generated_tokens: Counters,
    success: Counters,
    rejections: Counters,
    first_token: Histograms,
    between_tokens: Histograms,
    per_token: Histograms,
    whole: Histograms,
    queue: Histograms,
    prompt_length: Histograms,
    answer_length: Histograms,
    waiting_tokens: Gauges,
    blocks: Gauges,
    kv_bytes: Gauges,
    width: Gauges,
    steps: Counters,
    busy: Fractions,
    bytes: Fractions,
    device_failures: Counters,
    guesses: GuessFamilies,
    store: StoreFamilies,
    partner: PartnerFamilies,
    towers: TowerFamilies,
}

/// Families about guesses of tokens.
#[derive(Debug)]
struct GuessFamilies {
    drafts: Counters,
    drafted: Counters,
    accepted: Counters,
    seconds: Fractions,
}

/// Families about prefixes on disk.
#[derive(Debug)]
struct StoreFamilies {
    restored_tokens: Counters,
    bytes: Gauges,
    pages: Counters,
    failures: Counters,
}

/// Families about the NPU, which all models share: their series have no labels.
#[derive(Debug)]
struct PartnerFamilies {
    products: Counters,
    rows: Counters,
    instead: Counters,
    failures: Counters,
    busy: Fractions,
    waited: Fractions,
    lost: Gauges,
}

/// The metrics of one model.
#[derive(Debug)]
pub(crate) struct ModelMetrics {
    model: String,
    first_token: Histogram,
    between_tokens: Histogram,
    per_token: Histogram,
    whole: Histogram,
    queue: Histogram,
    prompt_length: Histogram,
    answer_length: Histogram,
    success: Counters,
    rejections: Counters,
}

/// Registers a family with a name and a help text.
fn register<M>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M
where
    M: prometheus_client::registry::Metric + Clone,
{
    registry.register(name, help, metric.clone());
    metric
}

fn histograms(
    registry: &mut Registry,
    name: &str,
    help: &str,
    bounds: &'static [f64],
) -> Histograms {
    register(registry, name, help, Family::new_with_constructor(Bounds(bounds)))
}

impl Families {
    fn new(r: &mut Registry) -> Self {
        macro_rules! of {
            ($name:literal, $help:literal) => {
                register(r, $name, $help, Family::default())
            };
        }
        Self {
            running: of!("vllm:num_requests_running", "Sequences being run"),
            waiting: of!("vllm:num_requests_waiting", "Requests in the queue"),
            kv_usage: of!(
                "vllm:kv_cache_usage_perc",
                "Share of KV blocks that running sequences hold, 0 to 1"
            ),
            cache_config: of!("vllm:cache_config_info", "Sizes of the KV cache"),
            prefix_queries: of!(
                "vllm:prefix_cache_queries",
                "Prompt tokens looked up in the prefix cache"
            ),
            prefix_hits: of!("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache"),
            preemptions: of!("vllm:num_preemptions", "Times a sequence gave its blocks to another"),
            prompt_tokens: of!("vllm:prompt_tokens", "Prompt tokens of started requests"),
            generated_tokens: of!("vllm:generation_tokens", "Tokens generated"),
            success: of!("vllm:request_success", "Requests that ended, by reason"),
            rejections: of!("vllm:admission_rejections", "Requests that the engine refused"),
            first_token: histograms(
                r,
                "vllm:time_to_first_token_seconds",
                "From the submission to the first token",
                FIRST_TOKEN,
            ),
            between_tokens: histograms(
                r,
                "vllm:inter_token_latency_seconds",
                "Between two tokens of a sequence",
                BETWEEN_TOKENS,
            ),
            per_token: histograms(
                r,
                "vllm:request_time_per_output_token_seconds",
                "A request's time after its first token, divided by the tokens after it",
                BETWEEN_TOKENS,
            ),
            whole: histograms(
                r,
                "vllm:e2e_request_latency_seconds",
                "From the submission to the end",
                WHOLE_REQUEST,
            ),
            queue: histograms(
                r,
                "vllm:request_queue_time_seconds",
                "Time in the queue",
                WHOLE_REQUEST,
            ),
            prompt_length: histograms(
                r,
                "vllm:request_prompt_tokens",
                "Tokens of a prompt",
                TOKENS,
            ),
            answer_length: histograms(
                r,
                "vllm:request_generation_tokens",
                "Tokens of an answer",
                TOKENS,
            ),
            waiting_tokens: of!("trine_waiting_tokens", "Prompt tokens in the queue"),
            blocks: of!("trine_kv_blocks", "KV blocks by use"),
            kv_bytes: of!("trine_kv_memory_bytes", "Memory for keys and values"),
            width: of!("trine_step_rows", "Tokens that passed through the model in the last step"),
            steps: of!("trine_steps", "Steps run"),
            busy: of!("trine_busy_seconds", "Seconds spent in steps and on drafts for them"),
            bytes: of!("trine_step_bytes", "Bytes that the steps had to move by the Plan's cost"),
            device_failures: of!("trine_device_failures", "Steps in which the device failed"),
            guesses: GuessFamilies::new(r),
            store: StoreFamilies::new(r),
            partner: PartnerFamilies::new(r),
            towers: TowerFamilies::new(r),
        }
    }
}

impl GuessFamilies {
    fn new(r: &mut Registry) -> Self {
        macro_rules! of {
            ($name:literal, $help:literal) => {
                register(r, $name, $help, Family::default())
            };
        }
        Self {
            drafts: of!(
                "vllm:spec_decode_num_drafts",
                "Times that a sequence had guesses in a step"
            ),
            drafted: of!("vllm:spec_decode_num_draft_tokens", "Guesses that were verified"),
            accepted: of!("vllm:spec_decode_num_accepted_tokens", "Guesses that were right"),
            seconds: of!("trine_draft_seconds", "Seconds that draft models took"),
        }
    }

    /// Takes over the counts of an engine.
    fn note(&self, labels: &Labels, status: &Status) {
        for (family, value) in [
            (&self.drafts, status.drafts),
            (&self.drafted, status.drafted_tokens),
            (&self.accepted, status.accepted_tokens),
        ] {
            family.get_or_create(labels).inner().store(value, Ordering::Relaxed);
        }
        self.seconds.get_or_create(labels).set(status.draft_seconds);
    }
}

impl StoreFamilies {
    fn new(r: &mut Registry) -> Self {
        let bytes = "Bytes of all prefixes on disk, those of other models included";
        let pages =
            "Pages of prefixes that were read, written, and not written for want of room or time";
        let failures = "Prefixes on disk that were damaged, gone or late, and writes that failed";
        let restored = "Tokens whose keys and values came from disk";
        Self {
            restored_tokens: register(r, "trine_restored_tokens", restored, Family::default()),
            bytes: register(r, "trine_prefix_store_bytes", bytes, Family::default()),
            pages: register(r, "trine_prefix_store_pages", pages, Family::default()),
            failures: register(r, "trine_prefix_store_failures", failures, Family::default()),
        }
    }

    /// Takes over the counts of an engine with a store; without a store there are no series.
    fn note(&self, labels: &Labels, status: &Status) {
        let Some(store) = status.store else { return };
        let count = |family: &Counters, labels: &Labels, value: u64| {
            family.get_or_create(labels).inner().store(value, Ordering::Relaxed);
        };
        self.bytes.get_or_create(labels).set(i64::try_from(store.bytes).unwrap_or(i64::MAX));
        count(&self.restored_tokens, labels, status.restored_tokens);
        count(&self.failures, labels, store.failures);
        let pages = [("read", store.read), ("written", store.written), ("dropped", store.dropped)];
        for (what, pages) in pages {
            let mut labels = labels.clone();
            labels.push(("what", what.to_owned()));
            count(&self.pages, &labels, pages);
        }
    }
}

impl PartnerFamilies {
    fn new(r: &mut Registry) -> Self {
        macro_rules! of {
            ($name:literal, $help:literal) => {
                register(r, $name, $help, Family::default())
            };
        }
        Self {
            products: of!("trine_npu_products", "Products of prompts that the NPU computed"),
            rows: of!("trine_npu_rows", "Rows in these, counted once for each product"),
            instead: of!(
                "trine_npu_products_instead",
                "Products given to the NPU that the device computed itself"
            ),
            failures: of!("trine_npu_failures", "Times that the NPU failed"),
            busy: of!("trine_npu_busy_seconds", "Seconds in which the NPU computed"),
            waited: of!("trine_npu_waited_seconds", "Seconds in which the device waited for it"),
            lost: of!(
                "trine_npu_lost",
                "1 after a failure after which the NPU is not used until the server is started \
                 again"
            ),
        }
    }

    /// Takes over the counts that an engine had after its last step. Those of an engine that has
    /// rested are old: no count goes back.
    fn note(&self, counts: &PartnerCounts) {
        let none = Labels::new();
        for (family, value) in [
            (&self.products, counts.products),
            (&self.rows, counts.rows),
            (&self.instead, counts.instead),
            (&self.failures, counts.failures),
        ] {
            family.get_or_create(&none).inner().fetch_max(value, Ordering::Relaxed);
        }
        for (family, value) in
            [(&self.busy, counts.busy_seconds), (&self.waited, counts.waited_seconds)]
        {
            let gauge = family.get_or_create(&none);
            gauge.set(gauge.get().max(value));
        }
        self.lost
            .get_or_create(&none)
            .inner()
            .fetch_max(i64::from(counts.is_lost), Ordering::Relaxed);
    }
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::default();
        let families = Families::new(&mut registry);
        let r = &mut registry;
        let http =
            register(r, "trine_http_requests", "Requests by route and status", Family::default());
        let panics =
            register(r, "trine_handler_panics", "Requests that met a defect", Counter::default());
        let connections = register(r, "trine_connections", "Open connections", Gauge::default());
        let energy =
            "Energy by the machine's sensors since the start of the server, whoever used it";
        let energy = register(r, "trine_energy_joules", energy, Family::default());
        let power = "Power by the machine's sensors, whoever uses it";
        let power = register(r, "trine_power_watts", power, Family::default());
        let (models, sensors) = (Mutex::default(), Mutex::new(Sensors::find()));
        Self { registry, families, models, sensors, energy, power, http, panics, connections }
    }

    /// Returns the metrics of a model.
    pub(crate) fn model(&self, name: &str) -> Arc<ModelMetrics> {
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        let made = models.entry(name.to_owned()).or_insert_with(|| {
            let (labels, families) = (labels(name), &self.families);
            let of = |family: &Histograms| family.get_or_create_owned(&labels);
            Arc::new(ModelMetrics {
                model: name.to_owned(),
                first_token: of(&families.first_token),
                between_tokens: of(&families.between_tokens),
                per_token: of(&families.per_token),
                whole: of(&families.whole),
                queue: of(&families.queue),
                prompt_length: of(&families.prompt_length),
                answer_length: of(&families.answer_length),
                success: families.success.clone(),
                rejections: families.rejections.clone(),
            })
        });
        Arc::clone(made)
    }

    /// Counts an answer. `route` is one of the server's own, never a client's text.
    pub(crate) fn answered(&self, route: &str, status: u16) {
        let labels = vec![("route", route.to_owned()), ("status", status.to_string())];
        self.http.get_or_create(&labels).inc();
    }

    /// Counts connections that open (1) and close (-1).
    pub(crate) fn connection(&self, change: i64) {
        self.connections.inc_by(change);
    }

    /// Takes over an engine's counts.
    fn note_status(&self, model: &str, status: &Status) {
        let (labels, families) = (labels(model), &self.families);
        let gauge = |family: &Gauges, value: usize| {
            family.get_or_create(&labels).set(value as i64);
        };
        // The engine's counts only grow.
        let count = |family: &Counters, value: u64| {
            family.get_or_create(&labels).inner().store(value, Ordering::Relaxed);
        };
        let fraction = |family: &Fractions, value: f64| {
            family.get_or_create(&labels).set(value);
        };
        gauge(&families.running, status.running);
        gauge(&families.waiting, status.waiting);
        gauge(&families.waiting_tokens, status.waiting_tokens);
        gauge(&families.width, status.width);
        gauge(&families.kv_bytes, status.kv_bytes as usize);
        let usage = status.blocks_running as f64 / status.blocks.max(1) as f64;
        fraction(&families.kv_usage, usage);
        fraction(&families.busy, status.busy_seconds);
        fraction(&families.bytes, status.bytes);
        count(&families.prefix_queries, status.prompt_tokens);
        count(&families.prefix_hits, status.reused_tokens);
        count(&families.preemptions, status.preemptions);
        count(&families.prompt_tokens, status.prompt_tokens);
        count(&families.generated_tokens, status.generated_tokens);
        count(&families.steps, status.steps);
        count(&families.device_failures, status.device_failures);
        families.guesses.note(&labels, status);
        families.store.note(&labels, status);
        if let Some(counts) = &status.partner {
            families.partner.note(counts);
        }
        let free = status.blocks.saturating_sub(status.blocks_running + status.blocks_kept);
        for (state, blocks) in
            [("running", status.blocks_running), ("kept", status.blocks_kept), ("free", free)]
        {
            let mut labels = labels.clone();
            labels.push(("state", state.to_owned()));
            families.blocks.get_or_create(&labels).set(blocks as i64);
        }
        // Only a loaded model has a cache.
        if status.blocks > 0 {
            let mut labels = labels.clone();
            labels.push(("block_size", status.block_positions.to_string()));
            labels.push(("num_gpu_blocks", status.blocks.to_string()));
            families.cache_config.get_or_create(&labels).set(1);
        }
    }

    /// Returns all metrics in the OpenMetrics text format; `statuses` are the counts of the models'
    /// engines and towers. Reads the machine's sensors, some of which take milliseconds.
    pub(crate) fn text(&self, statuses: &[(String, Status, Option<TowerCounts>)]) -> String {
        let mut sensors = self.sensors.lock().unwrap_or_else(PoisonError::into_inner);
        let sensor = |reading: &Reading| vec![("sensor", reading.sensor.clone())];
        for reading in sensors.energies() {
            let joules = self.energy.get_or_create(&sensor(&reading));
            joules.inner().store(reading.value.to_bits(), Ordering::Relaxed);
        }
        self.power.clear();
        for reading in sensors.powers() {
            self.power.get_or_create(&sensor(&reading)).set(reading.value);
        }
        // Its sizes are labels: a cache of other sizes would stand beside the one before.
        self.families.cache_config.clear();
        for (model, status, tower) in statuses {
            self.note_status(model, status);
            if let Some(counts) = tower {
                self.families.towers.note(&labels(model), counts);
            }
        }
        let mut text = String::new();
        if let Err(error) = prometheus_client::encoding::text::encode(&mut text, &self.registry) {
            tracing::error!(%error, "metrics cannot be written");
        }
        text
    }
}

impl ModelMetrics {
    /// Counts a request with a prompt of this many tokens.
    pub(crate) fn asked(&self, tokens: usize) {
        self.prompt_length.observe(tokens as f64);
    }

    /// Counts a request that the engine refused.
    pub(crate) fn refused(&self) {
        self.rejections.get_or_create(&labels(&self.model)).inc();
    }

    pub(crate) fn started(&self, waited: Duration) {
        self.queue.observe(waited.as_secs_f64());
    }

    pub(crate) fn first_token(&self, waited: Duration) {
        self.first_token.observe(waited.as_secs_f64());
    }

    pub(crate) fn between_tokens(&self, gap: Duration) {
        self.between_tokens.observe(gap.as_secs_f64());
    }

    /// Counts a text that ended after `elapsed`; `written` is the number of its tokens and the time
    /// to the first.
    pub(crate) fn ended(
        &self,
        reason: &'static str,
        elapsed: Duration,
        written: Option<(usize, Option<Duration>)>,
    ) {
        let mut labels = labels(&self.model);
        labels.push(("finished_reason", reason.to_owned()));
        self.success.get_or_create(&labels).inc();
        self.whole.observe(elapsed.as_secs_f64());
        let Some((tokens, first)) = written else { return };
        self.answer_length.observe(tokens as f64);
        if let Some(first) = first.filter(|_| tokens > 1) {
            let after = elapsed.saturating_sub(first).as_secs_f64();
            self.per_token.observe(after / (tokens - 1) as f64);
        }
    }
}

fn labels(model: &str) -> Labels {
    vec![("model_name", model.to_owned()), ("engine", "0".to_owned())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesses_are_counted() {
        let status = Status {
            drafts: 4,
            drafted_tokens: 12,
            accepted_tokens: 9,
            draft_seconds: 0.5,
            ..Status::default()
        };
        let text = Metrics::new().text(&[("main".to_owned(), status, None)]);
        for (name, value) in [
            ("vllm:spec_decode_num_drafts_total", "4"),
            ("vllm:spec_decode_num_draft_tokens_total", "12"),
            ("vllm:spec_decode_num_accepted_tokens_total", "9"),
            ("trine_draft_seconds", "0.5"),
        ] {
            let line = text.lines().find(|line| line.starts_with(&format!("{name}{{"))).unwrap();
            assert!(line.ends_with(&format!(" {value}")), "{line}");
        }
    }

    #[test]
    fn the_npu_is_counted_once_for_all_models() {
        let of_model = |name: &str, products| {
            let partner = PartnerCounts {
                products,
                rows: 64 * products,
                instead: 3,
                failures: 1,
                busy_seconds: 0.5 * products as f64,
                waited_seconds: 0.25,
                is_lost: products > 8,
            };
            (name.to_owned(), Status { partner: Some(partner), ..Status::default() }, None)
        };
        let metrics = Metrics::new();
        let lines = |statuses: &[(String, Status, Option<TowerCounts>)]| -> Vec<String> {
            let text = metrics.text(statuses);
            let lines = text.lines().filter(|line| line.starts_with("trine_npu_"));
            lines.map(str::to_owned).collect()
        };
        assert!(lines(&[("main".to_owned(), Status::default(), None)]).is_empty(), "there is none");
        let expected = [
            "trine_npu_products_total{} 9",
            "trine_npu_rows_total{} 576",
            "trine_npu_products_instead_total{} 3",
            "trine_npu_failures_total{} 1",
            "trine_npu_busy_seconds{} 4.5",
            "trine_npu_waited_seconds{} 0.25",
            "trine_npu_lost{} 1",
        ];
        let old = of_model("other", 2);
        assert_eq!(lines(&[of_model("main", 9), old.clone()]), expected);
        assert_eq!(lines(&[old]), expected, "a model was unloaded");
    }

    #[test]
    fn only_caches_that_are_there_have_sizes() {
        let metrics = Metrics::new();
        let sizes = |blocks: usize| {
            let status = Status { blocks, block_positions: 32, ..Status::default() };
            let text = metrics.text(&[("main".to_owned(), status, None)]);
            let lines = text.lines().filter(|line| line.starts_with("vllm:cache_config_info{"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        assert!(sizes(0).is_empty(), "it is not loaded");
        assert!(sizes(8)[0].contains("block_size=\"32\",num_gpu_blocks=\"8\""));
        let other = sizes(9);
        assert_eq!(other.len(), 1, "{other:?}");
        assert!(other[0].contains("num_gpu_blocks=\"9\""), "{other:?}");
        assert!(sizes(0).is_empty(), "it was unloaded");
    }
}
