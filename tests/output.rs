//! Output that cannot be written, with the real program: a run's result does not depend on whether anybody
//! reads along, and a result that was lost is no success. What is named stays what it is, and what others
//! wrote moves no terminal.

use crate::support::{Run, json_lines};
use crate::tasks::{BERT, Bench, POSTS};
use std::fs::{self, OpenOptions, Permissions};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::process::Stdio;
use std::time::Duration;

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

#[test]
fn files_that_the_user_names_stay_what_they_are() {
    let bench = Bench::new();
    bench
        .run(&format!(
            "{TRAIN} --output_dir out --cache_dir cache --report none"
        ))
        .succeeded();
    bench
        .run(&format!(
            "train cls {BERT} {POSTS} --tokenizer_name wordpiece --max_steps 1 --output_dir classes --report none"
        ))
        .succeeded();
    let predict = "predict cls --model_name_or_path classes --test_file posts-valid.csv --max_seq_length 48 \
                   --text_column_name text --disable_tqdm --output_file";
    let report = "report out --format json --output";
    let export = "cache export --cache_dir cache --file";
    for (line, what) in [(predict, "predict"), (report, "report"), (export, "export")] {
        // Devices.
        bench.run(&format!("{line} /dev/null")).succeeded();
        let null = fs::symlink_metadata("/dev/null").unwrap();
        assert!(null.file_type().is_char_device(), "{what}");
        let full = bench.run(&format!("{line} /dev/full"));
        assert_eq!(full.code, Some(1), "{what}: {}", full.stderr);
        let message = "cannot write /dev/full: No space left on device";
        assert_eq!(
            full.stderr.matches(message).count(),
            1,
            "{what}: {}",
            full.stderr
        );
        // A link, to a private file.
        let name = format!("{what}.json");
        fs::write(bench.path(&name), "old").unwrap();
        fs::set_permissions(bench.path(&name), Permissions::from_mode(0o600)).unwrap();
        symlink(&name, bench.path("link.json")).unwrap();
        bench.run(&format!("{line} link.json")).succeeded();
        assert!(bench.path("link.json").is_symlink(), "{what}");
        fs::remove_file(bench.path("link.json")).unwrap();
        let mode = fs::metadata(bench.path(&name))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{what}");
        let written = bench.bytes(&name);
        assert!(written.len() > 100, "{what}");
        // A pipe and standard output get the same bytes, and nothing else.
        let pipe = bench.path("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read(pipe).unwrap()
        });
        bench.run(&format!("{line} pipe")).succeeded();
        assert_eq!(reader.join().unwrap(), written, "{what}");
        assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
        fs::remove_file(&pipe).unwrap();
        let out = OpenOptions::new()
            .append(true)
            .create(true)
            .open(bench.path("stdout"));
        let mut process = bench.command(&format!("{line} /dev/stdout")).process();
        let status = process.stdout(out.unwrap()).stderr(Stdio::null()).status();
        assert!(status.unwrap().success(), "{what}");
        assert_eq!(bench.bytes("stdout"), written, "{what}");
        fs::remove_file(bench.path("stdout")).unwrap();
        // Known before any work.
        let none = bench.run(&format!("{line} none/x.json"));
        assert_eq!(none.code, Some(1), "{what}");
        assert!(
            none.stderr.contains("there is no directory none"),
            "{what}: {}",
            none.stderr
        );
    }
}

#[test]
fn an_output_directory_that_is_removed_is_made_again() {
    let bench = Bench::new();
    let model = TRAIN.split(" --max_steps").next().unwrap();
    let line = format!(
        "{model} --max_steps 300 --logging_steps 1 --save_strategy no --disable_tqdm --output_dir out"
    );
    let mut process = bench.command(&line).process();
    let mut child = process
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let log = bench.path("out/log.jsonl");
    while !fs::metadata(&log).is_ok_and(|log| log.len() > 200) {
        assert!(child.try_wait().unwrap().is_none(), "it has ended");
        std::thread::sleep(Duration::from_millis(1));
    }
    while fs::remove_dir_all(bench.path("out")).is_err() && bench.path("out").exists() {}
    let mut text = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert!(child.wait().unwrap().success(), "{text}");
    let warning = "was removed while this run wrote to it";
    assert_eq!(text.matches(warning).count(), 1, "{text}");
    assert!(bench.path("out/model.safetensors").is_file());
    let records = json_lines(&log);
    let steps = records.iter().filter(|record| record["loss"].is_f64());
    let steps: Vec<u64> = steps
        .map(|record| record["step"].as_u64().unwrap())
        .collect();
    assert_eq!(steps, (1..=300).collect::<Vec<u64>>());
}

