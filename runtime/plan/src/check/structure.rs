//! Header and directory: what must hold before a section can be read as rows.

use std::ops::Range;

use crate::error::PlanError;
use crate::layout::{
    Arg, CODE_ALIGN_BYTES, Command, Device, FORMAT, File, Header, Kernel, MAGIC, Model, Name,
    Output, Part, Provenance, SECTION_ALIGN_BYTES, Schedule, Section, Space, State, Target, Text,
    Weight, section,
};
use crate::open::Sections;

/// Bytes of a row of each section, in the order of [`section::ALL`].
const ROW_BYTES: [usize; section::ALL.len()] = [
    size_of::<Model>(),
    size_of::<Device>(),
    size_of::<Target>(),
    size_of::<Space>(),
    size_of::<Schedule>(),
    size_of::<Command>(),
    size_of::<Arg>(),
    size_of::<Kernel>(),
    1,
    size_of::<File>(),
    size_of::<Weight>(),
    size_of::<Part>(),
    size_of::<State>(),
    4,
    4,
    size_of::<Name>(),
    1,
    size_of::<Provenance>(),
    size_of::<Text>(),
    1,
    size_of::<Output>(),
];

/// Checks header and directory of a plan and returns where its sections lie.
pub(crate) fn sections(bytes: &[u8]) -> Result<Sections, PlanError> {
    let file_bytes = bytes.len() as u64;
    let short = |needed: usize| PlanError::TooShort {
        found_bytes: file_bytes,
        needed_bytes: needed as u64,
    };
    let magic = bytes.first_chunk::<8>().ok_or_else(|| short(size_of::<Header>()))?;
    if *magic != MAGIC {
        return Err(PlanError::Magic { found: *magic });
    }
    let header = bytes.get(..size_of::<Header>()).ok_or_else(|| short(size_of::<Header>()))?;
    let header: Header = bytemuck::pod_read_unaligned(header);
    if header.format != FORMAT {
        return Err(PlanError::Format { found: header.format, needed: FORMAT });
    }
    if header.file_bytes != file_bytes {
        return Err(PlanError::FileBytes { found: file_bytes, stated: header.file_bytes });
    }
    let checksum = crate::checksum(&bytes[size_of::<Header>()..]);
    if checksum != header.checksum {
        return Err(PlanError::Checksum { found: checksum, stated: header.checksum });
    }
    if header.reserved != [0; 4] {
        return Err(PlanError::Reserve { section: "HEADER", row: 0 });
    }
    let directory_bytes = (header.section_count as usize).checked_mul(size_of::<Section>());
    let end = directory_bytes.and_then(|n| n.checked_add(size_of::<Header>()));
    let directory = end.and_then(|end| bytes.get(size_of::<Header>()..end));
    let directory = directory.ok_or_else(|| short(end.unwrap_or(usize::MAX)))?;
    let mut ranges: [Option<Range<usize>>; section::ALL.len()] = Default::default();
    let mut earliest = end.unwrap_or(usize::MAX);
    for (index, row) in directory.chunks_exact(size_of::<Section>()).enumerate() {
        let row: Section = bytemuck::pod_read_unaligned(row);
        let range = section_range(index, &row, earliest, bytes.len())?;
        earliest = range.end;
        let (kind, name) = (row.kind as usize - 1, section::ALL[row.kind as usize - 1].1);
        if ranges[kind].replace(range).is_some() {
            return Err(PlanError::SectionTwice { section: name });
        }
    }
    let mut found: [Range<usize>; section::ALL.len()] = Default::default();
    for (kind, range) in ranges.into_iter().enumerate() {
        let name = section::ALL[kind].1;
        found[kind] = range.ok_or(PlanError::SectionMissing { section: name })?;
    }
    Ok(Sections::new(found))
}

/// Where one section lies: after `earliest`, inside the file, aligned.
fn section_range(
    index: usize,
    row: &Section,
    earliest: usize,
    file_bytes: usize,
) -> Result<Range<usize>, PlanError> {
    let known = section::ALL.iter().position(|(kind, _)| *kind == row.kind);
    let at = known.ok_or(PlanError::SectionKind { index, found: row.kind })?;
    let (kind, section) = section::ALL[at];
    if row.reserved != 0 {
        return Err(PlanError::Reserve { section: "DIRECTORY", row: index });
    }
    let needed = u32::try_from(ROW_BYTES[at]).expect("rows are small");
    if row.row_bytes != needed {
        return Err(PlanError::RowBytes { section, found: row.row_bytes, needed });
    }
    let align_bytes = if kind == section::CODE { CODE_ALIGN_BYTES } else { SECTION_ALIGN_BYTES };
    if !row.offset.is_multiple_of(align_bytes) {
        return Err(PlanError::SectionAlign { section, offset: row.offset, align_bytes });
    }
    let outside = PlanError::SectionRange {
        section,
        rows: row.count,
        offset: row.offset,
        file_bytes: file_bytes as u64,
    };
    let bytes = row.count.checked_mul(u64::from(row.row_bytes));
    let end = bytes.and_then(|bytes| row.offset.checked_add(bytes));
    let (Ok(start), Some(Ok(end))) = (usize::try_from(row.offset), end.map(usize::try_from)) else {
        return Err(outside);
    };
    if end > file_bytes {
        return Err(outside);
    }
    if start < earliest {
        let earliest = earliest as u64;
        return Err(PlanError::SectionOrder { section, offset: row.offset, earliest });
    }
    Ok(start..end)
}
