//! Finds the files of a model and reads all of them.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::{Checkpoint, CheckpointFile, Kind, TensorInfo};
use crate::error::OpenError;
use crate::gguf::{Gguf, Metadata};
use crate::hash::fnv1a_64;
use crate::safetensors::{Safetensors, WeightMap};
use crate::shards::{PartName, paths_of_all, sorted_by_name};
use crate::source::FileBytes;
use crate::tokenizer_arrays::check_array_lengths;

const INDEX_END: &str = ".safetensors.index.json";
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

impl Checkpoint {
    /// Opens a `.gguf` file (any part of a split model opens all of it), a `.safetensors` file, an
    /// index of safetensors files, or a folder that holds one model. Other names are opened by the
    /// first bytes of the file.
    ///
    /// # Errors
    /// A file is missing, cannot be read, or fails a check; see [`OpenError`].
    pub fn open(path: impl AsRef<Path>) -> Result<Checkpoint, OpenError> {
        let path = path.as_ref();
        let meta = fs::metadata(path).map_err(|error| OpenError::Io {
            path: path.to_path_buf(),
            doing: "open",
            error,
        })?;
        if meta.is_dir() {
            return open_folder(path);
        }
        let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        if name.ends_with(INDEX_END) {
            return open_index(path);
        }
        if name.ends_with(".gguf") {
            return open_gguf(path);
        }
        if name.ends_with(".safetensors") {
            return open_safetensors(path);
        }
        match FileBytes::map(path)?.get(..9) {
            Some(first) if first.starts_with(b"GGUF") => open_gguf(path),
            Some(first) if first[8] == b'{' => open_safetensors(path),
            _ => Err(OpenError::UnknownKind { path: path.to_path_buf() }),
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

fn open_folder(dir: &Path) -> Result<Checkpoint, OpenError> {
    let index = dir.join(INDEX);
    if index.is_file() {
        return open_index(&index);
    }
    let single = dir.join(SINGLE);
    if single.is_file() {
        return read_safetensors(dir, vec![single]);
    }
    let io = |error| OpenError::Io { path: dir.to_path_buf(), doing: "list", error };
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let first_part = PartName::of(&path).is_none_or(|part| part.part == 1);
        let model = path.extension().is_some_and(|end| end == "gguf" || end == "safetensors");
        if model && first_part {
            found.push(path);
        }
    }
    found.sort();
    match found.as_slice() {
        [] => Err(OpenError::EmptyFolder { path: dir.to_path_buf() }),
        [one] => Checkpoint::open(one),
        _ => {
            let name = |path: &PathBuf| {
                path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
            };
            let found = found.iter().map(name).collect();
            Err(OpenError::Ambiguous { path: dir.to_path_buf(), found })
        }
    }
}

fn open_gguf(path: &Path) -> Result<Checkpoint, OpenError> {
    let first = read_gguf(path)?;
    let count = split_key(path, &first, "split.count")?.unwrap_or(1);
    if count <= 1 {
        return Checkpoint::of_parts(Kind::Gguf, vec![part_of_gguf(path, &first)?], Some(first));
    }
    let part = PartName::of(path).filter(|part| part.parts as u64 == count);
    let Some(part) = part else {
        return Err(OpenError::ShardName { path: path.to_path_buf(), count });
    };
    let paths = paths_of_all(folder_of(path), &part.names())?;
    let mut parts = Vec::new();
    let mut first = None;
    for (number, path) in paths.iter().enumerate() {
        let gguf = read_gguf(path)?;
        let fields = [("split.count", count), ("split.no", number as u64)];
        for (field, needed) in fields {
            let found = split_key(path, &gguf, field)?;
            if found != Some(needed) {
                let path = path.clone();
                return Err(OpenError::ShardNumber { path, field, found, needed });
            }
        }
        parts.push(part_of_gguf(path, &gguf)?);
        first.get_or_insert(gguf);
    }
    let first = first.expect("a set has at least one part");
    let found = parts.iter().map(|part| part.tensors.len() as u64).sum();
    match split_key(&paths[0], &first, "split.tensors.count")? {
        Some(needed) if needed != found => {
            Err(OpenError::ShardTensors { path: paths[0].clone(), found, needed })
        }
        _ => Checkpoint::of_parts(Kind::Gguf, parts, Some(first)),
    }
}

fn read_gguf(path: &Path) -> Result<Gguf, OpenError> {
    let error = |error| OpenError::Gguf { path: path.to_path_buf(), error };
    Gguf::read(FileBytes::map(path)?).map_err(error)
}

fn split_key(path: &Path, gguf: &Gguf, key: &str) -> Result<Option<u64>, OpenError> {
    let error = |error| OpenError::Key { path: path.to_path_buf(), error };
    gguf.metadata().u64(key).map_err(error)
}

fn part_of_gguf(path: &Path, gguf: &Gguf) -> Result<Part, OpenError> {
    check_array_lengths(gguf.metadata())
        .map_err(|error| OpenError::Tokenizer { path: path.to_path_buf(), error })?;
    Ok(Part::new(path, gguf.header(), gguf.source(), gguf.tensors()))
}

/// A file whose name says that it is one of several opens the set, through its index if one is
/// there.
fn open_safetensors(path: &Path) -> Result<Checkpoint, OpenError> {
    let dir = folder_of(path);
    let Some(part) = PartName::of(path).filter(|part| part.parts > 1) else {
        return read_safetensors(dir, vec![path.to_path_buf()]);
    };
    let index = dir.join(format!("{}{INDEX_END}", part.stem));
    if index.is_file() {
        return open_index(&index);
    }
    read_safetensors(dir, paths_of_all(dir, &part.names())?)
}

fn open_index(path: &Path) -> Result<Checkpoint, OpenError> {
    let map = WeightMap::parse(path, &FileBytes::map(path)?)?;
    let names = map.files();
    let dir = folder_of(path);
    let checkpoint = read_safetensors(dir, paths_of_all(dir, &names)?)?;
    let number: HashMap<&str, u32> = names.iter().map(String::as_str).zip(0..).collect();
    for (tensor, file) in &map.tensors {
        let found = checkpoint.tensor(tensor).map(|found| found.file);
        if found != number.get(file.as_str()).copied() {
            let (tensor, file) = (tensor.clone(), file.clone());
            return Err(OpenError::IndexTensor { path: path.to_path_buf(), tensor, file });
        }
    }
    Ok(checkpoint)
}

fn read_safetensors(dir: &Path, paths: Vec<PathBuf>) -> Result<Checkpoint, OpenError> {
    let mut parts = Vec::new();
    for path in &paths {
        let file = Safetensors::read(FileBytes::map(path)?)
            .map_err(|error| OpenError::Safetensors { path: path.clone(), error })?;
        parts.push(Part::new(path, file.header(), file.source(), file.tensors()));
    }
    let mut checkpoint = Checkpoint::of_parts(Kind::Safetensors, parts, None)?;
    let config = dir.join("config.json");
    if config.is_file() {
        let json = serde_json::from_slice(&FileBytes::map(&config)?)
            .map_err(|error| OpenError::Json { path: config, error })?;
        checkpoint.config = Some(json);
    }
    checkpoint.tokenizer_json = Some(dir.join("tokenizer.json")).filter(|path| path.is_file());
    Ok(checkpoint)
}

/// One file that has been read.
struct Part {
    file: CheckpointFile,
    source: FileBytes,
    tensors: Vec<TensorInfo>,
}

impl Part {
    fn new(path: &Path, header: &[u8], source: &FileBytes, tensors: &[TensorInfo]) -> Part {
        let file = CheckpointFile {
            path: path.to_path_buf(),
            bytes: source.len() as u64,
            header_hash: fnv1a_64(header),
        };
        Part { file, source: source.clone(), tensors: tensors.to_vec() }
    }
}

impl Checkpoint {
    fn of_parts(kind: Kind, parts: Vec<Part>, first: Option<Gguf>) -> Result<Self, OpenError> {
        let (mut files, mut sources, mut tensors) = (Vec::new(), Vec::new(), Vec::new());
        for (part, number) in parts.into_iter().zip(0..) {
            files.push(part.file);
            sources.push(part.source);
            tensors.extend(part.tensors.into_iter().map(|t| TensorInfo { file: number, ..t }));
        }
        let by_name = sorted_by_name(&tensors, |tensor| &tensor.name)
            .map_err(|name| duplicate(name, &tensors, &files))?;
        let metadata: Option<Metadata> = first.map(|gguf| gguf.metadata().clone());
        Ok(Checkpoint {
            kind,
            files,
            sources,
            tensors,
            by_name,
            metadata,
            config: None,
            tokenizer_json: None,
        })
    }
}

fn duplicate(name: String, tensors: &[TensorInfo], files: &[CheckpointFile]) -> OpenError {
    let mut paths = tensors
        .iter()
        .filter(|tensor| tensor.name == name)
        .map(|tensor| files[tensor.file as usize].path.clone());
    let mut next = || paths.next().expect("the name is there twice");
    OpenError::DuplicateTensor { name: name.clone(), first: next(), second: next() }
}
