//! Models whose matrices are held in 4 or 8 bits, and adapters of them (QLoRA).

use crate::freezing::{graphs, state};
use crate::parallel::{OPTIMIZER, assert_same_run};
use crate::support::{data_dir, max_difference, objective_of, small_config};
use crate::tasks::Bench;
use serde_json::Value;
use xtrain::cache::CacheSettings;
use xtrain::checkpoint::hf;
use xtrain::checkpoint::weights::convert_floats;
use xtrain::parallel::Mesh;
use xtrain::trainer::ahead::{Ahead, RunShapes};
use xtrain::trainer::feed::BatchShape;
use xtrain::trainer::sample_logits::sample_logits;
use xtrain::trainer::session::Session;
use xtrain::trainer::settings::{OptimizerSettings, WeightStorage};
use xtrain::trainer::step::{TrainStep, placements};
use xtrain::trainer::{device, parameters};
use xtrain_graphs::op::{CodeBook, Composite, Op};
use xtrain_graphs::optim::{ADAMW, Schedule};
use xtrain_graphs::{DType, Graph, NodeId, Shape};
use xtrain_models::{
    Config, HeadKind, LoraConfig, Model, Modules, ParameterSet, ParameterSpec, Quantization, adapt,
    build,
};

const NF4: Quantization = Quantization {
    book: CodeBook::Nf4,
    is_nested: false,
};
const NESTED: Quantization = Quantization {
    is_nested: true,
    ..NF4
};
const FP4: Quantization = Quantization {
    book: CodeBook::Fp4,
    ..NF4
};
const INT8: Quantization = Quantization {
    book: CodeBook::Int8,
    ..NF4
};

/// A small model of a family with hidden states of this width.
fn config(family: &str, width: usize) -> Config {
    let mut config = small_config(family);
    for (key, value) in [
        ("hidden_size", width),
        ("n_embd", width),
        ("head_dim", width / 4),
        ("intermediate_size", 2 * width),
    ] {
        if config.get(key).is_some() {
            config.set(key, value);
        }
    }
    config
}

fn model(family: &str, width: usize, quantization: Option<Quantization>) -> Box<dyn Model> {
    let config = config(family, width).quantized(quantization);
    build(config, HeadKind::CausalLm).unwrap()
}

fn session(model: &dyn Model, mesh: Mesh, storage: WeightStorage) -> Session {
    let settings = OptimizerSettings {
        storage,
        ..OptimizerSettings::constant(ADAMW, 0.1)
    };
    let mut session = device::open_cpu(mesh, CacheSettings::in_memory()).unwrap();
    session.set_storage(storage);
    let placed = placements(model, &*settings.build(), mesh, false).unwrap();
    session.set_placements(placed);
    parameters::initialize(&mut session, &model.parameters(), 7).unwrap();
    session
}

/// A model in few bits computes what it computes with the values that its codes stand for, which the host
/// computes by itself: matrices in both orders, rows that are whole blocks and rows that are not, values in
/// float32 and bfloat16; and on devices that share each matrix.
#[test]
fn a_quantized_model_is_the_model_of_its_codes_values() {
    let sharded = Mesh {
        shard: 2,
        tensor: 2,
        ..Mesh::single()
    };
    for (family, width, quantization, storage, meshes) in [
        ("llama", 128, NESTED, WeightStorage::F32, &[sharded][..]),
        ("llama", 64, NF4, WeightStorage::Bf16, &[]),
        ("gpt2", 16, NESTED, WeightStorage::F32, &[]),
        ("gpt2", 64, FP4, WeightStorage::F32, &[]),
        ("gpt2", 64, INT8, WeightStorage::F32, &[sharded]),
    ] {
        let name = format!("{family} {width} in {quantization}, {storage:?}");
        let quantized = model(family, width, Some(quantization));
        let plain = model(family, width, None);
        let mut session_of_plain = session(&*plain, Mesh::single(), storage);
        let mut held = 0;
        for spec in quantized.parameters() {
            let Some(matrix) = spec.quantized else {
                continue;
            };
            held += 1;
            let (bytes, shape) = session_of_plain.download(&spec.name).unwrap();
            let wide = |bytes: &[u8]| convert_floats(bytes, shape.dtype, DType::F32).unwrap();
            let wide = wide(&bytes);
            let (values, _) = wide.as_chunks();
            let values: Vec<f32> = values.iter().map(|x| f32::from_le_bytes(*x)).collect();
            let arrays = matrix.quantize(&values, &spec.dims);
            let values = matrix.dequantize(&arrays, &spec.dims);
            let bytes = bytemuck::cast_slice(&values);
            let bytes = convert_floats(bytes, DType::F32, shape.dtype).unwrap();
            session_of_plain
                .set_state(&spec.name, &bytes, &shape)
                .unwrap();
        }
        // Four matrices of a layer of GPT-2, seven of Llama: all but the head.
        assert_eq!(held, if family == "gpt2" { 8 } else { 14 }, "{name}");
        let expected = sample_logits(&mut session_of_plain, &*plain, false).unwrap();
        for mesh in [Mesh::single()].iter().chain(meshes) {
            let mut session = session(&*quantized, *mesh, storage);
            let found = sample_logits(&mut session, &*quantized, false).unwrap();
            let difference = max_difference(&found, &expected);
            assert!(difference <= 2e-6, "{name}, {mesh:?}: {difference:e}");
        }
    }
}

