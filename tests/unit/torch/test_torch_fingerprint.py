# SPDX-License-Identifier: Apache-2.0
"""Writes to parameters that PyTorch does not count are found by their memory."""

import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch import nn  # noqa: E402
from torch_models import assert_close  # noqa: E402
from torch_twins import WAYS  # noqa: E402

import pysim.torch  # noqa: E402
from pysim.torch import fingerprints  # noqa: E402
from pysim.torch.fingerprints import WatchedTensors  # noqa: E402
from pysim.torch.parameters import versions_of  # noqa: E402


def through_numpy(x):
    x.detach().numpy().reshape(-1)[:] += 1


def through_data(x):
    x.data.mul_(2)


def first(x):
    memory = x.detach().numpy().reshape(-1)
    memory[0] += 1


def last(x):
    memory = x.detach().numpy().reshape(-1)
    memory[-1] += 1


@pytest.mark.parametrize("write", [through_numpy, through_data, first, last])
@pytest.mark.parametrize("shape", [(1,), (3, 5), (7, 37), (64, 64, 3, 3)], ids=str)
def test_a_look_counts_a_write(write, shape):
    tensors = [nn.Parameter(torch.ones(shape)), torch.ones(shape)]
    watched, versions = WatchedTensors(tensors), [versions_of([one]) for one in tensors]
    epoch = watched.look(tensors)
    assert epoch is watched.look(tensors) and all(one.unchanged() for one in versions)
    write(tensors[1])
    assert watched.look(tensors) not in (epoch, None)
    assert [one.unchanged() for one in versions] == [True, False]
    again = versions_of(tensors[1:])
    watched.look(tensors)
    assert again.unchanged()


def test_each_number_of_a_small_tensor_is_looked_at():
    weight = torch.zeros(250)
    watched = WatchedTensors([weight])
    for at in range(250):
        versions = versions_of([weight])
        weight.numpy()[at] = 1
        watched.look([weight])
        assert not versions.unchanged(), at


def test_tensors_may_be_empty_expanded_and_strided():
    tensors = [torch.empty(0, 3), torch.ones(1).expand(1000), torch.ones(9, 9)[::2, ::3]]
    watched, versions = WatchedTensors(tensors), versions_of(tensors[2:])
    tensors[2].numpy()[-1, -1] = 5
    watched.look(tensors)
    assert not versions.unchanged()


def test_other_tensors_and_other_memory_are_told():
    one, other = torch.ones(4), torch.ones(4)
    watched = WatchedTensors([one])
    assert watched.look([one]) is not None and watched.look([other]) is None
    one.data = torch.zeros(4)
    assert watched.look([one]) is None


@pytest.mark.parametrize("how", ["counted", "replaced", "moved", "freed"])
def test_a_write_is_counted_although_something_else_changed_as_well(how):
    tensors, versions = [torch.ones(50), torch.ones(50)], None
    watched = WatchedTensors(tensors)
    versions = versions_of(tensors[:1])
    tensors[0].numpy()[:] = 2
    if how == "counted":
        tensors[1].mul_(2)
    elif how == "moved":
        tensors[1].data = torch.ones(50)
    elif how == "freed":
        tensors[1].untyped_storage().resize_(0)
    watched.look([tensors[0], torch.ones(50)] if how == "replaced" else tensors)
    assert not versions.unchanged()


@pytest.mark.parametrize(
    "counted", [lambda layer: layer.weight.mul_(2), lambda layer: setattr(layer, "weight", nn.Parameter(-layer.weight))]
)
def test_layers_written_to_in_both_ways_at_once_are_computed_again(counted, every_layer_is_ours):
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval(), torch.randn(1, 3, 9, 9)
    optimized = pysim.torch.optimize(model)
    with torch.no_grad():
        optimized(x)
        for _ in range(2):
            model[0].weight.data.mul_(-2)
            counted(model[2])
            assert_close(optimized(x), model(x))


@pytest.mark.parametrize("place", [0, 700, 5001, 64 * 64 * 9 + 3 * 1024 - 1])
def test_a_write_of_one_number_is_found_within_so_many_calls(place):
    """Of two large tensors, beside a small one."""
    tensors = [torch.zeros(64, 64, 3, 3), torch.zeros(5), torch.zeros(3, 1024)]
    watched = WatchedTensors(tensors)
    for turns in range(3):
        for _ in range(50 * turns):
            epoch = watched.look(tensors)
            assert watched.look(tensors) is epoch
        versions = [versions_of([one]) for one in tensors]
        first = place < tensors[0].numel()
        tensors[0 if first else 2].numpy().reshape(-1)[place if first else place - tensors[0].numel()] += 1
        for _ in range(fingerprints.CALLS):
            watched.look(tensors)
        assert [one.unchanged() for one in versions] == [not first, True, first]
        epoch = watched.look(tensors)
        assert all(watched.look(tensors) is epoch for _ in range(fingerprints.CALLS + 1))


