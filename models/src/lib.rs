//! Model definitions: what a model is, as RON, and the graph that it computes for one window.
//!
//! [`ModelDef`] is the schema of a `.ron` file. [`build`] turns it into a [`strata_graph::Graph`]
//! with block builders that all families share; [`import`] writes a definition from the metadata of
//! a checkpoint. A new member of a known family is a new `.ron` file and no Rust.

mod attention;
mod error;
mod graph;
mod head;
mod import;
mod limits;
mod mlp;
mod moe;
mod rope;
mod schema;
mod text;
mod weights;

pub use error::ModelError;
pub use graph::build;
pub use import::import;
pub use rope::inverse_frequencies;
pub use schema::{
    Act, Attention, Bias, Block, ChatTemplate, Gated, Gqa, Head, Layout, Mlp, ModelDef, Moe, Norm,
    Pairs, Rope, Scaling, TokenizerSource, Tokens, Weights,
};
pub use text::{open, parse, to_ron};
pub use weights::unused_tensors;
