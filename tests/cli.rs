//! The command line as a user meets it: the real program, its output, its exit codes. Combinations
//! of settings are tested beside the code (`src/config`); here it is that they reach the user as
//! one message, exit code 2 and nothing started.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Instant;

/// Runs the program in `dir` with the words of `line`.
fn xtrain(dir: &Path, line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtrain"))
        .args(line.split_whitespace())
        .current_dir(dir)
        .env("XTRAIN_CACHE_DIR", dir.join("cache"))
        .env_remove("RUST_BACKTRACE")
        .output()
        .expect("the program was built for this test")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A working directory with a text, a tokenizer by name, and the output of an earlier run.
fn workplace() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("old/checkpoint-5")).unwrap();
    std::fs::write(dir.path().join("old/config.json"), "{}").unwrap();
    for name in ["train.txt", "valid.txt", "tokenizer.json"] {
        std::fs::write(dir.path().join(name), "{}").unwrap();
    }
    dir
}

const TRAIN: &str = "train clm --model_type gpt2 --tokenizer_name tokenizer.json --train_file train.txt --output_dir out";

#[test]
fn help_goes_to_standard_output() {
    let dir = workplace();
    for line in [
        "",
        "--help",
        "-h",
        "train --help",
        "train clm --help",
        "eval clm --help",
        "generate --help",
        "bench -h",
        "doctor --help",
    ] {
        let started = Instant::now();
        let output = xtrain(dir.path(), line);
        println!(
            "xtrain {line}: {:.1} ms",
            started.elapsed().as_secs_f64() * 1e3
        );
        assert_eq!(output.status.code(), Some(0), "{line}");
        assert!(
            stdout(&output).contains("Usage:") && stderr(&output).is_empty(),
            "{line}"
        );
    }
    let all = stdout(&xtrain(dir.path(), ""));
    for command in ["train", "eval", "generate", "bench", "doctor", "quickstart"] {
        assert!(all.contains(&format!("\n  {command} ")), "{all}");
    }
    let train = stdout(&xtrain(dir.path(), "train clm --help"));
    for part in [
        "Optimizer:",
        "--learning_rate <X>",
        "[default: 5e-5]",
        "Checkpoints:",
        "Examples:",
    ] {
        assert!(train.contains(part), "{part} is missing in {train}");
    }
    assert!(
        !train.contains("--adafactor"),
        "what is not built is not advertised"
    );
}

/// `-h` has the flags that people use and says how to see the rest.
#[test]
fn the_short_help_is_short() {
    let dir = workplace();
    let page = |line: &str| stdout(&xtrain(dir.path(), line));
    let (short, long) = (page("train clm -h"), page("train clm --help"));
    let flags = |page: &str| {
        page.lines()
            .filter(|line| line.trim_start().starts_with("--"))
            .count()
    };
    assert!((15..=25).contains(&flags(&short)), "{short}");
    assert!(flags(&long) > 100, "{long}");
    assert!(
        short.contains("`xtrain train clm --help` lists all "),
        "{short}"
    );
    assert!(short.contains("--learning_rate <X>") && !short.contains("--adam_beta1"));
    assert_eq!(page("help train clm"), long);
    assert_eq!(page("help"), page("--help"));
    assert!(page("help train").contains("token-cls"));
    let refused = xtrain(dir.path(), "help train mml");
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("did you mean `xtrain train mlm`?"));
}

/// Each mistake is one message, all of one start.
#[test]
fn a_line_with_five_mistakes_reports_five() {
    let dir = workplace();
    let line = format!(
        "{TRAIN} --learning_rte 1e-4 --max-steps ten word --save_strategy --no_bf16=1 --seed 3"
    );
    let output = xtrain(dir.path(), &line);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    let errors: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("error: "))
        .collect();
    let expected = [
        "error: unknown flag --learning_rte for `xtrain train clm`",
        "error: unexpected word `word`: every setting of `xtrain train clm` is a flag",
        "error: --save_strategy needs a value: one of no, steps, epoch, best",
        "error: --no_bf16 takes no value",
        "error: command line: `max_steps` must be a whole number that is at least -1, found `ten`",
    ];
    assert_eq!(errors, expected, "{text}");
}

