//! Series: steps of which each but the first runs the tokens that the one before it chose. The host
//! submits the recordings of their passes with a choice after each, and waits once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use trine_backend::{ProgramOptions, SERIES_MAX};
use trine_model::{Goal, Input, Plan, Source, aside};

use super::frame::{Frame, SLOT_BITS};
use super::top_memory::{TopMemory, finds_top, top_rows};
use crate::dispatch::Span;
use crate::error::GpuError;
use crate::kernels::choose::{ChooseLaunch, ROWS_MAX};
use crate::raw::commands::{Ended, Recording};
use crate::raw::gpu::Gpu;
use crate::raw::meeting::Absent;

/// What runs the series of a Program.
pub(super) struct SeriesRuns {
    /// By goal that has series: chooses tokens after a step, and makes the frame that of the next
    /// one.
    choose: BTreeMap<Goal, Recording>,
    /// Runs the recordings of a series.
    all: Recording,
}

/// The passes of a series, by their indices.
#[derive(Debug, Clone, Copy)]
pub(super) struct Series {
    pub(super) goal: Goal,
    /// Positions from a row to the next one of its sequence.
    pub(super) advance: usize,
    pub(super) first: usize,
    /// That of all other steps.
    pub(super) next: usize,
    /// How many steps follow the first.
    pub(super) more: usize,
}

impl Series {
    /// Returns the pass of the last step.
    pub(super) fn last(&self) -> usize {
        if self.more > 0 { self.next } else { self.first }
    }

    /// Returns the passes of all steps.
    pub(super) fn passes(&self) -> impl Iterator<Item = usize> + use<> {
        std::iter::once(self.first).chain(std::iter::repeat_n(self.next, self.more))
    }
}

/// Returns whether a Program runs series for a goal: the device finds the largest logits, and a
/// step takes nothing of the host that depends on tokens. The hidden states that a guess takes are
/// an output of the guess before.
pub(super) fn runs_series(plan: &Plan, options: &ProgramOptions, goal: Goal) -> bool {
    let is_free =
        |input: &Input| input.source == Source::State || !plan.reads_for(goal, input.buffer);
    let is_chosen = matches!(goal, Goal::Main | Goal::Draft) && plan.has_goal(goal);
    let has_top = finds_top(plan) && (1..=ROWS_MAX).contains(&options.width.outputs);
    let is_whole = aside::aside(plan).is_empty();
    is_chosen && has_top && is_whole && plan.inputs.iter().all(is_free)
}

/// Returns how many positions after a row the next one of its sequence is, in a series for a goal.
pub(super) fn advance(goal: Goal) -> usize {
    usize::from(goal.stores())
}

/// Returns the launch that chooses tokens after a step for a goal; `None` if a Program runs no
/// series for it. `changing` are the parts of its frame, `spans` where maxima and the tokens chosen
/// are.
pub(super) fn choose_launch(
    plan: &Plan,
    options: &ProgramOptions,
    goal: Goal,
    changing: [Span; 4],
    spans: [Span; 2],
) -> Option<ChooseLaunch> {
    let ([frame, outputs, tiles, series], [maxima, chosen]) = (changing, spans);
    runs_series(plan, options, goal).then(|| ChooseLaunch {
        maxima,
        vocabulary: plan.output(plan.outputs_for(goal).start).columns,
        rows: top_rows(options.width.outputs),
        steps: 1 + SERIES_MAX,
        slot_bits: SLOT_BITS,
        advance: advance(goal) as u32,
        frame,
        outputs,
        tiles,
        series,
        chosen,
    })
}

impl SeriesRuns {
    /// Records what a Program's series need; `None` if it runs none.
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        plan: &Plan,
        options: &ProgramOptions,
        frame: &Frame,
        top: &TopMemory,
    ) -> Result<Option<Self>, GpuError> {
        let spans = [top.maxima.span(), top.chosen.span()];
        let choose = |goal: Goal| {
            let launch = choose_launch(plan, options, goal, frame.changing(), spans);
            let record =
                |launch: ChooseLaunch| Recording::record(gpu, &[launch.dispatch(gpu)?], &[], &[]);
            launch.map(|launch| Ok((goal, record(launch)?))).transpose()
        };
        let choose = plan.goals().into_iter().filter_map(|goal| choose(goal).transpose());
        let choose: BTreeMap<_, _> = choose.collect::<Result<_, GpuError>>()?;
        if choose.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self { choose, all: Recording::series(gpu)? }))
    }

    /// Waits for a series that nobody will wait for.
    pub(super) fn cancel(&mut self) {
        self.all.cancel();
    }

    /// Begins to run a series for a goal whose frame is written. `passes` are the recordings of its
    /// steps, each with the seconds that its submissions are predicted to take.
    pub(super) fn begin<'a>(
        &'a mut self,
        gpu: &Gpu,
        goal: Goal,
        passes: impl Iterator<Item = (&'a Recording, &'a [f64])>,
        stop: Option<&AtomicBool>,
    ) -> Result<(), GpuError> {
        let Self { choose, all } = self;
        let choose = choose.get(&goal).expect("the Program says that it runs series for it");
        let choose = (choose, &[0.0][..]);
        all.follow(passes.flat_map(|pass| [pass, choose]), gpu.submission_seconds());
        all.begin(stop, "a series of steps")
    }

    /// Ends the run of a series.
    pub(super) fn finish(&mut self, stop: Option<&AtomicBool>) -> Result<Ended, GpuError> {
        self.all.finish(stop, &mut Absent, "a series of steps")
    }

    /// Chooses tokens after a step for a goal that was run by itself.
    pub(super) fn choose(&mut self, goal: Goal) -> Result<(), GpuError> {
        let choose = self.choose.get_mut(&goal);
        choose.map_or(Ok(()), |choose| choose.run("choosing tokens"))
    }
}
