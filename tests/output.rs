//! Output that cannot be written, with the real program: a run's result does not depend on whether anybody
//! reads along, and a result that was lost is no success.

use crate::support::Run;
use crate::tasks::Bench;
use std::fs::OpenOptions;
use std::process::Stdio;

/// Where every write fails, as on a full disk.
fn full() -> Stdio {
    OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap()
        .into()
}

fn with_full_stdout(bench: &Bench, line: &str) -> Run {
    let mut process = bench.command(line).process();
    let output = process
        .stdout(full())
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    Run {
        code: output.status.code(),
        stdout: String::new(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

const TRAIN: &str = "train clm --model_type gpt2 --config_overrides n_layer=1,n_head=2,n_embd=32,n_positions=32 --tokenizer_name byte_bpe \
                     --train_file articles.txt --validation_file articles-valid.txt --block_size 32 --max_steps 4 --logging_steps 1 \
                     --eval_strategy steps --eval_steps 2 --save_steps 2 --load_best_model_at_end --disable_tqdm";

#[test]
fn a_run_is_saved_whether_its_output_is_read_or_not() {
    let bench = Bench::new();
    let is_whole = |dir: &str| {
        for file in [
            "model.safetensors",
            "config.json",
            "all_results.json",
            "report.html",
        ] {
            assert!(
                bench.path(&format!("{dir}/{file}")).exists(),
                "{dir}/{file}"
            );
        }
    };
    let run = with_full_stdout(&bench, &format!("{TRAIN} --output_dir full"));
    assert_eq!(run.code, Some(0), "{}", run.stderr);
    let warning = "warning: standard output could not be written: No space left on device";
    assert!(run.stderr.contains(warning), "{}", run.stderr);
    is_whole("full");

    let mut process = bench
        .command(&format!("{TRAIN} --output_dir gone"))
        .process();
    let mut child = process
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Nobody reads from the first line on.
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    is_whole("gone");

    let mut process = bench
        .command(&format!("{TRAIN} --output_dir silent"))
        .process();
    let status = process
        .stdout(Stdio::null())
        .stderr(full())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(0));
    is_whole("silent");
}

#[test]
fn a_result_that_cannot_be_printed_is_a_failure() {
    let bench = Bench::new();
    bench.run(&format!("{TRAIN} --output_dir out")).succeeded();
    for line in [
        "eval clm --model_name_or_path out --validation_file articles-valid.txt --block_size 32",
        "generate --model_name_or_path out --prompt the --max_new_tokens 3",
        "cache ls",
        "doctor",
        "report out --format json",
        "top --once --output_dir out",
    ] {
        let run = with_full_stdout(&bench, line);
        assert_eq!(run.code, Some(1), "{line}: {}", run.stderr);
        let message = "error: writing to standard output: No space left on device";
        assert!(run.stderr.contains(message), "{line}: {}", run.stderr);
        assert!(
            !run.stderr.contains("internal error"),
            "{line}: {}",
            run.stderr
        );
    }
}
