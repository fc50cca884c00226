# SPDX-License-Identifier: Apache-2.0
"""`pysim run` and `pysim compare`, and every command as a shell or a terminal sees its process."""

import json
import math
import os
import pty
import re
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import _cffi_backend
import numpy as np
import pytest
from command_line import PLAN_KEYS, PROBLEM, SMALL, cache, child, document, invoke, native, ok, own_files, refused  # noqa: F401

from pysim import planner
from pysim.calibration import host
from pysim.cli import BROKEN_PIPE, INTERRUPTED
from pysim.comparison import compare as comparison
from pysim.errors import OperandError
from pysim.measure import clock, cpu_load
from pysim.measure.speed import Speed, Speedometer
from pysim.measure.store import Store
from pysim.peers import PEERS
from pysim.record.measurement import Comparison
from pysim.runtime import cpu_launch

pytestmark = pytest.mark.usefixtures("own_files")
QUICK = ("--seconds", "0.001")
ANSI = re.compile(r"\x1b\[")
COMPARISON_KEYS = {"problem", "label", "plan", "correct", "max_error", "predicted_seconds", "measured_seconds", "samples", "peers"}


# run and compare


@native
def test_run_checks_times_and_stores_the_plan():
    found = document("run", SMALL, "gemm:24x20x16:nt:f64", "--profile")
    assert all(one.keys() >= COMPARISON_KEYS and one["plan"].keys() >= PLAN_KEYS for one in found["comparisons"])
    for one in found["comparisons"]:
        assert one["correct"] is True
        assert one["measured_seconds"] > 0 and one["predicted_seconds"] > 0
        assert one["samples"] >= 30
        assert one["peers"] == {}
        assert one["profile"]["pack_seconds"] > 0 and one["profile"]["kernel_seconds"] > 0
    assert found["summary"]["correct"] == found["summary"]["layers"] == 2
    with Store() as store:
        (kept,) = store.find(problem=SMALL)
        assert sorted(kept.samples)[0] <= found["comparisons"][0]["measured_seconds"] <= sorted(kept.samples)[-1]
        assert float(kept.environment["clock_hz"]) == pytest.approx(found["comparisons"][0]["core"]["clock_hz"], rel=1e-3)


@native
def test_a_model_without_its_external_weights_times_the_layers_and_exits_with_1(tmp_path):
    onnx = pytest.importorskip("onnx")
    of = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    weights = onnx.numpy_helper.from_array(np.ones((16, 16), np.float32), "w")
    graph = onnx.helper.make_graph([node], "g", [of("x", 1, (8, 16))], [of("y", 1, (8, 16))], [weights])
    model = tmp_path / "m.onnx"
    onnx.save(onnx.helper.make_model(graph), model, save_as_external_data=True, location="weights", size_threshold=0)
    ok("run", str(model))
    (tmp_path / "weights").unlink()
    done = invoke("run", str(model))
    assert done.exit_code == 1 and "gemm:8x16x16" in done.stdout
    assert f'the values of "w" should be in the file {tmp_path / "weights"}, which does not exist' in done.stderr


def test_out_of_memory_is_one_line(monkeypatch):
    def fails(*_args, **_options):
        raise MemoryError("Unable to allocate 6 PiB")

    monkeypatch.setattr(planner, "plan", fails)
    assert refused(2, "plan", SMALL) == "pysim: out of memory: Unable to allocate 6 PiB"


@native
def test_run_shows_the_share_of_packing_when_requested():
    header, row, *_ = ok("run", SMALL, "--profile").splitlines()
    assert row.split()[-1] == SMALL
    share = row[: header.index("packing") + len("packing")].split()[-1]
    assert re.fullmatch(r"\d+\.\d%", share)
    assert 0 < float(share[:-1]) < 100
    assert "packing" not in ok("run", SMALL).splitlines()[0]


@native
def test_run_with_threads_shows_the_prediction_for_so_many():
    for threads in (2, 3):
        (one,) = document("run", SMALL, "--threads", str(threads))["comparisons"]
        (plan,) = document("plan", SMALL, "-m", "host", "--threads", str(threads))["plans"]
        assert one["threads"] == one["plan"]["threads"] == plan["threads"] == threads
        assert one["plan"]["cost"] == plan["cost"] and "threads" in plan["cost"]["terms"]
        faster = plan["cost"]["seconds"] / one["predicted_seconds"]  # at the clock when timed, which memory has no part in here
        assert faster == pytest.approx(one["core"]["clock_hz"] / one["core"]["machine_clock_hz"])
    assert any(line.startswith("prediction error") for line in ok("run", SMALL, "--threads", "2").splitlines())


