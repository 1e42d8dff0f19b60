#!/usr/bin/env python3
"""Makes tokenizers of the kinds that Llama, Mistral, Gemma and Qwen have, small, in tests/data/golden/tokenizers, with the ids and texts that
transformers gives: cases.json as that of byte_bpe, whose texts these are, with special tokens in some.

    pip install transformers==5.23.0 tokenizers==0.23.3
    python tests/data/make_tokenizers.py
"""

import json
import pathlib

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = HERE / "golden/tokenizers"
LINES = (HERE / "play.txt").read_text().splitlines()[:1500] + ["naïve café 日本語 😀 Straße 12345 67 don't We'll"] * 5
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def from_bos(bos, id):
    return processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, id)])


def sentencepiece(bos, special, prepends):
    """BPE over characters with bytes for those that it lacks; spaces are ▁. Trained word by word."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always" if prepends else "never")
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=special, initial_alphabet=[], show_progress=False)
    tokenizer.train_from_iterator(LINES, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    # Bytes are tokens of the vocabulary, but special ones to nobody.
    vocab = dict(model["vocab"])
    for byte in BYTES:
        vocab[byte] = len(vocab)
    merges = [tuple(pair) for pair in model["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    tokenizer.post_processor = from_bos(bos, vocab[bos])
    return tokenizer


def llama2():
    tokenizer = sentencepiece("<s>", ["<unk>", "<s>", "</s>"], True)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return tokenizer, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def mistral():
    """As llama2, but ▁ comes before the first word only, and control tokens are added."""
    tokenizer = sentencepiece("<s>", ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"], True)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return tokenizer, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def gemma():
    tokenizer = sentencepiece("<bos>", ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"], False)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in ["\n\n", "\n\n\n", "▁▁", "▁▁▁▁", "<table>"]])
    return tokenizer, {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}


def byte_level(pattern, normalizer, **more):
    tokenizer = Tokenizer(models.BPE(**more))
    if normalizer:
        tokenizer.normalizer = normalizer
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(LINES, trainer)
    return tokenizer


def llama3():
    tokenizer = byte_level(LLAMA3, None, ignore_merges=True)
    bos = "<|begin_of_text|>"
    tokenizer.add_special_tokens([bos, "<|end_of_text|>", "<|eot_id|>"])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), from_bos(bos, tokenizer.token_to_id(bos))])
    return tokenizer, {"bos_token": bos, "eos_token": "<|end_of_text|>"}


def qwen():
    """Added tokens of each kind besides: one that eats spaces, one that is a word of its own, one that is normalized."""
    tokenizer = byte_level(QWEN, normalizers.NFC())
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([
        AddedToken("<tool_call>", normalized=False), AddedToken("<mask>", lstrip=True, normalized=False), AddedToken("<gap>", lstrip=True, rstrip=True, normalized=False),
        AddedToken("king", single_word=True, normalized=True), AddedToken("café", normalized=True)])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer, {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}


def main():
    texts = [case["text"] for case in json.loads((GOLDEN / "byte_bpe/cases.json").read_text())["single"]]
    for make in [llama2, mistral, gemma, llama3, qwen]:
        tokenizer, config = make()
        folder = GOLDEN / make.__name__
        folder.mkdir(exist_ok=True)
        tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False} | config, indent=2) + "\n")
        added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
        more = [f"{before}{token}{after}" for token in added for before, after in [("", ""), ("The ", " king"), ("a", "b"), ("  ", "\n"), ("", "  x")]]
        more += ["   ", "\t\n \n\n\n\n", "kingdom king kings", "cafe\u0301 café", "1234567", "▁a ▁▁ b", "<0x41><0xE6>", "I'LL don't 'S", "a" * 300, "\u0130ß\u1E9E\u00A0x\u2003y"]
        theirs = AutoTokenizer.from_pretrained(folder)
        single = []
        for text in texts + more:
            found = theirs(text, return_token_type_ids=True, return_special_tokens_mask=True)
            ids = found["input_ids"]
            single.append({"text": text, "ids": ids, "type_ids": found["token_type_ids"], "special_tokens_mask": found["special_tokens_mask"],
                           "ids_without_specials": theirs(text, add_special_tokens=False)["input_ids"], "decoded": theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)})
        cases = {"vocab_size": len(theirs), "single": single}
        (folder / "cases.json").write_text(json.dumps(cases, ensure_ascii=False, separators=(",", ":")) + "\n")
        print(f"{make.__name__}: {len(theirs)} tokens, {len(single)} texts")


if __name__ == "__main__":
    main()
