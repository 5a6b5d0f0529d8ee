//! Every pass, in order.

use std::time::Instant;

use strata_graph::{Graph, NodeId, Rebuilt, Table, WindowKind, verify};
use strata_kernels::KernelSpec;
use strata_plan::dump::Summary;
use strata_plan::{Plan, PlanImage};

use crate::compute_lifetimes::{Lifetime, Lifetimes, compute_lifetimes, value_name, window_name};
use crate::config::CpuDevice;
use crate::dump;
use crate::emit_commit::{Commit, emit_commit};
use crate::emit_schedule::{Places, WindowTables, emit_schedule};
use crate::error::LowerError;
use crate::fuse;
use crate::generate_code::{CodeJob, generate_code};
use crate::input::CompileInput;
use crate::load_weights::{load_weights, pieces_text};
use crate::mark_outputs::mark_outputs;
use crate::order_nodes::order_nodes;
use crate::pack_arena::{ArenaLayout, pack_arena};
use crate::place_experts::{OtherBytes, place_experts};
use crate::quantize_activations::quantize_activations;
use crate::report::PassReport;
use crate::resolve_weights::{Checkpoint, resolve_weights};
use crate::select_kernels::{KernelChoice, select_kernels};
use crate::split_experts::split_experts;
use crate::states::{Paging, StatePlaces, StepLayout, check_pages, place_states};
use crate::write_plan::{FinalWindow, PlanParts, write_plan, write_reports};

/// The passes before [`REWRITES`].
const BEFORE_REWRITES: [&str; 2] = ["resolve_weights", "place_experts"];

/// The passes behind [`REWRITES`].
const BEHIND_REWRITES: [&str; 9] = [
    "order_nodes",
    "mark_outputs",
    "select_kernels",
    "compute_lifetimes",
    "pack_arena",
    "emit_schedule",
    "load_weights",
    "generate_code",
    "write_plan",
];

/// Names of the passes, in order: what `stop_after` can be.
pub const PASSES: &[&str] = &pass_names();

const PASS_COUNT: usize = BEFORE_REWRITES.len() + REWRITES.len() + BEHIND_REWRITES.len();

const fn pass_names() -> [&'static str; PASS_COUNT] {
    let (before, rewrites) = (BEFORE_REWRITES.len(), REWRITES.len());
    let mut names = [""; PASS_COUNT];
    let mut i = 0;
    while i < PASS_COUNT {
        names[i] = if i < before {
            BEFORE_REWRITES[i]
        } else if i < before + rewrites {
            REWRITES[i - before].0
        } else {
            BEHIND_REWRITES[i - before - rewrites]
        };
        i += 1;
    }
    names
}

/// A finished plan and what each pass did.
#[derive(Debug)]
pub struct Compiled {
    pub image: PlanImage,
    pub reports: Vec<PassReport>,
}

/// Hears what happens while a plan is made, and says where to stop.
pub struct Watch<'a> {
    /// Compilation ends behind this pass, one of [`PASSES`].
    pub stop_after: Option<&'a str>,
    /// Gets the name of each pass and its text: all windows' graphs, or what is known of them.
    pub on_phase: &'a mut dyn FnMut(&str, &str),
    /// Gets the count of kernels that are done, and of all.
    pub on_kernel: &'a (dyn Fn(usize, usize) + Sync),
}

impl std::fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("stop_after", &self.stop_after).finish_non_exhaustive()
    }
}

/// A pass from graph to graph that cannot fail.
type GraphPass = fn(&Graph) -> (Graph, Rebuilt);

/// The rewriting passes between placement and order.
const REWRITES: &[(&str, GraphPass)] = &[
    // First, so that both halves of the experts are products like others below.
    ("split_experts", split_experts),
    // Before fusions: they match products by the types of their inputs.
    ("quantize_activations", quantize_activations),
    // Before the residual sums, which would take the bare products away.
    ("fuse_gate_up", fuse::fuse_gate_up),
    // Behind gated products, which do the same in one launch where they can.
    ("fuse_act_mul", fuse::fuse_act_mul),
    // These two need the gated products of before.
    ("fuse_gated_quantize", fuse::fuse_gated_quantize),
    ("fuse_expert_quantize", fuse::fuse_expert_quantize),
    // Before residual sums: a sum behind a norm belongs to the norm.
    ("fuse_norm_add", fuse::fuse_norm_add),
    ("fuse_residual_add", fuse::fuse_residual_add),
    ("fuse_norm_quantize", fuse::fuse_norm_quantize),
    // Behind the norms that nothing reads in f32.
    ("fuse_norm_both", fuse::fuse_norm_both),
    // Behind gated products, of which some activations are part.
    ("fuse_row_quantize", fuse::fuse_row_quantize),
    // Behind row + quantize: a norm may have either form.
    ("fuse_hc_write_norm", fuse::fuse_hc_write_norm),
    // Behind residual sums, which the sum of experts takes along.
    ("fuse_expert_sum", fuse::fuse_expert_sum),
    // Behind the sum of experts, which finds the ids through the dispatch.
    ("fuse_route_dispatch", fuse::fuse_route_dispatch),
    // Before attention + quantize, which would hide which attention reads a state.
    ("fuse_attention_prologue", fuse::fuse_attention_prologue),
    ("fuse_attention_quantize", fuse::fuse_attention_quantize),
    // Last: whatever else joins a product with its neighbours has done so.
    ("fuse_projections", fuse::fuse_projections),
];

