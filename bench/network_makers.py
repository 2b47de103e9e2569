"""What the networks of coverage_networks.py are made with: the makers of each library's, their inputs, and modules of ours."""

import dataclasses

import torch
from torch import nn

BATCH = 4
TOKENS = 12
TARGET_TOKENS = 9
VOCABULARY = 99
CLASSES = 10


@dataclasses.dataclass
class Network:
    module: nn.Module
    inputs: dict  # name: tensor, in the order of the module's parameters unless `keywords`
    loss: str = "mse"  # or cross-entropy
    pick: object = None  # from the module's result to the tensor that is trained; none: first_tensor()
    keywords: bool = False  # the module takes its inputs by name


KNOWN_RESULTS = ("logits", "prediction_logits", "reconstruction", "sample", "last_hidden_state", "predicted_depth", "waveform", "out")


def first_tensor(result):
    """The main tensor of a result: by its name, or the first."""
    if isinstance(result, torch.Tensor):
        return result
    if isinstance(result, dict) or hasattr(result, "keys"):
        for name in KNOWN_RESULTS:
            if name in result.keys() and isinstance(result[name], torch.Tensor):
                return result[name]
        result = list(result.values())
    for part in result:
        found = first_tensor(part) if part is not None else None
        if found is not None:
            return found
    return None


def every_tensor(result):
    """All of them in one row per sample, for feature pyramids."""
    values = result.values() if hasattr(result, "values") else result
    return torch.cat([value.flatten(1) for value in values], 1)


def images(size, channels=3):
    return torch.randn(BATCH, channels, size, size)


def tokens(length=TOKENS, vocabulary=VOCABULARY):
    return torch.randint(5, vocabulary, (BATCH, length))


# ---- torchvision ----


def tv(name, size=64, loss="cross-entropy", **options):
    from torchvision import models

    options = {"weights": None, "num_classes": CLASSES, **options}
    if "segmentation" in models.get_model_builder(name).__module__:
        options.setdefault("weights_backbone", None)
    return Network(models.get_model(name, **options), {"x": images(size)}, loss)


def tv_video(name, frames=8, size=32, **options):
    from torchvision import models

    return Network(models.get_model(name, weights=None, num_classes=CLASSES, **options),
                   {"x": torch.randn(2, 3, frames, size, size)}, "cross-entropy")


def tv_backbone(name, size=64):
    from torchvision import models

    detector = models.get_model(name, weights=None, weights_backbone=None, num_classes=CLASSES)
    return Network(detector.backbone, {"x": images(size)}, pick=every_tensor)


class BodyAndHead(nn.Module):
    def __init__(self, detector):
        super().__init__()
        self.backbone, self.head = detector.backbone, detector.head

    def forward(self, x):
        return self.head(list(self.backbone(x).values()))


def tv_detector(name, size=64):
    from torchvision import models

    detector = models.get_model(name, weights=None, weights_backbone=None, num_classes=CLASSES)
    return Network(BodyAndHead(detector), {"x": images(size)}, pick=every_tensor)


def tv_raft():
    from torchvision import models

    return Network(models.get_model("raft_small", weights=None), {"first": torch.randn(1, 3, 128, 128), "second": torch.randn(1, 3, 128, 128)},
                   pick=lambda flows: flows[-1] / 100)  # of the size of the labels: else three steps end in nan


# ---- timm ----


def tm(name, size=64, fused=True, **options):
    """Without `fused`, attention is written out: the exporter cannot fuse that of windows, whose tensors have five axes."""
    import timm

    timm.layers.set_fused_attn(fused)
    model = timm.create_model(name, pretrained=False, num_classes=CLASSES, drop_rate=0.0, **options)
    return Network(model, {"x": images(size)}, "cross-entropy", pick=lambda y: y[0] if isinstance(y, (tuple, list)) else y)


def tm_sized(name, size=64, **options):
    """For a model that needs the image size."""
    return tm(name, size, img_size=size, **options)


# ---- transformers ----

SMALL = {  # whichever of these a configuration has
    "vocab_size": VOCABULARY, "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "emb_dim": 32, "embedding_size": 32, "d_embed": 32,
    "num_hidden_layers": 2, "num_layers": 2, "n_layer": 2, "n_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_decoder_layers": 2, "num_encoder_layers": 2, "num_attention_heads": 2, "num_heads": 2, "n_head": 2, "n_heads": 2,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "num_encoder_attention_heads": 2, "num_decoder_attention_heads": 2,
    "num_key_value_heads": 2, "head_dim": 16, "d_kv": 16, "d_head": 16, "intermediate_size": 48, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    "ffn_dim": 48, "n_inner": 48, "d_ff": 48, "d_inner": 48, "hidden_dim": 48, "ffn_hidden_size": 48, "feed_forward_hidden_size": 48,
    "max_position_embeddings": 64, "n_positions": 64, "max_source_positions": 64, "max_target_positions": 64, "max_seq_len": 64,
    "image_size": 64, "patch_size": 16, "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2,
    "use_cache": False, "tie_word_embeddings": False, "type_vocab_size": 2,
}
OFF = ("dropout", "drop_rate", "pdrop", "drop_path_rate", "layerdrop", "drop_prob", "attention_probs_dropout_prob", "stochastic_depth_rate")


