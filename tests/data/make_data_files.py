#!/usr/bin/env python3
"""Writes tests/data/data_files.json: small data files of all formats and forms, and the rows that `datasets` reads from each.

    pip install datasets==5.2.0 pandas==3.1.1 pyarrow==26.0.1
    python tests/data/make_data_files.py
    python tests/data/make_data_files.py --show name    # one case

A case has a name, its files (text, or base64 where they are no text), what reads it (`file`, or `directory` with a configuration) and what
load_dataset makes of it: columns with their types, class names and rows by split, or its error.
"""

import base64
import bz2
import datetime
import gzip
import io
import json
import logging
import lzma
import math
import os
import pathlib
import sys
import tempfile
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")
import datasets
import pyarrow as pa
import pyarrow.parquet as pq

datasets.disable_progress_bars()
logging.disable(logging.CRITICAL)
OUT = pathlib.Path(__file__).resolve().parent / "data_files.json"
BUILDERS = {"csv": "csv", "tsv": "csv", "json": "json", "jsonl": "json", "ndjson": "json", "parquet": "parquet", "txt": "text", "arrow": "arrow"}
CASES = []


def case(name, files, directory=False, config=None):
    """One file named `data.EXT`, or a directory of several."""
    if not isinstance(files, dict):
        files = {name.split(" ")[0]: files}
    files = {path: content.encode() if isinstance(content, str) else content for path, content in files.items()}
    assert name not in [known["name"] for known in CASES], name
    CASES.append({"name": name, "files": files, "directory": directory, "config": config})


