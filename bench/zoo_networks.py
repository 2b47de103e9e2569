"""The networks of `pipetrain new` in PyTorch, with parameters of the same names and shapes.

Each is a sequence of segments; a segment takes the result of the previous one, so that the network can be cut anywhere between
them. Sizes are those of the command line: `build("vgg", width=64, image=32, channels=3, classes=10)`.
"""

import numpy as np
import torch
from torch import nn
from torch.nn import functional


class Segments(nn.Module):
    """A network whose forward pass runs `segments()` in sequence."""

    def segments(self):
        """Modules and functions, in order."""
        raise NotImplementedError

    def forward(self, x):
        for segment in self.segments():
            x = segment(x)
        return x

    def from_file(self, weights):
        """Arrays of an ONNX file, renamed to the parameters here."""
        return weights

    def to_file(self, state):
        """Parameters, renamed to the arrays of an ONNX file."""
        return state


class Mlp(Segments):
    def __init__(self, image=28, channels=1, classes=10, width=256, depth=2):
        super().__init__()
        sizes = [channels * image * image] + [width] * depth + [classes]
        for i in range(depth + 1):
            setattr(self, f"fc{i + 1}", nn.Linear(sizes[i], sizes[i + 1]))
        self.depth = depth

    def segments(self):
        out = [nn.Flatten()]
        for i in range(self.depth):
            out += [getattr(self, f"fc{i + 1}"), nn.ReLU()]
        return out + [getattr(self, f"fc{self.depth + 1}")]


