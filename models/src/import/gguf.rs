//! Definitions from the metadata of a GGUF file.

mod hybrid;

use std::path::Path;

use strata_formats::{Checkpoint, KeyError, Metadata, TensorType, decode};

use super::periods::runs;
use super::{FAMILIES, Family, file_name, narrow, unknown_architecture};
use crate::error::ModelError;
use crate::schema::{
    Attention, Bias, Block, ChatTemplate, Gated, Gqa, Head, Mlp, ModelDef, Moe, Norm, Rope,
    Scaling, TokenizerSource, Tokens, Weights,
};

/// Texts that end a turn or a text in some model; a file may name only one of its own.
const END_TEXTS: &[&str] = &[
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<end_of_turn>",
];

/// Layers of the one Gemma 3 (27B) whose queries are scaled by `(hidden / heads)^-0.5`.
const GEMMA_27B_LAYERS: u32 = 62;

pub(super) fn import(path: &Path, checkpoint: &Checkpoint) -> Result<ModelDef, ModelError> {
    let metadata = checkpoint.metadata().expect("a GGUF checkpoint has metadata");
    let arch = metadata.required("general.architecture", Metadata::str);
    let arch = arch.map_err(|error| ModelError::Metadata { path: path.into(), error })?;
    let Some(family) = FAMILIES.iter().find(|family| family.gguf == arch) else {
        let known: Vec<&str> = FAMILIES.iter().map(|family| family.gguf).collect();
        return Err(unknown_architecture(path, arch, &known));
    };
    let file = GgufFile { path, checkpoint, metadata, family };
    let hidden = file.need("embedding_length")?;
    let layers = file.layers()?;
    let eps = file.of(metadata.required(&file.key("attention.layer_norm_rms_epsilon"), f32_of))?;
    let untied = checkpoint.tensor("output.weight").is_some();
    let embed_scale = if family.gemma.is_some() { f64::from(hidden).sqrt() as f32 } else { 1.0 };
    let blocks =
        (0..layers).map(|layer| file.block(layer, layers)).collect::<Result<Vec<_>, _>>()?;
    let template = file.of(metadata.str("tokenizer.chat_template"))?;
    Ok(ModelDef {
        name: name_of(path),
        hidden,
        vocab: file.vocab()?,
        context: file.need("context_length")?,
        norm: Norm::RmsNorm { eps, zero_centred: false },
        embed_scale,
        residual: file.residual()?,
        layers,
        blocks: runs(&blocks),
        ngram: file.ngram()?,
        draft: file.draft(layers)?,
        head: if untied { Head::Untied } else { Head::Tied },
        weights: Weights {
            layout: file.layout(),
            prefix: "model.".into(),
            renamed: file.renamed(),
            files: vec![file_name(path)?],
        },
        tokens: file.tokens()?,
        tokenizer: TokenizerSource::SameAsWeights,
        chat_template: template.map_or(ChatTemplate::None, |_| ChatTemplate::SameAsTokenizer),
    })
}

fn f32_of(metadata: &Metadata, key: &str) -> Result<Option<f32>, KeyError> {
    metadata.f32(key)
}

/// The file's name without its ending and the number of its shard.
fn name_of(path: &Path) -> String {
    let stem = path.file_stem().map_or("model".into(), |stem| stem.to_string_lossy());
    let stem = stem.split("-00001-of-").next().unwrap_or(&stem);
    stem.to_lowercase()
}

/// A GGUF file of a known family.
struct GgufFile<'c> {
    path: &'c Path,
    checkpoint: &'c Checkpoint,
    metadata: &'c Metadata,
    family: &'static Family,
}

