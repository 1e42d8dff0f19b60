#!/usr/bin/env python3
"""Makes tests/data/golden: tiny models with random weights, and what transformers and torch compute with them.

    pip install torch==2.15.0 transformers==5.23.0 tokenizers==0.23.3 safetensors numpy seqeval torch-optimi==0.3.3
    python tests/data/make_text.py && python tests/data/make_golden.py [CASE ...]

The files are those that README.md lists, in float64 where nothing else is said. The optimizers and the rows of the data pipelines are
computed here from their definitions, not by xtrain.
"""

import csv
import json
import math
import pathlib
import random
import re
import sys

import numpy as np
import optimi
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from seqeval.metrics import accuracy_score, classification_report, f1_score, precision_score, recall_score
from tokenizers import Tokenizer
from transformers import (
    MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, get_scheduler,
)
from transformers.trainer_pt_utils import LabelSmoother

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = HERE / "golden"
MICRO_BATCHES, ROWS, STEPS = 4, 3, 20
HYPER = {"peak_lr": 0.003, "warmup_steps": 4, "total_steps": STEPS, "weight_decay": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8,
         "max_grad_norm": 1.0}

GPT2 = dict(n_embd=16, n_layer=2, n_head=2, n_positions=16, vocab_size=67, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0)
NEO = dict(hidden_size=16, num_layers=3, num_heads=2, max_position_embeddings=16, vocab_size=61, window_size=5, attention_types=[[["global", "local"], 1], [["global"], 1]],
           resid_dropout=0, embed_dropout=0, attention_dropout=0, classifier_dropout=0, bos_token_id=0, eos_token_id=0)
GPTJ = dict(n_embd=24, n_layer=2, n_head=2, n_positions=16, rotary_dim=8, vocab_size=59, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0,
            tie_word_embeddings=False)
NEOX = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=40, max_position_embeddings=16, vocab_size=61, classifier_dropout=0,
            rope_parameters=dict(rope_type="default", rope_theta=100.0, partial_rotary_factor=0.34))
BERT = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=40, max_position_embeddings=20, vocab_size=71,
            hidden_dropout_prob=0, attention_probs_dropout_prob=0, classifier_dropout=0)
ROBERTA = BERT | dict(max_position_embeddings=22, type_vocab_size=1, pad_token_id=1, bos_token_id=0, eos_token_id=2, layer_norm_eps=1e-5)
ALBERT = dict(hidden_size=16, embedding_size=8, num_hidden_layers=3, num_attention_heads=2, intermediate_size=40, max_position_embeddings=20, vocab_size=73,
              hidden_dropout_prob=0, attention_probs_dropout_prob=0, classifier_dropout_prob=0, hidden_act="gelu_new")
DISTIL = dict(dim=16, n_layers=2, n_heads=2, hidden_dim=40, max_position_embeddings=20, vocab_size=71, dropout=0, attention_dropout=0, seq_classif_dropout=0)
LABELS = {"num_labels": 3}
LLAMA = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=6, intermediate_size=24, max_position_embeddings=32, vocab_size=53,
             pad_token_id=0, bos_token_id=1, eos_token_id=2)
ROPE_LLAMA3 = dict(rope_type="llama3", rope_theta=100.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)
ROPE_YARN = dict(rope_type="yarn", rope_theta=100.0, factor=4.0, original_max_position_embeddings=8)
SLIDING = ["sliding_attention", "full_attention"]
MODERN = dict(hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=20, max_position_embeddings=32, vocab_size=59, local_attention=6, pad_token_id=0,
              bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)

