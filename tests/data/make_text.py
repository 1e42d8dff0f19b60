#!/usr/bin/env python3
"""Makes the texts, tables and tokenizers of tests/data, and what the tokenizers must give for given texts.

    pip install tokenizers==0.23.3 transformers==5.23.0 sentencepiece pyarrow
    python tests/data/make_text.py

Everything is drawn from one seed, so that a second run writes the same bytes (parquet's carry the writer's version). play.txt is an
input, and so are the WordPiece vocabularies where they are there. README.md says what each file is.
"""

import collections
import csv
import io
import json
import pathlib
import random

import pyarrow as pa
import pyarrow.parquet as pq
import sentencepiece as spm
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = HERE / "golden"
VOCABULARY = 1000


def write(path, text):
    path = HERE / path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())


def write_json(path, value):
    write(path, json.dumps(value, ensure_ascii=False, indent=1) + "\n")


# Texts.

PLACES = ["Arnholm", "Bellmouth", "Carrow", "Düneck", "Estrella", "Fjällby", "Grantham Fen", "Hollin Moor", "Isle of Wren", "Jorvik Vale"]
THINGS = ["lighthouse", "canal", "railway", "observatory", "library", "harbour", "forest", "market", "bridge", "mill", "orchard", "castle"]
BEASTS = ["heron", "otter", "lynx", "kestrel", "salmon", "badger", "marten", "swift", "adder", "hare"]
ADJECTIVES = ["narrow", "ancient", "northern", "well known", "half ruined", "celebrated", "shallow", "remote", "wooden", "restored"]
VERBS = ["was built", "was surveyed", "fell into disuse", "was rebuilt", "was sold", "was described", "burned down", "was opened to the public"]
PEOPLE = ["Agnes Thorne", "Karel Novák", "Ruth Okafor", "Émile Garnier", "Hanna Lindqvist", "Tobias Reed", "the parish", "two brothers"]


def sentence(rng, subject):
    year, count = rng.randint(1500, 1990), rng.randint(2, 900)
    thing, beast, place = rng.choice(THINGS), rng.choice(BEASTS), rng.choice(PLACES)
    forms = [
        f"The {rng.choice(ADJECTIVES)} {thing} of {subject} {rng.choice(VERBS)} in {year} by {rng.choice(PEOPLE)} .",
        f"It lies {count} km ( {round(count * 0.621)} mi ) from {place} , on the {rng.choice(ADJECTIVES)} side of the {thing} .",
        f"Between {year} and {year + rng.randint(1, 9)} about {count} people lived near the {thing} , most of them from {place} .",
        f"The {beast} is common there , though the {rng.choice(BEASTS)} has not been seen since {year} .",
        f'{rng.choice(PEOPLE)} called it " the {rng.choice(ADJECTIVES)} {thing} of the {rng.choice(["north", "south", "east", "west"])} " .',
        f"Its {thing} is {rng.randint(3, 90)} @.@ {rng.randint(0, 9)} m long – the longest in {place} .",
    ]
    return rng.choice(forms)


def articles(rng, lines):
    out = []
    while len(out) < lines:
        subject = rng.choice(PLACES)
        out += ["", f" = {subject} = ", ""]
        for _ in range(rng.randint(1, 3)):
            out.append(" " + " ".join(sentence(rng, subject) for _ in range(rng.randint(2, 6))) + " ")
            if rng.random() < 0.3:
                out += ["", f" = = {rng.choice(['History', 'Geography', 'Wildlife', 'Name'])} = = ", ""]
    return "".join(line + "\n" for line in out[:lines])


GOOD = ["wonderful", "happy", "great", "lovely", "sunny", "brilliant", "kind", "delicious"]
BAD = ["awful", "sad", "terrible", "ugly", "gloomy", "boring", "rude", "stale"]
PLAIN = ["early", "local", "second", "usual", "other", "wide", "plain", "recent"]
NOUNS = ["morning", "film", "dinner", "train", "phone", "concert", "book", "neighbour", "café", "garden", "match", "letter"]


