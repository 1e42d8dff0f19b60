//! What pairs and answers are learned by: losses and settings that TRL refuses together, and what has
//! no meaning.

use super::verdict::{Verdict, refuse_if};
use crate::choices::{FDivergence, KtoLoss, PreferenceLoss};
use crate::error::UsageError;
use crate::flags::Flags;
use crate::preference::pair_loss;
use xtrain_models::PairLoss;

/// Losses that go together, with settings that mean something for them.
pub fn losses_go_together(flags: &Flags) -> Verdict {
    let losses = &flags.preference_losses;
    let (smoothing, count) = (*flags.label_smoothing, losses.len());
    let mut mistakes = Vec::new();
    let mut refuse = |illegal: bool, problem: String, fix: &str| {
        if illegal {
            mistakes.push(UsageError::illegal(problem, fix));
        }
    };
    let weights = flags.loss_weights.len();
    refuse(
        flags.loss_weights.is_given() && weights != count,
        format!("--loss_weights has {weights} numbers for {count} of --loss_type"),
        "give one weight for each loss, in their order",
    );
    let has_orpo = losses.contains(&PreferenceLoss::Orpo);
    refuse(
        has_orpo && count > 1,
        "--loss_type orpo is a loss of its own: it has no reference, as the others have".into(),
        "give it alone, or leave it out",
    );
    let reference = flags.ref_model_name_or_path.is_given();
    refuse(
        has_orpo && reference,
        "--ref_model_name_or_path has no effect: --loss_type orpo has no reference".into(),
        "leave it out",
    );
    let pairs: Vec<PairLoss> = losses.iter().filter_map(|loss| pair_loss(*loss)).collect();
    refuse(
        losses.contains(&PreferenceLoss::Robust) && smoothing >= 0.5,
        format!(
            "--label_smoothing {smoothing}: robust reckons with less than half of flipped preferences"
        ),
        "set it below 0.5; 0.1 is usual",
    );
    refuse(
        losses.contains(&PreferenceLoss::ExoPair) && smoothing == 0.0,
        "--loss_type exo_pair needs a --label_smoothing above 0".into(),
        "add --label_smoothing 1e-3, which its paper recommends",
    );
    refuse(
        *flags.use_weighting && pairs.iter().any(|loss| loss.sorts()),
        "--use_weighting weighs each pair, and aot and aot_unpaired sort them".into(),
        "leave one of them out",
    );
    let divergence = *flags.f_divergence_type;
    let takes = |loss: &PairLoss| loss.takes_divergences();
    refuse(
        divergence != FDivergence::ReverseKl && (has_orpo || !pairs.iter().all(takes)),
        format!("--f_divergence_type {divergence} has no meaning in one of --loss_type"),
        "leave it out, or use sigmoid, sigmoid_norm, hinge, ipo, exo_pair, robust, discopop or sft",
    );
    UsageError::all(mistakes)
}

/// An evaluation by itself knows no model before training.
pub fn evaluation_has_its_reference(flags: &Flags) -> Verdict {
    let is_orpo = flags.preference_losses.contains(&PreferenceLoss::Orpo);
    refuse_if(
        !is_orpo && !flags.ref_model_name_or_path.is_given(),
        "rewards compare the model with its reference, and none is named",
        "add --ref_model_name_or_path DIR, the model as it was before training",
    )
}

/// Answers are compared within a device's batch.
pub fn kl_is_estimated_within_a_batch(flags: &Flags) -> Verdict {
    let is_open = flags.per_device_train_batch_size.count().is_none();
    refuse_if(
        *flags.kto_loss == KtoLoss::Kto && is_open,
        "--loss_type kto compares the answers of a batch of training, whose size auto leaves open",
        "give --per_device_train_batch_size a number",
    )
}
