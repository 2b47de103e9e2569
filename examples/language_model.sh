#!/bin/sh -e
# Trains a small byte-level GPT on text.
cd "$(dirname "$0")/.."
: "${PIPETRAIN:=build/pipetrain}" "${STEPS:=300}" "${TEXT:=README.md}" "${OUT:=runs/examples}"
mkdir -p "$OUT"
"$PIPETRAIN" new gpt-nano -o "$OUT/gpt.onnx" --overwrite
"$PIPETRAIN" --model "$OUT/gpt.onnx" --data "$TEXT" --format text --val-split 0.1 --max-steps "$STEPS" --batch-size 16 --warmup 5% \
  --gpus 2 --device cpu --run-dir "$OUT/gpt" --overwrite -o "$OUT/gpt-trained.onnx"
