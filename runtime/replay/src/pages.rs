//! Physical pages of the states that grow: free list and reference counts.

/// Pages, each free or referred to by one or more sequences and snapshots.
#[derive(Debug)]
pub(crate) struct Pages {
    /// Last one is taken first.
    free: Vec<u32>,
    references: Box<[u32]>,
}

impl Pages {
    /// What [`Pages::new`] allocates.
    pub fn bytes(count: u32) -> u64 {
        u64::from(count) * 2 * size_of::<u32>() as u64
    }

    pub fn new(count: u32) -> Self {
        Self {
            free: (0..count).rev().collect(),
            references: vec![0; count as usize].into_boxed_slice(),
        }
    }

    pub fn free(&self) -> u32 {
        u32::try_from(self.free.len()).expect("made from a u32")
    }

    pub fn count(&self) -> u32 {
        u32::try_from(self.references.len()).expect("made from a u32")
    }

    /// A free page, referred to once; `None` if there is none.
    pub fn take(&mut self) -> Option<u32> {
        let page = self.free.pop()?;
        self.references[page as usize] = 1;
        Some(page)
    }

    pub fn share(&mut self, page: u32) {
        self.references[page as usize] += 1;
    }

    /// True if writing `page` would be seen by somebody else.
    pub fn is_shared(&self, page: u32) -> bool {
        self.references[page as usize] > 1
    }

    /// Gives one reference back; with the last one the page is free.
    pub fn release(&mut self, page: u32) {
        let references = &mut self.references[page as usize];
        *references -= 1;
        if *references == 0 {
            // The vector was made for all pages: it does not grow.
            self.free.push(page);
        }
    }
}
