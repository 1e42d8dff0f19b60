//! `--push_to_hub` as a user gives it, against a Hub on the loopback interface.

use crate::hub::test_server::{PushFault, TestHub};
use crate::hub::with_hub;
use crate::support::{Command, data_dir, data_text, json_lines, xtrain};
use serde_json::Value;
use std::fs;
use std::path::Path;

const TOKEN: &str = "hf_secret_of_the_test";

fn start() -> (TestHub, tempfile::TempDir) {
    let hub = TestHub::start();
    hub.account("me", TOKEN);
    let dir = tempfile::tempdir().unwrap();
    let text = data_text("play.txt");
    fs::write(dir.path().join("train.txt"), &text[..20_000]).unwrap();
    fs::write(dir.path().join("valid.txt"), &text[20_000..23_000]).unwrap();
    (hub, dir)
}

/// The words of a run of four steps.
fn words(more: &str) -> Vec<String> {
    let line = "train clm --model_type gpt2 --disable_tqdm --block_size 16 --train_file train.txt --validation_file valid.txt \
                --config_overrides n_layer=1,n_head=2,n_embd=32,n_positions=32 --logging_steps 1 --max_steps 4 --save_steps 2 \
                --do_train --do_eval --per_device_train_batch_size 4 --output_dir out --push_to_hub --tokenizer_name";
    let tokenizer = data_dir().join("gpt2").display().to_string();
    let words = line.split_whitespace().map(str::to_string);
    let more = more.split_whitespace().map(str::to_string);
    words.chain([tokenizer]).chain(more).collect()
}

fn train(hub: &TestHub, dir: &Path, more: &str) -> Command {
    let mut command = with_hub(hub, dir);
    command.args(words(more));
    command
}

/// Files below a directory that hold the text.
fn with_text(dir: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(with_text(&path, text));
        } else if fs::read(&path)
            .unwrap()
            .windows(text.len())
            .any(|part| part == text.as_bytes())
        {
            found.push(path.display().to_string());
        }
    }
    found
}

#[test]
fn a_run_is_on_the_hub_at_its_end_and_its_token_nowhere() {
    let (hub, dir) = start();
    let dir = dir.path();
    let more = "--hub_strategy checkpoint --hub_private_repo --hub_always_push --report_to tensorboard --save_total_limit 1";
    let run = train(&hub, dir, more).args(["--hub_token", TOKEN]).run();
    run.succeeded();
    let out = dir.join("out");
    assert!(
        run.stdout.contains(&format!("to {}/me/out", hub.url)),
        "{}",
        run.stdout
    );
    assert!(hub.is_private("models/me/out"));
    let commits = hub.commits();
    let messages: Vec<&str> = commits
        .iter()
        .map(|commit| commit.message.as_str())
        .collect();
    let steps = [
        "Training in progress, step 2",
        "Training in progress, step 4",
    ];
    assert_eq!(messages, [steps[0], steps[1], "End of training"]);
    // The model on the way is the checkpoint's.
    for name in [
        "config.json",
        "model.safetensors*",
        "tokenizer.json",
        "last-checkpoint/training_state.json",
    ] {
        assert!(
            commits[0].paths.contains(&name.to_string()),
            "{name} in {:?}",
            commits[0]
        );
    }
    let pushed = hub.files("models/me/out", "main");
    for name in [
        "model.safetensors",
        "all_results.json",
        "trainer_state.json",
        "report.html",
        "log.jsonl",
    ] {
        assert_eq!(pushed[name], fs::read(out.join(name)).unwrap(), "{name}");
    }
    let newest = out.join("checkpoint-4");
    for entry in fs::read_dir(newest).unwrap() {
        let entry = entry.unwrap();
        let name = format!("last-checkpoint/{}", entry.file_name().to_str().unwrap());
        assert_eq!(pushed[&name], fs::read(entry.path()).unwrap(), "{name}");
    }
    assert!(pushed.keys().any(|name| name.starts_with("runs/")));
    let other = |name: &&String| name.starts_with("checkpoint-") || name.starts_with('.');
    assert_eq!(pushed.keys().find(other), None);
    assert_eq!(with_text(dir, TOKEN), Vec::<String>::new());
    assert!(!run.stdout.contains(TOKEN) && !run.stderr.contains(TOKEN));
    // What is there is the model.
    let eval = with_hub(&hub, dir)
        .args("eval clm --model_name_or_path me/out --validation_file valid.txt --block_size 16 --json --token".split(' '))
        .arg(TOKEN)
        .run();
    eval.succeeded();
    let loss = |text: &str| {
        serde_json::from_str::<Value>(text).unwrap()["eval_loss"]
            .as_f64()
            .unwrap()
    };
    let results = fs::read_to_string(out.join("all_results.json")).unwrap();
    assert_eq!(loss(eval.stdout.trim()), loss(&results));
}