/// What `shell` offers after `words`; `None` where it is not installed.
fn offered(shell: &str, script: &str, words: &str) -> Option<String> {
    let dir = tempfile::tempdir().unwrap();
    let completions = xtrain(dir.path(), &format!("completions {shell}"));
    assert!(completions.status.success(), "{}", stderr(&completions));
    std::fs::write(dir.path().join("_xtrain"), completions.stdout).unwrap();
    let output = Command::new(shell)
        .args(["-c", script])
        .arg(shell)
        .args(words.split(' '))
        .current_dir(dir.path())
        .output()
        .ok()?;
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{}",
        stderr(&output)
    );
    Some(stdout(&output))
}

#[test]
fn shells_complete_commands_and_flags() {
    let bash = r#"source ./_xtrain; shift 0; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _xtrain xtrain "${@: -1}" "${@: -2:1}"; echo "${COMPREPLY[@]}""#;
    let bash = |words: &str| offered("bash", bash, words).expect("bash is there");
    assert!(bash("xtrain tr").contains("train"));
    assert!(bash("xtrain train c").contains("clm"));
    assert!(bash("xtrain train clm --learning_r").contains("--learning_rate"));
    assert!(bash("xtrain train clm --save_strategy e").contains("epoch"));
    if let Some(offers) = offered(
        "fish",
        "source ./_xtrain; complete -C (string join ' ' -- $argv[2..])",
        "xtrain train clm --learning_r",
    ) {
        assert!(offers.contains("--learning_rate"), "{offers}");
    }
    // Its completion needs a terminal; here it is only read.
    if let Some(said) = offered(
        "zsh",
        "autoload -U compinit; compinit -u -D; source ./_xtrain; whence -w _xtrain",
        "xtrain",
    ) {
        assert_eq!(said, "_xtrain: function\n");
    }
    let dir = workplace();
    let refused = xtrain(dir.path(), "completions tcsh");
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        stderr(&refused).contains("`xtrain completions bash`"),
        "{}",
        stderr(&refused)
    );
}

#[test]
fn manual_pages_are_of_the_same_table() {
    let dir = workplace();
    let page = stdout(&xtrain(dir.path(), "man train clm"));
    for part in [
        ".TH",
        "xtrain\\-train\\-clm",
        "learning_rate",
        "Optimizer",
        "Examples:",
    ] {
        assert!(page.contains(part), "{part} is missing in {page}");
    }
    assert!(stdout(&xtrain(dir.path(), "man")).contains("SUBCOMMANDS"));
    assert_eq!(xtrain(dir.path(), "man nothing").status.code(), Some(2));
}

#[test]
fn version_is_the_packages() {
    let output = xtrain(Path::new("."), "--version");
    assert_eq!(
        (output.status.code(), stdout(&output)),
        (Some(0), format!("xtrain {}\n", env!("CARGO_PKG_VERSION")))
    );
}

