//! What a plan is made for: devices, limits and windows. Read from `configs/*.ron` by the command
//! line; every field has a default, which `configs/default.ron` spells out.

use serde::{Deserialize, Serialize};
use strata_graph::{Window, WindowKind};
use strata_kernels::Target;

use crate::error::LowerError;

/// A machine and how it is to be used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// For people and for the plan's own text.
    pub name: String,
    /// Exactly one for now, a CPU.
    pub devices: Vec<DeviceConfig>,
    pub windows: WindowsConfig,
    pub kv: KvConfig,
    pub sequences: SequencesConfig,
    pub weights: TierPolicy,
    /// Keeps every value of a window readable behind it: for checks, at the price of memory.
    pub keep_values: bool,
}

/// A device and its limits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum DeviceConfig {
    Cpu {
        /// Worker threads, 0 for one a core.
        #[serde(default)]
        threads: u32,
        /// RAM in MiB that weights, caches and scratch may take together; `None`: no limit here, a
        /// plan is still checked against what is free when it is opened.
        #[serde(default)]
        budget_mib: Option<u64>,
        /// Instruction sets to generate code for; the best that a machine has is used.
        #[serde(default = "native")]
        targets: Vec<TargetName>,
    },
}

fn native() -> Vec<TargetName> {
    vec![TargetName::Native]
}

/// An instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TargetName {
    /// The best of the machine that compiles.
    Native,
    Avx2,
    /// With VNNI.
    Avx512,
}

/// Row counts for which schedules are made. A window runs with any smaller number of rows, too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WindowsConfig {
    /// Rows of each verify window; all of them can ask for logits.
    pub verify_rows: Vec<u32>,
    /// Rows of each prefill window.
    pub prefill_rows: Vec<u32>,
    /// Rows of a prefill window that can ask for logits at most.
    pub prefill_logit_rows: u32,
}

/// How keys and values are stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KvConfig {
    pub element: KvElement,
    /// Positions in a page: a power of two from 16 to 256.
    pub page_tokens: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KvElement {
    /// Nothing is rounded: twice the bytes of F16, for checks against references.
    F32,
    F16,
    /// 8 bit with an f32 scale for each position and head.
    Int8,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SequencesConfig {
    /// Sequences that can be live at once.
    pub slots: u32,
    /// Positions of one sequence at most; the model's own limit holds as well.
    pub context_tokens: u32,
}

/// Where weights lie for which the budget may be too small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TierPolicy {
    /// RAM while the budget lasts. What does not fit is read from the mapped file if kernels take it
    /// as it is there, else it goes to the packed file, banks of experts first. Tables of embeddings
    /// stay in the file.
    Auto,
    /// All of them copied to RAM.
    Ram,
    /// Those that kernels take as they are in the mapped file, the others in RAM.
    Mapped,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "default".into(),
            devices: vec![DeviceConfig::Cpu { threads: 0, budget_mib: None, targets: native() }],
            windows: WindowsConfig::default(),
            kv: KvConfig::default(),
            sequences: SequencesConfig::default(),
            weights: TierPolicy::Auto,
            keep_values: false,
        }
    }
}

impl Default for WindowsConfig {
    fn default() -> Self {
        Self {
            verify_rows: vec![1, 2, 3, 4, 6, 8],
            prefill_rows: vec![32, 128, 512],
            prefill_logit_rows: 32,
        }
    }
}

impl Default for KvConfig {
    fn default() -> Self {
        Self { element: KvElement::F16, page_tokens: 64 }
    }
}

impl Default for SequencesConfig {
    fn default() -> Self {
        Self { slots: 1, context_tokens: 4096 }
    }
}

/// Sequences that draft together.
const MOST_DRAFT_ROWS: u32 = 8;

/// The one CPU of a configuration, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuDevice {
    pub threads: u32,
    pub budget_bytes: Option<u64>,
    /// The best first, none twice.
    pub targets: Vec<Target>,
}

impl Config {
    /// The windows, in the order in which graphs are given to the compiler; with `draft` the last
    /// one is the draft head's.
    pub fn windows(&self, draft: bool) -> Vec<Window> {
        let windows = &self.windows;
        let verify = windows.verify_rows.iter().map(|&rows| Window {
            kind: WindowKind::Verify,
            rows,
            logit_rows: rows,
        });
        let prefill = windows.prefill_rows.iter().map(|&rows| Window {
            kind: WindowKind::Prefill,
            rows,
            logit_rows: windows.prefill_logit_rows.clamp(1, rows.max(1)),
        });
        let rows = self.sequences.slots.clamp(1, MOST_DRAFT_ROWS);
        let draft = draft.then_some(Window { kind: WindowKind::Draft, rows, logit_rows: rows });
        verify.chain(prefill).chain(draft).collect()
    }

    /// Checks the limits and resolves the device.
    ///
    /// # Errors
    /// The field that cannot hold, what it is and what it may be.
    pub fn cpu(&self) -> Result<CpuDevice, LowerError> {
        self.check_numbers()?;
        let [DeviceConfig::Cpu { threads, budget_mib, targets }] = self.devices.as_slice() else {
            return Err(LowerError::Config {
                field: "devices",
                found: format!("{} devices", self.devices.len()),
                need: "exactly one, Cpu(..)",
            });
        };
        let mut chosen = Vec::new();
        for name in targets {
            let target = match name {
                TargetName::Avx2 => Target::X86Avx2,
                TargetName::Avx512 => Target::X86Avx512,
                TargetName::Native => {
                    Target::of_this_machine().ok_or(LowerError::NoNativeTarget)?
                }
            };
            if !chosen.contains(&target) {
                chosen.push(target);
            }
        }
        if chosen.is_empty() {
            return Err(LowerError::Config {
                field: "targets",
                found: "an empty list".into(),
                need: "at least one of Native, Avx2, Avx512",
            });
        }
        chosen.sort_by_key(|t| Target::ALL.iter().position(|a| a == t));
        let budget_bytes = budget_mib.map(|mib| mib.saturating_mul(1 << 20));
        Ok(CpuDevice { threads: *threads, budget_bytes, targets: chosen })
    }

    fn check_numbers(&self) -> Result<(), LowerError> {
        let check = |ok: bool, field, found: u32, need| {
            if ok {
                Ok(())
            } else {
                Err(LowerError::Config { field, found: found.to_string(), need })
            }
        };
        let page = self.kv.page_tokens;
        let pages_fit = page.is_power_of_two() && (16..=256).contains(&page);
        check(pages_fit, "kv.page_tokens", page, "a power of two from 16 to 256")?;
        let slots = self.sequences.slots;
        check((1..=4096).contains(&slots), "sequences.slots", slots, "1 to 4096")?;
        let context = self.sequences.context_tokens;
        check(context > 0, "sequences.context_tokens", context, "at least 1")?;
        let windows = &self.windows;
        for &rows in windows.verify_rows.iter().chain(&windows.prefill_rows) {
            check((1..=8192).contains(&rows), "windows", rows, "1 to 8192 rows")?;
        }
        let count = windows.verify_rows.len() + windows.prefill_rows.len();
        check(count > 0, "windows", 0, "at least one window")
    }
}