/// The matrices that transformers 5.23 quantizes in golden cases: their number and their elements, by its
/// `get_keys_to_not_convert`.
#[test]
fn the_layers_are_those_that_transformers_quantizes() {
    let known = [
        ("albert-mlm", 8, 2560),
        ("bert-mlm", 13, 4864),
        ("distilbert-mlm", 13, 4864),
        ("gemma", 14, 4224),
        ("gemma2", 14, 4608),
        ("gemma3", 14, 4608),
        ("gpt2", 8, 6144),
        ("gpt2-unscaled-untied", 8, 6144),
        ("gpt_neo", 18, 9216),
        ("gpt_neox", 8, 8448),
        ("gptj", 12, 13824),
        ("granite", 14, 4608),
        ("llama", 14, 4608),
        ("llama-llama3-biases-tied", 14, 4224),
        ("modernbert-mlm", 17, 8192),
        ("phi3", 8, 5376),
        ("qwen2", 14, 4608),
        ("qwen3", 14, 4608),
        ("roberta-mlm", 13, 4864),
        ("smollm3", 14, 4608),
        ("xlm_roberta-mlm", 13, 4864),
    ];
    for (name, count, elements) in known {
        let path = data_dir().join("golden").join(name).join("config.json");
        let config = Config::new(hf::read_object(&path).unwrap(), name);
        let head = HeadKind::of(&config).unwrap();
        let model = build(config.quantized(Some(NF4)), head).unwrap();
        let held = model.parameters().into_iter();
        let held: Vec<ParameterSpec> = held.filter(|p| p.quantized.is_some()).collect();
        let sum: usize = held.iter().map(ParameterSpec::elements).sum();
        assert_eq!((held.len(), sum), (count, elements), "{name}");
    }
}

fn adapted(family: &str, width: usize, quantization: Quantization) -> Box<dyn Model> {
    let lora = LoraConfig {
        targets: Modules::AllLinear,
        ..LoraConfig::default()
    };
    adapt(model(family, width, Some(quantization)), lora).unwrap()
}

/// The phases in which the values of a dequantized matrix are read.
fn phases(graph: &Graph, id: NodeId) -> Vec<bool> {
    let mut found = Vec::new();
    for (reader, node) in (0..).zip(&graph.nodes) {
        if node.operands.contains(&id) {
            match node.op {
                Op::Reshape(_) | Op::Transpose(_) | Op::Slice { .. } | Op::Convert(_) => {
                    found.extend(phases(graph, reader))
                }
                _ => found.push(node.provenance.phase.is_backward()),
            }
        }
    }
    found
}

