# SPDX-License-Identifier: Apache-2.0
"""The command line: what it prints, where, in which form, and with which exit code; `test_cli_run` has what executes."""

import json
import math
import re
from pathlib import Path

import msgspec
import onnx
import pytest
from command_line import PLAN_KEYS, PROBLEM, SMALL, cache, document, invoke, native, ok, own_files, refused  # noqa: F401
from onnx import TensorProto, helper

import pysim
from pysim.cli import COMMANDS, main
from pysim.commands import common, doctor
from pysim.commands.common import quantity
from pysim.machine import load as machine
from pysim.peers import PEERS
from pysim.problem import text as workload
from pysim.registry.cpu import cpu_kernels
from pysim.runtime import cpu as runtime
from pysim.runtime import foreign

pytestmark = pytest.mark.usefixtures("own_files")


# The group


def test_help_lists_exactly_the_files_of_the_commands_folder():
    folder = Path(common.__file__).parent
    files = {path.stem for path in folder.iterdir() if path.stem[0] != "_"} - {"common", "networks", "timing"}
    assert set(COMMANDS) == files
    text = ok("--help")
    assert all(re.search(rf"^  {name} +\S", text, re.MULTILINE) for name in COMMANDS)


def test_without_arguments_the_help_is_shown_in_its_lines():
    assert invoke().output.splitlines() == ok("--help").splitlines()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_teaches_itself_with_an_example(name):
    text = ok(name, "--help")
    assert re.search(rf"Examples?\n +pysim {name}\b", text), text


@pytest.mark.parametrize("name", ["list", "show", "detect"])
def test_every_machines_command_teaches_itself_with_an_example(name):
    assert re.search(rf"Examples?\n +pysim machines {name}\b", ok("machines", name, "--help"))


def test_every_example_in_a_help_names_things_that_exist():
    texts = [ok("--help"), *(ok(name, "--help") for name in COMMANDS), ok("machines", "show", "--help")]
    examples = [re.split("#|>|&&", line)[0].split() for text in texts for line in text.splitlines() if re.match(r" +pysim \w", line)]
    assert len(examples) > len(COMMANDS)
    for _, name, *words in examples:
        known = main.get_command(None, name)
        assert known is not None, name
        options = {option for parameter in known.params for option in parameter.opts}
        options |= {option for sub in getattr(known, "commands", {}).values() for p in sub.params for option in p.opts}
        assert {word for word in words if word.startswith("-")} <= options, words
        assert all(workload.parse(word) for word in words if word.startswith(("conv:", "gemm:")))


def test_version():
    assert ok("--version") == f"pysim {pysim.__version__}\n"


@pytest.mark.parametrize(("words", "near"), [(("plna",), "plan"), (("machines", "lst"), "list"), (("compaer", "x"), "compare")])
def test_a_mistyped_command_is_answered_with_the_nearest(words, near):
    result = invoke(*words)
    assert result.exit_code == 2
    assert f'did you mean "{near}"?' in result.stderr


@pytest.mark.parametrize(
    "words", [("plan",), ("plan", SMALL, "--tpo", "3"), ("run", SMALL, "--threads", "0"), ("plan", SMALL, "--top", "0")]
)
def test_bad_usage_exits_2_and_says_how_to_get_help(words):
    result = invoke(*words)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert f"pysim {words[0]} --help" in result.stderr


# plan


def test_more_threads_than_cores_are_noted():
    enough, more = (invoke("plan", SMALL, "-m", "zen4", "--threads", threads).stderr for threads in "89")
    assert not enough
    assert more == "--threads is 9, but zen4 has 8 cores: in the prediction, threads wait for a core\n"


