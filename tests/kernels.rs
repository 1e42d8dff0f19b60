//! The report on compiled modules (`--kernels`), of stored graphs of the CPU's and of cards that are
//! described. Those need the plugin that `XTRAIN_TEST_CUDA_PLUGIN` names, and no card.

use crate::support::{Command, Run, as_users, copy_tokenizer, data_text};
use crate::target::cuda_plugin;
use serde_json::{Map, Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

struct Place {
    dir: TempDir,
}

const SMALL: &str = "--model_type gpt2 --config_overrides n_layer=2,n_head=2,n_embd=32,n_positions=32,embd_pdrop=0,attn_pdrop=0,resid_pdrop=0 \
                     --tokenizer_name byte_bpe --block_size 32 --per_device_train_batch_size 4";

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        for name in ["wordpiece", "byte_bpe"] {
            copy_tokenizer(name, &dir.path().join(name));
        }
        std::fs::write(
            dir.path().join("train.txt"),
            &data_text("play.txt")[..30_000],
        )
        .unwrap();
        Place { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, line: &str) -> Command {
        let mut command = as_users();
        command
            .dir(self.dir.path())
            .args(line.split_whitespace())
            .args(["--cache_dir", "cache"]);
        command
    }

    fn for_card(&self, plugin: &Path, line: &str) -> Run {
        let mut command = self.command(line);
        let run = command.env("XTRAIN_CUDA_PLUGIN", plugin).run();
        run.succeeded();
        run
    }
}

fn parsed(run: &Run) -> Value {
    serde_json::from_str(run.stdout.lines().last().unwrap()).unwrap()
}

/// A graph of the CPU's: no rates are known, so there are no times; all else is.
#[test]
fn a_stored_graph_of_the_cpu_has_a_report() {
    let place = Place::new();
    place
        .command(&format!("compile clm {SMALL}"))
        .run()
        .succeeded();
    let listed = place.command("cache ls --json").run();
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    let mut entries = listed.as_array().unwrap().iter();
    let id = &entries.find(|entry| entry["phase"] == "train").unwrap()["id"];
    let id = id.as_str().unwrap();
    let run = place
        .command(&format!(
            "cache show {id} --kernels --json --html page.html"
        ))
        .run();
    run.succeeded();
    let report = &parsed(&run)["graphs"][0];
    let flops = report["total"]["matmul_flops"].as_f64().unwrap();
    let words = vocabulary(&place.path("byte_bpe"));
    assert_eq!(flops, flops_of_small(words), "{report}");
    assert!(
        report["bounds"].is_null() && report["total"]["ms"].is_null(),
        "{report}"
    );
    let layers = report["layers"].as_array().unwrap();
    for layer in ["transformer.h.0", "transformer.h.1"] {
        let found = layers.iter().find(|found| found["layer"] == layer).unwrap();
        for phase in ["forward", "backward", "update"] {
            assert!(
                found["phases"][phase]["kernels"].as_u64() > Some(0),
                "{layer} {phase}: {found}"
            );
        }
    }
    assert_eq!(report["inputs"]["donated_not_aliased"], json!([]));
    let phases = report["memory"]["phases"].as_array().unwrap();
    assert_eq!(phases.len(), 3, "{report}");
    let highest = phases
        .iter()
        .map(|phase| phase["temporary_bytes"].as_f64().unwrap());
    let temporaries = report["memory"]["temporary_bytes"].as_f64().unwrap();
    // By liveness, before what the compiler lays out with gaps.
    let highest = highest.fold(0.0, f64::max);
    assert!(
        highest <= temporaries,
        "{highest} of {temporaries}: {report}"
    );
    let gaps = 1.0 - highest / temporaries;
    assert!(gaps < 0.01, "{gaps}: {report}");
    let page = std::fs::read_to_string(place.path("page.html")).unwrap();
    assert!(
        page.contains("<h2>bytes moved by layer</h2>") && page.contains("transformer.h.1"),
        "{page}"
    );
    let text = place.command(&format!("cache show {id} --kernels")).run();
    text.succeeded();
    for part in [
        "train for cpu",
        "matmul",
        "donated and aliased",
        "in backward",
        "held at the peak",
    ] {
        assert!(
            text.stdout.contains(part),
            "`{part}` is missing in: {}",
            text.stdout
        );
    }
}

/// FLOPs of a step of [`SMALL`]: four matmuls of each of two layers and the logits of `words`, forward, and two
/// for each backward; of causal attention two and five, of half of the scores.
fn flops_of_small(words: f64) -> f64 {
    let (tokens, width, keys, layers) = (4.0 * 32.0, 32.0, 32.0, 2.0);
    let weights = layers * 12.0 * width * width + width * words;
    6.0 * tokens * weights + layers * (2.0 + 5.0) * 2.0 * tokens * width * keys / 2.0
}

