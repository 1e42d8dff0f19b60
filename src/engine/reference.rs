//! What a reference says of each row of a run's sets, computed once, before the first step, and kept
//! beside the tokenized data: by the reference's weights, the rows and the precision. The training
//! graph is fed these numbers, so that it holds no second set of weights. The reference is the model as
//! it is before training (an adapter that is new changes nothing then) or another one.

use super::batches::BatchForm;
use super::error::{Error, failed};
use super::model::{LoadedModel, ModelConfig};
use super::run::Run;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;
use xtrain_checkpoint::{atomic, files, hash};
use xtrain_config::ModelSource;
use xtrain_data::Set;
use xtrain_distributed::ProcessGroup;
use xtrain_graphs::Precision;
use xtrain_models::{Objective, REFERENCE};
use xtrain_report::accounting::{self, Part};
use xtrain_report::progress::say;
use xtrain_report::units::exact;
use xtrain_tasks::Split;
use xtrain_trainer::evaluate::{RowNumbers, evaluate, reference_variant};
use xtrain_trainer::feed::DeviceBatch;
use xtrain_trainer::parameters::Head;

/// How a file of numbers begins; their number, themselves and the digest of all that follow.
const MAGIC: &[u8; 8] = b"xtrnrefs";

/// Bytes of a digest as text.
const DIGEST: usize = 64;

impl Run {
    /// Gives the run's sets what the reference says of their rows, if its objective asks for that.
    ///
    /// # Errors
    /// If the reference cannot be loaded, has another architecture, or the device fails.
    pub(super) fn add_reference(&mut self) -> Result<(), Error> {
        let Some(objective) = self.task.objective.reference() else {
            return Ok(());
        };
        let settings = &self.plan.train;
        let (precision, eval_precision) = (settings.precision, settings.eval_precision);
        let mut asked = Asked {
            objective,
            other: None,
            is_placed: false,
            digest: None,
        };
        for (split, precision) in [
            (Split::Train, precision),
            (Split::Validation, eval_precision),
        ] {
            let Some(set) = self.prepared(split) else {
                continue;
            };
            if set.has_numbers(REFERENCE) {
                continue;
            }
            let set = set.clone();
            let numbers = self.reference_of(&mut asked, &set, split, precision)?;
            let set = Some(set.with_numbers(REFERENCE, numbers.into()));
            match split {
                Split::Train => self.train = set,
                _ => self.validation = set,
            }
        }
        self.session.set_eval_precision(eval_precision);
        if asked.is_placed && asked.other.is_some() {
            self.loaded
                .place(&mut self.session, *self.plan.train.flags.seed)?;
        }
        Ok(())
    }