def test_csa_gives_the_integers_of_the_worked_example():
    (plan,) = document("plan", PROBLEM, "-m", "power10-e1050", "--model", "csa")["plans"]
    assert plan["schedule"] == "input_stationary"
    assert plan["tile"] == {"windows": 16, "filters": 8, "channels": 32, "k2": 8, "k3": 98}
    assert plan["cost"] == {"cold": 57600, "extra": 0, "l3": 0, "l2": 224640, "cost": 19526400, "exact": plan["cost"]["exact"]}
    other = next(one for one in plan["considered"] if one["schedule"] == "weight_stationary")
    assert other["tile"] == {"windows": 16, "filters": 8, "channels": 32, "k2": 49, "k3": 8}
    assert other["cost"] == {"cold": 57600, "extra": 0, "l3": 3456, "l2": 395136, "cost": 21335040, "exact": other["cost"]["exact"]}


@pytest.mark.parametrize(("shape", "winner"), [("16x8", "input_stationary"), ("16x4", "input_stationary"), ("4x16", "weight_stationary")])
def test_csa_picks_one_schedule_for_a_micro_kernel_shape_on_all_layers(shape, winner):
    sweep = [f"conv:mb1ic{c}ih{size}oc{m}kh3ph1" for c, m, size in [(64, 64, 56), (128, 128, 28), (256, 256, 14), (512, 512, 7)]]
    sweep += [f"conv:mb1ic{c}ih{size}oc{m}kh3ph1" for c, m, size in [(64, 64, 224), (64, 128, 112), (128, 256, 56), (512, 512, 28)]]
    plans = document("plan", *sweep, "-m", "power10-e1050", "--model", "csa", "--micro-kernel", shape)["plans"]
    assert len(plans) == len(sweep)
    assert {plan["schedule"] for plan in plans} == {winner}


def test_csa_table_has_both_costs():
    line = next(line for line in ok("plan", PROBLEM, "-m", "power10-e1050", "--model", "csa").splitlines() if PROBLEM in line)
    assert line.split() == ["19,526,400", "21,335,040", "IS", "16x8", "32/8/98", "1", PROBLEM]


def test_plan_document_has_the_promised_keys():
    plans = document("plan", "resnet50", "-m", "zen4")["plans"]
    assert all(plan.keys() >= PLAN_KEYS for plan in plans)
    assert all(plan["cost"].keys() >= {"cycles", "seconds", "bound_by", "levels"} for plan in plans)
    assert all(plan["tile"].keys() - {"outputs"} == {"windows", "filters", "channels", "k2", "k3"} for plan in plans)
    assert all(math.isfinite(plan["cost"]["seconds"]) and plan["cost"]["seconds"] > 0 for plan in plans)


def test_a_network_is_reduced_to_distinct_layers_with_counts():
    plans, whole = (document("plan", "resnet50", "-m", "zen4", *more)["plans"] for more in ([], ["--every"]))
    assert len({plan["problem"] for plan in plans}) == len(plans) == 23
    assert sum(plan["count"] for plan in plans) == len(whole) == 53
    assert {plan["count"] for plan in whole} == {1}
    assert plans[0]["label"] == "conv1"


def test_the_total_counts_every_layer():
    plans = document("plan", "resnet18", "-m", "zen4")["plans"]
    last = ok("plan", "resnet18", "-m", "zen4").splitlines()[-1]
    total = sum(plan["count"] * plan["cost"]["seconds"] for plan in plans)
    assert last.startswith(f"predicted for {sum(plan['count'] for plan in plans)} layers: {common.seconds(total)}, ")


LONGEST_TEXT = 40  # of images; texts of volumes and of sequences are longer


@pytest.mark.parametrize("name", workload.sets())
def test_rows_fit_in_120_columns_and_end_with_the_problem(name):
    lines = ok("plan", name, "-m", "zen4").splitlines()
    rows = lines[1 : lines.index("")]
    assert [row.split()[-1] for row in rows] == [layer.workload.text for layer in workload.distinct(workload.resolve([name]))]
    assert max(len(row) - max(0, len(row.split()[-1]) - LONGEST_TEXT) for row in rows) <= 120


def test_top_ranks_plans_by_predicted_time():
    plans = document("plan", PROBLEM, "-m", "zen4", "--top", "4")["plans"]
    times = [plan["cost"]["seconds"] for plan in plans]
    assert len(plans) == 4
    assert times == sorted(times)
    lines = ok("plan", PROBLEM, SMALL, "-m", "zen4", "--top", "2").splitlines()
    assert lines[0] == PROBLEM
    assert SMALL in lines
    assert [line.split()[0] for line in lines[2:4]] == ["1", "2"]
    assert lines[2].split()[1] == "1.000"


