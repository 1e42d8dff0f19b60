//! Every mesh against one device: each axis alone, each pair of axes, some of three, all of them
//! together, for each family of models, in one process and in several. With dropout, so that losses
//! are equal only if the masks are.

use crate::parallel::{OPTIMIZER, STEPS, assert_same_run};
use crate::processes::{self, Launched};
use crate::support::small_config;
use crate::tasks::{Bench, numbers};
use std::collections::BTreeMap;
use xtrain_models::{HeadKind, MODEL_TYPES, is_encoder};

/// Examples of a microbatch on all devices together.
const ROWS: usize = 8;

/// An axis of the mesh, with ZeRO-1 as a second kind of data parallelism.
struct Axis {
    name: &'static str,
    /// Its degree follows.
    flags: &'static str,
    /// Whether devices along it take different rows.
    takes_rows: bool,
}

const fn axis(name: &'static str, flags: &'static str, takes_rows: bool) -> Axis {
    Axis {
        name,
        flags,
        takes_rows,
    }
}

const DATA: Axis = axis("data", "--data_parallel", true);
const ZERO1: Axis = axis("zero1", "--shard_optimizer_state --data_parallel", true);
const SHARD: Axis = axis("shard", "--shard_parallel", true);
const TENSOR: Axis = axis("tensor", "--tensor_parallel", false);
/// Tensor parallelism with the tokens divided between the divided products.
const TOKENS: Axis = axis("tokens", "--sequence_parallel --tensor_parallel", false);
const STAGE: Axis = axis("stage", "--pipeline_parallel", false);

const AXES: [&Axis; 5] = [&DATA, &ZERO1, &SHARD, &TENSOR, &STAGE];

