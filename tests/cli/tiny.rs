//! Small models with random weights in any stored format, written as GGUF files.

#![allow(dead_code, clippy::unwrap_used, reason = "each test binary uses a part; tests may panic")]

use std::path::{Path, PathBuf};

use strata_formats::{GgufWriter, TensorType, ValueType, WriteValue};

pub const HIDDEN: u64 = 256;
const HEADS: u64 = 4;
const HEAD_DIM: u64 = 64;
const INTERMEDIATE: u64 = 256;
const EXPERTS: u64 = 8;
const EXPERT_INTERMEDIATE: u64 = 256;
/// Merges of the vocabulary: each makes one more token.
const MERGES: [(&str, &str); 8] = [
    ("t", "h"),
    ("th", "e"),
    ("Ġ", "the"),
    ("i", "n"),
    ("a", "n"),
    ("an", "d"),
    ("Ġ", "and"),
    ("l", "l"),
];
const CONTROL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
pub const IM_END: u32 = 256 + MERGES.len() as u32 + 2;
pub const VOCAB: u32 = 256 + (MERGES.len() + CONTROL.len()) as u32;

const CHAT_TEMPLATE: &str = "\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Llama,
    Qwen3Moe,
}

/// What is to be written.
pub struct Tiny<'a> {
    pub family: Family,
    /// Element type of the matrices of each layer.
    pub layers: &'a [TensorType],
    /// Element type of the embeddings, which are the head too.
    pub table: TensorType,
    pub context: u32,
    /// 4 gives fewer shapes of matrices than 2, so fewer kernels to compile.
    pub kv_heads: u64,
}

/// The plan of a model whose vocabulary can write any text, shared by all tests.
pub fn text_plan() -> PathBuf {
    let tiny = Tiny {
        family: Family::Llama,
        layers: &[TensorType::Q8_0, TensorType::Q8_0],
        table: TensorType::Q8_0,
        context: 256,
        kv_heads: 4,
    };
    crate::support::shared_plan("text", |dir| tiny.write(dir, "tiny"))
}

impl Tiny<'_> {
    /// Writes `dir/NAME.gguf`.
    pub fn write(&self, dir: &Path, name: &str) -> PathBuf {
        let mut gguf = GgufWriter::new();
        self.declare(&mut gguf);
        let tensors = self.tensors();
        let path = dir.join(format!("{name}.gguf"));
        let mut random = Random(0x5eed);
        gguf.write_file(&path, |index, sink| {
            let (name, ty, dims) = &tensors[index];
            let elements: u64 = dims.iter().product();
            let bytes = if name.ends_with("norm.weight") {
                (0..elements).flat_map(|_| (0.9 + 0.2 * random.unit()).to_le_bytes()).collect()
            } else {
                random.blocks(*ty, elements / ty.block_elements())
            };
            sink.write_all(&bytes)
        })
        .unwrap();
        path
    }

    /// Adds the metadata and the tensors.
    pub fn declare(&self, gguf: &mut GgufWriter) {
        self.metadata(gguf);
        for (name, ty, dims) in self.tensors() {
            gguf.declare(&name, ty, &dims).unwrap();
        }
    }

    pub fn bytes_of(&self, index: usize) -> u64 {
        let (_, ty, dims) = &self.tensors()[index];
        ty.row_bytes(dims.iter().product()).unwrap()
    }

    fn metadata(&self, gguf: &mut GgufWriter) {
        let arch = if self.family == Family::Llama { "llama" } else { "qwen3moe" };
        let mut set = |key: &str, value| gguf.set(key, value).unwrap();
        set("general.architecture", WriteValue::Str(arch.into()));
        let u32_of = |number: u64| WriteValue::U32(number as u32);
        for (key, value) in [
            ("block_count", self.layers.len() as u64),
            ("context_length", u64::from(self.context)),
            ("embedding_length", HIDDEN),
            ("feed_forward_length", INTERMEDIATE),
            ("attention.head_count", HEADS),
            ("attention.head_count_kv", self.kv_heads),
            ("attention.key_length", HEAD_DIM),
            ("attention.value_length", HEAD_DIM),
        ] {
            set(&format!("{arch}.{key}"), u32_of(value));
        }
        set(&format!("{arch}.attention.layer_norm_rms_epsilon"), WriteValue::F32(1e-6));
        set(&format!("{arch}.rope.freq_base"), WriteValue::F32(10_000.0));
        if self.family == Family::Qwen3Moe {
            set("qwen3moe.expert_count", u32_of(EXPERTS));
            set("qwen3moe.expert_used_count", u32_of(2));
            set("qwen3moe.expert_feed_forward_length", u32_of(EXPERT_INTERMEDIATE));
        }
        let words = words();
        let control = words.len() - CONTROL.len();
        let types = (0..words.len()).map(|id| WriteValue::I32(if id < control { 1 } else { 3 }));
        let merges: Vec<String> = MERGES.iter().map(|(a, b)| format!("{a} {b}")).collect();
        set("tokenizer.ggml.model", WriteValue::Str("gpt2".into()));
        set("tokenizer.ggml.pre", WriteValue::Str("gpt-2".into()));
        set("tokenizer.ggml.tokens", WriteValue::strs(words.iter().map(String::as_str)));
        set("tokenizer.ggml.token_type", WriteValue::Array(ValueType::I32, types.collect()));
        set("tokenizer.ggml.merges", WriteValue::strs(merges.iter().map(String::as_str)));
        set("tokenizer.ggml.eos_token_id", WriteValue::U32(IM_END));
        set("tokenizer.chat_template", WriteValue::Str(CHAT_TEMPLATE.into()));
    }

    /// Name, element type and dimensions, innermost first.
    fn tensors(&self) -> Vec<(String, TensorType, Vec<u64>)> {
        let f32_row = |width| (TensorType::F32, vec![width]);
        let mut all = vec![
            ("token_embd.weight".to_owned(), self.table, vec![HIDDEN, u64::from(VOCAB)]),
            ("output_norm.weight".to_owned(), TensorType::F32, vec![HIDDEN]),
        ];
        let kv_width = self.kv_heads * HEAD_DIM;
        for (layer, &ty) in self.layers.iter().enumerate() {
            let mut add = |name: &str, (ty, dims): (TensorType, Vec<u64>)| {
                all.push((format!("blk.{layer}.{name}.weight"), ty, dims));
            };
            add("attn_norm", f32_row(HIDDEN));
            add("ffn_norm", f32_row(HIDDEN));
            add("attn_q", (ty, vec![HIDDEN, HEADS * HEAD_DIM]));
            add("attn_k", (ty, vec![HIDDEN, kv_width]));
            add("attn_v", (ty, vec![HIDDEN, kv_width]));
            add("attn_output", (ty, vec![HEADS * HEAD_DIM, HIDDEN]));
            if self.family == Family::Llama {
                add("ffn_gate", (ty, vec![HIDDEN, INTERMEDIATE]));
                add("ffn_up", (ty, vec![HIDDEN, INTERMEDIATE]));
                add("ffn_down", (ty, vec![INTERMEDIATE, HIDDEN]));
                continue;
            }
            add("attn_q_norm", f32_row(HEAD_DIM));
            add("attn_k_norm", f32_row(HEAD_DIM));
            add("ffn_gate_inp", (TensorType::F32, vec![HIDDEN, EXPERTS]));
            add("ffn_gate_exps", (ty, vec![HIDDEN, EXPERT_INTERMEDIATE, EXPERTS]));
            add("ffn_up_exps", (ty, vec![HIDDEN, EXPERT_INTERMEDIATE, EXPERTS]));
            add("ffn_down_exps", (ty, vec![EXPERT_INTERMEDIATE, HIDDEN, EXPERTS]));
        }
        all
    }
}