#[test]
fn what_cannot_be_pushed_ends_a_run_before_it_begins() {
    let (hub, dir) = start();
    let dir = dir.path();
    let with_token = |more: &str| {
        let mut command = train(&hub, dir, more);
        command.env("HF_TOKEN", TOKEN);
        command
    };
    let cases = [
        (
            train(&hub, dir, ""),
            1,
            "pushing out needs a token that may write",
        ),
        (train(&hub, dir, "--hub_token hf_old"), 1, "(401)"),
        (
            with_token("--hub_model_id them/model"),
            1,
            "write to them/model (403)",
        ),
        (
            with_token("--hub_revision none"),
            1,
            "no me/out with a branch none",
        ),
        (
            with_token("--hub_model_id a/b/c"),
            2,
            "no repository can have the name",
        ),
    ];
    for (mut command, code, part) in cases {
        let run = command.run();
        assert_eq!(run.code, Some(code), "{}", run.stderr);
        assert!(
            run.stderr.contains(part) && !run.stderr.contains(TOKEN),
            "{}",
            run.stderr
        );
        assert_eq!(run.stderr.matches("error:").count(), 1, "{}", run.stderr);
        assert!(!dir.join("out").exists());
    }
    let offline = with_token("").env("HF_HUB_OFFLINE", "1").run();
    assert!(
        offline.code == Some(1) && offline.stderr.contains("HF_HUB_OFFLINE"),
        "{}",
        offline.stderr
    );
}

#[test]
fn a_failed_push_costs_no_file_and_is_made_up_for() {
    let (hub, dir) = start();
    let dir = dir.path();
    // A connection breaks, and then the commit is refused.
    hub.push_fault("/commit/", 1, PushFault::Status(403));
    hub.push_fault("/preupload/", 1, PushFault::Reset);
    let mut command = train(&hub, dir, "--hub_strategy end");
    let failed = command.env("HF_TOKEN", TOKEN).run();
    assert_eq!(failed.code, Some(1), "{}", failed.stderr);
    for part in [
        "write to me/out (403)",
        "everything is in out",
        "hf upload me/out out",
    ] {
        assert!(failed.stderr.contains(part), "{part} in {}", failed.stderr);
    }
    for name in [
        "model.safetensors",
        "all_results.json",
        "report.html",
        "checkpoint-4/training_state.json",
    ] {
        assert!(dir.join("out").join(name).exists(), "{name}");
    }
    assert_eq!(hub.commits(), []);
    let mut command = train(&hub, dir, "--hub_strategy end --resume_from_checkpoint");
    command.env("HF_TOKEN", TOKEN).run().succeeded();
    let pushed = hub.files("models/me/out", "main");
    assert_eq!(
        pushed["model.safetensors"],
        fs::read(dir.join("out/model.safetensors")).unwrap()
    );
    assert_eq!(hub.commits().len(), 1);
    // On the way a refusal is a warning.
    hub.push_fault("/commit/", 1, PushFault::Status(403));
    let mut command = train(
        &hub,
        dir,
        "--hub_strategy all_checkpoints --hub_always_push --output_dir again",
    );
    let warned = command.env("HF_TOKEN", TOKEN).run();
    warned.succeeded();
    let warning = "warning: \"Training in progress, step 2\" was not pushed:";
    assert!(warned.stderr.contains(warning), "{}", warned.stderr);
    let pushed = hub.files("models/me/again", "main");
    assert!(pushed.contains_key("checkpoint-4/training_state.json"));
}

#[test]
fn of_several_processes_the_first_one_pushes() {
    let (hub, dir) = start();
    let mut command = with_hub(&hub, dir.path());
    command.args(["launch", "--nproc_per_node", "2", "--"]);
    command
        .args(words("--data_parallel 2 --hub_model_id me/two"))
        .env("HF_TOKEN", TOKEN);
    command.run().succeeded();
    let calls = hub.requests();
    let made = calls
        .iter()
        .filter(|line| line.contains("repos/create"))
        .count();
    assert_eq!(made, 1, "{calls:?}");
    assert_eq!(hub.commits().last().unwrap().message, "End of training");
}

