//! Blocks of the KV cache and how many sequences own each.

/// Blocks with a count of their owners. A block is free if it has no owner.
#[derive(Debug, Clone)]
pub struct BlockPool {
    owners: Vec<u32>,
    free: Vec<u32>,
    /// The number of blocks with more than one owner.
    shared: usize,
}

impl BlockPool {
    /// Creates a pool of `blocks` free blocks, numbered from 0.
    pub fn new(blocks: usize) -> Self {
        let free = (0..blocks as u32).rev().collect();
        Self { owners: vec![0; blocks], free, shared: 0 }
    }

    /// Takes a free block, which then has one owner.
    ///
    /// # Panics
    /// Panics if a block of the free list has an owner, whose keys and values would be overwritten.
    pub fn take(&mut self) -> Option<u32> {
        let block = self.free.pop()?;
        let owners = &mut self.owners[block as usize];
        assert_eq!(*owners, 0, "block {block} is in the free list and has an owner");
        *owners = 1;
        Some(block)
    }

    /// Adds an owner to a block that has one.
    ///
    /// # Panics
    /// Panics if the block is free, because no owner could have passed it on.
    pub fn share(&mut self, block: u32) {
        let owners = &mut self.owners[block as usize];
        assert!(*owners > 0, "block {block} is free and cannot be shared");
        *owners += 1;
        self.shared += usize::from(*owners == 2);
    }

    /// Removes one owner. After the last one the block is free.
    ///
    /// # Panics
    /// Panics if the block is free already.
    pub fn release(&mut self, block: u32) {
        let owners = &mut self.owners[block as usize];
        assert!(*owners > 0, "block {block} is released twice");
        *owners -= 1;
        self.shared -= usize::from(*owners == 1);
        if *owners == 0 {
            self.free.push(block);
        }
    }

    /// Returns the number of owners of a block.
    pub fn owners(&self, block: u32) -> u32 {
        self.owners[block as usize]
    }

    /// Returns the number of blocks without an owner.
    pub fn free_blocks(&self) -> usize {
        self.free.len()
    }

    /// Returns the number of blocks with more than one owner.
    pub fn shared_blocks(&self) -> usize {
        self.shared
    }

    /// Returns the total number of blocks.
    pub fn blocks(&self) -> usize {
        self.owners.len()
    }

    /// Checks that the free list holds exactly the blocks without an owner, each once, that each
    /// block has as many owners as in `expected`, and that shared blocks are counted.
    ///
    /// # Errors
    /// Returns what is wrong.
    pub fn check_integrity(&self, expected: &[u32]) -> Result<(), String> {
        if let Some(block) =
            (0..self.owners.len()).find(|&block| self.owners[block] != expected[block])
        {
            return Err(format!(
                "block {block} counts {} owners, {} hold it",
                self.owners[block], expected[block]
            ));
        }
        let mut listed = vec![false; self.owners.len()];
        for &block in &self.free {
            if self.owners[block as usize] > 0 {
                return Err(format!("block {block} is in the free list and has an owner"));
            }
            if std::mem::replace(&mut listed[block as usize], true) {
                return Err(format!("block {block} is in the free list twice"));
            }
        }
        let unowned = self.owners.iter().filter(|&&owners| owners == 0).count();
        if unowned != self.free.len() {
            return Err(format!(
                "{unowned} blocks have no owner, {} are in the free list",
                self.free.len()
            ));
        }
        let shared = self.owners.iter().filter(|&&owners| owners > 1).count();
        if shared != self.shared {
            return Err(format!("{shared} blocks are shared, {} are counted", self.shared));
        }
        Ok(())
    }
}