class Lenet(Segments):
    def __init__(self, image=28, channels=1, classes=10):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        side = (image // 2 - 4) // 2
        self.fc1 = nn.Linear(16 * side * side, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)

    def segments(self):
        return [self.conv1, nn.ReLU(), nn.MaxPool2d(2), self.conv2, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                self.fc1, nn.ReLU(), self.fc2, nn.ReLU(), self.fc3]


class BasicBlock(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.downsample = None
        if stride != 1 or before != after:
            self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        y = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        y += x if self.downsample is None else self.downsample(x)
        return functional.relu(y, inplace=True)


class Resnet18(Segments):
    def __init__(self, image=32, channels=3, classes=10, width=64):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        before = width
        for level in range(4):
            after = width << level
            blocks = [BasicBlock(before, after, 1 if level == 0 else 2), BasicBlock(after, after, 1)]
            setattr(self, f"layer{level + 1}", nn.Sequential(*blocks))
            before = after
        self.fc = nn.Linear(before, classes)

    def segments(self):
        blocks = [block for level in range(4) for block in getattr(self, f"layer{level + 1}")]
        return [self.conv1, self.bn1, nn.ReLU(True), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), self.fc]


class Bottleneck(nn.Module):
    def __init__(self, before, width, stride):
        super().__init__()
        after = 4 * width
        self.conv1 = nn.Conv2d(before, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, after, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(after)
        self.downsample = None
        if stride != 1 or before != after:
            self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        y = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        y = functional.relu(self.bn2(self.conv2(y)), inplace=True)
        y = self.bn3(self.conv3(y))
        y += x if self.downsample is None else self.downsample(x)
        return functional.relu(y, inplace=True)


class Resnet50(Segments):
    def __init__(self, image=224, channels=3, classes=1000, width=64):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        before = width
        for level, count in enumerate((3, 4, 6, 3)):
            blocks = []
            for block in range(count):
                blocks.append(Bottleneck(before, width << level, 2 if level > 0 and block == 0 else 1))
                before = 4 * width << level
            setattr(self, f"layer{level + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(before, classes)

    def segments(self):
        blocks = [block for level in range(4) for block in getattr(self, f"layer{level + 1}")]
        return [self.conv1, self.bn1, nn.ReLU(True), nn.MaxPool2d(3, 2, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                self.fc]


class Vgg(Segments):
    def __init__(self, image=32, channels=3, classes=10, width=64):
        super().__init__()
        layers = []
        before = channels
        for level in [1, 0, 2, 0, 4, 4, 0, 8, 8, 0, 8, 8, 0]:
            if level == 0:
                layers.append(nn.MaxPool2d(2))
                continue
            layers += [nn.Conv2d(before, level * width, 3, padding=1), nn.ReLU(True)]
            before = level * width
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(before * (image // 32) ** 2, classes)

    def segments(self):
        return [*self.features, nn.Flatten(), self.classifier]


def convolution(before, after, kernel=3, stride=1, groups=1):
    """A convolution with BatchNorm and ReLU6, as in MobileNet."""
    conv = nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(after), nn.ReLU6(True))


class InvertedResidual(nn.Module):
    def __init__(self, before, after, expansion, stride):
        super().__init__()
        inner = before * expansion
        layers = [] if expansion == 1 else [convolution(before, inner, 1)]
        layers += [convolution(inner, inner, 3, stride, groups=inner), nn.Conv2d(inner, after, 1, bias=False),
                   nn.BatchNorm2d(after)]
        self.conv = nn.Sequential(*layers)
        self.skip = stride == 1 and before == after

    def forward(self, x):
        return x + self.conv(x) if self.skip else self.conv(x)


class Mobilenet(Segments):
    def __init__(self, image=32, channels=3, classes=10, width=32):
        super().__init__()

        def scaled(count):
            # torchvision's rule: the nearest multiple of 8, at least 90 %.
            wanted = count * width / 32
            rounded = max(8, int(wanted + 4) // 8 * 8)
            return rounded + 8 if rounded < 0.9 * wanted else rounded

        before = scaled(32)
        layers = [convolution(channels, before)]
        for expansion, count, repeats, stride in [(1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
                                                  (6, 160, 3, 2), (6, 320, 1, 1)]:
            for i in range(repeats):
                layers.append(InvertedResidual(before, scaled(count), expansion, stride if i == 0 else 1))
                before = scaled(count)
        last = max(1280, scaled(1280))
        layers.append(convolution(before, last, 1))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Identity(), nn.Linear(last, classes))

    def segments(self):
        return [*self.features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), *self.classifier]


class Unet(Segments):
    def __init__(self, image=64, channels=3, classes=2, width=32, depth=4):
        super().__init__()

        def two_convolutions(place, before, after):
            block = nn.Sequential()
            for i in (1, 2):
                block.add_module(f"{place}conv{i}", nn.Conv2d(before if i == 1 else after, after, 3, 1, 1, bias=False))
                block.add_module(f"{place}norm{i}", nn.BatchNorm2d(after))
                block.add_module(f"{place}relu{i}", nn.ReLU(True))
            return block

        self.depth = depth
        before, after = channels, width
        for i in range(1, depth + 1):
            setattr(self, f"encoder{i}", two_convolutions(f"enc{i}", before, after))
            before, after = after, 2 * after
        self.bottleneck = two_convolutions("bottleneck", before, after)
        for i in range(depth, 0, -1):
            setattr(self, f"upconv{i}", nn.ConvTranspose2d(after, after // 2, 2, 2))
            setattr(self, f"decoder{i}", two_convolutions(f"dec{i}", after, after // 2))
            after //= 2
        self.conv = nn.Conv2d(after, classes, 1)

    def segments(self):
        return [self.all_levels]

    def all_levels(self, x):
        skips = []
        for i in range(1, self.depth + 1):
            skips.append(getattr(self, f"encoder{i}")(x))
            x = functional.max_pool2d(skips[-1], 2)
        x = self.bottleneck(x)
        for i in range(self.depth, 0, -1):
            x = torch.cat([getattr(self, f"upconv{i}")(x), skips[i - 1]], 1)
            x = getattr(self, f"decoder{i}")(x)
        return self.conv(x)


def attend(query, key, value, heads, causal):
    """Multi-head attention over (batch, tokens, width)."""
    batch, tokens, width = query.shape

    def split(x):
        return x.view(batch, tokens, heads, width // heads).transpose(1, 2)

    y = functional.scaled_dot_product_attention(split(query), split(key), split(value), is_causal=causal)
    return y.transpose(1, 2).reshape(batch, tokens, width)


class GptAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.heads = heads

    def forward(self, x):
        return self.proj(attend(*self.qkv(x).chunk(3, -1), self.heads, causal=True))


class GptMlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x):
        return self.fc2(functional.gelu(self.fc1(x)))


class GptBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = GptAttention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = GptMlp(width)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt(Segments):
    def __init__(self, width=128, depth=4, heads=4, vocab=256, context=64):
        super().__init__()
        self.token_embedding = nn.Embedding(vocab, width)
        self.position_embedding = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(GptBlock(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocab, bias=False)

    def embed(self, ids):
        return self.token_embedding(ids) + self.position_embedding.weight

    def segments(self):
        return [self.embed, *self.blocks, self.norm, self.lm_head]


class BertSelf(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.heads = heads

    def forward(self, x):
        return attend(self.query(x), self.key(x), self.value(x), self.heads, causal=False)


class BertOutput(nn.Module):
    """norm(x + dense(y))"""

    def __init__(self, before, width):
        super().__init__()
        self.dense = nn.Linear(before, width)
        self.LayerNorm = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x, y):
        return self.LayerNorm(self.dense(y) + x)


class BertBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention = nn.Module()
        self.attention.self = BertSelf(width, heads)
        self.attention.output = BertOutput(width, width)
        self.intermediate = nn.Module()
        self.intermediate.dense = nn.Linear(width, 4 * width)
        self.output = BertOutput(4 * width, width)

    def forward(self, x):
        x = self.attention.output(x, self.attention.self(x))
        return self.output(x, functional.gelu(self.intermediate.dense(x)))


class Bert(Segments):
    def __init__(self, classes=2, width=256, depth=4, heads=4, vocab=30522, context=128):
        super().__init__()
        self.bert = nn.Module()
        self.bert.embeddings = nn.Module()
        self.bert.embeddings.word_embeddings = nn.Embedding(vocab, width)
        self.bert.embeddings.position_embeddings = nn.Embedding(context, width)
        self.bert.embeddings.token_type_embeddings = nn.Embedding(2, width)
        self.bert.embeddings.LayerNorm = nn.LayerNorm(width, eps=1e-12)
        self.bert.encoder = nn.Module()
        self.bert.encoder.layer = nn.ModuleList(BertBlock(width, heads) for _ in range(depth))
        self.bert.pooler = nn.Module()
        self.bert.pooler.dense = nn.Linear(width, width)
        self.classifier = nn.Linear(width, classes)

    def embed(self, ids):
        of = self.bert.embeddings
        segment = of.token_type_embeddings.weight[0]
        return of.LayerNorm(of.word_embeddings(ids) + segment + of.position_embeddings.weight)

    def classify(self, x):
        return self.classifier(torch.tanh(self.bert.pooler.dense(x[:, 0])))

    def segments(self):
        return [self.embed, *self.bert.encoder.layer, self.classify]


class Lstm(Segments):
    """ONNX stores a layer's weights in three tensors with another gate order: i o f c, not i f c o."""

    PYTORCH_GATES = (0, 2, 3, 1)  # where PyTorch's gates stand in ONNX's order
    ONNX_GATES = (0, 3, 1, 2)

    def __init__(self, width=512, depth=2, vocab=256, context=64):
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.lstm = nn.LSTM(width, width, depth)
        self.head = nn.Linear(width, vocab)

    def recur(self, x):
        return self.lstm(x)[0].transpose(0, 1)

    def segments(self):
        return [torch.t, self.embedding, self.recur, self.head]

    def from_file(self, weights):
        """The file's arrays, renamed to PyTorch's parameters."""
        state = {name: weights[name] for name in ("embedding.weight", "head.weight", "head.bias")}
        for i in range(self.lstm.num_layers):
            state[f"lstm.weight_ih_l{i}"] = in_gate_order(weights[f"lstm.{i}.W"][0], self.PYTORCH_GATES)
            state[f"lstm.weight_hh_l{i}"] = in_gate_order(weights[f"lstm.{i}.R"][0], self.PYTORCH_GATES)
            inner, outer = np.split(weights[f"lstm.{i}.B"][0], 2)
            state[f"lstm.bias_ih_l{i}"] = in_gate_order(inner, self.PYTORCH_GATES)
            state[f"lstm.bias_hh_l{i}"] = in_gate_order(outer, self.PYTORCH_GATES)
        return state

    def to_file(self, state):
        """The inverse."""
        weights = {name: state[name] for name in ("embedding.weight", "head.weight", "head.bias")}
        for i in range(self.lstm.num_layers):
            weights[f"lstm.{i}.W"] = in_gate_order(state[f"lstm.weight_ih_l{i}"], self.ONNX_GATES)[None]
            weights[f"lstm.{i}.R"] = in_gate_order(state[f"lstm.weight_hh_l{i}"], self.ONNX_GATES)[None]
            biases = [in_gate_order(state[f"lstm.bias_{kind}_l{i}"], self.ONNX_GATES) for kind in ("ih", "hh")]
            weights[f"lstm.{i}.B"] = np.concatenate(biases)[None]
        return weights


def in_gate_order(array, order):
    """Rows with the four gates in another order."""
    gates = np.split(np.asarray(array), 4)
    return np.concatenate([gates[gate] for gate in order])


NETWORKS = {
    "mlp": Mlp,
    "lenet": Lenet,
    "resnet18": Resnet18,
    "resnet50": Resnet50,
    "vgg": Vgg,
    "mobilenet": Mobilenet,
    "unet": Unet,
    "gpt": Gpt,
    "bert": Bert,
    "lstm": Lstm,
}


def build(name, weights=None, **sizes):
    """A network, with the weights of a file if given: all of them must match."""
    network = NETWORKS[name](**sizes)
    if weights is not None:
        load(network, weights)
    return network


def load(network, weights):
    """Copies a file's arrays by name; a missing parameter or statistic is an error."""
    state = network.from_file(weights)
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            if not name.endswith("num_batches_tracked"):
                tensor.copy_(torch.from_numpy(np.array(state[name])))
