use super::*;
use crate::choices::Device;

fn typed(line: &str) -> Result<Flags, UsageError> {
    let args = line.split_whitespace().map(OsString::from);
    match parse(std::iter::once("xtrain".into()).chain(args))? {
        Parsed::Flags(flags) => {
            UsageError::all(flags.mistakes.clone())?;
            Ok(*flags)
        }
        Parsed::Text(text) => panic!("printed {text}"),
    }
}

#[test]
fn every_spelling_means_the_same() {
    let plain =
        typed("train clm --learning_rate 5e-4 --do_train --eval_strategy epoch --train_file a b")
            .unwrap();
    for line in [
        "train clm --learning-rate 5e-4 --do-train true --evaluation_strategy epoch --train-file a --train-file b",
        "train clm --learning_rate=5e-4 --do_train=True --evaluation-strategy=epoch --train_file=a --train_file b",
        "train clm --learning_rate 1 --learning_rate 0.0005 --do_train yes --eval-strategy epoch --train_file a b",
    ] {
        assert_eq!(typed(line).unwrap(), plain, "{line}");
    }
    assert_eq!(*plain.learning_rate, 5e-4);
    assert_eq!(plain.train_file.len(), 2);
}

#[test]
fn device_may_stand_anywhere() {
    for line in [
        "--device cuda train clm",
        "train --device cuda clm",
        "train clm --device cuda",
        "--device=cuda train clm --seed 42",
    ] {
        assert_eq!(*typed(line).unwrap().device, Device::Cuda, "{line}");
    }
    assert_eq!(*typed("doctor").unwrap().device, Device::Cpu);
}

#[test]
fn negative_numbers_are_values_and_flags_are_not() {
    assert_eq!(*typed("train clm --max_steps -1").unwrap().max_steps, None);
    let error = typed("train clm --learning_rate -5e-5")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("`learning_rate` must be a number that is 0 or more, found `-5e-5`"),
        "{error}"
    );
    let error = typed("train clm --learning_rate --do_train")
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "--learning_rate needs a value: a number that is 0 or more"
    );
    let prompt = typed("generate --prompt --so").unwrap().prompt;
    assert_eq!(prompt.as_deref(), Some("--so"));
    for line in [
        "generate --prompt --max_new_tokens 3",
        "generate --max-new-tokens --prompt=x",
        "compile clm --max_steps -j 3",
        "compile clm --output_dir --do_train",
        "compile clm --output_dir -x=3 --train_file --do_eval",
    ] {
        let error = typed(line).unwrap_err();
        let mut each = error.each();
        assert!(
            each.any(|error| matches!(error, UsageError::NoValue { .. })),
            "{line}: {error}"
        );
    }
}

#[test]
fn all_mistakes_are_found_and_nothing_is_swallowed() {
    let error = typed(
        "train clm --learning_rte 1e-4 --learning_rate -o out --max_steps ten --bf16 perhaps \
         word --save_strategy --seed 3 --lr 3",
    )
    .unwrap_err();
    let found: Vec<String> = error
        .each()
        .map(|error| format!("{error} | {}", error.hint().unwrap_or_default()))
        .collect();
    assert_eq!(
        found,
        [
            "unknown flag --learning_rte for `xtrain train clm` | did you mean `--learning_rate`?",
            "--learning_rate needs a value: a number that is 0 or more | ",
            "unknown flag -o for `xtrain train clm` | did you mean `--output_dir`?",
            "unexpected word `word`: every setting of `xtrain train clm` is a flag | `xtrain train clm --help` lists them",
            "--save_strategy needs a value: one of no, steps, epoch, best | ",
            "unknown flag --lr for `xtrain train clm` | did you mean `--learning_rate`?",
            "command line: `max_steps` must be a whole number that is at least -1, found `ten` | ",
            "command line: `bf16` must be true or false, found `perhaps` | ",
        ]
    );
}

#[test]
fn booleans_are_turned_off_in_every_way() {
    for line in [
        "--no_bf16",
        "--no-bf16",
        "--bf16 False",
        "--bf16=no",
        "--bf16 --no_bf16",
    ] {
        let flags = typed(&format!("train clm {line}")).unwrap();
        assert!(!*flags.bf16 && flags.bf16.is_given(), "{line}");
    }
    assert!(*typed("train clm --no_bf16 --bf16").unwrap().bf16);
    let error = typed("train clm --no_bf16=true").unwrap_err();
    assert_eq!(
        error.hint().as_deref(),
        Some("write --no_bf16, or --bf16 false")
    );
}

