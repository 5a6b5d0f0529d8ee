//! What the compiler is given: graphs, the tensors of the weight files, facts of the model and a
//! configuration. Whoever has files opens them; this crate sees numbers and names only.

use std::path::PathBuf;

use strata_graph::{DType, Graph};

use crate::config::Config;

/// All that a plan is made from.
#[derive(Debug)]
pub struct CompileInput<'a> {
    pub model: ModelFacts,
    /// One for each of [`Config::windows`], in that order: base ops, weights by name, and the same
    /// weights and states in each.
    pub graphs: Vec<Graph>,
    pub tensors: &'a [TensorEntry],
    pub files: &'a [FileEntry],
    pub config: &'a Config,
    /// Name of the file beside the plan for packed weights that do not fit RAM.
    pub pack_file: String,
    pub worker: CodeWorker,
}

/// What a plan says of its model beside the graphs.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelFacts {
    pub name: String,
    pub vocab: u32,
    pub hidden: u32,
    pub layers: u32,
    /// Positions that the model was made for.
    pub context_tokens: u32,
    pub bos: Option<u32>,
    /// The beginning-of-text token goes before every text.
    pub add_bos: bool,
    /// Tokens that end a text.
    pub stop_tokens: Vec<u32>,
    /// Row of [`CompileInput::files`] that holds the vocabulary.
    pub tokenizer_file: u32,
    pub chat_template: Option<String>,
    /// The model definition as text, kept in the plan.
    pub definition: String,
}

/// The element type of a tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TensorFormat {
    Known(DType),
    /// One that this compiler has no kernels for, by the file's name for it.
    Unknown(String),
}

/// A tensor of the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorEntry {
    pub name: String,
    pub format: TensorFormat,
    /// Outermost first.
    pub dims: Vec<u64>,
    /// Row of [`CompileInput::files`].
    pub file: u32,
    /// In the file.
    pub offset: u64,
    pub bytes: u64,
}

/// A file that the plan will read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEntry {
    /// As the plan will name it: relative to the plan, or absolute.
    pub path: String,
    pub bytes: u64,
    /// FNV-1a 64 of its header, 0 if it has none.
    pub header_hash: u64,
}

/// Who turns kernel specifications into machine code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CodeWorker {
    /// Threads of this process. An abort inside the code generator takes the process down.
    InProcess { threads: u32 },
    /// Child processes that run [`crate::serve_kernels`] over their standard streams.
    Process { exe: PathBuf, args: Vec<String>, processes: u32 },
}
