//! What goes wrong while a run reads and writes: directories, files, devices that are full, signals,
//! checkpoints. As `errors`: the exit code, one message that says what to do, and nothing lost.

use crate::errors::{EVAL, TRAIN, Workplace, assert_fails, check};
use crate::support::{make_fifo, snapshot};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};
#[test]
fn an_output_directory_that_cannot_be_written() {
    let place = Workplace::new();
    use std::os::unix::fs::PermissionsExt;
    fs::create_dir(place.path("locked")).unwrap();
    fs::set_permissions(place.path("locked"), fs::Permissions::from_mode(0o555)).unwrap();
    for output in ["locked", "locked/out"] {
        let mut command = place.command(&format!("{TRAIN} --output_dir {output}"));
        assert_fails(
            &command.without_overriding_permissions().run(),
            1,
            &[output, "Permission denied"],
        );
    }
}

/// A cache that cannot be written costs time, not the run; where it is full, its own flag is named.
#[test]
fn a_cache_directory_that_cannot_be_written() {
    let place = Workplace::new();
    use std::os::unix::fs::PermissionsExt;
    fs::create_dir(place.path("locked")).unwrap();
    fs::set_permissions(place.path("locked"), fs::Permissions::from_mode(0o555)).unwrap();
    for (cache, output) in [("locked", "a"), ("train.txt/cache", "b")] {
        let line = format!("{TRAIN} --max_steps 1 --cache_dir {cache} --output_dir {output}");
        let run = place.command(&line).without_overriding_permissions().run();
        run.succeeded();
        assert!(
            run.stderr.contains("warning: --cache_dir: ")
                && run.stderr.contains("the tokenized train text is not kept"),
            "{}",
            run.stderr
        );
        assert!(place.path(output).join("model.safetensors").exists());
    }
    let run = place.command(TRAIN).limit_files(2000).run();
    assert_fails(&run, 1, &["cannot write ", "or choose another --cache_dir"]);
    assert!(!run.stderr.contains("--output_dir"), "{}", run.stderr);
}

/// What a damaged disk left in the log is no reason not to resume.
#[test]
fn a_log_with_junk_in_it_is_taken_up() {
    let place = Workplace::new();
    place.run(&format!("{TRAIN} --max_steps 2")).succeeded();
    let log = place.path("out/log.jsonl");
    let mut junk = b"\xff\xfe\0 no record\n".to_vec();
    junk.extend(fs::read(&log).unwrap());
    fs::write(&log, junk).unwrap();
    place
        .run(&format!("{TRAIN} --max_steps 3 --resume_from_checkpoint"))
        .succeeded();
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.lines().all(|line| line.starts_with('{')), "{text}");
    assert!(text.lines().count() >= 3, "{text}");
}

/// Whatever stands where a file is expected: nothing waits for a pipe's writer, and nothing reads
/// what has no end.
#[test]
fn files_without_an_end_are_refused() {
    let fifo = |place: &Workplace, name: &str| {
        fs::create_dir_all(place.path(name).parent().unwrap()).unwrap();
        make_fifo(&place.path(name));
    };
    let cases: [(&str, &str, i32, &[&str]); 10] = [
        (
            "out/log.jsonl",
            "TRAIN --max_steps 1 --overwrite_output_dir",
            1,
            &["log.jsonl", "a pipe"],
        ),
        (
            "out/.xtrain.lock",
            "TRAIN --max_steps 1",
            1,
            &["xtrain.lock", "a pipe"],
        ),
        (
            "run.json",
            "TRAIN --max_steps 1 --config run.json",
            2,
            &["run.json", "a pipe"],
        ),
        (
            "prompts",
            "generate --model_name_or_path model --prompt_file prompts",
            1,
            &["prompts", "a pipe"],
        ),
        (
            "x",
            "generate --model_name_or_path model --prompt_file /dev/zero",
            1,
            &["/dev/zero", "a device"],
        ),
        ("run.log", "report run.log", 1, &["run.log", "a pipe"]),
        (
            "run.log",
            "report /dev/urandom",
            1,
            &["/dev/urandom", "a device"],
        ),
        (
            "trainer_state.json",
            "report trainer_state.json",
            1,
            &["trainer_state.json", "a pipe"],
        ),
        (
            "out/telemetry.jsonl",
            "top out --once",
            1,
            &["telemetry.jsonl"],
        ),
        (
            "x",
            "eval clm --model_name_or_path model --validation_file x",
            2,
            &["regular file"],
        ),
    ];
    for (name, line, code, words) in cases {
        let place = Workplace::new();
        fifo(&place, name);
        let line = line.replace("TRAIN", TRAIN);
        let run = place.command(&line).limit_time(60).run();
        println!("{name}: {}", run.stderr.trim_end());
        assert_fails(&run, code, words);
    }
    // A watcher's file is worth less than the run.
    let place = Workplace::new();
    fifo(&place, "out/telemetry.jsonl");
    let run = place
        .command(&format!("{TRAIN} --max_steps 1 --overwrite_output_dir"))
        .limit_time(120)
        .run();
    run.succeeded();
    assert!(
        run.stderr.contains("telemetry.jsonl is not written"),
        "{}",
        run.stderr
    );
}

