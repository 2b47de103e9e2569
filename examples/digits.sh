#!/bin/sh -e
# Trains a digit classifier in several pipeline stages and evaluates it. EPOCHS, STAGES and PIPETRAIN override the defaults.
root=$(cd "$(dirname "$0")/.." && pwd)
if [ -x "$root/build/pipetrain" ]; then built=$root/build/pipetrain; else built=pipetrain; fi
: "${PIPETRAIN:=$built}" "${EPOCHS:=20}" "${STAGES:=4}" "${OUT:=runs/examples}"
mkdir -p "$OUT"
"$PIPETRAIN" --model "$root"/models/digits-cnn.onnx --data "$root"/models/digits.csv.gz --val-split 0.2 --epochs "$EPOCHS" --lr 2e-3 \
  --gpus "$STAGES" --device cpu --run-dir "$OUT/digits" --overwrite -o "$OUT/digits.onnx"
"$PIPETRAIN" eval "$OUT/digits.onnx" --data "$root"/models/digits.csv.gz --device cpu --top-k 3 --confusion "$OUT/confusion.csv"
