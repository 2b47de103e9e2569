#!/usr/bin/env python3
"""Prints the table of src/ops/registry/standard_attributes.cpp: the attributes of ONNX's operators from opset 7 on.
With the path of that file, checks that it has the table. Needs the package onnx."""

import collections
import pathlib
import sys
import textwrap

import onnx.defs

OLDEST = 7


def table():
    history = collections.defaultdict(dict)
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            history[schema.name][schema.since_version] = schema
    out = ""
    for op, versions in sorted(history.items()):
        first = max((since for since in versions if since <= OLDEST), default=OLDEST)
        names = sorted({name for since, schema in versions.items() if since >= first for name in schema.attributes})
        lines = textwrap.wrap(" ".join(names), 80) or [""]
        out += f'    {{"{op}",' + "".join(f'\n     "{line} "' for line in lines[:-1]) + ("\n    " if len(lines) > 1 else "")
        out += f' "{lines[-1]}"}},\n'
    return out


if __name__ == "__main__":
    if len(sys.argv) == 1:
        print(table(), end="")
    elif table() not in pathlib.Path(sys.argv[1]).read_text():
        sys.exit(f"{sys.argv[1]} does not have the attributes of onnx {onnx.__version__}: run {sys.argv[0]}")
