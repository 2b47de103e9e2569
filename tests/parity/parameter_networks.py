"""Networks of torchvision, timm and transformers, and small ones of our own that compute their weights.

`NETWORKS[name]()` gives a module with random weights and the arguments of its forward pass.
"""

import math

import timm
import torch
import torchvision
import transformers
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations


def image(size, channels=3, batch=2):
    return (torch.randn(batch, channels, size, size),)


# Networks that compute weights, or keep constants where weights could stand.


class Sum(nn.Module):
    """A weight as a sum with a low-rank product, as LoRA adapters write it by hand."""

    def __init__(self, width=12, rank=2):
        super().__init__()
        self.w = nn.Parameter(torch.randn(width, width) * 0.2)
        self.a = nn.Parameter(torch.randn(rank, width) * 0.2)
        self.b = nn.Parameter(torch.randn(width, rank) * 0.2)
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        return self.head(torch.relu(functional.linear(x, self.w + 0.5 * self.b @ self.a)))


class Standardised(nn.Conv2d):
    """A convolution whose kernels have mean 0 and variance 1, times a gain (weight standardisation)."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.g = nn.Parameter(torch.rand(self.out_channels, 1, 1, 1) + 0.5)

    def forward(self, x):
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), keepdim=True)
        w = (self.weight - mean) * torch.rsqrt(variance + 1e-5) * self.g
        return functional.conv2d(x, w, self.bias)


class Scaled(nn.Module):
    """Short names, and a weight made by a table of constants, a scale and softplus."""

    def __init__(self, width=10):
        super().__init__()
        self.v = nn.Parameter(torch.randn(width, width))
        self.g = nn.Parameter(torch.rand(width, 1))
        self.s = nn.Parameter(torch.randn(width, width))
        self.register_buffer("mask", torch.tril(torch.ones(width, width)))
        self.register_buffer("frequencies", torch.linspace(1, 3, width * width).view(width, width))
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        w = self.g * self.v / self.v.norm(dim=1, keepdim=True)
        x = functional.linear(x, w * self.mask)
        return self.head(functional.linear(x, functional.softplus(self.s) * self.frequencies))


class Normalised(nn.Module):
    """Means and deviations of the input, a fixed filter and a fixed projection: none is learned."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.4, 0.5, 0.6]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.2, 0.3, 0.4]).view(1, 3, 1, 1))
        kernel = torch.outer(torch.tensor([1.0, 2, 1]), torch.tensor([1.0, 2, 1])) / 16
        self.register_buffer("blur", kernel.expand(3, 1, 3, 3).contiguous())
        steps = torch.arange(16.0)
        cosine = torch.cos(math.pi / 16 * (steps[:, None] + 0.5) * steps)
        self.register_buffer("dct", cosine)
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        x = (x - self.mean) / self.std
        x = functional.conv2d(x, self.blur, padding=1, groups=3) @ self.dct
        return self.head(torch.relu(self.conv(x)).mean((2, 3)))


class Plain(nn.Module):
    """Lambdas of tensors that are parameters without telling names."""

    def __init__(self, tokens=6, width=8):
        super().__init__()
        self.t = nn.Parameter(torch.randn(1, 1, width))
        self.p = nn.Parameter(torch.randn(1, tokens + 1, width))
        self.q = nn.Parameter(torch.randn(4, width))
        self.ls = nn.Parameter(torch.full((width,), 0.1))
        self.mix = nn.Linear(width, width)
        self.head = nn.Linear(width, 4)

    def forward(self, x):
        x = torch.cat((self.t.expand(x.shape[0], -1, -1), x), 1) + self.p
        x = x + self.ls * self.mix(x)
        attention = torch.softmax(self.q @ x.transpose(1, 2), -1)
        return self.head((attention @ x).mean(1))


