#!/usr/bin/env bash
# What strangers do with the files of bin/dist, in a Debian without Rust, C++, git and, for the archive, Python:
# the steps of cpu.Dockerfile, then the program as its container starts it; and the wheel in a virtual environment.
#
#   tests/run_strangers.sh DIST [--archive-only]
#
# Needs root, mmdebstrap and the network, with this machine's resolver, certificates and pip's variables.
set -euo pipefail

die() {
    echo "error: $*" >&2
    exit 1
}
say() { printf '\n== %s\n' "$*"; }

dist=$(realpath "${1:?usage: tests/run_strangers.sh DIST [--archive-only]}")
with_wheel=1
[ "${2:-}" != --archive-only ] || with_wheel=
[ -f "$dist/cpu.Dockerfile" ] || die "$dist has no cpu.Dockerfile; bin/dist --out $dist makes it"
[ "$(id -u)" = 0 ] || die "a chroot needs root"
command -v mmdebstrap >/dev/null || die "mmdebstrap is missing (Debian: apt install mmdebstrap)"

base=$(sed -n 's/^FROM debian:\([0-9]*\)-slim$/\1/p' "$dist/cpu.Dockerfile")
step=$(sed -n 's/^RUN --mount=type=bind,target=\/dist //p' "$dist/cpu.Dockerfile")
[ "$base" = 12 ] && [ "$(printf '%s\n' "$step" | wc -l)" = 1 ] && [ -n "$step" ] ||
    die "cpu.Dockerfile has other steps than this script knows"

if [ -z "${STRANGERS_ROOT:-}" ]; then
    STRANGERS_ROOT=$(mktemp -d)
    trap 'rm -rf --one-file-system "$STRANGERS_ROOT"' EXIT
    export STRANGERS_ROOT
    chmod 755 "$STRANGERS_ROOT"
    say "Debian $base"
    # The image debian:12-slim has the same packages, but for a few that only log in or partition.
    mmdebstrap --quiet --variant=apt bookworm "$STRANGERS_ROOT" || die "mmdebstrap failed (its message is above)"
    mkdir -p "$STRANGERS_ROOT"/{dist,work,dev/shm}
    # Mounts go with the namespace.
    unshare --mount "$0" "$@"
    exit
fi

root=$STRANGERS_ROOT
# Nothing of this machine is mounted that could be written: packages that are installed there run their scripts as root.
mount --bind "$dist" "$root/dist"
mount -o remount,bind,ro "$root/dist"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/dev/shm"
cat /etc/resolv.conf >"$root/etc/resolv.conf"
cat "${PIP_CERT:-/etc/ssl/certs/ca-certificates.crt}" >"$root/etc/certificates.crt"

inside() { # a line of shell
    local variables=(PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin HOME=/root LANG=C.UTF-8 PIP_CERT=/etc/certificates.crt)
    for name in PIP_INDEX_URL PIP_DEFAULT_TIMEOUT; do
        [ -z "${!name:-}" ] || variables+=("$name=${!name}")
    done
    chroot "$root" env -i "${variables[@]}" sh -euc "cd /work
$1"
}

say 'the step of cpu.Dockerfile'
for tool in cargo rustc g++ cc git python3; do
    ! inside "command -v $tool" || die "the Debian has $tool"
done
inside "$step"

runs() { # the program
    inside "$1 quickstart --max_steps 20 --output_dir base
        text='--train_file base/corpus.txt --block_size 64 --logging_steps 2 --per_device_train_batch_size 4 --report none'
        small='--model_type gpt2 --config_overrides n_layer=2,n_head=2,n_embd=64,n_positions=64,vocab_size=1059 --tokenizer_name base/tokenizer'
        printf '\\n== a GPT-2\\n'; $1 train clm \$small \$text --max_steps 4 --output_dir gpt2
        printf '\\n== LoRA\\n'; $1 train clm --model_name_or_path base --use_peft --lora_target_modules all-linear \$text --max_steps 4 --output_dir adapter
        printf '\\n== the stand-in for Neuron\\n'; $1 train clm --device neuron --plugin $2 \$small \$text --max_steps 4 --output_dir neuron"
}
say 'the archive: quickstart'
runs xtrain /opt/xtrain/lib/libxtrain_xla.so
if inside 'test -f /opt/xtrain/lib/libxtrain_gloo.so'; then
    say 'two processes'
    inside "xtrain launch --nproc_per_node 2 -- train clm --model_name_or_path gpt2 --train_file base/corpus.txt --block_size 64 \
        --per_device_train_batch_size 2 --data_parallel 2 --max_steps 2 --logging_steps 1 --report none --output_dir two"
fi

say 'as SageMaker starts the container'
inside 'mkdir -p /opt/ml/input/config /opt/ml/input/data/train /opt/ml/input/data/tokenizer
    cp base/corpus.txt /opt/ml/input/data/train/ && cp base/tokenizer/* /opt/ml/input/data/tokenizer/ && cd /opt/ml/input/config
    echo "{\"current_host\": \"algo-1\", \"hosts\": [\"algo-1\"]}" >resourceconfig.json
    echo "{\"train\": {\"TrainingInputMode\": \"File\"}, \"tokenizer\": {\"TrainingInputMode\": \"File\"}}" >inputdataconfig.json
    echo "{\"task\": \"clm\", \"model_type\": \"gpt2\", \"config_overrides\": \"n_layer=1,n_head=2,n_embd=32,n_positions=32,vocab_size=1059\",
           \"block_size\": \"32\", \"max_steps\": \"4\", \"logging_steps\": \"2\"}" >hyperparameters.json
    xtrain train && test -s /opt/ml/model/model.safetensors'

[ -n "$with_wheel" ] || exit 0
say 'the wheel'
inside 'rm -rf "$HOME/.cache/xtrain" base gpt2 adapter neuron two'
inside 'apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv >/dev/null'
start=$(date +%s.%N)
inside 'python3 -m venv /venv && /venv/bin/pip install -q /dist/xtrain-*.whl'
installed=$(date +%s.%N)
inside '/venv/bin/xtrain doctor && /venv/bin/xtrain quickstart --max_steps 1 --output_dir first'
first=$(date +%s.%N)
runs /venv/bin/xtrain "\$(echo /venv/lib/python3*/site-packages/xtrain/libxtrain_xla.so)"
say 'times'
awk -v a="$start" -v b="$installed" -v c="$first" 'BEGIN { printf "pip install %.1f s; with doctor, quickstart of one step and its sample %.1f s\n", b - a, c - a }'
