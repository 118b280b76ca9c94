//! Keys and values as bytes: the parts of a sequence's cache that can leave a device and come back.

use trine_model::Cache;

use crate::batch::{BLOCK, ProgramOptions, SequenceView};
use crate::error::BackendError;

/// The layers whose keys and values a page holds. The two kinds keep them for different lengths of
/// time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KvPart {
    /// Global layers, which keep all positions in blocks.
    Global,
    /// Local layers, which keep the last ones in a ring.
    Local,
}

impl KvPart {
    /// Returns the part of a layer with this window.
    pub fn of(window: Option<usize>) -> Self {
        if window.is_some() { Self::Local } else { Self::Global }
    }
}

/// A page: the keys and values of [`BLOCK`] consecutive positions of a sequence, in all layers of
/// one part.
///
/// Its bytes are those that the device keeps, in the order of the Plan's caches. What they mean is
/// up to the device and depends on nothing but the [`PageLayout`]: neither on slot, blocks and
/// position, nor on the sizes that the Program was created with.
#[derive(Debug, Clone, Copy)]
pub struct KvPage<'a> {
    /// The sequence that it belongs to.
    pub sequence: SequenceView<'a>,
    /// Positions `index * BLOCK .. (index + 1) * BLOCK`.
    pub index: usize,
    /// The layers that it holds.
    pub part: KvPart,
}

/// What the pages of a Program look like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageLayout {
    /// A name for everything that decides what the bytes of a page mean and how they were computed,
    /// except the model: kind of device and of its arithmetic, storage of keys and values, byte
    /// order. Pages of one Program can be written to another if both have the same name here.
    pub name: String,
    /// Bytes of a page of the global layers; 0 without such layers.
    pub global_bytes: usize,
    /// Bytes of a page of the local layers; 0 without such layers.
    pub local_bytes: usize,
}

impl PageLayout {
    /// Returns the layout of a Program that keeps `bytes` for a block of positions in each of its
    /// caches.
    pub fn of(name: String, caches: &[Cache], bytes: impl Fn(usize) -> usize) -> Self {
        let sum = |part| {
            let of_part = |(_, cache): &(usize, &Cache)| KvPart::of(cache.window) == part;
            caches.iter().enumerate().filter(of_part).map(|(index, _)| bytes(index)).sum()
        };
        Self { name, global_bytes: sum(KvPart::Global), local_bytes: sum(KvPart::Local) }
    }

    /// Returns the bytes of a page of a part; 0 if there are no such layers.
    pub fn page_bytes(&self, part: KvPart) -> usize {
        match part {
            KvPart::Global => self.global_bytes,
            KvPart::Local => self.local_bytes,
        }
    }
}

/// Reads and writes the keys and values of a Program.
pub trait Pages {
    /// Appends the bytes of pages to `bytes`, one page after another. What is read for positions
    /// that were not written, or that a ring has overwritten, is undefined.
    ///
    /// # Errors
    /// [`BackendError::BadBatch`] for a page that does not exist or while a step is in flight.
    /// [`BackendError::OutOfMemory`] if there is no room for the transfer, in which case the caches
    /// keep their contents. Any other error if the device failed, after which the contents of the
    /// caches are undefined.
    fn read(&mut self, pages: &[KvPage<'_>], bytes: &mut Vec<u8>) -> Result<(), BackendError>;

    /// Writes bytes that [`Pages::read`] returned, from a Program with the same
    /// [layout](PageLayout::name) and model, to these pages.
    ///
    /// # Errors
    /// As [`Pages::read`]; [`BackendError::BadBatch`] also for another number of bytes.
    fn write(&mut self, pages: &[KvPage<'_>], bytes: &[u8]) -> Result<(), BackendError>;
}

impl ProgramOptions {
    /// Checks pages before they are read or written: slots, blocks and positions must exist.
    ///
    /// # Errors
    /// [`BackendError::BadBatch`] for the first that is wrong.
    pub fn check_pages(&self, pages: &[KvPage<'_>]) -> Result<(), BackendError> {
        let is_wrong = |page: &&KvPage<'_>| {
            let SequenceView { slot, blocks } = page.sequence;
            let has_block = match page.part {
                KvPart::Global => {
                    blocks.get(page.index).is_some_and(|&block| (block as usize) < self.blocks)
                }
                KvPart::Local => (slot as usize) < self.sequences,
            };
            !has_block || page.index >= self.context.div_ceil(BLOCK)
        };
        let Some(page) = pages.iter().find(is_wrong) else { return Ok(()) };
        let what = format!(
            "page {} of the {:?} layers of slot {} is not there",
            page.index, page.part, page.sequence.slot
        );
        Err(BackendError::BadBatch { what })
    }

    /// Checks what is to be written to pages of a layout. Without a layout pages have no bytes.
    ///
    /// # Errors
    /// As [`ProgramOptions::check_pages`], and if there are more or fewer bytes than the pages
    /// have.
    pub fn check_page_bytes(
        &self,
        pages: &[KvPage<'_>],
        layout: Option<&PageLayout>,
        bytes: &[u8],
    ) -> Result<(), BackendError> {
        self.check_pages(pages)?;
        let page_bytes =
            |layout: &PageLayout| pages.iter().map(|page| layout.page_bytes(page.part)).sum();
        let needed: usize = layout.map_or(0, page_bytes);
        if needed == bytes.len() {
            return Ok(());
        }
        let what = format!("{} pages have {needed} bytes, {} are given", pages.len(), bytes.len());
        Err(BackendError::BadBatch { what })
    }

    /// Returns the first position of a page among those of a cache: of all blocks for a global
    /// layer, of all slots' rings for a local one. Returns `None` for a cache of the other part.
    ///
    /// # Panics
    /// If the page does not pass [`ProgramOptions::check_pages`].
    pub fn page_start(&self, page: &KvPage<'_>, window: Option<usize>) -> Option<usize> {
        match (page.part, window) {
            (KvPart::Global, None) => Some(page.sequence.blocks[page.index] as usize * BLOCK),
            (KvPart::Local, Some(window)) => {
                // Rings are whole blocks long, so a page never wraps.
                let ring = self.ring_length(window);
                Some(page.sequence.slot as usize * ring + page.index * BLOCK % ring)
            }
            _ => None,
        }
    }

    /// Returns where pages that pass [`ProgramOptions::check_pages`] lie, in the order of their
    /// bytes: the number of a cache of the Plan and the first position in it, as
    /// [`ProgramOptions::page_start`] returns it.
    pub fn page_places<'a>(
        &'a self,
        caches: &'a [Cache],
        pages: &'a [KvPage<'a>],
    ) -> impl Iterator<Item = (usize, usize)> + 'a {
        let of_page = move |page: &'a KvPage<'a>| {
            let starts = caches.iter().map(move |cache| self.page_start(page, cache.window));
            starts.enumerate().filter_map(|(cache, start)| Some((cache, start?)))
        };
        pages.iter().flat_map(of_page)
    }
}
