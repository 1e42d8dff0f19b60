#!/usr/bin/env python3
"""Writes tests/data/golden/directories: tiny models in the forms in which directories are met: configurations of transformers 4 and 5, kinds of
rotary scaling, weights in one file or several, safetensors or pickles, other element types, older names of tensors. cases.json has of each the
loss that transformers gives, or the words with which xtrain refuses it.

    pip install torch==2.15.0 transformers==5.23.0 tokenizers==0.23.3 safetensors
    python tests/data/make_directories.py
    python tests/data/make_directories.py --check target/release/xtrain    # also that transformers reads what xtrain saves of each
"""

import json
import math
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors

HERE = pathlib.Path(__file__).resolve().parent
FOLDER = HERE / "golden/directories"
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
WORDS = SPECIAL + [f"w{i}" for i in range(43)]
ROWS = 6

SMALL = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=24, max_position_embeddings=64, vocab_size=len(WORDS),
             pad_token_id=1, bos_token_id=0, eos_token_id=2)
GPT2 = dict(n_embd=16, n_layer=2, n_head=2, n_positions=32, vocab_size=len(WORDS), resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=2)
NEO = dict(hidden_size=16, num_layers=2, num_heads=2, max_position_embeddings=32, vocab_size=len(WORDS), window_size=3, attention_types=[[["local", "global"], 1]],
           resid_dropout=0, embed_dropout=0, attention_dropout=0, bos_token_id=0, eos_token_id=2)
BERT = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20, max_position_embeddings=40, vocab_size=len(WORDS), pad_token_id=1,
            hidden_dropout_prob=0, attention_probs_dropout_prob=0, num_labels=3)
DISTIL = dict(dim=16, n_layers=2, n_heads=2, hidden_dim=20, max_position_embeddings=40, vocab_size=len(WORDS), pad_token_id=1, dropout=0, attention_dropout=0, seq_classif_dropout=0, num_labels=3)
ALBERT = BERT | dict(embedding_size=8, classifier_dropout_prob=0)
MODERN = dict(hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=20, max_position_embeddings=40, vocab_size=len(WORDS), local_attention=6, pad_token_id=1,
              bos_token_id=0, eos_token_id=2, cls_token_id=0, sep_token_id=2, num_labels=3)
NEOX = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=40, max_position_embeddings=32, vocab_size=len(WORDS), bos_token_id=0, eos_token_id=2)
NONE = None
SHORT, LONG = [1.0, 1.05, 1.2, 1.5], [1.0, 2.0, 4.5, 8.0]


def case(name, cls, config, length=12, changes=(), form="safetensors", dtype="float32", names=None, more=None, refused=None):
    """`changes`: of config.json (NONE: a key that it lacks); `form`: of the files; `names`: older names of tensors; `more`: further tensors."""
    return dict(name=name, cls=cls, config=config, length=length, changes=dict(changes), form=form, dtype=dtype, names=names, more=more, refused=refused)


def gpt2_names(name):
    return name.removeprefix("transformer.")


def bert_names(name):
    return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


def masks(prefix, layers, size):
    return lambda: {f"{prefix.format(i)}.{key}": value for i in range(layers) for key, value in
                    {"bias": torch.ones(size, size).tril().bool()[None, None], "masked_bias": torch.tensor(-1e4)}.items()}


