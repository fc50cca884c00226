# SPDX-License-Identifier: Apache-2.0
"""Transpositions between rows of channels (N, H W, C) and images (N, C, H, W), on four axes, so that images may be in channel blocks.

    Transpose 0 2 1, View to (N, C, H, W)      a View to (N, H, W, C), Transpose TO_IMAGES
    View of (N, C, H, W), Transpose 0 2 1      Transpose TO_ROWS to (N, H, W, C), a View

Between rows and blocks runs of a block's channels are copied; nothing within them is transposed (`pysim.network.layouts`).
"""

from pysim.network.graph import Graph, Node, Tensor

TO_IMAGES, TO_ROWS = (0, 3, 1, 2), (0, 2, 3, 1)
PAIR = ("Transpose", "View")


def with_images(graph: Graph) -> Graph:
    """The graph with these replacements, where nothing else reads the value between the two nodes."""
    users, tensors, nodes, replaced = graph.users(), dict(graph.tensors), list(graph.nodes), set[int]()
    for at, node in enumerate(graph.nodes):
        readers = users.get(node.output, [])
        if at in replaced or node.op not in PAIR or len(readers) != 1 or readers[0] == len(nodes) or "reference" in node.attributes:
            continue
        behind = graph.nodes[readers[0]]
        if behind.op not in PAIR:
            continue
        ends = [tensors[name].shape for name in (node.inputs[0], node.output, behind.output)]
        name, moved = f"{node.output}:pixels", behind if behind.op == "Transpose" else node
        if "reference" in behind.attributes or tuple(moved.attributes.get("perm", ())) != (0, 2, 1):
            continue
        if (node.op, behind.op) == ("Transpose", "View") and _are_pixels(*ends[1:]):
            shape = tuple(ends[2][axis] for axis in TO_ROWS)
            nodes[at] = Node("View", node.name, node.inputs[:1], (name,), {}, node.absorbed)
            nodes[readers[0]] = node._replace(name=behind.name, inputs=(name,), outputs=behind.outputs).having(perm=TO_IMAGES)
        elif (node.op, behind.op) == ("View", "Transpose") and _are_pixels(*ends[1::-1]):
            shape = tuple(ends[0][axis] for axis in TO_ROWS)
            nodes[at] = behind._replace(name=node.name, inputs=node.inputs[:1], outputs=(name,)).having(perm=TO_ROWS)
            nodes[readers[0]] = Node("View", behind.name, (name,), behind.outputs, {}, node.absorbed)
        else:
            continue
        replaced.add(readers[0])  # it may begin another pair
        tensors[name] = Tensor(shape, tensors[node.output].dtype)
    return graph._replace(nodes=tuple(nodes), tensors=tensors)


def _are_pixels(planes: tuple[int, ...], images: tuple[int, ...]) -> bool:
    """Whether planes (N, C, H W) are the images of shape (N, C, H, W)."""
    return len(images) == 4 and planes == (*images[:2], images[2] * images[3])