#[test]
fn a_settings_file_may_stand_alone() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let plain = write("plain.json", r#"{"seed": 3, "output_dir": "out"}"#);
    let blocks = write("blocks.json", r#"{"seed": 3, "block_size": 64}"#);
    let flags = typed(&format!("train mlm {plain}")).unwrap();
    assert_eq!(flags.config.as_deref(), Some(Path::new(&plain)));
    let flags = typed(&format!("train {blocks} --seed 4")).unwrap();
    assert_eq!(flags.command.words(), "train clm");
    assert_eq!(
        flags.notes,
        [format!("{blocks} is read as `xtrain train clm {blocks}`")]
    );
    let error = typed(&format!("train {plain}")).unwrap_err();
    let tasks: Vec<&str> = second_words("train").collect();
    assert_eq!(
        error.to_string(),
        format!(
            "{plain} does not show which of {} it is for",
            tasks.join(", ")
        )
    );
    let error = typed(&plain).unwrap_err();
    assert_eq!(
        error.hint(),
        Some(format!("for example `xtrain train clm {plain}`"))
    );
}

/// Lines with a name that is unknown or not taken there, and the hint that their first mistake gets.
const HINTS: &[(&str, &str)] = &[
    (
        "train clm --learning-rte 1",
        "did you mean `--learning_rate`?",
    ),
    (
        "train clm --lr_schedule linear",
        "did you mean `--lr_scheduler_type`?",
    ),
    ("trian clm", "did you mean `xtrain train`?"),
    ("train mml", "did you mean `xtrain train mlm`?"),
    (
        "eval translation",
        "models of an encoder with a decoder are not built; `xtrain train sft` learns completions of prompts",
    ),
    (
        "eval xyz",
        "the tasks of `xtrain eval` are clm, sft, dpo, reward, kto, mlm, cls, token-cls",
    ),
    ("train llm", "did you mean `xtrain train clm`?"),
    ("predict ner", "did you mean `xtrain predict token-cls`?"),
    (
        "predict clm",
        "`xtrain predict` is for cls, token-cls, reward; texts are continued by `xtrain generate`",
    ),
    ("train orpo", "did you mean `xtrain train dpo`?"),
    (
        "train reward_modeling",
        "did you mean `xtrain train reward`?",
    ),
    (
        "train simpo",
        "it is not supported; `xtrain train dpo` learns from pairs with many losses (--loss_type), also without a reference (orpo)",
    ),
    (
        "train foo.txt",
        "the task stands before it, as in `xtrain train clm --train_file foo.txt`; tasks are clm, sft, dpo, reward, kto, mlm, cls, token-cls",
    ),
    ("sft", "did you mean `xtrain train sft`?"),
    ("clm", "did you mean `xtrain train clm`?"),
    ("mlm", "did you mean `xtrain train mlm`?"),
    ("cls", "did you mean `xtrain train cls`?"),
    ("token-cls", "did you mean `xtrain train token-cls`?"),
    (
        "chat",
        "use `xtrain generate --chat --model_name_or_path DIR`",
    ),
    ("zzz", "`xtrain --help` lists the commands"),
    ("cache prun", "did you mean `xtrain cache prune`?"),
    (
        "generate --learning_rate 1",
        "that one belongs to `xtrain train`, `xtrain compile`, `xtrain fit`; \
         `xtrain generate --help` lists what this command takes",
    ),
    (
        "predict token-cls --learning_rate 1",
        "that one belongs to `xtrain train token-cls`, `xtrain compile token-cls`, `xtrain fit token-cls`; \
         `xtrain predict token-cls --help` lists what this command takes",
    ),
    ("train clm --save_strategy epochs", "did you mean `epoch`?"),
    ("train mlm --model_type brt", "did you mean `bert`?"),
    // Not the name that looks most alike, but what does the same.
    (
        "train clm --mixed_precision fp16",
        "use --bf16 or --fp16 instead",
    ),
    (
        "train clm --evaluate_during_training",
        "use --eval_strategy steps instead",
    ),
    ("train clm --mlm", "use `xtrain train mlm` instead"),
    // Nothing rather than a name that only looks like it.
    (
        "train clm --zos_token x",
        "`xtrain train clm --help` lists what it takes",
    ),
    (
        "train clm --eos_token x",
        "not built yet: special tokens are those of the tokenizer; change them in its tokenizer_config.json",
    ),
    (
        "train clm --loss_type dft",
        "not built yet: other losses; the loss is the cross-entropy of tokens or classes",
    ),
    ("train sft --eos_token x", "leave `eos_token` out"),
    (
        "generate --use_peft",
        "an adapter is one of training (--use_peft), and is used with --adapter_name_or_path",
    ),
    ("train sft --lora_rank 8", "did you mean `--lora_r`?"),
    ("train clm --max_length 3", "did you mean `--block_size`?"),
    (
        "train clm --batch_size 3",
        "did you mean `--per_device_train_batch_size`?",
    ),
    (
        "eval clm --batch_size 3",
        "did you mean `--per_device_eval_batch_size`?",
    ),
    ("bench --batch_size 3", "did you mean `--batch`?"),
    (
        "train clm --eval_file x",
        "did you mean `--validation_file`?",
    ),
    (
        "train clm --labels a,b",
        "that one belongs to `xtrain train cls`, `xtrain train token-cls`; `xtrain train clm --help` lists what this command takes",
    ),
    ("train clm foo.txt", "write it as --train_file foo.txt"),
    (
        "eval clm s3://b/foo.txt",
        "write it as --validation_file s3://b/foo.txt",
    ),
    ("predict cls foo.csv", "write it as --test_file foo.csv"),
    (
        "train clm org/name",
        "write it as --model_name_or_path org/name",
    ),
    ("bench gpt2", "write it as --model_type gpt2"),
    (
        "train clm lr=3 learning_rate=1e-4",
        "`xtrain train clm --help` lists them",
    ),
    (
        "train clm learning_rate=1e-4",
        "write it as --learning_rate=1e-4",
    ),
    ("train clm --device gpu", "use cuda, for NVIDIA cards"),
    (
        "train clm --device cuda:1",
        "use cuda, with --visible_devices 1",
    ),
    (
        "train s3://b/run.json",
        "copy it to this machine first, and give its path",
    ),
    (
        "train clm --output_dir hdfs://b/out",
        "give a path on this machine, or a folder of a bucket (s3://BUCKET/PREFIX, gs://, az://)",
    ),
    (
        "train clm --optim adamw_torch_4bit",
        "use adamw_8bit, whose state is in 8 bits",
    ),
    (
        "train clm --optim galore_adamw_8bit",
        "use adamw_8bit, whose state is in 8 bits",
    ),
    (
        "train clm --optim rmsprop_bnb_8bit",
        "use rmsprop: its state is float32; --shard_optimizer_state shards it over --data_parallel devices",
    ),
    (
        "train clm --optim galore_adamw_layerwise",
        "use adamw_torch, the nearest of them",
    ),
    (
        "train clm --optim adamw_torh",
        "did you mean `adamw_torch`?",
    ),
    (
        "train clm --attn_implementation flash_attention_2",
        "leave `attn_implementation` out: attention is fused wherever the device can",
    ),
    (
        "train clm --dtype float16",
        "use --fp16, mixed precision with float32 weights; or bfloat16, whose range is float32's",
    ),
];

#[test]
fn unknown_names_get_the_nearest_known_one() {
    for (line, hint) in HINTS {
        assert_eq!(
            typed(line)
                .unwrap_err()
                .each()
                .next()
                .unwrap()
                .hint()
                .as_deref(),
            Some(*hint),
            "{line}"
        );
    }
}

#[test]
fn what_is_not_built_is_refused_with_a_reason_and_never_ignored() {
    for line in [
        "--adafactor",
        "--adafactor true",
        "--push_to_hub_organization me",
        "--deepspeed x.json",
    ] {
        let error = typed(&format!("train clm {line}")).unwrap_err();
        assert!(
            matches!(error, UsageError::Refused { .. }),
            "{line}: {error}"
        );
    }
    for line in [
        "--adafactor false",
        "--report_to none",
        "--local_rank -1",
        "--push-to-hub=False",
    ] {
        assert_eq!(
            typed(&format!("train clm {line}")).unwrap().notes.len(),
            0,
            "{line}"
        );
    }
    assert_eq!(typed("train clm --project x").unwrap().notes.len(), 1);
}

#[test]
fn an_optimizer_that_would_be_paged_says_that_it_is_not() {
    let note = |name: &str| {
        typed(&format!("train clm --optim {name}"))
            .unwrap()
            .paging_note()
    };
    assert_eq!(
        note("paged_adamw_8bit").unwrap(),
        "--optim paged_adamw_8bit is adamw_bnb_8bit: its state stays on the device, nothing is paged"
    );
    assert!(
        note("paged_adamw_32bit")
            .unwrap()
            .contains("is adamw_torch:")
    );
    assert_eq!(note("adamw_8bit"), None);
}