/// Another program that writes into the tokenized text ends the run with a sentence, not by SIGBUS.
#[test]
fn tokenized_text_that_changes_under_a_run_ends_it() {
    let place = Workplace::new();
    let rows = || {
        let is_rows = |path: &PathBuf| path.extension().is_some_and(|ending| ending == "rows");
        snapshot(place.0.path()).into_keys().find(is_rows)
    };
    let mut is_cut = false;
    let line = format!("{TRAIN} --max_steps 100000 --save_strategy no --cache_dir data");
    let run = place
        .command(&line.replace("--save_steps 1", ""))
        .limit_time(120)
        .run_watching(|line, _| {
            if !is_cut && line.contains("loss") {
                let file = fs::OpenOptions::new().write(true).open(rows().unwrap());
                file.unwrap().set_len(200).unwrap();
                is_cut = true;
            }
        });
    assert_fails(&run, 1, &[".rows was changed by another program"]);
}

/// A state dict alone, beside its configuration or in a run's state.
#[test]
fn state_dicts_that_are_no_model() {
    check(&[
        (
            "a state dict as a model",
            |p| p.write("x.pt", b"PK\x03\x04"),
            "eval clm --validation_file valid.txt --model_name_or_path x.pt",
            2,
            &[
                "x.pt is a file",
                "as pytorch_model.bin beside the model's config.json",
            ],
        ),
        (
            "weights for their directory",
            |_| {},
            "eval clm --validation_file valid.txt --model_name_or_path model/model.safetensors",
            2,
            &["is a file", "give the directory that holds it, model"],
        ),
        (
            "weights under another name",
            |p| {
                fs::rename(
                    p.path("model/model.safetensors"),
                    p.path("model/weights.safetensors"),
                )
                .unwrap()
            },
            "EVAL",
            2,
            &[
                "no model.safetensors",
                "if weights.safetensors has the model's weights, rename it to model.safetensors",
            ],
        ),
        (
            "a run's state alone",
            |p| {
                fs::create_dir(p.path("state")).unwrap();
                p.write("state/optimizer.pt", "x");
            },
            "eval clm --validation_file valid.txt --model_name_or_path state",
            2,
            &[
                "no config.json",
                "optimizer.pt is the state of a run, not a model's weights",
            ],
        ),
        (
            "an adapter",
            |p| {
                fs::remove_file(p.path("model/model.safetensors")).unwrap();
                p.write("model/adapter_model.safetensors", "x");
            },
            "EVAL",
            2,
            &[
                "adapter_model.safetensors is of an adapter",
                "adapter_config.json is missing",
            ],
        ),
        (
            "weights as data",
            |p| {
                fs::copy(p.path("model/model.safetensors"), p.path("train.txt")).unwrap();
            },
            "TRAIN",
            2,
            &[
                "train.txt is a safetensors file of weights, not data",
                "--model_name_or_path",
            ],
        ),
        (
            "a state dict as data",
            |p| p.write("valid.txt", b"PK\x03\x04 and so on"),
            "EVAL",
            2,
            &["valid.txt is a file of torch.save", "not data"],
        ),
    ]);
}

