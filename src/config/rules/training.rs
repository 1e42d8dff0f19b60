//! What a run does and how long: precision, length, evaluations, the best checkpoint.

use super::verdict::{Verdict, refuse, refuse_if};
use crate::choices::{SaveStrategy, Strategy, TorchDtype};
use crate::flags::Flags;
use crate::kind::Interval;
use crate::preference;
use xtrain_graphs::optim::{ADAMW, Hyperparameters, ScheduleType};

pub fn one_16_bit_type(flags: &Flags) -> Verdict {
    if *flags.fp16 && *flags.torch_dtype == TorchDtype::Bfloat16 {
        return refuse(
            "--torch_dtype bfloat16 and --fp16 exclude each other: matmuls have one element type",
            "leave --fp16 out",
        );
    }
    for (bf16, fp16) in [
        (&flags.bf16, &flags.fp16),
        (&flags.bf16_full_eval, &flags.fp16_full_eval),
    ] {
        if **bf16 && **fp16 {
            let (bf16, fp16) = (bf16.name(), fp16.name());
            return refuse(
                format!("--{bf16} and --{fp16} exclude each other: matmuls have one element type"),
                format!("keep --{bf16}, which needs no loss scale, or --{fp16}"),
            );
        }
    }
    Ok(())
}

pub fn warmup_is_steps_or_a_share(flags: &Flags) -> Verdict {
    let steps = *flags.warmup_steps;
    refuse_if(
        steps > 1.0 && steps.fract() != 0.0,
        &format!("--warmup_steps {steps} is neither a number of steps nor a share of them"),
        "give a whole number of steps, or a number below 1 for a share of all steps",
    )
}

pub fn schedule_takes_its_arguments(flags: &Flags) -> Verdict {
    let name = flags.lr_scheduler_kwargs.name();
    let schedule = flags.lr_scheduler_type.with(&flags.lr_scheduler_kwargs);
    let checked =
        schedule.and_then(|schedule| schedule.check_peak(preference::learning_rate(flags)));
    checked.or_else(|error| {
        refuse(
            format!("--{name}: {error}"),
            format!("write the schedule's arguments as --{name} name=value,name=value"),
        )
    })
}

pub fn plateau_needs_evaluations(flags: &Flags) -> Verdict {
    refuse_if(
        *flags.lr_scheduler_type == ScheduleType::ReduceLrOnPlateau
            && *flags.eval_strategy == Strategy::No
            && flags.trains(),
        "--lr_scheduler_type reduce_lr_on_plateau lowers the learning rate by evaluations, and there are none",
        "add --eval_strategy epoch or steps",
    )
}

pub fn optimizer_takes_its_arguments(flags: &Flags) -> Verdict {
    let name = flags.optim_args.name();
    let hyper = Hyperparameters {
        beta1: *flags.adam_beta1,
        beta2: *flags.adam_beta2,
        eps: *flags.adam_epsilon,
    };
    let built = flags.optim.with(&hyper, &flags.optim_args);
    built.map(drop).or_else(|error| {
        let fix = if *flags.optim == ADAMW {
            "its settings have flags: --adam_beta1, --adam_beta2, --adam_epsilon and --weight_decay; \
             others need another --optim"
                .to_string()
        } else {
            format!("write the arguments of --optim as --{name} name=value,name=value")
        };
        refuse(format!("--{name}: {error}"), fix)
    })
}

pub fn eval_strategy_evaluates(flags: &Flags) -> Verdict {
    let strategy = *flags.eval_strategy;
    refuse_if(
        strategy != Strategy::No && *flags.do_eval == Some(false),
        &format!("--eval_strategy {strategy} evaluates, but --do_eval is false"),
        "leave --do_eval out, or use --eval_strategy no",
    )
}

pub fn eval_strategy_needs_training(flags: &Flags) -> Verdict {
    let strategy = *flags.eval_strategy;
    refuse_if(
        strategy != Strategy::No && !flags.trains(),
        &format!("--eval_strategy {strategy} evaluates during training, but nothing is trained"),
        "leave --eval_strategy out, or add --do_train",
    )
}

pub fn eval_steps_need_their_strategy(flags: &Flags) -> Verdict {
    let strategy = *flags.eval_strategy;
    refuse_if(
        flags.eval_steps.is_given() && strategy != Strategy::Steps,
        &format!("--eval_steps has no effect with --eval_strategy {strategy}"),
        "add --eval_strategy steps, or leave --eval_steps out",
    )
}

/// The best evaluation can only be looked for where there are several.
pub fn best_needs_evaluations(flags: &Flags) -> Verdict {
    let greater = &flags.greater_is_better;
    let asked = [
        flags.load_best_model_at_end.name_if_true(),
        flags.early_stopping_patience.given_name(),
        flags.metric_for_best_model.given_name(),
        greater.filter(|greater| *greater).map(|_| greater.name()),
        (*flags.save_strategy == SaveStrategy::Best).then_some("save_strategy best"),
    ];
    match asked.into_iter().flatten().next() {
        Some(name) if *flags.eval_strategy == Strategy::No => refuse(
            format!("--{name} needs evaluations during training, and --eval_strategy is no"),
            format!("add --eval_strategy steps or --eval_strategy epoch, or leave --{name} out"),
        ),
        _ => Ok(()),
    }
}

/// The best weights can only be loaded where they were saved.
pub fn best_needs_its_checkpoint(flags: &Flags) -> Verdict {
    let (evaluates, saves) = (*flags.eval_strategy, *flags.save_strategy);
    let matches = match saves {
        SaveStrategy::Best => true,
        SaveStrategy::No => evaluates == Strategy::No,
        SaveStrategy::Steps => evaluates == Strategy::Steps,
        SaveStrategy::Epoch => evaluates == Strategy::Epoch,
    };
    refuse_if(
        *flags.load_best_model_at_end && evaluates != Strategy::No && !matches,
        &format!(
            "--load_best_model_at_end needs a checkpoint of each evaluation: --eval_strategy is {evaluates}, --save_strategy {saves}"
        ),
        &format!("add --save_strategy {evaluates}, or best"),
    )
}

pub fn best_checkpoint_is_evaluated(flags: &Flags) -> Verdict {
    let (saves, evaluates) = (
        *flags.save_steps,
        flags.eval_steps.unwrap_or(*flags.logging_steps),
    );
    let are_evaluated = match (saves, evaluates) {
        (Interval::Steps(saves), Interval::Steps(evaluates)) => saves.is_multiple_of(evaluates),
        (Interval::Share(saves), Interval::Share(evaluates)) => {
            let times = saves / evaluates;
            (times - times.round()).abs() < 1e-6
        }
        _ => false,
    };
    refuse_if(
        *flags.load_best_model_at_end
            && *flags.eval_strategy == Strategy::Steps
            && *flags.save_strategy == SaveStrategy::Steps
            && !are_evaluated,
        &format!(
            "--load_best_model_at_end needs an evaluation of each checkpoint: --save_steps {saves} is no multiple of --eval_steps {evaluates}"
        ),
        &format!("set --save_steps {evaluates}, or another multiple of it"),
    )
}
