"""NCCL is loaded when it is asked for, and what can be wrong with it is one sentence.

nccl_test.py EXCHANGE_GATE FOLDER_OF_THE_PLUGIN FAKE
"""
import os
import subprocess
import sys

gate, folder, fake = sys.argv[1:4]
checks = 0


def told(code, words, **environment):
    global checks
    checks += 1
    result = subprocess.run([gate, "absent"], env={**os.environ, "PIPETRAIN_BACKEND_PATH": folder, **environment},
                            capture_output=True, text=True, timeout=60)
    if result.returncode != code or words not in result.stdout or result.stdout.count("\n") != 1:
        sys.exit(f'expected exit {code} and "{words}": exit {result.returncode}\n{result.stdout}{result.stderr[-2000:]}')


told(5, "it is Debian's package libnccl2 or PyPI's nvidia-nccl-cu13", PIPETRAIN_NCCL="/nowhere/libnccl.so.2")
told(5, "the NCCL that was found has no ncclGetVersion", PIPETRAIN_NCCL="libm.so.6")
told(5, "is NCCL 2.14.3, older than the 2.26.0 that is needed", PIPETRAIN_NCCL=fake, LD_PRELOAD=fake, FAKE_NCCL_VERSION="21403")
told(0, "NCCL 2.27.7", PIPETRAIN_NCCL=fake, LD_PRELOAD=fake, FAKE_NCCL_VERSION="22707")
told(0, "NCCL 2.", PIPETRAIN_NCCL=fake, LD_PRELOAD=fake)
real = subprocess.run([gate, "absent"], env={**os.environ, "PIPETRAIN_BACKEND_PATH": folder}, capture_output=True, text=True, timeout=60)
checks += 1
if real.returncode not in (0, 5) or real.stdout.count("\n") != 1:
    sys.exit(f"NCCL of this machine: exit {real.returncode}\n{real.stdout}{real.stderr[-2000:]}")
print(f"NCCL: {checks} checks; this machine's: {real.stdout.strip()}")
