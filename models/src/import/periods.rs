//! From a list of layers to the shortest list of runs that describes it.

use crate::schema::Block;

/// The runs of the shortest period of `layers`, each of which has `repeat: 1`.
pub(super) fn runs(layers: &[Block]) -> Vec<Block> {
    let repeats = |period: usize| layers.iter().zip(&layers[period..]).all(|(a, b)| a == b);
    let period = (1..layers.len()).find(|&p| repeats(p)).unwrap_or(layers.len());
    if period == 1 {
        return layers
            .first()
            .map(|block| Block { repeat: count(layers.len()), ..block.clone() })
            .into_iter()
            .collect();
    }
    layers[..period]
        .chunk_by(|a, b| a == b)
        .map(|run| Block { repeat: count(run.len()), ..run[0].clone() })
        .collect()
}

fn count(layers: usize) -> u32 {
    u32::try_from(layers).expect("the number of layers is checked before")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{Act, Attention, Bias, Gated, Gqa, Mlp, Pairs, Rope, Scaling};

    /// One block for each character; equal characters give equal blocks.
    fn layers(pattern: &str) -> Vec<Block> {
        let rope = Rope { theta: 1e4, dims: None, pairing: Pairs::Halves, scaling: Scaling::None };
        pattern
            .chars()
            .map(|c| Block {
                repeat: 1,
                attention: Attention::Gqa(Gqa {
                    heads: 4,
                    kv_heads: 2,
                    head_dim: 32,
                    qk_norm: false,
                    bias: Bias::None,
                    rope: rope.clone(),
                    gate: false,
                    scale: None,
                    window: Some(u32::from(c)),
                    indexer: None,
                }),
                post_norms: false,
                mlp: Mlp::Gated(Gated { intermediate: 64, act: Act::Silu }),
            })
            .collect()
    }

    fn described(pattern: &str) -> String {
        runs(&layers(pattern))
            .iter()
            .map(|run| {
                let Attention::Gqa(gqa) = &run.attention else { panic!("made above") };
                let c = char::from_u32(gqa.window.unwrap()).unwrap();
                format!("{}{c}", run.repeat)
            })
            .collect()
    }

    #[test]
    fn equal_layers_are_one_run() {
        assert_eq!(described("aaaa"), "4a");
        assert_eq!(described("a"), "1a");
    }

    #[test]
    fn a_pattern_is_given_once_even_if_its_last_round_is_cut() {
        assert_eq!(described("aabaab"), "2a1b");
        assert_eq!(described("aaaaaba"), "5a1b");
    }

    #[test]
    fn an_odd_layer_gives_runs_without_a_period() {
        assert_eq!(described("baaa"), "1b3a");
        assert_eq!(described("aaab"), "3a1b");
    }
}
