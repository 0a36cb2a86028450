#!/usr/bin/env bash
# Wait at most SECONDS for the run to end, then show where it is; what is known comes back in $OUT.
#   usage: look.sh SECONDS
for _ in $(seq "${1:?seconds}"); do
  grep -qx finished /tmp/pipeline.log && break
  sleep 1
done
cp /tmp/out/* "$OUT"/ 2> /dev/null
cp /tmp/pipeline.log "$OUT"/pipeline.log
tr '\r' '\n' < /tmp/pipeline.log | tail -n 15 | cut -c1-200