/// The 256 bytes in the alphabet of byte-level BPE, what merges make, and control tokens.
fn words() -> Vec<String> {
    let mut shifted = 0x100..;
    let mut words: Vec<String> = (0..=255u8)
        .map(|byte| match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
            _ => shifted.next().and_then(char::from_u32).unwrap(),
        })
        .map(String::from)
        .collect();
    words.extend(MERGES.iter().map(|(a, b)| format!("{a}{b}")));
    words.extend(CONTROL.map(String::from));
    words
}

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In `0.0..1.0`.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    pub fn tokens(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| (self.next() % u64::from(VOCAB)) as u32).collect()
    }

    /// An f16 in `2^exponent .. 2^(exponent + 1)`.
    fn f16(&mut self, exponent: i32) -> [u8; 2] {
        let bits = ((exponent + 15) as u16) << 10 | (self.next() & 0x3ff) as u16;
        bits.to_le_bytes()
    }

    fn negative_f16(&mut self, exponent: i32) -> [u8; 2] {
        let [low, high] = self.f16(exponent);
        [low, high | 0x80]
    }

    fn sign(&mut self) -> f32 {
        if self.next() & 1 == 0 { 1.0 } else { -1.0 }
    }

    /// Blocks of random bytes whose scales give weights of about 0.05, balanced around 0.
    fn blocks(&mut self, ty: TensorType, count: u64) -> Vec<u8> {
        (0..count).flat_map(|_| self.block(ty)).collect()
    }

    fn block(&mut self, ty: TensorType) -> Vec<u8> {
        let mut block: Vec<u8> = (0..ty.block_bytes()).map(|_| self.next() as u8).collect();
        match ty {
            TensorType::F32 => {
                let value = self.sign() * 0.08 * self.unit();
                block.copy_from_slice(&value.to_le_bytes());
            }
            TensorType::F16 => {
                let value = if self.next() & 1 == 0 { self.f16(-5) } else { self.negative_f16(-5) };
                block.copy_from_slice(&value);
            }
            TensorType::BF16 => {
                let value = self.sign() * (0.01 + 0.08 * self.unit());
                block.copy_from_slice(&value.to_le_bytes()[2..]);
            }
            TensorType::Q8_0 => block[..2].copy_from_slice(&self.f16(-11)),
            TensorType::Q4_0 => block[..2].copy_from_slice(&self.f16(-7)),
            TensorType::Q5_0 => block[..2].copy_from_slice(&self.f16(-8)),
            TensorType::Q4_1 | TensorType::Q5_1 => {
                let scale = if ty == TensorType::Q4_1 { -7 } else { -8 };
                block[..2].copy_from_slice(&self.f16(scale));
                block[2..4].copy_from_slice(&self.negative_f16(-4));
            }
            TensorType::Q4_K | TensorType::Q5_K => {
                let scale = if ty == TensorType::Q4_K { -12 } else { -13 };
                block[..2].copy_from_slice(&self.f16(scale));
                block[2..4].copy_from_slice(&self.f16(-9));
            }
            TensorType::Q6_K => block[208..210].copy_from_slice(&self.f16(-14)),
            other => panic!("no random blocks of {other}"),
        }
        block
    }
}
