#!/usr/bin/env python3
"""Makes golden cases of configurations drawn at random, in the form of make_golden.py's, for tests/golden.rs:

    python tests/data/make_random_golden.py DIR [--cases N] [--seed S] [--families llama,gemma3_text,...]
    XTRAIN_GOLDEN_DIR=DIR cargo test --release --test xtrain_tests -- --include-ignored golden:: generation::tokens

Sizes, heads, windows, kinds of RoPE, biases, multipliers and heads of each family are drawn; config.json is then written as transformers 4
or 5 spells it, without some of the keys that have their default value, and read again: what the model computes then is the reference.
A case on which torch's own float32 run is not well within the bars of the tests is drawn again: it would tell nothing. Language models also
continue prompts of several lengths greedily, in generation.json.
"""

import argparse
import json
import math
import pathlib
import random
import shutil
import sys

import torch
import transformers as hf
from safetensors.torch import load_file

import make_golden as golden

# What transformers knows and xtrain too; "gelu_fast" and its like differ in rounding only.
ACTIVATIONS = ["gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "quick_gelu", "relu", "silu", "swish", "tanh"]
# Half the bars of tests/golden.rs.
LOGITS, GRADIENTS, LOSS, NORM, WEIGHTS = 4e-6, 2e-6, 4e-6, 8e-6, 5e-5


class Draw(random.Random):
    """Random choices of settings."""

    def perhaps(self, share=0.5):
        return self.random() < share

    def rope(self, kinds=("default", "linear", "llama3", "yarn")):
        """`rope_parameters` of one kind of layer."""
        found = {"rope_type": self.choice(kinds), "rope_theta": self.choice([20.0, 100.0, 10000.0, 500000.0])}
        kind = found["rope_type"]
        if kind == "linear":
            found["factor"] = self.choice([1.5, 2.0, 4.0, 8.0])
        if kind == "llama3":
            low = self.choice([1.0, 1.5])
            found |= {"factor": self.choice([2.0, 8.0, 32.0]), "low_freq_factor": low, "high_freq_factor": low + self.choice([1.0, 3.0]),
                      "original_max_position_embeddings": self.choice([8, 16, 40])}
        if kind == "yarn":
            found |= {"factor": self.choice([1.0, 1.5, 4.0, 16.0]), "original_max_position_embeddings": self.choice([4, 8, 16])}
            found |= self.choice([{}, {}, {"attention_factor": 1.3}, {"mscale": 1.0, "mscale_all_dim": 0.7}, {"mscale": 0.8}])
            found |= self.choice([{}, {}, {"beta_fast": 8.0, "beta_slow": 2.0}, {"beta_fast": 4}, {"truncate": False}])
        if kind in ("llama3", "yarn") and self.perhaps(0.2):
            del found["original_max_position_embeddings"]  # then it is max_position_embeddings
        return found

    def layer_types(self, layers):
        return [self.choice(["full_attention", "sliding_attention"]) for _ in range(layers)]


def decoder(draw):
    """What Llama and its relatives have in common."""
    kv_heads, group = draw.choice([1, 1, 2, 3, 4, 5]), draw.choice([1, 2, 3, 4, 7])
    heads, head_dim = kv_heads * group, draw.choice([2, 4, 6, 8, 10, 16, 24])
    # transformers takes multiples of the heads only, though head_dim says how wide they are.
    hidden = heads * draw.randint(max(1, -(-5 // heads)), max(1, 40 // heads))
    positions, vocab = draw.randint(20, 64), draw.choice([draw.randint(30, 90), 131, 257])
    return dict(
        hidden_size=hidden, num_hidden_layers=draw.randint(1, 4), num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim,
        intermediate_size=draw.randint(3, 48), max_position_embeddings=positions, vocab_size=vocab, rms_norm_eps=draw.choice([1e-5, 1e-6, 1e-3]),
        pad_token_id=draw.choice([0, 0, 3, vocab - 1, None]), bos_token_id=1, eos_token_id=draw.choice([2, [2, 4]]), attention_dropout=0.0,
        tie_word_embeddings=draw.perhaps(), rope_parameters=draw.rope(),
    )


def classes(prefix, sequence="ForSequenceClassification", token="ForTokenClassification", language="ForCausalLM"):
    """Classes by what they are for; language models twice as often as the others."""
    return [prefix + name for name in [language, language, sequence, token] if name]


def llama(draw):
    more = dict(attention_bias=draw.perhaps(), mlp_bias=draw.perhaps(), hidden_act=draw.choice(["silu", *ACTIVATIONS]))
    return classes("Llama"), hf.LlamaConfig, decoder(draw) | more


def mistral(draw):
    return classes("Mistral"), hf.MistralConfig, decoder(draw) | dict(sliding_window=draw.choice([None, 1, 2, 3, 5, 8, 30]), hidden_act=draw.choice(["silu", *ACTIVATIONS]))


def with_windows(draw, config):
    """Qwen's three ways to say which layers have windows."""
    layers = config["num_hidden_layers"]
    windows = dict(use_sliding_window=draw.perhaps(0.7), sliding_window=draw.choice([1, 3, 4, 7]), max_window_layers=draw.randint(0, layers))
    if draw.perhaps(0.3) and windows["use_sliding_window"]:
        windows["layer_types"] = draw.layer_types(layers)
    return config | windows


def qwen2(draw):
    return classes("Qwen2"), hf.Qwen2Config, with_windows(draw, decoder(draw)) | dict(hidden_act=draw.choice(["silu", *ACTIVATIONS]))


def qwen3(draw):
    return classes("Qwen3"), hf.Qwen3Config, with_windows(draw, decoder(draw)) | dict(attention_bias=draw.perhaps())


def smollm3(draw):
    config = decoder(draw) | dict(attention_bias=draw.perhaps(), mlp_bias=draw.perhaps(), use_sliding_window=draw.perhaps(0.3), sliding_window=None)
    layers = config["num_hidden_layers"]
    config |= draw.choice([dict(no_rope_layer_interval=draw.randint(1, 4)), dict(no_rope_layers=[draw.choice([0, 1]) for _ in range(layers)])])
    if config["use_sliding_window"]:
        config["sliding_window"] = draw.choice([2, 4, 7])
        if draw.perhaps():
            config["layer_types"] = draw.layer_types(layers)
    return classes("SmolLM3"), hf.SmolLM3Config, config


def granite(draw):
    more = dict(attention_bias=draw.perhaps(), mlp_bias=draw.perhaps(), embedding_multiplier=draw.choice([1.0, 0.5, 12.0]),
                residual_multiplier=draw.choice([1.0, 0.22]), attention_multiplier=draw.choice([1.0, 0.1]), logits_scaling=draw.choice([1.0, 8.0, 0.7]))
    return classes("Granite", None, None), hf.GraniteConfig, decoder(draw) | more


def gemma(draw):
    more = dict(attention_bias=draw.perhaps(0.3), hidden_act=draw.choice(["gelu_pytorch_tanh", *ACTIVATIONS]))
    return classes("Gemma"), hf.GemmaConfig, decoder(draw) | more


def gemma2(draw):
    config = decoder(draw)
    config |= dict(attention_bias=draw.perhaps(0.3), hidden_activation=draw.choice(["gelu_pytorch_tanh", *ACTIVATIONS]), sliding_window=draw.choice([1, 3, 6, 40]),
                   query_pre_attn_scalar=draw.choice([1, 7, 256]), attn_logit_softcapping=draw.choice([None, 1.5, 50.0]), final_logit_softcapping=draw.choice([None, 0.8, 30.0]))
    if draw.perhaps(0.3):
        config["layer_types"] = draw.layer_types(config["num_hidden_layers"])
    return classes("Gemma2"), hf.Gemma2Config, config


def gemma3_text(draw):
    config = decoder(draw)
    ropes = {"full_attention": draw.rope(), "sliding_attention": draw.rope(["default"] if draw.perhaps(0.7) else ["linear", "yarn"])}
    config |= dict(attention_bias=draw.perhaps(0.3), hidden_activation=draw.choice(["gelu_pytorch_tanh", *ACTIVATIONS]), sliding_window=draw.choice([1, 3, 6, 40]),
                   query_pre_attn_scalar=draw.choice([1, 7, 256]), attn_logit_softcapping=draw.choice([None, None, 1.5]), final_logit_softcapping=draw.choice([None, None, 0.8]),
                   rope_parameters=ropes)
    config |= draw.choice([dict(layer_types=draw.layer_types(config["num_hidden_layers"])), dict(sliding_window_pattern=draw.randint(1, 4))])
    return ["Gemma3ForCausalLM", "Gemma3ForCausalLM", "Gemma3TextForSequenceClassification"], hf.Gemma3TextConfig, config


def phi3(draw):
    config = decoder(draw)
    share = draw.choice([1.0, 1.0, 0.5, 0.75, 0.4])
    if int(config["head_dim"] * share) == 0:
        share = 1.0
    # transformers takes longrope besides, which xtrain does not.
    config["rope_parameters"] = draw.rope(["default"]) | {"partial_rotary_factor": share}
    config |= dict(sliding_window=draw.choice([None, 1, 3, 5, 30]), resid_pdrop=0.0, embd_pdrop=0.0, hidden_act=draw.choice(["silu", *ACTIVATIONS]),
                   original_max_position_embeddings=config["max_position_embeddings"])
    if config["pad_token_id"] is None:
        config["pad_token_id"] = 0
    return classes("Phi3"), hf.Phi3Config, config


def encoder(draw, **more):
    heads = draw.choice([1, 2, 3, 4])
    hidden = heads * draw.choice([2, 4, 5, 8])
    return dict(hidden_size=hidden, num_hidden_layers=draw.randint(1, 4), num_attention_heads=heads, intermediate_size=draw.randint(3, 48),
                max_position_embeddings=draw.randint(20, 40), vocab_size=draw.randint(30, 90), pad_token_id=draw.choice([0, 1, 4])) | more


def modernbert(draw):
    heads = draw.choice([1, 2, 3, 4])
    head_dim = draw.choice([2, 4, 6, 8])
    config = encoder(draw, num_attention_heads=heads, hidden_size=heads * head_dim)
    ropes = {kind: draw.rope(["default", "default", "linear", "yarn", "llama3"]) for kind in ["full_attention", "sliding_attention"]}
    config |= dict(bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2, local_attention=draw.choice([1, 2, 3, 4, 5, 8, 64]), rope_parameters=ropes,
                   norm_eps=draw.choice([1e-5, 1e-3]), hidden_activation=draw.choice(["gelu", *ACTIVATIONS]), classifier_activation=draw.choice(["gelu", *ACTIVATIONS]),
                   classifier_pooling=draw.choice(["cls", "mean"]), embedding_dropout=0.0, mlp_dropout=0.0, attention_dropout=0.0, classifier_dropout=0.0,
                   sparse_prediction=False)
    config |= {key: draw.perhaps() for key in ["norm_bias", "attention_bias", "mlp_bias", "classifier_bias", "decoder_bias", "tie_word_embeddings"]}
    config |= draw.choice([dict(global_attn_every_n_layers=draw.randint(1, 4)), dict(layer_types=draw.layer_types(config["num_hidden_layers"]))])
    return classes("ModernBert", language="ForMaskedLM"), hf.ModernBertConfig, config


BERT_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, classifier_dropout=0.0)


def bert(draw):
    more = dict(hidden_act=draw.choice(["gelu", *ACTIVATIONS]), type_vocab_size=draw.choice([1, 2, 3]), layer_norm_eps=draw.choice([1e-12, 1e-5, 1e-3]))
    return classes("Bert", language="ForMaskedLM"), hf.BertConfig, encoder(draw) | BERT_DROPOUT | more


def roberta(draw):
    more = dict(hidden_act=draw.choice(["gelu", *ACTIVATIONS]), type_vocab_size=draw.choice([1, 2]), layer_norm_eps=draw.choice([1e-12, 1e-5, 1e-3]), bos_token_id=0, eos_token_id=2)
    return classes("Roberta", language="ForMaskedLM"), hf.RobertaConfig, encoder(draw) | BERT_DROPOUT | more


def xlm_roberta(draw):
    _, _, config = roberta(draw)
    return classes("XLMRoberta", language="ForMaskedLM"), hf.XLMRobertaConfig, config


def albert(draw):
    config = encoder(draw) | dict(embedding_size=draw.choice([3, 8, 16]), hidden_act=draw.choice(["gelu_new", *ACTIVATIONS]), inner_group_num=draw.choice([1, 1, 2]),
                                  hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, classifier_dropout_prob=0.0, type_vocab_size=draw.choice([1, 2]),
                                  layer_norm_eps=draw.choice([1e-12, 1e-5]))
    config["num_hidden_groups"] = draw.randint(1, config["num_hidden_layers"])
    return classes("Albert", language="ForMaskedLM"), hf.AlbertConfig, config


def distilbert(draw):
    found = encoder(draw)
    names = dict(hidden_size="dim", num_hidden_layers="n_layers", num_attention_heads="n_heads", intermediate_size="hidden_dim")
    config = {names.get(key, key): value for key, value in found.items()}
    config |= dict(dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0, activation=draw.choice(["gelu", "gelu", "relu"]), sinusoidal_pos_embds=draw.perhaps(0.3))
    return classes("DistilBert", language="ForMaskedLM"), hf.DistilBertConfig, config


def gpt(draw):
    heads = draw.choice([1, 2, 3, 4])
    return dict(n_embd=heads * draw.choice([2, 4, 6, 8]), n_layer=draw.randint(1, 4), n_head=heads, n_positions=draw.randint(20, 40), vocab_size=draw.randint(30, 90),
                n_inner=draw.choice([None, draw.randint(3, 50)]), activation_function=draw.choice(["gelu_new", *ACTIVATIONS]), resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                layer_norm_epsilon=draw.choice([1e-5, 1e-3]), bos_token_id=0, eos_token_id=0, pad_token_id=draw.choice([None, 1]), tie_word_embeddings=draw.perhaps(0.7))


def gpt2(draw):
    more = dict(scale_attn_weights=draw.perhaps(0.7), scale_attn_by_inverse_layer_idx=draw.perhaps())
    return ["GPT2LMHeadModel", "GPT2ForSequenceClassification"], hf.GPT2Config, gpt(draw) | more


def gptj(draw):
    config = gpt(draw)
    config["rotary_dim"] = 2 * draw.randint(1, config["n_embd"] // config["n_head"] // 2)
    return ["GPTJForCausalLM", "GPTJForSequenceClassification"], hf.GPTJConfig, config


def gpt_neox(draw):
    heads, head_dim = draw.choice([1, 2, 3, 4]), draw.choice([4, 6, 8, 12])
    rotated = draw.randint(1, head_dim)
    # Of an odd number one more is rotated, but not with yarn.
    kinds = ["default", "linear", "llama3"] + ["yarn"] * (rotated % 2 == 0)
    rope = draw.rope(kinds) | dict(partial_rotary_factor=rotated / head_dim)
    config = dict(hidden_size=heads * head_dim, num_hidden_layers=draw.randint(1, 4), num_attention_heads=heads, intermediate_size=draw.randint(3, 50),
                  hidden_act=draw.choice(["gelu", *ACTIVATIONS]), max_position_embeddings=draw.randint(20, 64), vocab_size=draw.randint(30, 90), hidden_dropout=0.0,
                  attention_dropout=0.0, classifier_dropout=0.0, layer_norm_eps=draw.choice([1e-5, 1e-3]), bos_token_id=0, eos_token_id=0, pad_token_id=draw.choice([None, 1]),
                  use_parallel_residual=draw.perhaps(0.7), attention_bias=draw.perhaps(0.7), tie_word_embeddings=draw.perhaps(0.3), rope_parameters=rope)
    return classes("GPTNeoX"), hf.GPTNeoXConfig, config


def gpt_neo(draw):
    heads = draw.choice([1, 2, 3, 4])
    kinds = [[[draw.choice(["global", "local"]) for _ in range(draw.randint(1, 2))], draw.randint(1, 2)] for _ in range(draw.randint(1, 2))]
    config = dict(hidden_size=heads * draw.choice([2, 3, 8]), num_layers=sum(len(kind) * repeats for kind, repeats in kinds), num_heads=heads, attention_types=kinds,
                  max_position_embeddings=draw.randint(20, 40), vocab_size=draw.randint(30, 90), window_size=draw.choice([1, 3, 5, 30]),
                  intermediate_size=draw.choice([None, draw.randint(3, 50)]), activation_function=draw.choice(["gelu_new", *ACTIVATIONS]), resid_dropout=0.0, embed_dropout=0.0,
                  attention_dropout=0.0, classifier_dropout=0.0, layer_norm_epsilon=draw.choice([1e-5, 1e-3]), bos_token_id=0, eos_token_id=0, pad_token_id=draw.choice([None, 1]))
    return ["GPTNeoForCausalLM", "GPTNeoForSequenceClassification"], hf.GPTNeoConfig, config


# Settings of some families that the others' configurations may hold, which transformers then overlooks.
OF_SOME = dict(mlp_bias=True, use_sliding_window=False, no_rope_layers=[0] * 4, no_rope_layer_interval=2, query_pre_attn_scalar=3, attn_logit_softcapping=0.5,
               final_logit_softcapping=0.5, embedding_multiplier=3.0, residual_multiplier=0.5, attention_multiplier=0.2, logits_scaling=2.0)

FAMILIES = [llama, mistral, qwen2, qwen3, smollm3, granite, gemma, gemma2, gemma3_text, phi3, modernbert, bert, roberta, albert, distilbert, gpt2, gpt_neo, gptj, gpt_neox, xlm_roberta]


def respell(draw, config):
    """Writes settings of config.json as transformers 4 did, in place."""
    ropes = config.pop("rope_parameters", None)
    if "dtype" in config:
        config["torch_dtype"] = config.pop("dtype")
    if ropes is None:
        return
    nested = "full_attention" in ropes
    full = dict(ropes["full_attention"] if nested else ropes)
    theta, share = full.pop("rope_theta"), full.pop("partial_rotary_factor", None)
    if share is not None:
        config["rotary_pct" if config["model_type"] == "gpt_neox" else "partial_rotary_factor"] = share
    names = {"modernbert": ("global_rope_theta", "local_rope_theta"), "gpt_neox": ("rotary_emb_base", None)}.get(config["model_type"], ("rope_theta", "rope_local_base_freq"))
    config[names[0]] = theta
    if nested:
        config[names[1]] = ropes["sliding_attention"]["rope_theta"]
    kind = full.pop("rope_type")
    # Where layers rotate differently, transformers 5 overlooks the older word.
    word = draw.choice(["type", "rope_type"])
    config["rope_scaling"] = None if kind == "default" else {word: kind} | full
    types, pattern = config.get("layer_types"), config.get("sliding_window_pattern")
    if types and pattern and types == [("full_attention" if (i + 1) % pattern == 0 else "sliding_attention") for i in range(len(types))]:
        del config["layer_types"]


def saved_and_read(draw, folder, model, cls, config_class):
    """The model again, from a config.json that says the same in another way, or nearly so."""
    model.save_pretrained(folder)
    path = folder / "config.json"
    whole = json.loads(path.read_text())
    usual = config_class().to_dict()
    for attempt in range(4):
        config = json.loads(json.dumps(whole))
        if attempt < 3:
            if draw.perhaps(0.6):
                respell(draw, config)
            foreign = [key for key in OF_SOME if key not in usual]
            config |= {key: OF_SOME[key] for key in draw.sample(foreign, draw.choice([0, 0, min(3, len(foreign))]))}
            share = draw.choice([0.0, 0.5, 1.0])
            for key in list(config):
                if key in usual and usual[key] == config[key] and key not in ("model_type", "architectures") and draw.perhaps(share):
                    del config[key]
        path.write_text(json.dumps(config, indent=2) + "\n")
        try:
            return cls.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
        except Exception as error:  # transformers cannot read every way of saying it
            print(f"{folder.name}: {type(error).__name__} of transformers, spelled otherwise: {str(error)[:150]}")
    raise SystemExit(f"{folder}: transformers reads no spelling")


def f32_errors(folder, model):
    """How far torch's own float32 run is from its float64 run; None if that is too far for the case to tell anything."""
    stored = set(load_file(folder / "model.safetensors"))
    all_inputs = load_file(folder / "inputs.safetensors")
    reference = load_file(folder / "reference.safetensors")
    parameters = golden.unique_parameters(model, stored)
    worst = 0.0
    for m in range(golden.MICRO_BATCHES):
        batch = golden.micro_batch(all_inputs, m)
        with torch.no_grad():
            logits = model(**batch).logits
        seen = batch["attention_mask"].bool() if logits.dim() == 3 else slice(None)
        worst = max(worst, float((logits - reference[f"logits.{m}"])[seen].abs().max()))
    _, _, grads = golden.gradients(model, parameters, golden.micro_batch(all_inputs, 0))
    expected = load_file(folder / "grads.safetensors")
    of_grads = max(float((grads[name] - expected[name]).abs().max()) for name in parameters)
    steps, of_weights = golden.f32_run(folder, model)
    recorded = json.loads((folder / "trajectory.json").read_text())["steps"]
    of_loss = max(abs(loss - step["loss_f64"]) for (_, loss, _), step in zip(steps, recorded))
    of_norm = max(abs(norm - step["grad_norm_f64"]) / max(1.0, step["grad_norm_f64"]) for (_, _, norm), step in zip(steps, recorded))
    of_all = max(of_weights.values())
    bars = [(worst, LOGITS), (of_grads, GRADIENTS), (of_loss, LOSS), (of_norm, NORM), (of_all, WEIGHTS)]
    if not all(error <= bar for error, bar in bars):  # also if not finite
        print(f"{folder.name}: drawn again, torch's float32 run is off by {[error for error, _ in bars]}")
        return None
    return of_weights


def continuations(draw, model, vocab, positions):
    """Prompts with the eight tokens, or those that the positions leave, that greedy generation continues them with. Where two tokens are
    nearly as likely, rounding would decide: such a prompt is left out."""
    found = []
    for length in [1, 5, 11, draw.randint(12, positions - 1), positions - 1]:
        tokens = [draw.randrange(vocab) for _ in range(length)]
        margin = math.inf
        for _ in range(min(8, positions - length)):
            with torch.no_grad():
                best = model(torch.tensor([tokens])).logits[0, -1].topk(2)
            margin = min(margin, float(best.values[0] - best.values[1]))
            tokens.append(int(best.indices[0]))
        if margin > 1e-4:
            found.append({"prompt": tokens[:length], "new": tokens[length:]})
    return found


def make(folder, family, seed):
    draw = Draw(f"{family.__name__}-{seed}")
    names, config_class, settings = family(draw)
    name = draw.choice(names)
    if name.endswith("SequenceClassification"):
        settings |= dict(num_labels=draw.choice([2, 3, 5]))
        if settings.get("pad_token_id") is None:
            settings["pad_token_id"] = 0
    if name.endswith("TokenClassification"):
        settings |= dict(num_labels=draw.choice([2, 5]), classifier_dropout=0.0)
    cls = getattr(hf, name)
    model = golden.new_model(cls, config_class(**settings), seed)
    model = saved_and_read(draw, folder, model, cls, config_class)
    tokens = draw.randint(6, 17)
    windows = [settings.get(key) for key in ["sliding_window", "window_size", "local_attention"]]
    # Where a padding token's window holds no attended key, transformers computes NaN.
    has_padding = all(window is None or window > 6 for window in windows) or draw.perhaps(0.2)
    golden.write_case(folder, model, tokens, seed, has_padding, draw.choice(["right", "left", "both"]))
    model = cls.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    errors = f32_errors(folder, model)
    if errors is None:
        return False
    meta = json.loads((folder / "meta.json").read_text())
    meta["torch_f32_error"] = {"final_weights": {name: {"max_abs": error} for name, error in errors.items()}}
    golden.write_json(folder / "meta.json", meta)
    if name.endswith(("ForCausalLM", "LMHeadModel")):
        model = cls.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval().double()
        path = folder.parent / "generation.json"
        found = json.loads(path.read_text()) if path.exists() else {}
        continued = continuations(draw, model, model.config.vocab_size, model.config.max_position_embeddings)
        if continued:
            found[folder.name] = continued
        golden.write_json(path, found)
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--cases", type=int, default=2, help="of each family")
    parser.add_argument("--seed", type=int, default=0, help="of the first case; each further one has the next")
    parser.add_argument("--families", default="", help="model types, all if not given")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    hf.utils.logging.set_verbosity_error()
    hf.utils.logging.disable_progress_bar()
    chosen = [family for family in FAMILIES if not args.families or family.__name__ in args.families.split(",")]
    for family in chosen:
        for number in range(args.cases):
            # Seeds of cases that are drawn again are not those of others.
            for seed in range(args.seed + number, sys.maxsize, 1_000_000):
                folder = args.directory / f"{family.__name__}-{seed}"
                if make(folder, family, seed):
                    break
                shutil.rmtree(folder)


if __name__ == "__main__":
    main()
