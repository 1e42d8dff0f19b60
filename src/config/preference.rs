//! What `train dpo`, `train reward` and `train kto` learn, from their flags.

use super::choices::{self, FDivergence, KtoLoss, Truncation};
use super::command::TaskName;
use super::flags::Flags;
use xtrain_models::{Divergence, Kto, OddsRatio, PairLoss, Preference, Reward};
use xtrain_tasks::PreferenceLoss;
use xtrain_tasks::answers::{Form, TruncationMode};

/// The peak learning rate: TRL's defaults where a task has one of its own.
pub fn learning_rate(flags: &Flags) -> f64 {
    let usual = match flags.command.task() {
        Some(TaskName::Sft) => Some(2e-5),
        Some(TaskName::Dpo | TaskName::Kto) => Some(1e-6),
        Some(TaskName::Reward) => Some(1e-4),
        Some(TaskName::Clm | TaskName::Mlm | TaskName::Cls | TaskName::TokenCls) | None => None,
    };
    let usual = usual.filter(|_| !flags.learning_rate.is_given());
    usual.unwrap_or(*flags.learning_rate)
}

/// What `train dpo` learns.
pub fn dpo(flags: &Flags) -> PreferenceLoss {
    let (beta, dropout) = (*flags.beta, !*flags.disable_dropout);
    let losses = flags.preference_losses.iter().copied();
    let losses: Option<Vec<PairLoss>> = losses.map(pair_loss).collect();
    match losses {
        None => PreferenceLoss::OddsRatio(OddsRatio { beta, dropout }),
        Some(losses) => {
            let weights = flags.loss_weights.iter().copied();
            let weights = weights.chain(std::iter::repeat(1.0));
            PreferenceLoss::Pairs(Preference {
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
    }
}

/// What `train reward` learns.
pub fn reward(flags: &Flags) -> Reward {
    Reward {
        center: *flags.center_rewards_coefficient,
        dropout: !*flags.disable_dropout,
    }
}

/// What `train kto` learns.
pub fn kto(flags: &Flags) -> Kto {
    Kto {
        beta: *flags.beta,
        desirable_weight: *flags.desirable_weight,
        undesirable_weight: *flags.undesirable_weight,
        has_kl: *flags.kto_loss == KtoLoss::Kto,
        dropout: !*flags.disable_dropout,
    }
}

/// What an example of `train kto` is: as TRL has it, answers are compared within a batch of training,
/// also in evaluations.
pub fn judged(flags: &Flags) -> Form {
    let batch = flags.per_device_train_batch_size.count().unwrap_or(1);
    Form::Judged {
        compared: kto(flags).has_kl.then_some(batch),
    }
}

/// Which end of a longer example is cut off.
pub fn truncation(flags: &Flags) -> TruncationMode {
    match *flags.truncation_mode {
        Truncation::KeepStart => TruncationMode::KeepStart,
        Truncation::KeepEnd => TruncationMode::KeepEnd,
    }
}

/// `None` of the loss that has no reference.
pub fn pair_loss(loss: choices::PreferenceLoss) -> Option<PairLoss> {
    use choices::PreferenceLoss::*;
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
        choices::PreferenceLoss::Sft => PairLoss::Sft,
        SigmoidNorm => PairLoss::SigmoidNorm,
        Orpo => return None,
    })
}
