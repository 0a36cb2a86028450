#!/usr/bin/env bash
# The whole run, one step after another; /tmp/out/h200-sglang.json is what is known so far.
set -uo pipefail
commit=$1
cd /tmp/aerie || exit 1
export SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK=1 HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1
AERIE_SGLANG='{"python": "python3", "concurrency": 128, "start_timeout_s": 400, "memory_share": 0.5,
  "arguments": ["--attention-backend", "triton", "--sampling-backend", "pytorch",
    "--max-total-tokens", "400000", "--cuda-graph-max-bs-decode", "128",
    "--cuda-graph-backend-prefill", "disabled"],
  "environment": {"SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1"}}'
export AERIE_SGLANG
mkdir -p /tmp/out
step() { # STEP SECONDS [OPTION...]
  python3 benchmarks/sglang/h200.py "$1" --budget "$2" --commit "$commit" --work /tmp/h200 \
    --out /tmp/out/h200-sglang.json --new-tokens 256 --held-out 100 --capture-tokens 600000 \
    --client-prompts 500 --timed-prompts 12 "${@:3}" --prompts /tmp/prompts/*
  local status=$?
  echo "status $status ($1) $(date +%T)"
  # A later step without this one costs device time and gives nothing.
  [ "$status" = 0 ] || exit "$status"
}
# What the report is made from, without tables, weights and states, and kernels for the next machine.
finish() {
  cd /tmp/h200 && find . -type f ! -name '*.safetensors' ! -name '*.parquet' ! -path './checkpoints/*' \
    ! -path './journals/*' -print0 | tar --null --files-from=- -czf /tmp/out/artifacts.tgz
  tar -C "$HOME" -cJf /tmp/out/cache.txz .cache/flashinfer .cache/tvm-ffi .triton
  echo finished
}
trap finish EXIT
# SGLang's own transformers are too old to read a GGUF by the class that this needs; the machine's are not.
own=$(env -u PYTHONPATH python3 -c 'import os, transformers as t; print(os.path.dirname(os.path.dirname(t.__file__)))')
(export PYTHONPATH=/tmp/aerie:$own:/tmp/site && trap - EXIT && step target 120) || exit
export PYTHONPATH=/tmp/aerie:/tmp/site
for _ in $(seq 200); do
  grep -q 'ready to roll' /tmp/warm.log && break
  pgrep -f 'port 39999' > /dev/null || break
  sleep 1
done
pkill -9 -f 'port 39999'
pkill -9 -f 'sglang::'
sleep 2
step answers 900 --repeats 2
step capture 300
step map 150
step draft 400
step bench 500
step overhead 200
