//! Counts of vision towers.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use trine_engine::TowerCounts;

pub(super) type Labels = Vec<(&'static str, String)>;

/// Families about pictures.
#[derive(Debug)]
pub(super) struct TowerFamilies {
    pictures: Family<Labels, Counter>,
    hits: Family<Labels, Counter>,
    failures: Family<Labels, Counter>,
    seconds: Family<Labels, Gauge<f64, AtomicU64>>,
    waiting: Family<Labels, Gauge<i64, AtomicI64>>,
    kept_bytes: Family<Labels, Gauge<i64, AtomicI64>>,
}

impl TowerFamilies {
    pub(super) fn new(registry: &mut Registry) -> Self {
        macro_rules! of {
            ($name:literal, $help:literal) => {{
                let family = Family::default();
                registry.register($name, $help, family.clone());
                family
            }};
        }
        Self {
            pictures: of!("trine_pictures", "Images that the vision tower was run for"),
            hits: of!("trine_picture_hits", "Images whose rows the vision tower had made before"),
            failures: of!("trine_picture_failures", "Images on which the vision tower failed"),
            seconds: of!("trine_tower_seconds", "Seconds spent in the vision tower"),
            waiting: of!("trine_pictures_waiting", "Images that wait for the vision tower"),
            kept_bytes: of!("trine_picture_rows_bytes", "Memory for rows of images"),
        }
    }

    /// Takes over the counts of a tower.
    pub(super) fn note(&self, labels: &Labels, counts: &TowerCounts) {
        for (family, value) in [
            (&self.pictures, counts.pictures),
            (&self.hits, counts.hits),
            (&self.failures, counts.failures),
        ] {
            family.get_or_create(labels).inner().store(value, Ordering::Relaxed);
        }
        self.seconds.get_or_create(labels).set(counts.seconds);
        self.waiting.get_or_create(labels).set(counts.waiting as i64);
        self.kept_bytes.get_or_create(labels).set(counts.kept_bytes as i64);
    }
}