def text_tables():
    for name, text in {
        "plain": "text,label\nx y,a\nz,b\n",
        "crlf": "text,label\r\nx,a\r\ny,b\r\n",
        "returns": "text,label\rx,a\ry,b\r",
        "mixed breaks": "text,label\r\nx,a\ry,b\nz,c",
        "no last break": "text,label\nx,a",
        "mark": "\ufefftext,label\nx,a\n",
        "mark and quotes": "\ufeff\"text\",label\nx,a\n",
        "quoted separator": 'text,label\n"x, y",a\n"z",b\n',
        "doubled quotes": 'text,label\n"say ""x""",a\n"""",b\n',
        "quoted breaks": 'text,label\n"x\ny",a\n"p\r\nq\r",b\n',
        "quotes within": 'text,label\nx"y"z,a\n5" tall,b\n',
        "text after quotes": 'text,label\n"x"z,a\n',
        "blank after quotes": 'text,label\n"x" ,a\n',
        "blank before quotes": 'text,label\n "x",a\n',
        "open quote": 'text,label\n"x,a\ny,b\n',
        "single quotes": "text,label\n'x',a\n",
        "backslashes": 'text,label\nx\\ny,a\n"C:\\",b\n',
        "missing words": "text,label\nNA,a\nx,null\nnan,None\n#N/A,b\n<NA>,c\n-nan,d\n1.#IND,e\nN/A,n/a\n",
        "words that are not missing": "text,label\nnone,a\nNull,b\nNONE,c\nna,d\n NA,e\nnil,f\n-,g\n?,h\nNAN,i\n",
        "empty fields": 'text,label\n,a\nx,\n"",""\ny,b\n',
        "column of nothing": "text,label\nx,\ny,NA\n",
        "integers": "text,label\nx,0\ny,1\nz,-5\n",
        "integers with zeros and signs": "text,label\nx,007\ny,+5\nz,-0\n",
        "integers in quotes and blanks": 'text,label\nx,"1"\ny, 2\nz,3 \n',
        "integers and nothing": "text,label\nx,1\ny,\nz,3\n",
        "integer beyond i64": "text,label\nx,9223372036854775808\n",
        "integer beyond u64": "text,label\nx,18446744073709551616\n",
        "integer below i64": "text,label\nx,-9223372036854775809\n",
        "integers of both signs beyond i64": "text,label\nx,18446744073709551615\ny,-1\n",
        "integer beyond u64 and text": "text,label\nx,18446744073709551616\ny,z\n",
        "integer beyond u64 and fraction": "text,label\nx,18446744073709551616\ny,0.5\n",
        "fractions": "text,label\nx,0.5\ny,1\nz,-2.25\n",
        "whole floats": "text,label\nx,1.0\ny,0.0\n",
        "exponents": "text,label\nx,1e5\ny,2E-3\nz,1.5e+2\n",
        "points": "text,label\nx,.5\ny,1.\n",
        "infinities": "text,label\nx,inf\ny,-Infinity\nz,1\n",
        "huge float": "text,label\nx,1e400\ny,1\n",
        "thousands": 'text,label\nx,"1,000"\ny,"2,500"\n',
        "thousands and blanks": "text,label\nx,1 000\ny,2\n",
        "underscores": "text,label\nx,1_000\ny,2\n",
        "hexadecimal": "text,label\nx,0x10\ny,1\n",
        "percent": "text,label\nx,5%\ny,1\n",
        "decimal commas": 'text,label\nx,"0,5"\ny,"1,5"\n',
        "dates": "text,label\n2020-01-01,a\n2021-02-03,b\n",
        "complex": "text,label\nx,1+2j\ny,3j\n",
        "wide digits": "text,label\nx,\uff11\ny,\uff12\n",
        "numbers and text": "text,label\nx,01\ny,z\nw,1.50\n",
        "text of numbers": "text,label\n1,a\n02,b\n",
        "text of fractions": "text,label\n1.50,a\n2,b\n",
        "truths": "text,label\nx,True\ny,FALSE\nz,tRue\n",
        "truths and nothing": "text,label\nx,True\ny,\n",
        "truths and numbers": "text,label\nx,True\ny,1\n",
        "yes and no": "text,label\nx,yes\ny,no\n",
        "blanks kept": "text,label\n  x  ,a \n\ty,b\n",
        "unicode blanks": "text,label\n\u00a0x\u3000,a\n\u2028y,b\n",
        "blank lines": "text,label\n\nx,a\n\n\ny,b\n\n",
        "lines of blanks": "text,label\n   \nx,a\n \t \ny,b\n  ",
        "blank line first": "\n\ntext,label\nx,a\n",
        "one column and blank lines": "text\nx\n\ny\n",
        "one column and empty quotes": 'text\nx\n""\ny\n',
        "short rows": "text,label,more\nx,a\ny\nz,b,c\n",
        "long row": "text,label\nx,a\ny,b,c\n",
        "long rows": "text,label\nx,a,1\ny,b,2\n",
        "separator at the end": "text,label\nx,a,\ny,b,\n",
        "same names": "text,text,label,text.1\nx,y,a,z\n",
        "no names": ",text,\n0,x,a\n1,y,b\n",
        "index column": "Unnamed: 0,text,label\n0,x,a\n1,y,b\n",
        "names with blanks": "text , label\nx,a\n",
        "names in quotes": '"text","a,b"\nx,1\n',
        "header only": "text,label\n",
        "semicolons": "text;label\nx;a\n",
        "tabs": "text\tlabel\nx\ta\n",
        "comments": "text,label\n# x,a\n#,b\n",
        "control characters": "text,label\nx\x1ay,a\nx\x0cy,b\n",
        "zero byte": "text,label\nx\x00y,a\n",
        "sub at the end": "text,label\nx,a\n\x1a",
        "emoji": "text,label\nnaïve café 日本語 😀,a\n",
        "latin": "text,label\ncaf\u00e9,a\n".encode("latin-1"),
        "utf16": "text,label\nx,a\n".encode("utf-16"),
        "empty": "",
        "many rows": "text,label\n" + "".join(f"row {i},{i % 3}\n" for i in range(300)),
    }.items():
        case(f"data.csv {name}", text)
    for name, text in {
        "plain": "text\tlabel\nx y\ta\nz, w\tb\n",
        "quotes within": 'text\tlabel\nx "y" z\ta\n',
        "quoted": 'text\tlabel\n"x"\ta\n',
        "quoted separator": 'text\tlabel\n"x\ty"\ta\n',
        "open quote": 'text\tlabel\n"x\ta\ny\tb\n',
        "missing": "text\tlabel\nNA\ta\n\tb\nx\tc\n",
        "numbers": "text\tlabel\nx\t01\ny\t2\n",
        "lines of blanks": "text\tlabel\n  \nx\ta\n \t \n",
        "crlf": "text\tlabel\r\nx\ta\r\n",
        "commas": "text,label\nx,a\n",
        "short and long": "text\tlabel\nx\ny\tb\tc\n",
    }.items():
        case(f"data.tsv {name}", text)