def opinion(rng, mood):
    words = {"positive": GOOD, "negative": BAD, "neutral": PLAIN}[mood]
    noun, other = rng.choice(NOUNS), rng.choice(NOUNS)
    forms = [
        f"what a {rng.choice(words)} {noun}",
        f"the {noun} was {rng.choice(words)}, the {other} too",
        f"just saw the {rng.choice(words)} {noun} again",
        f"{rng.choice(words)} {noun} and a {rng.choice(words)} {other}",
        f'they said "{rng.choice(words)}", of the {noun}',
        f"#{noun} is {rng.choice(words)} – believe me",
    ]
    text = rng.choice(forms)
    return text + rng.choice(["", "!", "!!!", "...", " :)" if mood == "positive" else " :("] if mood != "neutral" else ["", ".", "..."])


def posts(rng, rows):
    """CRLF and quotes only where they are needed, as spreadsheets write it."""
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\r\n")
    table.writerow(["postID", "text", "sentiment"])
    for _ in range(rows):
        mood = rng.choice(["negative", "neutral", "positive"])
        # From one sentence to many, so that padding, buckets and truncation have something to do.
        text = " ".join(opinion(rng, mood) for _ in range(rng.choice([1, 1, 2, 3, 4, 8])))
        table.writerow([f"{rng.getrandbits(40):010x}", rng.choice(["", " "]) + text, mood])
    return out.getvalue()


def review(rng):
    label = rng.randrange(2)
    text = " ".join(opinion(rng, ["negative", "positive"][label]) for _ in range(rng.choice([1, 1, 2, 3]))).replace(",", " ,").replace(".", " .").replace("!", "")
    return " ".join(text.split()) + " ", label


def reviews(rng, rows):
    return "sentence\tlabel\n" + "".join("{}\t{}\n".format(*review(rng)) for _ in range(rows))


def questions(rng, rows):
    lines = []
    for index in range(rows):
        a, b, who = rng.randint(2, 60), rng.randint(2, 12), rng.choice(PEOPLE[:6])
        lines.append(json.dumps({
            "question": f"{who}’s {rng.choice(BEASTS)} eats {a} snails a day. How many does it eat in {b} days?",
            "answer": f"It eats {a} * {b} = <<{a}*{b}={a * b}>>{a * b} snails.\n#### {a * b}",
            "idx": index,
        }))
    return "".join(line + "\n" for line in lines)


def page(rng):
    return "\n".join(sentence(rng, rng.choice(PLACES)) for _ in range(rng.randint(1, 9)))


def write_parquet(path, columns, metadata=None, **options):
    table = pa.table(columns)
    if metadata:
        table = table.replace_schema_metadata({"huggingface": json.dumps(metadata)})
    path = HERE / path
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)


def make_counts():
    """What the tables hold, for a test that reads them whole."""
    labels = {}
    for name in ["posts-train.csv", "posts-test.csv"]:
        with open(HERE / name, newline="") as file:
            labels[name] = collections.Counter(row["sentiment"] for row in csv.DictReader(file))
    for name in ["reviews/train.tsv", "reviews/dev.tsv"]:
        labels[name] = collections.Counter(line.rsplit("\t", 1)[1] for line in (HERE / name).read_text().splitlines()[1:])
    name = "reviews/validation-00000-of-00001.parquet"
    labels[name] = collections.Counter(["negative", "positive"][label] for label in pq.read_table(HERE / name)["label"].to_pylist())
    parquets = ["pages/validation-00000-of-00001.parquet", "articles/test-00000-of-00001.parquet"]
    rows = {name: pq.read_table(HERE / name).num_rows for name in parquets}
    rows["questions.jsonl"] = len((HERE / "questions.jsonl").read_text().splitlines())
    labels = {name: dict(sorted(counts.items())) for name, counts in labels.items()}
    write_json("counts.json", {"labels": labels, "rows": rows})


