//! What a sequence or a snapshot holds: tokens, and the pages of their positions.

use crate::pages::Pages;

/// Some positions of a sequence on their pages: a slot's, or a snapshot's.
#[derive(Debug)]
pub(crate) struct Held {
    pub position: u32,
    /// The token of each position; those before `position` count.
    pub tokens: Box<[u32]>,
    /// Physical pages, of which the first `page_count` are held.
    pub pages: Box<[u32]>,
    pub page_count: u32,
}

impl Held {
    /// What [`Held::empty`] allocates.
    pub fn bytes(pages: u32, context_tokens: u32) -> u64 {
        (u64::from(pages) + u64::from(context_tokens)) * size_of::<u32>() as u64
    }

    pub fn empty(pages: u32, context_tokens: u32) -> Self {
        let words = |count: u32| vec![0; count as usize].into_boxed_slice();
        Self { position: 0, tokens: words(context_tokens), pages: words(pages), page_count: 0 }
    }

    pub fn pages(&self) -> &[u32] {
        &self.pages[..self.page_count as usize]
    }

    pub fn tokens(&self) -> &[u32] {
        &self.tokens[..self.position as usize]
    }

    pub fn shrink(&mut self, page_count: u32, pages: &mut Pages) {
        while self.page_count > page_count {
            self.page_count -= 1;
            let place = &mut self.pages[self.page_count as usize];
            pages.release(*place);
            // A page number that no row may read still lies in the space.
            *place = 0;
        }
    }

    pub fn push(&mut self, page: u32) {
        self.pages[self.page_count as usize] = page;
        self.page_count += 1;
    }

    pub fn become_copy_of(&mut self, other: &Self, pages: &mut Pages) {
        // First shared, then released: both may hold the same pages.
        other.pages().iter().for_each(|&page| pages.share(page));
        self.shrink(0, pages);
        other.pages().iter().for_each(|&page| self.push(page));
        self.position = other.position;
        self.tokens[..other.position as usize].copy_from_slice(other.tokens());
    }
}
