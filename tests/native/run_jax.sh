#!/usr/bin/env bash
# Unmodified JAX from pip on our CPU plugin: the widest conformance test that there is. Makes a virtual environment beside the
# build (90 MB of wheels, once), then runs jax_on_plugin.py in it. Fails if any check does.
#   tests/native/run_jax.sh [PLUGIN]     PLUGIN: a libxtrain_xla.so  [target/release/libxtrain_xla.so]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
plugin=$(realpath "${1:-${CARGO_TARGET_DIR:-$root/target}/release/libxtrain_xla.so}")
venv=${CARGO_TARGET_DIR:-$root/target}/jax-venv
readonly JAX_VERSION=0.10.2

[[ -f $plugin ]] || {
  printf 'run_jax: error: there is no %s\n  Run bin/bootstrap first.\n' "$plugin" >&2
  exit 1
}
if [[ $(cat "$venv/version" 2>/dev/null) != "$JAX_VERSION" ]]; then
  printf 'run_jax: installing jax %s into %s\n' "$JAX_VERSION" "$venv" >&2
  rm -rf "$venv"
  python3 -m venv "$venv" || {
    printf 'run_jax: error: python3 -m venv failed\n  Debian and Ubuntu: apt install python3-venv\n' >&2
    exit 1
  }
  "$venv/bin/python" -m pip --quiet --disable-pip-version-check install "jax==$JAX_VERSION" "jaxlib==$JAX_VERSION" numpy
  printf '%s\n' "$JAX_VERSION" >"$venv/version"
fi
TF_ENABLE_ONEDNN_OPTS=0 TF_CPP_MIN_LOG_LEVEL=3 exec "$venv/bin/python" "$root/tests/native/jax_on_plugin.py" "$plugin"
