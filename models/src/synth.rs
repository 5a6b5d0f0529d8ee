//! Made-up weight sets: a GGUF file that fits a definition, for measuring speed and for compiling
//! without the real weights.

mod blocks;
mod keys;
mod mix;
mod vocabulary;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use strata_formats::{GgufWriter, TensorType, WriteError};
use strata_graph::{TensorSlice, WeightDef, WeightSource, Window, WindowKind};

use crate::error::ModelError;
use crate::graph::build;
use crate::schema::{Hash, Layout, ModelDef};

pub use mix::{Mix, MixError};

/// A GGUF file in the making: metadata and tensors, the data still to be drawn.
pub struct Synthetic {
    writer: GgufWriter,
    tensors: Vec<Tensor>,
    bytes: u64,
}

/// A tensor of the file.
struct Tensor {
    ty: TensorType,
    bytes: u64,
    values: Values,
}

/// What a tensor is filled with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Values {
    /// About 0, with a standard deviation of about 0.02.
    Random,
    /// Gains of norms.
    Ones,
    /// Decay rates.
    MinusOnes,
}

/// `def` with `layers` layers and a table of n-grams of about `ngram_rows` rows, where given.
pub fn resize(def: &ModelDef, layers: Option<u32>, ngram_rows: Option<u32>) -> ModelDef {
    let mut def = def.clone();
    def.layers = layers.unwrap_or(def.layers);
    if let (Some(ngram), Some(rows)) = (&mut def.ngram, ngram_rows) {
        let base = (u64::from(rows) / u64::from(ngram.heads().max(1))).max(2);
        ngram.hash = Hash::Derived { base, seed: 1234 };
        let sizes = crate::hash_constants(ngram, def.vocab).sizes;
        let used = sizes.iter().sum::<u64>().next_multiple_of(128);
        ngram.table_rows = u32::try_from(used).unwrap_or(u32::MAX);
    }
    def
}

/// The file that `def` describes, with tensor types after `mix`.
///
/// # Errors
/// The definition does not build, is not one of GGUF files, or has a part that GGUF keys are not
/// known for here.
pub fn synthesize(def: &ModelDef, mix: &Mix) -> Result<Synthetic, ModelError> {
    if def.weights.layout != Layout::Gguf {
        return Err(ModelError::Field {
            field: "weights.layout".into(),
            found: format!("{:?}", def.weights.layout),
            need: "Gguf, to write a GGUF file".into(),
        });
    }
    let window = Window { kind: WindowKind::Verify, rows: 1, logit_rows: 1 };
    let graph = build(def, window)?;
    let mut shapes = BTreeMap::new();
    let mut order = Vec::new();
    for weight in graph.weights().values() {
        if let WeightSource::Named(slices) = &weight.source {
            for slice in slices {
                if !shapes.contains_key(&slice.tensor) {
                    order.push(slice.tensor.clone());
                }
                merge(shapes.entry(slice.tensor.clone()).or_default(), weight, slice);
            }
        }
    }
    let mut file = Synthetic { writer: GgufWriter::new(), tensors: Vec::new(), bytes: 0 };
    keys::write(def, &mut file.writer)?;
    vocabulary::write(def, &mut file.writer).map_err(ModelError::Write)?;
    for name in order {
        let dims: Vec<u64> = shapes[&name].iter().rev().copied().collect();
        let ty = mix.type_of(&name, &dims);
        let bytes = file.writer.declare(&name, ty, &dims).map_err(ModelError::Write)?;
        file.tensors.push(Tensor { ty, bytes, values: values_of(&name) });
        file.bytes += bytes;
    }
    Ok(file)
}

/// Widens the dimensions of a tensor, outermost first, by a weight that is a part of it.
fn merge(dims: &mut Vec<u64>, weight: &WeightDef, slice: &TensorSlice) {
    let mut found: Vec<u64> = weight.ty.dims().iter().map(|&dim| u64::from(dim)).collect();
    if let (Some((_, end)), [.., rows, _]) = (slice.rows, found.as_mut_slice()) {
        *rows = end.into();
    }
    // Converters store a matrix of one row as a vector.
    if let [1, _] = found[..] {
        found.remove(0);
    }
    if dims.is_empty() {
        *dims = found;
    } else {
        dims.iter_mut().zip(found).for_each(|(dim, other)| *dim = other.max(*dim));
    }
}

fn values_of(name: &str) -> Values {
    if name.ends_with("ssm_a") {
        Values::MinusOnes
    } else if name.contains("norm") {
        Values::Ones
    } else {
        Values::Random
    }
}

impl Synthetic {
    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn tensor_count(&self) -> usize {
        self.tensors.len()
    }

    /// Writes the file; `on_bytes` hears how many bytes of tensors were written each time. The same
    /// definition and mix give the same bytes.
    ///
    /// # Errors
    /// The file cannot be written; there is none then.
    pub fn write(&self, path: &Path, mut on_bytes: impl FnMut(u64)) -> Result<(), WriteError> {
        let mut pools = blocks::Pools::new();
        self.writer.write_file(path, |index, out| {
            let tensor = &self.tensors[index];
            fill(tensor, index, &mut pools, &mut |bytes| {
                out.write_all(bytes)?;
                on_bytes(bytes.len() as u64);
                Ok(())
            })
        })
    }

    /// Writes metadata and places only: the file has its full length and takes no room where the
    /// file system can leave holes. Its weights read as 0.
    ///
    /// # Errors
    /// As [`Synthetic::write`].
    pub fn write_headers(&self, path: &Path) -> Result<(), WriteError> {
        self.writer.write_sparse_file(path)
    }
}

fn fill(
    tensor: &Tensor,
    index: usize,
    pools: &mut blocks::Pools,
    out: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let pool = match tensor.values {
        Values::Random => pools.of(tensor.ty),
        Values::Ones => pools.constant(tensor.ty, 1.0),
        Values::MinusOnes => pools.constant(tensor.ty, -1.0),
    };
    // Tensors begin at different places of the pool, so that they are not alike.
    let blocks = pool.len() as u64 / tensor.ty.block_bytes();
    let mut at = (index as u64 * 7919 % blocks * tensor.ty.block_bytes()) as usize;
    let mut left = tensor.bytes;
    while left > 0 {
        let count = left.min((pool.len() - at) as u64) as usize;
        out(&pool[at..at + count])?;
        left -= count as u64;
        at = 0;
    }
    Ok(())
}