#[test]
fn a_missing_xla_library() {
    let place = Workplace::new();
    let with = |line: &str| {
        place
            .command(line)
            .env("XTRAIN_XLA_LIBRARY", "/nonexistent/lib.so")
            .run()
    };
    for line in [TRAIN, EVAL, "bench --model_type gpt2 --seq 64"] {
        assert_fails(
            &with(line),
            1,
            &[
                "libxtrain_xla.so was not found",
                "/nonexistent/lib.so",
                "bin/bootstrap",
                "XTRAIN_XLA_LIBRARY",
            ],
        );
    }
    for line in ["--help", "train clm --help", "--version"] {
        with(line).succeeded();
    }
    place.write("text.so", "no library");
    let run = place
        .command(EVAL)
        .env("XTRAIN_XLA_LIBRARY", place.path("text.so"))
        .run();
    assert_fails(&run, 1, &["text.so"]);
    assert!(!place.path("out").exists());
}

#[test]
fn resuming_from_what_cannot_be_resumed() {
    let place = Workplace::new();
    place.run(&format!("{TRAIN} --max_steps 2")).succeeded();
    let before = place.snapshot();
    let again = format!("{TRAIN} --max_steps 4 --resume_from_checkpoint");
    let other_text = fs::read_to_string(place.path("train.txt"))
        .unwrap()
        .to_uppercase();
    place.write("other.txt", other_text);
    let cases: &[(&str, i32, &[&str])] = &[
        (
            "--output_dir nothing",
            2,
            &["--resume_from_checkpoint: nothing holds no checkpoint"],
        ),
        (
            "nowhere",
            2,
            &["--resume_from_checkpoint: nowhere is not a directory"],
        ),
        (
            "model",
            2,
            &["model holds no training state", "--model_name_or_path"],
        ),
        (
            "out",
            2,
            &["out holds no training state", "out/checkpoint-2"],
        ),
        ("--seed 1", 2, &["--seed was 42"]),
        (
            "--train_file other.txt",
            2,
            &["out/checkpoint-2", "the training data"],
        ),
        ("--block_size 16", 2, &["the length of examples"]),
        (
            "--config_overrides n_layer=1,n_head=2,n_embd=32,n_positions=64",
            1,
            &["unexpected (12):", "checkpoint-2/model.safetensors"],
        ),
        (
            "out/checkpoint-1 --output_dir model",
            2,
            &["--output_dir: model is not empty"],
        ),
    ];
    for (words, code, message) in cases {
        // What stands at the end of the line is the flag's value or another flag.
        let run = place.run(&format!("{again} {words}"));
        println!("{words}: {}", run.stderr);
        assert_fails(&run, *code, message);
    }
    for (name, damage) in [
        (
            "optimizer.safetensors",
            (|bytes| bytes[9000] ^= 1) as fn(&mut Vec<u8>),
        ),
        ("model.safetensors", |bytes| bytes.truncate(5000)),
        ("training_state.json", |bytes| bytes.truncate(300)),
        ("trainer_state.json", |bytes| bytes.clear()),
    ] {
        let path = place.path("out/checkpoint-2").join(name);
        let good = fs::read(&path).unwrap();
        let mut bad = good.clone();
        damage(&mut bad);
        fs::write(&path, bad).unwrap();
        let run = place.run(&again);
        println!("{name}: {}", run.stderr);
        assert_fails(
            &run,
            1,
            &[
                &format!("checkpoint-2/{name} is damaged"),
                "--resume_from_checkpoint PATH",
            ],
        );
        fs::write(&path, good).unwrap();
    }
    let after = place.snapshot();
    assert!(
        before
            .iter()
            .all(|(path, content)| after.get(path) == Some(content)),
        "a failed resume changes nothing"
    );

    // Resuming what is finished makes no steps and keeps the figures of the run that made them.
    let run = place.run(&format!("{TRAIN} --max_steps 2 --resume_from_checkpoint"));
    run.succeeded();
    assert!(
        run.stderr.contains("nothing is left to train"),
        "{}",
        run.stderr
    );
    let after = place.snapshot();
    for name in [
        "out/model.safetensors",
        "out/train_results.json",
        "out/all_results.json",
        "out/log.jsonl",
    ] {
        assert!(
            after[&place.path(name)] == before[&place.path(name)],
            "{name}"
        );
    }
    place.run(&again).succeeded();
}

