#!/usr/bin/env bash
# Wait at most SECONDS for the run to end, then show where it is; what is known comes back in $OUT.
#   usage: look.sh SECONDS
# Copied while it waits too: a call that outlasts the device's time is killed.
bring() { cp /tmp/out/* "$OUT"/ 2> /dev/null; cp /tmp/pipeline.log "$OUT"/pipeline.log; }
for second in $(seq "${1:?seconds}"); do
  grep -qx finished /tmp/pipeline.log && break
  ((second % 10)) || bring
  sleep 1
done
bring
tr '\r' '\n' < /tmp/pipeline.log | tail -n 15 | cut -c1-200