class Sinusoids(nn.Module):
    """A language model with sinusoidal positions in a buffer."""

    def __init__(self, width=16, tokens=12):
        super().__init__()
        angles = torch.outer(torch.arange(float(tokens)), 100.0 ** (-torch.arange(width // 2) / 8))
        self.register_buffer("pe", torch.cat((angles.sin(), angles.cos()), 1))
        self.token = nn.Embedding(20, width)
        self.layer = nn.TransformerEncoderLayer(width, 2, 24, batch_first=True, dropout=0.0)
        self.head = nn.Linear(width, 20)

    def forward(self, ids):
        x = self.token(ids) + self.pe[: ids.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.layer(x, src_mask=mask))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 5, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(10, 7, batch_first=True)
        self.head = nn.Linear(7, 3)

    def forward(self, x):
        return self.head(self.gru(self.lstm(x)[0])[0][:, -1])


def convolutions(wrap):
    layers = [wrap(nn.Conv1d(4, 8, 3, padding=1)), nn.ReLU(), wrap(nn.Conv1d(8, 6, 3)), nn.Flatten()]
    return nn.Sequential(*layers, wrap(nn.Linear(6 * 8, 5))), (torch.randn(2, 4, 10),)


OWN = {
    "own_sum": lambda: (Sum(), (torch.randn(3, 12),)),
    "own_standardised": lambda: (
        nn.Sequential(Standardised(3, 6, 3), nn.ReLU(), Standardised(6, 5, 3), nn.Flatten()),
        image(8),
    ),
    "own_scaled": lambda: (Scaled(), (torch.randn(3, 10),)),
    "own_normalised": lambda: (Normalised(), image(16)),
    "own_plain": lambda: (Plain(), (torch.randn(2, 6, 8),)),
    "own_sinusoids": lambda: (Sinusoids(), (torch.randint(20, (2, 9)),)),
    "own_recurrent": lambda: (Recurrent(), (torch.randn(2, 5, 6),)),
    "own_weight_norm": lambda: convolutions(parametrizations.weight_norm),
    "own_old_weight_norm": lambda: convolutions(nn.utils.weight_norm),
    "own_spectral_norm": lambda: convolutions(parametrizations.spectral_norm),
    "own_old_spectral_norm": lambda: convolutions(nn.utils.spectral_norm),
    "own_orthogonal": lambda: convolutions(
        lambda m: parametrizations.orthogonal(m, orthogonal_map="householder")
        if isinstance(m, nn.Linear)
        else m
    ),
}


def vision(name, size=64, **options):
    return lambda: (torchvision.models.get_model(name, weights=None, **options), image(size))


def of_timm(name, size=None, **options):
    def make():
        network = timm.create_model(name, pretrained=False, num_classes=7, **options)
        return network, image(size or network.default_cfg["input_size"][1], batch=1)

    return make


TORCHVISION = {
    f"tv_{name}": vision(name)
    for name in (
        "alexnet resnet18 squeezenet1_1 mobilenet_v2 mobilenet_v3_small shufflenet_v2_x0_5 "
        "mnasnet0_5 efficientnet_b0 regnet_y_400mf convnext_tiny densenet121"
    ).split()
}
TORCHVISION |= {
    "tv_googlenet": vision("googlenet", 96, aux_logits=False, init_weights=False),
    "tv_swin_t": vision("swin_t"),
    "tv_swin_v2_t": vision("swin_v2_t"),
    "tv_vit": lambda: (
        torchvision.models.VisionTransformer(32, 8, 2, 2, 24, 48, num_classes=7),
        image(32),
    ),
    "tv_fcn": lambda: (
        Picked(torchvision.models.segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None), "out"),
        image(64),
    ),
    "tv_raft": lambda: (
        Picked(torchvision.models.optical_flow.raft_small()),
        image(128, batch=1) * 2,
    ),
}

TIMM = {
    name: of_timm(name)
    for name in (
        "test_byobnet test_convnext test_convnext2 test_convnext3 test_efficientnet "
        "test_efficientnet_evos test_efficientnet_gn test_efficientnet_ln test_mambaout test_nfnet "
        "test_resnet test_vit test_vit2 test_vit3 test_vit4"
    ).split()
}
TIMM |= {
    name: of_timm(name, size, **options)
    for name, size, options in (
        ("resnetv2_50", 64, {"layers": (1, 1, 1, 1)}),
        ("resnetv2_50x1_bit", 64, {}),
        ("resnetv2_50d_evos", 64, {"layers": (1, 1, 1, 1)}),
        ("nf_regnet_b0", 64, {}),
        ("nfnet_l0", 64, {}),
        ("skresnet18", 64, {}),
        ("resnetblur18", 64, {}),
        ("ghostnet_050", 64, {}),
        ("halonet26t", 256, {}),
        ("lambda_resnet26t", 256, {}),
        ("botnet26t_256", 256, {}),
        ("swin_tiny_patch4_window7_224", 56, {"img_size": 56, "depths": (2, 2), "num_heads": (2, 4), "embed_dim": 32}),
        ("swinv2_tiny_window8_256", 64, {"img_size": 64, "depths": (2, 2), "num_heads": (2, 4), "embed_dim": 32}),
        ("beit_base_patch16_224", 32, {"img_size": 32, "depth": 2, "embed_dim": 48, "num_heads": 4}),
        ("eva02_tiny_patch14_224", 28, {"img_size": 28, "depth": 2, "embed_dim": 48, "num_heads": 4}),
        ("vit_relpos_small_patch16_224", 32, {"img_size": 32, "depth": 2}),
        ("vit_srelpos_small_patch16_224", 32, {"img_size": 32, "depth": 2}),
        ("cait_xxs24_224", 32, {"img_size": 32, "depth": 2}),
        ("deit_tiny_distilled_patch16_224", 32, {"img_size": 32, "depth": 2}),
        ("xcit_nano_12_p16_224", 32, {"img_size": 32, "depth": 2}),
        ("convit_tiny", 32, {"img_size": 32, "depth": 4, "local_up_to_layer": 2}),
        ("crossvit_tiny_240", None, {}),
        ("pit_ti_224", None, {}),
        ("levit_128s", None, {}),
        ("mobilevit_xxs", 64, {}),
        ("mobilevitv2_050", 64, {}),
        ("edgenext_xx_small", 64, {}),
        ("poolformer_s12", 64, {}),
        ("mixer_s32_224", 64, {"img_size": 64, "num_blocks": 2}),
        ("gmlp_ti16_224", 32, {"img_size": 32, "num_blocks": 2}),
        ("resmlp_12_224", 32, {"img_size": 32, "num_blocks": 2}),
        ("coat_lite_tiny", 64, {"img_size": 64}),
        ("coatnet_nano_rw_224", 64, {"img_size": 64}),
        ("maxvit_rmlp_pico_rw_256", 64, {"img_size": 64}),
        ("efficientformer_l1", None, {}),
        ("efficientvit_b0", 64, {}),
        ("fastvit_t8", 64, {}),
        ("repvit_m0_9", 64, {}),
        ("tiny_vit_5m_224", None, {}),
        ("davit_tiny", 64, {"depths": (1, 1), "embed_dims": (32, 64), "num_heads": (2, 4)}),
        ("focalnet_tiny_srf", 64, {"depths": (1, 1), "embed_dim": 32}),
        ("mvitv2_tiny", 64, {"img_size": 64}),
        ("pvt_v2_b0", 64, {}),
        ("twins_svt_small", 64, {"img_size": 64, "depths": (1, 1, 1, 1)}),
        ("volo_d1_224", 64, {"img_size": 64, "layers": (1, 1, 1, 1)}),
        ("gcvit_xxtiny", None, {}),
        ("hgnetv2_b0", 64, {}),
        ("inception_next_atto", 64, {}),
        ("rdnet_tiny", 64, {"growth_rates": (8, 16), "num_blocks_list": (1, 1), "is_downsample_block": (None, True), "bottleneck_width_ratio": 2.0, "transition_compression_ratio": 0.5, "block_type": ("Block", "Block"), "num_init_features": 16}),
        ("starnet_s1", 64, {}),
        ("vit_small_patch16_rope_224", 32, {"img_size": 32, "depth": 2}),
        ("naflexvit_base_patch16_gap", 32, {"depth": 2, "embed_dim": 48, "num_heads": 4}),
    )
}


class Picked(nn.Module):
    """One tensor of what a network returns."""

    def __init__(self, network, key=None, options=None):
        super().__init__()
        self.network = network
        self.key = key
        self.options = options or {}

    def forward(self, *arguments):
        result = self.network(*arguments, **self.options)
        if self.key is not None:
            return result[self.key]
        return result if torch.is_tensor(result) else result[0]


SMALL = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 60,
    "max_position_embeddings": 24,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DECODER = SMALL | {"num_key_value_heads": 2, "head_dim": 8}
BART = {
    "vocab_size": 60,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 24,
    "use_cache": False,
}
SPEECH = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "conv_dim": (8, 8, 8),
    "conv_kernel": (10, 3, 3),
    "conv_stride": (5, 2, 2),
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "vocab_size": 20,
    "apply_spec_augment": False,
}


def ids(batch=2, tokens=10):
    return (torch.randint(3, 50, (batch, tokens)),)


def of_transformers(model, config, settings_of, arguments, **call):
    def make():
        settings = getattr(transformers, config)(**settings_of)
        settings._attn_implementation = call.get("attention", "eager")
        network = getattr(transformers, model)(settings)
        result = {"return_dict": False} | call.get("options", {})
        return Picked(network, call.get("key"), result), arguments()

    return make


def tokens_of(family, task, options=None, **call):
    base = SMALL if call.pop("encoder", False) else DECODER
    return of_transformers(f"{family}{task}", f"{family}Config", base | (options or {}), ids, **call)


def encoder(family, options=None, task="ForSequenceClassification"):
    return tokens_of(family, task, options, encoder=True)


VISION = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}
GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 24, "vocab_size": 60, "use_cache": False}