/// Compiles `input` to a plan. `None` if `watch` stopped it before the end.
///
/// # Errors
/// Users' mistakes and limits; see [`LowerError`].
///
/// # Panics
/// If a pass leaves a graph that breaks the rules of graphs, or the windows' graphs differ in weights
/// or states: faults of a pass, or of who built the graphs.
pub fn compile(
    input: &CompileInput<'_>,
    watch: &mut Watch<'_>,
) -> Result<Option<Compiled>, LowerError> {
    if let Some(found) = watch.stop_after.filter(|name| !PASSES.contains(name)) {
        return Err(LowerError::UnknownPass { found: found.to_owned() });
    }
    let cpu = input.config.cpu()?;
    let drafts = input.graphs.last().is_some_and(|g| g.window.kind == WindowKind::Draft);
    let need = input.config.windows(drafts).len();
    if input.graphs.len() != need {
        return Err(LowerError::Windows { found: input.graphs.len(), need });
    }
    for graph in &input.graphs[1..] {
        let first = &input.graphs[0];
        assert!(
            graph.weights() == first.weights() && graph.states() == first.states(),
            "all windows of a model have the same weights and states"
        );
    }
    let paging = Paging::new(input.config, input.model.context_tokens)?;
    check_pages(&input.graphs[0], &paging)?;
    let mut run = Run { input, cpu, paging, watch, reports: Vec::new() };
    run.all()
}

/// One compilation under way.
struct Run<'r, 'a, 'w> {
    input: &'r CompileInput<'a>,
    cpu: CpuDevice,
    paging: Paging,
    watch: &'r mut Watch<'w>,
    reports: Vec<PassReport>,
}

/// What is known of a window's nodes and values before weights have their final places.
struct SideTables {
    choices: Table<NodeId, KernelChoice>,
    lifetimes: Lifetimes,
    arena: ArenaLayout,
}

