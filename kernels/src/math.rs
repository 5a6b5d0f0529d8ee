//! Builder forms of [`crate::reference::math`]: the same steps for any number of lanes.

use crate::builder::{Compare, Elem, KernelBuilder, Val};
use crate::reference::math as scalar;

/// Horner's rule: the first coefficient belongs to the highest power.
fn polynomial<'c>(b: &KernelBuilder<'c>, x: Val<'c>, coefficients: &[f32]) -> Val<'c> {
    let mut sum = b.f32(coefficients[0]);
    for &c in &coefficients[1..] {
        sum = b.fma(sum, x, b.f32(c));
    }
    sum
}

fn bits<'c>(b: &KernelBuilder<'c>, x: Val<'c>) -> Val<'c> {
    b.bitcast(x, x.ty().with(Elem::I32))
}

fn float<'c>(b: &KernelBuilder<'c>, x: Val<'c>) -> Val<'c> {
    b.bitcast(x, x.ty().with(Elem::F32))
}

/// e^x.
pub fn exp<'c>(b: &KernelBuilder<'c>, x: Val<'c>) -> Val<'c> {
    let y = exp_of_ordered(b, x);
    let y = b.select(b.fcmp(Compare::Gt, x, b.f32(scalar::EXP_MAX)), b.f32(f32::INFINITY), y);
    b.select(b.fcmp(Compare::Ne, x, x), x, y)
}

/// e^x for x <= 0 or x = -infinity: [`exp`] without the checks that cannot apply.
///
/// A NaN gives some number, so this is for callers that accept that a poisoned row is garbage.
pub fn exp_of_ordered<'c>(b: &KernelBuilder<'c>, x: Val<'c>) -> Val<'c> {
    let shifted = b.fma(x, b.f32(scalar::LOG2_E), b.f32(scalar::ROUND));
    let n = b.fneg(b.fsub(shifted, b.f32(scalar::ROUND)));
    let r = b.fma(n, b.f32(scalar::LN_2[0]), x);
    let r = b.fma(n, b.f32(scalar::LN_2[1]), r);
    let q = polynomial(b, r, &scalar::EXP_Q);
    let p = b.fadd(b.fma(b.fmul(r, r), q, r), b.f32(1.0));
    let exponent = b.shl(bits(b, shifted), b.i32(23));
    let y = float(b, b.add(bits(b, p), exponent));
    b.select(b.fcmp(Compare::Lt, x, b.f32(scalar::EXP_MIN)), b.f32(0.0), y)
}

/// 1 / (1 + e^-x).
pub fn sigmoid<'c>(b: &KernelBuilder<'c>, x: Val<'c>) -> Val<'c> {
    b.fdiv(b.f32(1.0), b.fadd(b.f32(1.0), exp(b, b.fneg(x))))
}

/// x * sigmoid(x).
pub fn silu<'c>(b: &KernelBuilder<'c>, x: Val<'c>) -> Val<'c> {
    b.fmul(x, sigmoid(b, x))
}

/// GELU in its tanh form.
pub fn gelu_tanh<'c>(b: &KernelBuilder<'c>, x: Val<'c>) -> Val<'c> {
    let cubic = b.fma(b.fmul(x, x), b.f32(scalar::GELU_CUBIC), b.f32(1.0));
    let inner = b.fmul(b.fmul(x, b.f32(scalar::GELU_SCALE)), cubic);
    b.fmul(x, sigmoid(b, inner))
}

/// ln(1 + y) for y >= 0.
pub fn log1p<'c>(b: &KernelBuilder<'c>, y: Val<'c>) -> Val<'c> {
    let one = b.f32(1.0);
    let u = b.fadd(one, y);
    let large = b.fsub(one, b.fsub(u, y));
    let small = b.fsub(y, b.fsub(u, one));
    let lost = b.select(b.fcmp(Compare::Gt, y, one), large, small);
    let correction = b.fdiv(lost, u);
    let cut = b.int(Elem::I32, i64::from(scalar::SQRT_HALF_BITS));
    let offset = b.sub(bits(b, u), cut);
    let exponent = b.int_to_float(b.sar(offset, b.i32(23)), Elem::F32);
    let mantissa = b.add(b.and(offset, b.i32(0x007f_ffff)), cut);
    let f = b.fsub(float(b, mantissa), one);
    let p = polynomial(b, f, &scalar::LOG_P);
    let square = b.fmul(f, f);
    let low = b.fma(exponent, b.f32(scalar::LN_2[1]), correction);
    let tail = b.fma(b.fmul(square, f), p, low);
    let near = b.fma(square, b.f32(-0.5), tail);
    let y = b.fma(exponent, b.f32(scalar::LN_2[0]), b.fadd(f, near));
    b.select(b.fcmp(Compare::Lt, u, b.f32(f32::INFINITY)), y, u)
}

/// ln(1 + e^x); x itself above 20.
pub fn softplus<'c>(b: &KernelBuilder<'c>, x: Val<'c>) -> Val<'c> {
    let y = log1p(b, exp(b, x));
    b.select(b.fcmp(Compare::Gt, x, b.f32(scalar::SOFTPLUS_LINEAR)), x, y)
}

/// sin and cos of x in radians, which share their reduction.
pub fn sin_cos<'c>(b: &KernelBuilder<'c>, x: Val<'c>) -> (Val<'c>, Val<'c>) {
    let shifted = b.fma(x, b.f32(scalar::TWO_OVER_PI), b.f32(scalar::ROUND));
    let n = b.fneg(b.fsub(shifted, b.f32(scalar::ROUND)));
    let r = b.fma(n, b.f32(scalar::PI_OVER_2[0]), x);
    let r = b.fma(n, b.f32(scalar::PI_OVER_2[1]), r);
    let r = b.fma(n, b.f32(scalar::PI_OVER_2[2]), r);
    let z = b.fmul(r, r);
    let sin = b.fma(b.fmul(z, r), polynomial(b, z, &scalar::SIN_S), r);
    let flat = b.fma(z, b.f32(-0.5), b.f32(1.0));
    let cos = b.fma(b.fmul(z, z), polynomial(b, z, &scalar::COS_C), flat);
    let quadrant = bits(b, shifted);
    let is_even = b.icmp(Compare::Eq, b.and(quadrant, b.i32(1)), b.i32(0));
    let signed = |value: Val<'c>, sign: Val<'c>| {
        let sign = b.shl(b.and(sign, b.i32(2)), b.i32(30));
        float(b, b.xor(bits(b, value), sign))
    };
    let sine = signed(b.select(is_even, sin, cos), quadrant);
    let cosine = signed(b.select(is_even, cos, sin), b.add(quadrant, b.i32(1)));
    (sine, cosine)
}