fn vocabulary(tokenizer: &Path) -> f64 {
    let text = std::fs::read_to_string(tokenizer.join("tokenizer.json")).unwrap();
    let tokenizer: Value = serde_json::from_str(&text).unwrap();
    let words = tokenizer["model"]["vocab"].as_object().unwrap().len();
    words as f64
}

/// The report agrees with what the compiler and xtrain's own graph say, and the honest bound is above the
/// optimistic one.
#[test]
fn a_described_card_has_a_report() {
    let Some(plugin) = cuda_plugin() else { return };
    let place = Place::new();
    let line = format!("compile clm --device cuda --target h200 --bf16 {SMALL} --kernels");
    let json = parsed(&place.for_card(&plugin, &format!("{line} --json --html page.html")));
    let report = &json["graphs"][0];
    let bound = |name: &str| report["bounds"][name].as_f64().unwrap();
    let launches = report["total"]["launches"].as_f64().unwrap();
    // The time of each kernel is in whole nanoseconds.
    let rounding = launches * 1e-6;
    assert!(
        bound("kernels_ms") + rounding >= bound("optimistic_ms"),
        "{report}"
    );
    assert!(bound("launches_ms") >= launches * 1.5e-3 - 1e-9, "{report}");
    assert_eq!(report["classes"]["attention"]["kernels"], 4, "{report}");
    assert_eq!(report["inputs"]["donated_not_aliased"], json!([]));
    let text = place.for_card(&plugin, &line).stdout;
    let flops = report["total"]["matmul_flops"].as_f64().unwrap();
    // XLA pads the words to whole tiles. The table above the report has the FLOPs of xtrain's own graph,
    // without them.
    let words = vocabulary(&place.path("byte_bpe"));
    let padded = (words / 16.0).ceil() * 16.0;
    assert_eq!(flops, flops_of_small(padded), "{report}");
    let counted = format!("{:.1} MFLOP in 16 bits", flops_of_small(words) / 1e6);
    assert!(text.contains(&counted), "{counted}: {text}");
    // No matmul reads weights in f32: each is converted once.
    let findings = report["to_look_at"].as_array().unwrap();
    let converts = |found: &Value| found["what"] == "matmuls that convert an operand";
    assert!(!findings.iter().any(converts), "{report}");
    let shown = text.split("train for h200 ").nth(1).unwrap();
    let id = shown.split_whitespace().next().unwrap();
    let stored = place
        .command(&format!("cache show {id} --kernels --json"))
        .run();
    stored.succeeded();
    let stored = parsed(&stored);
    assert_eq!(stored["graphs"][0]["classes"], report["classes"]);
    assert_eq!(stored["graphs"][0]["bounds"], report["bounds"]);
    let page = std::fs::read_to_string(place.path("page.html")).unwrap();
    assert!(page.contains("<h2>least time by class</h2>"), "{page}");

    let plan = format!(
        "train clm --device cuda --target h200 --bf16 {SMALL} --train_file train.txt --output_dir out --dry_run"
    );
    let planned = place.for_card(&plugin, &plan).stdout;
    assert!(
        planned.contains("by kernels") && planned.contains("optimistic"),
        "{planned}"
    );
    let planned = parsed(&place.for_card(&plugin, &format!("{plan} --json")));
    let mut graphs = planned["graphs"].as_array().unwrap().iter();
    let train = graphs.find(|graph| graph["name"] == "train").unwrap();
    assert_eq!(train["bounds"], report["bounds"]);
    assert!(!place.path("out").exists());
}

const GOLDEN: &str = "tests/data/kernels.json";

/// The models whose kernels are counted, each with the flags that make its training step.
const MODELS: [(&str, &str); 4] = [
    (
        "gpt2-small",
        "compile clm --model_type gpt2 --config_overrides vocab_size=50257,embd_pdrop=0,attn_pdrop=0,resid_pdrop=0 --tokenizer_name byte_bpe \
         --block_size 1024 --per_device_train_batch_size 32",
    ),
    (
        "bert-large",
        "compile mlm --model_type bert --config_overrides vocab_size=30522,hidden_size=1024,num_hidden_layers=24,num_attention_heads=16,\
         intermediate_size=4096,hidden_dropout_prob=0,attention_probs_dropout_prob=0 --tokenizer_name wordpiece --max_seq_length 128 \
         --per_device_train_batch_size 56",
    ),
    (
        "llama-1b",
        "compile clm --model_name_or_path llama --tokenizer_name byte_bpe --block_size 2048 --per_device_train_batch_size 2",
    ),
    (
        "llama-1b-lora",
        "compile clm --model_name_or_path llama --tokenizer_name byte_bpe --block_size 2048 --per_device_train_batch_size 2 \
         --use_peft --lora_target_modules all-linear",
    ),
];

