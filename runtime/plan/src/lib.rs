//! The plan file: its layout, how it is opened and checked, and how it is printed. A leaf: compilers
//! write what this crate owns.

mod check;
pub mod dump;
mod error;
mod image;
pub mod layout;
mod open;
mod trust;
mod write;

pub use error::{At, PlanError, Relation};
pub use image::PlanImage;
pub use open::Plan;
pub use trust::Distrust;
pub use write::write_plan_file;

/// FNV-1a 64 over `bytes`.
pub fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
