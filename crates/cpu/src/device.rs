//! The CPU as a device.

use std::sync::Arc;

use trine_backend::rates::{Rates, Work};
use trine_backend::{
    BackendError, Device, DeviceMemory, Memory, Partner, Program, ProgramOptions, host,
};
use trine_model::lend::lend;
use trine_model::{Model, Plan, Workload, away};

use crate::isa::Isa;
use crate::pool::Pool;
use crate::program::{CpuProgram, forecast};

/// GB/s that a thread reads, and all together; assumed: the machines of `docs/benchmarks/cpu.md`
/// read 12 to 25 with each of two threads.
const READS_OF_THREAD: f64 = 15.0;
const READS_MOST: f64 = 60.0;

/// The processor: an instruction set and a number of threads.
#[derive(Debug, Clone)]
pub struct CpuDevice {
    isa: Isa,
    threads: usize,
    partner: Option<Arc<dyn Partner>>,
}

impl CpuDevice {
    /// Creates the device. Without `threads` it uses one thread for each physical core that the
    /// system counts, without `isa` the best instruction set of this processor.
    ///
    /// # Errors
    /// Returns [`BackendError::Unsupported`] if the processor lacks the instruction set or the
    /// number of threads is absurd.
    pub fn new(threads: Option<usize>, isa: Option<Isa>) -> Result<Self, BackendError> {
        let isa = isa.unwrap_or_else(Isa::detect);
        let threads = threads.unwrap_or_else(default_threads);
        let unsupported = |what| BackendError::Unsupported { device: "cpu".to_owned(), what };
        if !isa.is_available() {
            let what = format!("it lacks {isa:?}; it has {:?}", Isa::available());
            return Err(unsupported(what));
        }
        if !(1..=crate::pool::MAX_THREADS).contains(&threads) {
            let what = format!("--threads {threads} is not from 1 to {}", crate::pool::MAX_THREADS);
            return Err(unsupported(what));
        }
        Ok(Self { isa, threads, partner: None })
    }

    /// Lends a part of the products of bulk rows to a partner.
    #[must_use]
    pub fn with_partner(self, partner: Arc<dyn Partner>) -> Self {
        Self { partner: Some(partner), ..self }
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The number of threads in use.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Returns a Plan with what its partner takes lent.
    fn lent(&self, plan: Plan) -> Plan {
        match &self.partner {
            Some(partner) => lend(plan, &|weight| partner.kept(weight)),
            None => plan,
        }
    }
}

/// Returns one thread for each core: simultaneous multithreading shares the units that matter here.
fn default_threads() -> usize {
    let logical = std::thread::available_parallelism().map_or(1, usize::from);
    let per_core = threads_per_core().unwrap_or(1);
    (logical / per_core).max(1)
}

/// Returns the hardware threads of the first core, from Linux' list (`0-1`, `0,8`).
fn threads_per_core() -> Option<usize> {
    let path = "/sys/devices/system/cpu/cpu0/topology/thread_siblings_list";
    let list = std::fs::read_to_string(path).ok()?;
    let count = |part: &str| match part.split_once('-') {
        None => Some(1),
        Some((first, last)) => {
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            last.checked_sub(first).map(|more| more + 1)
        }
    };
    let total: Option<usize> = list.trim().split(',').map(count).sum();
    total.filter(|&count| (1..=16).contains(&count))
}

/// Returns the rates of a processor: of each thread what one of a Zen 4 or Sapphire Rapids has
/// about (`docs/benchmarks/cpu.md`: with 8 sequences 1B in Q4_0 computes 0.08 to 0.28 Top/s a
/// thread), and in proportion to the width of its products with other instructions; reads of at
/// most two channels.
fn rates_of(isa: Isa, threads: usize) -> Rates {
    let tops = match isa {
        Isa::Avx512Vnni => 0.15,
        Isa::AvxVnni | Isa::NeonDot => 0.08,
        Isa::Avx2 => 0.05,
        Isa::Neon => 0.03,
        Isa::Scalar => 0.003,
    };
    let tops = tops * threads as f64;
    let gbps = (READS_OF_THREAD * threads as f64).min(READS_MOST);
    Rates {
        gbps,
        gbps_limit: gbps,
        tops_skinny: tops,
        tops_wide: tops,
        tops_limit: tops,
        gap_us: 0.0,
    }
}

impl Device for CpuDevice {
    fn name(&self) -> String {
        let plural = if self.threads == 1 { "" } else { "s" };
        let own = format!("cpu ({:?}, {} thread{plural})", self.isa, self.threads).to_lowercase();
        match &self.partner {
            Some(partner) => format!("{own}, with it {} for prompts", partner.name()),
            None => own,
        }
    }

