#!/usr/bin/env python3
"""Writes tests/data/golden/tokenizer_classes: what AutoTokenizer makes of directories whose files disagree, over a grid of classes,
vocabularies and settings. cases.json has of each directory its base, class and settings (CLASS/MODEL_TYPE), and digests of the ids that transformers gives.

    pip install transformers==5.23.0 tokenizers==0.23.3 sentencepiece protobuf
    python tests/data/make_tokenizer_classes.py
    python tests/data/make_tokenizer_classes.py --show 17    # the ids of one case
"""

import io
import itertools
import json
import os
import pathlib
import shutil
import sys
import tempfile
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")
from transformers import AutoTokenizer

HERE = pathlib.Path(__file__).resolve().parent
FOLDER = HERE / "golden/tokenizer_classes"
TEXTS = [
    "The king's  own horse", " leading space", "two\n\nlines \n", "naïve café 日本語 😀", "<|endoftext|>The</s> end<s>", "a <mask> b<mask>", "[MASK] of [SEP] x",
    "x <tool> y<tool>z <extra>", "King kings KING", "I'LL don't 12345", "", "e\u0301\u00A0x\u3000y", "▁a ▁▁ b", "<pad><unk> [PAD] <new>", "\t``quoted'' text",
]
PAIRS = [(0, 1), (4, 7), (10, 3)]


