//! The NPU beside the processor or a GPU, for prompts.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use trine_backend::{Device, Partner};
use trine_model::Model;
use trine_npu::pack::Pack;
use trine_npu::partner::{NpuPartner, Share, Sketch};

use crate::device::Opened;
use crate::failure::usage;
use crate::library::ModelLibrary;
use crate::npu_options::{NpuOptions, NpuShare, PackChoice};
use crate::words::shown;
use crate::{measuring::measured, npu_packs};

/// Gives the processor or the GPU an NPU as its partner, if one is asked for.
///
/// # Errors
/// Returns an error if it can have none, if the pack is refused, or if the NPU cannot be used.
pub fn join(
    library: &ModelLibrary,
    opened: Opened,
    npu: Option<&NpuOptions>,
    model: &Model,
) -> Result<Opened> {
    let Some(npu) = npu else { return Ok(opened) };
    let partner = partner(library, npu, opened.lender()?, model)?;
    opened.with_partner(partner)
}

/// Gives the device what an NPU would take of its products, without one. Nothing is submitted.
///
/// # Errors
/// Returns an error as [`join`], and if the share would have to be measured.
pub fn describe(
    library: &ModelLibrary,
    opened: Opened,
    npu: Option<&NpuOptions>,
) -> Result<Opened> {
    let Some(npu) = npu else { return Ok(opened) };
    opened.lender()?;
    let NpuShare::Part(part) = npu.share else {
        return Err(usage(
            "what is lent follows from products that are timed on the NPU, and here none is \
             submitted: give --npu-share too, such as 0.25",
        ));
    };
    let (_, pack) = open_pack(library, npu)?;
    let partner = Arc::new(Sketch::new(&pack, part).map_err(anyhow::Error::msg)?);
    opened.with_partner(partner)
}

/// Reads the pack that is asked for, and returns its folder too.
fn open_pack(library: &ModelLibrary, npu: &NpuOptions) -> Result<(PathBuf, Pack)> {
    let folder = match &npu.pack {
        PackChoice::Stored => npu_packs::only_pack(library)?,
        PackChoice::Folder(folder) => folder.clone(),
    };
    let pack = Pack::open(&folder).with_context(|| format!("{} is refused", shown(&folder)))?;
    Ok((folder, pack))
}

/// Returns the NPU, which is opened once.
fn partner(
    library: &ModelLibrary,
    npu: &NpuOptions,
    lender: &dyn Device,
    model: &Model,
) -> Result<Arc<NpuPartner>> {
    let (folder, pack) = open_pack(library, npu)?;
    let mut known = library.npu();
    if let Some((its, partner)) = known.as_ref() {
        if *its != folder {
            bail!("the NPU is in use with the pack in {}; use one pack", its.display());
        }
        return Ok(Arc::clone(partner));
    }
    let share = match npu.share {
        NpuShare::Part(part) => Share::Fraction(part),
        NpuShare::Measured => {
            let operations_per_second = measured::prompt_rate(lender, model)?;
            Share::Fastest { operations_per_second }
        }
    };
    let partner = Arc::new(open(library, &pack, share)?);
    *known = Some((folder, Arc::clone(&partner)));
    Ok(partner)
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn open(library: &ModelLibrary, pack: &Pack, share: Share) -> Result<NpuPartner> {
    use trine_npu::UNTESTED;
    use trine_npu::doctor::State;
    use trine_npu::sys::real::RealSys;

    let diagnosis = trine_npu::doctor::diagnose(&RealSys::new());
    let Some(path) = diagnosis.path.as_ref().filter(|_| diagnosis.is_usable()) else {
        let failed = diagnosis.findings.iter().find(|finding| finding.state == State::Fail);
        let why = failed.map_or(String::new(), |finding| {
            let remedy = finding.remedy.as_deref().unwrap_or_default();
            format!(": {}: {} ({remedy})", finding.check, finding.found)
        });
        bail!("the NPU cannot be used{why}; `trine npu doctor` says more");
    };
    library.warn(if diagnosis.facts.is_model {
        "what --npu asks for is trine's model here: no time and no result is an NPU's".to_owned()
    } else {
        format!(
            "products are tried on the NPU now, and this was {UNTESTED}. A command that hangs can \
             take a restart of the machine"
        )
    });
    let opened = NpuPartner::open(RealSys::new(), path, pack, share);
    opened.map_err(|error| anyhow::anyhow!("the NPU cannot be used: {error}"))
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn open(_: &ModelLibrary, _: &Pack, _: Share) -> Result<NpuPartner> {
    bail!("no NPU can be used here: the driver is one of Linux on x86-64")
}

/// What an NPU has done in this process.
#[derive(Debug, Clone, Serialize)]
pub struct Done {
    /// Its name, with what is to be known of it.
    device: String,
    /// Products that it computed.
    products: u64,
    /// Rows in these, counted once for each product.
    rows: u64,
    /// Products that were given to it and computed by the device beside it instead.
    instead: u64,
    /// Time in which it computed.
    seconds: f64,
    /// Time of that in which the device beside it waited; of a GPU the most that it can be.
    waited_seconds: f64,
    /// Why it was given nothing, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    idle: Option<String>,
}

impl Done {
    /// Returns what a partner has done by now.
    pub fn by(partner: &dyn Partner) -> Self {
        let tally = partner.tally();
        Self {
            device: partner.name(),
            products: tally.products(),
            rows: tally.rows(),
            instead: tally.instead(),
            seconds: tally.busy().as_secs_f64(),
            waited_seconds: tally.waited().as_secs_f64(),
            idle: (tally.products() + tally.instead() == 0).then(|| partner.idle()),
        }
    }
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, products, rows, instead, seconds, waited_seconds, idle } = self;
        if let Some(idle) = idle {
            return write!(f, "{device}: 0 products: {idle}");
        }
        write!(
            f,
            "{device}: {products} products of {rows} rows, computing for {seconds:.3} s; the \
             device beside it waited {waited_seconds:.3} s"
        )?;
        if *instead > 0 {
            write!(f, " and computed {instead} products instead of it")?;
        }
        Ok(())
    }
}