CASES = [
    # Llama's relatives: rotary scaling in both spellings, heads, biases, windows.
    case("llama-4-linear", "LlamaForCausalLM", SMALL | dict(num_key_value_heads=1, rms_norm_eps=1e-5), changes={
        "rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 500.0, "rope_parameters": NONE, "torch_dtype": "float32", "dtype": NONE, "tie_word_embeddings": NONE, "head_dim": NONE,
        "pretraining_tp": 1, "_name_or_path": "some/where", "transformers_version": "4.36.0"}),
    case("llama-dynamic", "LlamaForCausalLM", SMALL | dict(rope_parameters=dict(rope_type="dynamic", rope_theta=100.0, factor=4.0)), length=32),
    case("llama-4-dynamic-untouched", "LlamaForCausalLM", SMALL | dict(num_key_value_heads=4), changes={
        "rope_scaling": {"rope_type": "dynamic", "type": "dynamic", "factor": 2.5}, "rope_parameters": NONE, "rope_theta": 1000000, "num_key_value_heads": NONE, "mlp_bias": NONE, "attention_bias": NONE}),
    case("llama-yarn-bf16", "LlamaForCausalLM", SMALL | dict(head_dim=10, attention_bias=True, rope_parameters=dict(
        rope_type="yarn", rope_theta=100.0, factor=4.0, original_max_position_embeddings=16, beta_fast=16, beta_slow=2, mscale=0.7, mscale_all_dim=1.0)), dtype="bfloat16", length=20),
    case("llama-3-tied", "LlamaForCausalLM", SMALL | dict(tie_word_embeddings=True, mlp_bias=True, hidden_act="gelu_pytorch_tanh"), changes={
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8}, "rope_theta": 100.0, "rope_parameters": NONE}),
    case("llama-longrope", "LlamaForCausalLM", SMALL | dict(head_dim=8, rope_parameters=dict(
        rope_type="longrope", rope_theta=100.0, factor=4.0, original_max_position_embeddings=16, short_factor=SHORT, long_factor=LONG)), length=24),
    case("mistral-window-fp16", "MistralForCausalLM", SMALL | dict(sliding_window=3, head_dim=6), dtype="float16", changes={"torch_dtype": "float16", "dtype": NONE, "rope_theta": 250.0, "rope_parameters": NONE}),
    case("qwen2-tied-bin", "Qwen2ForCausalLM", SMALL | dict(tie_word_embeddings=True, use_sliding_window=True, sliding_window=4, max_window_layers=1), form="bin", changes={"layer_types": NONE}),
    case("qwen2-layer-types-shards", "Qwen2ForCausalLM", SMALL | dict(layer_types=["sliding_attention", "full_attention"], sliding_window=3, use_sliding_window=True), form="shards"),
    case("qwen3-bias-head", "Qwen3ForCausalLM", SMALL | dict(head_dim=12, attention_bias=True, rms_norm_eps=1e-4), form="bin-shards"),
    case("phi3-4k", "Phi3ForCausalLM", SMALL | dict(resid_pdrop=0), changes={"sliding_window": 5, "rope_scaling": None, "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"}}),
    case("phi3-long-short", "Phi3ForCausalLM", SMALL | dict(hidden_size=32, original_max_position_embeddings=16, max_position_embeddings=64), length=16, changes={
        "rope_scaling": {"type": "su", "short_factor": SHORT, "long_factor": LONG, "original_max_position_embeddings": 16}, "rope_theta": 100.0, "rope_parameters": NONE}),
    case("phi3-long-long", "Phi3ForCausalLM", SMALL | dict(hidden_size=32, original_max_position_embeddings=16, max_position_embeddings=64), length=17, form="shards", changes={
        "rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": LONG}, "rope_theta": 100.0, "rope_parameters": NONE}),
    case("phi4-mini", "Phi3ForCausalLM", SMALL | dict(hidden_size=32, tie_word_embeddings=True, original_max_position_embeddings=16, max_position_embeddings=48, rope_parameters=dict(
        rope_type="longrope", rope_theta=100.0, partial_rotary_factor=0.75, short_factor=SHORT[:3], long_factor=LONG[:3])), length=40, dtype="bfloat16"),
    case("phi3-long-factor", "Phi3ForCausalLM", SMALL | dict(hidden_size=32, original_max_position_embeddings=16, max_position_embeddings=64, rope_parameters=dict(
        rope_type="longrope", rope_theta=100.0, partial_rotary_factor=1.0, attention_factor=1.3, short_factor=SHORT, long_factor=LONG)), length=20),
    case("gemma-activation", "GemmaForCausalLM", SMALL | dict(head_dim=10, num_key_value_heads=1), changes={"hidden_act": "gelu", "hidden_activation": NONE}),
    case("gemma2-eps", "Gemma2ForCausalLM", SMALL | dict(head_dim=6, query_pre_attn_scalar=9, sliding_window=3, rms_norm_eps=1e-3, attn_logit_softcapping=None, final_logit_softcapping=4.0), form="shards"),
    case("gemma3-two-ropes", "Gemma3ForCausalLM", ("Gemma3TextConfig", SMALL | dict(head_dim=8, query_pre_attn_scalar=8, sliding_window=4, layer_types=["sliding_attention", "full_attention"])), changes={
        "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 50.0}, "full_attention": {"rope_type": "linear", "rope_theta": 900.0, "factor": 2.0}}}),
    case("gemma3-4-ropes", "Gemma3ForCausalLM", ("Gemma3TextConfig", SMALL | dict(head_dim=8, query_pre_attn_scalar=8, sliding_window=4, num_hidden_layers=3)), changes={
        "rope_parameters": NONE, "layer_types": NONE, "sliding_window_pattern": 2, "rope_theta": 900.0, "rope_local_base_freq": 50.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    case("granite-4", "GraniteForCausalLM", SMALL | dict(embedding_multiplier=2.0, residual_multiplier=0.5, attention_multiplier=0.4, logits_scaling=3.0, attention_bias=True), changes={
        "rope_parameters": NONE, "rope_theta": 100.0}),
    case("smollm3-no-rope", "SmolLM3ForCausalLM", SMALL | dict(no_rope_layers=[0, 1], tie_word_embeddings=False), form="bin"),
    # GPT's.
    case("gpt2-first", "GPT2LMHeadModel", GPT2, form="bin", names=gpt2_names, more=masks("h.{}.attn", 2, 32), changes={"n_ctx": 32, "dtype": NONE, "tie_word_embeddings": NONE, "activation_function": NONE,
                                                                                                       "task_specific_params": {"text-generation": {"do_sample": True}}}),
    case("gpt2-tanh-shards", "GPT2LMHeadModel", GPT2 | dict(activation_function="gelu_pytorch_tanh", layer_norm_epsilon=1e-3, n_inner=20), form="shards"),
    case("gpt_neo-masks", "GPTNeoForCausalLM", NEO, form="bin", more=masks("transformer.h.{}.attn.attention", 2, 32), changes={"dtype": NONE, "torch_dtype": "float32"}),
    case("gptj-older", "GPTJForCausalLM", dict(n_embd=24, n_layer=2, n_head=2, n_positions=32, rotary_dim=4, vocab_size=len(WORDS), resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=2,
                                               tie_word_embeddings=False), dtype="float16", more=masks("transformer.h.{}.attn", 2, 32), changes={"tie_word_embeddings": NONE, "rotary": True, "scale_attn_weights": True}),
    case("gpt_neox-older", "GPTNeoXForCausalLM", NEOX | dict(hidden_act="gelu_fast"), form="bin", more=masks("gpt_neox.layers.{}.attention", 2, 32), changes={
        "rotary_pct": 0.5, "rotary_emb_base": 100, "rope_parameters": NONE, "partial_rotary_factor": NONE}),
    # Encoders.
    case("bert-gamma", "BertForSequenceClassification", BERT, form="bin", names=bert_names, more=lambda: {"bert.embeddings.position_ids": torch.arange(40)[None]}, changes={
        "dtype": NONE, "gradient_checkpointing": False, "position_embedding_type": "absolute", "layer_norm_eps": NONE, "type_vocab_size": NONE}),
    case("bert-silu-eps", "BertForSequenceClassification", BERT | dict(hidden_act="silu", layer_norm_eps=1e-3), form="shards", dtype="float16"),
    case("roberta-older", "RobertaForSequenceClassification", BERT | dict(layer_norm_eps=1e-5, type_vocab_size=1), form="bin", more=lambda: {"roberta.embeddings.position_ids": torch.arange(40)[None]}),
    case("xlm-roberta-bf16", "XLMRobertaForSequenceClassification", BERT | dict(layer_norm_eps=1e-5, type_vocab_size=1), dtype="bfloat16", changes={"output_past": True}),
    case("distilbert-relu", "DistilBertForSequenceClassification", DISTIL | dict(activation="relu"), changes={"tie_weights_": True, "sinusoidal_pos_embds": False}),
    case("albert-relu", "AlbertForSequenceClassification", ALBERT | dict(hidden_act="relu"), form="bin", more=lambda: {"albert.embeddings.position_ids": torch.arange(40)[None]}, changes={
        "net_structure_type": 0, "gap_size": 0, "num_memory_blocks": 0, "down_scale_factor": 1}),
    case("modernbert-older", "ModernBertForSequenceClassification", MODERN, changes={"rope_parameters": NONE, "layer_types": NONE, "global_rope_theta": 700.0, "local_rope_theta": 30.0, "global_attn_every_n_layers": 2,
                                                                        "reference_compile": False, "classifier_pooling": "mean"}),
    # What cannot be trained is refused by its name.
    case("electra", "ElectraForSequenceClassification", BERT | dict(embedding_size=8), refused="electra"),
    case("opt", "OPTForCausalLM", dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, ffn_dim=20, vocab_size=len(WORDS), word_embed_proj_dim=16, max_position_embeddings=32, pad_token_id=1), refused="opt"),
    case("phi3-linear", "Phi3ForCausalLM", SMALL, changes={"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}}, refused="models of this type know default and longrope"),
    case("phi3-factors", "Phi3ForCausalLM", SMALL | dict(hidden_size=32), changes={"rope_parameters": {"rope_type": "longrope", "rope_theta": 100.0, "short_factor": [1.0, 1.0], "long_factor": [1.0, 1.0]}},
         refused="must be a list of 4 positive numbers"),
    case("llama-proportional", "LlamaForCausalLM", SMALL, changes={"rope_parameters": {"rope_type": "proportional", "rope_theta": 100.0}}, refused="this scaling is not implemented"),
    case("llama-quantized", "LlamaForCausalLM", SMALL, changes={"quantization_config": {"quant_method": "gptq", "bits": 4}}, refused="quantization_config"),
    case("gpt2-cross", "GPT2LMHeadModel", GPT2, changes={"add_cross_attention": True}, refused="add_cross_attention"),
]


def tokenizer(template):
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(SPECIAL)
    if template:
        made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    return made


def write_tokenizers():
    for name in ["decoder", "encoder"]:
        folder = FOLDER / name
        folder.mkdir(parents=True)
        tokenizer(name == "encoder").save(str(folder / "tokenizer.json"))
        spec = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(spec) + "\n")
    rng = random.Random(7)
    lines = [" ".join(rng.choice(WORDS[4:]) for _ in range(rng.randint(9, 17))) for _ in range(24)]
    (FOLDER / "text.txt").write_text("\n".join(lines) + "\n")
    rows = [{"text": " ".join(line.split()[: rng.randint(3, 12)]), "label": rng.randrange(3)} for line in lines[:9]]
    (FOLDER / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def new_model(spec, seed):
    """Large random weights, biases and norms included, so that a dropped or swapped one shows."""
    torch.manual_seed(seed)
    cls, config = getattr(hf, spec["cls"]), spec["config"]
    name, config = config if isinstance(config, tuple) else (None, config)
    config = (getattr(hf, name) if name else cls.config_class)(**config)
    config.initializer_range = 0.2
    model = cls(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def split(tensors):
    names, half = list(tensors), len(tensors) // 2
    return [{name: tensors[name] for name in part} for part in (names[:half], names[half:])]


def write(folder, spec, seed):
    model = new_model(spec, seed).to(getattr(torch, spec["dtype"]))
    model.save_pretrained(folder)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    path.unlink()
    if spec["names"]:
        tensors = {spec["names"](name): value for name, value in tensors.items()}
    if spec["more"]:
        tensors |= spec["more"]()
    form = spec["form"]
    save, stem, ending = (torch.save, "pytorch_model", "bin") if form.startswith("bin") else (lambda t, p: save_file(t, p, metadata={"format": "pt"}), "model", "safetensors")
    if form.endswith("shards"):
        parts = split(tensors)
        files = [f"{stem}-{i + 1:05}-of-{len(parts):05}.{ending}" for i in range(len(parts))]
        for part, file in zip(parts, files):
            save(part, folder / file)
        index = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())}, "weight_map": {name: file for part, file in zip(parts, files) for name in part}}
        (folder / f"{stem}.{ending}.index.json").write_text(json.dumps(index) + "\n")
    else:
        save(tensors, folder / f"{stem}.{ending}")
    config = json.loads((folder / "config.json").read_text())
    for key, value in spec["changes"].items():
        if value is NONE and key != "rope_scaling":
            config.pop(key, None)
        else:
            config[key] = value
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    generation = folder / "generation_config.json"
    if generation.exists():
        generation.unlink()


def is_decoder(spec):
    return spec["cls"].endswith(("CausalLM", "LMHeadModel"))


def loss(folder, spec):
    """The mean loss of the text's tokens in rows of equal length or, of a classifier, of its labels."""
    kind = hf.AutoModelForCausalLM if is_decoder(spec) else hf.AutoModelForSequenceClassification
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    total = count = 0
    with torch.no_grad():
        if is_decoder(spec):
            ids = [i for line in (FOLDER / "text.txt").read_text().splitlines() for i in tokenizer(False).encode(line).ids]
            rows = [ids[i:i + spec["length"]] for i in range(0, len(ids) - spec["length"] + 1, spec["length"])][:ROWS]
            for row in rows:
                logits = model(torch.tensor([row])).logits[0, :-1].double()
                total += torch.nn.functional.cross_entropy(logits, torch.tensor(row[1:]), reduction="sum").item()
                count += len(row) - 1
        else:
            for row in map(json.loads, (FOLDER / "rows.jsonl").read_text().splitlines()):
                logits = model(torch.tensor([tokenizer(True).encode(row["text"]).ids])).logits.double()
                total += torch.nn.functional.cross_entropy(logits, torch.tensor([row["label"]])).item()
                count += 1
    return total / count


def check(program, folder, spec, wanted):
    """What xtrain saves of a directory has the same loss in transformers."""
    with tempfile.TemporaryDirectory() as out:
        task, files = ("clm", ["--train_file", "text.txt", "--block_size", str(spec["length"])]) if is_decoder(spec) else ("cls", ["--train_file", "rows.jsonl", "--max_seq_length", "32"])
        words = [program, "train", task, *files, "--model_name_or_path", folder, "--tokenizer_name", "decoder" if is_decoder(spec) else "encoder", "--do_train", "--max_steps", "1", "--learning_rate", "0",
                 "--save_strategy", "no", "--validation_split_percentage", "0", "--per_device_train_batch_size", "2", "--disable_tqdm", "--output_dir", out + "/o"]
        run = subprocess.run([str(word) for word in words], cwd=FOLDER, capture_output=True, text=True)
        if run.returncode:
            return run.stderr[-400:]
        found = loss(pathlib.Path(out, "o"), spec)
        return "" if math.isclose(found, wanted, rel_tol=1e-6) else f"{found}, not {wanted}"


def main():
    torch.set_num_threads(1)
    program = os.path.abspath(sys.argv[sys.argv.index("--check") + 1]) if "--check" in sys.argv else None
    shutil.rmtree(FOLDER, ignore_errors=True)
    write_tokenizers()
    made = []
    for seed, spec in enumerate(CASES):
        folder = FOLDER / spec["name"]
        write(folder, spec, seed)
        entry = {"name": spec["name"], "task": "clm" if is_decoder(spec) else "cls", "length": spec["length"], "rows": ROWS}
        if spec["refused"]:
            entry["refused"] = spec["refused"]
            for file in folder.iterdir():
                if file.name != "config.json":
                    file.unlink()
        else:
            entry["loss"] = loss(folder, spec)
            entry["back"] = check(program, folder, spec, entry["loss"]) if program else None
            if entry["back"]:
                print(f"{spec['name']}: saved by xtrain: {entry['back']}")
            del entry["back"]
        made.append(entry)
        print(entry)
    (FOLDER / "cases.json").write_text(json.dumps(made, indent=1) + "\n")


main()
