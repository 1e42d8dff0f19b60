//! Tables of text with something wrong in them: a file's name, its bytes, and parts of what is said.

pub(super) const TABLES: &[(&str, &[u8], &[&str])] = &[
    ("empty.csv", b"", &["empty.csv is empty"]),
    (
        "bom-only.csv",
        "\u{feff}".as_bytes(),
        &["bom-only.csv is empty"],
    ),
    ("header.csv", b"text,label\n", &["no label"]),
    (
        "missing.csv",
        b"tweet,id,label\na,1,x\n",
        &[
            "missing.csv has no column text or",
            "it has tweet, id, label",
            "--text_column_name",
        ],
    ),
    (
        "no-label.csv",
        b"text,sentiment\na,x\n",
        &[
            "no column label or labels",
            "text, sentiment",
            "--label_column_name",
        ],
    ),
    (
        "short.csv",
        b"text,label\na,x\nb\n",
        &[
            "short.csv:3: column \"label\": the label is missing",
            "--on_bad_row skip",
        ],
    ),
    (
        "wide.csv",
        b"text,label\na,b,x\n",
        &["wide.csv:2: 3 fields where the header has 2"],
    ),
    (
        "open.csv",
        b"text,label\na,x\n\"b,y\nc,z\n",
        &["open.csv:3: the quote that opens here is never closed"],
    ),
    (
        "after.csv",
        b"text,label\n\"two\nlines\",x\n\"a\" b,y\nc,z\n",
        &["after.csv:4: text follows the closing quote"],
    ),
    (
        "escaped.csv",
        b"\"text\",\"label\"\n\"say \\\"a\\\"\",\"x\"\n",
        &["escaped.csv:2:", "--quoting backslash"],
    ),
    (
        "empty-text.csv",
        b"text,label\na,x\n,y\n",
        &["empty-text.csv:3: column \"text\" is missing: empty, or NA, null"],
    ),
    (
        "blank-text.tsv",
        b"text\tlabel\n\tx\n",
        &["blank-text.tsv:2: column \"text\" is missing: empty, or NA, null"],
    ),
    (
        "na-text.csv",
        b"text,label\na,x\nnull,y\n",
        &["na-text.csv:3: column \"text\" is missing", "pandas"],
    ),
    (
        "numbers.csv",
        b"text,label\n007,x\n8,y\n",
        &["numbers.csv:2: column \"text\" is 7, not text"],
    ),
    (
        "either.tsv",
        b"text\tlabel\na\tx\n\"b\"\ty\n",
        &[
            "either.tsv:3: a field begins with a quote",
            "--quoting none or --quoting standard",
        ],
    ),
    (
        "packed.csv",
        b"\xfd7zXZ\0rest",
        &["packed.csv cannot be read: it is compressed with xz; decompress it"],
    ),
    (
        "mixed.jsonl",
        b"{\"text\": \"a\", \"label\": 1}\n{\"text\": \"b\", \"label\": \"x\"}\n",
        &["some are text and some are numbers or truth values"],
    ),
    (
        "times.jsonl",
        b"{\"text\": \"2020-01-01\", \"label\": 1}\n{\"text\": \"2020-01-02\", \"label\": 0}\n",
        &["times.jsonl:1: column \"text\" is the time 2020-01-01, not text"],
    ),
    (
        "twice.jsonl",
        b"{\"text\": \"a\", \"text\": \"b\", \"label\": 1}\n",
        &["twice.jsonl:1: not valid JSON: the key \"text\" occurs twice"],
    ),
    (
        "empty-label.csv",
        b"text,label\na,x\nb,\n",
        &["empty-label.csv:3: column \"label\": the label is missing"],
    ),
    (
        "nan.csv",
        b"text,label\na,1\nb,NaN\n",
        &["nan.csv:3: column \"label\": the label is missing"],
    ),
    (
        "latin.csv",
        b"text,label\na,x\n\"one\nca\xe9\",y\n",
        &["latin.csv:4: invalid UTF-8: byte 0xe9 in field 1"],
    ),
    (
        "utf16.csv",
        b"\xff\xfet\x00,\x00l\x00\n\x00",
        &[
            "utf16.csv cannot be read",
            "line 1: invalid UTF-8: byte 0xff",
        ],
    ),
    (
        "broken.jsonl",
        b"{\"text\": \"a\", \"label\": 1}\n{\"text\": \"b\", \n",
        &["broken.jsonl:2: not valid JSON"],
    ),
    (
        "list.jsonl",
        b"{\"text\": \"a\", \"label\": 1}\n[1, 2]\n",
        &["list.jsonl:2: a JSON object is expected", "an array"],
    ),
    (
        "number.jsonl",
        b"{\"text\": 5, \"label\": 1}\n",
        &["number.jsonl:1: column \"text\" is 5, not text"],
    ),
    (
        "null.jsonl",
        b"\n{\"text\": null, \"label\": 1}\n",
        &["null.jsonl:2: column \"text\" is missing"],
    ),
    (
        "nested.jsonl",
        b"{\"text\": \"a\", \"label\": {}}\n",
        &["nested.jsonl:1: column \"label\": the label is a list"],
    ),
    (
        "key.jsonl",
        b"{\"text\": \"a\", \"label\": 1}\n{\"label\": 1}\n",
        &["key.jsonl:2: column \"text\" is missing"],
    ),
    (
        "open.json",
        b"[{\"text\": \"a\",\n \"label\": 1},\n",
        &["open.json", "line 3: the file ends within its array"],
    ),
    (
        "after.json",
        b"[{\"text\": \"a\", \"label\": 1}] x",
        &["after.json", "something follows the array's end"],
    ),
    ("empty.json", b"[]", &["empty.json", "it has no rows"]),
    (
        "text.parquet",
        b"text,label\na,x\n",
        &["text.parquet", "no parquet file"],
    ),
    ("empty.parquet", b"", &["empty.parquet is empty"]),
    (
        "notes.txt",
        b"text,label\na,x\n",
        &["notes.txt is not a table", ".csv"],
    ),
];
