# SPDX-License-Identifier: Apache-2.0
"""Whether networks of torchvision, timm and transformers give eager PyTorch's results by pysim, also after their weights have changed.

    python lab/benchmarks/torch_networks.py [--device cuda] [--how optimize] [--part 1/4] [--only NAME ...] [--seconds 3600] >> FILE

Each network, with seeded random weights, is called by eager PyTorch and by pysim: as it is, after a step of an optimizer along random
gradients, and after `load_state_dict` of other weights. Every weight is random, also those that libraries initialise to zero, so that no
branch of a network is multiplied by nothing. One JSON line per network:

    errors    after each change the largest difference from eager over the root mean square of eager's result, of all results and calls
    moved     by how much the change itself moved eager's result: far more than an error, or the comparison would tell nothing
    noise     only where an error is above ERROR: what eager makes of weights off by 2^-22 of themselves. An error below AMPLIFIED times
              that is rounding, amplified by the network
    report    layers and kinds of input by who runs them, and why all calls are PyTorch's, if they are
    faults    results of other types, shapes or strides than eager's, errors that rounding does not explain, exceptions that eager does not
              raise
    absent    a library or network that is not here, or that eager itself does not run

Detections are chosen by comparing scores, so rounding may exchange some: each of eager's is compared with its nearest of the same label,
and where many have none, the error is their share. `NAME:heads` is what a detector computes of all anchors.
Exit status 1 if a network has faults.
"""

import argparse
import gc
import hashlib
import json
import platform
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import nn

import pysim.torch

ERROR = 2e-4  # above what rounding adds up to in most networks
AMPLIFIED = 50
LOST = 0.1  # the share of detections that rounding may exchange: 7 % of those that eager makes of an input off by 2^-23 of itself
DETECTION = (
    "fasterrcnn_mobilenet_v3_large_320_fpn", "fasterrcnn_resnet50_fpn_v2", "fcos_resnet50_fpn", "keypointrcnn_resnet50_fpn",
    "maskrcnn_resnet50_fpn", "retinanet_resnet50_fpn", "ssd300_vgg16", "ssdlite320_mobilenet_v3_large",
)  # fmt: skip
SEGMENTATION = (
    "deeplabv3_mobilenet_v3_large", "deeplabv3_resnet50", "deeplabv3_resnet101",
    "fcn_resnet50", "fcn_resnet101", "lraspp_mobilenet_v3_large",
)  # fmt: skip
VIDEO = {"r3d_18": 56, "mc3_18": 56, "r2plus1d_18": 56, "s3d": 224, "mvit_v1_b": 224, "mvit_v2_s": 224,
         "swin3d_t": 64, "swin3d_s": 64, "swin3d_b": 64}  # fmt: skip # sizes
TIMM = (
    "botnet26t_256", "cait_xxs24_224", "coatnet_nano_rw_224", "convit_tiny", "crossvit_tiny_240", "davit_tiny", "dpn48b",
    "efficientformerv2_s0", "eva02_tiny_patch14_224", "fasternet_t0", "focalnet_tiny_srf", "gcvit_xxtiny", "halonet26t", "hardcorenas_a",
    "hgnetv2_b0", "hiera_tiny_224", "hrnet_w18_small", "inception_v4", "lambda_resnet26t", "legacy_xception", "mambaout_femto",
    "maxvit_rmlp_pico_rw_256", "mvitv2_tiny", "nest_tiny", "nextvit_small", "pvt_v2_b0", "rdnet_tiny", "repghostnet_050", "repvit_m0_9",
    "resnet26d", "resnetv2_50x1_bit", "resnetv2_50d_gn", "seresnext26d_32x4d", "selecsls42b", "sequencer2d_s", "shvit_s1", "skresnet18",
    "starnet_s1", "swiftformer_xs", "swin_tiny_patch4_window7_224", "swinv2_cr_tiny_ns_224", "tf_efficientnet_b0", "tiny_vit_5m_224",
    "tnt_s_patch16_224", "tresnet_m", "twins_svt_small", "visformer_tiny", "vit_relpos_small_patch16_224", "vit_tiny_patch16_224",
    "vitamin_small_224", "volo_d1_224", "wide_resnet50_2", "xception41",
)  # fmt: skip
_WIDTH = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 300}
_DECODER = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
            "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "vocab_size": 300, "pad_token_id": 0}  # fmt: skip
