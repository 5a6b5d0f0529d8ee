//! Element types and tensor types.

use std::fmt;

/// Elements in a span: the unit in which the numeric contract orders a reduction.
pub const SPAN: u64 = 256;

/// Bytes of one span of quantised activations ([`DType::Q8`]): 256 `i8`, 8 scales, 8 scaled sums
/// (f32) and 8 pairs of `i16` sums, one of each for a block of 32.
pub const ACTIVATION_SPAN_BYTES: u64 = 256 + 32 + 32 + 32;

macro_rules! dtypes {
    ($($(#[$doc:meta])* $name:ident $text:literal $block:literal $bytes:literal;)*) => {
        /// What the elements of a tensor are.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum DType {$($(#[$doc])* $name,)*}

        impl DType {
            pub const ALL: &[DType] = &[$(DType::$name,)*];

            /// The name in dumps, plans and files.
            pub fn name(self) -> &'static str {
                match self {$(DType::$name => $text,)*}
            }

            /// Elements that share one block, and the block's bytes.
            pub fn block(self) -> (u64, u64) {
                match self {$(DType::$name => ($block, $bytes),)*}
            }
        }
    };
}

dtypes! {
    /// Not known yet: a weight before `resolve_weights`.
    Unresolved "?" 1 0;
    /// A version of a state; it has no elements of its own.
    State "state" 1 0;
    U32 "u32" 1 4;
    U64 "u64" 1 8;
    F32 "f32" 1 4;
    F16 "f16" 1 2;
    BF16 "bf16" 1 2;
    /// Activations in 8 bit: spans of [`ACTIVATION_SPAN_BYTES`], a row starts a new span.
    Q8 "q8" 256 352;
    Q8_0 "q8_0" 32 34;
    Q4_0 "q4_0" 32 18;
    Q4_1 "q4_1" 32 20;
    Q5_0 "q5_0" 32 22;
    Q5_1 "q5_1" 32 24;
    Q4K "q4_k" 256 144;
    Q5K "q5_k" 256 176;
    Q6K "q6_k" 256 210;
    IQ4NL "iq4_nl" 32 18;
}

impl DType {
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|d| d.name() == name)
    }

    /// Weights whose products take quantised activations.
    pub fn is_block_quantised(self) -> bool {
        self != DType::Q8 && self.block().0 > 1
    }

    /// F32, F16 and BF16.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::BF16)
    }

    /// Bytes of one row of `elements`; a started block counts whole.
    pub fn row_bytes(self, elements: u64) -> u64 {
        let (block, bytes) = self.block();
        elements.div_ceil(block) * bytes
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Element type and dimensions, outermost first; at most four.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TensorType {
    pub dtype: DType,
    rank: u8,
    dims: [u32; 4],
}

impl TensorType {
    /// # Panics
    /// If `dims` has more than four entries.
    pub fn new(dtype: DType, dims: &[u32]) -> Self {
        assert!(dims.len() <= 4, "a tensor has at most four dimensions");
        let mut all = [1; 4];
        all[..dims.len()].copy_from_slice(dims);
        Self { dtype, rank: dims.len() as u8, dims: all }
    }

    pub fn state() -> Self {
        Self::new(DType::State, &[])
    }

    pub fn with_dtype(self, dtype: DType) -> Self {
        Self { dtype, ..self }
    }

    pub fn dims(&self) -> &[u32] {
        &self.dims[..usize::from(self.rank)]
    }

    /// The innermost dimension; 1 for a scalar.
    pub fn last_dim(&self) -> u32 {
        self.dims().last().copied().unwrap_or(1)
    }

    /// Product of all dimensions but the innermost. Counts saturate: no real tensor comes near.
    pub fn row_count(&self) -> u64 {
        self.dims().split_last().map_or(1, |(_, outer)| {
            outer.iter().fold(1, |rows: u64, &d| rows.saturating_mul(u64::from(d)))
        })
    }

    pub fn elements(&self) -> u64 {
        self.row_count().saturating_mul(u64::from(self.last_dim()))
    }

    pub fn row_bytes(&self) -> u64 {
        self.dtype.row_bytes(u64::from(self.last_dim()))
    }

    pub fn bytes(&self) -> u64 {
        self.row_count().saturating_mul(self.row_bytes())
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, dim) in self.dims().iter().enumerate() {
            write!(f, "{}{dim}", if i == 0 { "" } else { ", " })?;
        }
        f.write_str("]")
    }
}
