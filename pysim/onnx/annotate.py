# SPDX-License-Identifier: Apache-2.0
"""A copy of an ONNX file whose nodes carry what was planned and measured of them, as `metadata_props`. Netron shows these beside a node's
attributes; it reads no file of metrics beside the model."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pysim.errors import MissingError, ProblemError, printable
from pysim.onnx.protos import label_of
from pysim.record.description import seconds_text

_PREFIX = "pysim."


def annotate(path: Path, layers: Iterable[Mapping[str, Any]], into: Path) -> int:
    """Writes the copy; weights that lie in files beside the model are named in it as before. `layers`: as in the JSON documents of
    networks. Returns how many nodes have metadata. ProblemError for a file that cannot be read, or that has none of these nodes."""
    try:
        import onnx
    except ImportError:
        raise MissingError("Netron's file needs onnx: pip install onnx") from None
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # of protobuf, or of the file
        raise ProblemError(f"{path} cannot be read: {printable(str(error))}; run the command in the folder where it was measured") from None
    nodes = {label_of(node): node for node in model.graph.node}
    found = 0
    for layer in layers:
        for name, told in _told(layer):
            node = nodes.get(name) or nodes.get(name.partition(":")[0])
            if node is None:
                continue
            found += 1
            kept = [one for one in node.metadata_props if not one.key.startswith(_PREFIX)]
            del node.metadata_props[:]
            node.metadata_props.extend(kept)
            for key, value in told.items():
                node.metadata_props.add(key=_PREFIX + key, value=value)
    if not found:
        raise ProblemError(f"{path} has none of the measured nodes; it is another model, or was written anew")
    model.ir_version = max(model.ir_version, 10)  # the first with metadata of nodes
    onnx.save(model, str(into))
    return found


def _told(layer: Mapping[str, Any]) -> Iterable[tuple[str, dict[str, str]]]:
    """The nodes of a layer, and what is said of each."""
    name = str(layer.get("node", ""))
    told = {key: str(layer[key]) for key in ("problem", "plan") if layer.get(key)}
    told |= {key: seconds_text(seconds) for key in ("predicted", "measured") if (seconds := layer.get(f"{key}_seconds"))}
    fused = [str(one) for one in layer.get("fused") or ()]
    yield name, told | ({"fused": ", ".join(fused)} if fused else {})
    for one in fused:
        yield one, {"fused into": name}
