//! From graphs to a plan: placement, fusion, order, memory, schedule and machine code.
//!
//! [`compile`] calls every pass in order. Passes rewrite graphs first; then side tables are made;
//! then rows of the plan. This crate knows no model by name and opens no file.

mod compute_lifetimes;
mod config;
mod dump;
mod emit_commit;
mod emit_schedule;
mod error;
pub mod fuse;
mod generate_code;
mod input;
mod load_weights;
mod mark_outputs;
mod order_nodes;
mod pack_arena;
mod pipeline;
mod place_experts;
mod quantize_activations;
mod report;
mod resolve_weights;
mod select_kernels;
mod split_experts;
mod states;
mod write_plan;

pub use compute_lifetimes::{Groups, Lifetime, Lifetimes, compute_lifetimes, group_nodes};
pub use config::{
    Config, CpuDevice, DeviceConfig, KvConfig, KvElement, SequencesConfig, TargetName, TierPolicy,
    WindowsConfig,
};
pub use error::{BudgetShortfall, LowerError, TensorFault};
pub use generate_code::{CodeJob, generate_code, serve_kernels};
pub use input::{CodeWorker, CompileInput, FileEntry, ModelFacts, TensorEntry, TensorFormat};
pub use mark_outputs::mark_outputs;
pub use order_nodes::order_nodes;
pub use pack_arena::{ARENA_ALIGN_BYTES, ArenaLayout, pack_arena, pack_spans};
pub use pipeline::{Compiled, PASSES, Watch, compile};
pub use place_experts::{Form, OtherBytes, Placement, Tier, WeightPlaces, place_experts};
pub use quantize_activations::quantize_activations;
pub use report::{Number, PassReport};
pub use resolve_weights::{Checkpoint, resolve_weights};
pub use select_kernels::{KernelChoice, Operand, select_kernels};
pub use split_experts::split_experts;
pub use states::{Paging, StateForm, StatePlace, StatePlaces, StepLayout, place_states};
