"""Times forward passes of ONNX Runtime on FOLDER/model.onnx and FOLDER/batch.npz, a lower bound for a training step.

    python3 peer_onnxruntime.py FOLDER --threads 1 --runs 5
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import onnxruntime


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = arguments.threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(arguments.folder / "model.onnx", options, providers=["CPUExecutionProvider"])
    inputs = {session.get_inputs()[0].name: np.load(arguments.folder / "batch.npz")["x"]}
    times = []
    for run in range(arguments.runs + 1):
        start = time.perf_counter()
        session.run(None, inputs)
        if run > 0:
            times.append(1e3 * (time.perf_counter() - start))
    print(json.dumps({"version": onnxruntime.__version__, "step_ms": times}))


main()
