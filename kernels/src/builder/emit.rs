//! From a finished kernel to text or an object file.

use super::KernelBuilder;
use crate::target::TargetFacts;
use inkwell::OptimizationLevel;
use inkwell::passes::PassBuilderOptions;
use inkwell::targets::{
    CodeModel, FileType, InitializationConfig, RelocMode, Target as LlvmTarget, TargetMachine,
    TargetTriple,
};

/// What LLVM shall make of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    Object,
    Assembly,
    /// LLVM IR before optimisation.
    Ir,
}

impl KernelBuilder<'_> {
    /// Verifies, optimises and emits the kernel. The error is LLVM's text.
    pub fn emit(self, output: Output) -> Result<Vec<u8>, String> {
        self.module.verify().map_err(|e| e.to_string())?;
        if output == Output::Ir {
            return Ok(self.module.print_to_string().to_string().into_bytes());
        }
        let machine = machine(self.facts())?;
        self.module.set_triple(&machine.get_triple());
        self.module.set_data_layout(&machine.get_target_data().get_data_layout());
        let options = PassBuilderOptions::create();
        // Ops choose widths and unrolling themselves: register pressure is planned there.
        options.set_loop_unrolling(false);
        options.set_loop_vectorization(false);
        options.set_loop_interleaving(false);
        options.set_loop_slp_vectorization(false);
        self.module.run_passes("default<O3>", &machine, options).map_err(|e| e.to_string())?;
        let kind = match output {
            Output::Assembly => FileType::Assembly,
            Output::Object | Output::Ir => FileType::Object,
        };
        let buffer =
            machine.write_to_memory_buffer(&self.module, kind).map_err(|e| e.to_string())?;
        Ok(buffer.as_slice().to_vec())
    }
}

fn machine(facts: &TargetFacts) -> Result<TargetMachine, String> {
    LlvmTarget::initialize_x86(&InitializationConfig::default());
    let triple = TargetTriple::create(facts.triple);
    let target = LlvmTarget::from_triple(&triple).map_err(|e| e.to_string())?;
    let machine = target.create_target_machine(
        &triple,
        facts.cpu,
        facts.features,
        OptimizationLevel::Aggressive,
        RelocMode::PIC,
        CodeModel::Small,
    );
    machine.ok_or_else(|| format!("this LLVM cannot make code for {}", facts.cpu))
}