def test_explain_shows_loops_caches_and_why_the_loser_lost():
    text = ok("plan", "conv:ic64ih56oc64kh3sh2ph1", "-m", "zen4", "--accuracy", "ieee", "--explain")
    assert re.search(r"loops\n  for each of 1 images\n    for each of 1 groups\n      for each of \d+ blocks of tiles", text)
    assert re.search(r"\n {14}f32_nchwc_\w+ on up to \d+ pixels x \d+ filters x \d+ channels\n", text)
    assert "of L2 (1.0 MiB)" in text
    both = ok("plan", "conv:ic256ih56oc64kh1", "-m", "zen4", "--explain")
    assert re.search(r"(input|weight)_stationary is .* slower", both)


def test_a_micro_kernel_is_obeyed_and_an_unknown_one_is_answered_with_those_there_are():
    (plan,) = document("plan", PROBLEM, "-m", "zen4", "--micro-kernel", "48x9")["plans"]
    assert (plan["tile"]["windows"], plan["tile"]["filters"]) == (48, 9)
    assert "48x9" in refused(2, "plan", PROBLEM, "-m", "zen4", "--micro-kernel", "47x9")
    assert "expected e.g. 4x16" in refused(2, "plan", PROBLEM, "-m", "zen4", "--micro-kernel", "four")
    (plan,) = document("plan", PROBLEM, "-m", "zen4", "--layout", "nchw16c", "--micro-kernel", "f32_nchwc_28x16__avx512")["plans"]
    assert (plan["layout"], plan["kernel"]) == ("nchw16c", "f32_nchwc_28x16__avx512")
    named = ok("plan", PROBLEM, "-m", "zen4", "--layout", "nchw16c", "--micro-kernel", "f32_nchwc_28x16__avx512", "--explain")
    assert "for each of 1 sets of 64 channels\n" in named


@pytest.mark.parametrize("words", [("--top", "3", "--model", "csa"), ("--explain", "--json")])
def test_options_that_exclude_each_other_are_refused(words):
    assert invoke("plan", PROBLEM, "-m", "zen4", *words).exit_code == 2


# What problems and machines can be, and what is wrong with those that are not


def test_a_file_and_several_words_are_read_in_order(tmp_path):
    listing = tmp_path / "layers.txt"
    listing.write_text(f'# two layers\n{SMALL}\nmb1ic3ih9oc4kh3n"last"\n')
    plans = document("plan", "gemm:64x32x16", f"@{listing}", "-m", "zen4")["plans"]
    assert [plan["problem"] for plan in plans] == ["gemm:64x32x16", SMALL, "conv:mb1ic3ih9oc4kh3"]
    assert plans[-1]["label"] == "last"


