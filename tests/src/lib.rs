//! What the tests of the whole share: where things are, and how the command is run.

use std::path::PathBuf;

/// The root of the repository.
pub fn repository() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("the crate lies in a folder of the repository").to_owned()
}
