//! The commands and tasks of other programs.

use crate::config::command::TaskName;

/// The programs of transformers, PyTorch and accelerate, with the commands that do the same.
pub const OF_PROGRAMS: &[(&str, &str)] = &[
    (
        "run_clm.py run_clm_no_trainer.py run_language_modeling.py",
        "`xtrain train clm`",
    ),
    (
        "run_mlm.py run_mlm_no_trainer.py run_mlm_wwm.py",
        "`xtrain train mlm`",
    ),
    (
        "run_glue.py run_glue_no_trainer.py run_xnli.py run_classification.py",
        "`xtrain train cls`",
    ),
    (
        "run_ner.py run_ner_no_trainer.py",
        "`xtrain train token-cls`",
    ),
    ("run_generation.py", "`xtrain generate`"),
    (
        "torchrun accelerate deepspeed xla_spawn.py neuron_parallel_compile",
        "`xtrain launch --nproc_per_node N -- train ...` or, to compile ahead, `xtrain compile ...`",
    ),
    ("python python3", "a command: `xtrain --help` lists them"),
];

/// Other words for the tasks, and tasks that are not built.
pub const TASKS: &[(Result<TaskName, &str>, &str)] = &[
    (
        Ok(TaskName::Clm),
        "clm causal causal_lm causallm lm llm gpt gpt2 pretrain pretraining language_modeling \
         language_model text_generation cpt pt",
    ),
    (
        Ok(TaskName::Sft),
        "sft instruct instruction instructions chat finetune fine_tune finetuning fine_tuning \
         conversations supervised",
    ),
    (Ok(TaskName::Mlm), "mlm masked masked_lm bert fill_mask wwm"),
    (
        Ok(TaskName::Cls),
        "cls classification classifier classify text_classification sequence_classification \
         seq_cls glue regression sentiment",
    ),
    (
        Ok(TaskName::TokenCls),
        "token_cls token_classification tokencls ner pos chunk tagging tagger conll",
    ),
    (
        Err(
            "preference optimization (such as DPO) is not built yet; `xtrain train sft` fine-tunes on prompts with completions",
        ),
        "dpo orpo kto cpo simpo ipo preference preferences",
    ),
    (
        Err(
            "reinforcement learning (such as GRPO or PPO) is not built yet; `xtrain train sft` fine-tunes on prompts with completions",
        ),
        "grpo ppo rloo rl rlhf rlvr reinforce",
    ),
    (
        Err(
            "reward models are not built yet; `xtrain train cls` trains a classifier or, with --do_regression, a score of a text",
        ),
        "reward rm reward_model prm",
    ),
    (
        Err(
            "LoRA and other adapters are not built yet: `xtrain train clm` and `xtrain train sft` train all parameters",
        ),
        "lora qlora dora peft adapter adapters",
    ),
    (
        Err(
            "models of an encoder with a decoder are not built; `xtrain train sft` learns completions of prompts",
        ),
        "seq2seq translation summarization t5 bart",
    ),
    (
        Err(
            "question answering by spans is not built; `xtrain train sft` learns answers as completions",
        ),
        "qa squad question_answering",
    ),
    (
        Err("sentence embeddings are not built yet; `xtrain train cls` compares pairs of texts"),
        "embedding embeddings sentence_transformers contrastive retrieval",
    ),
    (
        Err("distillation is not built yet"),
        "distill distillation gkd",
    ),
];

/// Other words for commands, each with a sentence.
pub const COMMANDS: &[(&str, &str)] = &[
    ("xtrain", "leave the second `xtrain` out"),
    (
        "finetune fine-tune finetuning pretrain training trainer fine_tune run",
        "training is `xtrain train TASK`, as in `xtrain train clm` or `xtrain train sft`",
    ),
    (
        "evaluate evaluation test validate score perplexity",
        "evaluation is `xtrain eval TASK`, as in `xtrain eval clm`",
    ),
    (
        "inference infer complete sample completion text-generation",
        "use `xtrain generate --model_name_or_path DIR --prompt TEXT`",
    ),
    (
        "chat repl talk",
        "use `xtrain generate --chat --model_name_or_path DIR`",
    ),
    (
        "classify label tag",
        "use `xtrain predict cls` or `xtrain predict token-cls`",
    ),
    (
        "serve server api",
        "serving is not built: an output directory is a Hugging Face model, which vLLM and transformers load",
    ),
    (
        "export convert save",
        "an output directory is a Hugging Face model already; compiled graphs: `xtrain cache export`",
    ),
    (
        "merge merge-lora fuse",
        "there is nothing to merge: adapters (LoRA) are not built yet, and all parameters are trained",
    ),
    (
        "quantize gguf quantization",
        "quantization is not built; an output directory is a Hugging Face model, which other programs quantize",
    ),
    (
        "push upload",
        "add --push_to_hub to the training; a directory as it is: `hf upload REPOSITORY DIR`",
    ),
    ("login auth", "use `hf auth login`, or set HF_TOKEN"),
    (
        "download pull get",
        "give the name of a model on the Hub as --model_name_or_path: it is downloaded where it is needed",
    ),
    ("benchmark speed profile", "use `xtrain bench`"),
    ("version", "use `xtrain --version`"),
    (
        "help commands",
        "use `xtrain --help`, or `xtrain COMMAND --help`",
    ),
    (
        "env info check diagnose devices setup",
        "use `xtrain doctor`",
    ),
    ("watch monitor dashboard status ps", "use `xtrain top DIR`"),
    (
        "tune search hpo grid hyperparameters",
        "use `xtrain sweep --grid FLAG=A,B -- train ...`",
    ),
    ("compare plot summary", "use `xtrain report DIR DIR`"),
    (
        "ls show prune clean stats",
        "compiled graphs are looked into by `xtrain cache ls`, `show`, `prune` and others",
    ),
    (
        "demo example init tutorial start",
        "use `xtrain quickstart`",
    ),
];