#[test]
fn a_full_disk_while_saving_keeps_the_previous_checkpoint() {
    let place = Workplace::new();
    place.run(&format!("{TRAIN} --max_steps 2")).succeeded();
    let before = place.snapshot();
    let more = format!("{TRAIN} --max_steps 6 --resume_from_checkpoint");
    let weights = before[&place.path("out/model.safetensors")].len() as u64;
    // Room for the weights but not for the moments, and not even for the weights.
    let cases = [
        (weights + weights / 2, "true"),
        (weights + weights / 2, "false"),
        (weights / 2, "true"),
        (weights / 2, "false"),
    ];
    for (limit, in_background) in cases {
        let more = format!("{more} --async_save {in_background}");
        let run = place.command(&more).limit_files(limit).run();
        println!("{}", run.stderr);
        assert_fails(
            &run,
            1,
            &[
                "cannot write out/checkpoint-3/",
                "safetensors: File too large",
                "what was there before is untouched",
            ],
        );
        let mut after = place.snapshot();
        after.insert(
            place.path("out/log.jsonl"),
            before[&place.path("out/log.jsonl")].clone(),
        );
        assert!(after == before, "{:?}", after.keys());
    }
    // The finished model is the first thing saved.
    let over = format!("{TRAIN} --max_steps 2 --overwrite_output_dir --save_strategy no");
    assert_fails(
        &place.command(&over).limit_files(weights / 2).run(),
        1,
        &["cannot write out/model.safetensors"],
    );
    for name in [
        "model.safetensors",
        "checkpoint-1/model.safetensors",
        "checkpoint-2/optimizer.safetensors",
    ] {
        let path = place.path("out").join(name);
        assert!(fs::read(&path).unwrap() == before[&path], "{name}");
    }
    // What was overwritten is resumed only by its name.
    place.run(&format!("{more} out/checkpoint-2")).succeeded();
    assert!(place.path("out/checkpoint-6").is_dir());
}

#[test]
fn a_loss_that_becomes_nan_stops_the_run_and_keeps_the_last_good_checkpoint() {
    let place = Workplace::new();
    place.run(&format!("{TRAIN} --max_steps 2")).succeeded();
    let before = place.snapshot();
    // Step 3 leaves finite weights with which nothing can be computed, as step 4 shows. The limit
    // must not cost the good one.
    let line = format!(
        "{TRAIN} --max_steps 9 --resume_from_checkpoint --learning_rate 1e30 --save_total_limit 1"
    );
    let run = place.run(&line);
    println!("{}", run.stderr);
    assert_fails(
        &run,
        1,
        &[
            "the loss became NaN at step 4",
            "1e30",
            "out/checkpoint-3 was saved just before",
            "good checkpoint is out/checkpoint-2",
        ],
    );
    let records = crate::support::json_lines(&place.path("out/log.jsonl"));
    assert_eq!(records.last().unwrap()["step"], 3, "{records:?}");
    let kept = |place: &Workplace| {
        let after = place.snapshot();
        let good = before
            .keys()
            .filter(|path| path.starts_with(place.path("out/checkpoint-2")));
        assert!(
            good.clone().count() > 5
                && good.clone().all(|path| after.get(path) == before.get(path))
        );
        assert_eq!(
            after[&place.path("out/model.safetensors")],
            before[&place.path("out/model.safetensors")]
        );
    };
    kept(&place);

    // Step 3 leaves infinite weights: they are not saved at all. While training waits the save
    // reports that; in the background the loss of step 4 ends the run, and both are reported.
    fs::remove_dir_all(place.path("out/checkpoint-3")).unwrap();
    let line = line.replace("1e30", "1e39");
    let good = "the last good checkpoint is out/checkpoint-2";
    for (in_background, signs) in [
        ("false", &["after step 3", "not finite", good][..]),
        (
            "true",
            &[
                "the loss became NaN at step 4",
                "out/checkpoint-3 was not saved: ",
                "holds values that are not finite",
                good,
            ],
        ),
    ] {
        let run = place.run(&format!("{line} --async_save {in_background}"));
        println!("{}", run.stderr);
        assert_fails(&run, 1, signs);
        assert!(!place.path("out/checkpoint-3").exists());
        kept(&place);
    }
    let run = place.run(&format!(
        "{TRAIN} --overwrite_output_dir --max_steps 1 --save_strategy no --learning_rate 1e39"
    ));
    assert_fails(
        &run,
        1,
        &["after step 1", "not finite", "no checkpoint had been saved"],
    );
    kept(&place);

    // From the first step on.
    let run = place.run(&format!(
        "{TRAIN} --output_dir new --max_steps 4 --save_strategy no --learning_rate 1e30"
    ));
    assert_fails(
        &run,
        1,
        &[
            "the loss became NaN at step 2",
            "no checkpoint had been saved",
        ],
    );
    assert_eq!(place.names("new"), ["log.jsonl", "telemetry.jsonl"]);
}