/// Lines with a mistake, and the message that it ends in, or a part of it. TRAIN stands for [`TRAIN`].
const MISTAKES: &[(&str, &str)] = &[
    (
        "TRAIN --learning_rte 1",
        "error: unknown flag --learning_rte for `xtrain train clm`\nhint: did you mean `--learning_rate`?\n",
    ),
    (
        "TRAIN --learning-rte=1",
        "error: unknown flag --learning-rte for `xtrain train clm`\nhint: did you mean `--learning_rate`?\n",
    ),
    (
        "TRAIN --xyzzy",
        "error: unknown flag --xyzzy for `xtrain train clm`\nhint: `xtrain train clm --help` lists what it takes\n",
    ),
    (
        "TRAIN --prompt x",
        "hint: that one belongs to `xtrain generate`",
    ),
    (
        "TRAIN --config typo.toml",
        "error: typo.toml:2: unknown key `learning_rte` for `xtrain train clm`\nhint: did you mean `learning_rate`?\n",
    ),
    (
        "TRAIN --config typo.json",
        "error: typo.json:2: unknown key `learning_rte` for `xtrain train clm`\nhint: did you mean `learning_rate`?\n",
    ),
    (
        "TRAIN --config wrong.toml",
        "error: wrong.toml:1: `learning_rate` must be a number that is 0 or more, found `fast`\n",
    ),
    ("TRAIN --config none.toml", "error: none.toml: No such file"),
    (
        "TRAIN --per_device_train_batch_size 0",
        "error: command line: `per_device_train_batch_size` must be a whole number that is at least 1, or auto, found `0`\n",
    ),
    (
        "TRAIN --gradient_checkpointing every:0",
        "error: command line: `gradient_checkpointing` must be true, false, full, attention or every:K with K at least 1, found `every:0`\n",
    ),
    (
        "TRAIN --seed",
        "error: --seed needs a value: a whole number that is 0 or more\n",
    ),
    (
        "TRAIN --output_dir old",
        "error: --output_dir: old is not empty\nhint: add --resume_from_checkpoint",
    ),
    (
        "TRAIN --validation_file none.txt",
        "error: --validation_file: none.txt does not exist\n",
    ),
    (
        "TRAIN --config_name google-bert/bert-base-cased",
        "error: --config_name: google-bert/bert-base-cased is an encoder, which predicts masked tokens, not the next one\n",
    ),
    (
        "TRAIN_BERT",
        "error: --model_type: bert is an encoder, which predicts masked tokens, not the next one\nhint: use the task mlm, or one of gpt2",
    ),
    ("TRAIN stray", "unexpected word `stray`"),
    (
        "train clm --model_type gpt2 --tokenizer_name tokenizer.json train.txt --output_dir out",
        "error: unexpected word `train.txt`: every setting of `xtrain train clm` is a flag\nhint: write it as --train_file train.txt\n",
    ),
    (
        "TRAIN --output_dir hdfs://bucket/out",
        "error: --output_dir: hdfs://bucket/out is not on this machine, and hdfs:// is not supported here\nhint: give a path on this machine,",
    ),
    (
        "TRAIN --cache_dir s3://bucket/cache",
        "error: --cache_dir: s3://bucket/cache is not on this machine",
    ),
    (
        "train clm --model_name_or_path gs://b/model --train_file train.txt --output_dir out",
        "error: --model_name_or_path: gs://b/model is not on this machine, and gs:// is not supported here\nhint: copy it",
    ),
    (
        "report s3://b/run",
        "error: report: s3://b/run is not on this machine",
    ),
    (
        "TRAIN --do_eval",
        "error: --do_eval without --do_train only evaluates, and a model of --model_type has random weights\nhint: add --do_train or",
    ),
    (
        "TRAIN --eos_token x",
        "error: unknown flag --eos_token for `xtrain train clm`\nhint: not built yet: special tokens are those of the tokenizer",
    ),
    (
        "TRAIN --data_parallel 2147483647 --tensor_parallel 2147483647 --pipeline_parallel 4",
        "are more than 1048576 devices\nhint: ",
    ),
    (
        "sft",
        "error: unknown command `sft`\nhint: did you mean `xtrain train sft`?\n",
    ),
    ("train grpo", "error: unknown command `train grpo`\nhint: "),
    ("train", "error: `xtrain train` needs one of: clm, "),
    (
        "train mml",
        "error: unknown command `train mml`\nhint: did you mean `xtrain train mlm`?\n",
    ),
    (
        "trian clm",
        "error: unknown command `trian`\nhint: did you mean `xtrain train`?\n",
    ),
    (
        "--learning_rate 1 train clm",
        "error: --learning_rate stands before the command\nhint: write it after: `xtrain train clm --learning_rate ...`\n",
    ),
    (
        "predict --test_file new.csv cls",
        "error: --test_file stands before the command\nhint: write it after: `xtrain predict cls --test_file ...`\n",
    ),
    (
        "--device tpu doctor",
        "error: command line: `device` must be one of cpu, cuda, neuron, found `tpu`\n",
    ),
    ("--device", "error: --device needs a value"),
    (
        "-- train clm",
        "error: unknown flag -- before the command\n",
    ),
    (
        "train -- clm",
        "error: unknown flag -- before the command\n",
    ),
    (
        "--device cpu",
        "error: `xtrain COMMAND` needs one of: train clm, ",
    ),
    (
        "bench --steps 0 --model_type gpt2",
        "`steps` must be a whole number that is at least 1",
    ),
];

