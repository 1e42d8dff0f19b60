#!/usr/bin/env bash
# The analysis of a native against compiled runs: 6-layer GPT-2 with transformers' Trainer and with xtrain on the same text at two
# batch sizes, then one command, `xtrain report native.log compiled... --price_per_hour 4`, whose numbers are computed again from the logs.
#
#   tests/run_native_comparison.sh [--install] [DIR]
#
# What is made stays in DIR, if it is given. Python is $XTRAIN_PYTHON, or that of target/hf-venv, which --install makes. The program is
# $XTRAIN_BIN, or target/release/xtrain.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
data=$root/tests/data
xtrain=${XTRAIN_BIN:-$root/target/release/xtrain}
venv=$root/target/hf-venv
python=${XTRAIN_PYTHON:-$venv/bin/python}

die() {
    echo "error: $*" >&2
    exit 1
}

if [ "${1:-}" = --install ]; then
    shift
    if [ -z "${XTRAIN_PYTHON:-}" ] && ! "$python" -c 'import torch, transformers, accelerate' 2>/dev/null; then
        python3 -m venv "$venv" || die "python3 -m venv failed; install Python's venv module"
        "$venv/bin/pip" install --quiet torch transformers accelerate || die "installing torch and transformers failed"
    fi
fi
"$python" -c 'import torch, transformers, accelerate' 2>/dev/null ||
    die "$python has no torch, transformers and accelerate; run this with --install, or set XTRAIN_PYTHON to a Python that has them"
[ -x "$xtrain" ] || die "$xtrain is not there; run bin/bootstrap, or set XTRAIN_BIN"

dir=${1:-}
if [ -z "$dir" ]; then
    dir=$(mktemp -d)
    trap 'rm -rf "$dir"' EXIT
fi
mkdir -p "$dir"
cd "$dir"
# The last tenth is evaluated on.
size=$(wc -c < "$data/play.txt")
head -c $((size * 9 / 10)) "$data/play.txt" > train.txt
tail -c +$((size * 9 / 10 + 1)) "$data/play.txt" > valid.txt
"$python" "$root/tests/native_run.py" --text train.txt --valid valid.txt --tokenizer "$data/gpt2" --steps 60 > native.log 2> native.err ||
    { cat native.err; die "the native run failed"; }
train() {
    "$xtrain" train clm --disable_tqdm --model_type gpt2 --tokenizer_name "$data/gpt2" --train_file train.txt --validation_file valid.txt --block_size 64 \
        --config_overrides n_layer=6,n_head=6,n_embd=192,n_positions=128 --learning_rate 1e-3 --logging_steps 5 --save_strategy no \
        --do_train --do_eval --eval_strategy steps \
        --cache_dir cache --output_dir "$@" > "$1.log" 2>&1 || { cat "$1.log"; die "xtrain failed"; }
}
train compiled-4 --per_device_train_batch_size 4 --max_steps 60 --eval_steps 20
train compiled-8 --per_device_train_batch_size 8 --max_steps 30 --eval_steps 10
"$xtrain" report native.log compiled-4 compiled-8 --price_per_hour 4 --format html,markdown,json --output comparison
"$python" "$root/tests/compare_native.py" comparison.json 4 native.log compiled-4 compiled-8