def make_texts(rng):
    write("articles-train.txt", articles(rng, 320))
    write("articles-valid.txt", articles(rng, 80))
    write("posts-train.csv", posts(rng, 640))
    write("posts-test.csv", posts(rng, 160))
    write("reviews/train.tsv", reviews(rng, 1200))
    write("reviews/dev.tsv", reviews(rng, 80))
    write("reviews/test.tsv", "index\tsentence\n" + "".join(f"{i}\t{review(rng)[0].strip()}\n" for i in range(60)))
    write("questions.jsonl", questions(rng, 120))
    for split, rows in [("train", 200), ("validation", 40)]:
        write_parquet(f"pages/{split}-00000-of-00001.parquet", {"text": [page(rng) for _ in range(rows)]}, compression="zstd")
    rows = [review(rng) for _ in range(100)]
    features = {"idx": {"dtype": "int32", "_type": "Value"}, "sentence": {"dtype": "string", "_type": "Value"},
                "label": {"names": ["negative", "positive"], "_type": "ClassLabel"}}
    write_parquet("reviews/validation-00000-of-00001.parquet", {
        "idx": pa.array(range(100), pa.int32()), "sentence": [text for text, _ in rows],
        "label": pa.array([label for _, label in rows], pa.int64()),
    }, {"info": {"features": features}}, compression="snappy")
    lines = (HERE / "articles-train.txt").read_text().splitlines()
    write_parquet("articles/test-00000-of-00001.parquet", {"text": [line + "\n" if line else "" for line in lines]},
                  compression="snappy", row_group_size=100)


# Tokenizers.


def corpus():
    return [(HERE / name).read_text() for name in ["play.txt", "articles-train.txt", "posts-train.csv"]]


def lines_of(texts):
    return [line for text in texts for line in text.splitlines()]


