//! A summary as text.

use std::fmt;

use super::summary::{StateBytes, Summary};

/// With the unit in which it has one to four digits before the point.
fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB"] {
        if value < 10_000.0 {
            let digits = usize::from(unit != "B");
            return format!("{value:.digits$} {unit}");
        }
        value /= 1024.0;
    }
    format!("{value:.1} GiB")
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}: {} parameters, {} layers, vocabulary {}, context {} tokens, {} sequences, {} \
             pages of {} tokens",
            self.model,
            self.parameters,
            self.layers,
            self.vocab,
            self.context_tokens,
            self.slots,
            self.pages,
            self.page_tokens
        )?;
        for target in &self.targets {
            let features = target.features.join(", ");
            let (count, bytes) = (target.kernel_count, target.code_bytes);
            writeln!(f, "code {}: {count} kernels, {bytes} B, needs {features}", target.name)?;
        }
        writeln!(f, "\nmemory {}", size(self.memory_bytes()))?;
        for space in &self.spaces {
            let mapped = match (space.mapped, space.kind == "pack") {
                (true, true) => "  packed file, made when the plan is first opened; mapped",
                (true, false) => "  mapped file",
                _ => "",
            };
            writeln!(f, "  {:<32} {:>12}{mapped}", space.name, size(space.bytes))?;
        }
        self.write_weights_and_states(f)?;
        writeln!(
            f,
            "\n{:<16} {:>8} {:>8} {:>8} {:>12} {:>10} {:>12}",
            "window", "launches", "a layer", "barriers", "bytes moved", "Gflop", "arena"
        )?;
        for window in &self.windows {
            writeln!(
                f,
                "{:<16} {:>8} {:>8.1} {:>8} {:>12} {:>10.2} {:>12}",
                window.name,
                window.launches,
                window.launches_per_layer(),
                window.barriers,
                size(window.bytes),
                window.flops as f64 / 1e9,
                size(window.arena_bytes)
            )?;
        }
        Ok(())
    }
}

impl Summary {
    fn write_weights_and_states(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nweights")?;
        for class in &self.weights {
            let (bytes, stored) = (size(class.bytes), size(class.stored_bytes));
            let (tier, dtype, count) = (&class.tier, &class.dtype, class.weight_count);
            writeln!(f, "  {tier:<9} {dtype:<8} {count:>6} {bytes:>12} ({stored} stored)")?;
        }
        if let Some(experts) = &self.experts {
            let (bytes, each) = (size(experts.bytes), size(experts.expert_bytes));
            let (count, layers) = (experts.count, experts.layers);
            writeln!(f, "  experts: {layers} layers of {count}, {bytes}, {each} each")?;
        }
        let sum =
            |of: fn(&StateBytes) -> u64| self.states.iter().map(of).fold(0, u64::saturating_add);
        writeln!(
            f,
            "\nstates: {}, {}, {} a token, {} a full sequence",
            self.states.len(),
            size(sum(|state| state.bytes)),
            size(sum(|state| state.token_bytes)),
            size(sum(|state| state.sequence_bytes))
        )?;
        for (state, count) in self.states_alike() {
            let pending = match state.pending_bytes {
                0 => String::new(),
                bytes => format!(", {} of them pending rows", size(bytes)),
            };
            let (kind, dtype) = (&state.kind, &state.dtype);
            let (token, full) = (size(state.token_bytes), size(state.sequence_bytes));
            let name = &state.name;
            writeln!(
                f,
                "  {count:>3} x {name:<24} {kind:<9} {dtype:<6} {token:>10} a token {full:>12} a \
                 sequence{pending}"
            )?;
        }
        Ok(())
    }

    /// States of layers that are alike but for their layer, one of each with how many there are.
    fn states_alike(&self) -> Vec<(StateBytes, u32)> {
        let mut all: Vec<(StateBytes, u32)> = Vec::new();
        for state in &self.states {
            // Numbers in names are those of layers.
            let part = |part: &str| if part.parse::<u32>().is_ok() { "*" } else { part }.to_owned();
            let name = state.name.split('.').map(part).collect::<Vec<_>>().join(".");
            let state = StateBytes { name, ..state.clone() };
            match all.iter_mut().find(|(other, _)| *other == state) {
                Some((_, count)) => *count += 1,
                None => all.push((state, 1)),
            }
        }
        all
    }
}
