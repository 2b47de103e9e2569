#!/usr/bin/env python3
"""Writes digits-cnn.onnx: a small untrained residual network for the 8x8 digits of digits.csv.gz.

Needs numpy and onnx. The weights are drawn as PyTorch draws them by default (uniform in
+-1/sqrt(fan_in)), from a fixed seed, so that running this again gives the same file.
BatchNormalization is in its inference form: pipetrain trains it in whatever form it comes, and the
trained file can be used for inference as it is.

    python3 make_digits_cnn.py [OUTPUT.onnx]
"""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
SEED = 1
CLASSES = 10


class NetworkBuilder:
    """Collects nodes and initializers; every layer method returns the name of its output."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.nodes = []
        self.initializers = []

    def add(self, operator, inputs, name, **attributes):
        output = name + ".out"
        self.nodes.append(helper.make_node(operator, inputs, [output], name=name, **attributes))
        return output

    def tensor(self, name, values):
        self.initializers.append(numpy_helper.from_array(np.asarray(values, np.float32), name))
        return name

    def uniform(self, name, shape, fan_in):
        bound = 1.0 / np.sqrt(fan_in)
        return self.tensor(name, self.random.uniform(-bound, bound, shape))

    def convolution(self, x, name, channels_in, channels_out, size=3):
        weight = self.uniform(
            name + ".weight", (channels_out, channels_in, size, size), channels_in * size * size
        )
        pad = size // 2
        return self.add(
            "Conv", [x, weight], name, kernel_shape=[size, size], pads=[pad] * 4, strides=[1, 1]
        )

    def batch_norm(self, x, name, channels):
        inputs = [
            x,
            self.tensor(name + ".weight", np.ones(channels)),
            self.tensor(name + ".bias", np.zeros(channels)),
            self.tensor(name + ".running_mean", np.zeros(channels)),
            self.tensor(name + ".running_var", np.ones(channels)),
        ]
        return self.add("BatchNormalization", inputs, name, epsilon=1e-5, momentum=0.9)

    def relu(self, x, name):
        return self.add("Relu", [x], name)


def make_model():
    net = NetworkBuilder(SEED)
    # Pixels come as 0..16, so that the rows of the data set can be fed unchanged.
    x = net.add("Mul", ["x", net.tensor("pixel_scale", 1.0 / 16.0)], "scale")
    x = net.convolution(x, "stem.conv", 1, 16)
    x = net.relu(net.batch_norm(x, "stem.norm", 16), "stem.relu")
    x = net.convolution(x, "wide.conv", 16, 32)
    x = net.relu(net.batch_norm(x, "wide.norm", 32), "wide.relu")
    x = net.add("MaxPool", [x], "pool", kernel_shape=[2, 2], strides=[2, 2])

    y = net.convolution(x, "block.conv1", 32, 32)
    y = net.relu(net.batch_norm(y, "block.norm1", 32), "block.relu1")
    y = net.convolution(y, "block.conv2", 32, 32)
    y = net.batch_norm(y, "block.norm2", 32)
    x = net.relu(net.add("Add", [x, y], "block.add"), "block.relu2")

    x = net.convolution(x, "last.conv", 32, 40)
    x = net.relu(net.batch_norm(x, "last.norm", 40), "last.relu")
    x = net.add("GlobalAveragePool", [x], "average")
    x = net.add("Flatten", [x], "flatten", axis=1)
    weight = net.uniform("head.weight", (CLASSES, 40), 40)
    bias = net.uniform("head.bias", (CLASSES,), 40)
    net.nodes.append(
        helper.make_node("Gemm", [x, weight, bias], ["logits"], name="head", transB=1)
    )

    graph = helper.make_graph(
        net.nodes,
        "digits-cnn",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])],
        initializer=net.initializers,
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=8,
        producer_name="make_digits_cnn.py",
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def main():
    default = Path(__file__).resolve().parent / "digits-cnn.onnx"
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    output.write_bytes(make_model().SerializeToString(deterministic=True))
    print(f"{output.name}: {output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
