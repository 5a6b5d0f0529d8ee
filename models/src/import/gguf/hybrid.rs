//! What GGUF files of hybrid models say beyond those of others. A group of keys that is absent means
//! that the model does without that part.

use strata_formats::Metadata;

use super::GgufFile;
use crate::error::ModelError;
use crate::import::{FULL_ATTENTION_INTERVAL, Hybrid, check_layers, narrow};
use crate::schema::{
    Draft, GatedDelta, Hash, HashConstants, HiddenNorm, Indexer, Layout, Mtp, Ngram, Residual,
    Shared,
};

const TABLE: &str = "per_layer_token_embd.weight";

impl GgufFile<'_> {
    /// Layers without those of the draft head, which files count as blocks.
    pub fn layers(&self) -> Result<u32, ModelError> {
        let blocks = self.need("block_count")?;
        let drafts = self.optional("nextn_predict_layers")?.unwrap_or(0);
        if drafts > 1 {
            return Err(self.refused("nextn_predict_layers", drafts, "at most 1"));
        }
        check_layers(self.path, &self.key("block_count"), blocks.saturating_sub(drafts))
    }

    pub fn layout(&self) -> Layout {
        let fused =
            |tensor: &strata_formats::TensorInfo| tensor.name.ends_with(".ffn_gate_up_exps.weight");
        if self.checkpoint.tensors().any(fused) { Layout::GgufFusedExperts } else { Layout::Gguf }
    }

    pub fn renamed(&self) -> Vec<(String, String)> {
        let pairs = self.family.hybrid.map_or(&[][..], |hybrid| hybrid.gguf_renamed);
        pairs.iter().map(|&(ours, theirs)| (ours.into(), theirs.into())).collect()
    }

    fn need_narrow(&self, key: &str) -> Result<u16, ModelError> {
        narrow(self.path, &self.key(key), self.need(key)?)
    }

    /// Whether a layer has the delta rule: from a list of flags, or from the interval of the others.
    /// The draft head never has it.
    pub fn is_recurrent(&self, layer: u32, layers: u32) -> Result<bool, ModelError> {
        if layer >= layers {
            return Ok(false);
        }
        let key = "attention.recurrent_layers";
        if let Some(flags) = self.of(self.metadata.bools(&self.key(key)))? {
            let found = format!("a list of {}", flags.len());
            let flag = flags.get(layer as usize).copied();
            return flag.ok_or_else(|| self.refused(key, found, "a flag for each layer"));
        }
        let key = "full_attention_interval";
        match self.optional(key)?.unwrap_or(FULL_ATTENTION_INTERVAL) {
            0 => Err(self.refused(key, 0, "at least 1")),
            interval => Ok(!(layer + 1).is_multiple_of(interval)),
        }
    }

    pub fn delta(&self, hybrid: Hybrid) -> Result<GatedDelta, ModelError> {
        let value_heads = self.need_narrow("ssm.time_step_rank")?;
        let head_dim = self.need_narrow("ssm.state_size")?;
        let width = u32::from(value_heads) * u32::from(head_dim);
        if let Some(found) = self.optional("ssm.inner_size")?.filter(|&found| found != width) {
            let need = format!("{width}, {value_heads} value heads of {head_dim}");
            return Err(self.refused("ssm.inner_size", found, need));
        }
        Ok(GatedDelta {
            key_heads: self.need_narrow("ssm.group_count")?,
            value_heads,
            head_dim,
            conv_taps: self.need_narrow("ssm.conv_kernel")?,
            gate: hybrid.gguf_gate,
            order: hybrid.gguf_order,
            projections: hybrid.projections,
        })
    }

    pub fn residual(&self) -> Result<Residual, ModelError> {
        match self.optional("hyper_connection.count")? {
            None => Ok(Residual::Plain),
            Some(_) => Ok(Residual::HyperConnections {
                streams: self.need_narrow("hyper_connection.count")?,
                low_rank: self.need("hyper_connection.low_rank")?,
            }),
        }
    }

    /// A layer's ratio is the size of its blocks, 0 if it attends to all positions. Converters write
    /// 0 for the draft head too, which has an indexer if its tensors are there.
    pub fn indexer(&self, layer: u32, layers: u32) -> Result<Option<Indexer>, ModelError> {
        let key = "attention.compress_ratios";
        let Some(ratios) = self.of(self.metadata.u32s(&self.key(key)))? else { return Ok(None) };
        let ratio = if layer < layers {
            ratios.get(layer as usize).copied()
        } else if self.has(layer, "indexer.k_proj.weight") {
            ratios.iter().copied().find(|&ratio| ratio > 0)
        } else {
            Some(0)
        };
        let found = || format!("a list of {}", ratios.len());
        let block = ratio.ok_or_else(|| self.refused(key, found(), "a number for each layer"))?;
        if block == 0 {
            return Ok(None);
        }
        Ok(Some(Indexer {
            heads: self.need_narrow("attention.indexer.head_count")?,
            head_dim: self.need_narrow("attention.indexer.key_length")?,
            budget_tokens: self.need("attention.indexer.top_k")?,
            block: narrow(self.path, &self.key(key), block)?,
        }))
    }

    pub fn shared(&self, layer: u32) -> Result<Option<Shared>, ModelError> {
        if !self.has(layer, "ffn_gate_shexp.weight") {
            return Ok(None);
        }
        let key = "expert_shared_feed_forward_length";
        let intermediate = match self.of_layer(key, layer)? {
            Some(width) => width,
            None => self.need("expert_feed_forward_length")?,
        };
        Ok(Some(Shared { intermediate, gate: self.has(layer, "ffn_gate_inp_shexp.weight") }))
    }

    pub fn ngram(&self) -> Result<Option<Ngram>, ModelError> {
        let list = |key: &str| self.of(self.metadata.required(&self.key(key), Metadata::u64s));
        let key = "ple.layers";
        let layers = self.of(self.metadata.u32s(&self.key(key)))?.unwrap_or_default();
        let layer = match layers.as_slice() {
            [] => return Ok(None),
            [layer] => *layer,
            more => return Err(self.refused(key, format!("{more:?}"), "at most one layer")),
        };
        let rows = self.checkpoint.tensor(TABLE).and_then(|table| table.dims.get(1).copied());
        let table_rows = rows.and_then(|rows| u32::try_from(rows).ok());
        Ok(Some(Ngram {
            layer,
            width: self.need("embedding_length_per_layer_input")?,
            ngram_size: self.need_narrow("ple.ngram_size")?,
            heads_per_ngram: self.need_narrow("ple.heads_per_ngram")?,
            taps: self.need_narrow("ple.conv_kernel")?,
            eos: self.need("ple.eos_token_id")?,
            hash: Hash::Given(HashConstants {
                multipliers: list("ple.layer_multipliers")?,
                sizes: list("ple.head_vocab_sizes")?,
                offsets: list("ple.head_offsets")?,
            }),
            table_rows: table_rows.ok_or_else(|| ModelError::MissingTensor {
                path: self.path.into(),
                tensor: TABLE.into(),
                need: "the table of n-grams, with fewer than 2^32 rows",
            })?,
            table_tensors: 1,
        }))
    }

    /// The draft head, unless its tensors were left out.
    pub fn draft(&self, layers: u32) -> Result<Option<Draft>, ModelError> {
        if self.need("block_count")? == layers || !self.has(layers, "nextn.eh_proj.weight") {
            return Ok(None);
        }
        let block = Box::new(self.block(layers, layers)?);
        Ok(Some(Draft::Mtp(Mtp { hidden_norm: HiddenNorm::Full, block })))
    }
}