TRANSFORMERS = {
    "bert": encoder("Bert"),
    "roberta": encoder("Roberta"),
    "albert": encoder("Albert", {"embedding_size": 8}),
    "electra": encoder("Electra", {"embedding_size": 8}),
    "distilbert": encoder("DistilBert", {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}),
    "mpnet": encoder("MPNet"),
    "deberta": encoder("DebertaV2", {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    "convbert": encoder("ConvBert", {"embedding_size": 16}),
    "squeezebert": encoder("SqueezeBert", {"embedding_size": 16, "q_groups": 2, "k_groups": 2, "v_groups": 2, "post_attention_groups": 1, "intermediate_groups": 2, "output_groups": 2}),
    "fnet": encoder("FNet", {"tpu_short_seq_length": 10}),
    "mobilebert": encoder("MobileBert", {"embedding_size": 8, "intra_bottleneck_size": 8, "true_hidden_size": 8}),
    "modernbert": encoder("ModernBert", {"reference_compile": False}),
    "roformer": encoder("RoFormer", {"embedding_size": 16}),
    "xlnet": of_transformers("XLNetForSequenceClassification", "XLNetConfig", {"vocab_size": 60, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24, "use_mems_eval": False}, ids),
    "gpt2": of_transformers("GPT2LMHeadModel", "GPT2Config", GPT2, ids),
    "gpt_neo": of_transformers("GPTNeoForCausalLM", "GPTNeoConfig", {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]], "vocab_size": 60, "max_position_embeddings": 24, "window_size": 4, "use_cache": False}, ids),
    "opt": of_transformers("OPTForCausalLM", "OPTConfig", {"hidden_size": 16, "ffn_dim": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 60, "max_position_embeddings": 24, "word_embed_proj_dim": 16, "use_cache": False}, ids),
    "bloom": of_transformers("BloomForCausalLM", "BloomConfig", {"hidden_size": 16, "n_layer": 2, "n_head": 2, "vocab_size": 60, "use_cache": False}, ids),
    "llama": tokens_of("Llama", "ForCausalLM"),
    "mistral": tokens_of("Mistral", "ForCausalLM"),
    "qwen2": tokens_of("Qwen2", "ForCausalLM"),
    "qwen3": tokens_of("Qwen3", "ForCausalLM"),
    "gemma2": tokens_of("Gemma2", "ForCausalLM"),
    "phi": tokens_of("Phi", "ForCausalLM"),
    "olmo2": tokens_of("Olmo2", "ForCausalLM"),
    "gpt_neox": tokens_of("GPTNeoX", "ForCausalLM"),
    "falcon": of_transformers("FalconForCausalLM", "FalconConfig", {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 60, "use_cache": False}, ids),
    "mixtral": tokens_of("Mixtral", "ForCausalLM", {"num_local_experts": 2}),
    "mamba": of_transformers("MambaForCausalLM", "MambaConfig", {"hidden_size": 16, "state_size": 4, "num_hidden_layers": 2, "vocab_size": 60, "use_cache": False}, ids),
    "rwkv": of_transformers("RwkvForCausalLM", "RwkvConfig", {"hidden_size": 16, "num_hidden_layers": 2, "vocab_size": 60, "use_cache": False}, ids),
    "t5_encoder": of_transformers("T5EncoderModel", "T5Config", {"vocab_size": 60, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}, ids),
    "t5": of_transformers("T5Model", "T5Config", {"vocab_size": 60, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "use_cache": False}, lambda: ids() + (None,) + ids(tokens=5)),
    "bart": of_transformers("BartForSequenceClassification", "BartConfig", BART, lambda: (torch.cat((ids()[0], torch.full((2, 1), 2)), 1),)),
    "whisper_encoder": lambda: (
        Picked(transformers.WhisperModel(transformers.WhisperConfig(**(BART | {"num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 24, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}))).get_encoder(), 0, {"return_dict": False}),
        (torch.randn(2, 8, 40),),
    ),
    "vit": of_transformers("ViTForImageClassification", "ViTConfig", VISION, lambda: image(32)),
    "beit": of_transformers("BeitForImageClassification", "BeitConfig", VISION | {"use_relative_position_bias": True}, lambda: image(32)),
    "deit": of_transformers("DeiTForImageClassification", "DeiTConfig", VISION, lambda: image(32)),
    "dinov2": of_transformers("Dinov2ForImageClassification", "Dinov2Config", VISION, lambda: image(32)),
    "swin": of_transformers("SwinForImageClassification", "SwinConfig", {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 2], "window_size": 4}, lambda: image(32)),
    "segformer": of_transformers("SegformerForSemanticSegmentation", "SegformerConfig", {"hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2], "decoder_hidden_size": 16}, lambda: image(64)),
    "convnextv2": of_transformers("ConvNextV2ForImageClassification", "ConvNextV2Config", {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}, lambda: image(32)),
    "clip_vision": of_transformers("CLIPVisionModelWithProjection", "CLIPVisionConfig", VISION | {"projection_dim": 8}, lambda: image(32)),
    "clip_text": of_transformers("CLIPTextModelWithProjection", "CLIPTextConfig", SMALL | {"projection_dim": 8}, ids),
    "siglip_vision": of_transformers("SiglipVisionModel", "SiglipVisionConfig", VISION, lambda: image(32), key=1),
    "sam_vision": of_transformers("SamVisionModel", "SamVisionConfig", {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 64, "patch_size": 8, "window_size": 4, "global_attn_indexes": [1], "output_channels": 8, "mlp_dim": 24, "num_pos_feats": 8}, lambda: image(64)),
    "wav2vec2": of_transformers("Wav2Vec2ForCTC", "Wav2Vec2Config", SPEECH, lambda: (torch.randn(2, 800),)),
    "wav2vec2_layer": of_transformers("Wav2Vec2ForCTC", "Wav2Vec2Config", SPEECH | {"feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_bias": True}, lambda: (torch.randn(2, 800),)),
    "hubert": of_transformers("HubertForCTC", "HubertConfig", SPEECH, lambda: (torch.randn(2, 800),)),
    "wavlm": of_transformers("WavLMForCTC", "WavLMConfig", SPEECH, lambda: (torch.randn(2, 800),)),
    "sew": of_transformers("SEWForCTC", "SEWConfig", SPEECH, lambda: (torch.randn(2, 800),)),
    "data2vec_audio": of_transformers("Data2VecAudioForCTC", "Data2VecAudioConfig", SPEECH, lambda: (torch.randn(2, 800),)),
    "encodec": lambda: (
        Picked(transformers.EncodecModel(transformers.EncodecConfig(num_filters=4, hidden_size=8, upsampling_ratios=[4, 2])).encoder),
        (torch.randn(1, 1, 320),),
    ),
    "hifigan": of_transformers("SpeechT5HifiGan", "SpeechT5HifiGanConfig", {"model_in_dim": 8, "upsample_initial_channel": 16, "upsample_rates": [2, 2], "upsample_kernel_sizes": [4, 4]}, lambda: (torch.randn(1, 12, 8),), options={"return_dict": None}),
    "patchtst": of_transformers("PatchTSTForPrediction", "PatchTSTConfig", {"num_input_channels": 3, "context_length": 32, "prediction_length": 4, "patch_length": 8, "patch_stride": 8, "d_model": 16, "num_attention_heads": 2, "num_hidden_layers": 2, "ffn_dim": 24}, lambda: (torch.randn(2, 32, 3),)),
    "yolos": of_transformers("YolosForObjectDetection", "YolosConfig", VISION | {"image_size": [32, 32], "num_detection_tokens": 5}, lambda: image(32)),
}

NETWORKS = OWN | TORCHVISION | TIMM | TRANSFORMERS
