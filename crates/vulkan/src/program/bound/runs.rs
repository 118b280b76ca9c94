//! Runs of passes: a step is written to a side, begun, and ended.

use std::sync::atomic::AtomicBool;

use trine_backend::{Batch, Hosted};

use super::{Binding, Bound, Failure, Pass, Recorded, Side, Track};
use crate::chain::Chains;
use crate::error::GpuError;
use crate::program::loans::{GuestTable, StepRows};
use crate::raw::commands::{Ended, Recording};
use crate::raw::gpu;
use crate::raw::meeting::Absent;
use crate::raw::memory::Buffer;

impl Side {
    pub(super) fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        std::iter::once(self.frame.buffer()).chain(self.inputs.buffers())
    }
}

impl Pass {
    /// Returns whether it is recorded for two sides.
    pub(in crate::program) fn is_two_sided(&self) -> bool {
        self.sides.len() > 1
    }

    /// Returns whether it has chains, so that it may have to be run again.
    pub(in crate::program) fn has_chains(&self) -> bool {
        self.sides.iter().any(|recorded| recorded.chains.is_some())
    }

    /// Returns the first side's recording, and the seconds that its submissions are predicted to
    /// take.
    pub(in crate::program) fn predicted(&self) -> (&Recording, &[f64]) {
        (&self.sides[0].recording, &self.seconds)
    }

    /// Returns the state of the first side's chains, if there are any.
    pub(in crate::program) fn chains(&self) -> Option<&Chains> {
        self.sides[0].chains.as_ref()
    }
}

impl Bound {
    /// Writes a checked batch for the run of a pass.
    pub(in crate::program) fn write(&mut self, batch: &Batch<'_>, Track { pass, side }: Track) {
        let Side { frame, inputs } = &mut self.sides[side];
        frame.write(batch, (0, 0));
        let pass = &self.passes[pass];
        // A run changes its inputs, and one whose chain or partner fails is run again.
        inputs.write(batch, pass.has_chains() || pass.exact.is_some());
        self.loans.iter_mut().for_each(|loans| loans.rows = StepRows::of(batch));
    }

    /// Begins to run a pass whose batch is written, until `stop` is raised.
    pub(in crate::program) fn begin(
        &mut self,
        track: Track,
        stop: Option<&AtomicBool>,
    ) -> Result<(), GpuError> {
        let Recorded { recording, chains, .. } = &mut self.passes[track.pass].sides[track.side];
        if let Some(chains) = chains
            && self.gpu.injected_at(gpu::FailurePoint::Chain).is_some()
        {
            chains.stall(&self.gpu)?;
        }
        recording.begin(stop, "a step")
    }

    /// Returns whether the device has all of a run that was begun, so that others may follow.
    pub(in crate::program) fn is_submitted(&self, Track { pass, side }: Track) -> bool {
        self.passes[pass].sides[side].recording.is_submitted()
    }

    /// Makes the submissions of a run that was begun which it has not made yet.
    pub(in crate::program) fn submit_all(
        &mut self,
        Track { pass, side }: Track,
        stop: Option<&AtomicBool>,
    ) -> Result<(), GpuError> {
        self.passes[pass].sides[side].recording.submit_all(stop, "a step")
    }

    /// Counts the time of a run that was begun behind another one, which has just ended.
    pub(in crate::program) fn count_from_now(&mut self, Track { pass, side }: Track) {
        self.passes[pass].sides[side].recording.count_from_now();
    }

    /// Ends a run, or stops it once `stop` is raised.
    fn end_run(
        &mut self,
        Track { pass, side }: Track,
        stop: Option<&AtomicBool>,
    ) -> Result<Ended, GpuError> {
        self.passes[pass].sides[side].recording.finish(stop, &mut Absent, "a step")
    }

    /// Ends the run of a pass that was begun.
    pub(in crate::program) fn finish(
        &mut self,
        binding: &Binding<'_>,
        track: Track,
        stop: Option<&AtomicBool>,
    ) -> Result<Ended, GpuError> {
        let ended = self.end_run(track, stop)?;
        let chains = &self.passes[track.pass].sides[track.side].chains;
        if !chains.as_ref().is_some_and(Chains::has_failed) {
            return Ok(ended);
        }
        self.unchain(binding)?;
        if ended == Ended::Stopped {
            return Ok(ended);
        }
        self.sides[track.side].inputs.write_again();
        self.begin(track, stop)?;
        self.end_run(track, stop)
    }

    /// Returns whether a guest has a part in a pass.
    pub(in crate::program) fn has_guest(&self, pass: usize) -> bool {
        !self.passes[pass].loans.is_empty()
    }

    /// Ends the run of a pass beside a guest that was begun, and returns which pass has computed
    /// the step. If the guest does not compute its part, that is the pass `alone` of the device,
    /// which does the whole step again; if it is the same, the guest's error is the outcome.
    pub(in crate::program) fn finish_with(
        &mut self,
        binding: &Binding<'_>,
        [pass, alone]: [usize; 2],
        guest: &Hosted,
        profile: Option<&mut [f64]>,
        stop: Option<&AtomicBool>,
    ) -> Result<(Ended, usize), Failure> {
        let loans = self.loans.as_ref().expect("there is memory for what is handed over");
        let Pass { sides, loans: of_pass, .. } = &mut self.passes[pass];
        let mut table = GuestTable { loans, of_pass, guest, profile, failure: None };
        let ended = sides[0].recording.finish(stop, &mut table, "a step")?;
        if ended != Ended::Abandoned {
            return Ok((ended, pass));
        }
        if let Some(error) = table.failure.filter(|_| pass == alone) {
            return Err(Failure::Guest(error));
        }
        self.sides[0].inputs.write_again();
        let track = Track { pass: alone, side: 0 };
        self.begin(track, stop)?;
        Ok((self.finish(binding, track, stop)?, alone))
    }

    /// Runs a pass for a checked batch to its end, and adds the seconds of each of the Plan's steps
    /// to a profile.
    pub(in crate::program) fn run_timed(
        &mut self,
        binding: &Binding<'_>,
        batch: &Batch<'_>,
        pass: usize,
        profile: &mut [f64],
    ) -> Result<(), GpuError> {
        let Side { frame, inputs } = &mut self.sides[0];
        frame.write(batch, (0, 0));
        inputs.write(batch, false);
        self.run_written(binding, pass, profile)
    }

    /// Runs a pass whose batch is written, as [`Bound::run_timed`] does.
    pub(in crate::program) fn run_written(
        &mut self,
        binding: &Binding<'_>,
        pass: usize,
        profile: &mut [f64],
    ) -> Result<(), GpuError> {
        self.record_timed(binding, pass)?;
        if let Some((recording, steps)) = &mut self.passes[pass].timed {
            recording.run("a timed step")?;
            for (seconds, &step) in recording.times()?.iter().zip(&*steps) {
                profile[step] += seconds;
            }
        }
        Ok(())
    }
}
