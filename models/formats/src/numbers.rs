//! Widening of 16-bit floats. Both directions of the format are exact, so there is one right answer.

/// IEEE 754 binary16 to binary32. Exact; infinities and NaN payloads are kept.
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let exponent = u32::from(bits >> 10) & 0x1f;
    let mantissa = u32::from(bits & 0x3ff);
    let magnitude = match (exponent, mantissa) {
        (0, 0) => 0,
        (0, _) => subnormal(mantissa),
        (0x1f, _) => 0x7f80_0000 | mantissa << 13,
        _ => (exponent + 127 - 15) << 23 | mantissa << 13,
    };
    f32::from_bits(sign | magnitude)
}

/// `mantissa * 2^-24` for a mantissa of 1 to 1023: the highest set bit becomes the implicit one.
fn subnormal(mantissa: u32) -> u32 {
    let top = 31 - mantissa.leading_zeros();
    let exponent = 127 - 24 + top;
    let rest = mantissa ^ (1 << top);
    exponent << 23 | rest << (23 - top)
}

/// bfloat16 to binary32: the upper half of the same bits.
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

#[cfg(test)]
mod tests {
    use super::{bf16_to_f32, f16_to_f32};

    /// The definition in powers of two, for every bit pattern.
    #[test]
    fn f16_follows_its_definition() {
        for bits in 0..=u16::MAX {
            let sign = if bits >> 15 == 1 { -1.0f64 } else { 1.0 };
            let exponent = i32::from(bits >> 10 & 0x1f);
            let mantissa = f64::from(bits & 0x3ff);
            let found = f16_to_f32(bits);
            let right = match exponent {
                0 => sign * mantissa * 2f64.powi(-24),
                31 if mantissa == 0.0 => sign * f64::INFINITY,
                31 => {
                    assert!(found.is_nan(), "{bits:#06x}");
                    continue;
                }
                _ => sign * (1.0 + mantissa / 1024.0) * 2f64.powi(exponent - 15),
            };
            assert_eq!(f64::from(found).to_bits(), right.to_bits(), "{bits:#06x}");
        }
    }

    #[test]
    fn bf16_keeps_the_bits() {
        assert_eq!(bf16_to_f32(0x3f80), 1.0);
        assert_eq!(bf16_to_f32(0xc000), -2.0);
        assert!(bf16_to_f32(0x7fc1).is_nan());
        assert_eq!(bf16_to_f32(0xff80), f32::NEG_INFINITY);
    }
}
