#!/bin/sh -e
# Trains a small byte-level GPT on text: a file or a folder, as it stands these examples.
root=$(cd "$(dirname "$0")/.." && pwd)
if [ -x "$root/build/pipetrain" ]; then built=$root/build/pipetrain; else built=pipetrain; fi
: "${PIPETRAIN:=$built}" "${STEPS:=300}" "${TEXT:=$root/examples}" "${OUT:=runs/examples}"
mkdir -p "$OUT"
"$PIPETRAIN" new gpt-nano -o "$OUT/gpt.onnx" --overwrite
"$PIPETRAIN" --model "$OUT/gpt.onnx" --data "$TEXT" --format text --val-split 0.1 --max-steps "$STEPS" --batch-size 16 --warmup 5% \
  --gpus 2 --device cpu --run-dir "$OUT/gpt" --overwrite -o "$OUT/gpt-trained.onnx"
