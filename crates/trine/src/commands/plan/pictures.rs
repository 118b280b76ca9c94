//! The pictures of a forecast.

use serde::Serialize;
use trine_backend::Memory;
use trine_model::Model;
use trine_session::forecast::{Bound, CountLaunches, Machine, Work};
use trine_session::vision;

use crate::terminal::output;

/// How fast pictures are read.
#[derive(Debug, Serialize)]
pub(super) struct PictureForecast {
    /// Rows of the text model that a picture takes at the most.
    soft_tokens: usize,
    /// The operations of its tower.
    operations: u64,
    /// Seconds for a picture.
    seconds: f64,
    /// The same at the machine's best rates.
    limit: f64,
    bound: Bound,
    /// Bytes of the tower's weights, keys and values, and activations.
    memory_bytes: u64,
}

/// The columns of the table.
pub(super) const HEADER: [&str; 5] = ["image", "time", "limit", "bound by", "memory"];

impl PictureForecast {
    /// Forecasts the largest picture of a model with a vision tower; `None` for a model without.
    pub(super) fn new(model: &Model, machine: &Machine, launches: &CountLaunches) -> Option<Self> {
        let config = model.tower()?.config();
        let (plan, options) = (model.tower_plan(false), vision::options(config));
        let workload = vision::workload(config);
        // A machine that cannot run it yet is asked for the rates of one that can.
        let launches = launches(&plan, &options, workload).unwrap_or(plan.steps.len());
        let work = Work::of(&plan, workload, launches);
        let seconds = machine.seconds(&work);
        Some(Self {
            soft_tokens: config.soft_tokens(),
            operations: work.product_operations + work.attention_operations,
            seconds: seconds.total(),
            limit: machine.limit(&work).total(),
            bound: seconds.bound(),
            memory_bytes: Memory::of_plan(&plan, &options).total(),
        })
    }

    /// Returns the row of the table.
    pub(super) fn row(&self) -> Vec<String> {
        vec![
            output::counted(self.soft_tokens, "soft token"),
            output::seconds(self.seconds),
            output::seconds(self.limit),
            self.bound.name().to_owned(),
            output::bytes(self.memory_bytes),
        ]
    }

    /// Says what the time is of.
    pub(super) fn about(&self) -> String {
        format!(
            "An image takes {} operations in the vision tower, then its soft tokens are read as \
             those of a prompt. Its memory is beside the model's.\n",
            output::count(self.operations)
        )
    }
}