/// Axes with their degrees.
type Mesh = Vec<(&'static Axis, usize)>;

fn devices(mesh: &Mesh) -> usize {
    mesh.iter().map(|(_, degree)| degree).product()
}

/// Each axis with so many devices.
fn alone(degree: usize) -> Vec<Mesh> {
    AXES.into_iter().map(|axis| vec![(axis, degree)]).collect()
}

/// Each two axes with two devices each; data and ZeRO-1 are the same axis.
fn pairs() -> Vec<Mesh> {
    let pairs = (0..AXES.len())
        .flat_map(|second| (0..second).map(move |first| (AXES[first], AXES[second])));
    pairs
        .filter(|(first, second)| (first.name, second.name) != ("data", "zero1"))
        .map(|(a, b)| vec![(a, 2), (b, 2)])
        .collect()
}

/// Divided tokens, alone and with each axis that goes with them.
fn tokens() -> Vec<Mesh> {
    let others = [&DATA, &ZERO1, &SHARD, &STAGE]
        .into_iter()
        .map(|axis| vec![(&TOKENS, 2), (axis, 2)]);
    std::iter::once(vec![(&TOKENS, 2)]).chain(others).collect()
}

/// All four, 16 devices.
fn all() -> Mesh {
    [&ZERO1, &SHARD, &TENSOR, &STAGE]
        .into_iter()
        .map(|axis| (axis, 2))
        .collect()
}

/// A family of models at a size that eight devices can divide, two of which can be stages.
struct Family<'a> {
    name: &'a str,
    /// Whatever drops out does so with 0.1, also where released models have no dropout.
    what: &'a str,
    /// Microbatches of a step where there are no stages, which always have two.
    microbatches: usize,
    /// Degrees above two, each axis alone.
    higher: &'static [usize],
    /// What those compute twice, so that these two meet as well.
    checkpointing: &'static str,
    /// The axes of its mesh with three, 8 devices.
    three: [&'static Axis; 3],
}

const GPT2: Family<'static> = Family {
    name: "gpt2",
    what: "clm --model_type gpt2 --config_overrides n_layer=2,n_head=8,n_embd=32,n_positions=32,attn_pdrop=0.1,embd_pdrop=0.1,\
           resid_pdrop=0.1 --train_file articles.txt --tokenizer_name byte_bpe --block_size 32",
    microbatches: 2,
    higher: &[4, 8],
    checkpointing: "full",
    three: [&DATA, &SHARD, &TENSOR],
};
const BERT: Family<'static> = Family {
    name: "bert",
    what: "cls --model_type bert --config_overrides hidden_size=32,num_hidden_layers=2,num_attention_heads=8,intermediate_size=64,\
           max_position_embeddings=32,hidden_dropout_prob=0.1,attention_probs_dropout_prob=0.1 --train_file posts.csv \
           --text_column_name text --label_column_name sentiment --max_seq_length 32 --tokenizer_name wordpiece",
    microbatches: 1,
    higher: &[8],
    checkpointing: "attention",
    three: [&DATA, &TENSOR, &STAGE],
};
/// Its layers share their parameters.
const ALBERT: Family<'static> = Family {
    name: "albert",
    what: "mlm --model_type albert --config_overrides hidden_size=32,embedding_size=16,num_hidden_layers=2,num_attention_heads=8,\
           intermediate_size=64,max_position_embeddings=32,hidden_dropout_prob=0.1,attention_probs_dropout_prob=0.1 \
           --train_file articles.txt --tokenizer_name wordpiece --max_seq_length 32",
    microbatches: 1,
    higher: &[8],
    checkpointing: "every:2",
    three: [&DATA, &SHARD, &STAGE],
};
const DISTILBERT: Family<'static> = Family {
    name: "distilbert",
    what: "mlm --model_type distilbert --config_overrides dim=32,n_layers=2,n_heads=8,hidden_dim=64,max_position_embeddings=32,\
           dropout=0.1,attention_dropout=0.1 --train_file articles.txt --tokenizer_name wordpiece --max_seq_length 32",
    microbatches: 1,
    higher: &[8],
    checkpointing: "full",
    three: [&DATA, &TENSOR, &STAGE],
};
/// Queries and keys normalized head by head, two key/value heads for eight query heads, a tied head.
const QWEN3: Family<'static> = Family {
    name: "qwen3",
    what: "clm --model_type qwen3 --config_overrides hidden_size=32,num_hidden_layers=2,num_attention_heads=8,num_key_value_heads=2,\
           head_dim=8,intermediate_size=64,max_position_embeddings=32,attention_dropout=0.1,tie_word_embeddings=true \
           --train_file articles.txt --tokenizer_name byte_bpe --block_size 32",
    microbatches: 1,
    higher: &[4, 8],
    checkpointing: "full",
    three: [&DATA, &TENSOR, &STAGE],
};
/// Fused matrices, of queries, keys and values and of the MLP; windows; a head of its own.
const PHI3: Family<'static> = Family {
    name: "phi3",
    what: "clm --model_type phi3 --config_overrides hidden_size=32,num_hidden_layers=2,num_attention_heads=8,num_key_value_heads=4,\
           intermediate_size=64,max_position_embeddings=32,attention_dropout=0.1,resid_pdrop=0.1,sliding_window=8,pad_token_id=0 \
           --train_file articles.txt --tokenizer_name byte_bpe --block_size 32",
    microbatches: 1,
    higher: &[8],
    checkpointing: "attention",
    three: [&SHARD, &TENSOR, &STAGE],
};
/// Four norms a layer, soft caps, windows on every other layer.
const GEMMA2: Family<'static> = Family {
    name: "gemma2",
    what: "clm --model_type gemma2 --config_overrides hidden_size=32,num_hidden_layers=2,num_attention_heads=8,num_key_value_heads=4,\
           head_dim=8,intermediate_size=64,max_position_embeddings=32,attention_dropout=0.1,sliding_window=8,query_pre_attn_scalar=8 \
           --train_file articles.txt --tokenizer_name byte_bpe --block_size 32",
    microbatches: 1,
    higher: &[8],
    checkpointing: "full",
    three: [&DATA, &SHARD, &TENSOR],
};
/// An encoder with fused matrices and windows to both sides, classifying by the mean.
const MODERNBERT: Family<'static> = Family {
    name: "modernbert",
    what: "cls --model_type modernbert --config_overrides hidden_size=32,num_hidden_layers=2,num_attention_heads=8,intermediate_size=64,\
           max_position_embeddings=32,embedding_dropout=0.1,attention_dropout=0.1,mlp_dropout=0.1,classifier_dropout=0.1,local_attention=8,\
           classifier_pooling=mean,pad_token_id=0 --train_file posts.csv \
           --text_column_name text --label_column_name sentiment --max_seq_length 32 --tokenizer_name wordpiece",
    microbatches: 1,
    higher: &[8],
    checkpointing: "full",
    three: [&DATA, &TENSOR, &STAGE],
};
const GPTJ: Family<'static> = Family {
    name: "gptj",
    what: "clm --model_type gptj --config_overrides n_embd=32,n_layer=2,n_head=8,rotary_dim=4,n_positions=32,attn_pdrop=0.1,\
           embd_pdrop=0.1,resid_pdrop=0.1 --train_file articles.txt --tokenizer_name byte_bpe --block_size 32",
    microbatches: 1,
    higher: &[8],
    checkpointing: "full",
    three: [&SHARD, &TENSOR, &STAGE],
};