def json_lines():
    for name, text in {
        "plain": '{"text": "x", "label": 1}\n{"text": "y", "label": 0}\n',
        "crlf": '{"text": "x"}\r\n{"text": "y"}\r\n',
        "blank lines": '\n{"text": "x"}\n\n  \n{"text": "y"}\n\n',
        "no last break": '{"text": "x"}\n{"text": "y"}',
        "mark": '\ufeff{"text": "x"}\n',
        "keys of later rows": '{"text": "x"}\n{"label": 1, "text": "y"}\n{"more": [1]}\n',
        "nulls": '{"text": null, "label": 1}\n{"text": "y", "label": null}\n',
        "column of nulls": '{"text": "x", "label": null}\n',
        "over lines": '{\n  "text": "x",\n  "label": [\n    1,\n    2\n  ]\n}\n{\n  "text": "}{"\n}\n',
        "several on a line": '{"text": "x"}{"text": "y"} {"text": "z"}\n{"text": "w"}\n',
        "damaged line": '{"text": "x"}\nnonsense\n{"text": "y"}\n',
        "cut line": '{"text": "x"}\n{"text": "y\n{"text": "z"}\n',
        "cut at the end": '{"text": "x"}\n{"text": "y',
        "floats": '{"text": "x", "label": 0.5}\n{"text": "y", "label": 1}\n',
        "whole floats": '{"text": "x", "label": 1.0}\n{"text": "y", "label": 0.0}\n',
        "exponents": '{"text": "x", "label": 1e2}\n',
        "NaN": '{"text": "x", "label": NaN}\n{"text": "y", "label": 1}\n',
        "infinities": '{"text": "x", "label": Infinity}\n{"text": "y", "label": -Infinity}\n',
        "NaN in text": '{"text": "NaN Infinity", "label": NaN}\n',
        "integer beyond i64": '{"text": "x", "label": 9223372036854775808}\n',
        "integer beyond u64": '{"text": "x", "label": 123456789012345678901234}\n',
        "float beyond": '{"text": "x", "label": 1e400}\n',
        "zero first": '{"text": "x", "label": 01}\n',
        "truths": '{"text": "x", "label": true}\n{"text": "y", "label": false}\n',
        "truths and numbers": '{"text": "x", "label": true}\n{"text": "y", "label": 1}\n',
        "text and numbers": '{"text": "x", "label": 1}\n{"text": "y", "label": "a"}\n',
        "text of numbers": '{"text": 5}\n{"text": 6}\n',
        "key twice": '{"text": "x", "text": "y"}\n',
        "inner key twice": '{"text": "x", "label": {"a": 1, "a": 2}}\n',
        "times": '{"text": "2020-01-01"}\n{"text": "2020-01-02 10:00:00"}\n{"text": null}\n',
        "times with zones": '{"text": "2020-01-01T10:00:00Z"}\n{"text": "2020-01-01T10:00:00+02:00"}\n',
        "times with fractions": '{"text": "2020-01-01T10:00:00.5"}\n',
        "times and text": '{"text": "2020-01-01"}\n{"text": "x"}\n',
        "no such day": '{"text": "2021-02-29"}\n',
        "escapes": '{"text": "a\\u00e9\\n\\t\\"\\\\\\/\\ud83d\\ude00"}\n',
        "half a pair": '{"text": "\\ud83d"}\n',
        "zero character": '{"text": "x\\u0000y"}\n',
        "break in a text": '{"text": "x\ny"}\n',
        "single quotes": "{'text': 'x'}\n",
        "comma at the end": '{"text": "x",}\n',
        "comments": '// x\n{"text": "x"}\n',
        "texts": '"x"\n"y"\n',
        "lists": "[1]\n[2]\n",
        "words": '{"tokens": ["a", "b"], "ner_tags": ["O", "B"]}\n{"tokens": [], "ner_tags": []}\n',
        "words and numbers": '{"tokens": ["a", 5]}\n',
        "messages": '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}\n',
        "messages of several forms": '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "name": "z"}]}\n',
        "contents of several forms": '{"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}, {"role": "assistant", "content": "y"}]}\n',
        "structures": '{"text": "x", "label": {"a": 1, "b": {"c": [1.5]}}}\n{"text": "y", "label": {"a": 2, "b": {"c": []}}}\n',
        "structures of several forms": '{"text": "x", "label": {}}\n{"text": "y", "label": {"a": 1}}\n',
        "JSON in text": '{"text": "{\\"a\\": 1}"}\n',
        "keys with signs": '{"a b/c": "x", "": "y", "ä": "z"}\n',
        "no keys": "{}\n{}\n",
        "latin": b'{"text": "caf\xe9"}\n',
        "empty": "",
        "blank": "\n\n",
    }.items():
        case(f"data.jsonl {name}", text)
    case("data.ndjson", '{"text": "x"}\n')
    for name, text in {
        "array": '[{"text": "x", "label": 1}, {"text": "y", "more": "z"}]',
        "array over lines": '[\n  {\n    "text": "x"\n  },\n  {"text": "[y]"}\n]\n',
        "blanks before the array": ' \n [{"text": "x"}]\n',
        "mark": '\ufeff[{"text": "x"}]',
        "array of texts": '["x", "y"]',
        "array of numbers": "[1, 2]",
        "array of lists": '[["x"], ["y"]]',
        "array with null": '[{"text": "x"}, null]',
        "array with a number": '[{"text": "x"}, 5]',
        "empty array": "[]",
        "cut array": '[{"text": "x"}, {"text": "y"',
        "behind the array": '[{"text": "x"}] {"text": "y"}',
        "keys twice in an array": '[{"text": "x", "text": "y"}]',
        "NaN in an array": '[{"text": "x", "label": NaN}, {"text": "y", "label": 1}]',
        "long floats in an array": '[{"text": "x", "label": 0.123456789012345}, {"text": "y", "label": 123456789.123456789}]',
        "times in an array": '[{"text": "2020-01-01"}]',
        "lines": '{"text": "x"}\n{"text": "y"}\n',
        "one object": '{\n  "text": "x",\n  "label": 1\n}\n',
        "rows within an object": '{"version": "1", "data": [{"text": "x"}, {"text": "y"}]}',
        "columns": '{"text": ["x", "y"], "label": [1, 0]}',
        "columns of pandas": '{"text": {"0": "x", "1": "y"}}',
        "text": '"x"',
        "nothing but a number": "5",
    }.items():
        case(f"data.json {name}", text)


