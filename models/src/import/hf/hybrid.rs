//! What configurations of hybrid models say beyond those of others.

use super::Published;
use crate::error::ModelError;
use crate::import::{FULL_ATTENTION_INTERVAL, Hybrid};
use crate::limits;
use crate::ngram::hash_constants;
use crate::schema::{
    Draft, GatedDelta, Hash, HiddenNorm, Indexer, Mtp, Ngram, OutputGate, Residual, Shared,
    ValueHeads,
};

impl Published<'_> {
    /// Whether a layer has the delta rule: from `layer_types`, or from the interval of the others.
    /// The draft head's layer is none.
    pub fn is_recurrent(&self, layer: u32) -> Result<bool, ModelError> {
        let config = &self.config;
        if layer >= config.need("num_hidden_layers")? {
            return Ok(false);
        }
        if let Some(types) = config.list("layer_types")? {
            return match types.get(layer as usize).and_then(|kind| kind.as_str()) {
                Some("linear_attention") => Ok(true),
                Some("full_attention" | "indexed_attention") => Ok(false),
                found => Err(config.refused(
                    &format!("layer_types[{layer}]"),
                    found.unwrap_or("absent"),
                    "linear_attention, full_attention or indexed_attention",
                )),
            };
        }
        let key = "full_attention_interval";
        match config.optional(key)?.unwrap_or(FULL_ATTENTION_INTERVAL) {
            0 => Err(config.refused(key, 0, "at least 1")),
            interval => Ok(!(layer + 1).is_multiple_of(interval)),
        }
    }

    pub fn delta(&self, hybrid: Hybrid) -> Result<GatedDelta, ModelError> {
        let config = &self.config;
        let head_dim = config.need_narrow("linear_key_head_dim")?;
        let values = config.need_narrow("linear_value_head_dim")?;
        if values != head_dim {
            let need = format!("{head_dim}, as linear_key_head_dim");
            return Err(config.refused("linear_value_head_dim", values, &need));
        }
        let key = match config.text("output_gate_type")? {
            Some(_) => "output_gate_type",
            None => "hidden_act",
        };
        let gate = match config.text(key)? {
            Some("sigmoid") => OutputGate::Sigmoid,
            None | Some("silu" | "swish") => OutputGate::Silu,
            Some(found) => return Err(config.refused(key, found, "sigmoid, silu or swish")),
        };
        Ok(GatedDelta {
            key_heads: config.need_narrow("linear_num_key_heads")?,
            value_heads: config.need_narrow("linear_num_value_heads")?,
            head_dim,
            conv_taps: config.need_narrow("linear_conv_kernel_dim")?,
            gate,
            order: ValueHeads::Grouped,
            projections: hybrid.projections,
        })
    }

    pub fn residual(&self) -> Result<Residual, ModelError> {
        match self.config.optional("hc_count")? {
            None => Ok(Residual::Plain),
            Some(_) => Ok(Residual::HyperConnections {
                streams: self.config.need_narrow("hc_count")?,
                low_rank: self.config.need("hc_lowrank")?,
            }),
        }
    }

    /// Of the draft head, whose indexer some files lack, only if its tensors are there.
    pub fn indexer(&self, layer: u32) -> Result<Option<Indexer>, ModelError> {
        let config = &self.config;
        let none = config.optional("indexer_n_heads")?.is_none();
        let draft = layer >= config.need("num_hidden_layers")?;
        let tensor = "mtp.layers.0.self_attn.indexer.index_qk_proj.weight";
        if none || draft && self.checkpoint.tensor(tensor).is_none() {
            return Ok(None);
        }
        if let Some(found) = config.optional("indexer_kv_heads")?.filter(|&heads| heads != 1) {
            return Err(config.refused("indexer_kv_heads", found, "1"));
        }
        Ok(Some(Indexer {
            heads: config.need_narrow("indexer_n_heads")?,
            head_dim: config.need_narrow("indexer_head_dim")?,
            budget_tokens: config.need("indexer_budget")?,
            block: config.need_narrow("indexer_compress_ratio")?,
        }))
    }

    pub fn shared(&self) -> Result<Option<Shared>, ModelError> {
        let key = "shared_expert_intermediate_size";
        let width = self.config.optional(key)?.filter(|&width| width > 0);
        Ok(width.map(|intermediate| Shared { intermediate, gate: true }))
    }

    pub fn ngram(&self) -> Result<Option<Ngram>, ModelError> {
        let config = &self.config;
        let key = "ple_layer_ids";
        let layer = match config.ids(key)?.unwrap_or_default().as_slice() {
            [] => return Ok(None),
            // The ids count from 1.
            [id] if *id > 0 => id - 1,
            other => {
                let need = "at most one layer, from 1 on";
                return Err(config.refused(key, format!("{other:?}"), need));
            }
        };
        let key = "eos_token_id";
        let eos = config.ids(key)?.and_then(|ids| ids.first().copied());
        let mut ngram = Ngram {
            layer,
            width: 0,
            ngram_size: config.need_narrow("ngram_size")?,
            heads_per_ngram: config.need_narrow("heads_per_ngram")?,
            taps: config.need_narrow("ple_conv_kernel_size")?,
            eos: eos.ok_or_else(|| config.refused(key, "absent", "the end of a text"))?,
            hash: Hash::Derived {
                base: config.need("ngram_vocab_size_base")?.into(),
                seed: config.need("seed")?.into(),
            },
            table_rows: 0,
            table_tensors: config.need("split_ngram_parts")?,
        };
        let width = config.need("ple_embed_dim")?;
        limits::check_ngram_heads(&ngram)?;
        let heads = ngram.heads();
        if !width.is_multiple_of(heads) {
            let need = format!("a multiple of {heads}, the rows that a token looks up");
            return Err(config.refused("ple_embed_dim", width, &need));
        }
        ngram.width = width / heads;
        ngram.table_rows = self.table_rows(&ngram)?;
        Ok(Some(ngram))
    }

    /// The rows that hashes give, filled up to whole parts.
    fn table_rows(&self, ngram: &Ngram) -> Result<u32, ModelError> {
        let config = &self.config;
        let key = "make_ngram_vocab_size_divisible_by";
        let of = u64::from(config.need(key)?);
        if of == 0 {
            return Err(config.refused(key, 0, "at least 1"));
        }
        let used: u64 = hash_constants(ngram, config.need("vocab_size")?).sizes.iter().sum();
        let rows = used.checked_next_multiple_of(of).and_then(|rows| u32::try_from(rows).ok());
        rows.ok_or_else(|| config.refused(key, of, "a table of fewer than 2^32 rows"))
    }

    /// The draft head, unless its tensors were left out.
    pub fn draft(&self, layers: u32) -> Result<Option<Draft>, ModelError> {
        let config = &self.config;
        let key = "mtp_num_hidden_layers";
        match config.optional(key)?.unwrap_or(0) {
            0 => return Ok(None),
            1 => {}
            found => return Err(config.refused(key, found, "at most 1")),
        }
        if self.checkpoint.tensor("mtp.fc_embedding.weight").is_none() {
            return Ok(None);
        }
        if config.flag("mtp_use_dedicated_embeddings")? == Some(true) {
            return Err(config.refused("mtp_use_dedicated_embeddings", true, "false"));
        }
        let block = Box::new(self.block(layers)?);
        Ok(Some(Draft::Mtp(Mtp { hidden_norm: HiddenNorm::Full, block })))
    }
}