const NEOX: Family<'static> = Family {
    name: "gpt_neox",
    what: "clm --model_type gpt_neox --config_overrides hidden_size=32,num_hidden_layers=2,num_attention_heads=8,rotary_pct=0.5,intermediate_size=64,\
           max_position_embeddings=32,attention_dropout=0.1,hidden_dropout=0.1 --train_file articles.txt --tokenizer_name byte_bpe --block_size 32",
    ..GPTJ
};

impl Family<'_> {
    /// Trains on a mesh, in several processes with that beginning of a command; returns where.
    fn train(
        &self,
        bench: &Bench,
        mesh: &Mesh,
        microbatches: usize,
        launch: &str,
        extra: &str,
    ) -> String {
        let parts: usize = mesh
            .iter()
            .filter(|(axis, _)| axis.takes_rows)
            .map(|(_, degree)| degree)
            .product();
        let flags: Vec<String> = mesh
            .iter()
            .map(|(axis, degree)| format!("{} {degree}", axis.flags))
            .collect();
        let names: Vec<String> = mesh
            .iter()
            .map(|(axis, degree)| format!("{}{degree}", axis.name))
            .collect();
        let dir = format!("{}-{microbatches}-{}", self.name, names.join("-"));
        let command = format!(
            "{launch}train {} {OPTIMIZER} --max_steps {STEPS} --logging_steps 1 --save_strategy no --disable_tqdm \
             --gradient_accumulation_steps {microbatches} --per_device_train_batch_size {} {} {extra} --output_dir {dir}",
            self.what,
            ROWS / parts,
            flags.join(" "),
        );
        Launched::of(bench, &command).finish().succeeded();
        dir
    }

    /// Trains on each mesh, with these beginnings of a command and these flags, and on one device
    /// with as many microbatches: the same losses, gradient norms and weights.
    fn assert_trains_as_on_one(
        &self,
        bench: &Bench,
        runs: impl IntoIterator<Item = (Mesh, String, String)>,
    ) {
        let mut ones: BTreeMap<usize, String> = BTreeMap::new();
        for (mesh, launch, extra) in runs {
            let has_stages = mesh.iter().any(|(axis, _)| axis.name == STAGE.name);
            let microbatches = if has_stages { 2 } else { self.microbatches };
            let train = |mesh: &Mesh, launch: &str, extra: &str| {
                self.train(bench, mesh, microbatches, launch, extra)
            };
            let one = ones
                .entry(microbatches)
                .or_insert_with(|| train(&Mesh::new(), "", ""));
            assert_same_run(bench, &train(&mesh, &launch, &extra), one);
        }
    }

    fn trains_on_every_mesh_as_on_one_device(&self) {
        let bench = Bench::new();
        self.assert_drops_out(&bench);
        let three: Mesh = self.three.into_iter().map(|axis| (axis, 2)).collect();
        let plain = [alone(2), pairs(), tokens(), vec![three, all()]]
            .concat()
            .into_iter()
            .map(|mesh| (mesh, String::new()));
        // As many stages need as many layers: `pipelines.rs` has them.
        let higher = self
            .higher
            .iter()
            .flat_map(|degree| alone(*degree))
            .filter(|mesh| mesh[0].0.name != STAGE.name);
        let twice = higher.chain([vec![(&TOKENS, 4)]]).map(|mesh| {
            (
                mesh,
                format!("--gradient_checkpointing {}", self.checkpointing),
            )
        });
        self.assert_trains_as_on_one(
            &bench,
            plain
                .chain(twice)
                .map(|(mesh, extra)| (mesh, String::new(), extra)),
        );
    }

    /// On these meshes, with a process for each device and, where there are sixteen, for each four.
    fn trains_in_processes_as_on_one_device(&self, meshes: Vec<Mesh>) {
        let Some(bench) = processes::bench() else {
            return;
        };
        let launched = |mesh: Mesh| {
            let launch = format!("launch --nproc_per_node {} -- ", devices(&mesh).min(4));
            (mesh, launch, String::new())
        };
        self.assert_trains_as_on_one(&bench, meshes.into_iter().map(launched));
    }

    /// What drops out moves losses by several times the bound, so that other masks would be seen.
    fn assert_drops_out(&self, bench: &Bench) {
        let losses = |family: &Family| {
            let dir = family.train(bench, &Mesh::new(), 1, "", "");
            numbers(&bench.records(&dir), "loss")
        };
        let with = losses(&Family {
            name: "with",
            ..*self
        });
        let without = losses(&Family {
            name: "without",
            what: &self.what.replace("=0.1", "=0.0"),
            ..*self
        });
        let most = with
            .iter()
            .zip(&without)
            .map(|(a, b)| (a - b).abs() / a.max(1.0))
            .fold(0.0, f64::max);
        assert!(
            most > 3.0 * 1e-4,
            "{}: {with:?} with dropout, {without:?} without",
            self.name
        );
    }
}

