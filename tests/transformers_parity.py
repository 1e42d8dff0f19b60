"""Loads what `xtrain train cls|mlm` saved in transformers and compares numbers.

    python tests/transformers_parity.py --xtrain target/release/xtrain [--work DIR]

Trains small models of each family for a few steps, then: classifiers give transformers' probabilities for the same rows
(`xtrain predict cls` against AutoModelForSequenceClassification), regressions its numbers and its loss, and masked language
models are loaded by AutoModelForMaskedLM with no tensor missing or left over, saved again by transformers, and then have the
same evaluation loss here as before. Prints the largest difference of each case; exits with 1 if one is beyond 1e-4.
"""

import argparse
import csv
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

TOLERANCE = 1e-4
DATA = pathlib.Path(__file__).resolve().parent / "data"
ENCODER = "hidden_size=64,num_hidden_layers=2,num_attention_heads=4,intermediate_size=128,max_position_embeddings=130"
MODELS = {
    "bert": ("bert", ENCODER, "bert-cased"),
    "bert_lower_case": ("bert", ENCODER, "bert-cased"),
    "roberta": ("roberta", ENCODER, "roberta"),
    "albert": ("albert", ENCODER + ",embedding_size=32", "bert-cased"),
    "gpt2": ("gpt2", "n_embd=64,n_layer=2,n_head=4,n_positions=128", "gpt2"),
    "gpt_neo": ("gpt_neo", "", "gpt2"),
    "gptj": ("gptj", "n_embd=64,n_layer=2,n_head=4,rotary_dim=8,n_positions=128", "gpt2"),
}
GPT_NEO = {
    "model_type": "gpt_neo",
    "vocab_size": 1000,
    "max_position_embeddings": 128,
    "hidden_size": 64,
    "num_layers": 2,
    "attention_types": [[["global", "local"], 1]],
    "num_heads": 4,
    "window_size": 16,
    "bos_token_id": 999,
    "eos_token_id": 999,
}


def run(*words):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def model_flags(name, work, data):
    model_type, overrides, tokenizer = MODELS[name]
    flags = ["--model_type", model_type, "--config_overrides", overrides, "--tokenizer_name", data / tokenizer]
    if name == "gpt_neo":
        # The kinds of layers are a list, which no override can say.
        path = work / "gpt_neo.json"
        path.write_text(json.dumps(GPT_NEO))
        flags[2:4] = ["--config_name", path]
    return flags + ["--do_lower_case"] * name.endswith("lower_case")


def classifier(xtrain, data, work, name):
    out = work / f"{name}-cls"
    common = ["--text_column_name", "text", "--max_seq_length", 64, "--disable_tqdm", "--cache_dir", work / "cache"]
    run(
        xtrain, "train", "cls", *model_flags(name, work, data), "--train_file", data / "posts-train.csv", "--label_column_name", "sentiment",
        "--max_train_samples", 256, "--max_steps", 8, "--learning_rate", "2e-3", "--per_device_train_batch_size", 16,
        "--save_strategy", "no", "--output_dir", out, *common,
    )
    text = run(
        xtrain, "predict", "cls", "--model_name_or_path", out, "--test_file", data / "posts-test.csv", "--max_predict_samples", 64,
        "--include_text", *common,
    )
    rows = list(csv.DictReader(text.splitlines()))
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    model.eval()
    inputs = tokenizer([row["text"] for row in rows], padding=True, truncation=True, max_length=64, return_tensors="pt")
    with torch.no_grad():
        scores = model(**inputs).logits.softmax(-1)
    names = [model.config.id2label[i] for i in range(model.config.num_labels)]
    found = torch.tensor([[float(row[f"score_{name}"]) for name in names] for row in rows])
    agree = sum(row["prediction"] == names[int(i)] for row, i in zip(rows, scores.argmax(-1)))
    return (scores - found).abs().max().item(), f"{agree}/{len(rows)} labels agree"


def regression(xtrain, data, work, name):
    """Numbers for labels: the length of a sentence, so that they are neither whole nor the same in every row."""
    out, table = work / f"{name}-numbers", work / "numbers.csv"
    sentences = [line.split("\t")[0].strip() for line in (data / "reviews/train.tsv").read_text().splitlines()[1:257]]
    labels = [len(sentence) / 32 - 2.125 for sentence in sentences]
    with open(table, "w", newline="") as file:
        csv.writer(file).writerows([("sentence", "label"), *zip(sentences, labels)])
    common = ["--max_seq_length", 64, "--disable_tqdm", "--cache_dir", work / "cache"]
    run(
        xtrain, "train", "cls", *model_flags(name, work, data), "--train_file", table, "--max_steps", 8, "--learning_rate", "2e-3",
        "--per_device_train_batch_size", 16, "--save_strategy", "no", "--output_dir", out, *common,
    )
    loss = json.loads(run(xtrain, "eval", "cls", "--json", "--model_name_or_path", out, "--validation_file", table, *common))["eval_loss"]
    rows = csv.DictReader(run(xtrain, "predict", "cls", "--model_name_or_path", out, "--test_file", table, *common).splitlines())
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    model.eval()
    inputs = tokenizer(sentences, padding=True, truncation=True, max_length=64, return_tensors="pt")
    with torch.no_grad():
        wanted = model(**inputs, labels=torch.tensor(labels))
    found = torch.tensor([float(row["prediction"]) for row in rows])
    difference = (wanted.logits.squeeze(-1) - found).abs().max().item()
    return max(difference, abs(wanted.loss.item() - loss)), f"loss {loss:.4f}, transformers' {wanted.loss.item():.4f}"


def masked(xtrain, data, work, name):
    out, again = work / f"{name}-mlm", work / f"{name}-again"
    common = ["--max_seq_length", 64, "--disable_tqdm", "--cache_dir", work / "cache", "--validation_file", data / "articles-valid.txt",
              "--max_eval_samples", 64]
    run(
        xtrain, "train", "mlm", *model_flags(name, work, data), "--train_file", data / "articles-train.txt", "--max_train_samples", 256,
        "--max_steps", 8, "--learning_rate", "2e-3", "--save_strategy", "no", "--output_dir", out, "--do_train", *common,
    )
    loss = json.loads(run(xtrain, "eval", "mlm", "--json", "--model_name_or_path", out, *common))["eval_loss"]
    model, info = AutoModelForMaskedLM.from_pretrained(out, output_loading_info=True)
    if info["missing_keys"] or info["unexpected_keys"]:
        sys.exit(f"{out}: transformers finds {info}")
    model.save_pretrained(again)
    AutoTokenizer.from_pretrained(out).save_pretrained(again)
    second = json.loads(run(xtrain, "eval", "mlm", "--json", "--model_name_or_path", again, *common))["eval_loss"]
    # An untrained distribution is at log(vocabulary); a model that was loaded wrongly would be back there.
    return abs(loss - second), f"loss {loss:.4f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xtrain", required=True)
    parser.add_argument("--work", type=pathlib.Path)
    args = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as temporary:
        work = args.work or pathlib.Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        cases = [("cls", name, classifier) for name in MODELS] + [("numbers", name, regression) for name in MODELS]
        cases += [("mlm", name, masked) for name in ("bert", "roberta", "albert")]
        for task, name, case in cases:
            difference, remark = case(args.xtrain, DATA, work, name)
            good = difference <= TOLERANCE
            failed |= not good
            print(f"{task:7} {name:8} {'ok' if good else 'DIFFERS'}: largest difference {difference:.1e}; {remark}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
