//! A plan as text, and its sums as plain numbers. Needs no device and no weight file.

mod schedule;
mod summary;
mod text;

pub use schedule::{schedule_name, write_schedule};
pub use summary::{
    ExpertBytes, KernelCode, SpaceBytes, StateBytes, Summary, TargetCode, WeightClass, WindowCost,
};
