//! The machines that kernels are generated for, as facts that builders read.

use serde::{Deserialize, Serialize};

/// A class of machine. Kernels of one target run on every machine that has its
/// [`TargetFacts::required`] features.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Target {
    /// x86-64-v3: AVX2, FMA, F16C.
    X86Avx2,
    /// x86-64-v4 with the 8-bit dot product (VNNI).
    X86Avx512,
    /// The tiles of AVX-512 as AVX2 code, so that they are tested on machines without it.
    #[cfg(test)]
    Avx512TilesInAvx2,
}

/// What a kernel builder may know of a target.
#[derive(Debug, PartialEq, Eq)]
pub struct TargetFacts {
    pub name: &'static str,
    pub triple: &'static str,
    /// LLVM's processor name.
    pub cpu: &'static str,
    /// LLVM's feature string, on top of `cpu`.
    pub features: &'static str,
    /// f32 lanes of one vector register.
    pub lanes: u32,
    /// Vector registers.
    pub registers: u32,
    /// Has `u8 x i8` dot products that accumulate in i32.
    pub vnni: bool,
    /// Tokens that one matrix tile holds in registers.
    pub tile_tokens: u32,
    /// CPUID features (in the spelling of `is_x86_feature_detected!`) that a machine needs.
    pub required: &'static [&'static str],
}

const AVX2: TargetFacts = TargetFacts {
    name: "x86-avx2",
    triple: "x86_64-unknown-linux-gnu",
    cpu: "x86-64-v3",
    features: "+avx2,+fma,+f16c",
    lanes: 8,
    registers: 16,
    vnni: false,
    tile_tokens: 4,
    required: &["avx2", "fma", "f16c", "bmi1", "bmi2"],
};

#[cfg(test)]
const AVX512_IN_AVX2: TargetFacts =
    TargetFacts { name: "x86-avx512-in-avx2", lanes: 16, vnni: true, tile_tokens: 8, ..AVX2 };

const AVX512: TargetFacts = TargetFacts {
    name: "x86-avx512",
    triple: "x86_64-unknown-linux-gnu",
    cpu: "x86-64-v4",
    features: "+avx512vnni,+fma,+f16c,-prefer-256-bit",
    lanes: 16,
    registers: 32,
    vnni: true,
    tile_tokens: 8,
    required: &[
        "avx2",
        "fma",
        "f16c",
        "bmi1",
        "bmi2",
        "avx512f",
        "avx512bw",
        "avx512dq",
        "avx512vl",
        "avx512cd",
        "avx512vnni",
    ],
};

impl Target {
    /// All targets, the most capable first: a runtime takes the first whose features are there.
    pub const ALL: [Self; 2] = [Self::X86Avx512, Self::X86Avx2];

    pub fn facts(self) -> &'static TargetFacts {
        match self {
            Self::X86Avx2 => &AVX2,
            Self::X86Avx512 => &AVX512,
            #[cfg(test)]
            Self::Avx512TilesInAvx2 => &AVX512_IN_AVX2,
        }
    }

    /// The most capable target that this process's machine can run.
    pub fn of_this_machine() -> Option<Self> {
        Self::ALL.into_iter().find(|t| t.runs_here())
    }

    /// Whether this process's machine has all features of the target.
    #[cfg(target_arch = "x86_64")]
    pub fn runs_here(self) -> bool {
        let v3 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2");
        let v4 = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512cd")
            && is_x86_feature_detected!("avx512vnni");
        match self {
            Self::X86Avx2 => v3,
            #[cfg(test)]
            Self::Avx512TilesInAvx2 => v3,
            Self::X86Avx512 => v3 && v4,
        }
    }

    /// Whether this process's machine has all features of the target.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn runs_here(self) -> bool {
        false
    }
}