@native
def test_an_algorithm_that_a_problem_lacks_is_answered_with_those_it_has():
    named = "blocked, channels_last, depthwise, direct_nchwc, grouped, im2col, integer_winograd, polyphase, sconv, strassen_1x1, winograd"
    assert f"there are: {named}" in refused(2, "run", SMALL, "--algorithm", "fft")
    assert document("run", SMALL, "--algorithm", "sconv")["comparisons"][0]["plan"]["algorithm"] == "sconv"
    first, second = document("run", SMALL, "gemm:24x20x16", "--algorithm", "gemm", code=1)["comparisons"]
    assert 'has no algorithm "gemm"' in first["reason"] and second["plan"]["algorithm"] == "gemm"


@native
@pytest.mark.parametrize("command", ["run", "compare"])
def test_the_planner_plans_with_the_algorithm_that_is_named(command, monkeypatch):
    requested = []
    plan = planner.plan
    monkeypatch.setattr(planner, "plan", lambda *problem, **how: requested.append(how.get("algorithm")) or plan(*problem, **how))
    ok(command, SMALL, "--algorithm", "sconv")
    assert requested == ["sconv", None]  # then that very plan, at the clock when timed


@native
@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_plan_is_replayed_by_its_name(command):
    best, other = document("plan", SMALL, "--top", "2")["plans"]
    for name in (best["name"], other["name"]):
        (one,) = document(command, SMALL, "--plan", name)["comparisons"]
        assert one["correct"] and one["plan"]["name"] == name
    assert "is not the name of a plan" in refused(2, command, SMALL, "--plan", "nonsense")
    both = invoke(command, SMALL, "--plan", best["name"], "--algorithm", "sconv")
    assert both.exit_code == 2 and "give --plan or --algorithm" in both.output


@native
def test_run_obeys_a_machine_file_of_this_computer(tmp_path):
    text = ok("machines", "show", "zen4", "--toml").replace('name = "zen4"', 'name = "mine"', 1)
    text = re.sub(r'\n\[\[core\.units\]\]\ntarget = "avx.*?(?=\n\[\[core\.units\]\]|\n\[\[levels)', "", text, flags=re.DOTALL)
    (tmp_path / "mine.toml").write_text(text)
    (one,) = document("run", SMALL, "-m", str(tmp_path / "mine.toml"))["comparisons"]
    assert one["machine"] == "mine"
    assert one["plan"]["kernel"].endswith("__portable")


@native
def test_compare_document_has_the_promised_keys_and_a_summary():
    found = document("compare", SMALL, "gemm:24x20x16", "--peers", *QUICK)
    assert all(one.keys() >= COMPARISON_KEYS for one in found["comparisons"])
    for one in found["comparisons"]:
        assert one["peers"].keys() | one["missing"].keys() == {name for name, peer in PEERS.items() if peer.on == "cpu"}
        assert all(seconds > 0 for seconds in one["peers"].values())
        assert all(
            one["ratios"][name]["value"] == pytest.approx(seconds / one["measured_seconds"]) for name, seconds in one["peers"].items()
        )
    logs = [math.log(one["predicted_seconds"] / one["measured_seconds"]) for one in found["comparisons"]]
    assert found["summary"]["prediction"]["median_error"] == pytest.approx(sum(map(abs, logs)) / 2)


@native
def test_compare_prints_rows_then_ratios_shares_and_the_prediction_error():
    result = invoke("compare", SMALL, "gemm:24x20x16", *QUICK)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line.split()[-1] for line in lines[:3]] == ["problem", SMALL, "gemm:24x20x16"]
    assert max(map(len, lines[:3])) <= 100
    text = "\n".join(lines[3:])
    assert re.search(r"^im2col_openblas +\d+\.\d{3}x geometric mean of 2, faster on [012] \(\d+%\); OpenBLAS of ", text, re.MULTILINE)
    assert re.search(r"^prediction error .*: median \d+\.\d%, 90th percentile \d+\.\d%$", text, re.MULTILINE)
    assert "hot caches, 1 thread" in result.stderr


class Elsewhere:
    """A count of a CPU that others had for a quarter of the time."""

    share = 0.25

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def load(self) -> cpu_load.Load:
        return cpu_load.Load(self.share, 0.5, 12)


