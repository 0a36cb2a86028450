#!/usr/bin/env bash
# First call on the machine, with sglang.txz beside this, and cache.txz, the kernels of an earlier
# machine, or shape/: then a server of the target's shape with random weights compiles them while
# the rest travels.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p /tmp/site /tmp/model
tar -xJf "$here/sglang.txz" -C /tmp/site
if [ -f "$here/cache.txz" ]; then
  tar -xJf "$here/cache.txz" -C "$HOME"
  exit
fi
cp -r "$here/shape" /tmp/shape
export PYTHONPATH=/tmp/site SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK=1 HF_HUB_OFFLINE=1
setsid timeout 300 python3 -m sglang.launch_server --model-path /tmp/shape --load-format dummy \
  --attention-backend triton --sampling-backend pytorch --max-running-requests 128 --port 39999 \
  --mem-fraction-static 0.05 --cuda-graph-max-bs-decode 128 --cuda-graph-backend-prefill disabled \
  > /tmp/warm.log 2>&1 < /dev/null &
sleep 1
