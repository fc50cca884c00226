# SPDX-License-Identifier: Apache-2.0
"""Graphs on a GPU that are compiled around pysim's kernels: here on a CPU, with the kernels as the CPU runs them. AOTAutograd alone stands
for the compiler where code does not matter; `test_inductor_*` compile in earnest."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch_models import assert_close, settled  # noqa: E402

import pysim.torch  # noqa: E402
from pysim.errors import OperandError  # noqa: E402
from pysim.torch import measured  # noqa: E402
from pysim.torch.capture import compiled, compiled_layers  # noqa: E402
from pysim.torch.layers.fused_layer import FusedLayer  # noqa: E402

pytestmark = pytest.mark.usefixtures("slow_compiler", "on_gpu", "fresh_compiler")


@pytest.fixture
def traced(monkeypatch):
    """The graphs that the compiler was given, as AOTAutograd has them; their operators run one by one."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    graphs = []

    def keep(graph, _):
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    def compile_fx(graph, inputs, config_patches):
        return aot_autograd(fw_compiler=keep)(graph, inputs)

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    return graphs


class Block(nn.Module):
    """A convolution with its norm, a group norm that no kernel has, a residual, a product."""

    def __init__(self, inplace=False):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.conv, self.batch_norm = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.last, self.relu = nn.Linear(8, 5), nn.ReLU(inplace)

    def forward(self, x):
        x = self.relu(self.stem(x))
        x = self.relu(x + self.batch_norm(self.conv(functional.silu(self.norm(x)))))
        return self.last(x.mean((2, 3)))


def images(*shape):
    return torch.randn(shape or (2, 3, 9, 9))


def runs(optimized):
    return {one.layer: one.runs for one in pysim.torch.report(optimized)}


def how(graphs):
    """What the operators in the graphs are given as text."""
    text = [str(value) for graph in graphs for node in graph.graph.nodes for value in (*node.args, *node.kwargs.values())]
    return [one for one in text if one.startswith('["')]


@torch.no_grad()
@pytest.mark.parametrize("inplace", [False, True])
def test_layers_are_ours_and_the_rest_the_compilers(traced, inplace):
    model, x = settled(Block(inplace)), images()
    optimized = pysim.torch.optimize(model, compiler=True)
    assert_close(optimized(x), model(x))
    assert runs(optimized) == {"stem": "pysim", "conv": "pysim", "last": "pysim"}
    assert any("native_group_norm" in str(node.target) for node in traced[0].graph.nodes)
    assert [one.endswith("true]") for one in how(traced)] == [False, True, False]  # the second adds its residual where that lies


@torch.no_grad()
@pytest.mark.parametrize("make", [lambda: nn.ConvTranspose2d(4, 1, 2, 2), lambda: nn.Conv2d(4, 8, 3), lambda: nn.Linear(9, 8)])
def test_biases_whose_numbers_lie_apart(traced, make):
    """One filter's bias is that of all its phases; a bias may be every second number of a tensor."""
    model = nn.Sequential(make(), nn.Tanh()).eval()
    model[0].bias = nn.Parameter(torch.randn(2 * model[0].bias.numel())[::2])
    x = images(2, 4, 9, 9)
    optimized = pysim.torch.optimize(model, compiler=True)
    assert_close(optimized(x), model(x))
    assert runs(optimized) == {"0": "pysim"}


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_taps_are_summed_in_the_type_of_the_layer_and_in_no_smaller_one_than_fp32(traced, dtype):
    model, x = settled(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.Tanh())).to(dtype), images(2, 8, 9, 9).to(dtype)
    optimized = pysim.torch.optimize(model, compiler=True)
    y = optimized(x)
    assert y.dtype is dtype and runs(optimized) == {"0": "pysim"}
    assert (y - model(x)).abs().max() < (1e-3 if dtype is torch.float16 else 1e-6)
    assert [one.reason.endswith("of its taps") for one in pysim.torch.report(optimized)] == [True]


@torch.no_grad()
def test_the_library_is_priced_in_the_type_in_which_it_multiplies(traced, monkeypatch):
    """Where TF32 is allowed that is TF32, though FP32's plan is the faster one."""
    of_fp32, priced = FusedLayer.fastest_plan, []
    monkeypatch.setattr(compiled_layers, "types_of", lambda *_: ("tf32", "f32"))
    monkeypatch.setattr(FusedLayer, "fastest_plan", lambda self, x, w, types, on: of_fp32(self, x, w, ("f32",), on))
    monkeypatch.setattr(compiled_layers, "library_seconds", lambda problem, on: priced.append(problem.dtype) or 1.0)
    model, x = settled(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())), images()
    optimized = pysim.torch.optimize(model, compiler=True)
    assert_close(optimized(x), model(x))
    assert set(priced) == {"tf32"}


