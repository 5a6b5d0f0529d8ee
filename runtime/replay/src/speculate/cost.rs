//! What windows and drafts cost, measured as they run.

/// Share of a new measurement in a running mean.
const NEW: f64 = 0.2;
/// What one more row is taken to cost before any window of several rows was measured, in windows of
/// one row. Between a dense model, whose rows share all weights, and one whose rows share none.
const ROW_GUESS: f64 = 0.3;

/// A running mean, in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mean(Option<f64>);

impl Mean {
    pub fn note(&mut self, seconds: f64) {
        self.0 = Some(self.0.map_or(seconds, |mean| mean + NEW * (seconds - mean)));
    }

    pub fn get(self) -> Option<f64> {
        self.0
    }
}

/// Costs of windows by their rows.
#[derive(Clone, Debug)]
pub(super) struct WindowCosts(Vec<Mean>);

impl WindowCosts {
    pub fn new(rows: usize) -> Self {
        Self(vec![Mean::default(); rows + 1])
    }

    pub fn note(&mut self, rows: usize, seconds: f64) {
        if let Some(mean) = self.0.get_mut(rows) {
            mean.note(seconds);
        }
    }

    pub fn measured(&self, rows: usize) -> Option<f64> {
        self.0.get(rows).copied().and_then(Mean::get)
    }

    /// Seconds of a window of `rows`: measured, or on the line through the nearest two that were.
    /// `None` before a window of one row was measured.
    pub fn estimate(&self, rows: usize) -> Option<f64> {
        if let Some(measured) = self.measured(rows) {
            return Some(measured);
        }
        let one = self.measured(1)?;
        let at = |r: usize| self.measured(r).map(|cost| (r, cost));
        let below = (1..rows).rev().find_map(at)?;
        let other = (rows + 1..self.0.len()).find_map(at);
        let other = other.or_else(|| (1..below.0).rev().find_map(at));
        let slope = other
            .map_or(ROW_GUESS * one, |(r, cost)| (cost - below.1) / (r as f64 - below.0 as f64));
        Some(below.1 + slope.max(0.0) * (rows - below.0) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_lies_on_a_line() {
        let near = |found: Option<f64>, wanted: f64| {
            let found = found.unwrap();
            assert!((found - wanted).abs() < 1e-12, "{found} instead of {wanted}");
        };
        let mut costs = WindowCosts::new(8);
        assert_eq!(costs.estimate(1), None);
        costs.note(1, 2.0);
        near(costs.estimate(1), 2.0);
        near(costs.estimate(3), 2.0 + 2.0 * ROW_GUESS * 2.0);
        costs.note(4, 5.0);
        near(costs.estimate(2), 3.0);
        near(costs.estimate(6), 7.0);
        costs.note(8, 4.0);
        near(costs.estimate(6), 5.0);
        costs.note(1, 3.0);
        near(costs.measured(1), 2.0 + NEW);
        costs.note(9, 1.0);
        assert_eq!(costs.measured(9), None);
    }
}
