"""ONNX files from Python's standard library alone: small models for tests, also those that no exporter would write."""

import struct

from program import field

FLOAT, INT64, BOOL = 1, 7, 9


def varint(number, value):
    """The field `number` with an integer; negative ones as 64 bits in two's complement."""
    out = b""
    for rest in (number << 3, value & 0xFFFFFFFFFFFFFFFF):
        while rest > 127:
            out += bytes([rest & 127 | 128])
            rest >>= 7
        out += bytes([rest])
    return out


def text(value):
    return value if isinstance(value, bytes) else value.encode()


def tensor(name, dims, values=(), kind=FLOAT):
    """An initializer or the content of an attribute; `values` may be bytes."""
    if not isinstance(values, bytes):
        values = struct.pack(f"<{len(values)}{'f' if kind == FLOAT else 'q'}", *values)
    return b"".join(varint(1, dim) for dim in dims) + varint(2, kind) + field(8, text(name)) + field(9, values)


def attribute(name, value):
    """An attribute of the type of `value`: int, float, str, list of ints or floats, bytes of a tensor, or ("graph", bytes)."""
    out = field(1, text(name))
    if isinstance(value, tuple):
        return out + field(6, value[1]) + varint(20, 5)
    if isinstance(value, int):
        return out + varint(3, value) + varint(20, 2)
    if isinstance(value, float):
        return out + b"\x15" + struct.pack("<f", value) + varint(20, 1)
    if isinstance(value, str):
        return out + field(4, text(value)) + varint(20, 3)
    if isinstance(value, bytes):
        return out + field(5, value) + varint(20, 4)
    if all(isinstance(item, int) for item in value):
        return out + b"".join(varint(8, item) for item in value) + varint(20, 7)
    return out + b"".join(b"\x3d" + struct.pack("<f", item) for item in value) + varint(20, 6)


def node(op, inputs, outputs, name="", domain="", **attributes):
    return (b"".join(field(1, text(one)) for one in inputs) + b"".join(field(2, text(one)) for one in outputs) +
            (field(3, text(name)) if name else b"") + field(4, text(op)) +
            b"".join(field(5, attribute(key, value)) for key, value in attributes.items()) +
            (field(7, text(domain)) if domain else b""))


def value_info(name, dims, kind=FLOAT):
    """A graph input or output. A dim is a number or the name of a free dimension."""
    shape = b"".join(field(1, varint(1, dim) if isinstance(dim, int) else field(2, text(dim))) for dim in dims)
    return field(1, text(name)) + field(2, field(1, varint(1, kind) + field(2, shape)))


def graph(nodes, inputs=(), outputs=(), initializers=(), name="g"):
    return (b"".join(field(1, one) for one in nodes) + field(2, text(name)) + b"".join(field(5, one) for one in initializers) +
            b"".join(field(11, one) for one in inputs) + b"".join(field(12, one) for one in outputs))


def model(nodes, inputs=None, outputs=None, initializers=(), opset=17, ir=8):
    """A whole file. Without others it has the input x (batch, 4) and the output y."""
    inputs = [value_info("x", ["batch", 4])] if inputs is None else inputs
    outputs = [value_info("y", ["batch", 4])] if outputs is None else outputs
    return varint(1, ir) + field(7, graph(nodes, inputs, outputs, initializers)) + field(8, varint(2, opset))