def texts():
    for name, text in {
        "plain": "x\ny\n",
        "breaks": "a\r\nb\rc\n\nd\x0c\x0b\x85\u2028e\x1c\n",
        "blank lines": "\n\n  \n\t\nx\n\n",
        "no last break": "x",
        "mark": "\ufeffx\n",
        "missing words": "NA\nnull\n\n",
        "quotes": '"x\ny"\n',
        "zero byte": "x\x00y\n",
        "empty": "",
        "latin": "caf\u00e9\n".encode("latin-1"),
    }.items():
        case(f"data.txt {name}", text)


def compressed():
    rows = b"text,label\nx,a\ny,b\n"
    case("data.csv.gz", gzip.compress(rows, mtime=0))
    case("data.jsonl.gz", gzip.compress(b'{"text": "x"}\n', mtime=0))
    case("data.json.gz", gzip.compress(b'[{"text": "x"}]', mtime=0))
    case("data.txt.gz", gzip.compress(b"x\ny\n", mtime=0))
    case("data.tsv.gz", gzip.compress(b"text\tlabel\nx\ta\n", mtime=0))
    case("data.csv gzip without its name", gzip.compress(rows, mtime=0))
    case("data.csv.gz two members", gzip.compress(rows, mtime=0) + gzip.compress(b"z,c\n", mtime=0))
    case("data.csv.xz", lzma.compress(rows))
    case("data.csv.bz2", bz2.compress(rows))
    case("data.txt.xz", lzma.compress(b"x\n"))
    try:
        import zstandard

        case("data.jsonl.zst", zstandard.ZstdCompressor().compress(b'{"text": "x"}\n'))
    except ImportError:
        # A frame with one raw block.
        body = b'{"text": "x"}\n'
        frame = b"\x28\xb5\x2f\xfd\x20" + bytes([len(body)]) + ((len(body) << 3) | 1).to_bytes(3, "little") + body
        case("data.jsonl.zst", frame)
    archive = io.BytesIO()
    import zipfile

    with zipfile.ZipFile(archive, "w") as out:
        out.writestr(zipfile.ZipInfo("data.csv"), rows)
    case("data.csv.zip", archive.getvalue())