def token(content, **flags):
    return {"__type": "AddedToken", "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} | flags


def told(content, **flags):
    return {key: value for key, value in token(content, **flags).items() if key != "__type"}


# What a directory may say, each by name: changes of its files. None takes a key or a file away.
SETTINGS = {
    "nothing": {},
    "prefix": {"tokenizer_config.json": {"add_prefix_space": True}},
    "no prefix": {"tokenizer_config.json": {"add_prefix_space": False}},
    "ends": {"tokenizer_config.json": {"add_bos_token": True, "add_eos_token": True}},
    "legacy": {"tokenizer_config.json": {"legacy": True, "do_lower_case": False, "keep_accents": True}},
    "added": {"tokenizer_config.json": {"added_tokens_decoder": {"0": told("<s>"), "5": told("The", special=False, normalized=True), "9999": told("<new>", lstrip=True, special=False)}}},
    "map": {"special_tokens_map.json": {"mask_token": told("<mask>", lstrip=True), "pad_token": "<pad>", "eos_token": "</s>", "additional_special_tokens": ["<extra>"]}},
    "map and config": {"special_tokens_map.json": {"eos_token": {"content": "<new>", "lstrip": False, "normalized": True, "rstrip": True, "single_word": False}},
                       "tokenizer_config.json": {"eos_token": "<extra>", "pad_token": token("<tool>", rstrip=True)}},
    "added_tokens.json": {"added_tokens.json": {"<tool>": 2000, "<extra>": 2001}, "tokenizer_config.json": {"additional_special_tokens": ["<extra>"]}},
    "extra": {"tokenizer_config.json": {"extra_special_tokens": ["<extra>", token("king", lstrip=True)], "image_token": "<new>"}},
    "names": {"tokenizer_config.json": {"extra_special_tokens": {"tool_token": "<tool>"}, "bos_token": None, "split_special_tokens": True}},
    "sides": {"tokenizer_config.json": {"padding_side": "left", "truncation_side": "left", "model_max_length": 77, "model_input_names": ["input_ids", "token_type_ids"]}},
    "around": {"tokenizer.json": {"post_processor": None, "padding": {"strategy": "BatchLongest", "direction": "Left", "pad_to_multiple_of": None, "pad_id": 1, "pad_type_id": 0, "pad_token": "<pad>"},
                                  "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}}},
    "normalizer": {"tokenizer.json": {"normalizer": {"type": "Lowercase"}}, "tokenizer_config.json": {"strip_accents": False, "tokenize_chinese_chars": False}},
    "matched": {"tokenizer.json": {"added_tokens": [{"id": 0, **told("<s>", rstrip=True)}, {"id": 3000, **told("horse", special=False, single_word=True)}]},
                "tokenizer_config.json": {"cls_token": "<s>", "sep_token": "</s>", "max_len": 33}},
    "all": {"tokenizer_config.json": {"add_prefix_space": True, "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "clean_up_tokenization_spaces": True},
            "special_tokens_map.json": {"eos_token": "</s>", "unk_token": {"content": "<unk>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}},
            "added_tokens.json": {"<new>": 1500}},
}
BYTES = ["GPT2Tokenizer", "GPT2TokenizerFast", "CodeGenTokenizer", "RobertaTokenizer", "RobertaTokenizerFast", "BartTokenizer", "Qwen2Tokenizer", "Qwen2TokenizerFast",
         "GPTNeoXTokenizer", "GPTNeoXTokenizerFast", "PreTrainedTokenizerFast", "PreTrainedTokenizer", "LlamaTokenizer", "NobodysTokenizer",
         "/gpt2", "/gptj", "/gpt_neox", "/roberta", "/qwen2", "/qwen3", "/llama", "/phi3", "PreTrainedTokenizerFast/qwen2", "LlamaTokenizerFast/llama", "GPT2Tokenizer/roberta", ""]
WORDS = ["LlamaTokenizer", "LlamaTokenizerFast", "GemmaTokenizer", "GemmaTokenizerFast", "PreTrainedTokenizerFast", "TokenizersBackend", "/llama", "/gemma", "/gemma3_text",
         "LlamaTokenizer/mistral", "LlamaTokenizerFast/llama", "LlamaTokenizer/phi3", "/mistral"]
PIECES = ["BertTokenizer", "BertTokenizerFast", "DistilBertTokenizer", "DistilBertTokenizerFast", "MobileBertTokenizer", "PreTrainedTokenizerFast", "/bert", "/distilbert", "ElectraTokenizer", "PreTrainedTokenizerFast/bert"]
UNIGRAMS = ["XLMRobertaTokenizer", "XLMRobertaTokenizerFast", "AlbertTokenizer", "AlbertTokenizerFast", "PreTrainedTokenizerFast", "/xlm-roberta", "/albert"]
# A base, its files, the classes that read it, and those of the settings that it is tried with (all: every).
BASES = {
    "gpt2": ("gpt2", ["tokenizer.json"], BYTES),
    "gpt2 files": ("gpt2", ["vocab.json", "merges.txt"], [name for name in BYTES if name.split("/")[0] in ("", *BYTES[:10])]),
    "roberta": ("roberta", ["tokenizer.json"], BYTES),
    "roberta files": ("roberta", ["vocab.json", "merges.txt"], ["RobertaTokenizer", "RobertaTokenizerFast", "/roberta", "BartTokenizer"]),
    "qwen": ("golden/tokenizers/qwen", ["tokenizer.json"], BYTES),
    "llama2": ("golden/tokenizers/llama2", ["tokenizer.json"], WORDS),
    "mistral": ("golden/tokenizers/mistral", ["tokenizer.json"], WORDS),
    "gemma": ("golden/tokenizers/gemma", ["tokenizer.json"], WORDS),
    "tokenizer.model": ("golden/tokenizer_classes", ["tokenizer.model"], ["LlamaTokenizer", "LlamaTokenizerFast", "/gemma", "GemmaTokenizer", "/mistral", "LlamaTokenizer/llama"]),
    "bert": ("bert-cased", ["tokenizer.json"], PIECES),
    "bert files": ("bert-cased", ["vocab.txt"], [name for name in PIECES if "PreTrained" not in name and "Electra" not in name]),
    "unigram": ("golden/tokenizer_classes", ["tokenizer.json"], UNIGRAMS),
    "spiece.model": ("golden/tokenizer_classes", ["spiece.model"], ["AlbertTokenizer", "/albert", "AlbertTokenizerFast"]),
    "sentencepiece.bpe.model": ("golden/tokenizer_classes", ["sentencepiece.bpe.model"], ["XLMRobertaTokenizer", "/xlm-roberta", "XLMRobertaTokenizerFast"]),
}


def make_bases():
    """Small sentencepiece models, and one of them as a tokenizer.json."""
    import sentencepiece
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    lines = (HERE / "play.txt").read_text().splitlines()[:1500] + ["naïve café 日本語 Straße 12345 67 don't We'll"] * 5
    for name, kind, more in [
        ("tokenizer.model", "bpe", dict(byte_fallback=True, vocab_size=600, user_defined_symbols=["<tool>"])),
        ("sentencepiece.bpe.model", "unigram", dict(vocab_size=400)),
        ("spiece.model", "unigram", dict(vocab_size=400, pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols=["[CLS]", "[SEP]"], user_defined_symbols=["[MASK]"])),
    ]:
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, model_type=kind, normalization_rule_name="identity", num_threads=1, minloglevel=2, **more)
        (FOLDER / name).write_bytes(model.getvalue())
    pieces = sentencepiece.SentencePieceProcessor(model_proto=(FOLDER / "sentencepiece.bpe.model").read_bytes())
    vocab = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)] + [(pieces.id_to_piece(id), round(pieces.get_score(id), 4)) for id in range(3, len(pieces))] + [("[CLS]", 0.0), ("[SEP]", 0.0), ("<mask>", 0.0)]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=3))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A </s> $B", special_tokens=[("<s>", 0), ("</s>", 2)])
    tokenizer.save(str(FOLDER / "tokenizer.json"), pretty=False)


def grid():
    """All classes with nothing else, and each class with some of the settings, by turns."""
    turn = itertools.count()
    names = list(SETTINGS)
    for base, (_, files, classes) in BASES.items():
        for name in classes:
            for setting in names:
                if setting != "nothing" and next(turn) % 3:
                    continue
                changes = {file: dict(change) for file, change in SETTINGS[setting].items()}
                if "tokenizer.json" in changes and "tokenizer.json" not in files:
                    continue
                class_name, _, model_type = name.partition("/")
                if class_name:
                    changes.setdefault("tokenizer_config.json", {})["tokenizer_class"] = class_name
                if model_type:
                    changes["config.json"] = {"model_type": model_type}
                yield base, name, setting, changes


def write(folder, base, changes):
    source, files, _ = BASES[base]
    for file in files:
        shutil.copy(HERE / source / file, folder / file)
    for file, change in changes.items():
        old = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
        (folder / file).write_text(json.dumps(old | change))


def digest(value):
    """FNV-1a of a value's compact JSON."""
    hash = 0xCBF29CE484222325
    for byte in json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode():
        hash = (hash ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{hash:016x}"


def found(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    single = [[tokenizer(text)["input_ids"], tokenizer(text, add_special_tokens=False)["input_ids"]] for text in TEXTS]
    pairs = [tokenizer(TEXTS[a], TEXTS[b], return_token_type_ids=True) for a, b in PAIRS]
    limit = tokenizer.model_max_length
    return tokenizer, single, [[pair["input_ids"], pair["token_type_ids"]] for pair in pairs], {
        "len": len(tokenizer), "left": [tokenizer.padding_side == "left", tokenizer.truncation_side == "left"], "max": limit if limit < 1e15 else None,
        "segments": "token_type_ids" in tokenizer.model_input_names, "ids": [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.mask_token_id]}


def main():
    warnings.filterwarnings("ignore")
    FOLDER.mkdir(exist_ok=True)
    shown = int(sys.argv[2]) if len(sys.argv) > 2 else None
    if shown is None:
        make_bases()
    cases = []
    for number, (base, name, setting, changes) in enumerate(grid()):
        if shown not in (None, number):
            continue
        with tempfile.TemporaryDirectory() as folder:
            write(pathlib.Path(folder), base, changes)
            case = {"of": [base, name, setting]}
            try:
                tokenizer, single, pairs, settings = found(folder)
                case |= {"single": digest(single), "pairs": digest(pairs)} | settings
                if shown is not None:
                    print(base, name, setting, type(tokenizer).__name__, json.dumps(changes), json.dumps(settings))
                    for text, ids in zip(TEXTS, single):
                        print(json.dumps(text), json.dumps(ids, separators=(",", ":")))
                    print(json.dumps(pairs, separators=(",", ":")))
            except Exception as error:
                if shown is not None:
                    raise
                case["fails"] = type(error).__name__
            cases.append(case)
    if shown is None:
        bases = {base: [source, files] for base, (source, files, _) in BASES.items()}
        lines = ",\n".join(json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in cases)
        head = json.dumps({"texts": TEXTS, "pairs": PAIRS, "bases": bases, "settings": SETTINGS}, ensure_ascii=False, separators=(",", ":"))
        (FOLDER / "cases.json").write_text(head[:-1] + ',"cases":[\n' + lines + "\n]}\n")
        print(f"{len(cases)} directories, {sum('fails' in case for case in cases)} that transformers refuses")


if __name__ == "__main__":
    main()