@torch.no_grad()
def test_the_backend_of_torch_compile_is_compiled_too(traced):
    model, x = settled(Block()), images()
    found = torch.compile(model, backend=pysim.torch.backend, options={"accuracy": "ieee", "compiler": True})
    assert_close(found(x), model(x))
    assert len(how(traced)) == 3


@torch.no_grad()
def test_changed_weights_take_effect_in_the_next_call(traced):
    model, x = settled(Block()), images()
    optimized = pysim.torch.optimize(model, compiler=True)
    for change in (
        lambda: model.stem.weight.mul_(2),
        lambda: model.conv.weight.data.add_(0.1),
        lambda: model.batch_norm.running_mean.normal_(),
        lambda: model.last.bias.zero_(),
        lambda: setattr(model, "last", nn.Linear(8, 5)),
        lambda: model.load_state_dict(
            {name: one + 0.25 for name, one in model.state_dict().items() if one.is_floating_point()}, strict=False
        ),
        lambda: model.stem.weight.numpy().fill(0.5),
    ):
        assert_close(optimized(x), model(x))
        change()
        assert_close(optimized(x), model(x))


@torch.no_grad()
def test_two_models_of_one_structure_keep_their_weights(traced):
    first, x = settled(Block()), images()
    second = settled(copy.deepcopy(first))
    for one in second.parameters():
        one.mul_(1.5)
    ours = [pysim.torch.optimize(one, compiler=True) for one in (first, second)]
    for _ in range(2):
        for mine, model in zip(ours, (first, second), strict=True):
            assert_close(mine(x), model(x))


@torch.no_grad()
def test_results_have_pytorchs_strides_and_are_the_callers(traced):
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval()
    optimized, x = pysim.torch.optimize(model, compiler=True), images()
    first = optimized(x)
    kept = first.clone()
    assert first.stride() == model(x).stride()
    optimized(x + 1)
    assert torch.equal(first, kept)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.factor = nn.Linear(4, 4), nn.Parameter(torch.full((1, 1), 2.0))

    def forward(self, x):
        return self.linear(x) * self.factor


@torch.no_grad()
@pytest.mark.parametrize("compiler", [False, True])
def test_a_product_with_a_matrix_of_one_number(traced, compiler):
    model, x = Scaled().eval(), torch.randn(3, 4)
    optimized = pysim.torch.optimize(model, compiler=compiler)
    assert_close(optimized(x), model(x))
    assert set(runs(optimized).values()) == {"pysim"}


class Written(nn.Module):
    """Counts its calls, and reads its residual later."""

    def __init__(self):
        super().__init__()
        self.conv, self.other, self.relu = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1), nn.ReLU(inplace=True)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        residual = self.conv(x)
        same = self.relu(residual)
        return self.other(x) + residual, same * 2, self.calls


@torch.no_grad()
def test_effects_are_pytorchs(traced):
    model, x = Written().eval(), images()
    other = copy.deepcopy(model)
    optimized = pysim.torch.optimize(model, compiler=True)
    for _ in range(3):
        for found, wanted in zip(optimized(x), other(x), strict=True):
            assert_close(found, wanted)
    assert model.calls == other.calls == 3
    assert not any(one.endswith("true]") for one in how(traced))  # the residual is read later, as `same`


class Drawn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x):
        return self.conv(x) + torch.rand(2, 4, 1, 1)


