//! What passes did, in numbers with units.

use std::fmt;

/// A count, or a ratio.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
#[serde(untagged)]
pub enum Number {
    Count(u64),
    Real(f64),
}

/// What one pass did to one window, or to the whole plan.
#[derive(Clone, Debug, PartialEq)]
pub struct PassReport {
    pub pass: &'static str,
    /// "verify 4", or empty where the pass sees all windows.
    pub window: String,
    /// Names end in their unit: `_bytes`, `_nodes`, `_count`.
    pub numbers: Vec<(String, Number)>,
    /// Time that it took. Not in the plan: the same input gives the same bytes.
    pub seconds: f64,
}

impl PassReport {
    pub fn new(pass: &'static str, window: impl Into<String>) -> Self {
        Self { pass, window: window.into(), numbers: Vec::new(), seconds: 0.0 }
    }

    pub fn count(mut self, name: impl Into<String>, value: u64) -> Self {
        self.numbers.push((name.into(), Number::Count(value)));
        self
    }

    pub fn real(mut self, name: impl Into<String>, value: f64) -> Self {
        self.numbers.push((name.into(), Number::Real(value)));
        self
    }

    /// The number called `name`, as a count.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.numbers.iter().find_map(|(n, value)| match value {
            Number::Count(count) if n == name => Some(*count),
            _ => None,
        })
    }

    /// As JSON, without the time.
    pub fn to_json(&self) -> serde_json::Value {
        let numbers: serde_json::Map<String, serde_json::Value> =
            self.numbers.iter().map(|(name, n)| (name.clone(), serde_json::json!(n))).collect();
        serde_json::json!({ "pass": self.pass, "window": self.window, "numbers": numbers })
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Real(real) => write!(f, "{real:.3}"),
        }
    }
}

/// One line: the pass, the window, the numbers.
impl fmt::Display for PassReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<22}{:<14}", self.pass, self.window)?;
        for (i, (name, value)) in self.numbers.iter().enumerate() {
            write!(f, "{}{name} {value}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}