#[test]
fn gpt2_trains_on_every_mesh_as_on_one_device() {
    GPT2.trains_on_every_mesh_as_on_one_device();
}

#[test]
#[ignore = "slow: the meshes of another family"]
fn bert_trains_on_every_mesh_as_on_one_device() {
    BERT.trains_on_every_mesh_as_on_one_device();
}

#[test]
#[ignore = "slow: the meshes of another family"]
fn albert_trains_on_every_mesh_as_on_one_device() {
    ALBERT.trains_on_every_mesh_as_on_one_device();
}

#[test]
#[ignore = "slow: the meshes of another family"]
fn distilbert_trains_on_every_mesh_as_on_one_device() {
    DISTILBERT.trains_on_every_mesh_as_on_one_device();
}

#[test]
#[ignore = "slow: the meshes of another family"]
fn qwen3_trains_on_every_mesh_as_on_one_device() {
    QWEN3.trains_on_every_mesh_as_on_one_device();
}

#[test]
#[ignore = "slow: the meshes of another family"]
fn phi3_trains_on_every_mesh_as_on_one_device() {
    PHI3.trains_on_every_mesh_as_on_one_device();
}

#[test]
#[ignore = "slow: the meshes of another family"]
fn gemma2_trains_on_every_mesh_as_on_one_device() {
    GEMMA2.trains_on_every_mesh_as_on_one_device();
}

#[test]
#[ignore = "slow: the meshes of another family"]
fn modernbert_trains_on_every_mesh_as_on_one_device() {
    MODERNBERT.trains_on_every_mesh_as_on_one_device();
}

#[test]
#[ignore = "slow: the meshes of another family"]
fn gptj_trains_on_every_mesh_as_on_one_device() {
    GPTJ.trains_on_every_mesh_as_on_one_device();
}

#[test]
#[ignore = "slow: the meshes of another family"]
fn gpt_neox_trains_on_every_mesh_as_on_one_device() {
    NEOX.trains_on_every_mesh_as_on_one_device();
}

/// A relative of Llama with these further settings and a single key/value head, which several devices
/// hold each: 2 and 4 of them by every axis, and tensor parallelism with another axis.
fn trains_with_fewer_key_value_heads_than_devices(model_type: &'static str, settings: &str) {
    let what = format!(
        "clm --model_type {model_type} --config_overrides hidden_size=32,num_hidden_layers=4,num_attention_heads=8,\
         num_key_value_heads=1,intermediate_size=64,max_position_embeddings=32,attention_dropout=0.1,{settings} \
         --train_file articles.txt --tokenizer_name byte_bpe --block_size 32"
    );
    let family = Family {
        name: model_type,
        what: &what,
        ..QWEN3
    };
    let with = |axis, degree| vec![(&TENSOR, 2), (axis, degree)];
    let meshes = [
        alone(2),
        alone(4),
        vec![with(&STAGE, 2), with(&SHARD, 2), vec![(&TOKENS, 4)]],
    ];
    family.assert_trains_as_on_one(
        &Bench::new(),
        meshes
            .concat()
            .into_iter()
            .map(|mesh| (mesh, String::new(), String::new())),
    );
}

#[test]
fn llama_trains_with_fewer_key_value_heads_than_devices() {
    let settings = "attention_bias=true,mlp_bias=true,tie_word_embeddings=true,pad_token_id=0";
    trains_with_fewer_key_value_heads_than_devices("llama", settings);
}

