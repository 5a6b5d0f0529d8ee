//! Stop strings over a stream of text.

use std::fmt;

/// Cuts a stream at the first stop string. Text that may be the beginning of a stop string is
/// held back until it is decided; a stop string is never emitted, not even in part.
///
/// The cut depends on the text alone and not on how it arrives: it is the stop string that is
/// complete first; of those that end at the same byte, the longest.
pub struct StopFilter {
    stops: Vec<Stop>,
    held: String,
    stopped: Option<usize>,
}

/// What came out of one push.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Emit {
    /// Text that is decided.
    pub text: String,
    /// Index of the stop string that was met. The stream is over; later pushes give nothing.
    pub stopped: Option<usize>,
}

/// Why a list of stop strings was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopError {
    /// The stop string at this index is empty: it would stop before the first token.
    Empty { index: usize },
}

impl fmt::Display for StopError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty { index } => {
                write!(f, "stop string {index} is empty, need at least one character: leave it out")
            }
        }
    }
}

impl std::error::Error for StopError {}

/// One stop string with its failure function (Knuth, Morris, Pratt): `borders[n]` is the longest
/// proper border of the first `n + 1` bytes.
struct Stop {
    bytes: Vec<u8>,
    borders: Vec<usize>,
    matched: usize,
}

impl Stop {
    fn new(text: &str) -> Self {
        let bytes = text.as_bytes().to_vec();
        let mut borders = vec![0; bytes.len()];
        let mut border = 0;
        for at in 1..bytes.len() {
            while border > 0 && bytes[border] != bytes[at] {
                border = borders[border - 1];
            }
            border += usize::from(bytes[border] == bytes[at]);
            borders[at] = border;
        }
        Self { bytes, borders, matched: 0 }
    }

    /// Takes one byte; true when the stop string is complete.
    fn step(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.borders[self.matched - 1];
        }
        self.matched += usize::from(self.bytes[self.matched] == byte);
        self.matched == self.bytes.len()
    }
}

impl StopFilter {
    /// # Errors
    /// [`StopError::Empty`].
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<Self, StopError> {
        if let Some(index) = stops.iter().position(|stop| stop.as_ref().is_empty()) {
            return Err(StopError::Empty { index });
        }
        let stops = stops.iter().map(|stop| Stop::new(stop.as_ref())).collect();
        Ok(Self { stops, held: String::new(), stopped: None })
    }

    /// Takes the next text of the stream, cut anywhere.
    pub fn push(&mut self, text: &str) -> Emit {
        if self.stopped.is_some() {
            return Emit { text: String::new(), stopped: self.stopped };
        }
        let already = self.held.len();
        self.held.push_str(text);
        for (at, byte) in text.bytes().enumerate() {
            let mut met: Option<usize> = None;
            for index in 0..self.stops.len() {
                let longer =
                    |other: usize| self.stops[index].bytes.len() > self.stops[other].bytes.len();
                let is_longest = met.is_none_or(longer);
                if self.stops[index].step(byte) && is_longest {
                    met = Some(index);
                }
            }
            if let Some(index) = met {
                self.held.truncate(already + at + 1 - self.stops[index].bytes.len());
                self.stopped = met;
                return Emit { text: std::mem::take(&mut self.held), stopped: met };
            }
        }
        let undecided = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - undecided);
        Emit { text: std::mem::replace(&mut self.held, rest), stopped: None }
    }

    /// The held text at the end of the stream: no stop string came of it. Empty after a stop.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Index of the stop string that was met.
    pub fn stopped(&self) -> Option<usize> {
        self.stopped
    }
}

#[cfg(test)]
mod tests;
