#!/bin/bash
# Builds harness.cc with the kernels, without XLA: build.sh FOLDER [FLAG...], for example -fsanitize=address or
# -fsanitize=thread. $CXX is the compiler.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
kernels=$here/../../cpp/kernels
to=$1
shift
flags=(-O2 -std=c++17 -w "$@")
avx512=(-mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma)
"${CXX:-g++}" "${flags[@]}" -mavx2 -mfma -c "$kernels/avx2.cc" -o "$to/avx2.o"
"${CXX:-g++}" "${flags[@]}" "${avx512[@]}" -c "$kernels/avx512_f32.cc" -o "$to/avx512_f32.o"
"${CXX:-g++}" "${flags[@]}" "${avx512[@]}" -mavx512bf16 -mamx-tile -mamx-bf16 -c "$kernels/amx_bf16.cc" -o "$to/amx_bf16.o"
"${CXX:-g++}" "${flags[@]}" "${avx512[@]}" -mavx512bf16 -mamx-tile -mamx-bf16 -c "$kernels/amx_f32.cc" -o "$to/amx_f32.o"
"${CXX:-g++}" "${flags[@]}" "${avx512[@]}" -mavx512bf16 -include "$here/emulated_tiles.h" -c "$kernels/amx_bf16.cc" -o "$to/amx_bf16_emulated.o"
"${CXX:-g++}" "${flags[@]}" "${avx512[@]}" -mavx512bf16 -include "$here/emulated_tiles.h" -c "$kernels/amx_f32.cc" -o "$to/amx_f32_emulated.o"
"${CXX:-g++}" "${flags[@]}" "${avx512[@]}" -mavx512bf16 -c "$kernels/avx512_bf16.cc" -o "$to/avx512_bf16.o"
pass=(-O3 -ffp-contract=off -fno-math-errno -fno-trapping-math)
"${CXX:-g++}" "${flags[@]}" "${pass[@]}" -c "$kernels/loops_baseline.cc" -o "$to/loops_baseline.o"
"${CXX:-g++}" "${flags[@]}" "${pass[@]}" -mavx2 -c "$kernels/loops_avx2.cc" -o "$to/loops_avx2.o"
"${CXX:-g++}" "${flags[@]}" "${pass[@]}" "${avx512[@]}" -c "$kernels/loops_avx512.cc" -o "$to/loops_avx512.o"
"${CXX:-g++}" "${flags[@]}" "$here/harness.cc" "$here/plans.cc" "$kernels"/{find,cost_model,wait,measure}.cc "$to/avx512_f32.o" "$to/avx512_bf16.o" "$to"/amx_*.o "$to/avx2.o" "$to"/loops_*.o -o "$to/harness" -lpthread