def parquet(columns, features=None, notes=None, **options):
    """A table as bytes; `features`: with the notes of `datasets`."""
    if features is not None:
        schema = features.arrow_schema
        table = pa.table({name: pa.array(values, schema.field(name).type) for name, values in columns.items()}, schema=schema)
    else:
        table = pa.table(columns)
    if notes is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps(notes)})
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


def parquets():
    plain = {"text": ["x", "y"], "label": [1, 0]}
    case("data.parquet plain", parquet(plain))
    for codec in ["none", "gzip", "zstd", "brotli", "lz4"]:
        case(f"data.parquet {codec}", parquet(plain, compression=codec))
    case("data.parquet version 1", parquet(plain, version="1.0", data_page_version="1.0"))
    case("data.parquet pages of version 2", parquet(plain, data_page_version="2.0"))
    case("data.parquet row groups", parquet({"text": list("abcdefg")}, row_group_size=3))
    case("data.parquet nulls", parquet({"text": ["x", None], "label": [None, 1]}))
    case("data.parquet no dictionary", parquet(plain, use_dictionary=False))
    for kind in ["large_string", "string_view"]:
        case(f"data.parquet {kind}", parquet({"text": pa.array(["x", "y"], getattr(pa, kind)())}))
    case("data.parquet dictionary", parquet({"text": pa.array(["x", "y", "x"]).dictionary_encode()}))
    case("data.parquet binary", parquet({"text": pa.array([b"x"], pa.binary())}))
    for kind in ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]:
        values = [0.5, 1.0] if "float" in kind else [1, 0]
        import numpy

        case(f"data.parquet {kind}", parquet({"text": ["x", "y"], "label": pa.array(numpy.array(values, kind))}))
    case("data.parquet truths", parquet({"text": ["x", "y"], "label": [True, False]}))
    case("data.parquet NaN", parquet({"text": ["x", "y"], "label": [math.nan, 1.0]}))
    case("data.parquet times", parquet({"text": [datetime.datetime(2020, 1, 1)], "label": [datetime.date(2020, 1, 1)]}))
    case("data.parquet decimals", parquet({"text": ["x"], "label": pa.array([1], pa.decimal128(5, 2))}))
    words = [["a", "b"], [], None]
    case("data.parquet lists", parquet({"tokens": pa.array(words, pa.list_(pa.string())), "ner_tags": pa.array([[1, 0], [], None], pa.list_(pa.int64()))}))
    case("data.parquet large lists", parquet({"tokens": pa.array(words, pa.large_list(pa.large_string()))}))
    case("data.parquet lists of one length", parquet({"tokens": pa.array([["a", "b"]], pa.list_(pa.string(), 2))}))
    case("data.parquet old lists", parquet({"tokens": pa.array(words, pa.list_(pa.string()))}, use_compliant_nested_type=False))
    case("data.parquet lists of lists", parquet({"tokens": pa.array([[["a"], []], [None]], pa.list_(pa.list_(pa.string())))}))
    case("data.parquet structures", parquet({"text": ["x"], "label": [{"a": 1, "b": {"c": ["y"]}}]}))
    case("data.parquet messages", parquet({"messages": [[{"role": "user", "content": "x"}, {"role": "assistant", "content": None}], []]}))
    case("data.parquet maps", parquet({"text": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))}))
    label = datasets.ClassLabel(names=["no", "yes"])
    text = datasets.Value("string")
    for name, feature, values in [
        ("class", label, [1, 0, -1, None]),
        ("list of classes", datasets.List(label), [[1, 0], [0], [], None]),
        ("large list of classes", datasets.LargeList(label), [[1, 0], [0], [], None]),
        ("list of structures with classes", datasets.List({"kind": label}), [[{"kind": 1}], [], None, None]),
        ("structure with a class", {"kind": label}, [{"kind": 1}, None, {"kind": None}, {"kind": 0}]),
    ]:
        case(f"data.parquet {name}", parquet({"text": list("abcd"), "label": values}, datasets.Features(text=text, label=feature)))
    kind = {"names": ["no", "yes"], "_type": "ClassLabel"}
    value = {"dtype": "string", "_type": "Value"}
    for name, feature, values in [
        ("notes with counts", kind | {"num_classes": 2, "names_file": None, "id": None}, [1, 0]),
        ("notes of a Sequence", {"feature": kind, "length": -1, "id": None, "_type": "Sequence"}, [[1, 0], [0]]),
        ("notes of a list", [kind], [[1, 0], [0]]),
        ("notes of a Sequence of a structure", {"feature": {"kind": kind}, "_type": "Sequence"}, [{"kind": [1]}, {"kind": []}]),
    ]:
        notes = {"info": {"features": {"text": value, "label": feature}}}
        case(f"data.parquet {name}", parquet({"text": ["x", "y"], "label": values}, notes=notes))
    messages = [[{"role": "user", "content": "x"}, {"role": "assistant", "content": ["y"], "name": "z"}]]
    written = io.BytesIO()
    datasets.Dataset.from_dict({"messages": messages}, datasets.Features(messages=datasets.List(datasets.Json()))).to_parquet(written)
    case("data.parquet Json", written.getvalue())
    case("data.parquet notes without features", parquet(plain, notes={"info": {}}))
    case("data.parquet no rows", parquet({"text": pa.array([], pa.string())}))
    case("data.parquet cut", parquet(plain)[:-20])
    whole = datasets.Dataset.from_dict(plain)
    with tempfile.TemporaryDirectory() as folder:
        whole.save_to_disk(folder)
        files = {path.name: path.read_bytes() for path in sorted(pathlib.Path(folder).iterdir())}
    state = json.loads(files["state.json"])
    files["state.json"] = json.dumps(state | {"_fingerprint": "x"}).encode()
    case("data.arrow", next(content for path, content in files.items() if path.endswith(".arrow")))
    case("save_to_disk", files, directory=True)


