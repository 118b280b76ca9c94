//! Shapes that launches get, and the passes that they are chosen for.

use std::cell::RefCell;
use std::sync::Arc;

use super::survey::{ChosenShapes, Survey};
use crate::capabilities::Capabilities;
use crate::error::GpuError;
use crate::kernels::product::ProductLaunch;
use crate::program::rehearsal::Rehearsals;

/// The shapes that were chosen.
#[derive(Debug, Clone, Default)]
pub(in crate::program) enum Shapes {
    /// By the static tables.
    #[default]
    Static,
    /// By number.
    Forced(usize),
    /// By measurement, for what has been measured.
    Chosen(Arc<ChosenShapes>),
}

impl Shapes {
    /// Returns the shape of a launch. Whatever was chosen, it is one that the kernel offers for the
    /// launch.
    pub(in crate::program) fn of<L: ProductLaunch>(
        &self,
        launch: &L,
        capabilities: &Capabilities,
    ) -> L::Shape {
        let offer = launch.offer(capabilities);
        let place = match self {
            Shapes::Static => None,
            Shapes::Forced(number) => Some((*number).min(offer.len() - 1)),
            Shapes::Chosen(chosen) => chosen.get(&launch.key()).and_then(|known| {
                let wanted = known.as_ref()?;
                offer.iter().position(|shape| L::parameters(shape) == *wanted)
            }),
        };
        offer[place.unwrap_or(0)]
    }
}

/// The passes whose products have shapes to choose, those that matter most first.
pub(in crate::program) trait Passes {
    /// Shows the products of a pass to a survey, by the number of the pass. Returns `false` if
    /// there are not as many.
    ///
    /// # Errors
    /// If the device fails.
    fn show(&self, number: usize, survey: &RefCell<Survey>) -> Result<bool, GpuError>;

    /// Makes the memory for beginnings of steps of a pass that launch the kernel of this key some
    /// times, one for each of some trials, to be run for their time. Returns `None` if the pass has
    /// more than one row, if its launches are not chained, or if it launches the kernel only once.
    ///
    /// # Errors
    /// If memory cannot be allocated or the device fails.
    fn rehearsals(
        &self,
        number: usize,
        key: &str,
        trials: usize,
    ) -> Result<Option<Rehearsals>, GpuError>;

    /// Records one more of these beginnings of steps of a pass, with these shapes. Returns `false`
    /// if none of its launches can be chained.
    ///
    /// # Errors
    /// If memory cannot be allocated or the device fails.
    fn rehearse(
        &self,
        number: usize,
        shapes: Shapes,
        rehearsals: &mut Rehearsals,
    ) -> Result<bool, GpuError>;
}
