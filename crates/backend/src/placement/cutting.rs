//! Which layers go where.

use trine_model::{Plan, Workload, aside, cut};

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
    let cuts = distributed(plan, sites, choice, sizes)?;
    let layers: usize = cuts.iter().map(|(_, part)| part.layers()).sum();
    assert_eq!(layers, plan.layers(), "the parts have all layers");
    let is_host = |site: usize| sites[site].memory.kind == MemoryKind::Host;
    let is_in_order = cuts.is_sorted_by(|(one, _), (next, _)| is_host(*one) || one < next);
    assert!(is_in_order, "the host has the first layers, then sites follow in their order");
    Ok(cuts)
}

fn distributed(
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
        return Err(whole.uncuttable(wanted));
    }
    let shares = whole.filled();
    let layers = whole.cut(&shares).filter(|_| rest_fits(shares.iter().sum()));
    // Of two ways, take the one with which the processor reads less for a token.
    let ways = [layers, whole.experts_aside()].into_iter().flatten();
    ways.min_by_key(|cuts| whole.host_bytes(cuts)).ok_or_else(|| whole.too_little())
}

/// Handing the rows of a layer over and taking the sums back counts as reading this many bytes:
/// about what a processor reads in 50 us. Assumed; nothing here has been measured on a machine with
/// a GPU and a processor.
const MEETING_BYTES: u64 = 2_000_000;

/// Returns the layers for each of `count` sites, as even as possible. The last one has no more than
/// the others, because it also has the output matrix.
fn even_shares(layers: usize, count: usize) -> Vec<usize> {
    (0..count).map(|site| layers / count + usize::from(site < layers % count)).collect()
}

#[derive(Clone, Copy)]
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

    /// Returns the parts if the processor computes the experts of as many of the first layers as
    /// have no room on the GPU: of the fewest with which all layers stay there, or of all if even
    /// that does not fit; then the GPU has the last layers that fit without theirs. Returns `None`
    /// if there are no experts, or several GPUs.
    fn experts_aside(&self) -> Option<Cuts> {
        let host = self.host.filter(|&at| self.sites[at].memory.kind == MemoryKind::Host)?;
        let &[site] = self.others else { return None };
        let all = aside::layers(self.plan);
        if all == 0 || host == site || !self.sites[site].hands_over() {
            return None;
        }
        let without = |layers: usize| aside::set_aside(self.plan, layers);
        let fits = |layers: usize| self.part_fits(site, &without(layers), true, 0);
        if fits(all) {
            let numbers: Vec<usize> = (1..=all).collect();
            let least = numbers.partition_point(|&layers| !fits(layers));
            return Some(vec![(site, without(numbers[least]))]);
        }
        let plan = without(all);
        let shares = Distribution { plan: &plan, ..*self }.filled();
        let mut cuts = self.cut(&shares).filter(|cuts| cuts.len() == 2)?;
        let (_, part) = &mut cuts[1];
        *part = aside::set_aside(part, aside::layers(part));
        Some(cuts)
    }

    /// Returns the bytes that the processor reads for a token of one sequence in the middle of its
    /// context.
    fn host_bytes(&self, cuts: &Cuts) -> u64 {
        let least = self.sizes.least(true);
        let workload = Workload::decode(1, least.context / 2, least.kv);
        let bytes = |(site, part): &(usize, Plan)| match Some(*site) == self.host {
            true => part.cost(workload).memory_bytes(),
            false => {
                let meetings = aside::aside_layers(part).len() as u64;
                aside::cost(part, workload).memory_bytes() + meetings * MEETING_BYTES
            }
        };
        cuts.iter().map(bytes).sum()
    }

    /// Returns the error for a number of layers at which the Plan has no border, with the nearest
    /// one at which it has.
    fn uncuttable(&self, wanted: usize) -> BackendError {
        let all = self.plan.layers();
        let works = |layers: &usize| self.cut(&even_shares(*layers, self.others.len())).is_some();
        let nearest = (0..=all).filter(works).min_by_key(|layers| layers.abs_diff(wanted));
        let nearest = nearest.map_or(String::new(), |layers| {
            format!("; the nearest number of layers that can be there is {layers}")
        });
        let what = format!("its first {} layers cannot be cut off{nearest}", all - wanted);
        BackendError::Unsupported { device: self.names(), what }
    }

    fn names(&self) -> String {
        let names: Vec<&str> =
            self.others.iter().map(|&site| self.sites[site].name.as_str()).collect();
        names.join(" with ")
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
        // The last site may have no room. Then the site before it computes logits.
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
        BackendError::OutOfMemory {
            what: format!("the model with a context of {}", least.context),
            needed: needed.max().unwrap_or(0),
            device: self.names(),
        }
    }
}
