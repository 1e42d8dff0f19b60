#!/usr/bin/env python3
"""Writes tests/data/golden/glue: small sets of GLUE's nine tasks in the formats that people have them in, tiny classifiers, and what run_glue
makes of both: each number of its evaluations and each line of its predictions.

    pip install torch==2.15.0 transformers==5.23.0 datasets==5.2.0 scikit-learn==1.9.1 scipy==1.17.1 accelerate
    python tests/data/make_glue.py
    python tests/data/make_glue.py --metric DIR/glue    # also compares with evaluate.load(DIR/glue, task), the script of `evaluate`

Texts are tokenized by the batch, as run_glue's `map(batched=True)` does: an empty second text is a text. cases.json lists the cases.
"""

import csv
import io
import json
import math
import os
import pathlib
import random
import shutil
import sys
import tempfile
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
import datasets
import numpy as np
import torch
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import f1_score, matthews_corrcoef
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig, BertForSequenceClassification, PretrainedConfig, Trainer, TrainingArguments, default_data_collator

HERE = pathlib.Path(__file__).resolve().parent
FOLDER = HERE / "golden/glue"
LENGTH = 32
WORDS = """the a of to and in is it you that he was for on are with as his they be at one have this from or had by hot but some what there we can out other were all your when up use word
how said an each she which do time if will way about many then them would write like so these her long make thing see him two has look more day could go come did my sound no most number""".split()

# GLUE's columns and classes; none: a regression.
TASKS = {
    "cola": (("sentence", None), ("unacceptable", "acceptable")),
    "sst2": (("sentence", None), ("negative", "positive")),
    "mrpc": (("sentence1", "sentence2"), ("not_equivalent", "equivalent")),
    "stsb": (("sentence1", "sentence2"), None),
    "qqp": (("question1", "question2"), ("not_duplicate", "duplicate")),
    "mnli": (("premise", "hypothesis"), ("entailment", "neutral", "contradiction")),
    "qnli": (("question", "sentence"), ("entailment", "not_entailment")),
    "rte": (("sentence1", "sentence2"), ("entailment", "not_entailment")),
    "wnli": (("sentence1", "sentence2"), ("not_entailment", "entailment")),
}
# Name, task, ending of the files, the weights' file, and what config.json says of labels.
CASES = [
    ("cola", "cola", "tsv", "two", {}),
    ("sst2", "sst2", "csv", "two", {"id2label": ["NEGATIVE", "POSITIVE"]}),
    ("mrpc", "mrpc", "jsonl", "two", {"id2label": ["not_equivalent", "equivalent"]}),
    ("stsb", "stsb", "parquet", "one", {}),
    ("qqp", "qqp", "parquet", "two", {}),
    ("mnli", "mnli", "parquet", "three", {"id2label": ["CONTRADICTION", "NEUTRAL", "ENTAILMENT"]}),
    ("qnli", "qnli", "tsv", "two", {"id2label": ["not_entailment", "entailment"]}),
    ("rte", "rte", "jsonl", "two", {}),
    ("wnli", "wnli", "csv", "two", {}),
    # Edges of the metrics.
    ("cola, one class predicted", "cola", "csv", "two-constant", {}),
    ("mrpc, nothing positive", "mrpc", "csv", "two-constant", {}),
    ("stsb, one number predicted", "stsb", "tsv", "one-constant", {}),
    ("stsb, two rows", "stsb", "jsonl", "one", {}),
    ("mnli, one class true", "mnli", "jsonl", "three", {}),
    # A model with names of its own: run_glue warns and takes the classes by their numbers.
    ("qqp, other names", "qqp", "parquet", "two", {"id2label": ["no", "yes"]}),
    ("rte, numbers for names", "rte", "parquet", "two", {"id2label": [0, 1]}),
]


def texts(rng, count):
    made = []
    for _ in range(count):
        words = [rng.choice(WORDS) for _ in range(rng.randint(2, 11))]
        made.append(" ".join(words).capitalize() + rng.choice([".", "!", "?", ' "so', ", he said"]))
    return made


def tokenizer():
    pieces = sorted(set("".join(WORDS)) | set(".!?,\""))
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + pieces + ["##" + piece for piece in pieces if piece.isalpha()] + [word for word in WORDS if len(word) > 1]
    (FOLDER / "vocab.txt").write_text("\n".join(dict.fromkeys(tokens)) + "\n")
    (FOLDER / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 64}) + "\n")
    return AutoTokenizer.from_pretrained(FOLDER)


