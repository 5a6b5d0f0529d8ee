//! Which experts each token went to, in a file that tools read. docs/TRACE_FORMAT.md says how.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use strata_plan::Plan;
use strata_replay::Engine;

use crate::CliError;

pub const MAGIC: [u8; 8] = *b"STRATART";
pub const FORMAT: u32 = 1;

/// A trace that is being written.
#[derive(Debug)]
pub struct RoutingTrace {
    path: PathBuf,
    file: BufWriter<File>,
    /// Outputs of a window that are choices of a router.
    layers: usize,
    record: Vec<u8>,
}

/// The layer of an output that is a router's choice, like `blk.3.route`.
fn layer_of(name: &str) -> Option<u32> {
    name.strip_prefix("blk.")?.strip_suffix(".route")?.parse().ok()
}

/// Layers with a router, in the order in which windows name them, and the experts of a token.
fn routers(plan: &Plan) -> (Vec<u32>, u32) {
    let windows = plan.schedules().iter().map(|row| &plan.outputs()[row.outputs.range()]);
    let longest = windows.max_by_key(|outputs| outputs.len()).unwrap_or_default();
    let layers = longest.iter().filter_map(|row| layer_of(plan.name(row.name))).collect();
    let routed = longest.iter().find(|row| layer_of(plan.name(row.name)).is_some());
    (layers, routed.map_or(0, |row| row.dims[1]))
}

/// Experts of a layer: what stands first in the dimensions of weights that have three.
pub fn experts(plan: &Plan) -> u32 {
    let of_experts = plan.weights().iter().filter(|row| row.dims[2] > 1 && row.dims[3] == 1);
    of_experts.map(|row| row.dims[0]).max().unwrap_or(0)
}

impl RoutingTrace {
    /// Begins the file at `path`.
    pub fn new(engine: &Engine, path: &Path) -> Result<Self, CliError> {
        let plan = engine.plan();
        let (layers, top_k) = routers(plan);
        if layers.is_empty() {
            return Err(CliError::Usage(
                "--trace-routing needs a plan with routed experts, this one has no routers".into(),
            ));
        }
        let mut header = MAGIC.to_vec();
        let count = u32::try_from(layers.len()).unwrap_or(u32::MAX);
        for word in [FORMAT, count, experts(plan), top_k].iter().chain(&layers) {
            header.extend_from_slice(&word.to_le_bytes());
        }
        let fail = |error| CliError::Write { path: path.to_owned(), error };
        let mut file = BufWriter::new(File::create(path).map_err(fail)?);
        file.write_all(&header).map_err(fail)?;
        Ok(Self { path: path.to_owned(), file, layers: layers.len(), record: Vec::new() })
    }

    /// Appends the first `rows` rows of the engine's last window.
    pub fn add(&mut self, engine: &Engine, rows: usize) -> Result<(), CliError> {
        let chosen: Vec<&[u32]> = engine
            .outputs()
            .filter(|output| layer_of(output.name).is_some())
            .map(|output| output.words())
            .collect();
        if chosen.len() != self.layers {
            return Err(CliError::Usage(format!(
                "a window named the routers of {} layers, another one {}: compile the plan again",
                chosen.len(),
                self.layers
            )));
        }
        let live = engine.outputs().next().map_or(1, |output| output.rows.max(1));
        self.record.clear();
        for row in 0..rows.min(live) {
            for layer in &chosen {
                let top_k = layer.len() / live;
                for &expert in &layer[row * top_k..(row + 1) * top_k] {
                    let expert = u16::try_from(expert).unwrap_or(u16::MAX);
                    self.record.extend_from_slice(&expert.to_le_bytes());
                }
            }
        }
        let written = self.file.write_all(&self.record);
        written.map_err(|error| CliError::Write { path: self.path.clone(), error })
    }

    /// Writes what is left.
    pub fn finish(&mut self) -> Result<(), CliError> {
        self.file.flush().map_err(|error| CliError::Write { path: self.path.clone(), error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routers_are_known_by_their_names() {
        assert_eq!(layer_of("blk.12.route"), Some(12));
        assert_eq!(layer_of("blk.12.route.1"), None, "the weights of the experts");
        assert_eq!(layer_of("output"), None);
    }
}
