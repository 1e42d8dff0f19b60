# What bin/gpu-session runs on a card, bin/neuron-session on a chip, and bin/gpu-pack prepares at home: sourced by all, so that
# they cannot differ.
# shellcheck shell=bash disable=SC2034

die() {
  printf '%s: error: %s\n' "${0##*/}" "$1" >&2
  shift
  for line in "$@"; do printf '  %s\n' "$line" >&2; done
  exit 1
}

# The directory and the options, which both take; usage() is the script's own.
read_options() {
  (($# > 0)) || { usage >&2; exit 2; }
  case $1 in -h | --help) usage; exit 0 ;; -*) usage >&2; exit 2 ;; esac
  dir=$1 plugin='' tokenizer='' data='' peers='' target='' quick=''
  shift
  while (($# > 0)); do
    case $1 in
      --plugin | --tokenizer | --data | --peers | --target)
        (($# > 1)) || die "$1 wants a value"
        printf -v "${1#--}" '%s' "$2"
        shift 2
        ;;
      --quick) quick=1; shift ;;
      *) usage >&2; exit 2 ;;
    esac
  done
}

# Empties nothing: figures of two sessions must not mix.
new_directory() {
  mkdir -p "$1" || die "cannot make $1"
  [[ -z $(ls -A "$1") ]] || die "$1 is not empty" 'name another directory'
  out=$(cd "$1" && pwd -P)
  export XTRAIN_CACHE_DIR=$out/cache
  summary=$out/summary.txt
  failed=()
}

find_xtrain() {
  xtrain=${XTRAIN:-$here/../target/release/xtrain}
  [[ -x $xtrain ]] || xtrain=$(command -v xtrain) || die 'there is no xtrain' 'run bin/bootstrap, or set XTRAIN to the program'
  [[ -z $plugin ]] || export XTRAIN_CUDA_PLUGIN=$plugin
  local path
  for path in "$tokenizer" "$data"; do [[ -z $path || -d $path ]] || die "$path is not a directory"; done
  [[ -z $peers || -f $peers ]] || die "$peers is not a file"
}

say() { printf '%s\n' "$*" | tee -a "$summary"; }
note() { say "note  $*"; }
# Runs a step with its output in OUT/NAME.txt; its last lines are repeated here, and its failure is remembered.
step() { # name, what it is, command ...
  local name=$1 what=$2 began=$SECONDS status=0
  shift 2
  printf '$ %s\n' "$*" >"$out/$name.txt"
  "$@" >>"$out/$name.txt" 2>&1 || status=$?
  if ((status == 0)); then
    say "ok    $name ($((SECONDS - began)) s): $what"
  else
    say "FAIL  $name ($((SECONDS - began)) s, exit $status): $what; the end of $name.txt:"
    tail -5 "$out/$name.txt" | sed 's/^/        /' | tee -a "$summary"
    failed+=("$name")
  fi
  return "$status"
}
finish() {
  ((${#failed[@]} == 0)) || { say "FAILED: ${failed[*]}"; exit 1; }
}

# Sizes; with --quick those of a rehearsal, whose figures mean nothing.
set_sizes() {
  dropouts='embd_pdrop=0,attn_pdrop=0,resid_pdrop=0'
  steps=200 small='n_layer=4,n_head=4,n_embd=256,n_positions=256'
  rows=32 half=16 tokens=1024 bench_overrides=$dropouts warmup=5 timed=20
  [[ -n $quick ]] || return 0
  steps=10 small='n_layer=2,n_head=2,n_embd=128,n_positions=128'
  rows=4 half=2 tokens=128 bench_overrides=$small,$dropouts warmup=1 timed=5
}

# The text: train.txt or train.txt.gz, and valid.txt.
set_text() {
  train=$(ls "$1"/train.txt "$1"/train.txt.gz 2>/dev/null | head -1) valid=$1/valid.txt
  [[ -n $train && -f $valid ]] || die "$1 has not both: train.txt or train.txt.gz, and valid.txt"
}

# A small GPT-2, or $model_type, on text. The first word is xtrain's command.
on_text() {
  "$xtrain" "$1" clm --model_type "${model_type:-gpt2}" --block_size 128 --per_device_train_batch_size "${each:-8}" --tokenizer_name "$tokenizer" \
    --train_file "$train" --do_train --disable_tqdm "${@:2}"
}
curve() { # command, further flags
  on_text "$1" --config_overrides "$small,$dropouts" --validation_file "$valid" --max_eval_samples 64 --do_eval \
    --learning_rate 1e-3 --max_steps "$steps" --logging_steps 10 --save_steps $((steps / 2)) "${@:2}"
}
# The same in bf16 with dropout in attention.
dropping() { # command, further flags
  on_text "$1" --bf16 --config_overrides "$small,embd_pdrop=0,attn_pdrop=0.1,resid_pdrop=0" \
    --learning_rate 1e-3 --max_steps "$steps" --logging_steps 10 --save_strategy no "${@:2}"
}
# Layers of Mistral in bf16 that see 32 tokens.
windowed() { # command, further flags
  local overrides='num_hidden_layers=4,hidden_size=256,num_attention_heads=4,num_key_value_heads=2,head_dim=64,intermediate_size=512'
  model_type=mistral on_text "$1" --bf16 --config_overrides "$overrides,max_position_embeddings=128,sliding_window=32" \
    --learning_rate 1e-3 --max_steps "$steps" --logging_steps 10 --save_strategy no "${@:2}"
}
# With a learning rate of 0 and one batch nothing but the masks changes from step to step, so the losses must differ.
masks() { # command, further flags
  on_text "$1" --bf16 --config_overrides "$small,embd_pdrop=0,attn_pdrop=0.5,resid_pdrop=0" --max_train_samples 8 \
    --learning_rate 0 --max_steps 6 --logging_steps 1 --save_strategy no --attention_dropout_kernel cudnn "${@:2}"
}
bench() { # rows, further flags
  "$xtrain" bench --device "${device:-cuda}" --model_type gpt2 --config_overrides "$bench_overrides" --batch "$1" --seq "$tokens" --steps "$timed" \
    --warmup "$warmup" --json "${@:2}"
}
# A bench's graphs, for a card that is not there: they are those of a training run with its settings.
bench_for_target() { # rows, further flags
  "$xtrain" compile clm --device cuda --target "$target" --model_type gpt2 --config_overrides "$bench_overrides" \
    --tokenizer_name "$tokenizer" --block_size "$tokens" --per_device_train_batch_size "$1" --weight_decay 0.01 "${@:2}"
}
