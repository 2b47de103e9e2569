#!/bin/sh -e
# Fine-tunes a ten-digit model for five digits: a new last layer, the rest with a tenth of the learning rate.
cd "$(dirname "$0")/.."
: "${PIPETRAIN:=build/pipetrain}" "${EPOCHS:=5}" "${OUT:=runs/examples}"
mkdir -p "$OUT"
gzip -dc models/digits.csv.gz | awk -F, '$NF < 5' > "$OUT/five.csv"
"$PIPETRAIN" --model models/digits-cnn.onnx --data "$OUT/five.csv" --num-classes 5 --lr 3e-3 --lr-scale '*=0.1' --lr-scale 'head*=1' \
  --ema 0.95 --val-split 0.2 --patience 3 --epochs "$EPOCHS" --device cpu --run-dir "$OUT/new_head" --overwrite -o "$OUT/five.onnx"
"$PIPETRAIN" predict "$OUT/five.onnx" --data "$OUT/five.csv" --limit 3
