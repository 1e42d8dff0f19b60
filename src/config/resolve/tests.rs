//! Whole command lines to whole plans.

use super::*;
use crate::Invocation;
use crate::choices::Device;
use crate::fixture::Fixture;
use xtrain_trainer::settings::{EarlyStopping, ExampleOrder, Resume, ScheduleKind};

impl Fixture {
    fn read(&self, line: &str) -> Result<Command, UsageError> {
        match self.invoke(line)? {
            Invocation::Run { command, .. } => Ok(command),
            Invocation::Print(text) => panic!("printed {text}"),
        }
    }

    fn train(&self, more: &str) -> Result<RunPlan, UsageError> {
        match self.read(&format!("CLM {more}"))? {
            Command::Train(plan) => Ok(plan),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn defaults_are_those_of_training_arguments() {
    let fixture = Fixture::new();
    let plan = fixture.train("").unwrap();
    assert_eq!(
        plan.device,
        DevicePlan {
            kind: Device::Cpu,
            settings: DeviceSettings::default()
        }
    );
    assert_eq!(
        plan.model,
        ModelSource::Scratch {
            model_type: Some("gpt2"),
            config: ConfigSource::Default("gpt2"),
            overrides: vec![],
            quantization: None
        }
    );
    assert_eq!(
        (
            plan.do_train,
            plan.do_eval,
            *plan.train.flags.dry_run,
            *plan.train.flags.overwrite_output_dir
        ),
        (true, false, false, false)
    );
    let flags = plan.train.flags.clone();
    assert_eq!(
        (*flags.seed, *flags.num_train_epochs, *flags.max_steps),
        (42, 3.0, None)
    );
    assert_eq!(
        (
            *flags.per_device_eval_batch_size,
            *flags.gradient_accumulation_steps,
            *flags.save_total_limit,
            *flags.max_shard_size
        ),
        (8, 1, None, 5_000_000_000)
    );
    assert_eq!(*flags.resume_from_checkpoint, Resume::No);
    let expected = TrainSettings {
        flags,
        output_dir: fixture.path("new"),
        per_device_train_batch_size: 8,
        example_order: ExampleOrder::Random,
        mesh: xtrain_parallel::Mesh::single(),
        shard_optimizer_state: false,
        checkpointing: Checkpointing::Off,
        replica_check: Cadence::Steps(500),
        precision: Precision::F32,
        eval_precision: Precision::F32,
        optimizer: OptimizerSettings {
            kind: xtrain_graphs::optim::ADAMW,
            storage: Default::default(),
            arguments: Default::default(),
            learning_rate: 5e-5,
            weight_decay: 0.0,
            adam_beta1: 0.9,
            adam_beta2: 0.999,
            adam_epsilon: 1e-8,
            max_grad_norm: 1.0,
            schedule: ScheduleKind::Linear,
            schedule_arguments: Default::default(),
            warmup_steps: None,
            warmup_ratio: 0.0,
        },
        logging: Cadence::Steps(500),
        save: Cadence::Steps(500),
        save_dtype: None,
        best: None,
        eval: Cadence::Never,
    };
    assert_eq!(plan.train, expected);
    let TaskPlan::Clm(data) = plan.task else {
        panic!("{:?}", plan.task)
    };
    assert_eq!(
        (
            data.source.seed,
            data.source.validation_split_percentage,
            data.block_size
        ),
        (42, 5.0, None)
    );
}

#[test]
fn settings_that_depend_on_others() {
    let fixture = Fixture::new();
    let plan = fixture
        .train("--eval_strategy steps --logging_steps 50")
        .unwrap();
    assert_eq!((plan.train.eval, plan.do_eval), (Cadence::Steps(50), true));
    let plan = fixture
        .train("--eval_strategy steps --logging_steps 50 --eval_steps 7 --save_strategy epoch")
        .unwrap();
    assert_eq!(
        (plan.train.eval, plan.train.save),
        (Cadence::Steps(7), Cadence::Epoch)
    );
    let evaluated = fixture.invoke(
        "train clm --model_name_or_path @/model --train_file @/train.txt --output_dir @/new --do_eval",
    );
    let Ok(Invocation::Run {
        command: Command::Train(plan),
        notes,
    }) = evaluated
    else {
        panic!("{evaluated:?}")
    };
    assert_eq!((plan.do_train, plan.do_eval), (false, true));
    assert_eq!(
        notes,
        ["--do_eval without --do_train only evaluates; add --do_train to train, too"]
    );
    let plan = fixture.train("--do_eval --do_train --max_steps 0").unwrap();
    assert_eq!(
        (plan.do_train, plan.do_eval, *plan.train.flags.max_steps),
        (true, true, None)
    );
    let plan = fixture
        .train("--seed 7 --warmup_steps 3 --warmup_ratio 0.5 --max_steps 9 --num_train_epochs 0")
        .unwrap();
    assert_eq!(
        (
            plan.task.source().seed,
            plan.train.optimizer.warmup_steps,
            *plan.train.flags.max_steps
        ),
        (7, Some(3), Some(9))
    );
    let plan = fixture
        .train("--warmup_steps 0.1 --warmup_ratio 0.5")
        .unwrap();
    assert_eq!(
        (
            plan.train.optimizer.warmup_steps,
            plan.train.optimizer.warmup_ratio
        ),
        (None, 0.1)
    );
    let plan = fixture
        .train("--seed 7 --data_seed 8 --lr_scheduler_type constant_with_warmup --optim sgd")
        .unwrap();
    assert_eq!((plan.task.source().seed, *plan.train.flags.seed), (8, 7));
    assert_eq!(
        (plan.train.optimizer.schedule, plan.train.optimizer.kind),
        (ScheduleKind::ConstantWithWarmup, xtrain_graphs::optim::SGD)
    );
    let plan = fixture
        .train("--output_dir @/old --resume_from_checkpoint")
        .unwrap();
    assert_eq!(*plan.train.flags.resume_from_checkpoint, Resume::Latest);
    let plan = fixture
        .train("--output_dir @/old --resume_from_checkpoint @/old/checkpoint-10")
        .unwrap();
    assert_eq!(
        *plan.train.flags.resume_from_checkpoint,
        Resume::From(fixture.path("old/checkpoint-10"))
    );
}

#[test]
fn models_are_found_by_name_or_path() {
    let fixture = Fixture::new();
    let rest = "--tokenizer_name @/tokenizer.json --train_file @/train.txt --output_dir @/new";
    let config = |more: &str| match fixture.read(&format!("train clm {rest} {more}")).unwrap() {
        Command::Train(RunPlan {
            model: ModelSource::Scratch { config, .. },
            ..
        }) => config,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        config("--config_name gpt2-medium"),
        ConfigSource::Preset("gpt2-medium")
    );
    assert_eq!(
        config("--config_name EleutherAI/gpt-j-6b"),
        ConfigSource::Preset("gpt-j-6b")
    );
    assert_eq!(
        config("--config_name @/model"),
        ConfigSource::File(fixture.path("model/config.json"))
    );
    assert_eq!(
        config("--config_name @/model/config.json"),
        ConfigSource::File(fixture.path("model/config.json"))
    );
    let Ok(Command::Bench(plan)) =
        fixture.read("bench --model_type gpt_neo --batch 2 --seq 64 --steps 3 --warmup 0")
    else {
        panic!()
    };
    let ModelSource::Scratch { config, .. } = plan.model else {
        panic!()
    };
    assert_eq!(config, ConfigSource::Default("gpt_neo"));
    let Ok(Command::Eval(plan)) =
        fixture.read("eval clm --model_name_or_path @/model --validation_file @/valid.txt")
    else {
        panic!()
    };
    assert_eq!(
        plan.model,
        ModelSource::Pretrained {
            directory: fixture.path("model"),
            adapter: None,
            model_type: None,
            quantization: None
        }
    );
    assert_eq!(
        (plan.tokenizer.path, plan.train.output_dir),
        (fixture.path("model"), PathBuf::new())
    );
}

/// Rows are set aside for an evaluation, not for none.
#[test]
fn nothing_is_set_aside_where_nothing_evaluates() {
    let fixture = Fixture::new();
    let share = |more: &str| {
        match fixture.read(&format!(
        "train sft --model_type gpt2 --tokenizer_name @/model --train_file @/train.csv --output_dir @/o {more}"
    )) {
        Ok(Command::Train(plan)) => plan.task.source().validation_split_percentage,
        other => panic!("{other:?}"),
    }
    };
    assert_eq!(share("--do_train"), 0.0);
    assert_eq!(share("--do_train --do_eval"), 5.0);
    assert_eq!(share("--eval_strategy epoch"), 5.0);
}

#[test]
fn the_other_commands_resolve() {
    let fixture = Fixture::new();
    let generate = |more: &str| match fixture.read(&format!(
        "generate --model_name_or_path @/model --prompt Hi {more}"
    )) {
        Ok(Command::Generate(plan)) => plan.generation,
        other => panic!("{other:?}"),
    };
    assert_eq!(generate(""), GenerationFlags::default());
    assert_eq!(generate("--temperature 0").temperature, Some(0.0));
    let sampling = generate("--temperature 0.5 --top-k 0 --stop_strings a b");
    assert_eq!(
        (sampling.temperature, sampling.top_k, sampling.stop_strings),
        (Some(0.5), Some(0), vec!["a".to_string(), "b".to_string()])
    );
    let Ok(Command::Bench(plan)) =
        fixture.read("bench --model_type gpt2 --batch 2 --seq 64 --steps 3 --warmup 0 --json")
    else {
        panic!()
    };
    let flags = plan.train.flags;
    assert_eq!((*flags.batch, *flags.steps, *flags.json), (2, 3, true));
    let Ok(Command::Quickstart(plan)) = fixture.read("quickstart --max_steps 5") else {
        panic!()
    };
    assert_eq!(
        (plan.output_dir, plan.max_steps),
        (PathBuf::from("output/quickstart"), Some(5))
    );
    let Ok(Command::Doctor(plan)) = fixture.read("--device neuron doctor") else {
        panic!()
    };
    assert_eq!(
        plan.device,
        DevicePlan {
            kind: Device::Neuron,
            settings: DeviceSettings::default()
        }
    );
    assert!(!plan.json && plan.cache.dir.is_some());
}

#[test]
fn what_a_gpu_is_opened_with() {
    let fixture = Fixture::new();
    let words = "--device cuda doctor --plugin x.so --gpu_memory_fraction 0.5 --visible_devices 2,0 --xla_options \
                 xla_gpu_enable_triton_gemm=false,--xla_gpu_graph_min_graph_size=1,xla_a=0.5,xla_b=text";
    let Ok(Command::Doctor(plan)) = fixture.read(words) else {
        panic!()
    };
    let xla_options = [
        ("xla_gpu_enable_triton_gemm", OverrideValue::Bool(false)),
        ("xla_gpu_graph_min_graph_size", OverrideValue::Int(1)),
        ("xla_a", OverrideValue::Double(0.5)),
        ("xla_b", OverrideValue::String("text".into())),
    ];
    let settings = DeviceSettings {
        plugin: Some("x.so".into()),
        memory_fraction: Some(0.5),
        visible_devices: vec![2, 0],
        neuron: Default::default(),
        plain_attention: false,
        fused_attention_dropout: false,
        tf32: false,
        xla_matmuls: false,
        cpu_threads: None,
        xla_options: xla_options
            .into_iter()
            .map(|(name, value)| (name.to_string(), value))
            .collect(),
        member: None,
    };
    assert_eq!(
        plan.device,
        DevicePlan {
            kind: Device::Cuda,
            settings
        }
    );
    for (words, sign) in [
        ("doctor --plugin x.so", "--device is cpu"),
        (
            "--device neuron doctor --xla_options xla_a=1",
            "--xla_options is for NVIDIA cards",
        ),
        (
            "--device cuda doctor --gpu_memory_fraction 0",
            "leaves a run no memory",
        ),
        (
            "--device cuda doctor --visible_devices 1,1",
            "`1` is not the number of a GPU, or is named twice",
        ),
        (
            "--device cuda doctor --visible_devices all",
            "`all` is not the number of a GPU",
        ),
        (
            "--device cuda doctor --xla_options triton=false",
            "`triton=false` is not of the form xla_NAME=VALUE",
        ),
        (
            "--device cuda doctor --xla_options xla_gpu_graph",
            "`xla_gpu_graph` is not of the form",
        ),
    ] {
        let error = fixture.read(words).unwrap_err().to_string();
        assert!(error.contains(sign), "{words}: {error}");
    }
}

/// What flags ask of a card's compiler, unless the user asks otherwise; of other devices nothing.
#[test]
fn flags_set_options_of_a_cards_compiler() {
    let fixture = Fixture::new();
    let options = |words: &str| fixture.train(words).unwrap().device.settings.xla_options;
    let on = |names: &[(&str, bool)]| {
        let entries = names.iter();
        let entries = entries.map(|(name, on)| (name.to_string(), OverrideValue::Bool(*on)));
        entries.collect::<std::collections::BTreeMap<_, _>>()
    };
    let determinism = "xla_gpu_exclude_nondeterministic_ops";
    let [offloading, hiding] = [
        "xla_gpu_enable_host_memory_offloading",
        "xla_gpu_enable_latency_hiding_scheduler",
    ];
    for (words, wanted) in [
        ("--device cuda", on(&[])),
        (
            "--device cuda --full_determinism",
            on(&[(determinism, true), ("xla_gpu_enable_triton_gemm", false)]),
        ),
        ("--full_determinism", on(&[])),
        ("--device neuron --full_determinism", on(&[])),
        (
            "--device cuda --activation_offloading",
            on(&[(offloading, true), (hiding, false)]),
        ),
        (
            "--device cuda --activation_offloading --xla_options xla_gpu_enable_host_memory_offloading=false",
            on(&[(offloading, false), (hiding, false)]),
        ),
    ] {
        assert_eq!(options(words), wanted, "{words}");
    }
}

#[test]
fn values_outside_their_range_are_refused() {
    let fixture = Fixture::new();
    for (more, message) in [
        (
            "--per_device_train_batch_size 0",
            "`per_device_train_batch_size` must be a whole number that is at least 1, or auto, found `0`",
        ),
        ("--per_device_eval_batch_size 0", "at least 1"),
        ("--gradient_accumulation_steps 0", "at least 1"),
        ("--learning_rate -1", "0 or more"),
        ("--learning_rate nan", "0 or more"),
        ("--weight_decay -0.1", "0 or more"),
        ("--adam_beta1 1", "less than 1"),
        ("--adam_beta2 1.5", "less than 1"),
        ("--adam_epsilon -1e-8", "0 or more"),
        ("--max_grad_norm -1", "0 or more"),
        ("--num_train_epochs -1", "0 or more"),
        ("--max_steps -2", "at least -1"),
        ("--warmup_ratio 1.5", "from 0 to 1"),
        ("--warmup_steps -1", "0 or more"),
        ("--logging_steps 0", "at least 1"),
        ("--save_steps 0", "at least 1"),
        ("--save_total_limit 0", "at least 1"),
        ("--block_size 0", "at least 1"),
        ("--validation_split_percentage 100", "less than 100"),
        (
            "--lr_scheduler_type greedy",
            "one of linear, cosine, cosine_with_restarts, polynomial",
        ),
        ("--save_strategy never", "one of no, steps, epoch, best"),
        ("--device tpu", "one of cpu, cuda, neuron"),
        ("--seed 1.5", "a whole number"),
        ("--do_train maybe", "true or false"),
    ] {
        let error = fixture.train(more).expect_err(more);
        assert!(
            matches!(error, UsageError::BadValue { .. }) && error.to_string().contains(message),
            "{more}: {error}"
        );
    }
}

#[test]
fn the_best_model_follows_transformers_rules() {
    let fixture = Fixture::new();
    let best = |more: &str| {
        fixture
            .train(&format!(
                "--eval_strategy epoch --save_strategy epoch {more}"
            ))
            .unwrap()
            .train
            .best
    };
    assert_eq!(best(""), None);
    let rule = best("--load_best_model_at_end").unwrap();
    assert_eq!(
        (
            rule.metric.as_str(),
            rule.greater_is_better,
            rule.load_at_end
        ),
        ("loss", false, true)
    );
    let rule = best("--metric_for_best_model eval_accuracy --early_stopping_patience 3").unwrap();
    assert_eq!(
        (
            rule.metric.as_str(),
            rule.greater_is_better,
            rule.load_at_end
        ),
        ("accuracy", true, false)
    );
    assert_eq!(
        rule.early_stopping,
        Some(EarlyStopping {
            patience: 3,
            threshold: 0.0
        })
    );
    assert!(
        !best("--metric_for_best_model perplexity")
            .unwrap()
            .greater_is_better
    );
    assert!(
        best("--metric_for_best_model eval_loss --greater_is_better")
            .unwrap()
            .greater_is_better
    );
}

#[test]
fn tasks_have_their_own_defaults() {
    let fixture = Fixture::new();
    let task = |line: &str| {
        let line = format!(
            "{line} --tokenizer_name @/tokenizer.json --train_file @/train.csv --output_dir @/new"
        );
        match fixture.read(&line).unwrap() {
            Command::Train(plan) => plan.task,
            other => panic!("{other:?}"),
        }
    };
    let TaskPlan::Mlm(masked) = task("train mlm --model_type bert") else {
        panic!("not mlm")
    };
    assert_eq!(
        (
            masked.max_seq_length,
            masked.mlm_probability,
            masked.padding.pad_to_max_length
        ),
        (None, 0.15, false)
    );
    let classes = |more: &str| match task(&format!("train cls --model_type bert {more}")) {
        TaskPlan::Cls(data) => data,
        other => panic!("{other:?}"),
    };
    let plain = classes("");
    assert_eq!(
        (
            plain.max_seq_length,
            plain.padding.pad_to_max_length,
            plain.labels.is_none()
        ),
        (None, true, true)
    );
    // Nothing is set aside of rows that nobody evaluates on.
    assert_eq!(plain.source.validation_split_percentage, 0.0);
    assert_eq!(
        classes("--do_train --do_eval")
            .source
            .validation_split_percentage,
        5.0
    );
    let padding = classes("--pad_to_bucket 32,64 --labels no,yes").padding;
    assert_eq!(
        (padding.pad_to_max_length, padding.pad_to_bucket),
        (false, vec![32, 64])
    );
}
