//! Kernel specifications become machine code, in parallel, by threads or by child processes.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};
use strata_kernels::{CompiledKernel, KernelSpec, Target, compile};

use crate::error::LowerError;
use crate::input::CodeWorker;
use crate::report::PassReport;

/// One kernel for one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CodeJob {
    pub spec: KernelSpec,
    pub target: Target,
}

/// The answer of a worker process to a job: machine code as hexadecimal digits, or a reason.
#[derive(Debug, Serialize, Deserialize)]
enum CodeReply {
    Code { entry_bytes: u32, hex: String },
    Refused(String),
}

/// Compiles `jobs`; results are in the order of the jobs, whoever made them.
///
/// # Errors
/// The first job, in order, that failed; a process that ended in the middle of a kernel is reported
/// with that kernel.
pub fn generate_code(
    jobs: &[CodeJob],
    worker: &CodeWorker,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<(Vec<CompiledKernel>, PassReport), LowerError> {
    let workers = match worker {
        CodeWorker::InProcess { threads: n } | CodeWorker::Process { processes: n, .. } => *n,
    };
    let workers = (workers.max(1) as usize).min(jobs.len().max(1));
    let next = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    let run = || {
        let mut results: Vec<(usize, Result<CompiledKernel, LowerError>)> = Vec::new();
        let mut seat = Seat::of(worker);
        while let Some((i, job)) = take(jobs, &next) {
            let result = seat.compile(job);
            let failed = result.is_err();
            results.push((i, result));
            progress(done.fetch_add(1, Ordering::Relaxed) + 1, jobs.len());
            if failed {
                // The others stop at their next job.
                next.store(jobs.len(), Ordering::Relaxed);
            }
        }
        results
    };
    let mut results: Vec<(usize, Result<CompiledKernel, LowerError>)> =
        std::thread::scope(|scope| {
            let seats: Vec<_> = (0..workers).map(|_| scope.spawn(run)).collect();
            seats.into_iter().flat_map(|s| s.join().expect("workers do not panic")).collect()
        });
    results.sort_by_key(|(i, _)| *i);
    let kernels: Vec<CompiledKernel> =
        results.into_iter().map(|(_, result)| result).collect::<Result<_, _>>()?;
    let bytes: u64 = kernels.iter().map(|k| k.bytes.len() as u64).sum();
    let report = PassReport::new("generate_code", "")
        .count("kernels_count", kernels.len() as u64)
        .count("code_bytes", bytes);
    Ok((kernels, report))
}

fn take<'j>(jobs: &'j [CodeJob], next: &AtomicUsize) -> Option<(usize, &'j CodeJob)> {
    // Stays far below overflow: each worker asks once more than there are jobs.
    let i = next.fetch_add(1, Ordering::Relaxed);
    jobs.get(i).map(|job| (i, job))
}

/// Where one worker compiles.
enum Seat<'w> {
    Here,
    Child { exe: &'w std::path::Path, args: &'w [String], child: Option<Pipe> },
}

struct Pipe {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl<'w> Seat<'w> {
    fn of(worker: &'w CodeWorker) -> Self {
        match worker {
            CodeWorker::InProcess { .. } => Self::Here,
            CodeWorker::Process { exe, args, .. } => Self::Child { exe, args, child: None },
        }
    }

    fn compile(&mut self, job: &CodeJob) -> Result<CompiledKernel, LowerError> {
        match self {
            Self::Here => compile_here(job).map_err(|message| LowerError::Kernel { message }),
            Self::Child { exe, args, child } => {
                let failed =
                    |message: String| LowerError::Worker { kernel: job.spec.key(), message };
                if child.is_none() {
                    let pipe = Pipe::start(exe, args)
                        .map_err(|e| failed(format!("{} did not start: {e}", exe.display())))?;
                    *child = Some(pipe);
                }
                let pipe = child.as_mut().expect("just started");
                match pipe.ask(job) {
                    Ok(CodeReply::Code { entry_bytes, hex }) => {
                        let bytes = from_hex(&hex)
                            .ok_or_else(|| failed("it answered with damaged code".into()))?;
                        Ok(CompiledKernel { spec: job.spec, bytes, entry_bytes })
                    }
                    Ok(CodeReply::Refused(message)) => Err(LowerError::Kernel { message }),
                    Err(error) => {
                        let end = child.take().map(Pipe::end).unwrap_or_default();
                        Err(failed(format!("the process ended in the middle of it: {error}{end}")))
                    }
                }
            }
        }
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // A worker ends by itself when its input closes; this also reaps one that hangs.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Pipe {
    fn start(exe: &std::path::Path, args: &[String]) -> std::io::Result<Self> {
        let mut process = Command::new(exe)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()?;
        let input = process.stdin.take().ok_or(std::io::ErrorKind::BrokenPipe)?;
        let output = process.stdout.take().ok_or(std::io::ErrorKind::BrokenPipe)?;
        Ok(Self { process, input, output: BufReader::new(output) })
    }

    fn ask(&mut self, job: &CodeJob) -> Result<CodeReply, String> {
        let line = serde_json::to_string(job).map_err(|e| e.to_string())?;
        writeln!(self.input, "{line}").map_err(|e| e.to_string())?;
        self.input.flush().map_err(|e| e.to_string())?;
        let mut reply = String::new();
        self.output.read_line(&mut reply).map_err(|e| e.to_string())?;
        if reply.is_empty() {
            return Err("no answer".into());
        }
        serde_json::from_str(&reply).map_err(|e| e.to_string())
    }

    /// How the process ended, for a message. Its output is closed, or it broke the protocol: it is
    /// given a moment to end by itself.
    fn end(mut self) -> String {
        for _ in 0..20 {
            if let Ok(Some(status)) = self.process.try_wait() {
                return format!(" ({status})");
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        String::new()
    }
}

fn compile_here(job: &CodeJob) -> Result<CompiledKernel, String> {
    let kernels = compile(&[job.spec], job.target).map_err(|e| e.to_string())?;
    kernels.into_iter().next().ok_or_else(|| "no code".into())
}

/// The worker side of [`CodeWorker::Process`]: reads one job a line from `input` and writes one
/// answer a line to `output`, until `input` ends.
///
/// # Errors
/// Reading or writing failed, or a line is no job.
pub fn serve_kernels(input: impl BufRead, mut output: impl Write) -> std::io::Result<()> {
    for line in input.lines() {
        let job: CodeJob = serde_json::from_str(&line?)?;
        let reply = match compile_here(&job) {
            Ok(kernel) => {
                CodeReply::Code { entry_bytes: kernel.entry_bytes, hex: to_hex(&kernel.bytes) }
            }
            Err(message) => CodeReply::Refused(message),
        };
        serde_json::to_writer(&mut output, &reply)?;
        writeln!(output)?;
        output.flush()?;
    }
    Ok(())
}

fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = |b: &u8| [b >> 4, b & 15].map(|d| char::from(DIGITS[usize::from(d)]));
    bytes.iter().flat_map(digits).collect()
}

fn from_hex(hex: &str) -> Option<Vec<u8>> {
    let digit = |b: u8| char::from(b).to_digit(16).and_then(|d| u8::try_from(d).ok());
    let pair = |pair: &[u8]| match *pair {
        [high, low] => Some(digit(high)? << 4 | digit(low)?),
        _ => None,
    };
    hex.as_bytes().chunks(2).map(pair).collect()
}
