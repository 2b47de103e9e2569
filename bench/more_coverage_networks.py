"""Further networks of coverage.py (--more), which no kernel and no pattern was written for. As in coverage_networks.py."""

import torch

from network_makers import BATCH, hf, hf_causal, hf_image, hf_masked, hf_pair, tm, tm_sized, tv, tv_backbone, tv_video

# With 4 images of the given size; those of TIMM_SIZED are made for the size.
TIMM = {
    "caformer_s18": 64, "convformer_s18": 64, "convnext_zepto_rms": 64, "convnextv2_pico": 64, "csatv2": 128, "darknetaa53": 64,
    "densenet121": 64, "dla46x_c": 64, "eca_nfnet_l0": 64, "efficientnet_x_b3": 64, "efficientvit_b1": 64, "fasternet_t0": 64,
    "fastvit_mci0": 64, "ghostnetv2_100": 64, "ghostnetv3_100": 64, "hgnet_tiny": 64, "inception_resnet_v2": 96, "inception_v4": 96,
    "legacy_seresnet18": 64, "mobilenet_edgetpu_v2_xs": 64, "mobilenetv3_small_050": 64, "mobilenetv4_hybrid_medium": 64,
    "mobilenetv5_base": 64, "nextvit_small": 64, "nf_ecaresnet26": 64, "pvt_v2_b2_li": 64, "regnetv_040": 64, "repvit_m1": 64,
    "res2next50": 64, "resnest26d": 64, "resnet50_gn": 64, "resnetaa50": 64, "resnetblur50": 64, "resnetv2_50x1_bit": 64,
    "selecsls60b": 64, "skresnext50_32x4d": 64, "spnasnet_100": 64, "swiftformer_xs": 64, "test_byobnet": 64,
    "tf_efficientnet_lite0": 64, "tf_mixnet_s": 64, "tf_mobilenetv3_small_minimal_100": 64, "tiny_vit_11m_224": 64,
    "twins_pcpvt_small": 64, "vovnet39a": 64, "wide_resnet50_2": 64, "xcit_tiny_12_p8_224": 64,
}
TIMM_SIZED = {
    "beit_base_patch16_224": 224, "coatnext_nano_rw_224": 224, "eca_botnext26ts_256": 128, "gmixer_24_224": 224,
    "lambda_resnet26rpt_256": 128, "maxxvit_rmlp_nano_rw_256": 128, "sebotnet33ts_256": 128, "sequencer2d_s": 224,
    "swin_s3_tiny_224": 224, "swinv2_tiny_window8_256": 256, "vit_base_patch16_rope_224": 64,
    "vit_small_patch16_rope_mixed_224": 64, "vit_wee_patch16_reg1_gap_256": 64, "vitamin_small_224": 64,
}
CAUSAL = [
    "Apertus", "Arcee", "BitNet", "Cohere2", "DiffLlama", "Doge", "Ernie4_5", "Exaone4", "FalconMamba", "GPTNeoXJapanese", "Glm4",
    "GptOss", "GraniteMoe", "Helium", "HunYuanDenseV1", "Jamba", "JetMoe", "Lfm2", "MiniMax", "Ministral", "ModernBertDecoder",
    "NanoChat", "Nemotron", "NemotronH", "Olmo", "Olmo3", "Olmoe", "Phimoe", "Qwen2Moe", "Qwen3Moe", "Qwen3Next", "RecurrentGemma",
    "SeedOss", "SmolLM3", "VaultGemma", "xLSTM",
]
MASKED = ["Camembert", "Esm", "EuroBert", "Luke", "Mra", "NomicBert", "RoCBert", "RobertaPreLayerNorm", "XLMRobertaXL"]
PAIRS = ["BigBirdPegasus", "BlenderbotSmall", "FSMT", "Mvp", "NllbMoe", "PegasusX"]
IMAGES = ["Data2VecVision", "Dinov2WithRegisters", "HGNetV2", "IJepa", "TextNet"]
VISION = ["AltCLIPVision", "BlipVision", "CLIPSegVision", "ChineseCLIPVision", "DINOv3ViT"]
TORCHVISION = ["deeplabv3_resnet50", "efficientnet_b1", "mnasnet1_3", "regnet_y_800mf", "shufflenet_v2_x1_5", "vgg13"]


def series(name):
    """Forecasts of 8 steps from 32."""
    return hf(name, "ForPrediction", {"past_values": torch.randn(BATCH, 32, 3)}, "mse", num_input_channels=3, context_length=32,
              patch_length=8, prediction_length=8)


def sound(name, samples, **sizes):
    return hf(name, "Model", {"input_values": torch.randn(BATCH, 1, samples)}, "mse", **sizes)


def more_networks():
    found = {
        "torchvision/keypointrcnn_resnet50_fpn": lambda: tv_backbone("keypointrcnn_resnet50_fpn"),
        "torchvision/mvit_v1_b": lambda: tv_video("mvit_v1_b", 16, 224),
        "torchvision/ssd300_vgg16": lambda: tv_backbone("ssd300_vgg16", 300),
        "transformers/DacModel": lambda: sound("Dac", 2048, encoder_hidden_size=16, decoder_hidden_size=32),
        "transformers/EncodecModel": lambda: sound("Encodec", 1280),
        "transformers/PatchTSMixerForPrediction": lambda: series("PatchTSMixer"),
        "transformers/PatchTSTForPrediction": lambda: series("PatchTST"),
        "transformers/UperNetForSemanticSegmentation": lambda: hf_image("UperNet", "ForSemanticSegmentation", 64),
    }
    found |= {f"timm/{name}": lambda name=name, size=size: tm(name, size) for name, size in TIMM.items()}
    found |= {f"timm/{name}": lambda name=name, size=size: tm_sized(name, size) for name, size in TIMM_SIZED.items()}
    found |= {f"torchvision/{name}": lambda name=name: tv(name, 64) for name in TORCHVISION}
    for maker, names, kind in ((hf_causal, CAUSAL, "CausalLM"), (hf_masked, MASKED, "MaskedLM"),
                               (hf_pair, PAIRS, "ConditionalGeneration"), (hf_image, IMAGES, "ImageClassification")):
        found |= {f"transformers/{name}For{kind}": lambda maker=maker, name=name: maker(name) for name in names}
    found |= {f"transformers/{name}Model": lambda name=name: hf_image(name, "Model", loss="mse") for name in VISION}
    return dict(sorted(found.items()))


MORE_NETWORKS = more_networks()