@native
def test_a_measurement_under_load_says_so_and_has_a_wider_interval(monkeypatch):
    monkeypatch.setattr(clock, "Watch", Elsewhere)
    message = "under load on 1 of 1 layer: other processes had the CPU for up to 25% of the time; intervals are widened by that share"
    assert message in ok("run", SMALL) and message in ok("compare", SMALL, *QUICK)
    (wide,) = document("compare", SMALL, *QUICK)["comparisons"]
    assert wide["taken"] == 0.25
    monkeypatch.setattr(Elsewhere, "share", 0.0)
    assert "under load" not in ok("run", SMALL)
    for one in wide["ratios"].values():
        assert one["low"] <= 0.75 * one["value"] * (1 + 1e-9) and one["high"] >= one["value"] / 0.75 * (1 - 1e-9)


class Faster(Speedometer):
    """A core at 1.08 times the clock of the machine file; `rate`: of its multiply-adds."""

    rate = 1.0

    def speed(self):
        here = host.machine("host")
        return Speed(
            here.clock_hz * 1.08, here.unit(self._target).fma_per_cycle.value, here.unit("portable").fma_per_cycle.value * self.rate
        )


@native
def test_predictions_are_at_the_clock_when_timed_and_both_are_reported(monkeypatch):
    monkeypatch.setattr(comparison, "Speedometer", Faster)
    message = r"clock \d\.\d\d GHz when timed, \d\.\d\d GHz in the machine file, on 1 of 1 layer: predictions use the clock when timed"
    assert re.search(message, ok("run", SMALL)) and re.search(message, ok("compare", SMALL, *QUICK))
    (one,) = document("compare", SMALL, *QUICK)["comparisons"]
    assert one["core"]["clock_hz"] == pytest.approx(1.08 * one["core"]["machine_clock_hz"])
    assert one["predicted_seconds"] == pytest.approx(one["plan"]["cost"]["seconds"] / 1.08)
    monkeypatch.setattr(Faster, "speed", lambda self: Speed(host.machine("host").clock_hz * 1.01, 1e9, 1e9))
    assert "when timed" not in ok("run", SMALL)


@native
def test_a_core_that_another_thread_shares_is_reported(monkeypatch):
    monkeypatch.setattr(comparison, "Speedometer", Faster)
    message = "on 1 of 1 layer the core reached only 0.70 of its peak multiply-adds per cycle or more: another thread"
    assert message not in ok("run", SMALL)
    monkeypatch.setattr(Faster, "rate", 0.7)
    assert message in ok("run", SMALL)
    (one,) = document("run", SMALL)["comparisons"]
    assert one["core"]["multiply_share"] == pytest.approx(0.7)


@pytest.fixture
def few_copies(monkeypatch):
    """Of a small layer's buffers, hundreds of thousands of which would fill a server's last level twice."""
    monkeypatch.setattr(comparison, "copies_for", lambda *_: 3)


@native
def test_the_state_of_the_caches_stands_below_the_times(few_copies):
    assert "hot caches: untimed calls of the same library precede each sample" in ok("run", SMALL)
    assert "cold caches: operands rotate over buffers of twice the last-level cache" in ok("compare", SMALL, "--cold", *QUICK)


@native
def test_compare_cold_says_so(few_copies):
    (one,) = document("compare", SMALL, "--cold", *QUICK)["comparisons"]
    assert one["state"] == one["plan"]["state"] == "cold"


@native
def test_compare_names_peers_that_did_not_run_on_stderr(monkeypatch):
    monkeypatch.setenv("PYSIM_ONEDNN", "/nowhere")
    result = invoke("compare", SMALL, "--peers", *QUICK)
    assert result.exit_code == 0
    assert "onednn did not run on 1 of 1 layer: no oneDNN 3 was found" in result.stderr


@native
def test_a_layer_without_a_plan_is_a_failed_row_and_the_others_go_on():
    result = invoke("compare", f"{SMALL}:f16", SMALL, *QUICK)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[1].split()[0] == "-" and lines[1].split()[-1] == f"{SMALL}:f16"
    assert lines[2].startswith("    not run: there is no f16 micro-kernel")
    assert lines[3].split()[-1] == SMALL
    assert "1 of 2 layers failed" in lines


@native
@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_wrong_result_exits_1_with_the_reason_and_no_time(command, monkeypatch):
    def broken(self, x, out, workspace):
        call = right(self, x, out, workspace).bound()

        def run():
            call()
            out[0, 0, 0, 0] += 1

        run.bound = lambda: run
        return run

    right = cpu_launch.Prepared.step
    monkeypatch.setattr(cpu_launch.Prepared, "step", broken)
    result = invoke(command, SMALL)
    assert result.exit_code == 1
    assert re.search(r"^ +WRONG .* " + re.escape(SMALL) + r"\n    failed: exact fill: 1 of \d+ elements", result.stdout, re.MULTILINE)
    found = document(command, SMALL, code=1)
    assert found["comparisons"][0]["measured_seconds"] is None
    assert found["summary"]["failed"][0]["problem"] == SMALL


