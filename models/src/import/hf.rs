//! Definitions from a published checkpoint: `config.json` and the files beside it.

mod config;
mod hybrid;
mod tokens;

use std::path::Path;

use strata_formats::Checkpoint;

use self::config::Config;
use super::periods::runs;
use super::{FAMILIES, Family, check_layers, file_name, unknown_architecture};
use crate::error::ModelError;
use crate::schema::{
    Act, Attention, Bias, Block, Gated, Gqa, Head, Layout, Mlp, ModelDef, Moe, Norm, Pairs, Rope,
    Scaling, TokenizerSource, Weights,
};

const EMBEDDING: &str = "embed_tokens.weight";

pub(super) fn import(path: &Path, checkpoint: &Checkpoint) -> Result<ModelDef, ModelError> {
    let json = checkpoint.config_json().ok_or_else(|| ModelError::MissingKey {
        path: path.into(),
        key: "model_type".into(),
        need: "a config.json beside the safetensors",
    })?;
    // Models with a vision part describe their text part in a table of its own.
    let config = Config::new(path, json.get("text_config").unwrap_or(json));
    let found = config.need_text("model_type")?;
    let Some(family) = FAMILIES.iter().find(|family| family.hf.contains(&found)) else {
        let known: Vec<&str> = FAMILIES.iter().flat_map(|family| family.hf).copied().collect();
        return Err(unknown_architecture(path, found, &known));
    };
    let config = Config { defaults: family.hf_defaults, ..config };
    let model = Published { config, checkpoint, family, prefix: prefix(path, checkpoint)? };
    model.definition(json)
}

/// What stands before the embedding's name.
fn prefix(path: &Path, checkpoint: &Checkpoint) -> Result<String, ModelError> {
    let prefixes = checkpoint.tensors().filter_map(|tensor| tensor.name.strip_suffix(EMBEDDING));
    prefixes.min_by_key(|prefix| *prefix == "mtp.").map(str::to_owned).ok_or_else(|| {
        ModelError::MissingTensor {
            path: path.into(),
            tensor: EMBEDDING.into(),
            need: "an embedding table under some prefix",
        }
    })
}

/// A published model of a known family.
struct Published<'c> {
    config: Config<'c>,
    checkpoint: &'c Checkpoint,
    family: &'static Family,
    prefix: String,
}

