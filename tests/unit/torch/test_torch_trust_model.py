# SPDX-License-Identifier: Apache-2.0
"""The user's model stays what it was, and the optimized one is used like it: saved, copied, scripted, exported, traced, trained."""

import copy
import inspect
import io
import pickle

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch_models import block, settled  # noqa: E402
from torch_twins import WAYS, Twins, difference  # noqa: E402

import pysim.torch  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("every_layer_is_ours", "fresh_compiler"),
    pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning", "ignore:.torch.jit:FutureWarning"),
]


def image(batch=2):
    return torch.randn(batch, 3, 9, 9)


def network():
    return settled(nn.Sequential(block(), Added(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)))


class Added(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)

    def forward(self, x):
        return functional.relu(self.norm(self.conv(x)) + x)


def everything(model, way):
    """What a model consists of, by identity: its modules' attributes, its tensors, their attributes, addresses and versions. What
    torch.compile itself writes with any backend is not the backend's."""
    of_compiler = ("_is_torch_compile", "_dynamo_static_input_type") if way == "compile" else ()
    found = {}
    for name, module in model.named_modules():
        found[name, "type"] = type(module)
        for key, value in vars(module).items():
            if key in of_compiler:
                continue
            kept = {inner: id(one) for inner, one in value.items()} if isinstance(value, dict) else value
            found[name, key] = kept if isinstance(kept, dict | bool | int | float | str | tuple) else id(value)
            found[name, key, "object"] = id(value)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        attributes = {key: id(value) for key, value in vars(tensor).items() if key not in of_compiler}
        found[name, "tensor"] = id(tensor), type(tensor), attributes, tensor.data_ptr(), tensor._version, tensor.requires_grad, tensor.grad
        found[name, "hooks"] = tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None)
    return found


@pytest.mark.parametrize("training", [False, True])
def test_nothing_of_the_model_changes(training, way):
    """Neither by being optimized, nor by calls in inference."""
    model = network()
    model.train(training)
    before, kept = everything(model, way), {name: one.clone() for name, one in model.state_dict().items()}
    saved = pickle.dumps(model)
    ours = WAYS[way](model)
    assert everything(model, way) == before
    if not training:
        with torch.no_grad():
            for size in (2, 3):
                ours(image(size))
        with torch.inference_mode():
            ours(image())
        assert everything(model, way) == before
    assert not difference(dict(model.state_dict()), kept)
    assert not difference(dict(pickle.loads(saved).state_dict()), kept)
    assert not difference(dict(pickle.loads(pickle.dumps(model)).state_dict()), kept)
    assert type(copy.deepcopy(model)) is nn.Sequential


def test_the_state_is_one(way):
    """The optimized module's parameters, buffers and submodules are the model's own objects."""
    model = network()
    ours = WAYS[way](model)
    given = getattr(ours, "_orig_mod", ours)
    for kind in ("parameters", "buffers"):
        assert [*map(id, getattr(given, kind)())] == [*map(id, getattr(model, kind)())]
    assert [*map(id, given.children())] == [*map(id, model.children())]
    assert list(given.state_dict()) == list(model.state_dict())
    assert all(
        one.data_ptr() == other.data_ptr() for one, other in zip(given.state_dict().values(), model.state_dict().values(), strict=True)
    )


def test_a_saved_model_loads_where_pysim_is_not_used(way):
    model, x = network(), image()
    with torch.no_grad():
        WAYS[way](model)(x)
        kept = io.BytesIO()
        torch.save(model.state_dict(), kept)
        kept.seek(0)
        other = network()
        other.load_state_dict(torch.load(kept, weights_only=True))
        assert torch.equal(other(x), model(x))


@pytest.mark.parametrize(
    "copying", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "deepcopy", "pickle"]
)
def test_a_copy_of_an_optimized_model_computes_its_own_state(copying):
    twins, x = Twins(network(), "optimize"), image()
    with torch.no_grad():
        twins.check(x)
        ours, right = copying(twins.ours), copying(twins.twin)
        for one in (ours, right):
            one[4].weight.mul_(-2)
            one[0][0].weight.detach().numpy()[:] += 0.5
        assert not (fault := difference(ours(x), right(x))), fault
        twins.check(x)


