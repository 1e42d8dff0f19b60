#!/usr/bin/env bash
# Checks with TensorBoard's own reader that event files have what log.jsonl has: of a run, of a resumed run, of a killed run.
#
#   tests/run_tensorboard.sh [--install]
#
# Python is $XTRAIN_PYTHON, or that of target/tensorboard-venv, which --install makes. The program is $XTRAIN_BIN, or
# target/release/xtrain.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
data=$root/tests/data
xtrain=${XTRAIN_BIN:-$root/target/release/xtrain}
venv=$root/target/tensorboard-venv
python=${XTRAIN_PYTHON:-$venv/bin/python}

die() {
    echo "error: $*" >&2
    exit 1
}

if [ "${1:-}" = --install ] && [ -z "${XTRAIN_PYTHON:-}" ] && ! "$python" -c 'import tensorboard' 2>/dev/null; then
    python3 -m venv "$venv" || die "python3 -m venv failed; install Python's venv module"
    "$venv/bin/pip" install --quiet tensorboard || die "installing tensorboard failed"
fi
"$python" -c 'import tensorboard' 2>/dev/null ||
    die "$python has no tensorboard; run this with --install, or set XTRAIN_PYTHON to a Python that has it"
[ -x "$xtrain" ] || die "$xtrain is not there; run bin/bootstrap, or set XTRAIN_BIN"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
head -c 20000 "$data/play.txt" > train.txt
train() {
    "$xtrain" train clm --disable_tqdm --model_type gpt2 --tokenizer_name "$data/gpt2" --train_file train.txt --logging_steps 1 \
        --config_overrides n_layer=1,n_head=2,n_embd=32,n_positions=32 --block_size 16 --per_device_train_batch_size 4 \
        --report none --cache_dir cache --output_dir out --report_to tensorboard "$@" > log.txt 2>&1 || { cat log.txt; die "xtrain failed"; }
}
train --max_steps 10 --save_steps 4 --eval_strategy steps --eval_steps 4
"$python" "$root/tests/tensorboard_reader.py" out
train --max_steps 12 --save_steps 4 --eval_strategy steps --eval_steps 4 --resume_from_checkpoint out/checkpoint-4
"$python" "$root/tests/tensorboard_reader.py" out
rm -rf out
"$xtrain" train clm --disable_tqdm --model_type gpt2 --tokenizer_name "$data/gpt2" --train_file train.txt --logging_steps 1 \
    --config_overrides n_layer=1,n_head=2,n_embd=32,n_positions=32 --block_size 16 --per_device_train_batch_size 4 \
    --report none --cache_dir cache --output_dir out --report_to tensorboard --logging_dir board --max_steps 1000000 > log.txt 2>&1 &
pid=$!
until [ -e out/log.jsonl ] && [ "$(wc -l < out/log.jsonl)" -ge 50 ]; do
    kill -0 $pid 2>/dev/null || { cat log.txt; die "the run ended early"; }
    sleep 0.05
done
kill -9 $pid
wait $pid 2>/dev/null || true
"$python" "$root/tests/tensorboard_reader.py" out board