impl Published<'_> {
    fn definition(&self, root: &serde_json::Value) -> Result<ModelDef, ModelError> {
        let config = &self.config;
        let hidden = config.need("hidden_size")?;
        let key = "num_hidden_layers";
        let layers = check_layers(config.path, key, config.need(key)?)?;
        let gemma = self.family.gemma.is_some();
        for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
            if let Some(found) = config.number(key)? {
                return Err(config.refused(key, found, "null: there is no soft capping here"));
            }
        }
        if config.flag("mlp_bias")? == Some(true) {
            return Err(config.refused("mlp_bias", true, "false"));
        }
        let blocks =
            (0..layers).map(|layer| self.block(layer)).collect::<Result<Vec<Block>, _>>()?;
        let eps = config.need_number("rms_norm_eps")? as f32;
        let (tokens, chat_template) = tokens::read(config, root)?;
        Ok(ModelDef {
            name: self.name(),
            hidden,
            vocab: config.need("vocab_size")?,
            context: config.need("max_position_embeddings")?,
            norm: Norm::RmsNorm { eps, zero_centred: gemma || self.family.hybrid.is_some() },
            embed_scale: if gemma { f64::from(hidden).sqrt() as f32 } else { 1.0 },
            residual: self.residual()?,
            layers,
            blocks: runs(&blocks),
            ngram: self.ngram()?,
            draft: self.draft(layers)?,
            head: self.head()?,
            weights: Weights {
                layout: self.layout(),
                prefix: self.prefix.clone(),
                renamed: Vec::new(),
                files: vec![file_name(config.path)?],
            },
            tokens,
            tokenizer: TokenizerSource::SameAsWeights,
            chat_template,
        })
    }

    /// The name of the folder.
    fn name(&self) -> String {
        let absolute = std::path::absolute(self.config.path).unwrap_or_default();
        let folder = if absolute.is_dir() { Some(absolute.as_path()) } else { absolute.parent() };
        let name = folder.and_then(Path::file_name);
        name.map_or("model".into(), |name| name.to_string_lossy().to_lowercase())
    }

    fn head(&self) -> Result<Head, ModelError> {
        let tied = self.config.flag("tie_word_embeddings")?.unwrap_or(false);
        let stored = self.checkpoint.tensor("lm_head.weight").is_some();
        Ok(if stored && !tied { Head::Untied } else { Head::Tied })
    }

    fn layout(&self) -> Layout {
        let fused = |layer: &strata_formats::TensorInfo| {
            layer.name.starts_with(&self.prefix)
                && layer.name.ends_with(".mlp.experts.gate_up_proj")
        };
        if self.checkpoint.tensors().any(fused) { Layout::HfFusedExperts } else { Layout::Hf }
    }

    fn block(&self, layer: u32) -> Result<Block, ModelError> {
        let attention = match self.family.hybrid {
            Some(hybrid) if self.is_recurrent(layer)? => Attention::GatedDelta(self.delta(hybrid)?),
            _ => Attention::Gqa(self.gqa(layer)?),
        };
        Ok(Block {
            repeat: 1,
            attention,
            post_norms: self.family.gemma.is_some(),
            mlp: self.mlp(layer)?,
        })
    }

    fn gqa(&self, layer: u32) -> Result<Gqa, ModelError> {
        let config = &self.config;
        let heads = config.need_narrow("num_attention_heads")?;
        if heads == 0 {
            return Err(config.refused("num_attention_heads", 0, "at least 1"));
        }
        let default_dim = config.need("hidden_size")? / u32::from(heads);
        let head_dim = config.narrow_or("head_dim", default_dim)?;
        let local = self.is_local(layer)?;
        let window = if local { Some(config.need("sliding_window")?) } else { None };
        let scale = match config.number("query_pre_attn_scalar")? {
            Some(scalar) if scalar != f64::from(head_dim) => Some((1.0 / scalar.sqrt()) as f32),
            _ => None,
        };
        let bias = match config.flag("attention_bias")? {
            Some(true) => Bias::All,
            _ => self.family.bias,
        };
        Ok(Gqa {
            heads,
            kv_heads: config.narrow_or("num_key_value_heads", heads.into())?,
            head_dim,
            qk_norm: self.family.qk_norm,
            bias,
            rope: self.rope(head_dim, local)?,
            gate: self.family.hybrid.is_some(),
            scale,
            window,
            indexer: self.indexer(layer)?,
        })
    }

    /// Whether the layer sees a window only: from `layer_types`, or from the older keys.
    fn is_local(&self, layer: u32) -> Result<bool, ModelError> {
        let config = &self.config;
        // The draft head's layer is in no list.
        if self.family.hybrid.is_some() {
            return Ok(false);
        }
        if let Some(types) = config.list("layer_types")? {
            return match types.get(layer as usize).and_then(|kind| kind.as_str()) {
                Some("full_attention") => Ok(false),
                Some("sliding_attention") => Ok(true),
                found => Err(config.refused(
                    &format!("layer_types[{layer}]"),
                    found.unwrap_or("absent"),
                    "full_attention or sliding_attention",
                )),
            };
        }
        let used = config.flag("use_sliding_window")?.unwrap_or(true);
        let Some(_) = config.optional("sliding_window")?.filter(|_| used) else {
            return Ok(false);
        };
        if let Some(gemma) = self.family.gemma {
            let pattern = config.optional("sliding_window_pattern")?.unwrap_or(gemma.pattern);
            if pattern == 0 {
                return Err(config.refused("sliding_window_pattern", 0, "at least 1"));
            }
            return Ok(!(layer + 1).is_multiple_of(pattern));
        }
        Ok(layer >= config.optional("max_window_layers")?.unwrap_or(0))
    }

    /// Rope from `rope_parameters`, by kind of layer or for all, or from the older keys.
    fn rope(&self, head_dim: u16, local: bool) -> Result<Rope, ModelError> {
        let config = &self.config;
        let kind = if local { "sliding_attention" } else { "full_attention" };
        let table = config.table("rope_parameters");
        let table = match table.as_ref().and_then(|table| table.table(kind)) {
            Some(of_kind) => Some(of_kind),
            None => table,
        };
        let (theta, scaling) = match (table, self.family.gemma) {
            (Some(table), _) => (table.number("rope_theta")?, scaling_of(&table)?),
            (None, Some(gemma)) if local => {
                let theta = config.number("rope_local_base_freq")?;
                (theta.or(Some(gemma.local_theta)), Scaling::None)
            }
            (None, _) => {
                let scaling = config.table("rope_scaling");
                let scaling = scaling.map_or(Ok(Scaling::None), |table| scaling_of(&table))?;
                (config.number("rope_theta")?, scaling)
            }
        };
        let key = "partial_rotary_factor";
        let partial = match config.table("rope_parameters").map(|table| table.number(key)) {
            Some(Ok(Some(partial))) => Some(partial),
            Some(Err(error)) => return Err(error),
            _ => config.number(key)?,
        };
        let dims = partial.map(|part| (f64::from(head_dim) * part) as u16);
        Ok(Rope {
            theta: theta.unwrap_or(10_000.0),
            dims: dims.filter(|&dims| dims != head_dim),
            pairing: Pairs::Halves,
            scaling,
        })
    }

    fn mlp(&self, layer: u32) -> Result<Mlp, ModelError> {
        let config = &self.config;
        let act = self.act()?;
        if !self.has_experts(layer)? {
            return Ok(Mlp::Gated(Gated { intermediate: config.need("intermediate_size")?, act }));
        }
        Ok(Mlp::Moe(Moe {
            experts: config.need_narrow("num_experts")?,
            top_k: config.need_narrow("num_experts_per_tok")?,
            intermediate: config.need("moe_intermediate_size")?,
            norm_top_k: config.flag("norm_topk_prob")?.unwrap_or(self.family.hybrid.is_some()),
            act,
            shared: self.shared()?,
        }))
    }

    fn has_experts(&self, layer: u32) -> Result<bool, ModelError> {
        let config = &self.config;
        if config.optional("num_experts")?.unwrap_or(0) == 0 {
            return Ok(false);
        }
        let step = config.optional("decoder_sparse_step")?.unwrap_or(1);
        let dense = config.list("mlp_only_layers")?.unwrap_or_default();
        let dense = dense.iter().any(|index| index.as_u64() == Some(layer.into()));
        Ok(!dense && step > 0 && (layer + 1).is_multiple_of(step))
    }

    fn act(&self) -> Result<Act, ModelError> {
        let config = &self.config;
        // Gemma keeps a second key, and the first is a leftover.
        let key = match config.text("hidden_activation")? {
            Some(_) => "hidden_activation",
            None => "hidden_act",
        };
        match config.text(key)? {
            None => Ok(self.family.act),
            Some("silu") => Ok(Act::Silu),
            Some("gelu_pytorch_tanh" | "gelu_new") => Ok(Act::Gelu),
            Some(found) => Err(config.refused(key, found, "silu or gelu_pytorch_tanh")),
        }
    }
}

/// A table of rope parameters: kind and factors.
fn scaling_of(table: &Config<'_>) -> Result<Scaling, ModelError> {
    let key = if table.text("rope_type")?.is_some() { "rope_type" } else { "type" };
    match table.text(key)? {
        None | Some("default") => Ok(Scaling::None),
        Some("linear") => Ok(Scaling::Linear { factor: table.need_number("factor")? }),
        Some("llama3") => Ok(Scaling::Llama3 {
            factor: table.need_number("factor")?,
            low: table.need_number("low_freq_factor")?,
            high: table.need_number("high_freq_factor")?,
            original_context: table.need("original_max_position_embeddings")?,
        }),
        Some(found) => Err(table.refused(key, found, "default, linear or llama3")),
    }
}