_VISION = {key: _WIDTH[key] for key in _WIDTH if key != "vocab_size"} | {"image_size": 64, "patch_size": 16}
TRANSFORMERS: dict[str, tuple[dict[str, Any], str]] = {  # the options of a small network, and what it reads
    "Albert": (_WIDTH | {"embedding_size": 32}, "text"),
    "Bart": (_DECODER, "two texts"),
    "Beit": (_VISION, "image"),
    "Bert": (_WIDTH, "text"),
    "ConvNext": ({"hidden_sizes": [16, 32, 64, 64], "depths": [1, 1, 2, 1]}, "image"),
    "ConvNextV2": ({"hidden_sizes": [16, 32, 64, 64], "depths": [1, 1, 2, 1]}, "image"),
    "DeiT": (_VISION, "image"),
    "Dinov2": (_VISION, "image"),
    "DistilBert": ({"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128, "vocab_size": 300}, "text"),
    "DPT": (_VISION | {"backbone_out_indices": [0, 0, 1, 1]}, "image"),
    "Electra": (_WIDTH | {"embedding_size": 32}, "text"),
    "GPT2": ({"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 300}, "text"),
    "GPTNeoX": (_WIDTH, "text"),
    "Llama": (_WIDTH | {"num_key_value_heads": 2}, "text"),
    "MobileViT": ({"image_size": 64}, "image"),
    "OPT": ({"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 128, "vocab_size": 300,
             "word_embed_proj_dim": 64}, "text"),
    "Qwen2": (_WIDTH | {"num_key_value_heads": 2}, "text"),
    "ResNet": ({"embedding_size": 16, "hidden_sizes": [32, 64, 64, 128], "depths": [1, 1, 1, 1]}, "image"),
    "Roberta": (_WIDTH, "text"),
    "Segformer": ({"hidden_sizes": [16, 32, 64, 64], "num_attention_heads": [1, 2, 4, 4], "depths": [1, 1, 1, 1]}, "image"),
    "Swin": ({"image_size": 64, "patch_size": 2, "embed_dim": 24, "depths": [2, 2, 2], "num_heads": [2, 4, 6], "window_size": 4}, "image"),
    "T5": ({"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 300}, "two texts"),
    "ViT": (_VISION, "image"),
    "Wav2Vec2": (_WIDTH | {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}, "sound"),
    "Whisper": (_DECODER | {"max_source_positions": 50, "num_mel_bins": 20}, "spectrum"),
}  # fmt: skip


@dataclass
class Network:
    """A model in inference and its input. `detects`: its results are those of a detector."""

    model: nn.Module
    args: tuple[Any, ...] = ()
    named: dict[str, Any] = field(default_factory=dict)
    detects: bool = False


class AbsentError(Exception):
    """A library or network that is not here."""


# Networks


class Heads(nn.Module):
    """What a detector computes of all anchors, before it chooses."""

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, images: Any) -> Any:
        images, _ = self.detector.transform(images)
        features = self.detector.backbone(images.tensors)
        features = list(features.values()) if isinstance(features, Mapping) else [features]
        return self.detector.rpn.head(features) if hasattr(self.detector, "rpn") else self.detector.head(features)


_LAST = re.compile(
    r"(cls_score|cls_logits|bbox_pred|bbox_reg|bbox_ctrness|mask_fcn_logits|kps_score_lowres|(classification|regression)_head\.module_list\.\d+(\.1)?)$"
)


@torch.no_grad()
def with_clear_scores(detector: nn.Module, images: Any) -> None:
    """Scales the last layers of a detector with random weights: scores and boxes that are neither all the same nor all at their limits, so
    that what is chosen does not depend on rounding."""

    def scaled(layer: Any, _: Any, result: Any) -> Any:
        handles.pop(layer).remove()
        factor = float(2 / result.std())
        layer.weight.mul_(factor)
        layer.bias.mul_(factor).sub_(mean := factor * float(result.mean()))
        return result * factor - mean

    layers = [one for name, one in detector.named_modules() if _LAST.search(name) and not isinstance(one, nn.Sequential)]
    handles = {one: one.register_forward_hook(scaled) for one in layers}
    detector.eval()(images)


def of_torchvision(name: str) -> Network:
    models = import_module("torchvision").models
    name, _, part = name.partition(":")
    if name not in models.list_models():
        raise AbsentError("torchvision has no such model")
    if name in DETECTION:
        sizes = {} if name.startswith("ssd") or "320" in name else {"min_size": 160, "max_size": 224}
        model = models.get_model(name, weights=None, weights_backbone=None, num_classes=7, **sizes)
        images = [torch.rand(3, 128, 160), torch.rand(3, 150, 120)]
        return Network(Heads(model) if part else model, (images,), detects=not part)
    if name in SEGMENTATION:
        options = {"aux_loss": True} if "resnet" in name else {}
        return Network(models.get_model(name, weights=None, weights_backbone=None, **options), (torch.rand(1, 3, 96, 128),))
    if name in VIDEO:
        frames = 16 if VIDEO[name] == 224 else 8
        return Network(models.get_model(name, weights=None), (torch.rand(1, 3, frames, VIDEO[name], VIDEO[name]),))
    return Network(models.get_model(name, weights=None), (torch.rand(1, 3, 128, 128), torch.rand(1, 3, 128, 128)))  # optical flow


def of_timm(name: str) -> Network:
    timm = import_module("timm")
    if name not in timm.list_models():
        raise AbsentError("timm has no such model")
    model = timm.create_model(name, pretrained=False)
    channels, height, width = model.default_cfg["input_size"]
    if not model.default_cfg.get("fixed_input_size") and min(height, width) <= 320:
        height, width = model.default_cfg.get("min_input_size", (3, 128, 128))[1:]
    return Network(model, (torch.rand(1, channels, height, width),))


def of_transformers(name: str) -> Network:
    transformers = import_module("transformers")
    kinds = [getattr(transformers, name + ending, None) for ending in ("Config", "Model")]
    if None in kinds:
        raise AbsentError("transformers has no such model")
    options, reads = TRANSFORMERS[name]
    config = kinds[0](**options)
    text, mask = torch.randint(3, 300, (2, 11)), torch.ones(2, 11, dtype=torch.int64)
    mask[1, 7:] = 0
    given: dict[str, dict[str, Any]] = {
        "text": {"input_ids": text, "attention_mask": mask},
        "two texts": {"input_ids": text, "attention_mask": mask, "decoder_input_ids": text[:, :5]},
        "image": {"pixel_values": torch.rand(2, 3, 64, 64)},
        "sound": {"input_values": torch.randn(1, 2000)},
        "spectrum": {"input_features": torch.rand(1, 20, 100), "decoder_input_ids": text[:1, :5]},
    }
    return Network(kinds[1](config), named=given[reads])


def names() -> list[str]:
    flow, detectors = ("raft_small", "raft_large"), [*DETECTION, *(f"{one}:heads" for one in DETECTION)]
    of = {"torchvision": [*detectors, *SEGMENTATION, *VIDEO, *flow], "transformers": [*TRANSFORMERS], "timm": TIMM}
    return [f"{library}/{name}" for library, some in of.items() for name in some]


_MAKERS = {"torchvision": of_torchvision, "timm": of_timm, "transformers": of_transformers}


def network(name: str, device: str) -> Network:
    library, _, own = name.partition("/")
    torch.manual_seed(0)
    try:
        one = _MAKERS[library](own)
    except ImportError as error:
        raise AbsentError(f"no {library}: {_line(error)}") from None
    one.model.load_state_dict(other_weights(one.model, 1))
    if own in DETECTION or isinstance(one.model, Heads):
        with_clear_scores(getattr(one.model, "detector", one.model), *one.args)
    one.model.eval().to(device)
    one.args, one.named = (
        torch.utils._pytree.tree_map_only(torch.Tensor, lambda x: x.to(device), given) for given in (one.args, one.named)
    )
    return one


# Changes of weights


def other_weights(model: nn.Module, seed: int) -> dict[str, Any]:
    """Of about the size of the model's own; where these are all the same, as a norm's or those of a branch that begins as nothing, they no
    longer are."""
    draw, state = torch.Generator().manual_seed(seed), {}
    buffers = {name for name, _ in model.named_buffers() if not name.endswith("running_mean")}
    for name, one in model.state_dict().items():
        new = one
        if isinstance(one, torch.Tensor) and one.is_floating_point() and one.numel():
            first, second = (torch.randn(one.shape, generator=draw, dtype=torch.float64).to(one.device) for _ in range(2))
            spread = float(one.double().std(correction=0))
            added = 0.0 if name in buffers else 0.3 * spread or 0.05
            new = (one.double() * (1 + 0.1 * first) + added * second).to(one.dtype)
        state[name] = new
    return state


def step(model: nn.Module, fused: bool) -> str:
    """One of SGD (foreach) or of Adam (fused)."""
    weights, draw = [one for one in model.parameters() if one.requires_grad], torch.Generator().manual_seed(2)
    for one in weights:
        gradient = torch.randn(one.shape, generator=draw).to(one.device, one.dtype)
        one.grad = gradient.mul_(one.detach().std(correction=0) if one.numel() > 1 else 1.0)
    made: Any = torch.optim.Adam(weights, lr=3e-3, fused=True) if fused else torch.optim.SGD(weights, lr=0.1, foreach=True)
    made.step()
    made.zero_grad()
    return "Adam, fused" if fused else "SGD, foreach"


# Comparison


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """The tensors and numbers in a result, with their places: in dictionaries, sequences and objects that hold such."""
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from leaves(one, f"{place}.{name}")
    elif isinstance(value, list | tuple):
        for at, one in enumerate(value):
            yield from leaves(one, f"{place}[{at}]")
    elif isinstance(value, torch.Tensor | bool | int | float | str | type(None)):
        yield place, value
    elif hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        yield from leaves(vars(value), place)


def compared(found: Any, wanted: Any) -> tuple[float, list[str]]:
    """The largest error of the results, and what else differs."""
    mine, right = [*leaves(found)], [*leaves(wanted)]
    if [place for place, _ in mine] != [place for place, _ in right]:
        return float("inf"), [f"{len(mine)} results for {len(right)}"]
    error, faults = 0.0, []
    for (place, one), (_, other) in zip(mine, right, strict=True):
        if type(one) is not type(other) or not isinstance(other, torch.Tensor):
            faults += [f"{place}: {one!r:.60} for {other!r:.60}"] if type(one) is not type(other) or one != other else []
        elif (own := _form(one)) != (theirs := _form(other)):
            faults.append(f"{place}: {own} for {theirs}")
        elif not other.is_floating_point():
            faults += [] if torch.equal(one, other) else [f"{place}: {float((one != other).float().mean()):.1%} other integers"]
        else:
            error = max(error, _error(one, other))
    return error, faults


def _form(x: Any) -> tuple[Any, ...]:
    strides = tuple(step for size, step in zip(x.shape, x.stride(), strict=True) if size > 1) if x.numel() else ()
    return type(x).__name__, x.dtype, tuple(x.shape), strides, x.device.type, x.requires_grad


def _error(found: Any, wanted: Any) -> float:
    """Infinite where one is finite and the other is not."""
    found, wanted = found.detach().double(), wanted.detach().double()
    finite = wanted.isfinite()
    if not torch.equal(finite, found.isfinite()) or not torch.equal(found.isnan(), wanted.isnan()):
        return float("inf")
    if not finite.any():
        return 0.0
    rms = wanted[finite].square().mean().sqrt().clamp_min(1e-30)
    return float((found[finite] - wanted[finite]).abs().max() / rms)


def compared_detections(found: Any, wanted: Any) -> tuple[float, list[str]]:
    """The error of the scores and boxes of detections that have a counterpart; the share of those that have none, if it is above LOST."""
    lost, count, error, faults = 0, 0, 0.0, []
    for mine, right in zip(found, wanted, strict=True):
        if mine.keys() != right.keys():
            return float("inf"), [f"keys {[*mine]} for {[*right]}"]
        faults += [f"{key}: {mine[key].dtype} for {right[key].dtype}" for key in right if mine[key].dtype != right[key].dtype]
        count += len(right["scores"])
        lost += abs(len(mine["scores"]) - len(right["scores"]))
        if not len(mine["scores"]):
            continue
        scale = right["boxes"].abs().mean()
        far = (mine["boxes"][None] - right["boxes"][:, None]).abs().amax(-1) / scale
        far = far.maximum((mine["scores"][None] - right["scores"][:, None]).abs())
        far = far.masked_fill(mine["labels"][None] != right["labels"][:, None], 1.0)
        nearest = far.min(1).values
        lost += int((nearest > 0.01).sum())
        error = max(error, float(nearest[nearest <= 0.01].max())) if (nearest <= 0.01).any() else error
        which = far.argmin(1)
        for key in right.keys() - {"boxes", "scores", "labels"}:
            differ = ((mine[key][which] - right[key]).abs() > 0.01 * right[key].abs().mean().clamp_min(1e-30)).flatten(1).float().mean(1)
            if (share := float(differ[nearest <= 0.01].median())) > LOST:
                faults.append(f"{key}: {share:.0%} of the elements of most detections differ")
    if not count:
        faults.append("no detections")
    return max(error, lost / max(count, lost) if lost > LOST * count else 0.0), faults


# One network


def check(name: str, given: argparse.Namespace) -> dict[str, Any]:
    row: dict[str, Any] = {"network": name}
    try:
        one = network(name, given.device)
        with torch.no_grad():
            before = one.model(*one.args, **one.named)
    except AbsentError as error:
        return row | {"absent": str(error)}
    except Exception as error:  # whatever it is: eager does not run it here
        return row | {"absent": f"{type(error).__name__}: {_line(error)}"}
    start = time.perf_counter()
    row |= {"errors": {}, "moved": {}, "faults": []}
    compiled: Callable[[Any], Any] = lambda model: torch.compile(model, backend=pysim.torch.backend)  # noqa: E731
    ours = pysim.torch.optimize(one.model, cuda_graph=given.cuda_graph) if given.how == "optimize" else compiled(one.model)
    fused = int(hashlib.sha256(name.encode()).hexdigest(), 16) % 2 == 0
    changes: dict[str, Callable[[], Any]] = {
        "as it is": lambda: None,
        "step": lambda: row.update(optimizer=step(one.model, fused)),
        "load": lambda: one.model.load_state_dict(other_weights(one.model, 3)),
    }
    for change, make in changes.items():
        make()
        before = _compare(change, one, ours, before, row, given.calls)
    decisions = pysim.torch.report(ours)
    runs = [decision.runs for decision in decisions]
    row["report"] = {"pysim": runs.count("pysim"), "torch": runs.count("torch")}
    if given.how == "optimize" and ours._pysim.refusal:
        row["report"]["refused"] = ours._pysim.refusal[:300]
    return row | {"seconds": round(time.perf_counter() - start, 1)}


def _compare(change: str, one: Network, ours: Any, before: Any, row: dict[str, Any], calls: int) -> Any:
    """The results of both after a change, written into the row. Returns eager's."""
    compare = compared_detections if one.detects else compared
    with torch.no_grad():
        wanted = one.model(*one.args, **one.named)
        row["moved"][change] = compare(before, wanted)[0]
        for at in range(calls):
            try:
                found = ours(*one.args, **one.named)
            except Exception as error:
                traceback.print_exc()
                row["faults"].append(f"{change}, call {at}: {type(error).__name__}: {_line(error)}")
                break
            error, faults = compare(found, wanted)
            row["errors"][change] = max(error, row["errors"].get(change, 0.0))
            row["faults"] += [f"{change}, call {at}: {fault}" for fault in faults]
            if not error <= ERROR:
                noise = row.setdefault("noise", {}).setdefault(change, _noise(one, wanted, compare))
                if not error <= AMPLIFIED * noise:
                    row["faults"].append(f"{change}, call {at}: off by {error:.2g}, where rounding makes {noise:.2g}")
    return wanted


def _noise(one: Network, wanted: Any, compare: Callable[[Any, Any], tuple[float, list[str]]]) -> float:
    """What eager makes of weights that are off by rounding."""
    weights = [*one.model.parameters()]
    kept = [weight.detach().clone() for weight in weights]
    for weight in weights:
        weight.mul_(1 + 2.0**-22 * torch.randn_like(weight))
    noise = compare(one.model(*one.args, **one.named), wanted)[0]
    for weight, before in zip(weights, kept, strict=True):
        weight.copy_(before)
    return noise


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:300]


# The script


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("torch", "torchvision", "timm", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options.add_argument("--how", choices=("optimize", "compile"), default="optimize")
    options.add_argument("--cuda-graph", action="store_true", help="with optimize: calls as CUDA graphs")
    options.add_argument("--only", nargs="+", default=[""], metavar="NAME", help="networks whose names contain one of these")
    options.add_argument("--part", default="1/1", help="I/N: of N parts, the I-th")
    options.add_argument("--calls", type=int, default=2, help="after each change")
    options.add_argument("--seconds", type=float, default=float("inf"), help="after which no network is begun")
    given = options.parse_args()
    warnings.simplefilter("ignore")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if given.device == "cpu":
        torch.set_num_threads(1)
    device = torch.cuda.get_device_name() if given.device == "cuda" else f"cpu, {torch.backends.cpu.get_cpu_capability()}"
    shared = {"device": device, "how": given.how, "cuda_graph": given.cuda_graph, "versions": versions()}
    part, parts = map(int, given.part.split("/"))
    chosen = [name for name in names() if any(only in name for only in given.only)]
    start, wrong = time.time(), []
    for name in chosen[part - 1 :: parts]:
        if time.time() - start > given.seconds:
            print(f"no time left for {name} and what follows", file=sys.stderr)
            break
        try:
            row = check(name, given)
        except Exception as error:  # of optimize, report or a change: the other networks are to be seen, too
            traceback.print_exc()
            row = {"network": name, "faults": [f"{type(error).__name__}: {_line(error)}"]}
        print(json.dumps(row | shared), flush=True)
        wrong += [name] if row.get("faults") else []
        torch._dynamo.reset()
        gc.collect()
    if wrong:
        sys.exit(f"with faults: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
