#!/bin/sh -e
# Fine-tunes a ten-digit model for five digits: a new last layer, the rest with a tenth of the learning rate.
root=$(cd "$(dirname "$0")/.." && pwd)
if [ -x "$root/build/pipetrain" ]; then built=$root/build/pipetrain; else built=pipetrain; fi
: "${PIPETRAIN:=$built}" "${EPOCHS:=5}" "${OUT:=runs/examples}"
mkdir -p "$OUT"
gzip -dc "$root"/models/digits.csv.gz | awk -F, '$NF < 5' > "$OUT/five.csv"
"$PIPETRAIN" --model "$root"/models/digits-cnn.onnx --data "$OUT/five.csv" --num-classes 5 --lr 3e-3 --lr-scale '*=0.1' --lr-scale 'head*=1' \
  --ema 0.95 --val-split 0.2 --patience 3 --epochs "$EPOCHS" --device cpu --run-dir "$OUT/new_head" --overwrite -o "$OUT/five.onnx"
"$PIPETRAIN" predict "$OUT/five.onnx" --data "$OUT/five.csv" --limit 3