def weights(name, tokenizer):
    """A classifier with large random weights that predicts each class about as often; a constant one gives its bias, whatever it reads."""
    torch.manual_seed(len(name))
    labels = {"one": 1, "two": 2, "three": 3}[name.split("-")[0]]
    config = BertConfig(vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, max_position_embeddings=64,
                        initializer_range=0.4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=labels)
    model = BertForSequenceClassification(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
        if name.endswith("constant"):
            model.classifier.weight.zero_()
            model.classifier.bias[0] += 1.0
        elif labels > 1:
            sample = tokenizer(texts(random.Random(1), 64), padding=True, return_tensors="pt")
            model.classifier.weight.mul_(4)
            model.classifier.bias.zero_()
            model.classifier.bias.sub_(model.eval()(**sample).logits.median(dim=0).values)
    model.save_pretrained(FOLDER / name)
    return json.loads((FOLDER / name / "config.json").read_text())


def rows(rng, case, count):
    name, task = case[0], case[1]
    (first, second), classes = TASKS[task]
    table = {first: texts(rng, count)}
    if second:
        table[second] = texts(rng, count)
    if classes is None:
        table["label"] = [rng.choice([0.0, 5.0, round(rng.uniform(0, 5), 3), 2.5]) for _ in range(count)]
    else:
        table["label"] = [rng.randrange(len(classes)) for _ in range(count)]
    if name.endswith("nothing positive"):
        table["label"] = [0] * count
    if name.endswith("one class true"):
        table["label"] = [1] * count
    if task == "qqp":
        table["question2"][2] = ""
        table["question1"][5] = ""
        table["question1"][7] = table["question2"][7] = ""
    table["idx"] = list(range(count))
    return table


def write(path, table, classes, named):
    """A table as people have it: `named` writes the classes' names where the format has text alone."""
    keys = list(table)
    ending = path.suffix
    cells = dict(table)
    if named and classes:
        cells["label"] = [classes[label] if label >= 0 else -1 for label in table["label"]]
    if ending == ".parquet":
        kinds = {key: datasets.Value("string") for key in keys}
        kinds["idx"] = datasets.Value("int32")
        kinds["label"] = datasets.ClassLabel(names=list(classes)) if classes else datasets.Value("float32")
        datasets.Dataset.from_dict(table, features=datasets.Features(kinds)).to_parquet(str(path))
    elif ending == ".jsonl":
        path.write_text("".join(json.dumps({key: cells[key][i] for key in keys}) + "\n" for i in range(len(table["idx"]))))
    else:
        text = io.StringIO()
        # GLUE's own files are split at tabs, and a quote is a character.
        kind = {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None} if ending == ".tsv" else {}
        writer = csv.writer(text, lineterminator="\n", **kind)
        writer.writerow(keys)
        writer.writerows(zip(*[cells[key] for key in keys]))
        path.write_text(text.getvalue())


def glue(task, predictions, references):
    """What `evaluate`'s metric "glue" computes."""
    if task == "stsb":
        predictions, references = (np.asarray(values, dtype=np.float32) for values in (predictions, references))
        return {"pearson": float(pearsonr(predictions, references)[0]), "spearmanr": float(spearmanr(predictions, references)[0])}
    if task == "cola":
        return {"matthews_correlation": float(matthews_corrcoef(references, predictions))}
    found = {"accuracy": float((predictions == references).mean())}
    if task in ("mrpc", "qqp"):
        found["f1"] = float(f1_score(y_true=references, y_pred=predictions))
    return found


def metric(task, predictions, references):
    found = glue(task, predictions, references)
    if "--metric" in sys.argv:
        import evaluate
        theirs = evaluate.load(sys.argv[sys.argv.index("--metric") + 1], task).compute(predictions=predictions, references=references)
        assert json.dumps(theirs) == json.dumps(found), (theirs, found)
    if len(found) > 1:
        found["combined_score"] = float(np.mean(list(found.values())))
    return found


class RunGlue:
    """The parts of run_glue (transformers 5.23's examples) between a set and its numbers."""

    def __init__(self, directory, task):
        (first, second), self.classes = TASKS[task]
        self.task, self.is_regression = task, task == "stsb"
        count = 1 if self.is_regression else len(self.classes)
        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self.model = AutoModelForSequenceClassification.from_pretrained(directory, num_labels=count)
        self.keys = (first, second) if second else (first,)
        self.ids = None
        if not self.is_regression and self.model.config.label2id != PretrainedConfig(num_labels=count).label2id:
            ids = {str(name).lower(): i for name, i in self.model.config.label2id.items()}
            if sorted(ids) == sorted(self.classes):
                self.ids = {i: ids[self.classes[i]] for i in range(count)}

    def prepared(self, table):
        def prepare(examples):
            result = self.tokenizer(*(examples[key] for key in self.keys), padding="max_length", max_length=LENGTH, truncation=True)
            if self.ids is not None:
                result["label"] = [self.ids[label] if label != -1 else -1 for label in examples["label"]]
            return result

        # One batch, as of map(batched=True), which would hash the model first.
        return datasets.Dataset.from_dict(table | dict(prepare(table)))

    def computed(self, found):
        predictions = np.squeeze(found.predictions) if self.is_regression else np.argmax(found.predictions, axis=1)
        return metric(self.task, predictions, found.label_ids)

    def trainer(self):
        output = tempfile.mkdtemp()
        arguments = TrainingArguments(output_dir=output, per_device_eval_batch_size=8, report_to=[], use_cpu=True, disable_tqdm=True)
        trainer = Trainer(model=self.model, args=arguments, compute_metrics=self.computed, processing_class=self.tokenizer, data_collator=default_data_collator)
        shutil.rmtree(output)
        return trainer

    def name(self, predicted):
        """run_glue writes `label_list[predicted]`, the set's name even where the model has another order; here it is the model's own."""
        if self.ids is not None:
            predicted = {model: data for data, model in self.ids.items()}[predicted]
        return self.classes[predicted]


def case(rng, spec, configs):
    name, task, ending, model, labels = spec
    folder = FOLDER / name.replace(", ", "-").replace(" ", "_")
    folder.mkdir()
    config = dict(configs[model])
    if "id2label" in labels:
        config["id2label"] = {str(i): label for i, label in enumerate(labels["id2label"])}
        config["label2id"] = {str(label): i for i, label in enumerate(labels["id2label"])}
    classes = TASKS[task][1]
    halves = ["_matched", "_mismatched"] if task == "mnli" else [""]
    with tempfile.TemporaryDirectory() as directory:
        for file in ["vocab.txt", "tokenizer_config.json", model + "/model.safetensors"]:
            shutil.copy(FOLDER / file, directory)
        pathlib.Path(directory, "config.json").write_text(json.dumps(config))
        run = RunGlue(directory, task)
    evaluated, predicted = {}, {}
    for half in halves:
        count = 2 if name.endswith("two rows") else rng.randint(17, 24)
        validation, test = rows(rng, spec, count), rows(rng, spec, 9)
        test["label"] = [-1.0 if classes is None else -1] * 9
        write(folder / f"validation{half}.{ending}", validation, classes, named=task == "qnli" or ending == "csv" and "id2label" in labels)
        write(folder / f"test{half}.{ending}", test, classes, named=False)
        trainer = run.trainer()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = trainer.evaluate(eval_dataset=run.prepared(validation))
        kept = {key: value for key, value in found.items() if not any(word in key for word in ("runtime", "per_second", "preparation", "epoch"))}
        kept["eval_samples"] = count
        evaluated |= {key + "_mm" * half.startswith("_mis"): value for key, value in kept.items()}
        outputs = trainer.predict(run.prepared(test).remove_columns("label"), metric_key_prefix="predict").predictions
        if run.is_regression:
            lines = [f"{value:3.3f}" for value in np.squeeze(outputs)]
        else:
            lines = [run.name(i) for i in np.argmax(outputs, axis=1)]
        predicted[f"test{half}"] = lines
    for key, value in evaluated.items():
        if isinstance(value, float) and math.isnan(value):
            evaluated[key] = "NaN"
    print(f"{name}: {evaluated}")
    return {"name": name, "folder": folder.name, "task": task, "ending": ending, "weights": model, "labels": labels.get("id2label"), "evaluated": evaluated, "predicted": predicted}


def main():
    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    shared = tokenizer()
    configs = {name: weights(name, shared) for name in ("one", "two", "three", "one-constant", "two-constant")}
    rng = random.Random(45)
    cases = [case(rng, spec, configs) for spec in CASES]
    (FOLDER / "cases.json").write_text(json.dumps(cases, indent=1) + "\n")


main()
