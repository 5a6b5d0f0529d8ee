//! Every tensor type that a GGUF or safetensors file may name, with the size of its block.

/// One line of the table: the type, its name, its ggml id (`-` where ggml has none), whether
/// safetensors writes it under this name, elements a block, bytes a block.
macro_rules! tensor_types {
    ($($ty:ident $name:literal $id:tt $in_safetensors:literal $elements:literal $bytes:literal,)+) => {
        /// How the elements of a tensor are stored. A block is the smallest part that can be
        /// decoded alone; a row (the innermost dimension) holds a whole number of blocks.
        ///
        /// Types without a ggml id occur only in safetensors files.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(non_camel_case_types, reason = "the names of the field, letter for letter")]
        pub enum TensorType { $($ty,)+ }

        const ROWS: &[Row] = &[$(Row {
            ty: TensorType::$ty,
            name: $name,
            ggml_id: ggml_id!($id),
            in_safetensors: $in_safetensors,
            elements: $elements,
            bytes: $bytes,
        },)+];
    };
}

macro_rules! ggml_id {
    (-) => {
        None
    };
    ($id:literal) => {
        Some($id)
    };
}

struct Row {
    ty: TensorType,
    name: &'static str,
    ggml_id: Option<u32>,
    in_safetensors: bool,
    elements: u64,
    bytes: u64,
}

tensor_types! {
    F32 "F32" 0 true 1 4,
    F16 "F16" 1 true 1 2,
    Q4_0 "Q4_0" 2 false 32 18,
    Q4_1 "Q4_1" 3 false 32 20,
    Q5_0 "Q5_0" 6 false 32 22,
    Q5_1 "Q5_1" 7 false 32 24,
    Q8_0 "Q8_0" 8 false 32 34,
    Q8_1 "Q8_1" 9 false 32 36,
    Q2_K "Q2_K" 10 false 256 84,
    Q3_K "Q3_K" 11 false 256 110,
    Q4_K "Q4_K" 12 false 256 144,
    Q5_K "Q5_K" 13 false 256 176,
    Q6_K "Q6_K" 14 false 256 210,
    Q8_K "Q8_K" 15 false 256 292,
    IQ2_XXS "IQ2_XXS" 16 false 256 66,
    IQ2_XS "IQ2_XS" 17 false 256 74,
    IQ3_XXS "IQ3_XXS" 18 false 256 98,
    IQ1_S "IQ1_S" 19 false 256 50,
    IQ4_NL "IQ4_NL" 20 false 32 18,
    IQ3_S "IQ3_S" 21 false 256 110,
    IQ2_S "IQ2_S" 22 false 256 82,
    IQ4_XS "IQ4_XS" 23 false 256 136,
    I8 "I8" 24 true 1 1,
    I16 "I16" 25 true 1 2,
    I32 "I32" 26 true 1 4,
    I64 "I64" 27 true 1 8,
    F64 "F64" 28 true 1 8,
    IQ1_M "IQ1_M" 29 false 256 56,
    BF16 "BF16" 30 true 1 2,
    TQ1_0 "TQ1_0" 34 false 256 54,
    TQ2_0 "TQ2_0" 35 false 256 66,
    MXFP4 "MXFP4" 39 false 32 17,
    NVFP4 "NVFP4" 40 false 64 36,
    Q1_0 "Q1_0" 41 false 128 18,
    Bool "BOOL" - true 1 1,
    U8 "U8" - true 1 1,
    U16 "U16" - true 1 2,
    U32 "U32" - true 1 4,
    U64 "U64" - true 1 8,
    C64 "C64" - true 1 8,
    F8_E4M3 "F8_E4M3" - true 1 1,
    F8_E5M2 "F8_E5M2" - true 1 1,
    F8_E4M3FNUZ "F8_E4M3FNUZ" - true 1 1,
    F8_E5M2FNUZ "F8_E5M2FNUZ" - true 1 1,
    F8_E8M0 "F8_E8M0" - true 1 1,
    F6_E2M3 "F6_E2M3" - true 4 3,
    F6_E3M2 "F6_E3M2" - true 4 3,
    F4 "F4" - true 2 1,
}

impl TensorType {
    /// Every type, in the order of the table.
    pub fn all() -> impl Iterator<Item = TensorType> {
        ROWS.iter().map(|row| row.ty)
    }

    /// The type of a ggml id. `None` for ids that ggml never gave out or has withdrawn
    /// (4, 5, 31 to 33, 36 to 38: see [`TensorType::withdrawn_ggml_name`]).
    pub fn from_ggml(id: u32) -> Option<TensorType> {
        ROWS.iter().find(|row| row.ggml_id == Some(id)).map(|row| row.ty)
    }

    /// The type of a name, in any case: `Q4_K`, `q4_k`, `bf16`.
    pub fn from_name(name: &str) -> Option<TensorType> {
        ROWS.iter().find(|row| row.name.eq_ignore_ascii_case(name)).map(|row| row.ty)
    }

    /// The type of a safetensors `dtype`, which is written in one way only.
    pub fn from_safetensors(dtype: &str) -> Option<TensorType> {
        ROWS.iter().find(|row| row.in_safetensors && row.name == dtype).map(|row| row.ty)
    }

    /// The name of a type that ggml has withdrawn, so that an error can say more than a number.
    pub fn withdrawn_ggml_name(id: u32) -> Option<&'static str> {
        match id {
            4 => Some("Q4_2"),
            5 => Some("Q4_3"),
            31 => Some("Q4_0_4_4"),
            32 => Some("Q4_0_4_8"),
            33 => Some("Q4_0_8_8"),
            36 => Some("IQ4_NL_4_4"),
            37 => Some("IQ4_NL_4_8"),
            38 => Some("IQ4_NL_8_8"),
            _ => None,
        }
    }

    fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The number that stands for this type in a GGUF file.
    pub fn ggml_id(self) -> Option<u32> {
        self.row().ggml_id
    }

    /// Elements in one block: 1 for plain types, 32 to 256 for quantised ones.
    pub fn block_elements(self) -> u64 {
        self.row().elements
    }

    /// Bytes of one block.
    pub fn block_bytes(self) -> u64 {
        self.row().bytes
    }

    /// Whether several elements share a scale or a byte.
    pub fn is_blocked(self) -> bool {
        self.row().elements > 1
    }

    /// Bytes of a row of `elements`. `None` if that is not a whole number of blocks, or too large
    /// for 64 bits.
    pub fn row_bytes(self, elements: u64) -> Option<u64> {
        let row = self.row();
        if !elements.is_multiple_of(row.elements) {
            return None;
        }
        (elements / row.elements).checked_mul(row.bytes)
    }
}

impl std::fmt::Display for TensorType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// Product of `dims`, with zeros counted as one first so that no order of the factors hides an
/// overflow. `None` if it does not fit.
pub(crate) fn element_count(dims: &[u64]) -> Option<u64> {
    let nonzero = dims.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim.max(1)))?;
    Some(if dims.contains(&0) { 0 } else { nonzero })
}

#[cfg(test)]
mod tests;
