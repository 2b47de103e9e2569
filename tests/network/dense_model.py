"""MLPs without biases as ONNX files, written by hand: cut behind a layer, they send as many numbers as it is wide."""

import struct


def dense(widths):
    """The bytes of an ONNX file: layers of these widths with Relu between them."""
    def varint(value):
        return (bytes([value & 127 | 128]) + varint(value >> 7)) if value > 127 else bytes([value])

    def number_of(number, value):
        return varint(number << 3) + varint(value)

    def field(number, content):
        return varint(number << 3 | 2) + varint(len(content)) + content

    def text(number, value):
        return field(number, value.encode())

    def value(name, dims):
        shape = b"".join(field(1, text(2, dim) if isinstance(dim, str) else number_of(1, dim)) for dim in dims)
        return text(1, name) + field(2, field(1, number_of(1, 1) + field(2, shape)))

    nodes = tensors = b""
    last = "x"
    for layer, (rows, columns) in enumerate(zip(widths, widths[1:])):
        scale = (6 / rows) ** 0.5
        state, numbers = layer + 1, []
        for _ in range(rows * columns):  # a linear congruential generator is random enough
            state = (1103515245 * state + 12345) % 2**31
            numbers.append(scale * (state / 2**30 - 1))
        tensors += field(5, number_of(1, rows) + number_of(1, columns) + number_of(2, 1) + text(8, f"w{layer}") +
                         field(9, struct.pack(f"<{len(numbers)}f", *numbers)))
        nodes += field(1, text(1, last) + text(1, f"w{layer}") + text(2, f"h{layer}") + text(3, f"layer{layer}") + text(4, "MatMul"))
        last = f"h{layer}"
        if layer + 2 < len(widths):
            nodes += field(1, text(1, last) + text(2, f"r{layer}") + text(3, f"relu{layer}") + text(4, "Relu"))
            last = f"r{layer}"
    graph = nodes + text(2, "dense") + tensors + field(11, value("x", ["batch", widths[0]])) + field(12, value(last, ["batch", widths[-1]]))
    return number_of(1, 8) + field(7, graph) + field(8, number_of(2, 17))