class OwnWeights(nn.Module):
    """Weights that the model computes, and a bias that it writes to."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x):
        self.b.bias.mul_(0.5)
        return self.b(functional.conv2d(x, self.a.weight * 2, self.a.bias))


@torch.no_grad()
def test_layers_of_computed_or_written_weights_are_the_compilers(traced):
    (model, other), x = (OwnWeights().eval() for _ in range(2)), images()
    other.load_state_dict(model.state_dict())
    optimized = pysim.torch.optimize(model, compiler=True)
    for _ in range(3):
        assert_close(optimized(x), other(x))
    assert set(runs(optimized).values()) == {"torch"}


@torch.no_grad()
@pytest.mark.parametrize("at_once", [False, True])
def test_a_parameter_that_lies_where_the_graph_writes_is_read_afterwards(traced, at_once):
    class Halving(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)
            self.register_buffer("other", torch.ones(12))

        def forward(self, x):
            self.other.mul_(0.5)
            return self.conv(x)

    (model, other), x = (Halving().eval() for _ in range(2)), images()
    other.load_state_dict(model.state_dict())
    optimized = pysim.torch.optimize(model, compiler=True)
    if not at_once:
        assert_close(optimized(x), other(x))
    for one in (model, other):
        one.other = one.conv.weight.detach().view(-1)
    for _ in range(2):
        assert_close(optimized(x), other(x))


@torch.no_grad()
def test_layers_of_a_model_in_16_bits_are_of_its_type(traced):
    exact, x = settled(Block()), images()
    optimized = pysim.torch.optimize(copy.deepcopy(exact).half(), compiler=True)
    found = optimized(x.half())
    assert found.dtype is torch.float16 and (found.float() - exact(x)).abs().max() < 0.01
    assert len(how(traced)) == 3 and all(":f16" in one for one in how(traced))


@torch.no_grad()
def test_layers_that_are_left_to_the_compiler_get_converted_weights(traced, monkeypatch):
    monkeypatch.setattr(compiled_layers, "compiler_seconds", lambda problem, *_: float("inf") if problem.kernel_h == 1 else 0.0)
    model, x = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3)).eval(), images()
    optimized = pysim.torch.optimize(model, compiler=True)
    assert_close(optimized(x), model(x))
    assert runs(optimized) == {"0": "pysim", "1": "torch"}
    (conv,) = (node for node in traced[0].graph.nodes if node.target is torch.ops.aten.convolution.default)
    assert conv.args[1].op == "placeholder" and conv.args[1].meta["val"].is_contiguous(memory_format=torch.channels_last)
    model[1].weight.mul_(2)
    assert_close(optimized(x), model(x))


@torch.no_grad()
@pytest.mark.parametrize("kind", [torch.float16, torch.float32])
def test_volumes_that_are_left_to_the_compiler_are_channels_last_in_16_bits(traced, monkeypatch, kind):
    """R3D-18 of float16, batch 4, on an H200: Inductor takes 1.66 ms with weights as they are, and 1.19 with these."""
    monkeypatch.setattr(compiled_layers, "compiler_seconds", lambda problem, *_: float("inf") if problem.kernel_h == 1 else 0.0)
    model, x = nn.Sequential(nn.Conv3d(3, 8, 1), nn.Conv3d(8, 8, 3)).eval().to(kind), images(2, 3, 5, 6, 7).to(kind)
    optimized = pysim.torch.optimize(model, compiler=True)
    assert (optimized(x).float() - model(x).float()).abs().max() < 1e-2
    assert runs(optimized) == {"0": "pysim", "1": "torch"}
    convs = [node for node in traced[0].graph.nodes if node.target is torch.ops.aten.convolution.default]
    last = [node.args[1].meta["val"].is_contiguous(memory_format=torch.channels_last_3d) for node in convs]
    assert last == [kind is torch.float16]


@torch.no_grad()
def test_without_a_compiler_the_rest_runs_operator_by_operator_and_the_report_says_so(monkeypatch):
    monkeypatch.setattr(compiled, "missing_compiler", lambda: "there is none")
    model, x = settled(Block()), images()
    optimized = pysim.torch.optimize(model, compiler=True)
    assert_close(optimized(x), model(x))
    report = pysim.torch.report(optimized)
    assert report.notes == ["between layers PyTorch's operators run one by one: there is none"] and str(report).endswith(report.notes[0])
    for compiler, notes in ((None, report.notes), (False, [])):
        alone = pysim.torch.optimize(model, compiler=compiler, runs=10**9)
        alone(x)
        assert pysim.torch.report(alone).notes == notes


@torch.no_grad()
def test_a_graph_is_compiled_by_itself_where_the_expected_calls_repay_that(traced):
    x = images()
    for model, saves in ((Block(), True), (nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 1)), False)):
        model = settled(model)
        for asked, calls in ((None, 1), (None, 10**9), (False, 10**9), (True, 1)):
            traced.clear()
            optimized = pysim.torch.optimize(model, compiler=asked, runs=calls)
            assert_close(optimized(x), model(x))
            assert bool(traced) == (saves and calls > 1 if asked is None else asked)
            (note,) = pysim.torch.report(optimized).notes if saves and asked is None else ("",)
            how = {1: "between layers PyTorch's operators run one by one: PyTorch's", 10**9: "compiled by Inductor: PyTorch's"}
            assert not note or (note.startswith(how[calls]) and note.endswith(f" calls, {calls:,} are expected"))


@pytest.mark.parametrize("calls", [0, 1.5, True, "many"])
def test_how_many_calls_are_expected_is_a_whole_number(calls):
    with pytest.raises(OperandError, match="runs"):
        pysim.torch.optimize(nn.Conv2d(3, 8, 3), runs=calls)


@torch.no_grad()
def test_nothing_is_computed_from_weights_where_nothing_is_compiled(traced, monkeypatch):
    converted = []
    for kind in (compiled_layers.Taken, compiled_layers.Kept):
        operands = kind.operands
        monkeypatch.setattr(kind, "operands", lambda *given, of=operands: converted.append(given) or of(*given))
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval(), images()
    assert_close(pysim.torch.optimize(model)(x), model(x))
    assert not traced and not converted
    assert_close(pysim.torch.optimize(model, compiler=True)(x), model(x))
    assert traced and converted


@torch.no_grad()
def test_a_compiler_that_fails_is_replaced_by_pytorchs_operators(monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("no tool\nis here")

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", fails)
    model, x = settled(Block()), images()
    optimized = pysim.torch.optimize(model, compiler=True)
    assert_close(optimized(x), model(x))
    assert pysim.torch.report(optimized).notes == ["between layers PyTorch's operators run one by one: the compiler failed: no tool"]


@torch.no_grad()
@pytest.mark.parametrize("fastest", ["alone", "expected", "compiler"])
def test_the_first_call_measures_which_way_is_fastest_and_keeps_it(traced, monkeypatch, tmp_path, fastest):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    timed = []

    def told(calls, seconds, in_cuda_graph):
        timed.append((*calls, seconds, in_cuda_graph))
        return {name: float(name != fastest) for name in calls}

    monkeypatch.setattr(measured, "measured", told)
    model, x = settled(Block()), images()
    for times in (1, 1):  # the second finds what the first kept
        traced.clear()
        optimized = pysim.torch.optimize(model, measure=0.5)
        for _ in range(2):
            assert_close(optimized(x), model(x))
        model.stem.weight.mul_(1.5)
        assert_close(optimized(x), model(x))
        assert {*runs(optimized).values()} == {"torch" if fastest == "compiler" else "pysim"}
        assert timed == [("expected", "compiler", "alone", 0.5, False)] * times
    assert len(traced) == (fastest != "alone")


@torch.no_grad()
def test_ways_are_timed_in_turn(traced, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model, x = settled(Block()), images()
    optimized = torch.compile(model, backend=pysim.torch.backend, options={"measure": 0.01})
    assert_close(optimized(x), model(x))
    assert len([*tmp_path.rglob("ways/*")]) == 1
    calls = []
    times = measured.measured({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 0.0, False)
    assert "".join(calls) == "aaabbb" + 3 * "ab" and times.keys() == {"a", "b"}


def test_a_way_that_fails_is_left_out_unless_all_do():
    def fails():
        raise RuntimeError("no memory")

    assert measured.measured({"a": fails, "b": lambda: None, "c": fails}, 0.0, False).keys() == {"b"}
    with pytest.raises(RuntimeError, match="no memory"):
        measured.measured({"a": fails, "b": fails}, 0.0, False)


@torch.no_grad()
def test_what_a_graph_writes_is_not_measured(traced):
    model, x = Written().eval(), images()
    other = copy.deepcopy(model)
    for found, wanted in zip(pysim.torch.optimize(model, measure=0.1)(x), other(x), strict=True):
        assert_close(found, wanted)
    assert model.calls == 1


@torch.no_grad()
def test_parameters_can_be_swapped_after_a_call(traced):
    model, x = settled(Block()), images()
    optimized = pysim.torch.optimize(model, compiler=True)
    optimized(x)
    torch.utils.swap_tensors(model.last.weight, nn.Parameter(torch.randn(5, 8)))
    assert_close(optimized(x), model(x))


@torch.no_grad()
def test_inductor_compiles_the_graph_around_our_layers():
    model, x = settled(Block(inplace=True)), images()
    optimized = pysim.torch.optimize(model, compiler=True)
    assert_close(optimized(x), model(x))
    assert runs(optimized) == {"stem": "pysim", "conv": "pysim", "last": "pysim"}
    model.stem.weight.mul_(-1)
    assert_close(optimized(x), model(x))


@torch.no_grad()
def test_inductor_draws_pytorchs_numbers():
    model, x = Drawn().eval(), images()
    optimized = pysim.torch.optimize(model, compiler=True)
    for _ in range(2):
        torch.manual_seed(7)
        wanted = model(x)
        torch.manual_seed(7)
        assert_close(optimized(x), wanted)


@torch.no_grad()
def test_inductor_has_the_layers_of_16_bits_whose_sizes_differ_between_calls():
    model = settled(Block()).half()
    optimized = pysim.torch.optimize(model, compiler=True)
    for batch in (2, 3, 5):
        x = images(batch, 3, 9, 9).half()
        assert (optimized(x) - model(x)).abs().max() < 0.01
    report = pysim.torch.report(optimized)
    assert [one.runs for one in report] == ["pysim"] * 3 + ["torch"] * 3 and not report.notes
    assert {one.reason for one in report[3:]} == {"its sizes are known in each call only"}
