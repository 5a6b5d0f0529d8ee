//! Worker processes: what they answer, and what is said when they end early.

use std::path::PathBuf;

use strata_kernels::spec::{Add, Matmul, RowClass, WeightFormat};
use strata_kernels::{KernelSpec, Target, compile};
use strata_lowering::{CodeJob, CodeWorker, LowerError, generate_code, serve_kernels};

fn add_job() -> CodeJob {
    CodeJob { spec: KernelSpec::Add(Add { k: 32 }), target: Target::X86Avx2 }
}

/// A float matrix whose rows are not whole lanes.
fn refused_job() -> CodeJob {
    let shape = Matmul {
        format: WeightFormat::F32,
        n: 16,
        k: 17,
        rows: RowClass::Few,
        times: 1,
        epilogue: strata_kernels::spec::Epilogue::default(),
        logits: false,
    };
    CodeJob { spec: KernelSpec::Matmul(shape), target: Target::X86Avx2 }
}

fn by_process(exe: &str, args: &[&str]) -> Result<usize, LowerError> {
    let args = args.iter().map(|a| (*a).to_owned()).collect();
    let worker = CodeWorker::Process { exe: PathBuf::from(exe), args, processes: 1 };
    generate_code(&[add_job()], &worker, &|_, _| {}).map(|(kernels, _)| kernels.len())
}

#[test]
fn a_worker_answers_each_line_with_code_or_a_reason() {
    let jobs = [add_job(), refused_job()];
    let lines: Vec<String> = jobs.iter().map(|j| serde_json::to_string(j).unwrap()).collect();
    let mut answers = Vec::new();
    serve_kernels(lines.join("\n").as_bytes(), &mut answers).unwrap();
    let answers = String::from_utf8(answers).unwrap();
    let rows: Vec<serde_json::Value> =
        answers.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 2);
    let code = rows[0]["Code"]["hex"].as_str().unwrap();
    let here = compile(&[jobs[0].spec], jobs[0].target).unwrap();
    let hex: String = here[0].bytes.iter().map(|b| format!("{b:02x}")).collect();
    assert!(code == hex, "the worker's code differs from this process's");
    assert!(rows[1]["Refused"].as_str().unwrap().contains("kernel Matmul"), "{answers}");
}

#[test]
fn a_worker_that_ends_early_is_reported_with_the_kernel() {
    let early = by_process("/bin/sh", &["-c", "read line; kill -ABRT $$"]).unwrap_err();
    assert!(matches!(&early, LowerError::Worker { kernel, .. } if kernel.contains("Add")));
    let text = early.to_string();
    assert!(text.contains("ended in the middle") && text.contains("signal: 6"), "{text}");
    let absent = by_process("/no/such/worker", &[]).unwrap_err().to_string();
    assert!(absent.contains("/no/such/worker did not start"), "{absent}");
    let noise = by_process("/bin/sh", &["-c", "read line; echo noise"]).unwrap_err().to_string();
    assert!(noise.contains("Add"), "{noise}");
}

#[test]
fn results_are_in_the_order_of_the_jobs() {
    let jobs: Vec<CodeJob> = [64, 32, 48, 16]
        .map(|k| CodeJob { spec: KernelSpec::Add(Add { k }), target: Target::X86Avx2 })
        .to_vec();
    let worker = CodeWorker::InProcess { threads: 3 };
    let (kernels, report) = generate_code(&jobs, &worker, &|_, _| {}).unwrap();
    assert!(kernels.iter().zip(&jobs).all(|(k, job)| k.spec == job.spec));
    assert_eq!(report.get("kernels_count"), Some(4));
    let failed = generate_code(&[refused_job()], &worker, &|_, _| {}).unwrap_err().to_string();
    assert!(failed.contains("Matmul"), "{failed}");
}
