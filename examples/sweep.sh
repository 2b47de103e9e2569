#!/bin/sh -e
# One run per learning rate; runs that diverge (exit code 6) are skipped. The table needs jq.
root=$(cd "$(dirname "$0")/.." && pwd)
if [ -x "$root/build/pipetrain" ]; then built=$root/build/pipetrain; else built=pipetrain; fi
: "${PIPETRAIN:=$built}" "${EPOCHS:=3}" "${RATES:=1e-4 1e-3 1e-2}" "${OUT:=runs/examples}"
for lr in $RATES; do
  code=0
  "$PIPETRAIN" --model "$root"/models/digits-cnn.onnx --data "$root"/models/digits.csv.gz --val-split 0.2 --epochs "$EPOCHS" --lr "$lr" \
    --device cpu --run-dir "$OUT/sweep-$lr" --overwrite -q || code=$?
  [ "$code" = 0 ] || [ "$code" = 6 ] || exit "$code"
done
for lr in $RATES; do
  jq -r --arg lr "$lr" 'select(.event == "run_end") | [$lr, .status, .best.value] | @tsv' "$OUT/sweep-$lr/events.jsonl"
done
