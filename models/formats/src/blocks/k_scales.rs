//! The 12 bytes of Q4_K and Q5_K that hold eight 6-bit scales and eight 6-bit minimums.
//!
//! Bytes 0 to 3 hold scales 0 to 3, bytes 4 to 7 minimums 0 to 3, in their low six bits; their high
//! two bits are bits 4 and 5 of scale and minimum 4 to 7, whose low four bits are the low and the
//! high half of bytes 8 to 11.

/// Scale and minimum of the 32 elements of group `group`, 0 to 7.
pub fn scale_and_min(packed: &[u8], group: usize) -> (u8, u8) {
    if group < 4 {
        return (packed[group] & 0x3f, packed[group + 4] & 0x3f);
    }
    let low = packed[group + 4];
    let scale = low & 0x0f | packed[group - 4] >> 6 << 4;
    let min = low >> 4 | packed[group] >> 6 << 4;
    (scale, min)
}
