//! A partner that is described, and not opened.

use trine_backend::{BackendError, Guest, Partner, Tally};
use trine_model::{Weight, WeightKind};
use trine_weights::Tensor;

use super::cutting::bytes;
use super::share::{Share, Timed};
use super::worker::Kernels;
use crate::pack::Pack;

/// What an NPU would take of a model, for listings of a Plan. There need be no NPU, and nothing is
/// submitted to one.
#[derive(Debug)]
pub struct Sketch {
    share: Share,
    widths: Vec<usize>,
    tally: Tally,
}

impl Sketch {
    /// Describes an NPU with a pack that takes this part of each matrix, from 0 to 1.
    ///
    /// # Errors
    ///
    /// Returns an error if the pack has no stream that can be used.
    pub fn new(pack: &Pack, part: f64) -> Result<Self, String> {
        let widths = Kernels::of(pack)?.widths();
        Ok(Self { share: Share::Fraction(part), widths, tally: Tally::default() })
    }

    fn timed(&self) -> Timed {
        Timed::new(self.widths.iter().map(|width| (*width, std::time::Duration::ZERO)))
    }
}

impl Partner for Sketch {
    fn name(&self) -> String {
        format!("npu (not opened; {})", crate::UNTESTED)
    }

    fn kept(&self, weight: &Weight) -> usize {
        match weight.kind {
            WeightKind::Matrix => self.share.kept(weight.rows, weight.columns, &self.timed()),
            WeightKind::Vector => weight.rows,
        }
    }

    fn bytes(&self, weight: &Weight) -> u64 {
        bytes(weight.rows, weight.columns, &self.widths)
    }

    fn load(&self, _: &[Vec<Tensor>]) -> Result<Box<dyn Guest>, BackendError> {
        let what = "it is only described, and takes in no matrices".to_owned();
        Err(BackendError::Failed { device: self.name(), what })
    }

    fn tally(&self) -> &Tally {
        &self.tally
    }
}