def model(path: Path, *nodes: onnx.NodeProto, **shapes: list[int | str]) -> Path:
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    output = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "graph", inputs, [output])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def test_a_model_gives_its_layers_on_stdout_and_what_was_skipped_on_stderr(tmp_path):
    path = model(
        tmp_path / "net.onnx",
        helper.make_node("Conv", ["x", "w"], ["y"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("MatMul", ["a", "b"], ["z"], name="attention"),
        x=[1, 8, 10, 10],
        w=[8, 8, 3, 3],
        a=[4, 5, 6],
        b=[4, 6, 7],
    )
    result = invoke("plan", str(path), "-m", "zen4", "--json")
    assert [(plan["problem"], plan["label"]) for plan in json.loads(result.stdout)["plans"]] == [(SMALL, "first")]
    assert result.stderr.startswith(f'{path}: MatMul "attention": skipped: batched: ')


def test_a_model_of_the_onnx_package_is_planned_whole():
    light = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / "light_squeezenet.onnx"
    built_in, read = (document("plan", word, "-m", "zen4")["plans"] for word in ("squeezenet", str(light)))
    assert [plan | {"label": ""} for plan in read] == [plan | {"label": ""} for plan in built_in]


def test_a_model_without_layers_matches_nothing(tmp_path):
    path = model(tmp_path / "relu.onnx", helper.make_node("Relu", ["x"], ["y"]), x=[1, 8])
    assert "no convolution and no matrix product" in refused(2, "plan", str(path), "-m", "zen4")


def mistakes(folder: Path) -> list[tuple[int, str, tuple[str, ...]]]:
    """Exit code, what the message must say, and the words of a command with one mistake."""
    (folder / "bad.onnx").write_bytes(b"\x00not a model")
    (folder / "bad.txt").write_text(f"{SMALL}\nconv:mb1ic3\n")
    (folder / "bad.toml").write_text("kind = ")
    return [
        (2, 'did you mean "resnet50"?', ("plan", "resnet5O", "-m", "zen4")),
        (2, 'did you mean "conv:mb1ic3ih9oc4kh3"?', ("plan", "mb1ic3ih9oc4kh3", "-m", "zen4")),
        (2, 'the field "kh" (kernel_h) is missing', ("plan", "conv:mb1ic64ih56oc64", "-m", "zen4")),
        (2, "is not a size", ("plan", "gemm:512xx2", "-m", "zen4")),
        (2, 'did you mean "zen4"?', ("plan", SMALL, "-m", "zan4")),
        (2, "there is no s8 CUDA kernel of it", ("plan", f"{SMALL}:s8", "-m", "h200")),
        (2, "there is no f16 micro-kernel", ("plan", f"{SMALL}:f16", "-m", "zen4")),
        (2, "none.txt cannot be read", ("plan", f"@{folder}/none.txt", "-m", "zen4")),
        (2, "bad.txt, line 2:", ("plan", f"@{folder}/bad.txt", "-m", "zen4")),
        (2, "none.onnx cannot be read", ("plan", f"{folder}/none.onnx", "-m", "zen4")),
        (2, "bad.onnx is not an ONNX model", ("plan", f"{folder}/bad.onnx", "-m", "zen4")),
        (2, "there is no machine file", ("plan", SMALL, "-m", f"{folder}/none.toml")),
        (2, "not TOML", ("plan", SMALL, "-m", f"{folder}/bad.toml")),
        (2, "levels.L2.ways=many: expected a number", ("plan", SMALL, "-m", "zen4", "--set", "levels.L2.ways=many")),
        (2, "core.call_cycles=few: expected a number", ("plan", SMALL, "-m", "zen4", "--set", "core.call_cycles=few")),
        (2, 'did you mean "zen4"?', ("machines", "show", "zn4")),
        (2, 'did you mean "avx512"?', ("kernels", "avx521")),
        (2, "no kernel's name contains all of", ("kernels", "avx2", "avx512")),
        (2, 'no machine is named "power9"', ("run", SMALL, "-m", "power9")),
        (3, "is a GPU", ("compare", SMALL, "-m", "h200")),
        (3, "v100", ("compare", "gemm:64x64x64", "-m", "v100")),
        (3, "is not known to be this computer", ("compare", SMALL, "-m", "xeon-4208")),
    ]


@pytest.mark.parametrize("number", range(22))
def test_a_mistake_is_one_sentence_on_stderr_and_an_exit_code(number, tmp_path):
    code, says, words = mistakes(tmp_path)[number]
    assert says in refused(code, *words)


def test_every_mistake_is_tried(tmp_path):
    assert len(mistakes(tmp_path)) == 22


# machines, kernels, doctor


def test_machines_lists_every_shipped_machine():
    found = document("machines", "list")["machines"]
    assert [one["name"] for one in found] == machine.names()
    assert document("machines")["machines"] == found
    text = ok("machines")
    assert all(re.search(rf"^{name} ", text, re.MULTILINE) for name in machine.names())
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("name", machine.names())
def test_machines_show_gives_every_number_its_kind_and_source(name):
    lines = ok("machines", "show", name).splitlines()
    rows = lines[lines.index("", 1) + 2 :]
    on = machine.load_any(name)
    facts = list(machine.facts(on))
    assert [(row.split()[0], row.split()[-2], row.split()[-1]) for row in rows[: len(facts)]] == [(p, f.kind, f.source) for p, f in facts]
    assert all(f"{key}: {source.title}" in rows for key, source in on.sources.items())
    assert machine.loads(ok("machines", "show", name, "--toml")) == on
    (shown,) = document("machines", "show", name)["machines"]
    assert msgspec.convert(shown, type(on)) == on


@native
def test_machines_detect_measures_this_computer_and_fresh_measures_it_again():
    (host,) = document("machines", "detect")["machines"]
    (kept,) = document("machines", "show", "host")["machines"]
    (fresh,) = document("machines", "detect", "--fresh")["machines"]
    assert host["name"] == "host" and host["core"]["frequency_hz"]["kind"] == "measured"
    assert kept == host
    assert fresh != host  # a dozen measured rates, to the last digit


def test_prose_keeps_to_100_columns_and_loses_no_word():
    text = "a number that nobody published " * 12 + "https://example.org/" + "x" * 100 + " and more"
    lines = common.wrapped(text, "    ").split("\n")
    assert " ".join(line.strip() for line in lines) == text
    assert [len(line) > 100 for line in lines].count(True) == 1
    assert [len(line) - len(line.lstrip()) for line in lines] == [4] + [6] * (len(lines) - 1)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (2.1654e-3, "2.17 ms"),
        (0.9999, "1.00 s"),
        (9.996e-6, "10.0 us"),
        (99.96e-6, "100 us"),
        (999.7e-6, "1.00 ms"),
        (12.3, "12.3 s"),
        (3e-9, "3.00 ns"),
    ],
)
def test_a_time_has_three_digits_and_a_unit(value, shown):
    assert common.seconds(value) == shown


