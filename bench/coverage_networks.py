"""The networks of coverage.py: by name, what makes one with random weights, and what it is fed and trained on.

Alphabetical, of torchvision (tv), transformers (hf), timm and diffusers, small enough for seconds each. A network is a
module, its named inputs, and which of its results is trained (see Network).
"""

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
                   pick=lambda flows: flows[-1])


# ---- timm ----


def tm(name, size=64, **options):
    import timm

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
    default = make()
    sizes = {key: value for key, value in SMALL.items() if hasattr(default, key) and not isinstance(getattr(make, key, None), property)}
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


NETWORKS = {
    "diffusers/AutoencoderKL": lambda: diffusion("AutoencoderKL", {"sample": images(32)}, **BLOCKS, down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2),
    "diffusers/DiTTransformer2DModel": lambda: diffusion("DiTTransformer2DModel", {"hidden_states": torch.randn(BATCH, 4, 16, 16), "timestep": torch.randint(0, 900, (BATCH,)), "class_labels": torch.randint(0, 9, (BATCH,))}, num_attention_heads=2, attention_head_dim=16, num_layers=2, sample_size=16, num_embeds_ada_norm=10),
    "diffusers/PixArtTransformer2DModel": lambda: diffusion("PixArtTransformer2DModel", {"hidden_states": torch.randn(BATCH, 4, 16, 16), "encoder_hidden_states": torch.randn(BATCH, 8, 32), "timestep": torch.randint(0, 900, (BATCH,))}, num_attention_heads=2, attention_head_dim=16, num_layers=2, sample_size=16, cross_attention_dim=32, caption_channels=32, use_additional_conditions=False),
    "diffusers/SD3Transformer2DModel": lambda: diffusion("SD3Transformer2DModel", {"hidden_states": torch.randn(BATCH, 4, 16, 16), "encoder_hidden_states": torch.randn(BATCH, 8, 32), "pooled_projections": torch.randn(BATCH, 64), "timestep": torch.randint(0, 900, (BATCH,))}, sample_size=16, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=16, num_attention_heads=2, joint_attention_dim=32, caption_projection_dim=32, pooled_projection_dim=64, out_channels=4),
    "diffusers/UNet1DModel": lambda: diffusion("UNet1DModel", {"sample": torch.randn(BATCH, 14, 16), "timestep": torch.randint(0, 900, (BATCH,))}, block_out_channels=(32, 64), layers_per_block=1, in_channels=14, out_channels=14, time_embedding_type="positional", use_timestep_embedding=True, out_block_type="OutConv1DBlock", flip_sin_to_cos=False, freq_shift=1, down_block_types=("DownResnetBlock1D",) * 2, up_block_types=("UpResnetBlock1D",), mid_block_type="MidResTemporalBlock1D", act_fn="swish"),
    "diffusers/UNet2DConditionModel": lambda: diffusion("UNet2DConditionModel", noise_and_time(encoder_hidden_states=torch.randn(BATCH, 8, 32)), **BLOCKS, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), cross_attention_dim=32, attention_head_dim=2),
    "diffusers/UNet2DModel": lambda: diffusion("UNet2DModel", noise_and_time(channels=3), **BLOCKS, down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=4),
    "diffusers/VQModel": lambda: diffusion("VQModel", {"sample": images(32)}, **BLOCKS, down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2),
    "own/dlrm-max": bags("max"),
    "own/dlrm-mean": bags("mean"),
    "own/dlrm-sum": bags("sum"),
    "own/gru": own(lambda: Recurrent(nn.GRU), lambda: {"ids": tokens()}),
    "own/lstm": own(lambda: Recurrent(nn.LSTM), lambda: {"ids": tokens()}),
    "own/rnn": own(lambda: Recurrent(nn.RNN), lambda: {"ids": tokens()}),
    "timm/bat_resnext26ts": lambda: tm("bat_resnext26ts", 128),
    "timm/botnet26t_256": lambda: tm_sized("botnet26t_256", 128),
    "timm/cait_xxs24_224": lambda: tm_sized("cait_xxs24_224"),
    "timm/coat_lite_tiny": lambda: tm_sized("coat_lite_tiny"),
    "timm/coatnet_pico_rw_224": lambda: tm_sized("coatnet_pico_rw_224"),
    "timm/convit_tiny": lambda: tm_sized("convit_tiny"),
    "timm/convmixer_768_32": lambda: tm("convmixer_768_32", 32),
    "timm/convnext_atto": lambda: tm("convnext_atto"),
    "timm/convnextv2_atto": lambda: tm("convnextv2_atto"),
    "timm/crossvit_9_240": lambda: tm("crossvit_9_240", 240),
    "timm/cs3darknet_s": lambda: tm("cs3darknet_s"),
    "timm/cspresnet50": lambda: tm("cspresnet50"),
    "timm/davit_tiny": lambda: tm("davit_tiny"),
    "timm/deit_tiny_distilled_patch16_224": lambda: tm_sized("deit_tiny_distilled_patch16_224"),
    "timm/dla34": lambda: tm("dla34"),
    "timm/dm_nfnet_f0": lambda: tm("dm_nfnet_f0", 32),
    "timm/dpn48b": lambda: tm("dpn48b"),
    "timm/ecaresnet26t": lambda: tm("ecaresnet26t"),
    "timm/edgenext_xx_small": lambda: tm("edgenext_xx_small"),
    "timm/efficientformer_l1": lambda: tm("efficientformer_l1", 224),
    "timm/efficientformerv2_s0": lambda: tm("efficientformerv2_s0", 224),
    "timm/efficientnet_b0": lambda: tm("efficientnet_b0"),
    "timm/efficientvit_b0": lambda: tm("efficientvit_b0"),
    "timm/efficientvit_m0": lambda: tm("efficientvit_m0", 224),
    "timm/ese_vovnet19b_slim": lambda: tm("ese_vovnet19b_slim"),
    "timm/eva02_tiny_patch14_224": lambda: tm_sized("eva02_tiny_patch14_224", 56),
    "timm/fastvit_t8": lambda: tm("fastvit_t8"),
    "timm/fbnetc_100": lambda: tm("fbnetc_100"),
    "timm/flexivit_small": lambda: tm_sized("flexivit_small"),
    "timm/focalnet_tiny_srf": lambda: tm("focalnet_tiny_srf"),
    "timm/gcresnet33ts": lambda: tm("gcresnet33ts"),
    "timm/gcvit_xxtiny": lambda: tm_sized("gcvit_xxtiny", 224),
    "timm/gernet_s": lambda: tm("gernet_s"),
    "timm/ghostnet_050": lambda: tm("ghostnet_050"),
    "timm/gmlp_ti16_224": lambda: tm_sized("gmlp_ti16_224"),
    "timm/halonet26t": lambda: tm("halonet26t", 128),
    "timm/hardcorenas_a": lambda: tm("hardcorenas_a"),
    "timm/hgnetv2_b0": lambda: tm("hgnetv2_b0"),
    "timm/hiera_tiny_224": lambda: tm_sized("hiera_tiny_224"),
    "timm/hrnet_w18_small": lambda: tm("hrnet_w18_small"),
    "timm/inception_next_atto": lambda: tm("inception_next_atto"),
    "timm/lambda_resnet26t": lambda: tm_sized("lambda_resnet26t", 128),
    "timm/lcnet_035": lambda: tm("lcnet_035"),
    "timm/levit_128s": lambda: tm_sized("levit_128s", 224),
    "timm/mambaout_femto": lambda: tm("mambaout_femto"),
    "timm/maxvit_pico_rw_256": lambda: tm_sized("maxvit_pico_rw_256", 128),
    "timm/mixer_s32_224": lambda: tm_sized("mixer_s32_224"),
    "timm/mixnet_s": lambda: tm("mixnet_s"),
    "timm/mobilenetv4_conv_small_035": lambda: tm("mobilenetv4_conv_small_035"),
    "timm/mobileone_s0": lambda: tm("mobileone_s0"),
    "timm/mobilevit_xxs": lambda: tm("mobilevit_xxs"),
    "timm/mobilevitv2_050": lambda: tm("mobilevitv2_050"),
    "timm/mvitv2_tiny": lambda: tm_sized("mvitv2_tiny"),
    "timm/nest_tiny": lambda: tm_sized("nest_tiny", 64),
    "timm/nf_regnet_b0": lambda: tm("nf_regnet_b0"),
    "timm/pit_ti_224": lambda: tm_sized("pit_ti_224"),
    "timm/poolformer_s12": lambda: tm("poolformer_s12"),
    "timm/pvt_v2_b0": lambda: tm("pvt_v2_b0"),
    "timm/rdnet_tiny": lambda: tm("rdnet_tiny"),
    "timm/regnetz_005": lambda: tm("regnetz_005"),
    "timm/repghostnet_050": lambda: tm("repghostnet_050"),
    "timm/repvgg_a0": lambda: tm("repvgg_a0"),
    "timm/repvit_m0_9": lambda: tm("repvit_m0_9"),
    "timm/res2net50_14w_8s": lambda: tm("res2net50_14w_8s"),
    "timm/resmlp_12_224": lambda: tm_sized("resmlp_12_224"),
    "timm/resnest14d": lambda: tm("resnest14d"),
    "timm/resnetv2_50": lambda: tm("resnetv2_50"),
    "timm/rexnet_100": lambda: tm("rexnet_100"),
    "timm/selecsls42": lambda: tm("selecsls42"),
    "timm/seresnext26ts": lambda: tm("seresnext26ts"),
    "timm/shvit_s1": lambda: tm("shvit_s1", 128),
    "timm/skresnet18": lambda: tm("skresnet18"),
    "timm/starnet_s050": lambda: tm("starnet_s050"),
    "timm/swinv2_cr_tiny_224": lambda: tm_sized("swinv2_cr_tiny_224"),
    "timm/tiny_vit_5m_224": lambda: tm_sized("tiny_vit_5m_224", 224),
    "timm/tinynet_e": lambda: tm("tinynet_e"),
    "timm/tnt_s_patch16_224": lambda: tm_sized("tnt_s_patch16_224"),
    "timm/tresnet_m": lambda: tm("tresnet_m"),
    "timm/twins_svt_small": lambda: tm_sized("twins_svt_small"),
    "timm/visformer_tiny": lambda: tm_sized("visformer_tiny"),
    "timm/vit_relpos_small_patch16_224": lambda: tm_sized("vit_relpos_small_patch16_224"),
    "timm/vit_tiny_patch16_224": lambda: tm_sized("vit_tiny_patch16_224"),
    "timm/volo_d1_224": lambda: tm_sized("volo_d1_224"),
    "timm/xception41": lambda: tm("xception41"),
    "timm/xcit_nano_12_p16_224": lambda: tm("xcit_nano_12_p16_224"),
    "torchvision/alexnet": lambda: tv("alexnet", dropout=0.0),
    "torchvision/convnext_tiny": lambda: tv("convnext_tiny", stochastic_depth_prob=0.0),
    "torchvision/deeplabv3_mobilenet_v3_large": lambda: tv("deeplabv3_mobilenet_v3_large"),
    "torchvision/densenet121": lambda: tv("densenet121"),
    "torchvision/efficientnet_b0": lambda: tv("efficientnet_b0", dropout=0.0, stochastic_depth_prob=0.0),
    "torchvision/efficientnet_v2_s": lambda: tv("efficientnet_v2_s", 32, dropout=0.0, stochastic_depth_prob=0.0),
    "torchvision/fasterrcnn_mobilenet_v3_large_fpn": lambda: tv_backbone("fasterrcnn_mobilenet_v3_large_fpn"),
    "torchvision/fcn_resnet50": lambda: tv("fcn_resnet50", 32),
    "torchvision/fcos_resnet50_fpn": lambda: tv_backbone("fcos_resnet50_fpn"),
    "torchvision/googlenet": lambda: tv("googlenet", dropout=0.0, aux_logits=False, init_weights=False),
    "torchvision/inception_v3": lambda: tv("inception_v3", 96, dropout=0.0, aux_logits=False, init_weights=False),
    "torchvision/lraspp_mobilenet_v3_large": lambda: tv("lraspp_mobilenet_v3_large"),
    "torchvision/maskrcnn_resnet50_fpn_v2": lambda: tv_backbone("maskrcnn_resnet50_fpn_v2"),
    "torchvision/maxvit_t": lambda: tv("maxvit_t", input_size=(64, 64), partition_size=2, stochastic_depth_prob=0.0),
    "torchvision/mc3_18": lambda: tv_video("mc3_18"),
    "torchvision/mnasnet0_5": lambda: tv("mnasnet0_5", dropout=0.0),
    "torchvision/mobilenet_v2": lambda: tv("mobilenet_v2", dropout=0.0),
    "torchvision/mobilenet_v3_small": lambda: tv("mobilenet_v3_small", dropout=0.0),
    "torchvision/mvit_v2_s": lambda: tv_video("mvit_v2_s", 16, 224, stochastic_depth_prob=0.0),
    "torchvision/r2plus1d_18": lambda: tv_video("r2plus1d_18"),
    "torchvision/r3d_18": lambda: tv_video("r3d_18"),
    "torchvision/raft_small": tv_raft,
    "torchvision/regnet_x_400mf": lambda: tv("regnet_x_400mf"),
    "torchvision/regnet_y_400mf": lambda: tv("regnet_y_400mf"),
    "torchvision/resnet18": lambda: tv("resnet18"),
    "torchvision/resnet50": lambda: tv("resnet50"),
    "torchvision/resnext50_32x4d": lambda: tv("resnext50_32x4d"),
    "torchvision/retinanet_resnet50_fpn": lambda: tv_backbone("retinanet_resnet50_fpn"),
    "torchvision/s3d": lambda: tv_video("s3d", 16, 64, dropout=0.0),
    "torchvision/shufflenet_v2_x0_5": lambda: tv("shufflenet_v2_x0_5"),
    "torchvision/squeezenet1_1": lambda: tv("squeezenet1_1", dropout=0.0),
    "torchvision/ssdlite320_mobilenet_v3_large": lambda: tv_backbone("ssdlite320_mobilenet_v3_large", 128),
    "torchvision/swin3d_t": lambda: tv_video("swin3d_t", 4, 64, stochastic_depth_prob=0.0),
    "torchvision/swin_t": lambda: tv("swin_t", stochastic_depth_prob=0.0),
    "torchvision/swin_v2_t": lambda: tv("swin_v2_t", stochastic_depth_prob=0.0),
    "torchvision/vgg11_bn": lambda: tv("vgg11_bn", 32, dropout=0.0),
    "torchvision/vit_b_16": lambda: tv("vit_b_16", 32, image_size=32),
    "torchvision/wide_resnet50_2": lambda: tv("wide_resnet50_2", 32),
    "transformers/ASTForAudioClassification": lambda: hf("AST", "ForAudioClassification", {"input_values": torch.randn(BATCH, 32, 24)}, max_length=32, num_mel_bins=24, patch_size=8, frequency_stride=8, time_stride=8, **classes()),
    "transformers/AlbertForMaskedLM": lambda: hf_masked("Albert"),
    "transformers/BartForConditionalGeneration": lambda: hf_pair("Bart"),
    "transformers/BeitForImageClassification": lambda: hf_image("Beit"),
    "transformers/BertForMaskedLM": lambda: hf_masked("Bert"),
    "transformers/BertForQuestionAnswering": lambda: hf("Bert", "ForQuestionAnswering", {"input_ids": tokens()}, pick=lambda y: y.start_logits),
    "transformers/BigBirdForSequenceClassification": lambda: hf_text("BigBird", attention_type="original_full"),
    "transformers/BioGptForCausalLM": lambda: hf_causal("BioGpt"),
    "transformers/BitForImageClassification": lambda: hf_image("Bit", hidden_sizes=[16, 32], depths=[1, 1], embedding_size=16, num_groups=4),
    "transformers/BlenderbotForConditionalGeneration": lambda: hf_pair("Blenderbot"),
    "transformers/BloomForCausalLM": lambda: hf_causal("Bloom"),
    "transformers/CLIPVisionModel": lambda: hf_image("CLIPVision", "=CLIPVisionModel", loss="mse"),
    "transformers/CTRLLMHeadModel": lambda: hf_causal("CTRL", "LMHeadModel"),
    "transformers/CanineForSequenceClassification": lambda: hf_text("Canine", length=64, num_hash_buckets=64, local_transformer_stride=16, attend_to_chunk_width=16, attend_from_chunk_width=16),
    "transformers/CodeGenForCausalLM": lambda: hf_causal("CodeGen", n_head=4, rotary_dim=4),
    "transformers/CohereForCausalLM": lambda: hf_causal("Cohere"),
    "transformers/ConvBertForMaskedLM": lambda: hf_masked("ConvBert"),
    "transformers/ConvNextForImageClassification": lambda: hf_image("ConvNext", patch_size=4, hidden_sizes=[16, 24], depths=[1, 1], num_stages=2),
    "transformers/ConvNextV2ForImageClassification": lambda: hf_image("ConvNextV2", patch_size=4, hidden_sizes=[16, 24], depths=[1, 1], num_stages=2),
    "transformers/CvtForImageClassification": lambda: hf_image("Cvt", patch_sizes=[7, 3, 3], embed_dim=[16, 32, 48], num_heads=[1, 2, 3], depth=[1, 2, 3], drop_rate=[0.0] * 3, drop_path_rate=[0.0] * 3, attention_drop_rate=[0.0] * 3),
    "transformers/DPTForDepthEstimation": lambda: hf_image("DPT", "ForDepthEstimation", loss="mse", num_hidden_layers=4, backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[16, 16, 16, 16], fusion_hidden_size=16, is_hybrid=False),
    "transformers/Data2VecAudioForSequenceClassification": lambda: hf_speech("Data2VecAudio", conv_pos_kernel_size=5),
    "transformers/DebertaForMaskedLM": lambda: hf_masked("Deberta"),
    "transformers/DebertaV2ForMaskedLM": lambda: hf_masked("DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8),
    "transformers/DeiTForImageClassification": lambda: hf_image("DeiT"),
    "transformers/Dinov2ForImageClassification": lambda: hf_image("Dinov2"),
    "transformers/DistilBertForMaskedLM": lambda: hf_masked("DistilBert"),
    "transformers/EfficientNetForImageClassification": lambda: hf_image("EfficientNet", width_coefficient=0.25, hidden_dim=320, kernel_sizes=[3, 5], in_channels=[32, 16], out_channels=[16, 64], strides=[1, 2], num_block_repeats=[1, 1], expand_ratios=[1, 4], depthwise_padding=[]),
    "transformers/ElectraForMaskedLM": lambda: hf_masked("Electra"),
    "transformers/ErnieForSequenceClassification": lambda: hf_text("Ernie"),
    "transformers/FNetForMaskedLM": lambda: hf_masked("FNet"),
    "transformers/FalconForCausalLM": lambda: hf_causal("Falcon"),
    "transformers/FocalNetForImageClassification": lambda: hf_image("FocalNet", patch_size=4, embed_dim=16, hidden_sizes=[16, 32], depths=[1, 1], focal_levels=[2, 2], focal_windows=[3, 3]),
    "transformers/FunnelForMaskedLM": lambda: hf_masked("Funnel", block_sizes=[1, 1], block_repeats=None),
    "transformers/GLPNForDepthEstimation": lambda: hf_image("GLPN", "ForDepthEstimation", loss="mse", hidden_sizes=[16, 16, 32, 32], depths=[1, 1, 1, 1], decoder_hidden_size=16, num_attention_heads=[1, 1, 2, 2]),
    "transformers/GPT2LMHeadModel": lambda: hf_causal("GPT2", "LMHeadModel"),
    "transformers/GPTBigCodeForCausalLM": lambda: hf_causal("GPTBigCode"),
    "transformers/GPTJForCausalLM": lambda: hf_causal("GPTJ", rotary_dim=4),
    "transformers/GPTNeoForCausalLM": lambda: hf_causal("GPTNeo", attention_types=[[["global", "local"], 1]], window_size=4),
    "transformers/GPTNeoXForCausalLM": lambda: hf_causal("GPTNeoX"),
    "transformers/Gemma2ForCausalLM": lambda: hf_causal("Gemma2"),
    "transformers/GemmaForCausalLM": lambda: hf_causal("Gemma"),
    "transformers/GlmForCausalLM": lambda: hf_causal("Glm"),
    "transformers/GraniteForCausalLM": lambda: hf_causal("Granite"),
    "transformers/HubertForSequenceClassification": lambda: hf_speech("Hubert"),
    "transformers/IBertForMaskedLM": lambda: hf_masked("IBert"),
    "transformers/ImageGPTForImageClassification": lambda: hf_text("ImageGPT", "ForImageClassification"),
    "transformers/LEDForConditionalGeneration": lambda: hf_pair("LED", length=16, attention_window=[8, 8], max_encoder_position_embeddings=64, max_decoder_position_embeddings=64),
    "transformers/LayoutLMForMaskedLM": lambda: hf_masked("LayoutLM"),
    "transformers/LevitForImageClassification": lambda: hf_image("Levit", num_attention_heads=[2, 2, 2], hidden_sizes=[32, 48, 64], key_dim=[8, 8, 8], depths=[1, 1, 1]),
    "transformers/LlamaForCausalLM": lambda: hf_causal("Llama"),
    "transformers/LongT5ForConditionalGeneration": lambda: hf_pair("LongT5", encoder_attention_type="local"),
    "transformers/LongformerForMaskedLM": lambda: hf("Longformer", "ForMaskedLM", {"input_ids": tokens(16)}, attention_window=[8, 8]),
    "transformers/M2M100ForConditionalGeneration": lambda: hf_pair("M2M100"),
    "transformers/MBartForConditionalGeneration": lambda: hf_pair("MBart"),
    "transformers/MPNetForMaskedLM": lambda: hf_masked("MPNet"),
    "transformers/MT5ForConditionalGeneration": lambda: hf_pair("MT5"),
    "transformers/MambaForCausalLM": lambda: hf_causal("Mamba", state_size=4),
    "transformers/MarianMTModel": lambda: hf_pair("Marian", "MTModel"),
    "transformers/MegatronBertForMaskedLM": lambda: hf_masked("MegatronBert"),
    "transformers/MistralForCausalLM": lambda: hf_causal("Mistral"),
    "transformers/MixtralForCausalLM": lambda: hf_causal("Mixtral", num_local_experts=2),
    "transformers/MobileBertForMaskedLM": lambda: hf_masked("MobileBert", intra_bottleneck_size=32, embedding_size=32, true_hidden_size=32),
    "transformers/MobileNetV1ForImageClassification": lambda: hf_image("MobileNetV1", depth_multiplier=0.25, classifier_dropout_prob=0.0),
    "transformers/MobileNetV2ForImageClassification": lambda: hf_image("MobileNetV2", depth_multiplier=0.25, classifier_dropout_prob=0.0),
    "transformers/MobileViTForImageClassification": lambda: hf_image("MobileViT", patch_size=2, hidden_sizes=[32, 32, 32], neck_hidden_sizes=[8, 8, 16, 16, 16, 16, 32]),
    "transformers/MobileViTV2ForImageClassification": lambda: hf_image("MobileViTV2", patch_size=2, width_multiplier=0.5),
    "transformers/ModernBertForMaskedLM": lambda: hf_masked("ModernBert", attn_implementation="eager"),
    "transformers/MptForCausalLM": lambda: hf_causal("Mpt"),
    "transformers/NystromformerForMaskedLM": lambda: hf("Nystromformer", "ForMaskedLM", {"input_ids": tokens(16)}, num_landmarks=4, segment_means_seq_len=16),
    "transformers/OPTForCausalLM": lambda: hf_causal("OPT", word_embed_proj_dim=32),
    "transformers/Olmo2ForCausalLM": lambda: hf_causal("Olmo2"),
    "transformers/PLBartForConditionalGeneration": lambda: hf_pair("PLBart"),
    "transformers/PegasusForConditionalGeneration": lambda: hf_pair("Pegasus"),
    "transformers/PerceiverForSequenceClassification": lambda: hf("Perceiver", "ForSequenceClassification", {"inputs": tokens(16)}, d_latents=32, num_latents=8, num_blocks=1, num_self_attends_per_block=2, num_self_attention_heads=2, num_cross_attention_heads=2, **classes()),
    "transformers/PersimmonForCausalLM": lambda: hf_causal("Persimmon"),
    "transformers/Phi3ForCausalLM": lambda: hf_causal("Phi3"),
    "transformers/PhiForCausalLM": lambda: hf_causal("Phi"),
    "transformers/PoolFormerForImageClassification": lambda: hf_image("PoolFormer", hidden_sizes=[16, 16, 32, 32], depths=[1, 1, 1, 1], patch_size=7),
    "transformers/ProphetNetForConditionalGeneration": lambda: hf_pair("ProphetNet"),
    "transformers/PvtForImageClassification": lambda: hf_image("Pvt", hidden_sizes=[16, 16, 32, 32], depths=[1, 1, 1, 1], patch_sizes=[4, 2, 2, 2], num_attention_heads=[1, 1, 2, 2], sequence_reduction_ratios=[8, 4, 2, 1]),
    "transformers/Qwen2ForCausalLM": lambda: hf_causal("Qwen2"),
    "transformers/Qwen3ForCausalLM": lambda: hf_causal("Qwen3"),
    "transformers/RegNetForImageClassification": lambda: hf_image("RegNet", embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], groups_width=8),
    "transformers/RemBertForMaskedLM": lambda: hf_masked("RemBert", input_embedding_size=32, output_embedding_size=32),
    "transformers/ResNetForImageClassification": lambda: hf_image("ResNet", embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1]),
    "transformers/RoFormerForMaskedLM": lambda: hf_masked("RoFormer"),
    "transformers/RobertaForMaskedLM": lambda: hf_masked("Roberta"),
    "transformers/RwkvForCausalLM": lambda: hf_causal("Rwkv", attention_hidden_size=32, context_length=16),
    "transformers/SEWDForSequenceClassification": lambda: hf_speech("SEWD"),
    "transformers/SEWForSequenceClassification": lambda: hf_speech("SEW"),
    "transformers/SegformerForSemanticSegmentation": lambda: hf_image("Segformer", "ForSemanticSegmentation", hidden_sizes=[16, 16, 32, 32], depths=[1, 1, 1, 1], decoder_hidden_size=16, num_attention_heads=[1, 1, 2, 2]),
    "transformers/SiglipVisionModel": lambda: hf_image("SiglipVision", "=SiglipVisionModel", loss="mse"),
    "transformers/Speech2TextForConditionalGeneration": lambda: hf_features("Speech2Text", (48, 16), "ForConditionalGeneration", "cross-entropy", {"decoder_input_ids": tokens(TARGET_TOKENS)}, input_feat_per_channel=16, conv_channels=16, num_conv_layers=2, conv_kernel_sizes=(5, 5)),
    "transformers/SpeechT5ForTextToSpeech": lambda: hf("SpeechT5", "ForTextToSpeech", {"input_ids": tokens(), "decoder_input_values": torch.randn(BATCH, 8, 16)}, "mse", pick=lambda y: y.spectrogram if hasattr(y, "spectrogram") else first_tensor(y), num_mel_bins=16, speech_decoder_prenet_units=16, speech_decoder_prenet_dropout=0.0, speech_decoder_postnet_units=16, speech_decoder_postnet_dropout=0.0, speech_decoder_postnet_layers=2, positional_dropout=0.0, **SPEECH),
    "transformers/SplinterForQuestionAnswering": lambda: hf("Splinter", "ForQuestionAnswering", {"input_ids": tokens()}, pick=lambda y: y.start_logits, question_token_id=4),
    "transformers/SqueezeBertForMaskedLM": lambda: hf_masked("SqueezeBert", embedding_size=32, q_groups=2, k_groups=2, v_groups=2, intermediate_groups=2, output_groups=2, post_attention_groups=1),
    "transformers/StableLmForCausalLM": lambda: hf_causal("StableLm"),
    "transformers/Starcoder2ForCausalLM": lambda: hf_causal("Starcoder2"),
    "transformers/SwiftFormerForImageClassification": lambda: hf_image("SwiftFormer", depths=[1, 1, 1, 1], embed_dims=[16, 16, 32, 32]),
    "transformers/Swin2SRForImageSuperResolution": lambda: hf_image("Swin2SR", "ForImageSuperResolution", 32, loss="mse", image_size=32, patch_size=1, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4, mlp_ratio=2),
    "transformers/SwinForImageClassification": lambda: hf_image("Swin", patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4),
    "transformers/Swinv2ForImageClassification": lambda: hf_image("Swinv2", patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=4),
    "transformers/SwitchTransformersForConditionalGeneration": lambda: hf_pair("SwitchTransformers", num_experts=2, router_jitter_noise=0.0),
    "transformers/T5ForConditionalGeneration": lambda: hf_pair("T5"),
    "transformers/TimesformerForVideoClassification": lambda: hf("Timesformer", "ForVideoClassification", {"pixel_values": torch.randn(BATCH, 2, 3, 32, 32)}, image_size=32, num_frames=2, **classes()),
    "transformers/UMT5ForConditionalGeneration": lambda: hf_pair("UMT5"),
    "transformers/UniSpeechForSequenceClassification": lambda: hf_speech("UniSpeech"),
    "transformers/UniSpeechSatForSequenceClassification": lambda: hf_speech("UniSpeechSat"),
    "transformers/ViTForImageClassification": lambda: hf_image("ViT"),
    "transformers/ViTMSNForImageClassification": lambda: hf_image("ViTMSN"),
    "transformers/VideoMAEForVideoClassification": lambda: hf("VideoMAE", "ForVideoClassification", {"pixel_values": torch.randn(BATCH, 4, 3, 32, 32)}, image_size=32, num_frames=4, **classes()),
    "transformers/ViltForTokenClassification": lambda: text_and_image("Vilt", "ForTokenClassification", **classes()),
    "transformers/VitDetBackbone": lambda: hf_image("VitDet", "Backbone", loss="mse", pick=lambda y: y.feature_maps[0], window_block_indices=[0], window_size=2, pretrain_image_size=64),
    "transformers/VitsModel": lambda: hf("Vits", "Model", {"input_ids": tokens()}, "mse"),
    "transformers/VivitForVideoClassification": lambda: hf("Vivit", "ForVideoClassification", {"pixel_values": torch.randn(BATCH, 4, 3, 32, 32)}, image_size=32, num_frames=4, tubelet_size=[2, 16, 16], **classes()),
    "transformers/Wav2Vec2BertForSequenceClassification": lambda: hf_features("Wav2Vec2Bert", (24, 16), "ForSequenceClassification", "cross-entropy", feature_projection_input_dim=16, **classes()),
    "transformers/Wav2Vec2ConformerForSequenceClassification": lambda: hf_speech("Wav2Vec2Conformer"),
    "transformers/Wav2Vec2ForCTC": lambda: hf("Wav2Vec2", "ForCTC", {"input_values": torch.randn(BATCH, 640)}, **SPEECH),
    "transformers/WavLMForSequenceClassification": lambda: hf_speech("WavLM"),
    "transformers/WhisperForConditionalGeneration": lambda: hf_features("Whisper", (16, 32), "ForConditionalGeneration", "cross-entropy", {"decoder_input_ids": tokens(TARGET_TOKENS)}, num_mel_bins=16, max_source_positions=16),
    "transformers/XGLMForCausalLM": lambda: hf_causal("XGLM", attention_heads=2),
    "transformers/XLMRobertaForMaskedLM": lambda: hf_masked("XLMRoberta"),
    "transformers/XLMWithLMHeadModel": lambda: hf_causal("XLM", "WithLMHeadModel"),
    "transformers/XLNetLMHeadModel": lambda: hf_causal("XLNet", "LMHeadModel"),
    "transformers/XmodForMaskedLM": lambda: hf_masked("Xmod", default_language="en_XX"),
    "transformers/YolosForObjectDetection": lambda: hf_image("Yolos", "ForObjectDetection", loss="mse", image_size=[64, 64], num_detection_tokens=5),
    "transformers/YosoForMaskedLM": lambda: hf_masked("Yoso", use_expectation=True),
}