/// Llama 3.2 1B.
fn llama() -> Value {
    json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "hidden_act": "silu",
        "max_position_embeddings": 131072, "initializer_range": 0.02, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "tie_word_embeddings": true, "attention_bias": false, "mlp_bias": false
    })
}

/// Weights of all parameters of [`llama`], without their bytes: a compile reads no more than the names and
/// shapes. The file is sparse.
fn write_llama(dir: &Path) {
    std::fs::create_dir(dir).unwrap();
    std::fs::write(dir.join("config.json"), llama().to_string()).unwrap();
    let layer = [
        ("self_attn.q_proj", [2048, 2048]),
        ("self_attn.k_proj", [512, 2048]),
        ("self_attn.v_proj", [512, 2048]),
        ("self_attn.o_proj", [2048, 2048]),
        ("mlp.gate_proj", [8192, 2048]),
        ("mlp.up_proj", [8192, 2048]),
        ("mlp.down_proj", [2048, 8192]),
    ];
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_string(), vec![128256, 2048]),
        ("model.norm.weight".to_string(), vec![2048]),
    ];
    for number in 0..16 {
        let name = |inner: &str| format!("model.layers.{number}.{inner}.weight");
        tensors.extend(layer.map(|(inner, shape)| (name(inner), shape.to_vec())));
        let norms = ["input_layernorm", "post_attention_layernorm"];
        tensors.extend(norms.map(|inner| (name(inner), vec![2048])));
    }
    let (mut header, mut end) = (Map::new(), 0);
    for (name, shape) in tensors {
        let begin = end;
        end += 2 * shape.iter().product::<u64>();
        let tensor = json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]});
        header.insert(name, tensor);
    }
    let header = Value::Object(header).to_string().into_bytes();
    let mut file = std::fs::File::create(dir.join("model.safetensors")).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes())
        .unwrap();
    file.write_all(&header).unwrap();
    file.set_len(8 + header.len() as u64 + end).unwrap();
}

/// Kernels and bytes of a training step by class: a pass that adds kernels changes them. With
/// `XTRAIN_WRITE_DOCS` they are written anew.
#[test]
#[ignore = "slow: eight compiles for cards, each up to two minutes of both cores"]
fn kernels_of_known_models_stay_as_they_are() {
    let Some(plugin) = cuda_plugin() else { return };
    let place = Place::new();
    write_llama(&place.path("llama"));
    let only = std::env::var("XTRAIN_TEST_MODELS").unwrap_or_default();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join(GOLDEN);
    let text = std::fs::read_to_string(&golden).unwrap_or("{}".into());
    let mut wanted: Map<String, Value> = serde_json::from_str(&text).unwrap();
    let is_written = std::env::var_os("XTRAIN_WRITE_DOCS").is_some();
    let mut differences = Vec::new();
    for card in ["h100", "a100-80g"] {
        for (name, line) in MODELS {
            let key = format!("{name} {card}");
            if !only.is_empty() && !only.split(',').any(|part| key.contains(part)) {
                continue;
            }
            let line = format!("{line} --device cuda --target {card} --bf16 --kernels --json");
            let graphs = parsed(&place.for_card(&plugin, &line))["graphs"].take();
            let mut graphs = graphs.as_array().unwrap().iter();
            let found = graphs
                .find(|graph| graph["graph"].as_str().unwrap().starts_with("train "))
                .unwrap();
            let classes = found["classes"].as_object().unwrap().iter();
            let counts = classes.map(|(class, work)| {
                let counts = json!({"kernels": work["kernels"], "bytes": work["bytes"]});
                (class.clone(), counts)
            });
            let counts = Value::Object(counts.collect());
            if is_written {
                wanted.insert(key, counts);
            } else if wanted.get(&key) != Some(&counts) {
                differences.push(format!("{key}: {counts}, it was {:?}", wanted.get(&key)));
            }
        }
    }
    if is_written {
        let text = serde_json::to_string_pretty(&wanted).unwrap();
        std::fs::write(&golden, text + "\n").unwrap();
    }
    assert!(
        differences.is_empty(),
        "XTRAIN_WRITE_DOCS=1 writes {GOLDEN} anew, if this is meant:\n{}",
        differences.join("\n")
    );
}
