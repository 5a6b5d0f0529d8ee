//! The one place that sees LLVM: a kernel under construction, and the values it is made of.
//!
//! A [`Val`] with one lane is uniform, a `Val` with several lanes is varying. Element operations
//! take either and spread a uniform operand over the lanes of the other, so an op is written once
//! for every width. A vector may have more lanes than a register: 16 lanes is the natural width of
//! the numeric contract, and LLVM splits it where registers are narrower.

mod arith;
mod emit;
mod flow;
mod memory;
mod types;
mod vector;
mod x86;

pub use arith::Compare;
pub use emit::Output;
pub use types::{Elem, Ty, Val};

use crate::target::{Target, TargetFacts};
use inkwell::AddressSpace;
use inkwell::attributes::AttributeLoc;
use inkwell::builder::Builder;
use inkwell::context::Context;
use inkwell::intrinsics::Intrinsic;
use inkwell::module::Module;
use inkwell::types::{AnyType, BasicTypeEnum};
use inkwell::values::{BasicMetadataValueEnum, FunctionValue, PointerValue};

/// The words of the live step block that kernels read (operand 0 of every kernel, `u32[16]`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepWord {
    /// Live rows of the window.
    Rows = 0,
    /// Rows whose logits are wanted.
    LogitRows = 1,
    /// Sequences whose accepted rows are committed.
    Commits = 2,
}

/// One kernel under construction:
/// `extern "C" fn(args: *const u64, part: u64, parts: u64)`.
pub struct KernelBuilder<'c> {
    context: &'c Context,
    module: Module<'c>,
    builder: Builder<'c>,
    function: FunctionValue<'c>,
    target: Target,
}

/// Symbol of the entry point in every kernel's module.
pub(crate) const ENTRY: &str = "kernel";

/// Owns what LLVM needs while kernels are built. Not `Send`: one per thread.
pub struct Workspace(Context);

impl Workspace {
    pub fn new() -> Self {
        Self(Context::create())
    }
}

impl Default for Workspace {
    fn default() -> Self {
        Self::new()
    }
}

impl<'c> KernelBuilder<'c> {
    /// An empty kernel, positioned at its entry.
    pub fn new(workspace: &'c Workspace, target: Target) -> Self {
        let context = &workspace.0;
        let module = context.create_module(ENTRY);
        let pointer = context.ptr_type(AddressSpace::default());
        let word = context.i64_type();
        let signature =
            context.void_type().fn_type(&[pointer.into(), word.into(), word.into()], false);
        let function = module.add_function(ENTRY, signature, None);
        let facts = target.facts();
        // "no-builtins" keeps LLVM from turning loops into calls of memset and memcpy.
        let attributes =
            [("target-cpu", facts.cpu), ("target-features", facts.features), ("no-builtins", "")];
        for (key, value) in attributes {
            function
                .add_attribute(AttributeLoc::Function, context.create_string_attribute(key, value));
        }
        let width = if facts.lanes == 16 { "512" } else { "256" };
        for key in ["prefer-vector-width", "min-legal-vector-width"] {
            function
                .add_attribute(AttributeLoc::Function, context.create_string_attribute(key, width));
        }
        // Without it spilled vectors may straddle cache lines.
        let realign = context.create_string_attribute("stackrealign", "");
        function.add_attribute(AttributeLoc::Function, realign);
        let nounwind = inkwell::attributes::Attribute::get_named_enum_kind_id("nounwind");
        function.add_attribute(AttributeLoc::Function, context.create_enum_attribute(nounwind, 0));
        let builder = context.create_builder();
        builder.position_at_end(context.append_basic_block(function, "entry"));
        Self { context, module, builder, function, target }
    }

    pub fn target(&self) -> Target {
        self.target
    }

    pub fn facts(&self) -> &'static TargetFacts {
        self.target.facts()
    }

    /// The address of operand `index`.
    pub fn operand(&self, index: u32) -> Val<'c> {
        self.operand_at(self.i64(index.into()))
    }

    /// The address of operand `index` (i64), which is known only when the kernel runs.
    pub fn operand_at(&self, index: Val<'c>) -> Val<'c> {
        let table = Val(self.function.get_nth_param(0).expect("three parameters"));
        self.load(Elem::Ptr.scalar(), self.element(table, index, 8))
    }

    /// A live word of the step block (operand 0), as i64.
    pub fn step_word(&self, word: StepWord) -> Val<'c> {
        let step = self.operand(0);
        let value = self.load(Elem::I32.scalar(), self.offset(step, word as i64 * 4));
        self.zext(value, Elem::I64)
    }

    /// This part's number, below [`parts`](Self::parts).
    pub fn part(&self) -> Val<'c> {
        Val(self.function.get_nth_param(1).expect("three parameters"))
    }

    pub fn parts(&self) -> Val<'c> {
        Val(self.function.get_nth_param(2).expect("three parameters"))
    }

    /// This part's share `[begin, end)` of `units` units of work (i64).
    pub fn share(&self, units: Val<'c>) -> (Val<'c>, Val<'c>) {
        let next = self.add(self.part(), self.i64(1));
        let begin = self.udiv(self.mul(units, self.part()), self.parts());
        let end = self.udiv(self.mul(units, next), self.parts());
        (begin, end)
    }

    /// Ends the kernel.
    pub fn finish(&self) {
        self.builder.build_return(None).expect(POSITIONED);
    }

    fn type_of(&self, ty: Ty) -> BasicTypeEnum<'c> {
        types::lower(self.context, ty)
    }

    /// Calls an LLVM intrinsic. An unknown name would pass LLVM's verifier and become an external
    /// symbol, so it is looked up; the names are literals of this folder.
    fn intrinsic(&self, name: &str, overloads: &[Ty], args: &[Val<'c>]) -> Option<Val<'c>> {
        let intrinsic = Intrinsic::find(name).expect("an intrinsic of this LLVM");
        let overloads: Vec<_> = overloads.iter().map(|&t| self.type_of(t)).collect();
        let callee = intrinsic.get_declaration(&self.module, &overloads);
        let callee = callee.expect("overloads fit the intrinsic");
        let args: Vec<BasicMetadataValueEnum> = args.iter().map(|v| v.0.into()).collect();
        let call = self.builder.build_call(callee, &args, "").expect(POSITIONED);
        callee.get_type().get_return_type()?;
        debug_assert!(!callee.get_type().as_any_type_enum().is_void_type());
        call.try_as_basic_value().basic().map(Val)
    }

    fn pointer(&self, address: Val<'c>) -> PointerValue<'c> {
        address.0.into_pointer_value()
    }
}

/// Why building an instruction cannot fail: the builder always stands at the end of a block.
const POSITIONED: &str = "the builder stands in a block";