#[test]
#[ignore = "slow: the meshes of eight more families"]
fn relatives_of_llama_train_with_fewer_key_value_heads_than_devices() {
    for (model_type, settings) in [
        ("mistral", "sliding_window=8"),
        (
            "qwen2",
            "use_sliding_window=true,sliding_window=8,max_window_layers=2",
        ),
        (
            "smollm3",
            "no_rope_layer_interval=2,attention_bias=true,pad_token_id=0",
        ),
        (
            "granite",
            "embedding_multiplier=3.0,residual_multiplier=0.4,attention_multiplier=0.3,logits_scaling=2.0,tie_word_embeddings=true",
        ),
        ("gemma", "head_dim=8"),
        (
            "gemma2",
            "head_dim=8,sliding_window=8,query_pre_attn_scalar=8",
        ),
        (
            "gemma3_text",
            "head_dim=8,sliding_window=8,query_pre_attn_scalar=8,sliding_window_pattern=2,tie_word_embeddings=false",
        ),
        ("phi3", "sliding_window=8,resid_pdrop=0.1,pad_token_id=0"),
    ] {
        trains_with_fewer_key_value_heads_than_devices(model_type, settings);
    }
}

/// Every family of the list as [`small_config`] has it, with dropout and windows, with a head of its own and
/// one that is tied to the embeddings: devices by each kind of parallelism that divides a model,
/// also more than there are key/value heads.
#[test]
#[ignore = "slow: the meshes of every family"]
fn every_family_trains_on_meshes_as_on_one_device() {
    let bench = Bench::new();
    let mut differing = Vec::new();
    for model_type in MODEL_TYPES {
        let own = small_config(model_type);
        let ties = match own.get("tie_word_embeddings") {
            Some(_) => vec![false, true],
            None => vec![true],
        };
        for tied in ties {
            let name = format!("{model_type}-{}", if tied { "tied" } else { "untied" });
            let mut config = own.clone();
            config.set("tie_word_embeddings", tied);
            // As many as the tokenizers have.
            config.set("vocab_size", 1000);
            match xtrain_models::build(config.clone(), HeadKind::of(&config).unwrap()) {
                Err(error) if error.to_string().contains("untied") => continue,
                built => drop(built.unwrap()),
            }
            let file = format!("{name}.json");
            let text = serde_json::to_string(config.values()).unwrap();
            std::fs::write(bench.path(&file), text).unwrap();
            let what = match is_encoder(model_type) {
                Some(true) => format!(
                    "mlm --config_name {file} --tokenizer_name wordpiece --max_seq_length 16"
                ),
                _ => format!("clm --config_name {file} --tokenizer_name byte_bpe --block_size 16"),
            };
            let family = Family {
                name: &name,
                what: &format!("{what} --train_file articles.txt"),
                microbatches: 2,
                ..QWEN3
            };
            let meshes = [
                vec![(&TENSOR, 2)],
                vec![(&TENSOR, 4)],
                vec![(&SHARD, 2)],
                vec![(&STAGE, 2)],
                vec![(&ZERO1, 2), (&TENSOR, 2)],
            ];
            let runs = meshes.map(|mesh| (mesh, String::new(), String::new()));
            let compared =
                std::panic::AssertUnwindSafe(|| family.assert_trains_as_on_one(&bench, runs));
            if std::panic::catch_unwind(compared).is_err() {
                differing.push(name.clone());
            }
        }
    }
    assert!(differing.is_empty(), "{differing:?}");
}

#[test]
fn gpt2_trains_in_processes_as_on_one_device() {
    GPT2.trains_in_processes_as_on_one_device([alone(2), vec![all()]].concat());
}

#[test]
#[ignore = "slow: pairs of axes"]
fn gpt2_trains_in_processes_on_pairs_of_axes() {
    GPT2.trains_in_processes_as_on_one_device(pairs());
}

/// Of another family.
fn meshes_of_processes() -> Vec<Mesh> {
    [alone(2), pairs(), vec![all()]].concat()
}

#[test]
#[ignore = "slow: the meshes of another family"]
fn bert_trains_in_processes_as_on_one_device() {
    BERT.trains_in_processes_as_on_one_device(meshes_of_processes());
}

#[test]
#[ignore = "slow: the meshes of another family"]
fn albert_trains_in_processes_as_on_one_device() {
    ALBERT.trains_in_processes_as_on_one_device(meshes_of_processes());
}

#[test]
#[ignore = "slow: the meshes of another family"]
fn gptj_trains_in_processes_as_on_one_device() {
    GPTJ.trains_in_processes_as_on_one_device(meshes_of_processes());
}