def byte_bpe(specials):
    """Byte-level BPE with these special tokens before everything else."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=specials, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(lines_of(corpus()), trainer)
    return tokenizer


def wordpiece(lowercase, folder):
    """The committed one where there is one: training breaks ties in another order each time."""
    if (HERE / folder / "tokenizer.json").exists():
        return Tokenizer.from_file(str(HERE / folder / "tokenizer.json"))
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=VOCABULARY, special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator(lines_of(corpus()), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return tokenizer


def save(tokenizer, folder):
    (HERE / folder).mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(HERE / folder / "tokenizer.json"), pretty=True)


def two_files(tokenizer, folder):
    """The older form of a byte-level BPE: vocab.json and merges.txt."""
    model = json.loads(tokenizer.to_str())["model"]
    write(f"{folder}/vocab.json", json.dumps(model["vocab"], ensure_ascii=False))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    write(f"{folder}/merges.txt", "#version: 0.2\n" + "".join(merge + "\n" for merge in merges))


def renumbered(tokenizer, first, last):
    """The same merges, with these special tokens before and behind the other tokens."""
    value = json.loads(tokenizer.to_str())
    others = [token for token, _ in sorted(value["model"]["vocab"].items(), key=lambda item: item[1]) if token != "<|endoftext|>"]
    value["model"]["vocab"] = {token: id for id, token in enumerate(first + others + last)}
    ids = value["model"]["vocab"]
    value["added_tokens"] = [
        {"id": ids[token], "content": token, "single_word": False, "lstrip": token == "<mask>", "rstrip": False,
         "normalized": token not in ("<mask>", "<|endoftext|>"), "special": True} for token in first + last]
    return Tokenizer.from_str(json.dumps(value))


def texts_to_encode(rng):
    odd = ["", " ", "\n", "\t\ttabs", "ALL CAPS AND MiXeD cAsE", "naïve café, Ångström", "e\u0301 is two characters", "ﬁ ligature, ½, ²",
           "漢字かな交じり文", "한국어 문장", "Привет, мир!", "مرحبا بالعالم", "שלום", "हिन्दी", "👍🏽 👩‍👩‍👧 🇩🇪", "\u200bzero\u200dwidth", "\ufeffmark",
           "\x00\x01control\x7f", "\ue000private\U000f0000", "\u0378unassigned", "<|endoftext|>", "a<|endoftext|>b", "[CLS] a [SEP]", "[MASK]s",
           "<s>", "http://example.org/a?b=c&d=%20", "x" * 120, "1234567890 3.14 1,000,000", "don't won't we'll I'd", "''\"\"``", "-- – —",
           "trailing space ", " leading space", "two  spaces", "line\nbreak", "carriage\r\nreturn", "\u00a0no-break\u2003em", "ǅ titlecase", "ß ẞ İ ı"]
    plain = lines_of(corpus())
    return odd + [rng.choice(plain) for _ in range(60)] + [sentence(rng, rng.choice(PLACES)) for _ in range(21)]


def cases(tokenizer, texts, pairs=None):
    singles = []
    for text in texts:
        found = tokenizer.encode(text)
        singles.append({"text": text, "ids": found.ids, "type_ids": found.type_ids, "special_tokens_mask": found.special_tokens_mask,
                        "ids_without_specials": tokenizer.encode(text, add_special_tokens=False).ids,
                        "decoded": tokenizer.decode(found.ids, skip_special_tokens=True)})
    out = {"vocab_size": tokenizer.get_vocab_size(), "single": singles}
    if pairs:
        length = 24
        tokenizer.enable_truncation(length, strategy="longest_first")
        tokenizer.enable_padding(length=length, pad_id=0, pad_token="[PAD]")
        out |= {"pair_max_length": length, "pairs": []}
        for a, b in pairs:
            found = tokenizer.encode(a, b)
            out["pairs"].append({"text_a": a, "text_b": b, "ids": found.ids, "type_ids": found.type_ids,
                                 "special_tokens_mask": found.special_tokens_mask, "attention_mask": found.attention_mask})
        tokenizer.no_truncation()
        tokenizer.no_padding()
    return out


def write_cases(path, value):
    """One case a line."""
    lists = {key: "[\n" + ",\n".join(json.dumps(case, ensure_ascii=True) for case in list_) + "\n]"
             for key, list_ in value.items() if isinstance(list_, list)}
    fields = [f"{json.dumps(key)}: {lists.get(key, json.dumps(item))}" for key, item in value.items()]
    write(path, "{\n" + ",\n".join(fields) + "\n}\n")


def make_tokenizers(rng):
    texts = texts_to_encode(rng)
    plain = [text for text in texts if text.strip() and text.isprintable()]
    pairs = [(rng.choice(plain), rng.choice(plain)) for _ in range(40)]

    bpe = byte_bpe(["<|endoftext|>"])
    save(bpe, "golden/tokenizers/byte_bpe")
    write_cases("golden/tokenizers/byte_bpe/cases.json", cases(bpe, texts))
    uncased = wordpiece(True, "bert-uncased")
    save(uncased, "golden/tokenizers/wordpiece")
    write_cases("golden/tokenizers/wordpiece/cases.json", cases(uncased, texts, pairs))

    gpt2 = renumbered(bpe, [], ["<|endoftext|>"])
    save(gpt2, "gpt2")
    two_files(gpt2, "gpt2")
    write_cases("gpt2/cases.json", cases(gpt2, texts))
    roberta = renumbered(bpe, ["<s>", "<pad>", "</s>", "<unk>"], ["<mask>"])
    roberta.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False)
    save(roberta, "roberta")
    two_files(roberta, "roberta")
    write_cases("roberta/cases.json", cases(roberta, texts))
    cased = wordpiece(False, "bert-cased")
    for name, tokenizer in [("bert-uncased", uncased), ("bert-cased", cased)]:
        save(tokenizer, name)
        ordered = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
        write(f"{name}/vocab.txt", "".join(token + "\n" for token, _ in ordered))
        write_cases(f"{name}/cases.json", cases(tokenizer, texts))
    make_albert(texts)


def make_albert(texts):
    """A sentencepiece unigram model in ALBERT's layout. The ids that keep case are sentencepiece's own, with the text as it is."""
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(lines_of(corpus())), model_writer=model, vocab_size=600, model_type="unigram", pad_id=0, pad_piece="<pad>",
        unk_id=1, bos_id=-1, eos_id=-1, control_symbols=["[CLS]", "[SEP]"], user_defined_symbols=["[MASK]"], num_threads=1,
        minloglevel=2, character_coverage=1.0)
    (HERE / "albert").mkdir(exist_ok=True)
    (HERE / "albert/spiece.model").write_bytes(model.getvalue())
    pieces = spm.SentencePieceProcessor(model_proto=model.getvalue())
    assert [pieces.id_to_piece(id) for id in range(5)] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    chosen = [text for text in texts if text.isascii() and text.isprintable() and "[" not in text and "``" not in text and "''" not in text]
    kept = [{"text": text, "ids": pieces.encode(text)} for text in chosen]
    write_cases("albert/cases.json", {"kept": kept, "lower": [{"text": text, "ids": pieces.encode(text.lower())} for text in chosen]})


if __name__ == "__main__":
    rng = random.Random(20261123)
    make_texts(rng)
    make_counts()
    make_tokenizers(rng)
