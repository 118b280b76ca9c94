//! The decision: sizes, the largest first, the layers of each site, and what there is room for.

use trine_model::Plan;

use super::terms::{Demand, Placement, Site};
use super::{cutting, sizes};
use crate::device::LayerChoice;
use crate::error::BackendError;

/// Decides where a model runs. Sites are in the order in which they run layers; one whose memory is
/// [`MemoryKind::Host`](crate::MemoryKind::Host) comes first, and takes the layers that the others
/// have no room for.
///
/// # Errors
/// [`BackendError::OutOfMemory`] if no placement fits, with what the smallest one would take;
/// [`BackendError::Unsupported`] if the Plan cannot be cut as asked.
pub fn place(
    plan: &Plan,
    sites: &[Site<'_>],
    layers: LayerChoice,
    demand: &Demand,
) -> Result<Placement, BackendError> {
    let mut refused = None;
    for sizes in sizes::contexts(plan, sites, demand) {
        match cutting::distribute(plan, sites, layers, &sizes) {
            Ok(cuts) => match sizes.settle(sites, cuts) {
                Ok(placement) => return Ok(placement),
                Err(error) => refused = Some(error),
            },
            Err(error) => refused = Some(error),
        }
    }
    Err(refused.unwrap_or_else(|| {
        let what = "there is no device".to_owned();
        BackendError::Unsupported { device: "this machine".to_owned(), what }
    }))
}