# Name, class, configuration, tokens of a row.
CASES = [
    ("gpt2", hf.GPT2LMHeadModel, hf.GPT2Config(**GPT2), 12),
    ("gpt2-scaled", hf.GPT2LMHeadModel, hf.GPT2Config(**GPT2 | dict(scale_attn_by_inverse_layer_idx=True, activation_function="gelu", n_inner=40, n_layer=3)), 12),
    ("gpt2-unscaled-untied", hf.GPT2LMHeadModel, hf.GPT2Config(**GPT2 | dict(scale_attn_weights=False, tie_word_embeddings=False, activation_function="silu")), 10),
    ("gpt2-cls", hf.GPT2ForSequenceClassification, hf.GPT2Config(**GPT2 | LABELS | dict(pad_token_id=1)), 12),
    ("gpt_neo", hf.GPTNeoForCausalLM, hf.GPTNeoConfig(**NEO), 14),
    ("gpt_neo-cls", hf.GPTNeoForSequenceClassification, hf.GPTNeoConfig(**NEO | LABELS | dict(pad_token_id=1, activation_function="quick_gelu")), 12),
    ("gptj", hf.GPTJForCausalLM, hf.GPTJConfig(**GPTJ), 12),
    ("gptj-cls", hf.GPTJForSequenceClassification, hf.GPTJConfig(**GPTJ | LABELS | dict(pad_token_id=1, rotary_dim=12)), 12),
    ("bert-mlm", hf.BertForMaskedLM, hf.BertConfig(**BERT), 14),
    ("bert-mlm-relu", hf.BertForMaskedLM, hf.BertConfig(**BERT | dict(hidden_act="relu", pad_token_id=3)), 12),
    ("bert-cls", hf.BertForSequenceClassification, hf.BertConfig(**BERT | LABELS), 12),
    ("bert-token-cls", hf.BertForTokenClassification, hf.BertConfig(**BERT | dict(num_labels=5)), 12),
    ("roberta-mlm", hf.RobertaForMaskedLM, hf.RobertaConfig(**ROBERTA), 12),
    ("roberta-cls", hf.RobertaForSequenceClassification, hf.RobertaConfig(**ROBERTA | LABELS), 12),
    ("albert-mlm", hf.AlbertForMaskedLM, hf.AlbertConfig(**ALBERT), 12),
    ("albert-cls", hf.AlbertForSequenceClassification, hf.AlbertConfig(**ALBERT | LABELS | dict(hidden_act="gelu")), 12),
    ("distilbert-mlm", hf.DistilBertForMaskedLM, hf.DistilBertConfig(**DISTIL), 12),
    ("distilbert-cls", hf.DistilBertForSequenceClassification, hf.DistilBertConfig(**DISTIL | LABELS), 12),
    ("llama", hf.LlamaForCausalLM, hf.LlamaConfig(**LLAMA), 12),
    ("llama-llama3-biases-tied", hf.LlamaForCausalLM, hf.LlamaConfig(**LLAMA | dict(num_key_value_heads=1, attention_bias=True, mlp_bias=True, tie_word_embeddings=True, rope_parameters=ROPE_LLAMA3)), 14),
    ("llama-yarn", hf.LlamaForCausalLM, hf.LlamaConfig(**LLAMA | dict(num_key_value_heads=4, head_dim=8, hidden_act="gelu", rope_parameters=ROPE_YARN)), 14),
    ("llama-cls", hf.LlamaForSequenceClassification, hf.LlamaConfig(**LLAMA | LABELS), 12),
    ("mistral-token-cls", hf.MistralForTokenClassification, hf.MistralConfig(**LLAMA | LABELS | dict(sliding_window=4, classifier_dropout=0.0)), 12),
    ("qwen2", hf.Qwen2ForCausalLM, hf.Qwen2Config(**LLAMA | dict(use_sliding_window=True, sliding_window=4, max_window_layers=1)), 12),
    # With settings of other families, which transformers overlooks.
    ("qwen3", hf.Qwen3ForCausalLM, hf.Qwen3Config(**LLAMA | dict(tie_word_embeddings=True, mlp_bias=True, no_rope_layers=[0, 0], final_logit_softcapping=0.5, logits_scaling=2.0, embedding_multiplier=3.0)), 12),
    ("smollm3", hf.SmolLM3ForCausalLM, hf.SmolLM3Config(**LLAMA | dict(no_rope_layer_interval=2)), 12),
    ("granite", hf.GraniteForCausalLM, hf.GraniteConfig(**LLAMA | dict(embedding_multiplier=3.0, residual_multiplier=0.4, attention_multiplier=0.3, logits_scaling=2.0)), 12),
    ("gemma", hf.GemmaForCausalLM, hf.GemmaConfig(**LLAMA | dict(num_key_value_heads=1)), 12),
    ("gemma2", hf.Gemma2ForCausalLM, hf.Gemma2Config(**LLAMA | dict(sliding_window=4, query_pre_attn_scalar=10, attn_logit_softcapping=2.0, final_logit_softcapping=3.0)), 12),
    ("gemma3", hf.Gemma3ForCausalLM, hf.Gemma3TextConfig(**LLAMA | dict(sliding_window=4, query_pre_attn_scalar=10, layer_types=SLIDING)), 12),
    ("phi3", hf.Phi3ForCausalLM, hf.Phi3Config(**LLAMA | dict(head_dim=8, sliding_window=5, rope_parameters=dict(rope_type="default", rope_theta=100.0, partial_rotary_factor=0.5))), 12),
    ("modernbert-mlm", hf.ModernBertForMaskedLM, hf.ModernBertConfig(**MODERN), 14),
    ("modernbert-cls", hf.ModernBertForSequenceClassification, hf.ModernBertConfig(**MODERN | LABELS | dict(classifier_pooling="mean", norm_bias=True, mlp_bias=True, attention_bias=True, classifier_bias=True, decoder_bias=False)), 12),
    ("modernbert-token-cls", hf.ModernBertForTokenClassification, hf.ModernBertConfig(**MODERN | dict(num_labels=5)), 12),
    ("gpt_neox", hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig(**NEOX), 12),
    ("gpt_neox-sequential", hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig(**NEOX | dict(use_parallel_residual=False, attention_bias=False, tie_word_embeddings=True, hidden_act="gelu_new",
                                                      rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=100.0, partial_rotary_factor=0.5))), 12),
    ("gpt_neox-token-cls", hf.GPTNeoXForTokenClassification, hf.GPTNeoXConfig(**NEOX | LABELS | dict(pad_token_id=1)), 12),
    ("xlm_roberta-mlm", hf.XLMRobertaForMaskedLM, hf.XLMRobertaConfig(**ROBERTA), 12),
    ("xlm_roberta-token-cls", hf.XLMRobertaForTokenClassification, hf.XLMRobertaConfig(**ROBERTA | LABELS), 12),
]
ENCODERS = {"bert", "roberta", "xlm-roberta", "albert", "distilbert", "modernbert"}


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n")


# Models.


