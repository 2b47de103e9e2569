"""The networks of real_sizes.py: of torchvision, transformers and timm with random weights, and some defined here and in
further_networks.py.

Needs torch and, by network, torchvision, transformers, timm or diffusers. Without dropout and stochastic depth, whose masks no two programs
share.
"""

import numpy as np
import torch
from torch import nn

from further_networks import FURTHER
from models import ALL_MODELS

SEED = 1
TABLES, ROWS, WIDTH, IDS_A_BAG = 8, 200_000, 64, 4
DENSE = 13
FRAMES, FREQUENCIES = 200, 80


class Logits(nn.Module):
    """A network of transformers, or of segmentation, as a function from its inputs to its logits."""

    def __init__(self, module, inputs):
        super().__init__()
        self.module, self.inputs = module, inputs

    def forward(self, *given):
        found = self.module(**dict(zip(self.inputs, given))) if self.inputs else self.module(*given)
        return found["out"] if isinstance(found, dict) and "out" in found else found.logits


class Recommender(nn.Module):
    """Large tables of which a sample looks up a few rows, products of all pairs, and two perceptrons."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(ROWS, WIDTH) for _ in range(TABLES))
        self.bottom = nn.Sequential(nn.Linear(DENSE, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, WIDTH), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(WIDTH + (TABLES + 1) ** 2, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 2))

    def forward(self, dense, ids):
        x = self.bottom(dense)
        bags = [table(ids[:, i]).sum(1) for i, table in enumerate(self.tables)]
        vectors = torch.stack([x, *bags], 1)
        return self.top(torch.cat([x, torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)], 1))


class LanguageModel(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.LSTM(width, width, 2, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, ids):
        return self.head(self.layers(self.embedding(ids))[0])


class Phonemes(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.layers = nn.GRU(FREQUENCIES, 512, 3, batch_first=True, bidirectional=True)
        self.head = nn.Linear(1024, classes)

    def forward(self, frames):
        return self.head(self.layers(frames)[0])


def of_torchvision(name, **options):
    from torchvision import models

    return models.get_model(name, weights=None, **options)


def of_timm(name):
    import timm

    return timm.create_model(name)


def of_transformers(name, config, inputs, **sizes):
    import transformers

    return Logits(getattr(transformers, name)(getattr(transformers, config)(**sizes)), inputs)


def without_drop(network):
    for part in network.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd) or type(part).__name__ == "StochasticDepth":
            part.p = 0.0
        if type(part).__name__ == "DropPath":  # of timm
            part.drop_prob = 0.0
    return network.train()


def build(name):
    """The network in training mode."""
    torch.manual_seed(SEED)
    if name in FURTHER:
        return without_drop(FURTHER[name]())
    if "/" in name:
        library, network = name.split("/")
        return without_drop({"torchvision": of_torchvision, "timm": of_timm}[library](network))
    no_drop = {"dropout": 0.0, "stochastic_depth_prob": 0.0}
    gpt2 = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False}
    bert = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    segmentation = {"weights_backbone": None, "num_classes": 21}
    made = {
        "resnet50-224": lambda: of_torchvision("resnet50"),
        "gpt2-124m": lambda: of_transformers("GPT2LMHeadModel", "GPT2Config", ["input_ids"], **gpt2),
        "vit-b16": lambda: of_transformers("ViTForImageClassification", "ViTConfig", ["pixel_values"], num_labels=1000),
        "bert-base": lambda: of_transformers("BertForSequenceClassification", "BertConfig", ["input_ids"], **bert),
        "llama": lambda: of_transformers("LlamaForCausalLM", "LlamaConfig", ["input_ids"], hidden_size=768, num_hidden_layers=8,
                                         num_attention_heads=12, num_key_value_heads=12, intermediate_size=2048, vocab_size=32000,
                                         use_cache=False),
        "efficientnet-b0": lambda: of_torchvision("efficientnet_b0", **no_drop),
        "mobilenet-v3-l": lambda: of_torchvision("mobilenet_v3_large", dropout=0.0),
        "convnext-t": lambda: of_torchvision("convnext_tiny", stochastic_depth_prob=0.0),
        "dlrm": Recommender,
        "fcn-resnet50": lambda: Logits(of_torchvision("fcn_resnet50", **segmentation), None),
        "deeplab-v3": lambda: Logits(of_torchvision("deeplabv3_mobilenet_v3_large", **segmentation), None),
        "lstm-wikitext": lambda: LanguageModel(33278, 1024),
        "gru-speech": lambda: Phonemes(61),
        "gpt2-1024-tokens": lambda: of_transformers("GPT2LMHeadModel", "GPT2Config", ["input_ids"], n_layer=4, **gpt2),
        "gpt2-1024-wide": lambda: of_transformers("GPT2LMHeadModel", "GPT2Config", ["input_ids"], n_layer=4, n_embd=1024, n_head=16, **gpt2),
        "bert-1024-wide": lambda: of_transformers("BertForSequenceClassification", "BertConfig", ["input_ids"], hidden_size=1024,
                                                  num_attention_heads=16, intermediate_size=4096, num_hidden_layers=4, **bert),
        "distilbert": lambda: of_transformers("DistilBertForSequenceClassification", "DistilBertConfig", ["input_ids"]),
        "albert": lambda: of_transformers("AlbertForSequenceClassification", "AlbertConfig", ["input_ids"], hidden_size=768,
                                          num_attention_heads=12, intermediate_size=3072, **bert),
        "qwen2": lambda: of_transformers("Qwen2ForCausalLM", "Qwen2Config", ["input_ids"], hidden_size=1024, num_hidden_layers=4,
                                         num_attention_heads=16, num_key_value_heads=4, intermediate_size=2816, vocab_size=32000,
                                         use_cache=False),
        "lstm-1024": lambda: LanguageModel(5000, 1024),
    }[name]()
    return without_drop(made)


def inputs_of(name):
    """Names of the inputs, in order."""
    return {"dlrm": ["dense", "ids"]}.get(name, ["x"])


def batch_of(name, batch=None):
    """Inputs by name, and labels."""
    random = np.random.default_rng(SEED)
    model = ALL_MODELS[name]
    sizes, batch = model.sizes, batch or model.batch
    if name == "dlrm":
        dense = random.normal(size=(batch, DENSE)).astype(np.float32)
        return {"dense": dense, "ids": random.integers(0, ROWS, (batch, TABLES, IDS_A_BAG))}, random.integers(0, 2, batch)
    if name == "gru-speech":
        x = random.normal(size=(batch, FRAMES, FREQUENCIES)).astype(np.float32)
        return {"x": x}, random.integers(0, sizes["classes"], (batch, FRAMES))
    if "sample" in sizes:
        x = random.normal(size=(batch, *sizes["sample"])).astype(np.float32)
        return {"x": x}, random.integers(0, sizes["classes"], (batch, *sizes.get("labels", ())))
    if "vocab" in sizes:
        x = random.integers(0, sizes["vocab"], (batch, sizes["context"]))
        return {"x": x}, random.integers(0, sizes["classes"], batch) if "classes" in sizes else np.roll(x, -1, axis=1)
    x = random.normal(size=(batch, 3, sizes["image"], sizes["image"])).astype(np.float32)
    pixels = (sizes["image"], sizes["image"]) if "classes" in sizes else ()
    return {"x": x}, random.integers(0, sizes.get("classes", 1000), (batch, *pixels))


def load(name, folder):
    """The network as it was exported, its inputs, and the labels."""
    batch = np.load(folder / "batch.npz")
    return build(name), [torch.from_numpy(batch[key]) for key in inputs_of(name)], torch.from_numpy(batch["labels"])