/// A step reads codes and their factors and nothing else of a matrix: there is no float array of it as an
/// input or output, no moment and no gradient; and the backward pass computes its values again, so that
/// those of the forward pass are not kept.
#[test]
fn a_step_has_codes_and_computes_values_where_they_are_used() {
    for (family, width, quantization, mesh) in [
        ("gpt2", 64, NESTED, Mesh::single()),
        ("llama", 64, INT8, Mesh::data_parallel(2)),
        (
            "llama",
            128,
            NF4,
            Mesh {
                shard: 2,
                tensor: 2,
                ..Mesh::single()
            },
        ),
        (
            "llama",
            64,
            NF4,
            Mesh {
                stage: 2,
                ..Mesh::single()
            },
        ),
    ] {
        let model = adapted(family, width, quantization);
        let all = graphs(&*model, mesh, mesh.data > 1);
        let [read, assigned] = state(&all);
        let parameters = model.parameters();
        let held: Vec<&ParameterSpec> = parameters
            .iter()
            .filter(|parameter| parameter.quantized.is_some())
            .collect();
        let is_adapters = |p: &&ParameterSpec| p.set == ParameterSet::Adapter;
        assert_eq!(
            parameters.iter().filter(is_adapters).count(),
            2 * held.len()
        );
        for parameter in &held {
            let name = parameter.name.as_str();
            let mut own = read.iter().filter(|other| other.contains(name));
            let arrays = parameter.arrays(DType::F32);
            assert!(own.all(|own| arrays.iter().any(|array| array.name == *own)));
            for array in &arrays {
                assert!(read.contains(array.name.as_str()), "{}", array.name);
                assert!(!assigned.contains(array.name.as_str()), "{}", array.name);
            }
            let inputs = all.iter().flat_map(|graph| &graph.inputs);
            let mut codes = inputs.filter(|input| input.name == name);
            let dtype = quantization.book.dtype();
            assert!(codes.all(|input| input.shape.dtype == dtype), "{name}");
        }
        let (mut forward, mut backward) = (0, 0);
        for graph in &all {
            for (id, node) in (0..).zip(&graph.nodes) {
                if !matches!(node.op, Op::Composite(Composite::Dequantize(_))) {
                    continue;
                }
                let phases = phases(graph, id);
                let is_backward = phases.contains(&true);
                assert!(
                    !phases.contains(&!is_backward),
                    "{family}, {mesh:?}: values of the forward pass are kept"
                );
                if is_backward {
                    backward += 1;
                } else {
                    forward += 1;
                }
            }
        }
        // Nothing before the first layer is trained: what it multiplies first has no gradient.
        let first = if family == "gpt2" { 1 } else { 3 };
        let graphs = 2;
        assert_eq!(forward, graphs * held.len(), "{family}, {mesh:?}");
        assert_eq!(
            backward,
            graphs * (held.len() - first),
            "{family}, {mesh:?}"
        );
    }
}

/// By the compiler's own count, a compiled step has less than the values of two layers in its temporaries,
/// of eight, and its arguments are codes.
#[test]
fn a_compiled_step_never_holds_the_values_of_all_layers() {
    let mut config = config("llama", 256);
    for (key, value) in [("num_hidden_layers", 8), ("intermediate_size", 768)] {
        config.set(key, value);
    }
    let lora = LoraConfig {
        rank: 2,
        ..LoraConfig::default()
    };
    let base = build(config.quantized(Some(NF4)), HeadKind::CausalLm).unwrap();
    let model = adapt(base, lora).unwrap();
    let schedule = Schedule::constant(1e-4);
    let settings = OptimizerSettings::constant(ADAMW, 1e-4);
    let objective = objective_of(model.head_kind(), 0.0);
    let step = TrainStep::new(&*model, objective, settings, schedule, 1);
    let shapes = RunShapes {
        train: vec![BatchShape::of(step.objective(), 1, 16)],
        eval: Vec::new(),
        accumulation: 1,
        of_reference: false,
    };
    let mut session = session(&*model, Mesh::single(), WeightStorage::F32);
    let compiled = Ahead {
        session: &mut session,
        step: &step,
        shapes: &shapes,
        metrics: None,
    }
    .compile(2, &mut |_| {})
    .unwrap();
    let train = compiled.iter().find(|graph| graph.name == "train").unwrap();
    let memory = train.memory().unwrap();
    let parameters = model.parameters();
    let held = parameters.iter().filter(|p| p.quantized.is_some());
    let values: usize = held
        .map(|p| Shape::new(DType::F32, p.dims.clone()).bytes())
        .sum();
    let (values, temporaries) = (values as i64, memory.temp_bytes);
    assert!(
        temporaries < values / 4,
        "{temporaries} bytes of temporaries, values of all layers are {values}"
    );
    let arguments = memory.argument_bytes;
    assert!(arguments < values / 4, "{arguments} bytes of arguments");
}