def fake_comparison(layer, plan):
    return Comparison(problem=layer.workload.text, label="", plan=plan.to_dict(), correct=True, measured_seconds=1e-3, count=layer.count)


@native
def test_rows_stream_and_an_interrupt_ends_with_one_line(monkeypatch):
    written = []

    def measure(layer, plan, *options):
        written.append(sys.stdout.buffer.getvalue().decode())
        if len(written) == 3:
            raise KeyboardInterrupt
        return fake_comparison(layer, plan)

    monkeypatch.setattr(comparison, "measure_plan", measure)
    result = invoke("compare", "vgg16")
    assert result.exit_code == INTERRUPTED
    assert [text.count("conv:") for text in written] == [0, 1, 2]
    assert result.stdout.count("conv:") == 2
    assert result.stderr.splitlines()[1:] == ["pysim: interrupted"]


@native
def test_a_layer_that_cannot_be_run_does_not_stop_the_others(monkeypatch):
    def measure(layer, plan, *options):
        if layer.workload.text == SMALL:
            raise MemoryError
        return fake_comparison(layer, plan)

    monkeypatch.setattr(comparison, "measure_plan", measure)
    found = document("compare", SMALL, PROBLEM, code=1)["comparisons"]
    assert [(one["correct"], one["reason"]) for one in found] == [(False, "out of memory"), (True, "")]
    monkeypatch.setattr(comparison, "measure_plan", lambda *_, **__: (_ for _ in ()).throw(OperandError("refused")))
    assert {one["reason"] for one in document("compare", SMALL, PROBLEM, code=2)["comparisons"]} == {"refused"}


# The process as a shell sees it


def test_without_the_native_library_the_model_works_and_running_exits_3(tmp_path):
    absent = str(tmp_path / "none.so")
    planned = child("plan", SMALL, "-m", "zen4", PYSIM_LIBRARY=absent)
    assert (planned.returncode, planned.stderr) == (0, "")
    ran = child("run", SMALL, PYSIM_LIBRARY=absent, XDG_CACHE_HOME=str(tmp_path))
    assert (ran.returncode, ran.stdout) == (3, "")
    assert ran.stderr == f"pysim: the native library is not at {absent}; install the package with `pip install .` (needs gcc)\n"
    listed = child("kernels", "--json", PYSIM_LIBRARY=absent)
    assert {row["available"] for row in json.loads(listed.stdout)["kernels"]} == {None}
    assert "native library" in listed.stderr
    examined = child("doctor", "--json", PYSIM_LIBRARY=absent)
    assert examined.returncode == 3
    missing = {check["name"]: check for check in json.loads(examined.stdout)["checks"] if check["status"] == "missing"}
    assert "pip install ." in missing["native library"]["fix"]


@pytest.mark.parametrize("words", [("plan", SMALL, "-m", "zen4"), ("machines",), ("machines", "show", "zen4"), ("kernels",)])
def test_no_colour_leaves_when_stdout_is_no_terminal(words):
    done = child(*words, FORCE_COLOR="1", TERM="xterm-256color")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert not ANSI.search(done.stdout + done.stderr)
    assert all(line == line.rstrip() for line in done.stdout.splitlines())


def test_a_reader_that_went_away_ends_it_quietly():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "pysim", "machines"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=250, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (BROKEN_PIPE, "")


