# SPDX-License-Identifier: Apache-2.0
"""Networks with random weights for compilers.py and first_result.py: torchvision's, timm's, transformers', those of small_networks.py."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import small_networks
import torch
import torchvision
from torch import nn


class Network(NamedTuple):
    """How a network is made; the shape of its input without the batch; tokens: of how many, in place of an image."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...] = (3, 224, 224)
    tokens: int = 0


class Hidden(nn.Module):
    """A model of transformers as a function of tokens alone."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens: Any) -> Any:
        return self.inner(input_ids=tokens, use_cache=False, return_dict=False)[0]


class Encoder(Hidden):
    def forward(self, tokens: Any) -> Any:
        return self.inner(input_ids=tokens, return_dict=False)[0]


def _small(name: str) -> Network:
    one = small_networks.NETWORKS[name]
    return Network(one.make, (one.channels, one.size, one.size))


def _torchvision(name: str) -> Network:
    return Network(partial(getattr(torchvision.models, name), weights=None))


def _timm(name: str, size: int = 224, **how: Any) -> Network:
    return Network(lambda: import_module("timm").create_model(name, pretrained=False, **how), (3, size, size))


def bert() -> nn.Module:
    of = import_module("transformers")
    return Encoder(of.BertModel(of.BertConfig(hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=2048)))


def distilbert() -> nn.Module:
    of = import_module("transformers")
    return Encoder(of.DistilBertModel(of.DistilBertConfig(n_layers=4)))


def roberta() -> nn.Module:
    of = import_module("transformers")
    return Encoder(of.RobertaModel(of.RobertaConfig(num_hidden_layers=4, max_position_embeddings=514)))


def llama() -> nn.Module:
    of = import_module("transformers")
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 4}
    return Hidden(of.LlamaModel(of.LlamaConfig(vocab_size=32000, **sizes)))


class Pixels(nn.Module):
    """A vision model of transformers as a function of images alone."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(pixel_values=x, return_dict=False)[0]


def vit_of_transformers() -> nn.Module:
    of = import_module("transformers")
    return Pixels(of.ViTModel(of.ViTConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=6, intermediate_size=1536)))


def gpt2() -> nn.Module:
    of = import_module("transformers")
    return Hidden(of.GPT2Model(of.GPT2Config(n_layer=4)))


