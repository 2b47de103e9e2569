#!/bin/sh -e
# ResNet-18 on CIFAR-10 with the settings of TensorFlow's CIFAR-10 example: batch size 128, momentum 0.9, weight decay 2e-4, learning rate 0.1,
# divided by 10 after 82 and 123 epochs, random crops and flips. DATA is the folder with data_batch_1.bin … and test_batch.bin of
# the binary version of CIFAR-10.
root=$(cd "$(dirname "$0")/.." && pwd)
if [ -x "$root/build/pipetrain" ]; then built=$root/build/pipetrain; else built=pipetrain; fi
: "${PIPETRAIN:=$built}" "${DATA:=cifar-10-batches-bin}" "${EPOCHS:=160}" "${STAGES:=4}" "${OUT:=runs/examples}" "${WIDTH:=64}"
mkdir -p "$OUT"
"$PIPETRAIN" new resnet18 --width "$WIDTH" -o "$OUT/resnet18.onnx" --overwrite
"$PIPETRAIN" --model "$OUT/resnet18.onnx" --data "$DATA" --epochs "$EPOCHS" --batch-size "${BATCH:-128}" --gpus "$STAGES" --device cpu \
  --optimizer sgd --momentum 0.9 --weight-decay 2e-4 --lr 0.1 --lr-schedule multistep:at=82ep,123ep --augment flip,crop:4 \
  --normalize 0.4914,0.4822,0.4465/0.2470,0.2435,0.2616 --run-dir "$OUT/cifar10" --overwrite -o "$OUT/cifar10.onnx"
