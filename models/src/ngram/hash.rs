//! The numbers of an n-gram hash, in whole numbers and exact.

use crate::schema::{Hash, HashConstants, Ngram};

/// What the state of the generator grows by at each step (Steele, Lea and Flood, Fast splittable
/// pseudorandom number generators, 2014).
pub(crate) const GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// One output of SplitMix64 from the state `x`.
pub(crate) fn splitmix64(x: u64) -> u64 {
    let x = x.wrapping_add(GAMMA);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

fn is_prime(n: u64) -> bool {
    n > 1 && (2..).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d))
}

/// The constants of `ngram` for a vocabulary of `vocab` tokens.
///
/// Multipliers are odd and below `2^63 / vocab`, so that a product with a token never overflows 63
/// bits. Sizes are consecutive primes, offsets their running sum.
pub fn hash_constants(ngram: &Ngram, vocab: u32) -> HashConstants {
    let (base, seed) = match &ngram.hash {
        Hash::Given(constants) => return constants.clone(),
        Hash::Derived { base, seed } => (*base, *seed),
    };
    let half = (i64::MAX as u64 / u64::from(vocab.max(1)) / 2).max(1);
    let multiplier = |i: u16| {
        let state = seed.wrapping_add(GAMMA.wrapping_mul(u64::from(i) + 1));
        2 * (splitmix64(state) % half) + 1
    };
    let sizes: Vec<u64> = (base..).filter(|&n| is_prime(n)).take(ngram.heads() as usize).collect();
    let offsets = sizes.iter().scan(0, |sum, &size| {
        let offset = *sum;
        *sum += size;
        Some(offset)
    });
    HashConstants {
        multipliers: (0..ngram.ngram_size).map(multiplier).collect(),
        offsets: offsets.collect(),
        sizes,
    }
}

/// As the op `ngram_rows` takes them: multipliers, sizes, offsets, then the token that n-grams do
/// not reach across.
pub(super) fn hash_weight(ngram: &Ngram, vocab: u32) -> Vec<u64> {
    let HashConstants { multipliers, sizes, offsets } = hash_constants(ngram, vocab);
    let eos = [u64::from(ngram.eos)];
    [&multipliers[..], &sizes, &offsets, &eos].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn released() -> Ngram {
        Ngram {
            layer: 1,
            width: 160,
            ngram_size: 3,
            heads_per_ngram: 8,
            taps: 4,
            eos: 248_044,
            hash: Hash::Derived { base: 20_000_000, seed: 1234 },
            table_rows: 320_001_536,
            table_tensors: 128,
        }
    }

    /// The first outputs of the published generator for the seed 1234567.
    #[test]
    fn splitmix64_gives_its_published_sequence() {
        let outputs =
            [0u64, 1, 2].map(|i| splitmix64(1_234_567u64.wrapping_add(GAMMA.wrapping_mul(i))));
        assert_eq!(
            outputs,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn the_released_constants_are_derived() {
        let constants = hash_constants(&released(), 248_320);
        assert_eq!(
            constants.multipliers,
            [23_703_573_157_769, 20_109_073_645_365, 8_052_911_324_071]
        );
        let ends = [3, 23, 33, 47, 59, 63, 69, 77, 81, 93, 107, 147, 153, 159, 161, 171];
        assert_eq!(constants.sizes, ends.map(|end| 20_000_000 + end));
        assert_eq!(constants.offsets[15], 300_001_275);
        let used: u64 = constants.sizes.iter().sum();
        assert_eq!(used, 320_001_446);
        assert_eq!(used.next_multiple_of(128), u64::from(released().table_rows));
    }

    #[test]
    fn the_weight_lists_all_numbers_in_order() {
        let weight = hash_weight(&released(), 248_320);
        assert_eq!(weight.len(), 3 + 2 * 16 + 1);
        assert_eq!((weight[0], weight[3], weight[19]), (23_703_573_157_769, 20_000_003, 0));
        assert_eq!(weight[35], 248_044);
    }

    #[test]
    fn given_constants_are_taken_as_they_are() {
        let given = HashConstants { multipliers: vec![3], sizes: vec![5], offsets: vec![7] };
        let ngram = Ngram { hash: Hash::Given(given.clone()), ..released() };
        assert_eq!(hash_constants(&ngram, 10), given);
    }
}