#[test]
fn training_into_the_models_own_directory_loses_nothing_before_there_is_something_new() {
    let place = Workplace::new();
    let before = place.snapshot();
    let line = "train clm --disable_tqdm --model_name_or_path model --output_dir model --overwrite_output_dir --train_file train.txt \
                --block_size 32 --per_device_train_batch_size 4 --max_steps 2";
    assert_fails(
        &place.run(&format!("{line} --learning_rate 1e30")),
        1,
        &["NaN at step 2"],
    );
    let file = place.path("model/model.safetensors");
    assert!(fs::read(&file).unwrap() == before[&file]);
    place.run(line).succeeded();
    assert!(fs::read(&file).unwrap() != before[&file]);
    place.run(EVAL).succeeded();
}

#[test]
fn overwriting_an_earlier_run_does_not_leave_its_checkpoints_to_be_resumed() {
    let place = Workplace::new();
    place.run(&format!("{TRAIN} --max_steps 3")).succeeded();
    place
        .run(&format!(
            "{TRAIN} --max_steps 2 --overwrite_output_dir --seed 7 --save_total_limit 1"
        ))
        .succeeded();
    let names = place.names("out");
    let checkpoints: Vec<_> = names
        .iter()
        .filter(|name| name.starts_with("checkpoint-"))
        .collect();
    assert_eq!(
        checkpoints,
        ["checkpoint-2"],
        "the new run's, though the old run had a later one"
    );
}

#[test]
fn a_signal_during_the_last_evaluation_ends_it() {
    let place = Workplace::new();
    let text: String = (0..60_000)
        .map(|i| format!("Number {i} comes after number {} as always.\n", i - 1))
        .collect();
    place.write("valid.txt", text);
    let line = format!(
        "{TRAIN} --max_steps 1 --do_train --do_eval --validation_file valid.txt --per_device_eval_batch_size 1"
    );
    let start = Instant::now();
    let run = place
        .command(&line)
        .run_and_signal("saved the model", Duration::from_millis(200));
    println!("{:?}: {}", start.elapsed(), run.stderr);
    assert_eq!(run.code, Some(143), "{}", run.stderr);
    assert!(
        run.stderr
            .contains("xtrain eval clm --model_name_or_path out"),
        "{}",
        run.stderr
    );
    assert!(
        place.path("out/model.safetensors").exists()
            && !place.path("out/eval_results.json").exists()
    );
}

#[test]
fn a_killed_run_goes_on_as_if_nothing_had_happened() {
    let place = Workplace::new();
    place
        .run(&format!("{TRAIN} --max_steps 12 --output_dir whole"))
        .succeeded();
    for delay in [0, 11, 23] {
        let _ = fs::remove_dir_all(place.path("out"));
        let line = format!("{TRAIN} --max_steps 12");
        let run = place.command(&line).run_and_send(
            "'epoch': 0.0",
            Duration::from_millis(delay),
            libc::SIGKILL,
        );
        assert_ne!(run.code, Some(1), "{}", run.stderr);
        let saved = place
            .names("out")
            .iter()
            .any(|name| name.starts_with("checkpoint-"));
        let again = if saved {
            "--resume_from_checkpoint"
        } else {
            "--overwrite_output_dir"
        };
        place.run(&format!("{line} {again}")).succeeded();
        assert!(
            fs::read(place.path("out/model.safetensors")).unwrap()
                == fs::read(place.path("whole/model.safetensors")).unwrap()
        );
        assert!(
            !place
                .names("out")
                .iter()
                .any(|name| name.starts_with(".tmp")),
            "{:?}",
            place.names("out")
        );
    }
}
