//! Inverse frequencies of rotary embedding.

use std::f64::consts::TAU;

use crate::schema::{Rope, Scaling};

/// Radians a position for each of the `dims / 2` pairs, computed in f64 and rounded once.
///
/// The unscaled value of pair `i` is `theta^(-2 i / dims)` (Su et al., RoFormer, section 3.2.2). The
/// `Llama3` scaling is the one published with Llama 3.1: with wavelength `w = 2 pi / f`, the blend
/// is `s = (original_context / w - low) / (high - low)`, held within 0 and 1, and the result
/// `(1 - s) f / factor + s f`.
pub fn inverse_frequencies(rope: &Rope, head_dim: u16) -> Vec<f32> {
    let dims = rope.dims.unwrap_or(head_dim);
    let plain = |pair: u16| rope.theta.powf(-2.0 * f64::from(pair) / f64::from(dims));
    (0..dims / 2).map(|pair| scaled(&rope.scaling, usize::from(pair), plain(pair)) as f32).collect()
}

fn scaled(scaling: &Scaling, pair: usize, frequency: f64) -> f64 {
    match scaling {
        Scaling::None => frequency,
        Scaling::Linear { factor } => frequency / factor,
        Scaling::Llama3 { factor, low, high, original_context } => {
            let turns = f64::from(*original_context) * frequency / TAU;
            let blend = ((turns - low) / (high - low)).clamp(0.0, 1.0);
            (1.0 - blend) * frequency / factor + blend * frequency
        }
        Scaling::Divisors(divisors) => frequency / f64::from(divisors[pair]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Pairs;

    fn rope(scaling: Scaling) -> Rope {
        Rope { theta: 500_000.0, dims: None, pairing: Pairs::Halves, scaling }
    }

    #[test]
    fn plain_frequencies_fall_from_one_geometrically() {
        let found = inverse_frequencies(&Rope { theta: 1e4, ..rope(Scaling::None) }, 8);
        assert_eq!(found, [1.0, 0.1, 0.01, 0.001]);
    }

    #[test]
    fn a_partial_rope_spreads_its_frequencies_over_the_turned_dimensions() {
        let partial = Rope { theta: 1e4, dims: Some(4), ..rope(Scaling::None) };
        assert_eq!(inverse_frequencies(&partial, 8), [1.0, 0.01]);
    }

    #[test]
    fn llama3_keeps_short_waves_divides_long_ones_and_blends_between() {
        let plain = inverse_frequencies(&rope(Scaling::None), 128);
        let scaling = Scaling::Llama3 { factor: 32.0, low: 1.0, high: 4.0, original_context: 8192 };
        let found = inverse_frequencies(&rope(scaling), 128);
        assert_eq!(found[0], plain[0]);
        assert_eq!(found[63], plain[63] / 32.0);
        let between = (0..64).filter(|&i| found[i] < plain[i] && found[i] > plain[i] / 32.0);
        assert!(between.count() >= 3);
    }

    #[test]
    fn divisors_divide_each_pair() {
        let found = inverse_frequencies(
            &Rope { theta: 1e4, ..rope(Scaling::Divisors(vec![1.0, 2.0, 4.0, 8.0])) },
            8,
        );
        assert_eq!(found, [1.0, 0.05, 0.0025, 0.000125]);
    }
}
