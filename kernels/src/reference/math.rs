//! Elementary functions as explicit sequences of f32 steps.
//!
//! | function | largest error against f64 | domain of the claim |
//! |---|---|---|
//! | [`exp`] | 1.0 ulp | -87.33 to 88.72; smaller gives 0, larger infinity |
//! | [`sigmoid`] | 2.5 ulp | -87 to 88 |
//! | [`silu`] | 3 ulp | -87 to 88 |
//! | [`gelu_tanh`] | 2e-6 of `max(abs(x), 1)` | all |
//! | [`log1p`] | 2 ulp | 0 to 5e8 |
//! | [`softplus`] | 4 ulp | -80 to 88 |
//! | [`sin`], [`cos`] | 1.3e-7 absolute | -262144 to 262144 |
//!
//! NaN gives NaN. Coefficients are minimax fits of our own (Remez exchange in 40 digits, rounded
//! to f32). No step may be reordered or contracted: kernels repeat them one by one.

/// 1.5 * 2^23: adding it rounds to the nearest integer (ties to even) and leaves that integer in
/// the low mantissa bits. Exact for magnitudes below 2^22.
pub const ROUND: f32 = 12_582_912.0;
pub const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts; the first product is exact inside an fma for every n that occurs.
pub const LN_2: [f32; 2] = [std::f32::consts::LN_2, -1.904_654_2e-9];
/// Below this the result would be subnormal; it is defined as 0.
pub const EXP_MIN: f32 = -87.336_54;
/// Above this the result is not finite.
pub const EXP_MAX: f32 = 88.722_83;
/// e^r = 1 + r + r^2 * q(r) for |r| <= ln(2) / 2, highest power first.
pub const EXP_Q: [f32; 5] =
    [0.001_381_446_7, 0.008_368_781, 0.041_668_393, 0.166_665_2, 0.499_999_94];

pub const TWO_OVER_PI: f32 = std::f32::consts::FRAC_2_PI;
/// pi / 2 in three parts.
pub const PI_OVER_2: [f32; 3] = [std::f32::consts::FRAC_PI_2, -4.371_139e-8, -1.715_124_5e-15];
/// sin r = r + r^3 * s(r^2) for |r| <= pi / 4, highest power first.
pub const SIN_S: [f32; 3] = [-1.951_665_6e-4, 8.332_173e-3, -0.166_666_55];
/// cos r = 1 - r^2 / 2 + r^4 * c(r^2) for |r| <= pi / 4, highest power first.
pub const COS_C: [f32; 3] = [2.443_773e-5, -1.388_736_2e-3, 0.041_666_646];

/// ln(1 + f) = f - f^2 / 2 + f^3 * p(f) for sqrt(1/2) <= 1 + f < sqrt(2), highest power first.
pub const LOG_P: [f32; 9] = [
    0.067_466_49,
    -0.116_756_536,
    0.118_881_59,
    -0.124_055_885,
    0.142_195_52,
    -0.166_679_96,
    0.200_021_19,
    -0.250_000_1,
    0.333_333_13,
];
/// Bits of sqrt(1/2): mantissas are cut here, so that 1 + f lies around 1.
pub const SQRT_HALF_BITS: u32 = 0x3f35_04f3;

/// sqrt(8 / pi): twice the inner factor of the tanh form of GELU.
pub const GELU_SCALE: f32 = 1.595_769_2;
pub const GELU_CUBIC: f32 = 0.044_715;
/// Above this softplus(x) equals x in f32.
pub const SOFTPLUS_LINEAR: f32 = 20.0;

/// e^x.
pub fn exp(x: f32) -> f32 {
    let shifted = x.mul_add(LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = (-n).mul_add(LN_2[0], x);
    let r = (-n).mul_add(LN_2[1], r);
    let mut q = EXP_Q[0];
    for c in &EXP_Q[1..] {
        q = q.mul_add(r, *c);
    }
    let p = (r * r).mul_add(q, r) + 1.0;
    // The low nine bits of `shifted` are n; they join the exponent of p, which stays normal.
    let scaled = f32::from_bits(p.to_bits().wrapping_add(shifted.to_bits() << 23));
    let y = if x > EXP_MAX { f32::INFINITY } else { scaled };
    let y = if x < EXP_MIN { 0.0 } else { y };
    if x.is_nan() { x } else { y }
}

/// 1 / (1 + e^-x).
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// x * sigmoid(x).
pub fn silu(x: f32) -> f32 {
    x * sigmoid(x)
}

/// x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), as x * sigmoid of twice the argument.
pub fn gelu_tanh(x: f32) -> f32 {
    let cubic = (x * x).mul_add(GELU_CUBIC, 1.0);
    x * sigmoid((x * GELU_SCALE) * cubic)
}

/// ln(1 + y) for y >= 0.
pub fn log1p(y: f32) -> f32 {
    let u = 1.0 + y;
    // What the sum lost, exact in both orders of magnitude; joined as a relative correction.
    let lost = if y > 1.0 { 1.0 - (u - y) } else { y - (u - 1.0) };
    let correction = lost / u;
    let offset = u.to_bits().wrapping_sub(SQRT_HALF_BITS);
    let exponent = ((offset as i32) >> 23) as f32;
    let f = f32::from_bits((offset & 0x007f_ffff).wrapping_add(SQRT_HALF_BITS)) - 1.0;
    let mut p = LOG_P[0];
    for c in &LOG_P[1..] {
        p = p.mul_add(f, *c);
    }
    let square = f * f;
    let tail = (square * f).mul_add(p, exponent.mul_add(LN_2[1], correction));
    let near = square.mul_add(-0.5, tail);
    let y = exponent.mul_add(LN_2[0], f + near);
    if u < f32::INFINITY { y } else { u }
}

/// ln(1 + e^x); x itself above 20.
pub fn softplus(x: f32) -> f32 {
    let y = log1p(exp(x));
    if x > SOFTPLUS_LINEAR { x } else { y }
}

/// The two kernels of the quadrant and the quadrant's number in the low two bits.
fn reduced(x: f32) -> (f32, f32, u32) {
    let shifted = x.mul_add(TWO_OVER_PI, ROUND);
    let n = shifted - ROUND;
    let r = (-n).mul_add(PI_OVER_2[0], x);
    let r = (-n).mul_add(PI_OVER_2[1], r);
    let r = (-n).mul_add(PI_OVER_2[2], r);
    let z = r * r;
    let s = SIN_S[0].mul_add(z, SIN_S[1]).mul_add(z, SIN_S[2]);
    let sin = (z * r).mul_add(s, r);
    let c = COS_C[0].mul_add(z, COS_C[1]).mul_add(z, COS_C[2]);
    let cos = (z * z).mul_add(c, z.mul_add(-0.5, 1.0));
    (sin, cos, shifted.to_bits())
}

/// `even` or `odd` by the quadrant's bit 0, negated by bit 1 of `sign`.
fn quadrant_value(even: f32, odd: f32, quadrant: u32, sign: u32) -> f32 {
    let magnitude = if quadrant & 1 == 0 { even } else { odd };
    f32::from_bits(magnitude.to_bits() ^ ((sign & 2) << 30))
}

/// sin x, x in radians.
pub fn sin(x: f32) -> f32 {
    let (sin, cos, quadrant) = reduced(x);
    quadrant_value(sin, cos, quadrant, quadrant)
}

/// cos x, x in radians.
pub fn cos(x: f32) -> f32 {
    let (sin, cos, quadrant) = reduced(x);
    quadrant_value(cos, sin, quadrant, quadrant.wrapping_add(1))
}