    /// The numbers of a set's rows, found or computed.
    fn reference_of(
        &mut self,
        asked: &mut Asked,
        set: &Set,
        split: Split,
        precision: Precision,
    ) -> Result<Vec<f32>, Error> {
        let what = match split {
            Split::Train => "training",
            _ => "validation",
        };
        let count = set.len() * set.rows_of_example();
        let path = self.reference_path(asked, set, precision)?;
        let read = || read(&path, count).unwrap_or_default();
        // One process decides: all of them compute, or none does.
        let found = match ProcessGroup::joined() {
            Some(group) => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let shared = group.from_first(&format!("reference/{name}"), || to_bytes(&read()));
                let shared = shared.map_err(failed("asking rank 0 for the reference's numbers"))?;
                of_bytes(&shared).unwrap_or_default()
            }
            None => read(),
        };
        let examples = exact(set.len() as u64);
        if found.len() == count {
            say(&format!(
                "reference: log-probabilities of {examples} {what} examples found in {} (same model, data and precision)",
                path.display()
            ));
            return Ok(found);
        }
        let began = Instant::now();
        self.place_reference(asked)?;
        self.session.set_eval_precision(precision);
        let numbers = self.log_probs(asked, set, split)?;
        let seconds = began.elapsed().as_secs_f64();
        let kept = if ProcessGroup::this_writes() {
            write(&path, &numbers)
        } else {
            Ok(())
        };
        match kept {
            Ok(()) => say(&format!(
                "reference: log-probabilities of {examples} {what} examples computed in {seconds:.1} s, kept in {}",
                path.display()
            )),
            Err(error) => say(&format!(
                "warning: --cache_dir: {} cannot be written ({error}): the reference's log-probabilities are not kept",
                path.display()
            )),
        }
        Ok(numbers)
    }

    /// One pass over a set.
    fn log_probs(&mut self, asked: &Asked, set: &Set, split: Split) -> Result<Vec<f32>, Error> {
        let _evaluating = accounting::enter(Part::Evaluation);
        let settings = &self.plan.train;
        let usual = match split {
            Split::Train => settings.per_device_train_batch_size,
            _ => *settings.flags.per_device_eval_batch_size,
        };
        let rows = settings.flags.precompute_ref_batch_size.unwrap_or(usual);
        let form = BatchForm {
            objective: asked.objective.clone(),
            ..self.form()
        };
        let client = self.session.client();
        let batches = form
            .one_pass(client, set, rows, self.task.workers())
            .map_err(failed("preparing the batches"))?;
        let named = |batch: DeviceBatch| DeviceBatch {
            variant: Some(reference_variant(batch.variant.as_deref())),
            ..batch
        };
        let mut batches = batches.map(|batch| batch.map(named));
        let model = match &asked.other {
            Some(other) => &*other.model,
            None => &*self.loaded.model,
        };
        let rows = RowNumbers::new(set.rows_of_example());
        let found = evaluate(
            &mut self.session,
            model,
            &*asked.objective,
            &mut batches,
            Box::new(rows),
        );
        let mut found = found.map_err(failed("computing the reference's log-probabilities"))?;
        Ok(found.predictions.pop().unwrap_or_default())
    }

    /// Puts the reference's weights on the devices.
    fn place_reference(&mut self, asked: &mut Asked) -> Result<(), Error> {
        if asked.is_placed {
            return Ok(());
        }
        asked.is_placed = true;
        match &asked.other {
            Some(other) => other.place(&mut self.session, *self.plan.train.flags.seed),
            // Not what training may have left there.
            None => self
                .loaded
                .place(&mut self.session, *self.plan.train.flags.seed),
        }
    }

    /// Loads the reference that was named, once.
    fn find_other(&self, asked: &mut Asked) -> Result<(), Error> {
        let named = self.plan.train.flags.ref_model_name_or_path.as_deref();
        let (Some(directory), None) = (named, &asked.other) else {
            return Ok(());
        };
        let source = ModelSource::Pretrained {
            directory: directory.to_path_buf(),
            adapter: None,
            model_type: None,
            // Its parameters take the places of the policy's.
            quantization: self.loaded.model.config().quantization(),
        };
        let own = &*self.loaded.model;
        let read = ModelConfig::read(&source, Some(&self.tokenizer))?;
        let other = read.build(own.head_kind(), Head::Saved)?;
        let shapes = |model: &dyn xtrain_models::Model| -> Vec<_> {
            let parameters = model.parameters().into_iter();
            parameters.map(|it| (it.name, it.dims)).collect()
        };
        // The model that is trained may have an adapter besides.
        let own = shapes(own);
        if !shapes(&*other.model)
            .iter()
            .all(|shape| own.contains(shape))
        {
            return Err(Error::usage(
                format!(
                    "--ref_model_name_or_path: {} is of another architecture than the model that is trained",
                    directory.display()
                ),
                "name a model with the same parameters, or leave it out: the reference is then the model before training",
            ));
        }
        asked.other = Some(other);
        Ok(())
    }

    /// Where the numbers of a set are kept: the name holds a digest of all that decides them.
    fn reference_path(
        &self,
        asked: &mut Asked,
        set: &Set,
        precision: Precision,
    ) -> Result<PathBuf, Error> {
        self.find_other(asked)?;
        let model = asked.other.as_ref().unwrap_or(&self.loaded);
        let digest = match &asked.digest {
            Some(digest) => digest.clone(),
            None => model.digest(*self.plan.train.flags.seed)?,
        };
        asked.digest = Some(digest.clone());
        let key = json!({
            "xtrain": env!("CARGO_PKG_VERSION"),
            "model": digest,
            "storage": format!("{:?}", self.plan.train.optimizer.storage),
            "precision": precision.to_string(),
            "objective": format!("{:?}", asked.objective),
            "set": self.task.fingerprint(set),
        });
        let name = hash::sha256(key.to_string().as_bytes());
        let cache = &self.plan.task.source().cache_dir;
        Ok(cache.join(format!("reference-{}.numbers", &name[..32])))
    }
}

/// What is asked of which reference.
struct Asked {
    objective: Arc<dyn Objective>,
    /// `None`: the run's own model, as it is before training.
    other: Option<LoadedModel>,
    /// Its weights lie on the devices.
    is_placed: bool,
    digest: Option<String>,
}

fn to_bytes(numbers: &[f32]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend((numbers.len() as u64).to_le_bytes());
    bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    let digest = hash::sha256(&bytes);
    bytes.extend(digest.into_bytes());
    bytes
}

/// `None` of what is no whole file of numbers.
fn of_bytes(bytes: &[u8]) -> Option<Vec<f32>> {
    let (content, digest) = bytes.split_at_checked(bytes.len().checked_sub(DIGEST)?)?;
    let rest = content.strip_prefix(MAGIC)?;
    let (count, numbers) = rest.split_at_checked(8)?;
    let count = u64::from_le_bytes(count.try_into().ok()?);
    let is_whole = numbers.len() as u64 == count.checked_mul(4)?;
    if !is_whole || hash::sha256(content).as_bytes() != digest {
        return None;
    }
    let (numbers, _) = numbers.as_chunks::<4>();
    Some(numbers.iter().map(|it| f32::from_le_bytes(*it)).collect())
}

/// The numbers of a file that is whole and has as many.
fn read(path: &Path, count: usize) -> Option<Vec<f32>> {
    if !path.exists() {
        return None;
    }
    let found = files::read(path).ok().and_then(|bytes| of_bytes(&bytes));
    if found.is_none() {
        say(&format!(
            "warning: {} is damaged: the reference's log-probabilities are computed again",
            path.display()
        ));
    }
    found.filter(|numbers| numbers.len() == count)
}

fn write(path: &Path, numbers: &[f32]) -> Result<(), String> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).map_err(|error| error.to_string())?;
    }
    atomic::write_bytes(path, &to_bytes(numbers)).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_unless_a_bit_is_damaged() {
        let numbers = [-1.5, 0.0, f32::MIN_POSITIVE];
        let bytes = to_bytes(&numbers);
        assert_eq!(of_bytes(&bytes).as_deref(), Some(&numbers[..]));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(of_bytes(&damaged), None, "byte {at}");
            assert_eq!(of_bytes(&bytes[..at]), None, "{at} bytes");
        }
    }
}