def test_a_number_keeps_its_digits():
    shown = [quantity(value) for value in (3.661e9, 64, 0.5, 31.3, 9.6, 63.75, 12345)]
    assert shown == ["3,661,000,000", "64", "0.5", "31.3", "9.6", "63.75", "12,345"]


def test_kernels_are_the_rows_of_the_registry():
    rows = document("kernels")["kernels"]
    assert [row["name"] for row in rows] == [row.name for row in cpu_kernels()]
    assert {row["name"] for row in document("kernels", "f64", "avx2")["kernels"]} == {
        row.name for row in cpu_kernels() if row.dtype == "f64" and row.target == "avx2"
    }
    assert all(re.search(rf"^{row.name} ", ok("kernels"), re.MULTILINE) for row in cpu_kernels())


@native
def test_kernels_say_which_of_them_run_here():
    rows = document("kernels")["kernels"]
    assert {row["name"] for row in rows if row["available"]} == runtime.available_kernels()


@native
def test_doctor_finds_what_the_main_job_needs():
    found = document("doctor")
    assert found["works"] is True
    by_name = {check["name"]: check for check in found["checks"]}
    assert all(check.keys() == {"group", "name", "status", "detail", "fix"} for check in found["checks"])
    assert str(runtime.library_path()) in by_name["native library"]["detail"]
    assert by_name.keys() >= {"CPU", "caches", "governor", "pinning", "kernels", "onnx", "QEMU", "POWER10 compiler", "nvcc", "GPU"}
    assert by_name.keys() >= {name for name, peer in PEERS.items() if peer.on == "cpu"}
    assert {check["status"] for check in found["checks"]} <= set(doctor.STYLES)
    assert ok("doctor").splitlines()[-1] == "pysim compare resnet50 works here"