def on_terminal(*words: str) -> str:
    """What a command writes to a terminal, stdout and stderr together."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
    with subprocess.Popen([sys.executable, "-m", "pysim", *words], stdout=follower, stderr=follower, env=environment) as process:
        os.close(follower)
        written = b""
        try:
            while chunk := os.read(leader, 65536):
                written += chunk
        except OSError:  # Linux's end of file on a terminal that was closed
            pass
        os.close(leader)
    assert process.returncode == 0, written
    return written.decode().replace("\r\n", "\n")


@native
def test_on_a_terminal_rows_are_the_same_text_with_colour():
    shown = on_terminal("kernels")
    assert ANSI.search(shown)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert [line.rstrip() for line in plain.splitlines()] == ok("kernels").splitlines()


@native
def test_on_a_terminal_progress_is_shown_and_cleared_before_each_row():
    shown = on_terminal("compare", SMALL, *QUICK)
    assert f": {SMALL}" in re.sub(r"\x1b\[[0-9;]*m", "", shown)
    after = re.sub(r"\x1b\[[0-9;]*m", "", shown.rpartition("\x1b[2K")[2])
    assert after.splitlines()[0].split()[-1] == SMALL


# What stdout, the environment and the words may be


COMMAND_WORDS = [("plan", SMALL, "-m", "zen4"), ("machines",), ("kernels",), ("banks", "--list"), ("banks", "transpose-32x32", "--fix")]
COMMAND_WORDS += [
    ("cache", SMALL, "-m", "zen4"),
    ("doctor",),
    ("machines", "show", "zen4", "--toml"),
    ("plan", SMALL, "-m", "zen4", "--explain"),
]
COMMAND_WORDS += [("--help",), ("--version",), ("plan", SMALL, "-m", "zen4", "--json"), ("kernels", "--json")]


@pytest.mark.parametrize("words", COMMAND_WORDS, ids=" ".join)
def test_a_stdout_that_takes_nothing_is_one_sentence_and_exit_code_2(words):
    command = f"{shlex.quote(sys.executable)} -m pysim {shlex.join(words)}"
    for stdout, message in ((">&-", "stdout is closed"), ("> /dev/full", "No space left on device")):
        done = subprocess.run(["sh", "-c", f"{command} {stdout}"], capture_output=True, text=True, timeout=250, check=False)
        assert done.returncode == 2
        assert re.fullmatch(rf"pysim: .*{message}.*\n", done.stderr), done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_document_that_ends_in_the_middle_is_an_error(tmp_path, unbuffered):
    def limited():  # a file size limit cuts a write short, as a disk does that fills up
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))

    with (tmp_path / "document").open("w") as file:
        command, environment = [sys.executable, "-m", "pysim", "machines", "--json"], {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        written = {"stdout": file, "stderr": subprocess.PIPE, "text": True}
        done = subprocess.run(command, env=environment, preexec_fn=limited, check=False, **written)
    assert done.returncode == 2 and done.stderr == "pysim: the output: File too large\n"


def test_a_closed_stderr_changes_nothing_on_stdout():
    command = f"{shlex.quote(sys.executable)} -m pysim plan {SMALL} -m zen4"
    closed, open_ = (
        subprocess.run(["sh", "-c", f"{command} {end}"], stdout=subprocess.PIPE, timeout=250, check=False) for end in ("2>&-", "")
    )
    assert (closed.returncode, closed.stdout) == (0, open_.stdout)


def test_a_terminal_without_a_letter_gets_its_escape():
    done = child("plan", "\u03c0.onnx", PYTHONIOENCODING="latin-1:strict")
    assert (done.returncode, done.stderr) == (2, "pysim: \\u03c0.onnx cannot be read: No such file or directory\n")


@pytest.mark.parametrize("content", ["another", "text", "folder"])
def test_a_library_that_is_not_pysims_is_one_sentence_and_exit_code_3(tmp_path, content):
    path = tmp_path / "libother.so"
    if content == "another":
        path = Path(_cffi_backend.__file__)
    elif content == "text":
        path.write_text("no library")
    else:
        path.mkdir()
    done = child("run", SMALL, "-m", "zen4", PYSIM_LIBRARY=str(path), XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 3
    examined = child("doctor", PYSIM_LIBRARY=str(path))
    assert examined.returncode == 3
    assert ("another library" if content == "another" else "cannot be opened") in " ".join(examined.stdout.split())
    assert "Traceback" not in done.stderr + examined.stderr


def test_the_store_of_a_user_that_is_not_there_is_a_sentence():
    done = child("doctor", PYSIM_STORE="~nosuchuser/x")
    assert "set PYSIM_STORE to another path" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("sent", ["\x1b[31m", "\x9b31m", "\u202e", "a\nb", "\r"])
def test_nothing_steers_the_terminal_from_a_name(tmp_path, sent):
    """Neither a file's name, nor a tile's, nor a mistyped command's."""
    tile = tmp_path / f"{sent}.toml"
    about = "".join(f"\\u{ord(letter):04x}" for letter in sent)
    tile.write_text(f'shape = [32]\nelement_bytes = 4\nabout = "{about}"\n[[access]]\nindex = "lane"\n')
    results = [
        invoke("banks", str(tile)),
        invoke("banks", str(tile), "--json"),
        invoke(sent),
        invoke(f"--{sent}"),
        invoke("plan", f"{sent}.onnx"),
    ]
    results += [
        invoke("plan", SMALL, "--top", sent),
        invoke("plan", SMALL, "--model", sent),
        invoke("kernels", sent),
        invoke("plan", f"@{sent}"),
    ]
    assert [result.exit_code for result in results] == [0, 0] + [2] * 7
    for result in results:
        assert isinstance(result.exception, SystemExit | None)
        assert all(line.isprintable() for line in result.output.split("\n"))
        assert "a\nb" not in result.output
