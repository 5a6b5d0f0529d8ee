//! Where a KV page holds what. Plain numbers: whoever sizes or copies pages needs only this file.
//!
//! A page is `page_tokens` consecutive positions of one sequence in one layer. For each kv head,
//! in order, it holds
//!
//! | part | f16 (f32: twice the bytes) | int8 |
//! |---|---|---|
//! | K, transposed: `[page_tokens / key_group][head_dim][key_group]` | 2 bytes each | 1 byte each |
//! | V: `[page_tokens][head_dim]` | 2 bytes each | 1 byte each |
//! | K scales `[page_tokens]`, V scales `[page_tokens]` | none | f32 |
//!
//! Pages without values hold K and K scales only.
//!
//! K is transposed so that positions are vector lanes in q.k and no lane has to be reduced. It is
//! transposed as a whole where every position is read, and in groups where some are, so that what
//! is read lies together.
//! Position p of a sequence lies in logical page `p / page_tokens` at index `p % page_tokens`;
//! a page table gives the physical page, whose bytes begin at `physical * page_bytes`.

use serde::{Deserialize, Serialize};

/// Element type of stored keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum KvKind {
    /// Nothing is rounded: for checks against references computed in higher precision.
    F32,
    /// IEEE half precision, rounded to nearest even.
    F16,
    /// Signed 8-bit with one f32 scale for each position and head: value = q * scale.
    Int8,
}

impl KvKind {
    pub const fn element_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
            Self::Int8 => 1,
        }
    }
}

/// Layout of the pages of one layer. All sizes are element counts unless they say bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KvLayout {
    pub kind: KvKind,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Positions of a page: a power of two, 16 to 256, so that spans of 256 hold whole pages.
    pub page_tokens: usize,
    /// Positions whose keys are transposed together: a power of two from 4 to `page_tokens`.
    pub key_group: usize,
    /// Whether V is stored.
    pub values: bool,
}

impl KvLayout {
    /// Keys and values, for kernels that read every position.
    pub const fn new(kind: KvKind, kv_heads: usize, head_dim: usize, page_tokens: usize) -> Self {
        Self { kind, kv_heads, head_dim, page_tokens, key_group: page_tokens, values: true }
    }

    /// Keys alone, of one head.
    pub const fn keys_only(kind: KvKind, head_dim: usize, page_tokens: usize) -> Self {
        Self { values: false, ..Self::new(kind, 1, head_dim, page_tokens) }
    }

    /// The same for kernels that read blocks of `key_group` positions.
    pub const fn grouped(self, key_group: usize) -> Self {
        Self { key_group, ..self }
    }

    /// Bytes of K, and of V, of one head in one page.
    const fn matrix_bytes(&self) -> usize {
        self.head_dim * self.page_tokens * self.kind.element_bytes()
    }

    /// Matrices of one head in one page: K, and V if it is stored.
    const fn matrices(&self) -> usize {
        1 + self.values as usize
    }

    /// Bytes of one head in one page.
    pub const fn head_bytes(&self) -> usize {
        let scales = match self.kind {
            KvKind::F32 | KvKind::F16 => 0,
            KvKind::Int8 => 4 * self.page_tokens,
        };
        self.matrices() * (self.matrix_bytes() + scales)
    }

    /// Bytes of one page of this layer.
    pub const fn page_bytes(&self) -> usize {
        self.kv_heads * self.head_bytes()
    }

    /// Byte offset in a page of K of `head`, at `dim` and page index `index`.
    pub const fn k_offset(&self, head: usize, dim: usize, index: usize) -> usize {
        let inside = index % self.key_group;
        let element = (index - inside) * self.head_dim + dim * self.key_group + inside;
        head * self.head_bytes() + element * self.kind.element_bytes()
    }

    /// Byte offset in a page of V of `head`, at page index `index` and `dim`, where V is stored.
    pub const fn v_offset(&self, head: usize, index: usize, dim: usize) -> usize {
        let element = index * self.head_dim + dim;
        head * self.head_bytes() + self.matrix_bytes() + element * self.kind.element_bytes()
    }

    /// Byte offset in a page of the f32 scale of K of `head` at `index`. Int8 only.
    pub const fn k_scale_offset(&self, head: usize, index: usize) -> usize {
        head * self.head_bytes() + self.matrices() * self.matrix_bytes() + 4 * index
    }

    /// Byte offset in a page of the f32 scale of V of `head` at `index`. Int8 only, where V is stored.
    pub const fn v_scale_offset(&self, head: usize, index: usize) -> usize {
        self.k_scale_offset(head, self.page_tokens + index)
    }
}
