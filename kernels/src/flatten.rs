//! Flattens a relocatable x86-64 ELF object into one position-independent blob.

use crate::builder::ENTRY;
use crate::codegen::CompiledKernel;
use crate::error::KernelError;
use crate::spec::KernelSpec;
use object::{
    File, Object, ObjectSection, ObjectSymbol, Relocation, RelocationFlags, RelocationTarget,
    SectionKind, elf,
};
use std::collections::BTreeMap;

/// Places code and constants one after another (64-byte aligned) and resolves the references
/// between them. Returns the blob and the offset of the entry point.
///
/// # Errors
/// Undefined symbols, writable data and relocations that are not relative to the instruction.
pub(crate) fn flatten(object: &[u8], spec: &KernelSpec) -> Result<(Vec<u8>, u32), KernelError> {
    let malformed = |message: String| KernelError::Object { kernel: spec.key(), message };
    let file = File::parse(object).map_err(|e| malformed(e.to_string()))?;
    let (mut blob, bases) = place(&file, spec)?;
    for section in file.sections() {
        let Some(&base) = bases.get(&section.index().0) else { continue };
        for (offset, relocation) in section.relocations() {
            let position = base + usize::try_from(offset).expect("offsets lie in the section");
            let target = symbol_offset(&file, &bases, &relocation, spec)?;
            let RelocationFlags::Elf { r_type: elf::R_X86_64_PC32 | elf::R_X86_64_PLT32 } =
                relocation.flags()
            else {
                return Err(malformed(format!("relocation {:?}", relocation.flags())));
            };
            let distance = target + relocation.addend() - position as i64;
            let distance = i32::try_from(distance).map_err(|e| malformed(e.to_string()))?;
            blob[position..position + 4].copy_from_slice(&distance.to_le_bytes());
        }
    }
    // The file's own symbol may have the same name, so only a definition counts.
    let entry = file.symbols().find(|s| s.is_definition() && s.name() == Ok(ENTRY));
    let entry = entry.and_then(|symbol| {
        let base = bases.get(&symbol.section_index()?.0)?;
        u32::try_from(*base as u64 + symbol.address()).ok()
    });
    let entry = entry.ok_or_else(|| malformed("it has no entry point".into()))?;
    Ok((blob, entry))
}

/// Where each kept section (by its number) begins in the blob.
type Bases = BTreeMap<usize, usize>;

fn place(file: &File<'_>, spec: &KernelSpec) -> Result<(Vec<u8>, Bases), KernelError> {
    /// `int3`: running into padding traps.
    const PADDING: u8 = 0xcc;
    let mut blob = Vec::new();
    let mut bases = BTreeMap::new();
    for section in file.sections().filter(|s| s.size() > 0) {
        let name = section.name().unwrap_or("?");
        match section.kind() {
            SectionKind::Text
            | SectionKind::ReadOnlyData
            | SectionKind::ReadOnlyDataWithRel
            | SectionKind::ReadOnlyString
                if !name.starts_with(".eh_frame") =>
            {
                blob.resize(blob.len().next_multiple_of(CompiledKernel::ALIGN_BYTES), PADDING);
                bases.insert(section.index().0, blob.len());
                let bytes = section.data().map_err(|e| KernelError::Object {
                    kernel: spec.key(),
                    message: e.to_string(),
                })?;
                blob.extend_from_slice(bytes);
            }
            SectionKind::Data | SectionKind::UninitializedData => {
                return Err(KernelError::WritableSection {
                    kernel: spec.key(),
                    section: name.to_owned(),
                    bytes: section.size(),
                });
            }
            _ => {}
        }
    }
    Ok((blob, bases))
}

fn symbol_offset(
    file: &File<'_>,
    bases: &Bases,
    relocation: &Relocation,
    spec: &KernelSpec,
) -> Result<i64, KernelError> {
    let RelocationTarget::Symbol(index) = relocation.target() else {
        let message = "a relocation has no symbol".to_owned();
        return Err(KernelError::Object { kernel: spec.key(), message });
    };
    let symbol = file
        .symbol_by_index(index)
        .map_err(|e| KernelError::Object { kernel: spec.key(), message: e.to_string() })?;
    let base = symbol.section_index().and_then(|section| bases.get(&section.0));
    match base {
        Some(&base) => Ok(base as i64 + symbol.address() as i64),
        None => Err(KernelError::ExternalSymbol {
            kernel: spec.key(),
            symbol: symbol.name().unwrap_or("?").to_owned(),
        }),
    }
}
