//! What a run saves: the model, or the adapter that was added to one.

use super::run::Run;
use xtrain_checkpoint::hf::{CONFIG_FILE, Form, to_json_text};
use xtrain_config::TorchDtype;
use xtrain_graphs::DType;
use xtrain_models::{Adapter, ParameterSet};
use xtrain_trainer::hooks::SavedModel;
use xtrain_trainer::settings::WeightStorage;

impl Run {
    /// The element type of the finished model: what was asked for, else what it was loaded in.
    fn save_dtype(&self) -> Option<DType> {
        let train = &self.plan.train;
        if self.loaded.model.adapter().is_some() {
            return train.save_dtype;
        }
        let trained = train.optimizer.storage.weights();
        let asked = &train.flags.torch_dtype;
        let is_asked = asked.is_given() && **asked == TorchDtype::Float32;
        let usual = match train.optimizer.storage {
            WeightStorage::F32 if !is_asked => self.loaded.weights_dtype(),
            _ => Some(trained),
        };
        train.save_dtype.or(usual)
    }

    /// The tokenizer's files and what evaluations of the model are to know of its data, by name.
    pub fn files_beside_tensors(&self) -> Vec<(String, Vec<u8>)> {
        let mut files = self.tokenizer.files().to_vec();
        files.extend(self.plan.train.flags.data_settings());
        files
    }

    /// What a saved directory holds besides tensors.
    pub(super) fn saved_model(&self) -> SavedModel {
        let model = &*self.loaded.model;
        if let Some(adapter) = model.adapter() {
            return self.saved_adapter(adapter);
        }
        let parameters = model.parameters();
        let own = parameters.iter().filter(|p| p.set == ParameterSet::Policy);
        let mut files = self.files_beside_tensors();
        files.extend(self.loaded.generation_file());
        files.extend(self.loaded.companions().iter().cloned());
        SavedModel {
            form: Form::Model,
            config: model.config().values().clone(),
            files,
            parameters: own.map(|p| p.name.clone()).collect(),
            saved_names: None,
            max_shard_size: *self.plan.train.flags.max_shard_size,
            trained: self.plan.train.optimizer.storage.weights(),
            dtype: self.save_dtype(),
        }
    }

    /// The same of a run that trains an adapter. The names of a classifier's labels are in the settings of
    /// its model, which go along.
    fn saved_adapter(&self, adapter: &Adapter) -> SavedModel {
        let model = &*self.loaded.model;
        let parameters = model.parameters().into_iter();
        let own = parameters.filter(|p| p.set == ParameterSet::Adapter);
        let names: Vec<String> = own.map(|p| p.name).collect();
        let mut files = self.files_beside_tensors();
        if !model.head_kind().is_language_model() {
            let config = to_json_text(model.config().values(), 2);
            files.push((CONFIG_FILE.to_string(), config));
        }
        let saved_names = names.iter().map(|name| adapter.saved_name(name));
        SavedModel {
            form: Form::Adapter,
            config: adapter.config_file(),
            files,
            saved_names: Some(saved_names.collect()),
            parameters: names,
            max_shard_size: u64::MAX,
            trained: DType::F32,
            dtype: self.save_dtype(),
        }
    }
}
