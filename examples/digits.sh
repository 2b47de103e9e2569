#!/bin/sh -e
# Trains a digit classifier in several pipeline stages and evaluates it. EPOCHS, STAGES and PIPETRAIN override the defaults.
cd "$(dirname "$0")/.."
: "${PIPETRAIN:=build/pipetrain}" "${EPOCHS:=20}" "${STAGES:=4}" "${OUT:=runs/examples}"
mkdir -p "$OUT"
"$PIPETRAIN" --model models/digits-cnn.onnx --data models/digits.csv.gz --val-split 0.2 --epochs "$EPOCHS" --lr 2e-3 \
  --gpus "$STAGES" --device cpu --run-dir "$OUT/digits" --overwrite -o "$OUT/digits.onnx"
"$PIPETRAIN" eval "$OUT/digits.onnx" --data models/digits.csv.gz --device cpu --top-k 3 --confusion "$OUT/confusion.csv"