    fn load_plan(
        &self,
        model: &Model,
        plan: Plan,
        options: &ProgramOptions,
    ) -> Result<Box<dyn Program>, BackendError> {
        let pool = Pool::new(self.threads).map_err(|error| BackendError::Failed {
            device: self.name(),
            what: error.to_string(),
        })?;
        let (plan, partner) = (self.lent(plan), self.partner.as_ref());
        let program = CpuProgram::load(self.name(), self.isa, pool, model, plan, options, partner)?;
        Ok(Box::new(program))
    }

    fn memory(&self) -> DeviceMemory {
        DeviceMemory::host(host::available_memory())
    }

    fn forecast(&self, plan: &Plan, options: &ProgramOptions) -> Memory {
        let plan = self.lent(plan.clone());
        let mut memory = forecast::memory(&plan, options, self.isa, self.threads);
        if let Some(partner) = &self.partner {
            let lent = away::weights(&plan).concat();
            let bytes = lent.into_iter().map(|id| partner.bytes(plan.weight(id)));
            memory.weights = bytes.fold(memory.weights, u64::saturating_add);
        }
        memory
    }

    fn step_seconds(
        &self,
        plan: &Plan,
        _options: &ProgramOptions,
        workload: Workload,
    ) -> Option<f64> {
        let rates = rates_of(self.isa, self.threads);
        Some(rates.seconds(&Work::of(plan, workload, 0)).total())
    }
}

#[cfg(test)]
mod tests {
    use trine_backend::placement::worthwhile;

    use super::*;

    #[test]
    fn a_device_has_the_threads_that_it_was_given() {
        let device = |threads| CpuDevice::new(Some(threads), None);
        for threads in [1, 3, crate::pool::MAX_THREADS] {
            assert_eq!(device(threads).unwrap().threads(), threads);
        }
        assert!(device(0).is_err() && device(crate::pool::MAX_THREADS + 1).is_err());
        assert!(CpuDevice::new(None, None).unwrap().threads() > 0);
    }

    /// Few cores compute little more of many rows than of a few; many read what more rows share.
    #[test]
    fn more_cores_are_worth_more_sequences() {
        // Gemma 3 1B and 4B in Q4_0 with 2048 positions: weights, keys and values, weights in
        // words.
        let [small, middle] = [(720, 20, 1000), (2360, 160, 3880)];
        let places = |isa: Isa, threads: usize, (weights, cache, parameters): (u64, u64, u64)| {
            let rates = rates_of(isa, threads);
            worthwhile(8, 256, |places| {
                let work = Work {
                    weight_bytes: weights * 1_000_000,
                    cache_bytes: cache * 1_000_000 * places as u64,
                    product_operations: 2 * parameters * 1_000_000 * places as u64,
                    rows: places,
                    ..Work::default()
                };
                Some(rates.seconds(&work).total())
            })
        };
        for (isa, threads, model, expected) in [
            (Isa::Avx512Vnni, 2, small, 8),
            (Isa::Avx512Vnni, 2, middle, 8),
            (Isa::Avx512Vnni, 8, small, 8),
            (Isa::Avx512Vnni, 16, small, 16),
            (Isa::Avx512Vnni, 8, middle, 8),
            (Isa::Avx512Vnni, 64, small, 64),
            (Isa::Avx2, 8, small, 8),
            (Isa::Scalar, 8, small, 8),
        ] {
            assert_eq!(places(isa, threads, model), expected, "{isa:?} {threads} {model:?}");
        }
    }
}