def card(text):
    return f"---\nlicense: mit\n{text}---\n# A set\n"


def directories():
    rows = lambda *names: "text,label\n" + "".join(f"{name},{i % 2}\n" for i, name in enumerate(names))
    lines = lambda *names: "".join(json.dumps({"text": name}) + "\n" for name in names)
    case("three splits", {"train.csv": rows("a", "b"), "validation.csv": rows("c"), "test.csv": rows("d")}, directory=True)
    for word in ["dev", "valid", "val"]:
        case(f"split {word}", {"train.csv": rows("a"), f"{word}.csv": rows("b")}, directory=True)
    for word in ["testing", "eval", "evaluation"]:
        case(f"split {word}", {"train.csv": rows("a"), f"{word}.csv": rows("b")}, directory=True)
    case("training and capitals", {"my-training.csv": rows("a"), "Test.csv": rows("b")}, directory=True)
    case("words with points", {"my.train.csv": rows("a"), "my.test.csv": rows("b")}, directory=True)
    case("part of a word", {"trainer.csv": rows("a"), "latest.csv": rows("b")}, directory=True)
    case("folders", {"train/a.csv": rows("a"), "train/b.csv": rows("b"), "test/a.csv": rows("c")}, directory=True)
    case("folders above names", {"train/valid_pairs.csv": rows("a"), "test/train.csv": rows("b")}, directory=True)
    case("data folder", {"data/train.jsonl": lines("a"), "data/test.jsonl": lines("b")}, directory=True)
    case("shards", {"data/train-00000-of-00002.parquet": parquet({"text": ["a"]}), "data/train-00001-of-00002.parquet": parquet({"text": ["b"]}),
                    "data/test-00000-of-00001.parquet": parquet({"text": ["c"]})}, directory=True)
    case("shards of other splits", {"data/train_sft-00000-of-00001.parquet": parquet({"text": ["a"]}), "data/test_sft-00000-of-00001.parquet": parquet({"text": ["b"]})}, directory=True)
    case("numbered parts", {"train-1.csv": rows("a"), "train-2.csv": rows("b")}, directory=True)
    case("two that could be train", {"train.csv": rows("a"), "train_extra.csv": rows("b")}, directory=True)
    case("two formats of one split", {"train.csv": rows("a"), "train.jsonl": lines("a")}, directory=True)
    case("one file", {"reviews.csv": rows("a", "b")}, directory=True)
    case("two files without a split", {"a.csv": rows("a"), "b.csv": rows("b")}, directory=True)
    case("text files", {"train.txt": "a\nb\n", "test.txt": "c\n"}, directory=True)
    case("hidden files", {"train.csv": rows("a"), ".train.csv": rows("b"), "__pycache__/train.csv": rows("c"), "notes.md": "x"}, directory=True)
    case("nothing", {"notes.md": "x"}, directory=True)
    names = "dataset_info:\n  features:\n  - name: text\n    dtype: string\n  - name: label\n    dtype:\n      class_label:\n        names:\n          '0': neg\n          '1': pos\n"
    case("card with class names", {"README.md": card(names), "train.csv": rows("a", "b"), "test.csv": rows("c")}, directory=True)
    case("card with class names of JSON lines", {"README.md": card(names), "train.jsonl": '{"text": "a", "label": 1}\n{"text": "b", "label": 0}\n'}, directory=True)
    case("card with class names of texts", {"README.md": card(names), "train.jsonl": '{"text": "a", "label": "pos"}\n{"text": "b", "label": "neg"}\n'}, directory=True)
    case("card with class names of parquet", {"README.md": card(names), "data/train-00000-of-00001.parquet": parquet({"text": ["a"], "label": [1]})}, directory=True)
    listed = "dataset_info:\n- config_name: default\n  features:\n  - name: text\n    dtype: string\n  - name: label\n    dtype:\n      class_label:\n        names:\n          '0': neg\n          '1': pos\n"
    case("card with a list of infos", {"README.md": card(listed), "train.csv": rows("a", "b")}, directory=True)
    words = "dataset_info:\n  features:\n  - name: tokens\n    sequence: string\n  - name: ner_tags\n    sequence:\n      class_label:\n        names:\n          '0': O\n          '1': B-X\n"
    tagged = '{"tokens": ["a", "b"], "ner_tags": [0, 1]}\n'
    case("card with classes of words", {"README.md": card(words), "train.jsonl": tagged}, directory=True)
    case("card with classes of lists", {"README.md": card(words.replace("sequence:", "list:")), "train.jsonl": tagged}, directory=True)
    dtypes = "dataset_info:\n  features:\n  - name: text\n    dtype: string\n  - name: label\n    dtype: float32\n"
    case("card with a float label", {"README.md": card(dtypes), "train.jsonl": '{"text": "a", "label": 1}\n{"text": "b", "label": 0}\n'}, directory=True)
    case("card with numbers as text", {"README.md": card(dtypes.replace("float32", "string")), "train.csv": "text,label\n12,1\n13,0\n"}, directory=True)
    infos = json.dumps({"default": {"features": {"text": {"dtype": "string", "_type": "Value"}, "label": {"names": ["neg", "pos"], "_type": "ClassLabel"}}}})
    case("dataset_infos.json", {"dataset_infos.json": infos, "train.csv": rows("a", "b")}, directory=True)
    case("dataset_infos.json of another name", {"dataset_infos.json": infos.replace('"default"', '"user--set"', 1), "train.csv": rows("a", "b")}, directory=True)
    files = {"one/a.csv": rows("a"), "one/b.csv": rows("b"), "two/x.csv": rows("c"), "two/y.csv": rows("d"), "all.csv": rows("e")}
    for name, text in {
        "a pattern": "- config_name: default\n  data_files: one/*.csv\n",
        "a list": "- config_name: default\n  data_files:\n  - one/a.csv\n  - two/y.csv\n",
        "splits": "- config_name: default\n  data_files:\n  - split: train\n    path: one/*.csv\n  - split: test\n    path:\n    - two/x.csv\n    - two/y.csv\n",
        "classes of letters": "- config_name: default\n  data_files:\n  - split: train\n    path: '*/[ax].csv'\n  - split: test\n    path: two/[!x].csv\n",
        "two stars": "- config_name: default\n  data_files: '**/a.csv'\n",
        "a question mark": "- config_name: default\n  data_files: two/?.csv\n",
        "data_dir": "- config_name: default\n  data_dir: one\n",
        "data_dir and files": "- config_name: default\n  data_dir: two\n  data_files: x.csv\n",
        "no match": "- config_name: default\n  data_files:\n  - split: train\n    path: one/*.csv\n  - split: test\n    path: three/*.csv\n",
        "other splits": "- config_name: default\n  data_files:\n  - split: train\n    path: one/*.csv\n  - split: extra\n    path: two/*.csv\n",
        "the same split twice": "- config_name: default\n  data_files:\n  - split: train\n    path: one/*.csv\n  - split: train\n    path: two/*.csv\n",
        "semicolons": "- config_name: default\n  data_files: all.csv\n  sep: ';'\n",
    }.items():
        case(f"configs: {name}", files | {"README.md": card("configs:\n" + text)}, directory=True)
    two = "configs:\n- config_name: one\n  data_files: one/*.csv\n- config_name: two\n  data_files: two/*.csv\n"
    case("two configs", files | {"README.md": card(two)}, directory=True)
    case("two configs, one named", files | {"README.md": card(two)}, directory=True, config="two")
    case("two configs, another named", files | {"README.md": card(two)}, directory=True, config="three")
    case("two configs, one default", files | {"README.md": card(two + "  default: true\n")}, directory=True)
    features = "dataset_info:\n- config_name: one\n  features:\n  - name: text\n    dtype: string\n  - name: label\n    dtype:\n      class_label:\n        names:\n          '0': neg\n          '1': pos\n- config_name: two\n  features:\n  - name: text\n    dtype: string\n  - name: label\n    dtype:\n      class_label:\n        names:\n          '0': no\n          '1': yes\n"
    case("classes of two configs", files | {"README.md": card(features.replace("'0': no", "'0': 'no'").replace("'1': yes", "'1': 'yes'") + two)}, directory=True, config="two")
    case("card without a head", {"README.md": "# A set\n", "train.csv": rows("a")}, directory=True)
    case("card that is damaged", {"README.md": "---\nconfigs: [\n---\n", "train.csv": rows("a")}, directory=True)


