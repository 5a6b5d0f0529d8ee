//! `strata compile`.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::json;
use strata_formats::{Checkpoint, Kind};
use strata_lowering::{
    CodeWorker, CompileInput, Compiled, Config, FileEntry, ModelFacts, PassReport, TensorEntry,
    TensorFormat, Watch,
};
use strata_models::{ChatTemplate, ModelDef, TokenizerSource};

use crate::CliError;
use crate::error::Doing;
use crate::import::relative_to;
use crate::progress::Progress;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  strata compile smollm2.ron -o smollm2.plan
  strata compile model.ron --config configs/portable.ron --weights model-Q8_0.gguf
  strata compile model.ron --stop-after fuse_gate_up
  strata compile model.ron --dump-phases phases/ --json")]
pub struct CompileArgs {
    /// Model definition
    model: PathBuf,
    /// Machine and deployment; the defaults of configs/default.ron if not given
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Weights instead of those that the definition names
    #[arg(long, value_name = "FILE")]
    weights: Option<PathBuf>,
    /// The plan; MODEL.plan if not given
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print the text form after this pass and stop
    #[arg(long, value_name = "PASS")]
    stop_after: Option<String>,
    /// Write the text form after every pass into this folder
    #[arg(long, value_name = "DIR")]
    dump_phases: Option<PathBuf>,
    /// Print the passes' reports as one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs `strata compile`.
pub fn compile(
    args: &CompileArgs,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<(), CliError> {
    let plan = args.output.clone().unwrap_or_else(|| args.model.with_extension("plan"));
    let Some(compiled) = compile_to(args, &plan, progress, out)? else { return Ok(()) };
    if args.json {
        let passes: Vec<_> = compiled
            .reports
            .iter()
            .map(|report| {
                let mut pass = report.to_json();
                pass["seconds"] = json!(report.seconds);
                pass
            })
            .collect();
        let summary = json!({ "plan": plan, "passes": passes });
        serde_json::to_writer(&mut *out, &summary).doing("writing JSON")?;
        writeln!(out)?;
    } else {
        for report in one_a_pass(&compiled.reports) {
            writeln!(out, "{report}")?;
        }
        writeln!(out, "wrote {}", plan.display())?;
    }
    Ok(())
}

/// One line for each pass: of those that see each window by itself, the largest window's.
fn one_a_pass(reports: &[PassReport]) -> Vec<&PassReport> {
    let mut lines: Vec<&PassReport> = Vec::new();
    for report in reports {
        match lines.iter_mut().find(|line| line.pass == report.pass) {
            Some(line) => *line = report,
            None => lines.push(report),
        }
    }
    lines
}

/// Compiles a definition into the cache, unless this very program did so for this CPU before;
/// returns the plan.
pub fn compile_into_cache(model: &Path, progress: &Progress) -> Result<PathBuf, CliError> {
    let text = crate::files::read_text(model)?;
    let full = std::fs::canonicalize(model)
        .map_err(|error| CliError::Read { path: model.to_owned(), error })?;
    let build = std::env::current_exe()
        .and_then(std::fs::metadata)
        .and_then(|exe| Ok((exe.len(), exe.modified()?)))
        .doing("looking at this program")?;
    let target = strata_kernels::Target::of_this_machine();
    let key = format!("{}\n{text}\n{build:?}\n{target:?}", full.display());
    let key = strata_plan::checksum(key.as_bytes());
    let stem = model.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let plan = crate::files::cache_dir()?.join(format!("{stem}-{key:016x}.plan"));
    if let Ok(cached) = strata_plan::Plan::open(&plan)
        && strata_replay::check_files(&cached, &plan).is_ok()
    {
        return Ok(plan);
    }
    progress.note(&format!("compiling {} into {}", model.display(), plan.display()));
    let args = CompileArgs {
        model: model.to_owned(),
        config: None,
        weights: None,
        output: None,
        stop_after: None,
        dump_phases: None,
        json: false,
    };
    compile_to(&args, &plan, progress, &mut std::io::sink())?;
    Ok(plan)
}

/// Compiles and writes the plan; `None` if it stopped after a pass.
fn compile_to(
    args: &CompileArgs,
    plan: &Path,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Option<Compiled>, CliError> {
    let definition = strata_models::parse(&crate::files::read_text(&args.model)?)
        .doing(format!("reading {}", args.model.display()))?;
    let config = read_config(args.config.as_deref())?;
    let sources = Sources::open(args, &definition, plan)?;
    // What a window reads of all positions is sized by the positions that there can be.
    let context = definition.context.min(config.sequences.context_tokens.max(1));
    let sized = ModelDef { context, ..definition.clone() };
    let graphs = config
        .windows(definition.draft.is_some())
        .into_iter()
        .map(|window| strata_models::build(&sized, window))
        .collect::<Result<Vec<_>, _>>()
        .doing(format!("building the graphs of {}", definition.name))?;
    let input = CompileInput {
        model: sources.facts(&definition, args)?,
        graphs,
        tensors: &sources.tensors,
        files: &sources.files,
        config: &config,
        pack_file: pack_file(plan),
        worker: worker()?,
    };
    let bar = progress.count("kernels", 0);
    let mut shown = None;
    let mut dumped = Ok(());
    let mut number = 0;
    let stop_after = args.stop_after.as_deref();
    let mut watch = Watch {
        stop_after,
        on_phase: &mut |phase, text| {
            number += 1;
            if let Some(dir) = &args.dump_phases
                && dumped.is_ok()
            {
                dumped = dump_phase(dir, number, phase, text);
            }
            shown = (stop_after == Some(phase)).then(|| text.to_owned());
        },
        on_kernel: &|done, all| {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
        },
    };
    let result = strata_lowering::compile(&input, &mut watch);
    bar.finish_and_clear();
    let compiled = result.doing(format!("compiling {}", definition.name))?;
    dumped?;
    let Some(compiled) = compiled else {
        out.write_all(shown.unwrap_or_default().as_bytes())?;
        return Ok(None);
    };
    strata_plan::write_plan_file(plan, &compiled.image)
        .map_err(|error| CliError::Write { path: plan.to_owned(), error })?;
    Ok(Some(compiled))
}

/// Name of the packed file of `plan`, never that of the plan itself.
fn pack_file(plan: &Path) -> String {
    let is_plan = plan.extension().is_some_and(|extension| extension == "plan");
    let stem = if is_plan { plan.file_stem() } else { plan.file_name() };
    format!("{}.pack", stem.unwrap_or_default().to_string_lossy())
}

fn dump_phase(dir: &Path, number: usize, pass: &str, text: &str) -> Result<(), CliError> {
    std::fs::create_dir_all(dir)
        .map_err(|error| CliError::Write { path: dir.to_owned(), error })?;
    crate::files::write_whole(&dir.join(format!("{number:02}-{pass}.txt")), text.as_bytes())
}

fn read_config(path: Option<&Path>) -> Result<Config, CliError> {
    let Some(path) = path else { return Ok(Config::default()) };
    ron::from_str(&crate::files::read_text(path)?).doing(format!("reading {}", path.display()))
}

/// Kernels are generated by processes of this very program, so that an abort in the code generator
/// is an error that names its kernel.
fn worker() -> Result<CodeWorker, CliError> {
    let exe = std::env::current_exe().doing("finding this program for its workers")?;
    let processes = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    Ok(CodeWorker::Process { exe, args: vec!["codegen-worker".into()], processes })
}

/// Runs the hidden `strata codegen-worker`.
pub fn codegen_worker(out: &mut dyn Write) -> Result<(), CliError> {
    let mut requests = std::io::stdin().lock();
    strata_lowering::serve_kernels(&mut requests, out).doing("generating kernels")
}

/// The files of a model, as the compiler wants them.
struct Sources {
    checkpoints: Vec<Checkpoint>,
    files: Vec<FileEntry>,
    tensors: Vec<TensorEntry>,
    tokenizer_file: u32,
    tokenizer_path: PathBuf,
}

impl Sources {
    fn open(args: &CompileArgs, definition: &ModelDef, plan: &Path) -> Result<Self, CliError> {
        let folder = args.model.parent().unwrap_or(Path::new(""));
        let plan_folder = plan.parent().unwrap_or(Path::new(""));
        let paths: Vec<PathBuf> = match &args.weights {
            Some(path) => vec![path.clone()],
            None => definition.weights.files.iter().map(|file| folder.join(file)).collect(),
        };
        let mut sources = Self {
            checkpoints: Vec::new(),
            files: Vec::new(),
            tensors: Vec::new(),
            tokenizer_file: 0,
            tokenizer_path: PathBuf::new(),
        };
        for path in &paths {
            sources.add_checkpoint(path, plan_folder)?;
        }
        let Some(first) = sources.checkpoints.first() else {
            return Err(CliError::Usage(format!(
                "{} names no weight files: fill weights.files or give --weights",
                args.model.display()
            )));
        };
        let tokenizer = match (&definition.tokenizer, first.kind()) {
            (TokenizerSource::File(file), _) => Some(folder.join(file)),
            (TokenizerSource::SameAsWeights, Kind::Gguf) => None,
            (TokenizerSource::SameAsWeights, Kind::Safetensors) => {
                first.tokenizer_json().map(Path::to_owned)
            }
        };
        match tokenizer {
            Some(path) => sources.add_tokenizer(&path, plan_folder)?,
            None => sources.tokenizer_path = first.files()[0].path.clone(),
        }
        Ok(sources)
    }

    fn add_checkpoint(&mut self, path: &Path, plan_folder: &Path) -> Result<(), CliError> {
        let checkpoint =
            Checkpoint::open(path).doing(format!("opening the weights {}", path.display()))?;
        let first_file = u32::try_from(self.files.len()).expect("a model has few files");
        for file in checkpoint.files() {
            self.files.push(FileEntry {
                path: relative_to(plan_folder, &file.path)?,
                bytes: file.bytes,
                header_hash: file.header_hash,
            });
        }
        self.tensors.extend(checkpoint.tensors().map(|tensor| TensorEntry {
            name: tensor.name.clone(),
            format: format_of(tensor.ty.name()),
            dims: tensor.dims.iter().rev().copied().collect(),
            file: first_file + tensor.file,
            offset: tensor.offset,
            bytes: tensor.bytes,
        }));
        self.checkpoints.push(checkpoint);
        Ok(())
    }

    fn add_tokenizer(&mut self, path: &Path, plan_folder: &Path) -> Result<(), CliError> {
        let metadata = std::fs::metadata(path)
            .map_err(|error| CliError::Read { path: path.to_owned(), error })?;
        self.tokenizer_file = u32::try_from(self.files.len()).expect("a model has few files");
        self.files.push(FileEntry {
            path: relative_to(plan_folder, path)?,
            bytes: metadata.len(),
            header_hash: 0,
        });
        self.tokenizer_path = path.to_owned();
        Ok(())
    }

    fn facts(&self, definition: &ModelDef, args: &CompileArgs) -> Result<ModelFacts, CliError> {
        let folder = args.model.parent().unwrap_or(Path::new(""));
        let chat_template = match &definition.chat_template {
            ChatTemplate::None => None,
            ChatTemplate::File(file) => Some(crate::files::read_text(&folder.join(file))?),
            ChatTemplate::SameAsTokenizer => {
                crate::vocabulary::chat_template_beside(&self.tokenizer_path)?
            }
        };
        Ok(ModelFacts {
            name: definition.name.clone(),
            vocab: definition.vocab,
            hidden: definition.hidden,
            layers: definition.layers,
            context_tokens: definition.context,
            bos: definition.tokens.bos,
            add_bos: definition.tokens.add_bos,
            stop_tokens: definition.tokens.eos.clone(),
            tokenizer_file: self.tokenizer_file,
            chat_template,
            definition: strata_models::to_ron(definition),
        })
    }
}

/// The graph's element type of the same name, if it has one. Names differ in case only.
fn format_of(name: &str) -> TensorFormat {
    strata_graph::DType::from_name(&name.to_lowercase())
        .map_or_else(|| TensorFormat::Unknown(name.to_owned()), TensorFormat::Known)
}
