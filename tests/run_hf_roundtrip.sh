#!/usr/bin/env bash
# Checks that what xtrain saves is what Python transformers loads: the same token ids, the same loss, and back again.
#
#   tests/run_hf_roundtrip.sh [--install] [--model DIR] [--validation_file FILE] [--block_size N] [more for hf_roundtrip.py]
#   tests/run_hf_roundtrip.sh [--install] --all_families [more for hf_families.py]
#   tests/run_hf_roundtrip.sh [--install] --peft [more for peft_families.py]
#
# With --all_families, small models of every family go both ways, from every kind of file; with --peft, adapters of them do.
# Without --model it trains a tiny GPT-2 for a few steps first, on the text and with the tokenizer of tests/data.
# Python is $XTRAIN_PYTHON, or that of target/hf-venv, which --install makes (torch and transformers; pip's own settings,
# such as PIP_INDEX_URL, choose torch's build: the one for the CPU is a tenth of the default one's size).
# The program is $XTRAIN_BIN, or target/release/xtrain.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
data=$root/tests/data
xtrain=${XTRAIN_BIN:-$root/target/release/xtrain}
venv=$root/target/hf-venv
python=${XTRAIN_PYTHON:-$venv/bin/python}
validation=$data/play.txt
block=64
model=
install=
families=
adapters=
more=()

die() {
    echo "error: $*" >&2
    exit 1
}

while [ $# -gt 0 ]; do
    case $1 in
        --install) install=1; shift ;;
        --all_families) families=1; shift ;;
        --peft) adapters=1; shift ;;
        --model | --validation_file | --block_size)
            [ $# -ge 2 ] || die "$1 needs a value"
            case $1 in
                --model) model=$2 ;;
                --validation_file) validation=$2 ;;
                --block_size) block=$2 ;;
            esac
            shift 2
            ;;
        *) more+=("$1"); shift ;;
    esac
done

if [ -n "$install" ] && [ -z "${XTRAIN_PYTHON:-}" ] && ! "$python" -c 'import torch, transformers' 2>/dev/null; then
    python3 -m venv "$venv" || die "python3 -m venv failed; install Python's venv module"
    "$venv/bin/pip" install --quiet torch transformers peft || die "installing torch, transformers and peft failed"
fi
"$python" -c 'import torch, transformers' 2>/dev/null ||
    die "$python has no torch and transformers; run this with --install, or set XTRAIN_PYTHON to a Python that has them"
[ -x "$xtrain" ] || die "$xtrain is not there; run bin/bootstrap, or set XTRAIN_BIN"
if [ -n "$families" ]; then
    exec "$python" "$root/tests/hf_families.py" --xtrain "$xtrain" ${more[@]+"${more[@]}"}
fi
if [ -n "$adapters" ]; then
    exec "$python" "$root/tests/peft_families.py" --xtrain "$xtrain" ${more[@]+"${more[@]}"}
fi
[ -f "$validation" ] || die "$validation is not there; give another --validation_file"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if [ -z "$model" ]; then
    model=$scratch/model
    "$xtrain" train clm --disable_tqdm --model_type gpt2 --tokenizer_name "$data/gpt2" \
        --config_overrides n_layer=2,n_head=2,n_embd=64,n_positions=128 --block_size "$block" \
        --train_file "$data/play.txt" --max_steps 20 --learning_rate 1e-3 --save_strategy no \
        --cache_dir "$scratch/cache" --output_dir "$model"
fi
"$python" "$root/tests/hf_roundtrip.py" --xtrain "$xtrain" --model "$model" --validation_file "$validation" \
    --block_size "$block" ${more[@]+"${more[@]}"}
