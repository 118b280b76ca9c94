//! Which layers go where.

use trine_model::{Plan, cut};

use super::sizes::Sizes;
use super::terms::{Cuts, Site, common_bytes};
use crate::device::LayerChoice;
use crate::device_memory::MemoryKind;
use crate::error::BackendError;

/// Cuts a Plan for the sites.
pub(super) fn distribute(
    plan: &Plan,
    sites: &[Site<'_>],
    choice: LayerChoice,
    sizes: &Sizes,
) -> Result<Cuts, BackendError> {
    let all = plan.layers();
    let wanted = match choice {
        LayerChoice::Fitting => all,
        LayerChoice::Exactly(layers) => layers.min(all),
    };
    let host = sites.iter().position(|site| site.memory.kind == MemoryKind::Host);
    // One site has to take the rest.
    let host = host.or_else(|| (wanted < all && sites.len() > 1).then_some(0));
    let others: Vec<usize> = (0..sites.len()).filter(|&site| Some(site) != host).collect();
    if let Some(host) = host
        && (others.is_empty() || (wanted == 0 && all > 0))
    {
        return Ok(vec![(host, plan.clone())]);
    }
    let rest_fits = |taken: usize| taken == all || host.is_some();
    let even = even_shares(wanted, others.len());
    let is_given = choice != LayerChoice::Fitting;
    // Layers come before sequences: they leave a device only if not even one sequence has room.
    let sizes = &sizes.of_one_sequence();
    let whole = Distribution { plan, sites, others: &others, host, sizes };
    if rest_fits(wanted)
        && let Some(cuts) = whole.cut(&even)
        && (is_given || whole.fits(&cuts))
    {
        return Ok(cuts);
    }
    if is_given {
        return Err(uncuttable(sites, &others, all - wanted));
    }
    let shares = whole.filled();
    if rest_fits(shares.iter().sum())
        && let Some(cuts) = whole.cut(&shares)
    {
        return Ok(cuts);
    }
    Err(whole.too_little())
}

/// Returns the layers for each of `count` sites, as even as possible. The last one has no more than
/// the others, because it also has the output matrix.
fn even_shares(layers: usize, count: usize) -> Vec<usize> {
    (0..count).map(|site| layers / count + usize::from(site < layers % count)).collect()
}

struct Distribution<'a> {
    plan: &'a Plan,
    sites: &'a [Site<'a>],
    /// Sites that are not the host.
    others: &'a [usize],
    host: Option<usize>,
    sizes: &'a Sizes,
}

impl Distribution<'_> {
    /// Returns the parts if each of the other sites has as many layers as `shares` says and the
    /// host has the rest, or `None` if the Plan cannot be cut like that.
    fn cut(&self, shares: &[usize]) -> Option<Cuts> {
        let mut rest = self.plan.clone();
        let mut parts = Vec::new();
        for (&site, &layers) in self.others.iter().zip(shares).rev() {
            if layers == 0 {
                continue;
            }
            let left = rest.layers() - layers;
            if left == 0 {
                parts.push((site, rest));
                parts.reverse();
                return Some(parts);
            }
            let [before, after] = cut::cut(&rest, left)?;
            parts.push((site, after));
            rest = before;
        }
        parts.push((self.host?, rest));
        parts.reverse();
        Some(parts)
    }

    fn fits(&self, cuts: &Cuts) -> bool {
        let mut shared = 0;
        let mut parts = cuts.iter().rev().zip(0..);
        parts.all(|((site, part), at)| {
            let fits = self.part_fits(*site, part, at == 0, shared);
            shared += self.shared_bytes(*site, part, at == 0);
            fits
        })
    }

    /// Returns whether a part fits on a site, if GPUs that use the processor's memory have taken
    /// `shared` bytes of it.
    fn part_fits(&self, site: usize, part: &Plan, is_last: bool, shared: u64) -> bool {
        let least = self.sizes.least(is_last);
        let site = &self.sites[site];
        let memory = (site.forecast)(part, &least);
        let is_shared = site.memory.kind == MemoryKind::Shared;
        let left = common_bytes(self.sites).filter(|_| is_shared);
        site.can_hold(part, &least, &memory)
            && left.is_none_or(|left| shared + memory.total() <= left)
    }

    /// Returns the bytes of the processor's memory that a part on a GPU takes.
    fn shared_bytes(&self, site: usize, part: &Plan, is_last: bool) -> u64 {
        let site = &self.sites[site];
        match site.memory.kind {
            MemoryKind::Shared => (site.forecast)(part, &self.sizes.least(is_last)).total(),
            MemoryKind::Own | MemoryKind::Host => 0,
        }
    }

    /// Returns as many layers for each site as fit, filling the last site first.
    fn filled(&self) -> Vec<usize> {
        let mut shares = vec![0; self.others.len()];
        let mut rest = self.plan.clone();
        // The last site may have no room. The one before it is then the one that computes logits.
        let (mut is_last, mut shared) = (true, 0);
        for (at, &site) in self.others.iter().enumerate().rev() {
            let layers = cut::last_layers_that_fit(&rest, |part| {
                self.part_fits(site, part, is_last, shared)
            });
            shares[at] = layers;
            if layers == 0 {
                continue;
            }
            let Some([before, after]) = cut::cut(&rest, rest.layers() - layers) else { break };
            shared += self.shared_bytes(site, &after, is_last);
            is_last = false;
            rest = before;
        }
        shares
    }

    /// Returns the error that says what is missing, if there is no host to take what does not fit.
    fn too_little(&self) -> BackendError {
        let least = self.sizes.least(true);
        let needed = self.others.iter().map(|&site| {
            let site = &self.sites[site];
            (site.forecast)(self.plan, &least).total()
        });
        let names: Vec<&str> =
            self.others.iter().map(|&site| self.sites[site].name.as_str()).collect();
        BackendError::OutOfMemory {
            what: format!("the model with a context of {}", least.context),
            needed: needed.max().unwrap_or(0),
            device: names.join(" with "),
        }
    }
}

fn uncuttable(sites: &[Site<'_>], others: &[usize], layers: usize) -> BackendError {
    let names: Vec<&str> = others.iter().map(|&site| sites[site].name.as_str()).collect();
    let what = format!("its first {layers} layers cannot be cut off");
    BackendError::Unsupported { device: names.join(" with "), what }
}