const DATA: &str = "--tokenizer_name byte_bpe --train_file articles.txt --validation_file articles-valid.txt --block_size 32 \
                    --disable_tqdm";

const QLORA: &str = "--use_peft --lora_r 4 --lora_alpha 8 --lora_target_modules c_attn c_proj --load_in_4bit --use_bnb_nested_quant";

fn start(bench: &Bench) {
    let run = bench.run(&format!(
        "train clm {DATA} --model_type gpt2 --config_overrides n_layer=2,n_head=4,n_embd=128,n_positions=32,attn_pdrop=0.1 \
         --learning_rate 1e-2 --max_steps 10 --save_strategy no --output_dir start"
    ));
    run.succeeded();
}

fn train(dir: &str, rows: usize, extra: &str) -> String {
    format!(
        "train clm {DATA} --model_name_or_path start {OPTIMIZER} --gradient_accumulation_steps 2 --max_steps 6 --logging_steps 1 \
         --per_device_train_batch_size {rows} --output_dir {dir} {extra}"
    )
}

fn loss(bench: &Bench, line: &str) -> (f64, String) {
    let run = bench.run(&format!("eval clm {DATA} --json {line}"));
    run.succeeded();
    let results: Value = serde_json::from_str(&run.stdout).unwrap();
    (results["eval_loss"].as_f64().unwrap(), run.stderr)
}

/// Trained, evaluated and generated with in 4 bits, merged into the model that was quantized.
#[test]
fn an_adapter_of_a_quantized_model_is_used_and_merged() {
    let bench = Bench::new();
    start(&bench);
    let extra = format!("{QLORA} --learning_rate 2e-2 --save_strategy no --do_train --do_eval");
    bench.run(&train("out", 8, &extra)).succeeded();
    let own = bench.json("out/all_results.json")["eval_loss"]
        .as_f64()
        .unwrap();
    let remembered = bench.json("out/data_settings.json");
    assert_eq!(remembered["load_in_4bit"], "true");
    let config = bench.json("out/adapter_config.json");
    assert!(!config.to_string().contains("bit"), "{config}");
    // As the adapter was trained, without a flag; and by flags.
    let (found, said) = loss(&bench, "--model_name_or_path out");
    assert!((found - own).abs() < 1e-6, "{found}, {own}");
    let note = "as in training: ";
    assert!(
        said.contains(note) && said.contains("--load_in_4bit true"),
        "{said}"
    );
    let (start, _) = loss(&bench, "--model_name_or_path start");
    let (quantized, _) = loss(
        &bench,
        "--model_name_or_path start --load_in_4bit --use_bnb_nested_quant",
    );
    let (in_8_bits, _) = loss(&bench, "--model_name_or_path start --load_in_8bit");
    assert!(
        own < quantized - 1e-3,
        "it learned nothing: {own}, {quantized}"
    );
    let off = |loss: f64| (loss - start).abs();
    assert!(
        off(quantized) > 1e-5 && off(quantized) < 5e-2,
        "{start}, {quantized}"
    );
    assert!(off(in_8_bits) < 5e-3, "{start}, {in_8_bits}");
    let run = bench.run(
        "generate --model_name_or_path out --tokenizer_name byte_bpe --prompt River --max_new_tokens 6 --temperature 0",
    );
    run.succeeded();
    assert!(run.stderr.contains("--load_in_4bit true"), "{}", run.stderr);

    let run = bench.run("merge --adapter_name_or_path out --output_dir merged");
    run.succeeded();
    assert!(
        run.stdout.contains("merged: 6 of 28 tensors changed"),
        "{}",
        run.stdout
    );
    let (merged, _) = loss(&bench, "--model_name_or_path merged");
    assert!(
        off(merged) > 1e-3 && (merged - own).abs() < 5e-2,
        "{merged}, {own}"
    );
}