/// The model card is what the run logged; one that somebody wrote stays, here and on the Hub.
#[test]
fn a_model_card_is_written_and_nobodys_words_are_lost() {
    let (hub, dir) = start();
    let dir = dir.path();
    let push = |more: &str| {
        let mut command = train(&hub, dir, &format!("--hub_strategy end {more}"));
        let run = command.env("HF_TOKEN", TOKEN).run();
        run.succeeded();
        run
    };
    let pushed = || {
        let files = hub.files("models/me/out", "main");
        String::from_utf8(files["README.md"].clone()).unwrap()
    };
    push("--eval_strategy steps --eval_steps 2 --bf16");
    let local = dir.join("out/README.md");
    let card = fs::read_to_string(&local).unwrap();
    assert_eq!(card, pushed());
    let log = json_lines(&dir.join("out/log.jsonl"));
    let values = |key: &str| -> Vec<f64> {
        let values = log.iter().filter_map(|record| record[key].as_f64());
        values.collect()
    };
    // A loss is logged at each of the four steps; steps 2 and 4 are evaluated.
    let (losses, evaluations) = (values("loss"), values("eval_loss"));
    let accuracy = values("eval_accuracy");
    for part in [
        "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n- generated_from_trainer\n",
        "metrics:\n- accuracy\n",
        "\n# out\n",
        "\n- learning_rate: 5e-5\n- train_batch_size: 4\n- eval_batch_size: 8\n- seed: 42\n- total_train_batch_size: 4\n",
        "\n- lr_scheduler_type: linear\n- training_steps: 4\n- mixed_precision_training: bf16\n",
        &format!("\n- Loss: {:.4}\n", evaluations.last().unwrap()),
        "| Training Loss | Epoch | Step | Validation Loss | Accuracy",
        &format!("| {:.4} | ", losses[1]),
        &format!(" | 2 | {:.4} | {:.4}", evaluations[0], accuracy[0]),
        &format!(" | 4 | {:.4} | {:.4}", evaluations[1], accuracy[1]),
        concat!("\n- xtrain ", env!("CARGO_PKG_VERSION"), "\n"),
    ] {
        assert!(card.contains(part), "{part:?} in {card}");
    }
    // Written again, unless somebody wrote it here,
    push("--overwrite_output_dir --seed 7");
    assert!(pushed().contains("\n- seed: 7\n"));
    fs::write(&local, "# mine\n").unwrap();
    push("--overwrite_output_dir --seed 8");
    assert_eq!(fs::read_to_string(&local).unwrap(), "# mine\n");
    assert_eq!(pushed(), "# mine\n");
    // or there.
    fs::remove_file(&local).unwrap();
    let kept = push("--overwrite_output_dir --seed 9");
    assert!(kept.stderr.contains("README.md of"), "{}", kept.stderr);
    assert_eq!(pushed(), "# mine\n");
    assert!(
        fs::read_to_string(&local)
            .unwrap()
            .contains("\n- seed: 9\n")
    );
}

#[test]
fn commands_of_many_runs_push_none() {
    let dir = tempfile::tempdir().unwrap();
    for (words, part) in [
        (
            "sweep --grid seed=1,2 --output_dir grid -- ",
            "a sweep compares runs",
        ),
        (
            "scaling --degrees 1,2 -- ",
            "what scaling trains is discarded",
        ),
    ] {
        let mut command = xtrain();
        command.dir(dir.path()).args(words.split_whitespace()).args(
            "train clm --model_type gpt2 --tokenizer_name x --train_file x.txt --max_steps 20 --push_to_hub"
                .split_whitespace(),
        );
        let run = command.run();
        assert_eq!(run.code, Some(2), "{}", run.stderr);
        assert!(
            run.stderr.contains("--push_to_hub") && run.stderr.contains(part),
            "{}",
            run.stderr
        );
    }
}

/// The Hub's answer names no address to upload to: the push ends at once, with the reason.
#[test]
fn an_upload_address_that_is_none_fails_once() {
    let (hub, dir) = start();
    let dir = dir.path();
    let digest = |path: &Path| {
        use sha2::Digest;
        let digest = sha2::Sha256::digest(fs::read(path).unwrap());
        digest
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let more = "--hub_strategy end --max_steps 1 --overwrite_output_dir";
    hub.push_fault("objects/batch", 1, PushFault::Status(422));
    let mut command = train(&hub, dir, more);
    let refused = command.env("HF_TOKEN", TOKEN).run();
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    let object = serde_json::json!({
        "oid": digest(&dir.join("out/model.safetensors")),
        "actions": {"upload": {"href": "file:///etc/passwd"}},
    });
    let body = serde_json::json!({"objects": [object]}).to_string();
    let length = body.len();
    let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
    hub.reply("objects/batch", 9, format!("{head}{body}"));
    let asked = |hub: &TestHub| {
        let calls = hub.requests();
        calls.iter().filter(|line| line.contains("batch")).count()
    };
    let before = asked(&hub);
    let mut command = train(&hub, dir, more);
    let failed = command.env("HF_TOKEN", TOKEN).run();
    assert_eq!(failed.code, Some(1), "{}", failed.stderr);
    for part in [
        "file:///etc/passwd",
        "is neither http:// nor https://",
        "everything is in out",
    ] {
        assert!(failed.stderr.contains(part), "{part} in {}", failed.stderr);
    }
    assert_eq!(
        failed.stderr.matches("error:").count(),
        1,
        "{}",
        failed.stderr
    );
    assert_eq!(asked(&hub), before + 1);
}