impl GgufFile<'_> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.family.gguf)
    }

    fn of<T>(&self, value: Result<T, KeyError>) -> Result<T, ModelError> {
        value.map_err(|error| ModelError::Metadata { path: self.path.into(), error })
    }

    fn need(&self, key: &str) -> Result<u32, ModelError> {
        self.of(self.metadata.required(&self.key(key), Metadata::u32))
    }

    fn optional(&self, key: &str) -> Result<Option<u32>, ModelError> {
        self.of(self.metadata.u32(&self.key(key)))
    }

    fn number(&self, key: &str) -> Result<Option<f32>, ModelError> {
        self.of(self.metadata.f32(&self.key(key)))
    }

    fn refused(&self, key: &str, found: impl ToString, need: impl Into<String>) -> ModelError {
        ModelError::Key {
            path: self.path.into(),
            key: self.key(key),
            found: found.to_string(),
            need: need.into(),
        }
    }

    /// A number that is one for all layers or a list with one for each.
    fn of_layer(&self, key: &str, layer: u32) -> Result<Option<u32>, ModelError> {
        let full = self.key(key);
        if self.metadata.get(&full).is_none_or(|value| value.integer().is_some()) {
            return self.optional(key);
        }
        let list = self.of(self.metadata.u32s(&full))?.unwrap_or_default();
        match list.get(layer as usize) {
            Some(&value) => Ok(Some(value)),
            None => Err(self.refused(
                key,
                format!("a list of {}", list.len()),
                format!("a number for layer {layer}"),
            )),
        }
    }

    fn has(&self, layer: u32, tensor: &str) -> bool {
        self.checkpoint.tensor(&format!("blk.{layer}.{tensor}")).is_some()
    }

    fn vocab(&self) -> Result<u32, ModelError> {
        let tensor = "token_embd.weight";
        let rows = self.checkpoint.tensor(tensor).and_then(|t| t.dims.get(1).copied());
        rows.and_then(|rows| u32::try_from(rows).ok()).ok_or_else(|| ModelError::MissingTensor {
            path: self.path.into(),
            tensor: tensor.into(),
            need: "a matrix with one row for each token",
        })
    }

    fn block(&self, layer: u32, layers: u32) -> Result<Block, ModelError> {
        let attention = match self.family.hybrid {
            Some(hybrid) if self.is_recurrent(layer, layers)? => {
                Attention::GatedDelta(self.delta(hybrid)?)
            }
            _ => Attention::Gqa(self.gqa(layer, layers)?),
        };
        Ok(Block {
            repeat: 1,
            attention,
            post_norms: self.family.gemma.is_some(),
            mlp: self.mlp(layer)?,
        })
    }

    fn gqa(&self, layer: u32, layers: u32) -> Result<Gqa, ModelError> {
        let head_count = "attention.head_count";
        let heads = match self.of_layer(head_count, layer)? {
            Some(heads) if heads > 0 => heads,
            Some(heads) => return Err(self.refused(head_count, heads, "at least 1")),
            None => self.need(head_count)?,
        };
        let kv_heads = self.of_layer("attention.head_count_kv", layer)?.unwrap_or(heads);
        let hidden = self.need("embedding_length")?;
        let head_dim = self.optional("attention.key_length")?.unwrap_or(hidden / heads);
        let values = self.optional("attention.value_length")?.unwrap_or(head_dim);
        if values != head_dim {
            let need = format!("{head_dim}, the length of keys");
            return Err(self.refused("attention.value_length", values, need));
        }
        let softcap = "attn_logit_softcapping";
        if let Some(found) = self.number(softcap)?.filter(|&cap| cap != 0.0) {
            return Err(self.refused(softcap, found, "no soft capping"));
        }
        let window = self.window(layer)?;
        Ok(Gqa {
            heads: narrow(self.path, head_count, heads)?,
            kv_heads: narrow(self.path, "attention.head_count_kv", kv_heads)?,
            head_dim: narrow(self.path, "attention.key_length", head_dim)?,
            qk_norm: self.family.qk_norm || self.has(layer, "attn_q_norm.weight"),
            bias: self.bias(layer),
            rope: self.rope(head_dim, window.is_some())?,
            gate: self.family.hybrid.is_some(),
            scale: self.scale((hidden, heads, head_dim), layers)?,
            window,
            indexer: self.indexer(layer, layers)?,
        })
    }

    fn bias(&self, layer: u32) -> Bias {
        if self.has(layer, "attn_output.bias") {
            Bias::All
        } else if self.has(layer, "attn_q.bias") {
            Bias::Qkv
        } else {
            self.family.bias
        }
    }

    /// Factor on `q . k` where it is not that of the head size.
    fn scale(
        &self,
        (hidden, heads, head_dim): (u32, u32, u32),
        layers: u32,
    ) -> Result<Option<f32>, ModelError> {
        if let Some(scale) = self.number("attention.scale")?.filter(|&scale| scale != 0.0) {
            return Ok(Some(scale));
        }
        let per_head = hidden / heads;
        let other = self.family.gemma.is_some() && layers == GEMMA_27B_LAYERS;
        Ok((other && per_head != head_dim).then(|| (1.0 / f64::from(per_head).sqrt()) as f32))
    }

    /// Positions that the layer sees, if it is a local one.
    fn window(&self, layer: u32) -> Result<Option<u32>, ModelError> {
        let Some(window) = self.optional("attention.sliding_window")?.filter(|&w| w > 0) else {
            return Ok(None);
        };
        let pattern = "attention.sliding_window_pattern";
        let key = self.key(pattern);
        let local = match self.metadata.get(&key) {
            Some(value) if value.integer().is_none() => {
                let flags = self.of(self.metadata.bools(&key))?.unwrap_or_default();
                let found = format!("a list of {}", flags.len());
                let flag = flags.get(layer as usize).copied();
                flag.ok_or_else(|| self.refused(pattern, found, "a flag for each layer"))?
            }
            _ => {
                let implied = self.family.gemma.map(|gemma| gemma.pattern);
                match self.optional(pattern)?.or(implied) {
                    Some(0) => return Err(self.refused(pattern, 0, "at least 1")),
                    Some(period) => !(layer + 1).is_multiple_of(period),
                    None => true,
                }
            }
        };
        Ok(local.then_some(window))
    }

    fn rope(&self, head_dim: u32, local: bool) -> Result<Rope, ModelError> {
        let dims = self.optional("rope.dimension_count")?.filter(|&dims| dims != head_dim);
        let dims = dims.map(|dims| narrow(self.path, "rope.dimension_count", dims)).transpose()?;
        let theta = self.number("rope.freq_base")?.map_or(10_000.0, f64::from);
        let (theta, scaling) = match (local, self.family.gemma) {
            (true, Some(gemma)) => {
                let theta = self.number("rope.freq_base_swa")?;
                (theta.map_or(gemma.local_theta, f64::from), Scaling::None)
            }
            _ => (theta, self.scaling()?),
        };
        Ok(Rope { theta, dims, pairing: self.family.gguf_pairing, scaling })
    }

    /// The divisors of the file if it has some, else what the keys say.
    fn scaling(&self) -> Result<Scaling, ModelError> {
        if let Some(divisors) = self.divisors()? {
            return Ok(Scaling::Divisors(divisors));
        }
        let factor = match self.number("rope.scaling.factor")? {
            Some(factor) => Some(factor),
            None => self.number("rope.scale_linear")?,
        };
        let kind = self.key("rope.scaling.type");
        match (self.of(self.metadata.str(&kind))?.unwrap_or("linear"), factor) {
            ("none", _) | ("linear", None | Some(0.0 | 1.0)) => Ok(Scaling::None),
            ("linear", Some(factor)) => Ok(Scaling::Linear { factor: factor.into() }),
            (found, _) => Err(self.refused("rope.scaling.type", found, "none or linear")),
        }
    }

    fn divisors(&self) -> Result<Option<Vec<f32>>, ModelError> {
        let Some(tensor) = self.checkpoint.tensor("rope_freqs.weight") else { return Ok(None) };
        let refused = || ModelError::MissingTensor {
            path: self.path.into(),
            tensor: tensor.name.clone(),
            need: "at most 2048 values in f32, one for each pair of a head",
        };
        if tensor.ty != TensorType::F32 || tensor.elements() > 2048 {
            return Err(refused());
        }
        let mut divisors = vec![0.0; tensor.elements() as usize];
        decode(tensor.ty, self.checkpoint.bytes_of(tensor), &mut divisors)
            .map_err(|_| refused())?;
        Ok(Some(divisors))
    }

    fn mlp(&self, layer: u32) -> Result<Mlp, ModelError> {
        let act = self.family.act;
        let experts = self.optional("expert_count")?.unwrap_or(0);
        if experts == 0 || self.has(layer, "ffn_gate.weight") {
            let intermediate = match self.of_layer("feed_forward_length", layer)? {
                Some(width) => width,
                None => self.need("feed_forward_length")?,
            };
            return Ok(Mlp::Gated(Gated { intermediate, act }));
        }
        let intermediate = match self.of_layer("expert_feed_forward_length", layer)? {
            Some(width) => width,
            None => self.need("feed_forward_length")?,
        };
        let most = u32::from(self.family.hybrid.is_some());
        if let Some(shared) = self.optional("expert_shared_count")?.filter(|&n| n > most) {
            let need = ["no shared experts", "at most one"][most as usize];
            return Err(self.refused("expert_shared_count", shared, need));
        }
        let norm = self.of(self.metadata.bool(&self.key("expert_weights_norm")))?;
        Ok(Mlp::Moe(Moe {
            experts: narrow(self.path, "expert_count", experts)?,
            top_k: narrow(self.path, "expert_used_count", self.need("expert_used_count")?)?,
            intermediate,
            norm_top_k: norm.unwrap_or(true),
            act,
            shared: self.shared(layer)?,
        }))
    }

    fn tokens(&self) -> Result<Tokens, ModelError> {
        let id = |key: &str| self.of(self.metadata.u32(&format!("tokenizer.ggml.{key}_token_id")));
        let bos = id("bos")?;
        let mut eos: Vec<u32> = Vec::new();
        for key in ["eos", "eot", "eom"] {
            eos.extend(id(key)?);
        }
        let words = self.of(self.metadata.array("tokenizer.ggml.tokens"))?;
        let words = words.and_then(|array| array.strs());
        for (id, word) in (0u32..).zip(words.into_iter().flatten()) {
            if END_TEXTS.contains(&word) {
                eos.push(id);
            }
        }
        let mut seen = Vec::new();
        eos.retain(|id| {
            !seen.contains(id) && {
                seen.push(*id);
                true
            }
        });
        let add_bos = self.of(self.metadata.bool("tokenizer.ggml.add_bos_token"))?;
        let add_bos = match add_bos {
            Some(add_bos) => add_bos,
            None => self.adds_bos_by_kind()?,
        };
        Ok(Tokens { bos, eos, add_bos: add_bos && bos.is_some() })
    }

    /// What files without the key mean: SentencePiece models and Llama 3 begin with a BOS.
    fn adds_bos_by_kind(&self) -> Result<bool, ModelError> {
        let model = self.of(self.metadata.str("tokenizer.ggml.model"))?;
        let pre = self.of(self.metadata.str("tokenizer.ggml.pre"))?;
        Ok(model == Some("llama") || matches!(pre, Some("llama-bpe" | "llama3" | "llama-v3")))
    }
}