/// A checkpoint holds the adapter and its moments alone; codes are made again, the same.
#[test]
fn an_adapter_of_a_quantized_model_resumes_exactly() {
    let bench = Bench::new();
    start(&bench);
    let extra = "--torch_dtype bfloat16 --gradient_checkpointing --save_strategy steps --save_steps 3 --lora_dropout 0.1";
    let run = |dir: &str, more: &str| bench.run(&train(dir, 4, &format!("{extra} {more}")));
    run("whole", QLORA).succeeded();
    let to = bench.path("resumed/checkpoint-3");
    std::fs::create_dir_all(&to).unwrap();
    for entry in std::fs::read_dir(bench.path("whole/checkpoint-3")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
    let other = run(
        "resumed",
        &format!(
            "{} --resume_from_checkpoint",
            QLORA.replace("--load_in_4bit --use_bnb_nested_quant", "--load_in_8bit")
        ),
    );
    assert_eq!(other.code, Some(2), "{}", other.stderr);
    let both = "of a model in 4 bits (nf4, double quantization), and this run has an adapter (r 4, lora_alpha 8) on c_attn, c_proj \
                of a model in 8 bits (int8)";
    assert!(other.stderr.contains(both), "{}", other.stderr);
    run("resumed", &format!("{QLORA} --resume_from_checkpoint")).succeeded();
    for name in [
        "adapter_model.safetensors",
        "checkpoint-6/optimizer.safetensors",
    ] {
        let [whole, resumed] =
            ["whole", "resumed"].map(|dir| bench.bytes(&format!("{dir}/{name}")));
        assert!(whole == resumed, "{name} differs");
    }
}

fn assert_meshes_agree(meshes: &[(usize, &str)]) {
    let bench = Bench::new();
    start(&bench);
    let run = |dir: &str, rows: usize, extra: &str| {
        let extra = format!("{QLORA} --save_strategy no {extra}");
        bench.run(&train(dir, rows, &extra)).succeeded();
    };
    run("one", 8, "");
    for (index, (rows, mesh)) in meshes.iter().enumerate() {
        let dir = format!("mesh-{index}");
        run(&dir, *rows, mesh);
        assert_same_run(&bench, &dir, "one");
    }
}

#[test]
fn meshes_share_a_quantized_model() {
    assert_meshes_agree(&[
        (4, "--shard_parallel 2"),
        (8, "--tensor_parallel 2 --sequence_parallel"),
    ]);
}

#[test]
#[ignore = "slow: further meshes"]
fn further_meshes_share_a_quantized_model() {
    assert_meshes_agree(&[
        (4, "--data_parallel 2 --shard_optimizer_state"),
        (8, "--pipeline_parallel 2"),
        (
            2,
            "--data_parallel 2 --shard_parallel 2 --tensor_parallel 2",
        ),
        (8, "--gradient_checkpointing"),
    ]);
}

#[test]
fn mistakes_in_quantization_are_named() {
    let bench = Bench::new();
    start(&bench);
    let mut values = bench.json("start/config.json");
    std::fs::create_dir_all(bench.path("saved")).unwrap();
    for name in ["model.safetensors", "config.json"] {
        let from = bench.path(&format!("start/{name}"));
        std::fs::copy(from, bench.path(&format!("saved/{name}"))).unwrap();
    }
    values["quantization_config"] =
        serde_json::json!({"quant_method": "bitsandbytes", "load_in_4bit": true});
    std::fs::write(bench.path("saved/config.json"), values.to_string()).unwrap();
    for (flags, parts) in [
        (
            "--load_in_4bit",
            &[
                "--load_in_4bit: a quantized model cannot be trained itself",
                "add --use_peft",
            ][..],
        ),
        (
            "--use_peft --load_in_4bit --load_in_8bit",
            &["--load_in_4bit and --load_in_8bit are two ways to hold the same matrices"],
        ),
        (
            "--use_peft --load_in_8bit --bnb_4bit_quant_type fp4",
            &["--bnb_4bit_quant_type is of matrices in 4 bits, and there are none"],
        ),
        (
            "--use_peft --load_in_4bit --device neuron",
            &["--load_in_4bit was never tried on Neuron"],
        ),
        (
            "--use_peft --load_in_4bit --tensor_parallel 4",
            &["cannot divide", "1, 2"],
        ),
        (
            "--use_peft --model_name_or_path saved",
            &[
                "a model that was saved quantized is not read",
                "with --load_in_4bit",
            ],
        ),
    ] {
        let run = bench.run(&train("out", 8, &format!("{flags} --save_strategy no")));
        assert_eq!(run.code, Some(2), "{flags}: {}", run.stderr);
        for part in parts {
            assert!(run.stderr.contains(part), "{flags}: {}", run.stderr);
        }
    }
}
