//! Model definitions: what a model is, as RON, and the graph that it computes for one window.
//!
//! [`ModelDef`] is the schema of a `.ron` file. [`build`] turns it into a [`strata_graph::Graph`]
//! with block builders that all families share; [`import`] writes a definition from the metadata of
//! a checkpoint. A new member of a known family is a new `.ron` file and no Rust.

mod attention;
mod builder;
mod error;
mod gated_delta;
mod graph;
mod head;
mod hyper_connection;
mod import;
mod limits;
mod mlp;
mod moe;
mod mtp;
mod ngram;
mod qsa;
mod rope;
mod schema;
mod synth;
mod text;
mod weights;

pub use error::ModelError;
pub use graph::build;
pub use import::import;
pub use ngram::hash_constants;
pub use rope::inverse_frequencies;
pub use schema::{
    Act, Attention, Bias, Block, ChatTemplate, Draft, Gated, GatedDelta, Gqa, Hash, HashConstants,
    Head, HiddenNorm, Indexer, Layout, Mlp, ModelDef, Moe, Mtp, Ngram, Norm, OutputGate, Pairs,
    Projections, Residual, Rope, Scaling, Shared, TokenizerSource, Tokens, ValueHeads, Weights,
};
pub use synth::{Mix, MixError, Synthetic, resize, synthesize};
pub use text::{open, parse, to_ron};
pub use weights::unused_tensors;
