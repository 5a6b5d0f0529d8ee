//! Kernel specifications: an op with every shape baked in. A specification and a target determine
//! the machine code, so its text is the key by which kernels are shared.
//!
//! Operand tables list what `args[i]` points at. Operand 0 is always the step block
//! (`u32[16]`; word 0 is the count of live rows, word 1 the rows whose logits are wanted, word 2
//! the commits); rows beyond the live count are skipped and their results are left untouched.

mod blocks;
mod delta;
mod matrix;
mod rows;
mod sequence;
mod states;
mod streams;

pub use blocks::{BlockKeys, BlockScores, BlockTop};
pub use delta::{DeltaCommit, DeltaFactors, GatedDelta};
pub use matrix::{
    Epilogue, ExpertDown, ExpertGated, ExpertSum, GatedMatmul, Matmul, Projection, Projections,
    Repack, RowClass, ToF32,
};
pub use rows::{ActMul, Embed, GatherRows, Mul, NormFold, Quantize, RmsNorm, RopeAngles, Scale};
pub use sequence::{Attention, AttnPrologue, Dispatch, ExpertCombine, HeadRotate, Route, Selected};
pub use states::{Conv1d, NgramEmbed, NgramRows, ReadTail, ShiftRows, TailCommit};
pub use streams::{
    GatedAdd, GatedHeadNorm, GroupRmsNorm, HcRead, HcWrite, HcWriteNorm, NgramGate, ScaledSilu,
    StreamConcat, StreamRepeat,
};

use serde::{Deserialize, Serialize};
use strata_graph::DType;

/// How the elements of a weight are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[allow(non_camel_case_types, reason = "the names that weight files use")]
pub enum WeightFormat {
    F32,
    F16,
    BF16,
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
}

impl WeightFormat {
    pub const ALL: [Self; 12] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::IQ4_NL,
    ];

    /// The format of a graph's weight type, if kernels read it.
    pub fn of(dtype: DType) -> Option<Self> {
        Some(match dtype {
            DType::F32 => Self::F32,
            DType::F16 => Self::F16,
            DType::BF16 => Self::BF16,
            DType::Q8_0 => Self::Q8_0,
            DType::Q4_0 => Self::Q4_0,
            DType::Q4_1 => Self::Q4_1,
            DType::Q5_0 => Self::Q5_0,
            DType::Q5_1 => Self::Q5_1,
            DType::Q4K => Self::Q4_K,
            DType::Q5K => Self::Q5_K,
            DType::Q6K => Self::Q6_K,
            DType::IQ4NL => Self::IQ4_NL,
            DType::Unresolved | DType::State | DType::U32 | DType::U64 | DType::Q8 => return None,
        })
    }

    /// F32, F16 or BF16: read in native order against f32 activations, never repacked.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }

    /// Elements of one native block, and its bytes.
    pub fn block(self) -> (u32, u32) {
        match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::BF16 => (1, 2),
            Self::Q8_0 => (32, 34),
            Self::Q4_0 | Self::IQ4_NL => (32, 18),
            Self::Q4_1 => (32, 20),
            Self::Q5_0 => (32, 22),
            Self::Q5_1 => (32, 24),
            Self::Q4_K => (256, 144),
            Self::Q5_K => (256, 176),
            Self::Q6_K => (256, 210),
        }
    }

    /// Bytes of one native row of `k` elements (`k` a multiple of the block).
    pub fn row_bytes(self, k: u32) -> u64 {
        let (elements, bytes) = self.block();
        u64::from(k / elements) * u64::from(bytes)
    }
}

/// An f32 in a key: equal and ordered by its bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "f32", into = "f32")]
pub struct F32(u32);

impl From<f32> for F32 {
    fn from(value: f32) -> Self {
        Self(value.to_bits())
    }
}

impl From<F32> for f32 {
    fn from(value: F32) -> Self {
        value.get()
    }
}

impl F32 {
    pub fn get(self) -> f32 {
        f32::from_bits(self.0)
    }
}

impl std::fmt::Debug for F32 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.get())
    }
}

/// The function of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Act {
    Silu,
    GeluTanh,
    Sigmoid,
}

/// `y[rows, k] = a + b`. Operands: 1 `a`, 2 `b`, 3 `y`, all `f32[rows, k]`; `y` may be `a` or `b`.
/// Unit: a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Add {
    pub k: u32,
}

/// One kernel. One variant an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum KernelSpec {
    Matmul(Matmul),
    GatedMatmul(GatedMatmul),
    Projections(Projections),
    ExpertGated(ExpertGated),
    ExpertDown(ExpertDown),
    ExpertSum(ExpertSum),
    Repack(Repack),
    ToF32(ToF32),
    Add(Add),
    Quantize(Quantize),
    RmsNorm(RmsNorm),
    RopeAngles(RopeAngles),
    Embed(Embed),
    GatherRows(GatherRows),
    Mul(Mul),
    Scale(Scale),
    ActMul(ActMul),
    AttnPrologue(AttnPrologue),
    HeadRotate(HeadRotate),
    Attention(Attention),
    Route(Route),
    Dispatch(Dispatch),
    ExpertCombine(ExpertCombine),
    ReadTail(ReadTail),
    GatedDelta(GatedDelta),
    DeltaCommit(DeltaCommit),
    StreamRepeat(StreamRepeat),
    GroupRmsNorm(GroupRmsNorm),
    ScaledSilu(ScaledSilu),
    HcRead(HcRead),
    HcWrite(HcWrite),
    HcWriteNorm(HcWriteNorm),
    GatedHeadNorm(GatedHeadNorm),
    GatedAdd(GatedAdd),
    StreamConcat(StreamConcat),
    Conv1d(Conv1d),
    ShiftRows(ShiftRows),
    TailCommit(TailCommit),
    NgramRows(NgramRows),
    NgramEmbed(NgramEmbed),
    NgramGate(NgramGate),
    BlockKeys(BlockKeys),
    BlockScores(BlockScores),
    BlockTop(BlockTop),
}

impl KernelSpec {
    /// The key: the specification's RON text.
    pub fn key(&self) -> String {
        ron::to_string(self).expect("a specification is plain data")
    }
}