def test_a_copy_moved_to_meta_is_the_originals():
    model, x = network(), image()
    ours = pysim.torch.optimize(model)
    with torch.no_grad():
        ours(x)
        moved, right = (copy.deepcopy(one).to("meta") for one in (ours, model))
        found, wanted = (one(x.to("meta")) for one in (moved, right))
        assert found.is_meta and found.shape == wanted.shape and found.dtype == wanted.dtype
        emptied = copy.deepcopy(ours).to_empty(device="meta")
        assert emptied(x.to("meta")).shape == wanted.shape
        assert not (fault := difference(ours(x), model(x))), fault


class Marked(nn.Module):
    """Arguments by name, of several kinds."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, image, scale: float = 2.0, shift: torch.Tensor | None = None):
        y = functional.relu(self.conv(image)) * scale
        return y if shift is None else y + shift


def test_an_optimized_model_is_scripted_as_the_original_is():
    model, x = network(), image()
    ours = pysim.torch.optimize(model)
    with torch.no_grad():
        for again in range(2):
            assert not (fault := difference(torch.jit.script(ours)(x), torch.jit.script(model)(x))), (again, fault)
            ours(x)
        assert not (fault := difference(torch.jit.script(pysim.torch.optimize(Marked().eval()))(x).shape, torch.Size((2, 8, 7, 7)))), fault
        assert not (fault := difference(torch.jit.trace(ours, x)(-x), model(-x))), fault


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("called", [True, False])
def test_an_optimized_model_is_exported_as_the_original_is(strict, called):
    model, x = Marked().eval(), image()
    ours = pysim.torch.optimize(model)
    if called:
        with torch.no_grad():
            ours(x)
    dynamic = {"image": {0: torch.export.Dim("batch", min=2, max=32)}}
    found, wanted = (torch.export.export(one, (x,), strict=strict, dynamic_shapes=dynamic) for one in (ours, model))
    assert [node.target for node in found.graph.nodes] == [node.target for node in wanted.graph.nodes]
    assert list(found.state_dict) == list(wanted.state_dict)
    other = image(5)
    with torch.no_grad():
        assert not (fault := difference(found.module()(other), wanted.module()(other))), fault
        assert not (fault := difference(ours(other), model(other))), fault


def test_an_optimized_model_is_traced_symbolically_as_the_original_is():
    model, x = Marked().eval(), image()
    ours = pysim.torch.optimize(model)
    found, wanted = (torch.fx.symbolic_trace(one, {"shift": None}) for one in (ours, model))
    assert [str(node.target) for node in found.graph.nodes] == [str(node.target) for node in wanted.graph.nodes]
    with torch.no_grad():
        assert not (fault := difference(found(x, 2.0), wanted(x, 2.0))), fault
    assert [str(node.target) for node in torch.fx.symbolic_trace(nn.Sequential(ours)).graph.nodes]


@pytest.mark.parametrize("called", [True, False])
def test_an_optimized_model_is_compiled_as_one_graph_as_the_original_is(called):
    model, x = network(), image()
    ours = pysim.torch.optimize(model)
    with torch.no_grad():
        if called:
            ours(x)
        assert not (fault := difference(torch.compile(ours, backend="eager", fullgraph=True)(x), model(x))), fault
        torch._dynamo.reset()
        assert not (fault := difference(torch.compile(nn.Sequential(ours), backend=pysim.torch.backend, fullgraph=True)(x), model(x))), (
            fault
        )
        assert not (fault := difference(ours(x), model(x))), fault


def test_an_optimized_model_has_the_originals_signature_and_names():
    model = Marked()
    ours = pysim.torch.optimize(model)
    assert list(inspect.signature(ours.forward).parameters) == list(inspect.signature(model.forward).parameters)
    assert isinstance(ours, Marked) and type(ours).__name__ == "Marked" and type(ours).__module__ == type(model).__module__
    assert repr(ours) == repr(model)


def test_an_optimized_model_is_functional_as_the_original_is():
    model, x = network(), image()
    ours = pysim.torch.optimize(model)
    state = {name: torch.rand_like(one) if one.is_floating_point() else one for name, one in model.state_dict().items()}
    with torch.no_grad():
        ours(x)
        for _ in range(2):
            assert not (fault := difference(torch.func.functional_call(ours, state, x), torch.func.functional_call(model, state, x))), fault
            assert not (fault := difference(ours(x), model(x))), fault


# Models within models


@pytest.mark.parametrize("called", [True, False])
@pytest.mark.parametrize(
    "outer", [pysim.torch.optimize, lambda model: torch.compile(model, backend=pysim.torch.backend)], ids=["optimize", "compile"]
)
def test_a_model_with_an_optimized_child_is_optimized(outer, called):
    child, x = Marked().eval(), image()
    ours = pysim.torch.optimize(child)
    if called:
        with torch.no_grad():
            ours(x)
    model, right = (nn.Sequential(nn.Sequential(one, nn.ReLU()), nn.Conv2d(8, 4, 1)).eval() for one in (ours, copy.deepcopy(child)))
    right[1].load_state_dict(model[1].state_dict())
    with torch.no_grad():
        found = outer(model)
        for _ in range(2):
            assert not (fault := difference(found(x), right(x))), fault
            for one in (child, right[0][0]):
                one.conv.weight.mul_(-1)
        assert not (fault := difference(found(x), right(x))), fault
        assert not (fault := difference(ours(x), right[0][0](x))), fault


def test_two_optimized_models_of_one_model_follow_it(way):
    model, x = network(), image()
    ours = [WAYS[way](model) for _ in range(2)]
    with torch.no_grad():
        for _ in range(3):
            assert all(not difference(one(x), model(x)) for one in ours)
            model[4].weight.detach().numpy()[:] *= -1
            model[0][0].weight.mul_(2)
            assert not (fault := difference(ours[1](x), model(x))), fault
            assert not (fault := difference(ours[0](x), model(x))), fault


def test_an_optimized_model_forgets_nothing_when_the_name_of_the_original_goes():
    def made():
        model = network()
        return pysim.torch.optimize(model), copy.deepcopy(model)

    (ours, right), x = made(), image()
    with torch.no_grad():
        for _ in range(2):
            assert not (fault := difference(ours(x), right(x))), fault
            ours[4].weight.mul_(2), right[4].weight.mul_(2)


# Roots of every kind


ROOTS = {
    "batch norm": lambda: settled(nn.Sequential(nn.BatchNorm2d(3)))[0],
    "batch norm 1d": lambda: nn.BatchNorm1d(3).eval(),
    "batch norm without statistics": lambda: nn.BatchNorm2d(3, track_running_stats=False).eval(),
    "instance norm": lambda: nn.InstanceNorm2d(3).eval(),
    "instance norm with statistics": lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True).eval(),
    "softmax of images": lambda: nn.Softmax2d().eval(),
    "convolution": lambda: nn.Conv2d(3, 8, 3).eval(),
    "product": lambda: nn.Linear(9, 8).eval(),
    "norm of rows": lambda: nn.LayerNorm(9).eval(),
    "norm of groups": lambda: nn.GroupNorm(3, 3).eval(),
    "activation": lambda: nn.ReLU(inplace=True).eval(),
    "nothing": lambda: nn.Identity().eval(),
    "empty": lambda: nn.Sequential().eval(),
    "transposed": lambda: nn.ConvTranspose2d(3, 4, 3).eval(),
    "attention": lambda: nn.TransformerEncoderLayer(9, 3, 16, batch_first=True).eval(),
    "recurrent": lambda: nn.GRU(9, 5, batch_first=True).eval(),
    "pool": lambda: nn.MaxPool2d(2).eval(),
    "dropout": lambda: nn.Dropout(0.5).eval(),
}


@pytest.mark.filterwarnings("ignore:enable_nested_tensor:UserWarning")
@pytest.mark.parametrize("name", ROOTS)
def test_a_root_of_any_kind_is_accepted(name, way):
    x = torch.randn(2, 3, 9) if name in ("batch norm 1d", "attention", "recurrent") else image()
    twins = Twins(ROOTS[name](), way)
    with torch.no_grad():
        twins.check(x)
        twins.do(lambda one: [tensor.detach().numpy().__imul__(2) for tensor in (*one.parameters(), *one.buffers()) if tensor.dim()])
        twins.check(x)


def test_a_model_that_no_trace_follows_is_accepted():
    class Wild(nn.Module):
        """Python that no compiler knows, around a convolution."""

        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)

        def forward(self, x, **more):
            y = self.conv(x)
            try:
                scale = float(y.mean().item())
                if scale > 1e9:
                    raise ValueError("large")
            except ValueError:
                scale = 0.0
            sizes = sorted(set(y.shape), reverse=True)
            return {"y": y * scale, "sizes": sizes, "none": None, **more}

    twins, x = Twins(Wild().eval(), "optimize"), image()
    with torch.no_grad():
        twins.check(x)
        twins.check(x, more=x[0], other="text")


def test_arguments_of_any_kind_are_pytorchs(way):
    class Kinds(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)

        def forward(self, x, factor=1.0, *rest, names=("a",), scales=None, **more):
            image = x["image"] if isinstance(x, dict) else x[0] if isinstance(x, tuple) else x
            y = self.conv(image) * factor
            y = y + sum(rest) if rest else y
            y = y if scales is None else y * scales["by"]
            return dict.fromkeys(names, y) | more

    twins, x = Twins(Kinds().eval(), way), image()
    with torch.no_grad():
        for args, named in [
            ((x,), {}),
            (({"image": x},), {}),
            (((x, 3),), {"names": ("b", "c")}),
            ((x, 2), {}),
            ((x, 2.5, 1, 2), {"scales": {"by": 3}}),
            ((x, torch.tensor(3.0)), {"scales": {"by": x[0, 0, 0, 0]}, "rest_": x}),
            ((x, True), {"names": (), "other": None}),
            ((), {"x": x, "factor": -1}),
            ((), {}),
        ]:
            twins.check(*args, **named)


@pytest.mark.parametrize("training", [True, False])
def test_training_is_pytorchs_bit_for_bit(training, way):
    model = network().train(training)
    right = copy.deepcopy(model)
    ours = WAYS[way](model)
    for step in range(3):
        for one, of in ((ours, model), (right, right)):
            torch.manual_seed(step)
            one(image()).square().sum().backward()
            with torch.no_grad():
                for parameter in of.parameters():
                    parameter -= 0.01 * parameter.grad
                    parameter.grad = None
        assert all(torch.equal(one, other) for one, other in zip(model.state_dict().values(), right.state_dict().values(), strict=True))


class Broken(nn.Module):
    def __init__(self, breaks):
        super().__init__()
        self.conv, self.breaks = nn.Conv2d(3, 3, 3, padding=1), breaks

    def forward(self, x):
        y = self.conv(x)
        if self.breaks:
            torch._dynamo.graph_break()
        return y + 1


@pytest.mark.parametrize("at", [0, 1])
def test_a_hook_is_that_of_its_module_where_several_share_a_class_beside_a_break_of_the_graph(at):
    """torch.compile takes them for one another, with any backend, also where nothing was captured before."""
    twins, x = Twins(nn.Sequential(Broken(False), Broken(False), Broken(True)).eval(), "optimize"), torch.randn(2, 3, 9, 9)
    with torch.no_grad():
        twins.check(x)
        twins.do(lambda one: one[at].conv.register_forward_hook(lambda _, given, y: 2 * y))
        twins.check(x)