def new_model(cls, config, seed):
    """Random weights, biases and norms included, so that a dropped or swapped one shows."""
    torch.manual_seed(seed)
    config._attn_implementation = "eager"
    config.initializer_range = 0.08
    config.dtype = torch.float32
    model = cls(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                is_scale = name.endswith("weight") and "gemma" not in config.model_type  # Gemma adds one itself
                parameter.copy_(torch.randn_like(parameter) * 0.1 + (1.0 if is_scale else 0.0))
    return model


def inputs(model, tokens, seed, has_padding=True, sides="right"):
    """int64 [micro-batches, rows, tokens]. The first micro-batch has padded rows, the second a hole in a mask too; in the third an
    encoder sees a pad token that is attended to. `sides`: rows are padded on the left, the right, or some on either and one on both."""
    rng = np.random.default_rng(seed)
    config, name = model.config, type(model).__name__
    is_decoder = config.model_type not in ENCODERS
    pad = config.pad_token_id
    shape = (MICRO_BATCHES, ROWS, tokens)
    ids = rng.integers(5, config.vocab_size, shape)
    mask = np.ones(shape, np.int64)
    if has_padding:
        for micro, row, padded in [(0, 1, 2), (0, 2, 3), (1, 2, 3)]:
            is_left = sides == "left" or sides == "both" and row == 2
            at = slice(0, padded) if is_left else slice(tokens - padded, tokens)
            mask[micro, row, at] = 0
            if pad is not None:
                ids[micro, row, at] = pad
        if sides == "both":
            mask[1, 2, tokens - 1] = 0
        mask[1, 0, tokens // 3] = 0
    if not is_decoder:
        ids[2, 0, tokens // 3 + 1] = pad
    if "SequenceClassification" in name:
        labels = rng.integers(0, config.num_labels, shape[:2])
    elif "TokenClassification" in name:
        labels = np.where((mask == 1) & (rng.random(shape) < 0.8), rng.integers(0, config.num_labels, shape), -100)
    elif is_decoder:
        labels = np.where((mask == 1) & (rng.random(shape) < 0.9), ids, -100)
        # Padding on the left would predict them from a row that sees nothing, whose scores torch gives a gradient and xtrain does not.
        first = np.maximum.accumulate(mask, -1) == 0
        labels[..., 1:][first[..., :-1]] = -100
    else:
        chosen = rng.random(shape) < 0.3
        chosen[:, :, 1] = True
        labels = np.where((mask == 1) & chosen, rng.integers(5, config.vocab_size, shape), -100)
    out = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    if getattr(config, "type_vocab_size", 1) > 1:
        out["token_type_ids"] = np.broadcast_to((np.arange(tokens) >= tokens // 2).astype(np.int64), shape)
    return {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in out.items()}


def micro_batch(all_inputs, m):
    return {name: value[m] for name, value in all_inputs.items()}


def unique_parameters(model, stored):
    """Parameters by the names under which a checkpoint holds them."""
    by_identity = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if "embed_out.weight" in stored and name == "lm_head.weight":
            name = "embed_out.weight"  # what transformers calls GPT-NeoX's head in files
        if name in stored or id(parameter) not in by_identity:
            by_identity[id(parameter)] = (name, parameter)
    named = dict(by_identity.values())
    assert set(named) == set(stored), set(named) ^ set(stored)
    return named


def gradients(model, parameters, batch):
    model.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    grads = {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in parameters.items()}
    norm = math.sqrt(sum(float((g.double() ** 2).sum()) for g in grads.values()))
    return float(loss.detach()), norm, grads


def learning_rate(step, peak):
    warmup, total = HYPER["warmup_steps"], HYPER["total_steps"]
    return peak * step / warmup if step < warmup else peak * (total - step) / (total - warmup)


def adamw(state, name, weight, grad, lr, decay, step):
    m, v = state.setdefault(name, (torch.zeros_like(weight), torch.zeros_like(weight)))
    b1, b2 = HYPER["beta1"], HYPER["beta2"]
    weight.mul_(1 - lr * decay)
    m.mul_(b1).add_(grad, alpha=1 - b1)
    v.mul_(b2).addcmul_(grad, grad, value=1 - b2)
    weight.sub_(lr / (1 - b1**step) * m / (v.sqrt() / math.sqrt(1 - b2**step) + HYPER["eps"]))


def sgd(_state, _name, weight, grad, lr, decay, _step):
    """torch's SGD without momentum: decay is part of the gradient."""
    weight.sub_(lr * (grad + decay * weight))


def lion(state, name, weight, grad, lr, decay, _step):
    """Chen et al. 2023, algorithm 2, with beta2 0.99."""
    m = state.setdefault(name, torch.zeros_like(weight))
    b1, b2 = HYPER["beta1"], 0.99
    direction = torch.sign(b1 * m + (1 - b1) * grad)
    weight.mul_(1 - lr * decay).sub_(lr * direction)
    m.mul_(b2).add_(grad, alpha=1 - b2)


def lamb(state, name, weight, grad, lr, decay, step):
    """You et al. 2020, algorithm 2, with bias correction and eps 1e-6."""
    m, v = state.setdefault(name, (torch.zeros_like(weight), torch.zeros_like(weight)))
    b1, b2 = HYPER["beta1"], HYPER["beta2"]
    m.mul_(b1).add_(grad, alpha=1 - b1)
    v.mul_(b2).addcmul_(grad, grad, value=1 - b2)
    direction = m / (1 - b1**step) / ((v / (1 - b2**step)).sqrt() + 1e-6) + decay * weight
    trust = weight.norm() / direction.norm() if weight.norm() > 0 and direction.norm() > 0 else 1.0
    weight.sub_(lr * trust * direction)


def by(make):
    """The update of an optimizer of torch or transformers, which `make` builds for the parameters that it is given."""
    def update(state, name, weight, grad, lr, decay, _step):
        if name not in state:
            state[name] = make(name, weight)
        weight.grad = grad
        for group in state[name].param_groups:
            group["lr"], group["weight_decay"] = lr, decay
        with torch.enable_grad():
            state[name].step()
    return update


def muon(name, weight):
    """torch's Muon for the matrices of layers, which is bfloat16 inside, AdamW for the rest."""
    if is_hidden_matrix(name, weight):
        return torch.optim.Muon([weight], adjust_lr_fn="match_rms_adamw")
    return torch.optim.AdamW([weight], betas=(HYPER["beta1"], HYPER["beta2"]), eps=HYPER["eps"])


def stable_adamw(**arguments):
    """What transformers builds for this name. Its second moment's default is not the flags'."""
    betas = (HYPER["beta1"], HYPER["beta2"])
    return by(lambda _, w: optimi.StableAdamW([w], lr=HYPER["peak_lr"], betas=betas, eps=HYPER["eps"], foreach=False, triton=False, **arguments))


def is_hidden_matrix(name, weight):
    return weight.dim() == 2 and ".h." in name


# Name, update, `optim_args`, what the peak of the rate is divided by.
OPTIMIZERS = [
    ("sgd", sgd, {}, 0.01),
    ("sgd", by(lambda _, w: torch.optim.SGD([w], momentum=0.9, nesterov=True)), {"momentum": 0.9, "nesterov": True}, 0.1),
    ("sgd", by(lambda _, w: torch.optim.SGD([w], momentum=0.8, dampening=0.3)), {"momentum": 0.8, "dampening": 0.3}, 0.1),
    ("lion", lion, {}, 10),
    ("adagrad", by(lambda _, w: torch.optim.Adagrad([w])), {}, 1),
    ("adagrad", by(lambda _, w: torch.optim.Adagrad([w], lr_decay=0.1, eps=1e-6)), {"lr_decay": 0.1, "eps": 1e-6}, 1),
    ("rmsprop", by(lambda _, w: torch.optim.RMSprop([w])), {}, 3),
    ("rmsprop", by(lambda _, w: torch.optim.RMSprop([w], alpha=0.9, momentum=0.5, centered=True, eps=1e-6)),
     {"alpha": 0.9, "momentum": 0.5, "centered": True, "eps": 1e-6}, 3),
    ("adafactor", by(lambda _, w: hf.Adafactor([w], lr=0.1, scale_parameter=False, relative_step=False)), {}, 1),
    ("lamb", lamb, {}, 1),
    ("muon", by(muon), {}, 1),
    ("stable_adamw", stable_adamw(), {}, 1),
    ("stable_adamw", stable_adamw(decouple_lr=True, max_lr=0.003), {"decouple_lr": True, "max_lr": 0.003}, 1),
]


def train(model, parameters, all_inputs, update, peak):
    """Twenty steps; the loss, the norm and the rate of each."""
    state, steps = {}, []
    for step in range(STEPS):
        loss, norm, grads = gradients(model, parameters, micro_batch(all_inputs, step % MICRO_BATCHES))
        scale, lr = min(1.0, HYPER["max_grad_norm"] / (norm + 1e-6)), learning_rate(step, peak)
        with torch.no_grad():
            for name, parameter in parameters.items():
                decay = HYPER["weight_decay"] if parameter.dim() > 1 else 0.0
                update(state, name, parameter, grads[name] * scale, lr, decay, step + 1)
        steps.append((lr, loss, norm))
    return steps


def as_f32(tensors):
    return {name: value.detach().float().contiguous() for name, value in tensors.items()}


def make_case(name, cls, config, tokens, seed):
    folder = GOLDEN / name
    model = new_model(cls, config, seed)
    model.save_pretrained(folder)
    write_case(folder, model, tokens, seed)
    record_f32_errors(folder, cls)


def write_case(folder, model, tokens, seed, has_padding=True, sides="right"):
    """What a saved model computes: everything in the folder but config.json and model.safetensors."""
    cls = type(model)
    (folder / "generation_config.json").unlink(missing_ok=True)
    stored = set(load_file(folder / "model.safetensors"))
    all_inputs = inputs(model, tokens, seed, has_padding, sides)
    save_file(all_inputs, folder / "inputs.safetensors")
    model = model.double()
    parameters = unique_parameters(model, stored)
    assert all(p.dtype == torch.float64 for p in parameters.values())

    reference, losses = {}, []
    for m in range(MICRO_BATCHES):
        batch = micro_batch(all_inputs, m)
        with torch.no_grad():
            out = model(**batch, output_hidden_states=True)
        reference[f"logits.{m}"] = out.logits
        losses.append(float(out.loss))
        if m == 0:
            reference |= {f"hidden.{i}": hidden for i, hidden in enumerate(out.hidden_states)}
    save_file(as_f32(reference), folder / "reference.safetensors")
    all_grads = [gradients(model, parameters, micro_batch(all_inputs, m)) for m in range(MICRO_BATCHES)]
    save_file(as_f32(all_grads[0][2]), folder / "grads.safetensors")
    steps = train(model, parameters, all_inputs, adamw, HYPER["peak_lr"])
    save_file(as_f32(parameters), folder / "final_weights.safetensors")
    write_json(folder / "trajectory.json", {
        "hyper": HYPER | {"optimizer": "AdamW", "schedule": "linear"},
        "steps": [{"step": i, "lr": lr, "loss_f64": loss, "grad_norm_f64": norm} for i, (lr, loss, norm) in enumerate(steps)],
    })
    # Softmax ignores a key's bias: its gradient is rounding alone.
    zero = [name for name in parameters if all(float(grads[name].abs().max()) < 1e-12 for _, _, grads in all_grads)]
    noisy = {}
    for name, parameter in parameters.items():
        largest = torch.stack([grads[name].abs() for _, _, grads in all_grads]).amax(0)
        of_rounding = largest < 1e-7 * largest.max()  # newer models' softmax is in float32 here too
        if parameter.dim() == 1 and of_rounding.any() and name not in zero:
            noisy[name] = of_rounding.nonzero().flatten().tolist()
    write_json(folder / "meta.json", {
        "case": folder.name, "model_class": cls.__name__, "seed": seed, "versions": versions(), "batch": ROWS, "seq": tokens,
        "micro_batches": MICRO_BATCHES, "parameters": sum(p.numel() for p in parameters.values()), "loss": {"f64": losses[0]},
        "micro_batch_loss_f64": losses, "zero_gradient_params": zero,
    } | ({"zero_gradient_elements": noisy} if noisy else {}))
    print(f"{folder.name}: loss {losses[0]:.4f} -> {steps[-1][1]:.4f}, zero gradients {zero}")


def f32_run(folder, model):
    """A float32 model's twenty steps, and how far each final weight is from those of the case at most, where its gradient is not rounding
    alone: Adam divides by the gradient's size, which makes much of rounding where that is small."""
    parameters = unique_parameters(model, set(load_file(folder / "model.safetensors")))
    steps = train(model, parameters, load_file(folder / "inputs.safetensors"), adamw, HYPER["peak_lr"])
    final, meta = load_file(folder / "final_weights.safetensors"), json.loads((folder / "meta.json").read_text())
    errors = {}
    for name, parameter in parameters.items():
        if name in meta["zero_gradient_params"]:
            continue
        difference = (parameter - final[name]).detach().abs()
        difference[meta.get("zero_gradient_elements", {}).get(name, [])] = 0
        errors[name] = float(difference.max())
    return steps, errors


def record_f32_errors(folder, cls):
    """Writes into meta.json which final weights torch's own float32 run misses by more than half of tests/golden.rs's bar."""
    model = cls.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    errors = {name: {"max_abs": error} for name, error in f32_run(folder, model)[1].items() if error > 5e-6}
    meta = json.loads((folder / "meta.json").read_text())
    meta.pop("torch_f32_error", None)
    write_json(folder / "meta.json", meta | ({"torch_f32_error": {"final_weights": errors}} if errors else {}))


def versions():
    return {"torch": torch.__version__, "transformers": hf.__version__, "numpy": np.__version__}


def loaded(case):
    """The model of a case with its weights in float64, and its parameters by name."""
    _, cls, config, _ = next(entry for entry in CASES if entry[0] == case)
    model = cls(config).eval().double()
    stored = load_file(GOLDEN / case / "model.safetensors")
    model.load_state_dict({key: value.double() for key, value in stored.items()}, strict=False)
    model.tie_weights()
    return model, unique_parameters(model, set(stored))


def make_optimizers(chosen):
    for index, (name, update, args, slower) in enumerate(OPTIMIZERS):
        if chosen and name not in chosen:
            continue
        # A third of GPT-2's fused bias has no gradient but noise, which is part of the norm that Adafactor clips by.
        case = "llama" if name == "adafactor" else "gpt2"
        folder = GOLDEN / case
        peak = HYPER["peak_lr"] / slower
        names = [known for known, *_ in OPTIMIZERS[:index]]
        model, parameters = loaded(case)
        steps = train(model, parameters, load_file(folder / "inputs.safetensors"), update, peak)
        matrices = [key for key, value in parameters.items() if is_hidden_matrix(key, value)]
        number = f"-{names.count(name) + 1}" if name in names else ""
        out = GOLDEN / "newer/optimizers" / f"{case}-{name}{number}"
        write_json(out / "trajectory.json", {
            "case": case, "optimizer": name, "optim_args": args, "muon": matrices if name == "muon" else None, "hyper": HYPER | {"peak_lr": peak},
            "steps": [{"step": i, "lr": [lr], "loss": loss, "grad_norm": norm} for i, (lr, loss, norm) in enumerate(steps)],
        })
        save_file(as_f32(parameters), out / "final_weights.safetensors")


# Case, flag, its regular expressions: what a user would write with a loop over `state_dict(keep_vars=True)`, where a tied tensor has two names.
FROZEN = [
    ("gpt2", "freeze", ["lm_head", r"h\.0\.attn"]),
    ("llama", "train_only", [r"layers\.1\..*(q|down)_proj", "norm"]),
    ("bert-mlm", "freeze", [r"encoder\.layer\.0\.", "bias$"]),
    ("bert-cls", "train_only", ["pooler", "classifier"]),
]


def make_frozen(chosen):
    """AdamW's twenty steps with `requires_grad` of some tensors off: they are neither moved nor decayed, and no part of the norm."""
    for case, flag, patterns in FROZEN:
        if chosen and "frozen" not in chosen:
            continue
        model, parameters = loaded(case)
        for name, tensor in model.state_dict(keep_vars=True).items():
            if isinstance(tensor, torch.nn.Parameter) and (any(re.search(pattern, name) for pattern in patterns)):
                tensor.requires_grad_(False)
        for parameter in parameters.values():
            parameter.requires_grad_(parameter.requires_grad != (flag == "train_only"))
        trained = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
        start = {name: parameter.detach().clone() for name, parameter in parameters.items()}
        steps = train(model, trained, load_file(GOLDEN / case / "inputs.safetensors"), adamw, HYPER["peak_lr"])
        assert all(torch.equal(start[name], parameter) != (name in trained) for name, parameter in parameters.items())
        out = GOLDEN / "newer/frozen" / f"{case}-{flag}"
        write_json(out / "trajectory.json", {
            "case": case, "flag": flag, "patterns": patterns, "trained": list(trained), "hyper": HYPER,
            "steps": [{"step": i, "lr": lr, "loss_f64": loss, "grad_norm_f64": norm} for i, (lr, loss, norm) in enumerate(steps)],
        })
        save_file(as_f32(trained), out / "final_weights.safetensors")


def make_label_smoothing(names):
    """Loss and gradient norm of micro-batch 0 with transformers' LabelSmoother; its causal shift is the Trainer's."""
    found = {}
    for case in names:
        model, parameters = loaded(case)
        batch = micro_batch(load_file(GOLDEN / case / "inputs.safetensors"), 0)
        labels, causal = batch.pop("labels"), type(model).__name__.endswith(("LMHeadModel", "ForCausalLM"))
        loss = LabelSmoother(epsilon=0.1)(model(**batch), labels, shift_labels=causal)
        loss.backward()
        norm = math.sqrt(sum(float((p.grad**2).sum()) for p in parameters.values() if p.grad is not None))
        found[case] = {"epsilon": 0.1, "loss": float(loss.detach()), "grad_norm": norm}
    write_json(GOLDEN / "newer/label_smoothing.json", found)


def make_schedules():
    cases = []
    for kind, warmup, kwargs in [
        ("linear", 6, {}), ("linear", 0, {}), ("constant", 5, {}), ("constant_with_warmup", 7, {}),
        ("cosine", 5, {}), ("cosine", 0, {"num_cycles": 1.25}),
        ("cosine_with_restarts", 5, {}), ("cosine_with_restarts", 4, {"num_cycles": 3}),
        ("polynomial", 5, {}), ("polynomial", 0, {"lr_end": 1e-4, "power": 2.5}),
        ("inverse_sqrt", 5, {}), ("inverse_sqrt", 0, {}), ("inverse_sqrt", 4, {"timescale": 9}),
        ("cosine_with_min_lr", 5, {"min_lr": 3e-4}), ("cosine_with_min_lr", 0, {"min_lr_rate": 0.25, "num_cycles": 1.5}),
        ("cosine_warmup_with_min_lr", 5, {"min_lr": 3e-4}), ("cosine_warmup_with_min_lr", 1, {"min_lr_rate": 0.1, "warmup_lr_rate": 0.2}),
        ("cosine_warmup_with_min_lr", 6, {"min_lr_rate": 0.1, "warmup_lr_rate": 0.2, "num_cycles": 0.75}),
        ("warmup_stable_decay", 5, {"num_decay_steps": 8}), ("warmup_stable_decay", 8, {"num_decay_steps": 27}),
        ("warmup_stable_decay", 5, {"num_decay_steps": 10, "num_stable_steps": 9, "warmup_type": "cosine", "decay_type": "1-sqrt", "min_lr_ratio": 0.1}),
        ("warmup_stable_decay", 6, {"num_decay_steps": 9, "warmup_type": "1-sqrt", "decay_type": "linear", "min_lr_ratio": 0.2}),
        ("warmup_stable_decay", 0, {"num_decay_steps": 12, "decay_type": "cosine", "num_cycles": 1.5}),
    ]:
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.003)
        schedule = get_scheduler(kind, optimizer, num_warmup_steps=warmup, num_training_steps=30, scheduler_specific_kwargs=kwargs)
        rates = []
        for _ in range(30):
            rates.append(schedule.get_last_lr()[0])
            optimizer.step()
            schedule.step()
        cases.append({"lr_scheduler_type": kind, "lr_scheduler_kwargs": kwargs, "warmup_steps": warmup, "total": 30, "peak": 0.003, "lr": rates})
    metrics = [3.0, 2.5, 2.4, 2.41, 2.42, 2.43, 2.44, 2.3, 2.31, 2.32, 2.33, 2.2, 2.25, 2.26, 2.27, 2.28]
    for kwargs in [
        {"patience": 2, "factor": 0.5, "cooldown": 1}, {"patience": 0, "factor": 0.5, "min_lr": 5e-4},
        {"mode": "max", "patience": 1, "factor": 0.3, "threshold": 0.05, "threshold_mode": "abs"},
    ]:
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.003)
        schedule = get_scheduler("reduce_lr_on_plateau", optimizer, scheduler_specific_kwargs=kwargs)
        rates = []
        for metric in metrics:
            schedule.step(metric)
            rates.append(schedule.get_last_lr()[0])
        cases.append({"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": kwargs, "peak": 0.003, "metrics": metrics, "lr": rates})
    write_json(GOLDEN / "newer/schedules.json", cases)


def make_sampling(rng):
    """What transformers' processors leave of logits, in the order in which `generate` applies them."""
    cases = []
    for _ in range(120):
        vocabulary = rng.choice([3, 12, 40])
        logits = [round(rng.gauss(0, rng.choice([0.5, 3])), 3) for _ in range(vocabulary)]
        text = [rng.randrange(vocabulary) for _ in range(rng.randint(1, 10))]
        case = {
            "repetition_penalty": rng.choice([1.0, 1.3, 0.7]), "temperature": rng.choice([1.0, 0.3, 2.0]), "top_k": rng.choice([0, 1, 5, 50]),
            "top_p": rng.choice([1.0, 0.9, 0.5, 0.05]), "min_p": rng.choice([0.0, 0.0, 0.1, 0.6]),
        }
        processors = [RepetitionPenaltyLogitsProcessor(case["repetition_penalty"]), TemperatureLogitsWarper(case["temperature"])]
        if case["top_k"]:
            processors.append(TopKLogitsWarper(case["top_k"]))
        if case["top_p"] < 1.0:
            processors.append(TopPLogitsWarper(case["top_p"]))
        if case["min_p"]:
            processors.append(MinPLogitsWarper(case["min_p"]))
        scores = torch.tensor([logits], dtype=torch.float64)
        for processor in processors:
            scores = processor(torch.tensor([text]), scores)
        cases.append(case | {"logits": logits, "text": text, "probabilities": [round(p, 9) for p in scores.softmax(-1)[0].tolist()]})
    path = GOLDEN / "newer/sampling.json"
    path.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


# Data pipelines, by what run_clm, run_mlm, run_glue and run_ner do.


def tokenizer(name):
    return Tokenizer.from_file(str(GOLDEN / "tokenizers" / name / "tokenizer.json"))


def grouped(examples, length):
    """Lists of ids, a thousand at a time, joined and cut into rows; what is left over of a thousand is dropped."""
    rows = []
    for start in range(0, len(examples), 1000):
        joined = [id for example in examples[start:start + 1000] for id in example]
        rows += [joined[i:i + length] for i in range(0, len(joined) - length + 1, length)]
    return rows


def make_language_pipelines(rng):
    play = (HERE / "play.txt").read_text().splitlines()
    articles = (HERE / "articles-train.txt").read_text().splitlines()
    lines = play[:900] + articles + ["", "tab\tand \u2028 separator", "naïve 漢字 👍🏽", "<|endoftext|> [MASK]"]
    ends = rng.choices(["\n", "\r\n", "\r"], [8, 1, 1], k=len(lines))
    text = "".join(line + end for line, end in zip(lines, ends)) + "no line break at the end"
    corpus = GOLDEN / "clm_pipeline/corpus.txt"
    corpus.parent.mkdir(parents=True, exist_ok=True)
    corpus.write_bytes(text.encode())
    found = corpus.read_text().split("\n")  # text mode: every line end becomes \n
    kept = [line + "\n" for line in found[:-1]] + [found[-1]]

    bpe, block = tokenizer("byte_bpe"), 64
    encoded = [bpe.encode(line, add_special_tokens=False).ids for line in kept]
    rows = torch.tensor(grouped(encoded, block))
    save_file({"input_ids": rows}, GOLDEN / "clm_pipeline/blocks.safetensors")
    write_json(GOLDEN / "clm_pipeline/meta.json", {
        "block_size": block, "tokenizer": "tokenizers/byte_bpe/tokenizer.json", "lines": len(kept), "tokens": sum(map(len, encoded)), "blocks": len(rows)})

    pieces, length = tokenizer("wordpiece"), 48
    encoded = [pieces.encode(line) for line in found]
    ids = torch.tensor(grouped([row.ids for row in encoded], length))
    special = torch.tensor(grouped([row.special_tokens_mask for row in encoded], length))
    folder = GOLDEN / "mlm_pipeline"
    folder.mkdir(exist_ok=True)
    save_file({"input_ids": ids, "special_tokens_mask": special}, folder / "rows.safetensors")
    epochs = 40
    write_json(folder / "meta.json", {
        "max_seq_length": length, "tokenizer": "tokenizers/wordpiece/tokenizer.json", "corpus": "clm_pipeline/corpus.txt", "rows": len(ids),
        "mlm_probability": 0.15, "collator_epochs": epochs, "collator_totals": {"maskable": epochs * int((special == 0).sum())}})


def make_pair_pipeline(rng):
    folder, length = GOLDEN / "glue_pipeline", 64
    folder.mkdir(exist_ok=True)
    lines = [line for line in (HERE / "play.txt").read_text().splitlines() if len(line) > 20] + ["a\nnew line", 'with "quotes", commas', "naïve – dash…"]
    long = " ".join(lines[:12])
    table = [(rng.choice(lines) if i % 7 else long, rng.choice(lines[-40:]), rng.choice(["refutes", "entails", "neutral"])) for i in range(48)]
    with open(folder / "train.csv", "w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("sentence1", "sentence2", "label"), *table])
    names = sorted({label for _, _, label in table})
    pieces = tokenizer("wordpiece")
    pieces.enable_truncation(length, strategy="longest_first")
    pieces.enable_padding(length=length, pad_id=0, pad_token="[PAD]")
    rows = [pieces.encode(a, b) for a, b, _ in table]
    save_file({
        "input_ids": torch.tensor([row.ids for row in rows]), "token_type_ids": torch.tensor([row.type_ids for row in rows]),
        "attention_mask": torch.tensor([row.attention_mask for row in rows]), "labels": torch.tensor([names.index(label) for _, _, label in table]),
    }, folder / "rows.safetensors")
    write_json(folder / "meta.json", {"max_seq_length": length, "tokenizer": "tokenizers/wordpiece/tokenizer.json", "examples": len(table), "label_names": names})


def make_token_pipeline(rng):
    folder, length = GOLDEN / "newer/ner_pipeline", 32
    folder.mkdir(parents=True, exist_ok=True)
    names = ["O"] + [f"{tag}-{kind}" for kind in ["PER", "LOC", "ORG"] for tag in "BI"]
    words = [word for line in (HERE / "articles-train.txt").read_text().splitlines() for word in line.split()]
    sentences = [[(rng.choice(words), rng.choice(names)) for _ in range(rng.randint(1, 20))] for _ in range(48)]
    with open(folder / "train.jsonl", "w") as file:
        for sentence in sentences:
            file.write(json.dumps({"tokens": [word for word, _ in sentence], "ner_tags": [label for _, label in sentence]}) + "\n")
    pieces = tokenizer("wordpiece")
    pieces.enable_truncation(length)
    pieces.enable_padding(length=length, pad_id=0, pad_token="[PAD]")
    ids, masks, labels = [], [], []
    for sentence in sentences:
        row = pieces.encode([word for word, _ in sentence], is_pretokenized=True)
        before, of_row = None, []
        for word in row.word_ids:  # the first piece of each word is labelled
            of_row.append(names.index(sentence[word][1]) if word is not None and word != before else -100)
            before = word
        ids.append(row.ids), masks.append(row.attention_mask), labels.append(of_row)
    save_file({name: torch.tensor(value) for name, value in [("input_ids", ids), ("attention_mask", masks), ("labels", labels)]}, folder / "rows.safetensors")
    truth = [[label for _, label in sentence] for sentence in sentences]
    predicted = [[label if rng.random() < 0.85 else rng.choice(names) for label in row] for row in truth]
    scores = {name: float(score(truth, predicted)) for name, score in
              [("precision", precision_score), ("recall", recall_score), ("f1", f1_score), ("accuracy", accuracy_score)]}
    write_json(folder / "meta.json", {"labels": names, "max_seq_length": length, "tokenizer": "wordpiece", "truth": truth, "predicted": predicted, "seqeval": scores})


def make_entities(rng):
    """Scores of seqeval, of all entities and of each kind, under run_ner's names with return_entity_level_metrics."""
    cases = []
    schemes = {
        "iob2": ("BI", ["PER", "LOC", "ORG"], ["O"]), "iobes": ("BIES", ["PER", "LOC"], ["O"]), "iob1": ("I", ["NP", "VP"], ["O"]),
        "names": ("BI", ["a-b", "É", "work_of art"], ["O", "."]), "no kinds": ("BIES", [""], ["O"]), "nothing": ("", [], ["O"]),
    }
    for scheme, (tags, kinds, outside) in schemes.items():
        names = outside + [f"{tag}-{kind}" if kind else tag for kind in kinds for tag in tags]
        for wrong in [0.0, 0.3, 1.0]:
            truth = [[rng.choice(names) for _ in range(rng.randint(1, 12))] for _ in range(rng.choice([1, 2, 30]))]
            predicted = [[rng.choice(names) if rng.random() < wrong else label for label in row] for row in truth]
            report = classification_report(truth, predicted, output_dict=True)
            scores = {}
            for kind, row in report.items():
                if kind in ("macro avg", "weighted avg"):
                    continue
                kind = "overall" if kind == "micro avg" else kind
                scores |= {f"{kind}_{name}": float(row[of]) for name, of in [("precision", "precision"), ("recall", "recall"), ("f1", "f1-score")]}
                if kind != "overall":
                    scores[f"{kind}_number"] = int(row["support"])
            scores["overall_accuracy"] = float(accuracy_score(truth, predicted))
            cases.append({"scheme": scheme, "labels": names, "truth": truth, "predicted": predicted, "seqeval": scores})
    write_json(GOLDEN / "newer/ner_entities.json", cases)


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    rng = random.Random(20261124)
    chosen = set(sys.argv[1:])
    if not chosen:
        make_language_pipelines(rng)
        make_pair_pipeline(rng)
        make_token_pipeline(rng)
        make_schedules()
    if not chosen or "entities" in chosen:
        make_entities(random.Random(3))
    if not chosen or "sampling" in chosen:
        make_sampling(random.Random(7))
    for seed, (name, cls, config, tokens) in enumerate(CASES):
        if not chosen or name in chosen:
            make_case(name, cls, config, tokens, seed)
    make_optimizers(chosen)
    make_frozen(chosen)
    if not chosen:
        make_label_smoothing(["gpt2", "bert-mlm", "bert-cls", "bert-token-cls"])