#[test]
fn what_stands_in_a_checkpoints_way_is_said_before_training() {
    let bench = Bench::new();
    let line = format!("{TRAIN} --output_dir out --overwrite_output_dir");
    let refused = |place: &str| {
        let run = bench.run(&line);
        assert_eq!(run.code, Some(2), "{}", run.stderr);
        assert!(
            run.stderr.contains(&format!("out/{place}"))
                && run.stderr.contains("hint: move it away"),
            "{}",
            run.stderr
        );
    };
    fs::create_dir(bench.path("out")).unwrap();
    let (two, state) = (
        bench.path("out/checkpoint-2"),
        bench.path("out/trainer_state.json"),
    );
    fs::write(&two, "mine").unwrap();
    refused("checkpoint-2 is no directory");
    assert_eq!(fs::read(&two).unwrap(), b"mine");
    fs::remove_file(&two).unwrap();
    symlink("nowhere", &two).unwrap();
    refused("checkpoint-2 is no directory");
    fs::remove_file(&two).unwrap();
    fs::create_dir(&state).unwrap();
    refused("trainer_state.json is a directory");
    fs::remove_dir(&state).unwrap();
    fs::create_dir(&two).unwrap();
    fs::set_permissions(&two, Permissions::from_mode(0o500)).unwrap();
    let run = bench.command(&line).without_overriding_permissions().run();
    assert_eq!(run.code, Some(2), "{}", run.stderr);
    assert!(
        run.stderr.contains("checkpoint-2 may not be written to"),
        "{}",
        run.stderr
    );
}

#[test]
fn names_of_others_move_no_terminal_and_make_no_markup() {
    let bench = Bench::new();
    let evil = "\u{1b}[2J\u{9b}31m<script>|`";
    let rows: String = (0..16)
        .map(|row| format!("some text,{}\n", if row % 2 == 0 { evil } else { "good" }))
        .collect();
    fs::write(bench.path("evil.csv"), format!("text,label\n{rows}")).unwrap();
    let run = bench.run(&format!(
        "train cls {BERT} --tokenizer_name wordpiece --train_file evil.csv --validation_file evil.csv --max_steps 1 --disable_tqdm \
         --max_seq_length 16 --per_device_train_batch_size 4 --run_name a\u{1b}[31mb --output_dir out\u{1b}[5m|<b> --color always"
    ));
    run.succeeded();
    let own = ["\u{1b}[1m", "\u{1b}[33m", "\u{1b}[0m"];
    for text in [&run.stdout, &run.stderr] {
        let text = own
            .iter()
            .fold(text.clone(), |text, code| text.replace(code, ""));
        assert!(!text.contains(['\u{1b}', '\u{9b}']), "{text:?}");
    }
    assert!(
        run.stderr.contains("\\u001b[2J\\u009b31m<script>|`"),
        "{}",
        run.stderr
    );
    let mut report = bench.command("report --format markdown");
    let report = report.arg("out\u{1b}[5m|<b>").run();
    report.succeeded();
    assert!(
        !report.stdout.contains(['\u{1b}', '\u{9b}']),
        "{}",
        report.stdout
    );
    assert!(
        report.stdout.contains("out\\\\u001b\\[5m\\|&lt;b&gt;"),
        "{}",
        report.stdout
    );
    let mut top = bench.command("top --once");
    let top = top.arg("out\u{1b}[5m|<b>").run();
    top.succeeded();
    assert!(!top.stdout.contains('\u{1b}'), "{}", top.stdout);
}
