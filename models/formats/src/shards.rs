//! Sets of files: names of the form `NAME-00001-of-00003.EXT`, and names that must be unique.

use std::path::{Path, PathBuf};

use crate::error::OpenError;

/// More parts than any published model has; bounds the work that a name can cause.
const MAX_PARTS: usize = 10_000;

/// One part of a set, as its file name says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartName {
    pub stem: String,
    pub extension: String,
    /// From 1.
    pub part: usize,
    pub parts: usize,
}

impl PartName {
    /// Reads `STEM-00002-of-00003.EXT`. `None` if the name has another form, or no such part.
    pub fn of(path: &Path) -> Option<PartName> {
        let extension = path.extension()?.to_str()?.to_string();
        let (rest, parts) = path.file_stem()?.to_str()?.rsplit_once("-of-")?;
        let (stem, part) = rest.rsplit_once('-')?;
        let (part, parts) = (five_digits(part)?, five_digits(parts)?);
        let known = (1..=parts).contains(&part) && parts <= MAX_PARTS;
        known.then(|| PartName { stem: stem.to_string(), extension, part, parts })
    }

    pub fn name_of(&self, part: usize) -> String {
        format!("{}-{part:05}-of-{:05}.{}", self.stem, self.parts, self.extension)
    }

    /// All names of the set, in order.
    pub fn names(&self) -> Vec<String> {
        (1..=self.parts).map(|part| self.name_of(part)).collect()
    }
}

fn five_digits(text: &str) -> Option<usize> {
    let digits = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// Paths of `names` in `dir`.
///
/// # Errors
/// Some are not there; all of those are listed.
pub fn paths_of_all(dir: &Path, names: &[String]) -> Result<Vec<PathBuf>, OpenError> {
    let missing: Vec<String> =
        names.iter().filter(|name| !dir.join(name).is_file()).cloned().collect();
    if missing.is_empty() {
        return Ok(names.iter().map(|name| dir.join(name)).collect());
    }
    Err(OpenError::MissingShards { dir: dir.to_path_buf(), expected: names.len(), missing })
}

/// Indices of `rows`, sorted by name, for binary search.
///
/// # Errors
/// The name that is there twice.
pub fn sorted_by_name<T>(rows: &[T], name: impl Fn(&T) -> &String) -> Result<Vec<u32>, String> {
    let mut order: Vec<u32> = (0..rows.len() as u32).collect();
    order.sort_unstable_by_key(|&index| name(&rows[index as usize]));
    let at = |index: u32| name(&rows[index as usize]);
    match order.windows(2).find(|pair| at(pair[0]) == at(pair[1])) {
        Some(pair) => Err(at(pair[0]).clone()),
        None => Ok(order),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parts() {
        let part = PartName::of(Path::new("/m/a-of-b-Q4-00002-of-00003.gguf")).unwrap();
        assert_eq!((part.stem.as_str(), part.part, part.parts), ("a-of-b-Q4", 2, 3));
        assert_eq!(part.names()[2], "a-of-b-Q4-00003-of-00003.gguf");
        for bad in [
            "model.gguf",
            "m-1-of-3.gguf",
            "m-00000-of-00003.gguf",
            "m-00004-of-00003.gguf",
            "m-00001-of-99999.gguf",
            "m-0000\u{661}-of-00003.gguf",
        ] {
            assert_eq!(PartName::of(Path::new(bad)), None, "{bad}");
        }
    }

    #[test]
    fn a_name_twice_is_found() {
        let rows = ["b", "a", "c"].map(String::from);
        assert_eq!(sorted_by_name(&rows, |row| row), Ok(vec![1, 0, 2]));
        let rows = ["b", "a", "b"].map(String::from);
        assert_eq!(sorted_by_name(&rows, |row| row), Err("b".to_string()));
    }
}