def _of_transformers(wrap: Callable[[nn.Module], nn.Module], model: str, config: str, **sizes: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        of = import_module("transformers")
        return wrap(getattr(of, model)(getattr(of, config)(**sizes)))

    return make


def _other(name: str, size: int, **sizes: int) -> Network:
    """A network of small_networks.py with other widths and depths, for images of this size."""
    one = small_networks.NETWORKS[name]
    return Network(partial(one.make, **sizes), (one.channels, size, size))


_DINO = {"hidden_size": 384, "num_hidden_layers": 4, "num_attention_heads": 6, "image_size": 224}
_ALBERT = {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 2048}
NETWORKS = {
    "resnet50": _torchvision("resnet50"),
    "efficientnet_b0": _torchvision("efficientnet_b0"),
    "se_resnet": _small("se_resnet"),
    "decoder": _small("decoder"),
    "unet": _small("unet"),
    "mobilenet_v3_large": _torchvision("mobilenet_v3_large"),
    "regnet": _small("regnet"),
    "densenet121": _torchvision("densenet121"),
    "super_resolution": _small("super_resolution"),
    "vit": _small("vit"),
    "bert": Network(bert, (128,), 30522),
    "resnext50_32x4d": _torchvision("resnext50_32x4d"),
    "convnext_tiny": _torchvision("convnext_tiny"),
    "mobilevit_xs": _timm("mobilevit_xs", 256),
    "levit_128s": _timm("levit_128s"),
    "swin_tiny": _timm("swin_tiny_patch4_window7_224", depths=(2, 2, 2, 2)),
    "gpt2": Network(gpt2, (128,), 50257),
    "hrnet_w18_small": _timm("hrnet_w18_small"),
    "deit_tiny": _timm("deit_tiny_patch16_224"),
    "coatnet_nano": _timm("coatnet_nano_rw_224"),
    "ghostnet": _timm("ghostnet_100"),
    "dla34": _timm("dla34"),
    "regnety": _timm("regnety_008"),
    "poolformer": _timm("poolformer_s12"),
    "seresnext50": _timm("seresnext50_32x4d"),
    "repvgg_a2": _timm("repvgg_a2"),
    "mobilenetv4": _timm("mobilenetv4_conv_medium"),
    "efficientnetv2_b0": _timm("tf_efficientnetv2_b0"),
    "vovnet": _timm("ese_vovnet19b_dw"),
    "res2net50": _timm("res2net50_26w_4s"),
    "edgenext_small": _timm("edgenext_small"),
    "pvt_v2_b1": _timm("pvt_v2_b1"),
    "fastvit_t8": _timm("fastvit_t8"),
    "mixer": _timm("mixer_b16_224"),
    "cspdarknet53": _timm("cspdarknet53"),
    # not looked at while the choice was made or fitted
    "vgg16": _torchvision("vgg16"),
    "resnet18": _torchvision("resnet18"),
    "wide_resnet50_2": _torchvision("wide_resnet50_2"),
    "mobilenet_v2": _torchvision("mobilenet_v2"),
    "shufflenet_v2": _torchvision("shufflenet_v2_x1_0"),
    "mnasnet": _torchvision("mnasnet1_0"),
    "squeezenet": _torchvision("squeezenet1_1"),
    "regnet_x_800mf": _torchvision("regnet_x_800mf"),
    "resnet34d": _timm("resnet34d"),
    "darknet53": _timm("darknet53"),
    "dpn68": _timm("dpn68"),
    "selecsls42b": _timm("selecsls42b"),
    "resnest14d": _timm("resnest14d"),
    "convnextv2_atto": _timm("convnextv2_atto"),
    "beit_base": _timm("beit_base_patch16_224", depth=4),
    "distilbert": Network(distilbert, (128,), 30522),
    "roberta": Network(roberta, (128,), 50265),
    "llama": Network(llama, (256,), 32000),
    "vit_of_transformers": Network(vit_of_transformers),
    "unet_norms": _small("unet_norms"),
    "upscaler": _small("upscaler"),
    "unet_nearest": _small("unet_nearest"),
    "segformer": Network(_of_transformers(Pixels, "SegformerForSemanticSegmentation", "SegformerConfig"), (3, 256, 256)),
    "dinov2": Network(_of_transformers(Pixels, "Dinov2Model", "Dinov2Config", **_DINO)),
    "electra": Network(_of_transformers(Encoder, "ElectraModel", "ElectraConfig", num_hidden_layers=4), (128,), 30522),
    "cs3darknet_m": _timm("cs3darknet_m"),
    "skresnet18": _timm("skresnet18"),
    "hgnetv2_b1": _timm("hgnetv2_b1"),
    "resnet50_gn": _timm("resnet50_gn"),
    "nfnet_l0": _timm("nfnet_l0"),
    "xception41": _timm("xception41", 299),
    "efficientvit_b1": _timm("efficientvit_b1"),
    "maxvit_tiny": _timm("maxvit_tiny_rw_224", depths=(1, 1, 2, 1)),
    "repvit_m1": _timm("repvit_m1"),
    "visformer_small": _timm("visformer_small"),
    "resnetv2_50": _timm("resnetv2_50"),
    "resnext26ts": _timm("resnext26ts"),
    "seresnet33ts": _timm("seresnet33ts"),
    "fbnetc": _timm("fbnetc_100"),
    "mixnet_s": _timm("mixnet_s"),
    "densenet169": _torchvision("densenet169"),
    "hrnet_w18_small_v2": _timm("hrnet_w18_small_v2"),
    "unet_wide": _other("unet", 192, width=48, levels=3),
    "norms_wide": _other("unet_norms", 96, width=96, levels=2),
    "super_resolution_deep": _other("super_resolution", 64, width=48, depth=12),
    "upscaler_small": _other("upscaler", 64, width=64, grows=32, depth=2),
    "mobilevitv2": _timm("mobilevitv2_100", 256),
    "efficientformerv2_s1": _timm("efficientformerv2_s1"),
    "coat_lite_mini": _timm("coat_lite_mini"),
    "vit_small_32": _timm("vit_small_patch32_224"),
    "gmlp_s16": _timm("gmlp_s16_224", num_blocks=10),
    "albert": Network(_of_transformers(Encoder, "AlbertModel", "AlbertConfig", **_ALBERT), (192,), 30000),
    "clip_vision": Network(_of_transformers(Pixels, "CLIPVisionModel", "CLIPVisionConfig", num_hidden_layers=4)),
    "mobileone_s1": _timm("mobileone_s1"),
    "inception_next_tiny": _timm("inception_next_tiny"),
    "resnet26d": _timm("resnet26d"),
    "regnetx_016": _timm("regnetx_016"),
    "seresnet50": _timm("seresnet50"),
    "ecaresnet26t": _timm("ecaresnet26t"),
    "efficientnet_lite0": _timm("efficientnet_lite0"),
    "densenet201": _torchvision("densenet201"),
    "hrnet_w30": _timm("hrnet_w30"),
    "resnetv2_50d_gn": _timm("resnetv2_50d_gn"),
    "unet_narrow": _other("unet", 160, width=40, levels=4),
    "norms_small": _other("unet_norms", 80, width=64, levels=2),
    "super_resolution_wide": _other("super_resolution", 56, width=80, depth=6),
    "deit_small": _timm("deit_small_patch16_224"),
    "xcit_nano": _timm("xcit_nano_12_p16_224"),
    "efficientvit_b0": _timm("efficientvit_b0"),
    "edgenext_x_small": _timm("edgenext_x_small"),
    "mpnet": Network(_of_transformers(Encoder, "MPNetModel", "MPNetConfig", num_hidden_layers=4), (160,), 30000),
}


def model_and_input(name: str, batch: int, before_device: Callable[[], None], device: str = "cuda") -> tuple[nn.Module, Any]:
    """The network in inference, and an input. BatchNorm's statistics come from one pass in training; `before_device` is called before
    anything runs on the device."""
    torch.manual_seed(0)
    of = NETWORKS[name]
    model = of.make()
    before_device()
    model = model.to(device)
    if of.tokens:
        return model.eval(), torch.randint(of.tokens, (batch, *of.shape), device=device)
    if any(isinstance(one, nn.modules.batchnorm._BatchNorm) for one in model.modules()):
        model.train()
        with torch.no_grad():
            model(torch.randn(max(batch, 8), *of.shape, device=device))
    return model.eval(), torch.randn(batch, *of.shape, device=device)
