//! Which tensor is stored in which type.

use std::fmt;
use std::str::FromStr;

use strata_formats::TensorType;

use super::blocks::is_known;

/// Tensor types by the part that they are in. What is small and sharp (norms, routers, filters, the
/// gates of recurrent layers and residuals) is F32 always, as converters have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mix {
    /// All matrices but those below.
    pub dense: TensorType,
    /// Gate and up matrices of experts.
    pub gate_up: TensorType,
    /// Down matrices of experts.
    pub down: TensorType,
    /// The table of n-grams.
    pub table: TensorType,
}

impl Default for Mix {
    /// The mix of files of about 4.5 bits a weight.
    fn default() -> Self {
        Self {
            dense: TensorType::Q8_0,
            gate_up: TensorType::Q4_K,
            down: TensorType::Q4_0,
            table: TensorType::Q8_0,
        }
    }
}

/// A mix that cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MixError {
    found: String,
}

impl fmt::Display for MixError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known: Vec<&str> =
            TensorType::all().filter(|&ty| is_known(ty)).map(TensorType::name).collect();
        write!(
            f,
            "{:?} in a mix: needs one type, or dense=TYPE, gate_up=TYPE, down=TYPE and table=TYPE \
             with commas between; types are {}",
            self.found,
            known.join(", ")
        )
    }
}

impl std::error::Error for MixError {}

impl FromStr for Mix {
    type Err = MixError;

    /// One type for all, or `dense=Q8_0,gate_up=Q4_K,down=Q4_0,table=IQ4_NL`; what is left out is
    /// as by default.
    fn from_str(text: &str) -> Result<Self, MixError> {
        let error = |found: &str| MixError { found: found.into() };
        let read = |name: &str| {
            TensorType::from_name(name).filter(|&ty| is_known(ty)).ok_or_else(|| error(name))
        };
        if !text.contains('=') {
            let ty = read(text)?;
            return Ok(Self { dense: ty, gate_up: ty, down: ty, table: ty });
        }
        let mut mix = Self::default();
        for pair in text.split(',') {
            let (part, name) = pair.split_once('=').ok_or_else(|| error(pair))?;
            *match part.trim() {
                "dense" => &mut mix.dense,
                "gate_up" => &mut mix.gate_up,
                "down" => &mut mix.down,
                "table" => &mut mix.table,
                _ => return Err(error(pair)),
            } = read(name.trim())?;
        }
        Ok(mix)
    }
}

const ALWAYS_F32: &[&str] =
    &["ffn_gate_inp", "conv1d", "ssm_alpha", "ssm_beta", "ssm_ba", "ssm_dt", "_inject", "norm"];

impl Mix {
    /// The type of a tensor with dimensions `dims`, innermost first. Where its rows are not whole
    /// blocks, a type of smaller blocks takes its place.
    pub(super) fn type_of(&self, name: &str, dims: &[u64]) -> TensorType {
        if dims.len() < 2 || ALWAYS_F32.iter().any(|part| name.contains(part)) {
            return TensorType::F32;
        }
        let wanted = if name.starts_with("per_layer_token_embd") {
            self.table
        } else if name.contains("_down_exps") {
            self.down
        } else if name.contains("_exps") {
            self.gate_up
        } else {
            self.dense
        };
        let small = match wanted {
            TensorType::Q4_K => TensorType::Q4_0,
            TensorType::Q5_K => TensorType::Q5_0,
            _ => TensorType::Q8_0,
        };
        let fits = |ty: &TensorType| dims[0].is_multiple_of(ty.block_elements());
        [wanted, small].into_iter().find(fits).unwrap_or(TensorType::F16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_are_read_by_part() {
        let one: Mix = "q8_0".parse().unwrap();
        assert_eq!((one.dense, one.table), (TensorType::Q8_0, TensorType::Q8_0));
        let some: Mix = "dense=F16, down=Q5_0".parse().unwrap();
        assert_eq!((some.dense, some.down), (TensorType::F16, TensorType::Q5_0));
        assert_eq!(some.gate_up, Mix::default().gate_up);
        for bad in ["Q9", "IQ1_S", "dense", "dense=Q8_0,up=Q4_K", "dense=", ""] {
            let error = bad.parse::<Mix>().unwrap_err().to_string();
            assert!(error.contains("types are F32, F16, Q4_0"), "{error}");
        }
    }

    #[test]
    fn rows_that_are_not_whole_blocks_get_smaller_ones() {
        let mix: Mix = "Q4_K".parse().unwrap();
        assert_eq!(mix.type_of("blk.0.ffn_up_exps.weight", &[2560, 640, 8]), TensorType::Q4_K);
        assert_eq!(mix.type_of("blk.0.ffn_down_exps.weight", &[640, 2560, 8]), TensorType::Q4_0);
        assert_eq!(mix.type_of("per_layer_token_embd.weight", &[16, 100]), TensorType::F16);
        assert_eq!(mix.type_of("blk.0.ffn_gate_inp.weight", &[2560, 8]), TensorType::F32);
        assert_eq!(mix.type_of("output_hc_norm.weight", &[2560]), TensorType::F32);
    }
}
