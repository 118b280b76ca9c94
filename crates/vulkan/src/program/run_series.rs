//! The run of a series on a device.

use std::sync::atomic::AtomicBool;

use trine_backend::Batch;

use super::bound::{Binding, Bound, Side};
use super::series::Series;
use super::top_memory::TopMemory;
use crate::chain::Chains;
use crate::error::GpuError;
use crate::kernels::choose::NONE;
use crate::raw::commands::Ended;
use crate::raw::gpu;

impl Bound {
    /// Begins to run a series for a checked batch, until `stop` is raised.
    pub(super) fn begin_series(
        &mut self,
        batch: &Batch<'_>,
        series: Series,
        stop: Option<&AtomicBool>,
    ) -> Result<(), GpuError> {
        self.write_series(batch, series);
        let chains = |pass: usize| self.passes[pass].chains();
        if let Some(chains) = chains(series.last()).or_else(|| chains(series.first))
            && self.gpu.injected_at(gpu::FailurePoint::Chain).is_some()
        {
            chains.stall(&self.gpu)?;
        }
        self.submit_series(series, stop)
    }

    /// Writes the first step of a series.
    fn write_series(&mut self, batch: &Batch<'_>, series: Series) {
        let Series { more, advance, .. } = series;
        let Side { frame, inputs } = &mut self.sides[0];
        frame.write(batch, (more, advance));
        // Each step writes the hidden states that the next one takes.
        inputs.write(batch, true);
    }

    /// Begins to run a series whose first step is written.
    fn submit_series(&mut self, series: Series, stop: Option<&AtomicBool>) -> Result<(), GpuError> {
        let Self { gpu, passes, series: runs, .. } = self;
        let runs = runs.as_mut().expect("the Program says that it runs series");
        let passes = series.passes().map(|pass| passes[pass].predicted());
        runs.begin(gpu, series.goal, passes, stop)
    }

    /// Ends the run of a series.
    fn end_series(&mut self, stop: Option<&AtomicBool>) -> Result<Ended, GpuError> {
        self.series.as_mut().expect("the Program says that it runs series").finish(stop)
    }

    /// Ends the run of a series that was begun. If a chain fails, the steps after it have run
    /// tokens that are not right, so the whole series is run again.
    pub(super) fn finish_series(
        &mut self,
        binding: &Binding<'_>,
        series: Series,
        stop: Option<&AtomicBool>,
    ) -> Result<Ended, GpuError> {
        let ended = self.end_series(stop)?;
        let has_failed = |pass: usize| self.passes[pass].chains().is_some_and(Chains::has_failed);
        if !has_failed(series.first) && !has_failed(series.next) {
            return Ok(ended);
        }
        self.unchain(binding)?;
        if ended == Ended::Stopped {
            return Ok(ended);
        }
        let Side { frame, inputs } = &self.sides[0];
        frame.write_again();
        inputs.write_again();
        self.submit_series(series, stop)?;
        self.end_series(stop)
    }

    /// Runs a series for a checked batch to its end, step by step, and adds the seconds of each of
    /// the Plan's steps to a profile.
    pub(super) fn run_series_timed(
        &mut self,
        binding: &Binding<'_>,
        batch: &Batch<'_>,
        series: Series,
        profile: &mut [f64],
    ) -> Result<(), GpuError> {
        self.write_series(batch, series);
        for pass in series.passes() {
            self.run_written(binding, pass, profile)?;
            if let Some(runs) = &mut self.series {
                runs.choose(series.goal)?;
            }
        }
        Ok(())
    }

    /// Returns the token that a step of a series has chosen for the output row with an index.
    pub(super) fn chosen(&self, step: usize, row: usize) -> Option<u32> {
        let TopMemory { chosen, rows, .. } = &self.top;
        let token = chosen.values::<u32>(step * rows + row, 1)[0];
        (token != NONE).then_some(token)
    }
}
