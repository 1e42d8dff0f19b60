//! What `train dpo`, `train reward` and `train kto` learn, from their flags.

use super::choices::{FDivergence, KtoLoss, PreferenceLoss, Truncation};
use super::command::TaskName;
use super::flags::Flags;
use super::sources::{padding, source};
use crate::tasks::answers::{AnswerSettings, Form, TruncationMode};
use crate::tasks::dpo::DpoLoss;
use crate::tasks::{DpoDataSettings, KtoDataSettings, RewardDataSettings};
use xtrain_models::{Divergence, Kto, OddsRatio, PairLoss, Preference, Reward};

/// The peak learning rate: TRL's defaults where a task has one of its own.
pub fn learning_rate(flags: &Flags) -> f64 {
    match flags.command.task() {
        _ if flags.learning_rate.is_given() => *flags.learning_rate,
        Some(TaskName::Dpo | TaskName::Kto) => 1e-6,
        Some(TaskName::Reward) => 1e-4,
        _ => *flags.learning_rate,
    }
}

/// The pairs of `train dpo`, and their losses.
pub fn dpo(flags: &Flags) -> DpoDataSettings {
    let (beta, dropout) = (*flags.beta, !*flags.disable_dropout);
    let losses = flags.preference_losses.iter().copied();
    let losses: Option<Vec<PairLoss>> = losses.map(pair_loss).collect();
    let loss = match losses {
        None => DpoLoss::OddsRatio(OddsRatio { beta, dropout }),
        Some(losses) => {
            let weights = flags.loss_weights.iter().copied();
            let weights = weights.chain(std::iter::repeat(1.0));
            DpoLoss::Pairs(Preference {
                losses: losses.into_iter().zip(weights).collect(),
                beta,
                label_smoothing: *flags.label_smoothing,
                ld_alpha: *flags.ld_alpha,
                divergence: match *flags.f_divergence_type {
                    FDivergence::ReverseKl => Divergence::ReverseKl,
                    FDivergence::ForwardKl => Divergence::ForwardKl,
                    FDivergence::JsDivergence => Divergence::JensenShannon,
                    FDivergence::AlphaDivergence => {
                        Divergence::Alpha(*flags.f_alpha_divergence_coef)
                    }
                },
                use_weighting: *flags.use_weighting,
                discopop_tau: *flags.discopop_tau,
                dropout,
            })
        }
    };
    DpoDataSettings {
        answers: answers(flags, Form::Pairs),
        loss,
    }
}

/// The pairs of `train reward`.
pub fn reward(flags: &Flags) -> RewardDataSettings {
    RewardDataSettings {
        answers: answers(flags, Form::Scored),
        loss: Reward {
            center: *flags.center_rewards_coefficient,
            dropout: !*flags.disable_dropout,
        },
    }
}

/// The answers of `train kto`.
pub fn kto(flags: &Flags) -> KtoDataSettings {
    let has_kl = *flags.kto_loss == KtoLoss::Kto;
    // As TRL has it, answers are compared within a batch of training, also in evaluations.
    let batch = flags.per_device_train_batch_size.count().unwrap_or(8);
    let form = Form::Judged {
        compared: has_kl.then_some(batch),
    };
    KtoDataSettings {
        answers: answers(flags, form),
        loss: Kto {
            beta: *flags.beta,
            desirable_weight: *flags.desirable_weight,
            undesirable_weight: *flags.undesirable_weight,
            has_kl,
            dropout: !*flags.disable_dropout,
        },
    }
}

fn answers(flags: &Flags, form: Form) -> AnswerSettings {
    AnswerSettings {
        source: source(flags),
        max_seq_length: *flags.max_seq_length,
        truncation: match *flags.truncation_mode {
            Truncation::KeepStart => TruncationMode::KeepStart,
            Truncation::KeepEnd => TruncationMode::KeepEnd,
        },
        padding: padding(flags, *flags.pad_to_max_length),
        form,
    }
}

/// `None` of the loss that has no reference.
pub fn pair_loss(loss: PreferenceLoss) -> Option<PairLoss> {
    use PreferenceLoss::*;
    Some(match loss {
        Sigmoid => PairLoss::Sigmoid,
        Hinge => PairLoss::Hinge,
        Ipo => PairLoss::Ipo,
        ExoPair => PairLoss::ExoPair,
        NcaPair => PairLoss::NcaPair,
        Robust => PairLoss::Robust,
        BcoPair => PairLoss::BcoPair,
        SppoHard => PairLoss::SppoHard,
        Aot => PairLoss::Aot,
        AotUnpaired => PairLoss::AotUnpaired,
        ApoZero => PairLoss::ApoZero,
        ApoDown => PairLoss::ApoDown,
        DiscoPop => PairLoss::DiscoPop,
        PreferenceLoss::Sft => PairLoss::Sft,
        SigmoidNorm => PairLoss::SigmoidNorm,
        Orpo => return None,
    })
}