def test_doctor_names_a_command_for_what_is_missing(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    monkeypatch.setattr(doctor, "installed", lambda package: None)
    monkeypatch.setattr(foreign, "installed", lambda package: None)
    checks = {check.name: check for group in ("pysim", "other machines") for check in doctor.GROUPS[group]()}
    assert checks["packages"].fix == "pip install " + " ".join(doctor.REQUIRED)
    assert checks["QEMU"].fix == "sudo apt-get install qemu-user"
    assert checks["nvcc"].fix.startswith("pip install nvidia-cuda-nvcc")
    assert {checks[name].status for name in ("packages", "QEMU", "POWER10 compiler", "nvcc")} == {"missing"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("plan", SMALL, "--top", "٣"), "is not a whole number"),
        (("plan", SMALL, "--top", "1_0"), "is not a whole number"),
        (("plan", SMALL, "--top", "9" * 5000), "is too large"),
        (("cache", SMALL, "-m", "zen4", "--machine=h200"), "--machine is given 2 times; it takes one value"),
        (("plan", SMALL, "--model", "ful"), 'did you mean "full"?'),
        (("plan", SMALL, "--layout", "nhcw"), 'did you mean "nhwc"?'),
        (("plan", SMALL, "--memory-limit", "9" * 5000), "is not a number of bytes"),
        (("plan", SMALL, "-m", "zen4", "--micro-kernel", "٤x16"), "expected e.g. 4x16"),
        (("plan", SMALL, "-m", "zen4", "--micro-kernel", f"4x{'9' * 5000}"), "expected e.g. 4x16"),
        (("compare", SMALL, "--seconds", "nan"), "is not a number"),
        (("run", SMALL, "--threads", "٣"), "is not a whole number"),
        (("cache", SMALL, "--sweep", "chanels"), 'did you mean "channels"?'),
    ],
)
def test_an_odd_value_of_an_option_is_refused_with_one_that_is_right(words, says):
    result = invoke(*words)
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert says in result.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("plan", "gemm:8x8x8", "-m", "h200", "--layout", "nhwc"), "--layout nhwc is for convolutions; gemm:8x8x8 is a matrix product"),
        (("search", "gemm:8x8x8", "gemm:9x9x9", "--layout", "nhwc"), "--layout nhwc is for convolutions"),
        (("search", SMALL, "--threads", "1000"), "--threads is 1000, but this process has"),
        (("plan", SMALL, "zen4"), "zen4 is a machine, not a problem; write -m zen4"),
        (("banks", "--list", "--store"), "--list shows the built-in layouts"),
        (("cache", "--trace", "accesses.din", "--whole"), "it cannot be combined with"),
    ],
)
def test_an_option_that_would_have_no_effect_is_refused(words, says):
    result = invoke(*words)
    assert result.exit_code == 2 and says in " ".join(result.stderr.split())


def test_a_layout_is_that_of_the_convolutions_among_the_problems():
    assert invoke("plan", "gemm:8x8x8", SMALL, "-m", "h200", "--layout", "nhwc").exit_code == 0


# Options are checked before work


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "none.onnx", "--plan", "sconv", "--algorithm", "sconv"), "give --plan or --algorithm"),
        (("compare", "none.onnx", "--plan", "sconv", "--algorithm", "sconv"), "give --plan or --algorithm"),
        (("run", "none.onnx", "--plan", "x"), "is not the name of a plan"),
        (("search", "none.onnx", "--threads", "1000"), "threads would wait for each other"),
        (("banks", "none.toml", "--svg", "map.png"), "should end in .svg"),
        (("cache", "none.onnx", "--plan", "x", "--algorithm", "sconv"), "give --plan or --algorithm"),
    ],
)
def test_options_are_checked_before_a_model_is_read_or_this_computer_detected(words, message, monkeypatch):
    def works(*_, **__):
        raise AssertionError("work before the check")

    for name in ("detect", "runnable_any", "any_machine", "machine"):
        monkeypatch.setattr(f"pysim.calibration.host.{name}", works)
    result = invoke(*words)
    assert result.exit_code == 2
    assert message in result.stderr


@native
def test_a_calibration_that_cannot_be_kept_is_refused_before_it_is_measured(tmp_path, monkeypatch):
    (tmp_path / "occupied").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "occupied"))
    monkeypatch.setattr("pysim.calibration.cpu_calibrate.calibrate", None)
    assert "cannot be written, so this computer stays as detected; give a file" in refused(2, "machines", "calibrate")