#[test]
fn mistakes_end_in_one_message_and_exit_code_2() {
    let dir = workplace();
    std::fs::write(
        dir.path().join("typo.toml"),
        "seed = 1\nlearning_rte = 1e-4\n",
    )
    .unwrap();
    std::fs::write(
        dir.path().join("typo.json"),
        "{\"seed\": 1,\n\"learning_rte\": 1e-4}",
    )
    .unwrap();
    std::fs::write(dir.path().join("wrong.toml"), "learning_rate = \"fast\"\n").unwrap();
    let bert = TRAIN.replace("--model_type gpt2 ", "--model_type bert ");
    for (line, message) in MISTAKES {
        let line = line.replace("TRAIN_BERT", &bert).replace("TRAIN", TRAIN);
        let output = xtrain(dir.path(), &line);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{line}: {text}");
        assert!(text.contains(message), "{line}: {text}");
        assert!(
            text.starts_with("error: ")
                && text.matches("error: ").count() == 1
                && text.lines().count() <= 2,
            "{line}: {text}"
        );
        assert!(stdout(&output).is_empty(), "{line}");
    }
    for name in ["out", "cache", "s3:", "gs:", "hdfs:"] {
        assert!(!dir.path().join(name).exists(), "a mistake left {name}");
    }
}

/// A variable that names a directory is held to what its flag is held to.
#[test]
fn directories_of_the_environment_are_paths_of_this_machine() {
    let dir = workplace();
    for (variable, line) in [
        ("XTRAIN_CACHE_DIR", TRAIN.to_string()),
        ("XTRAIN_CACHE_DIR", "cache ls".into()),
        (
            "TENSORBOARD_LOGGING_DIR",
            format!("{TRAIN} --report_to tensorboard"),
        ),
        (
            "HF_HOME",
            "generate --model_name_or_path org/name --prompt x".into(),
        ),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_xtrain"))
            .args(line.split_whitespace())
            .current_dir(dir.path())
            .env(variable, "s3://b/x")
            .output()
            .unwrap();
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{line}: {text}");
        let message = format!(
            "error: ${variable}: s3://b/x is not on this machine, and s3:// is not supported here\n"
        );
        assert!(text.contains(&message), "{text}");
        assert!(!dir.path().join("s3:").exists());
    }
}

#[test]
fn settings_without_effect_are_noted() {
    let dir = workplace();
    // The tokenizer is no tokenizer, so the run fails; the note comes before it starts.
    let output = xtrain(dir.path(), &format!("{TRAIN} --project x --report_to none"));
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).starts_with(
        "note: command line: `project` changes nothing here: only trackio shows it\nerror: "
    ));
}

#[test]
fn an_argument_that_is_not_unicode_is_a_usage_error() {
    use std::os::unix::ffi::OsStrExt;
    let output = Command::new(env!("CARGO_BIN_EXE_xtrain"))
        .args(["train", "clm", "--output_dir"])
        .arg(std::ffi::OsStr::from_bytes(b"\xff\xfe"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(
        stderr(&output),
        "error: an argument is not valid UTF-8\nhint: `xtrain --help` shows how commands are written\n"
    );
}

/// The first of README's two commands, given again where everything is there: it succeeds and says
/// nothing.
#[test]
fn bootstrap_can_be_run_again() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(root.join("bin/bootstrap"))
        .arg("--no-build")
        .current_dir(root)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}: {}",
        output.status,
        stderr(&output)
    );
    assert_eq!(
        (stdout(&output), stderr(&output)),
        (String::new(), String::new())
    );
}
