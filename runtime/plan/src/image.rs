//! A plan in the making: the rows of each section, and their bytes.

use std::collections::BTreeMap;

use bytemuck::Zeroable;

use crate::layout::{
    Arg, CODE_ALIGN_BYTES, Command, Device, FORMAT, File, Header, Kernel, MAGIC, Model, Name,
    Output, Part, Provenance, SECTION_ALIGN_BYTES, Schedule, Section, Space, State, Target, Text,
    Weight, section,
};

/// All sections of a plan, as a compiler fills them.
#[derive(Clone, Debug)]
pub struct PlanImage {
    pub model: Model,
    pub devices: Vec<Device>,
    pub targets: Vec<Target>,
    pub spaces: Vec<Space>,
    pub schedules: Vec<Schedule>,
    pub outputs: Vec<Output>,
    pub commands: Vec<Command>,
    /// One for each command.
    pub provenance: Vec<Provenance>,
    pub args: Vec<Arg>,
    pub kernels: Vec<Kernel>,
    pub code: Vec<u8>,
    pub files: Vec<File>,
    pub weights: Vec<Weight>,
    pub parts: Vec<Part>,
    pub states: Vec<State>,
    pub constants: Vec<f32>,
    pub tokens: Vec<u32>,
    texts: Vec<Text>,
    text_bytes: Vec<u8>,
    names: Vec<Name>,
    name_bytes: Vec<u8>,
    name_index: BTreeMap<String, u32>,
}

impl Default for PlanImage {
    fn default() -> Self {
        Self {
            model: Model::zeroed(),
            devices: Vec::new(),
            targets: Vec::new(),
            spaces: Vec::new(),
            schedules: Vec::new(),
            outputs: Vec::new(),
            commands: Vec::new(),
            provenance: Vec::new(),
            args: Vec::new(),
            kernels: Vec::new(),
            code: Vec::new(),
            files: Vec::new(),
            weights: Vec::new(),
            parts: Vec::new(),
            states: Vec::new(),
            constants: Vec::new(),
            tokens: Vec::new(),
            texts: Vec::new(),
            text_bytes: Vec::new(),
            names: Vec::new(),
            name_bytes: Vec::new(),
            name_index: BTreeMap::new(),
        }
    }
}

impl PlanImage {
    /// The row of NAMES for `text`; equal strings share a row.
    pub fn name(&mut self, text: &str) -> u32 {
        if let Some(&row) = self.name_index.get(text) {
            return row;
        }
        let narrow = |n: usize| u32::try_from(n).expect("names take less than 4 GiB");
        let row = narrow(self.names.len());
        self.names.push(Name { offset: narrow(self.name_bytes.len()), bytes: narrow(text.len()) });
        self.name_bytes.extend_from_slice(text.as_bytes());
        self.name_index.insert(text.to_owned(), row);
        row
    }

    /// Adds a text of one of the kinds in [`crate::layout::text`] and returns its row.
    pub fn text(&mut self, kind: u32, name: &str, body: &str) -> u32 {
        let name = self.name(name);
        let row = u32::try_from(self.texts.len()).expect("a plan has few texts");
        let offset = self.text_bytes.len() as u64;
        self.texts.push(Text { kind, name, offset, bytes: body.len() as u64, reserved: 0 });
        self.text_bytes.extend_from_slice(body.as_bytes());
        row
    }

    /// The file. The same image gives the same bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        fn rows<T: bytemuck::Pod>(kind: u32, rows: &[T]) -> (u32, u32, &[u8]) {
            let row_bytes = u32::try_from(size_of::<T>()).expect("rows are small");
            (kind, row_bytes, bytemuck::cast_slice(rows))
        }
        let model = [self.model];
        let sections = [
            rows(section::MODEL, &model),
            rows(section::DEVICES, &self.devices),
            rows(section::TARGETS, &self.targets),
            rows(section::SPACES, &self.spaces),
            rows(section::SCHEDULES, &self.schedules),
            rows(section::COMMANDS, &self.commands),
            rows(section::ARGS, &self.args),
            rows(section::KERNELS, &self.kernels),
            rows(section::CODE, &self.code),
            rows(section::FILES, &self.files),
            rows(section::WEIGHTS, &self.weights),
            rows(section::PARTS, &self.parts),
            rows(section::STATES, &self.states),
            rows(section::CONSTANTS, &self.constants),
            rows(section::TOKENS, &self.tokens),
            rows(section::NAMES, &self.names),
            rows(section::NAME_BYTES, &self.name_bytes),
            rows(section::PROVENANCE, &self.provenance),
            rows(section::TEXTS, &self.texts),
            rows(section::TEXT_BYTES, &self.text_bytes),
            rows(section::OUTPUTS, &self.outputs),
        ];
        let mut out = vec![0; size_of::<Header>() + sections.len() * size_of::<Section>()];
        for (i, (kind, row_bytes, body)) in sections.iter().enumerate() {
            let align = if *kind == section::CODE { CODE_ALIGN_BYTES } else { SECTION_ALIGN_BYTES };
            out.resize(out.len().next_multiple_of(align as usize), 0);
            let row = Section {
                kind: *kind,
                row_bytes: *row_bytes,
                offset: out.len() as u64,
                count: body.len() as u64 / u64::from(*row_bytes),
                reserved: 0,
            };
            let at = size_of::<Header>() + i * size_of::<Section>();
            out[at..at + size_of::<Section>()].copy_from_slice(bytemuck::bytes_of(&row));
            out.extend_from_slice(body);
        }
        let header = Header {
            magic: MAGIC,
            format: FORMAT,
            section_count: u32::try_from(sections.len()).expect("a fixed list"),
            file_bytes: out.len() as u64,
            checksum: crate::checksum(&out[size_of::<Header>()..]),
            reserved: [0; 4],
        };
        out[..size_of::<Header>()].copy_from_slice(bytemuck::bytes_of(&header));
        out
    }
}