@pytest.mark.parametrize("numbers", [257, 1024, 128 * 1024 + 5, 10**6])
def test_each_call_reads_one_part_of_so_many(numbers, monkeypatch):
    """And no byte twice in a turn; all of them at first."""
    read, own = [], fingerprints.cpu.Fingerprints.changed

    def counted(self, first=0, count=None):
        if self._whole_bytes == fingerprints.BLOCK_BYTES:
            read.append(range(first, first + count))
        return own(self, first, count)

    monkeypatch.setattr(fingerprints.cpu.Fingerprints, "changed", counted)
    tensors = [torch.zeros(numbers)]
    watched, blocks = WatchedTensors(tensors), -(-4 * numbers // fingerprints.BLOCK_BYTES)
    assert read == [range(blocks)]
    read.clear()
    for _ in range(fingerprints.CALLS):
        watched.look(tensors)
    assert max(map(len, read)) == -(-blocks // fingerprints.CALLS)
    turn = [one for part in read for one in part][:blocks]
    assert turn == [*range(blocks)]


def test_a_write_is_found_although_another_tensor_is_replaced_in_each_call():
    """As a state that a model replaces: nothing is read anew, and turns go on."""
    weight = torch.zeros(512, 512)
    watched = WatchedTensors([weight, torch.zeros(600)])
    watched.look(watched.tensors)
    versions = versions_of([weight])
    weight.numpy()[500, 3] = 1
    for _ in range(fingerprints.CALLS + 1):
        tensors = [weight, torch.zeros(600)]
        assert watched.look(tensors) is None
        watched = WatchedTensors(tensors, watched)
        watched.look(tensors)
    assert not versions.unchanged()


def test_a_write_that_is_counted_is_read_at_once_and_no_news_later():
    tensors = [torch.zeros(512, 512), torch.zeros(600)]
    watched = WatchedTensors(tensors)
    watched.look(tensors)
    tensors[0][7, 7] = 1
    epoch = watched.look(tensors)
    assert all(watched.look(tensors) is epoch for _ in range(fingerprints.CALLS + 1))


def test_a_model_follows_a_write_of_one_number_within_so_many_calls(way, every_layer_is_ours, fresh_compiler):
    model, x = nn.Conv2d(64, 128, 3).eval(), torch.randn(1, 64, 5, 5)
    ours = WAYS[way](model)
    with torch.no_grad():
        ours(x)
        model.weight.numpy().reshape(-1)[700] += 100
        for _ in range(fingerprints.CALLS):
            found = ours(x)
        assert_close(found, model(x))


def test_after_a_refresh_a_write_that_no_sample_shows_takes_effect(every_layer_is_ours):
    """A few words are looked at of the 512 KiB of a weight."""
    model, x = nn.Conv2d(256, 512, 1).eval(), torch.randn(1, 256, 5, 5)
    optimized = pysim.torch.optimize(model)
    with torch.no_grad():
        optimized(x)
        model.weight.numpy().reshape(-1)[700] += 100
        pysim.torch.refresh()
        assert_close(optimized(x), model(x))


class Event:
    """That has happened at once."""

    def record(self):
        pass

    def query(self):
        return True


def test_a_write_on_a_gpu_is_found_afterwards_with_a_warning(monkeypatch):
    """Of samples, at most every INTERVAL seconds; here the tensors lie on the host."""
    now = [0.0]
    monkeypatch.setattr(fingerprints.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(fingerprints, "_to_host", lambda x: x.clone())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    tensors = [torch.ones(5), torch.ones(300, 20), torch.ones(7).half(), torch.ones(3, dtype=torch.complex128), torch.ones(6, 6)[::2]]
    samples = fingerprints._GpuSamples(tensors)

    def look(after):
        now[0] += after
        samples.look()

    versions = [versions_of([one]) for one in tensors]
    for _ in range(3):
        look(1.0)
    assert all(one.unchanged() for one in versions)
    tensors[1].numpy()[:] = 2
    tensors[2].data.fill_(3)
    look(0.5 * fingerprints.INTERVAL)
    look(fingerprints.INTERVAL)
    assert all(one.unchanged() for one in versions)
    with pytest.warns(UserWarning, match=r"2 parameters, the first of shape \(300, 20\), were written to"):
        look(fingerprints.INTERVAL)
    assert [one.unchanged() for one in versions] == [True, False, False, True, True]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            look(1.0)


def test_samples_are_few_and_reach_over_the_whole_tensor():
    for shape in ((1,), (63,), (64,), (65,), (1000, 1000)):
        x = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)
        found = fingerprints._samples(x).view(torch.float32)
        assert len(found) <= fingerprints.SAMPLES and found[0] == 0
        assert x.numel() - 1 - found[-1] <= x.numel() / fingerprints.SAMPLES + 1