impl Run<'_, '_, '_> {
    fn all(&mut self) -> Result<Option<Compiled>, LowerError> {
        let input = self.input;
        // Types and byte ranges first: every later pass asks for a weight's element type.
        let checkpoint = Checkpoint::new(input.tensors, input.files);
        let mut graphs = Vec::with_capacity(input.graphs.len());
        for graph in &input.graphs {
            let started = Instant::now();
            let (resolved, report) = resolve_weights(graph, &checkpoint)?;
            self.checked("resolve_weights", &resolved);
            if graphs.is_empty() {
                self.report(report, started);
            }
            graphs.push(resolved);
        }
        if self.ends("resolve_weights", &graphs) {
            return Ok(None);
        }
        // The last one has the weights of the draft head, if there is one.
        let bases = [graphs[0].clone(), graphs[graphs.len() - 1].clone()];
        let base = &bases[0];
        // States and the step block have their sizes from the configuration and the windows alone.
        let states = place_states(&graphs, input.config, &self.paging);
        let step = StepLayout::new(&graphs, &self.paging);
        // Before rewriting, so that a plan that cannot fit is refused at once: whatever the arena.
        let other = self.other_bytes(&states, &step);
        let (policy, budget) = (input.config.weights, self.cpu.budget_bytes);
        let all_weights: Vec<&Graph> = bases.iter().collect();
        place_experts(&all_weights, policy, budget, other)?;
        if self.ends("place_experts", &graphs) {
            return Ok(None);
        }
        for &(pass, rewrite) in REWRITES {
            self.rewrite(pass, rewrite, &mut graphs);
            if self.ends(pass, &graphs) {
                return Ok(None);
            }
        }
        // Last of the rewriting passes: what is fused cannot be moved apart any more.
        for graph in &mut graphs {
            let started = Instant::now();
            let (ordered, report) = order_nodes(graph);
            self.checked("order_nodes", &ordered);
            self.report(report, started);
            *graph = ordered;
        }
        if self.ends("order_nodes", &graphs) {
            return Ok(None);
        }
        for graph in &mut graphs {
            let started = Instant::now();
            let marked = mark_outputs(graph, input.config.keep_values);
            self.checked("mark_outputs", &marked);
            let report = PassReport::new("mark_outputs", window_name(&marked))
                .count("outputs_count", marked.outputs().len() as u64);
            self.report(report, started);
            *graph = marked;
        }
        if self.ends("mark_outputs", &graphs) {
            return Ok(None);
        }
        let Some(tables) = self.tables(&graphs, &states)? else { return Ok(None) };
        // Again, since what the packed arena leaves of the budget is known only now.
        let started = Instant::now();
        let arena = tables.iter().map(|t| t.arena.bytes).max();
        let other = OtherBytes { arena, ..other };
        let (weights, report) = place_experts(&all_weights, policy, budget, other)?;
        self.report(report, started);
        let places = Places { weights: &weights, states: &states, step: &step };
        let (commits, report) = emit_commit(&graphs, places);
        let started = Instant::now();
        let Some(windows) = self.schedules(graphs, &tables, places) else { return Ok(None) };
        self.report(report, started);
        self.plan(base, (&windows, &commits), places)
    }

    /// Runs a rewriting pass over all windows; the report adds them up.
    fn rewrite(&mut self, pass: &'static str, rewrite: GraphPass, graphs: &mut [Graph]) {
        let started = Instant::now();
        let mut sum = Rebuilt::default();
        for graph in graphs {
            let (next, rebuilt) = rewrite(graph);
            self.checked(pass, &next);
            sum.nodes_before += rebuilt.nodes_before;
            sum.nodes_after += rebuilt.nodes_after;
            sum.nodes_replaced += rebuilt.nodes_replaced;
            *graph = next;
        }
        let report = PassReport::new(pass, "all windows")
            .count("nodes_before_count", sum.nodes_before.into())
            .count("nodes_count", sum.nodes_after.into())
            .count("nodes_replaced_count", sum.nodes_replaced.into());
        self.report(report, started);
    }

    /// Kernels, lifetimes and arena of every window.
    fn tables(
        &mut self,
        graphs: &[Graph],
        states: &StatePlaces,
    ) -> Result<Option<Vec<SideTables>>, LowerError> {
        let mut choices = Vec::new();
        for graph in graphs {
            let started = Instant::now();
            let (chosen, report) = select_kernels(graph, states, &self.paging)?;
            self.report(report, started);
            choices.push(chosen);
        }
        let texts = graphs.iter().zip(&choices).map(|(g, c)| dump::choices_text(g, c));
        if self.shows("select_kernels", &texts.collect::<Vec<_>>()) {
            return Ok(None);
        }
        // They count in groups between barriers, which fused nodes and their order fix.
        let mut lifetimes = Vec::new();
        for graph in graphs {
            let started = Instant::now();
            let (of_graph, report) = compute_lifetimes(graph);
            self.report(report, started);
            lifetimes.push(of_graph);
        }
        let texts = graphs.iter().zip(&lifetimes).map(|(g, l)| lifetimes_text(g, l));
        if self.shows("compute_lifetimes", &texts.collect::<Vec<_>>()) {
            return Ok(None);
        }
        let mut tables = Vec::new();
        for ((graph, lifetimes), choices) in graphs.iter().zip(lifetimes).zip(choices) {
            let started = Instant::now();
            let (arena, report) = pack_arena(graph, &lifetimes);
            self.report(report, started);
            tables.push(SideTables { choices, lifetimes, arena });
        }
        let text = |(g, t): (&Graph, &SideTables)| dump::arena_text(g, &t.lifetimes, &t.arena);
        let texts: Vec<String> = graphs.iter().zip(&tables).map(text).collect();
        Ok((!self.shows("pack_arena", &texts)).then_some(tables))
    }

    /// Commands of every window.
    fn schedules(
        &mut self,
        graphs: Vec<Graph>,
        tables: &[SideTables],
        places: Places<'_>,
    ) -> Option<Vec<FinalWindow>> {
        let mut windows = Vec::new();
        for (graph, SideTables { choices, lifetimes, arena }) in graphs.into_iter().zip(tables) {
            let started = Instant::now();
            let tables = WindowTables { graph: &graph, choices, lifetimes, arena };
            let (schedule, report) = emit_schedule(tables, places);
            self.report(report, started);
            windows.push(FinalWindow { schedule, arena_bytes: arena.bytes, graph });
        }
        let texts = windows.iter().map(|w| dump::schedule_text(&w.graph, &w.schedule));
        let ends = self.shows("emit_schedule", &texts.collect::<Vec<_>>());
        (!ends).then_some(windows)
    }

    /// Machine code, then the rows of the plan.
    fn plan(
        &mut self,
        base: &Graph,
        (windows, commits): (&[FinalWindow], &[Commit]),
        places: Places<'_>,
    ) -> Result<Option<Compiled>, LowerError> {
        let started = Instant::now();
        let (pieces, report) = load_weights(base, places.weights)?;
        self.report(report, started);
        if self.shows("load_weights", &[pieces_text(base, places.weights, &pieces)]) {
            return Ok(None);
        }
        let of_windows = windows.iter().flat_map(|w| w.schedule.specs.iter().copied());
        let of_loading = pieces.iter().flatten().filter_map(|piece| piece.spec);
        let of_commits = commits.iter().map(|commit| commit.spec);
        let mut specs: Vec<KernelSpec> = of_windows.chain(of_loading).chain(of_commits).collect();
        specs.sort_unstable();
        specs.dedup();
        let of = |&target| specs.iter().map(move |&spec| CodeJob { spec, target });
        let jobs: Vec<CodeJob> = self.cpu.targets.iter().flat_map(of).collect();
        let started = Instant::now();
        let (kernels, report) = generate_code(&jobs, &self.input.worker, self.watch.on_kernel)?;
        self.report(report, started);
        let keys: Vec<String> = specs.iter().map(KernelSpec::key).collect();
        if self.shows("generate_code", &keys) {
            return Ok(None);
        }
        let started = Instant::now();
        let parts = PlanParts {
            model: &self.input.model,
            config: self.input.config,
            cpu: &self.cpu,
            files: self.input.files,
            base,
            windows,
            commits,
            weights: places.weights,
            pack_file: &self.input.pack_file,
            pieces: &pieces,
            states: places.states,
            step: places.step,
            paging: &self.paging,
            specs: &specs,
            kernels: &kernels,
        };
        let (mut image, report) = write_plan(&parts);
        self.report(report, started);
        write_reports(&mut image, &self.reports);
        // Read back, so that no plan is handed out that cannot be opened.
        let summary = match Plan::from_bytes(&image.to_bytes()) {
            Ok(plan) => Summary::of(&plan).to_string(),
            Err(error) => return Err(LowerError::Plan { message: error.to_string() }),
        };
        if self.shows("write_plan", &[summary]) {
            return Ok(None);
        }
        Ok(Some(Compiled { image, reports: std::mem::take(&mut self.reports) }))
    }

    /// What is needed beside weights, before the arena is packed.
    fn other_bytes(&self, states: &StatePlaces, step: &StepLayout) -> OtherBytes {
        OtherBytes {
            states: states.bytes,
            arena: None,
            step: step.bytes.into(),
            page: states.token_bytes * u64::from(self.paging.page_tokens),
            pages: self.paging.pages_per_slot,
            page_tokens: self.paging.page_tokens,
        }
    }

    fn report(&mut self, mut report: PassReport, started: Instant) {
        report.seconds = started.elapsed().as_secs_f64();
        self.reports.push(report);
    }

    /// A graph that a pass has just made must keep all rules.
    fn checked(&self, pass: &str, graph: &Graph) {
        if let Err(errors) = verify::verify(graph) {
            let all: Vec<String> = errors.iter().map(ToString::to_string).collect();
            panic!("{pass} left a graph ({}) that breaks {}", window_name(graph), all.join("; "));
        }
    }

    /// Shows the graphs of a stage; true if it is the last one wanted.
    fn ends(&mut self, pass: &str, graphs: &[Graph]) -> bool {
        let texts: Vec<String> = graphs.iter().map(ToString::to_string).collect();
        self.shows(pass, &texts)
    }

    /// Shows the texts of a stage, one a window; true if it is the last one wanted.
    fn shows(&mut self, pass: &str, texts: &[String]) -> bool {
        (self.watch.on_phase)(pass, &texts.join("\n"));
        self.watch.stop_after == Some(pass)
    }
}

/// The lifetime of each value, in order of creation.
fn lifetimes_text(graph: &Graph, lifetimes: &Lifetimes) -> String {
    let ((peak, at), groups) = (lifetimes.peak(), lifetimes.groups.count);
    let mut lines = vec![format!(
        "; strata lifetimes 1 | {} | {} | {groups} groups, {peak} bytes at peak in group {at}",
        graph.model,
        window_name(graph),
    )];
    for (value, lifetime) in lifetimes.of_value.iter() {
        let Some(Lifetime { first, last, bytes }) = lifetime else { continue };
        let name = value_name(graph, value);
        lines.push(format!("  groups {first:>4}..={last:<4} {bytes:>10} bytes  {name}"));
    }
    lines.join("\n") + "\n"
}