def names_of(feature):
    """Class names, where there are some."""
    if isinstance(feature, datasets.ClassLabel):
        return feature.names
    inside = getattr(feature, "feature", None)
    return names_of(inside) if inside is not None else None


def plain(value):
    """For JSON, which has no NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if isinstance(value, (datetime.date, datetime.time)):
        return {"time": value.isoformat()}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, dict):
        return {key: plain(inside) for key, inside in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inside) for inside in value]
    if type(value).__name__ == "Decimal":
        return float(value)
    return value


def expected(one, folder):
    for path, content in one["files"].items():
        target = folder / "set" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    cache = str(folder / "cache")
    try:
        if one["directory"]:
            found = datasets.load_dataset(str(folder / "set"), one["config"], cache_dir=cache)
        else:
            path = next(iter(one["files"]))
            extension = path.split(".")[1]
            extra = {"sep": "\t"} if extension == "tsv" else {}
            found = datasets.load_dataset(BUILDERS[extension], data_files={"train": str(folder / "set" / path)}, cache_dir=cache, **extra)
    except Exception as error:
        cause = error.__cause__ or error
        return {"error": f"{type(cause).__name__}: {cause}".replace(str(folder), "")[:160].strip()}
    splits = {}
    for split, rows in found.items():
        columns = {name: {"type": str(feature)} | ({"names": names} if (names := names_of(feature)) else {}) for name, feature in rows.features.items()}
        try:
            splits[split] = {"columns": columns, "rows": [plain(list(row.values())) for row in rows]}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"[:160]}
    return {"splits": splits}


def main():
    for fill in [text_tables, json_lines, texts, compressed, parquets, directories]:
        fill()
    shown = sys.argv[2] if sys.argv[1:2] == ["--show"] else None
    out = []
    for one in CASES:
        if shown is not None and shown not in one["name"]:
            continue
        with tempfile.TemporaryDirectory() as folder:
            result = expected(one, pathlib.Path(folder))
        files = {}
        for path, content in one["files"].items():
            try:
                files[path] = content.decode()
            except UnicodeDecodeError:
                files[path] = {"base64": base64.b64encode(content).decode()}
        case = {"name": one["name"], "files": files} | ({"directory": True} if one["directory"] else {}) | ({"config": one["config"]} if one["config"] else {}) | result
        out.append(case)
        if shown is not None:
            print(json.dumps(case, indent=1, ensure_ascii=False))
    if shown is None:
        text = "[\n" + ",\n".join(json.dumps(case, ensure_ascii=False) for case in out) + "\n]\n"
        OUT.write_text(text, encoding="utf-8", newline="")
        print(len(out), "cases,", sum("error" in case for case in out), "of them errors,", len(text.encode()), "bytes")


if __name__ == "__main__":
    main()
