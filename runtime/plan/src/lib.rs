//! The plan file: its layout, how it is opened and checked, and how it is printed. A leaf: compilers
//! write what this crate owns.

mod image;
pub mod layout;

pub use image::PlanImage;

/// FNV-1a 64 over `bytes`.
pub fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
