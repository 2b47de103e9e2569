#!/usr/bin/env bash
# Runs a Python script with the interpreter in PIPETRAIN_ORACLE_PYTHON, which has numpy, onnx and onnxruntime. Without
# one, says so and ends with 77, which CTest counts as skipped.
set -euo pipefail
if [[ -z "${PIPETRAIN_ORACLE_PYTHON:-}" ]]; then
  echo "skipped: PIPETRAIN_ORACLE_PYTHON names no Python with tests/oracle/requirements.txt; scripts/test makes one" >&2
  exit 77
fi
exec "$PIPETRAIN_ORACLE_PYTHON" "$@"