def configuration(name, **options):
    import transformers

    make = getattr(transformers, name + "Config")
    default, other_names = make(), getattr(make, "attribute_map", {})
    sizes = {key: value for key, value in SMALL.items()
             if hasattr(default, key) and not isinstance(getattr(make, key, None), property) and other_names.get(key) not in options}
    for key, value in vars(default).items():
        if isinstance(value, float) and any(word in key for word in OFF):
            sizes[key] = 0.0
    if hasattr(default, "apply_spec_augment"):
        sizes["apply_spec_augment"] = False
    return make(**{**sizes, **options})


def hf(name, head, inputs, loss="cross-entropy", pick=None, **options):
    import transformers

    of = name.rstrip("0123456789") if not hasattr(transformers, name + "Config") else name
    config = configuration(of, **options)
    model = getattr(transformers, name + head if not head.startswith("=") else head[1:])(config)
    return Network(model, inputs, loss, pick, keywords=True)


def classes():
    return {"num_labels": CLASSES}


def hf_text(name, head="ForSequenceClassification", length=TOKENS, **options):
    return hf(name, head, {"input_ids": tokens(length)}, **{**classes(), **options})


def hf_masked(name, **options):
    return hf(name, "ForMaskedLM", {"input_ids": tokens()}, **options)


def hf_causal(name, head="ForCausalLM", **options):
    return hf(name, head, {"input_ids": tokens()}, **options)


def hf_pair(name, head="ForConditionalGeneration", length=TOKENS, **options):
    return hf(name, head, {"input_ids": tokens(length), "decoder_input_ids": tokens(TARGET_TOKENS)}, **options)


def hf_image(name, head="ForImageClassification", size=64, **options):
    loss = options.pop("loss", "cross-entropy")
    return hf(name, head, {"pixel_values": images(size)}, loss, **{**classes(), **options})


SPEECH = {"conv_dim": (16, 16), "conv_stride": (4, 4), "conv_kernel": (8, 4), "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2,
          "num_feat_extract_layers": 2}


def hf_speech(name, head="ForSequenceClassification", **options):
    return hf(name, head, {"input_values": torch.randn(BATCH, 640)}, **{**classes(), **SPEECH, **options})


def hf_features(name, shape, head, loss="mse", inputs=None, **options):
    return hf(name, head, {"input_features": torch.randn(BATCH, *shape), **(inputs or {})}, loss, **options)


# ---- diffusers ----

BLOCKS = {"block_out_channels": (16, 32), "norm_num_groups": 4, "layers_per_block": 1}


def diffusion(name, inputs, **options):
    import diffusers

    return Network(getattr(diffusers, name)(**options), inputs, keywords=True)


def noise_and_time(size=16, channels=4, **others):
    return {"sample": torch.randn(BATCH, channels, size, size), "timestep": torch.randint(0, 900, (BATCH,)), **others}


# ---- others ----


class Recommender(nn.Module):
    """Bags of embeddings, their products in pairs, and two perceptrons, as DLRM."""

    def __init__(self, mode):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(50, 8, mode=mode) for _ in range(3))
        self.bottom = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(8 + 16, 16), nn.ReLU(), nn.Linear(16, CLASSES))

    def forward(self, dense, ids):
        x = self.bottom(dense)
        vectors = torch.stack([x] + [bag(ids[:, i]) for i, bag in enumerate(self.bags)], 1)
        pairs = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([x, pairs], 1))


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.layers = kind(16, 24, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(48, VOCABULARY)

    def forward(self, ids):
        return self.head(self.layers(self.embedding(ids))[0])


def own(make, inputs):
    return lambda: Network(make(), inputs(), "cross-entropy")


def bags(mode):
    return own(lambda: Recommender(mode), lambda: {"dense": torch.randn(BATCH, 5), "ids": torch.randint(0, 50, (BATCH, 3, 6))})


def text_and_image(name, head, **options):
    return hf(name, head, {"input_ids": tokens(), "pixel_values": images(64)}, **options)
