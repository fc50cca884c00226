# SPDX-License-Identifier: Apache-2.0
"""Whose fault is an illegal memory access: torch.compile's CUDA graphs', the caller's, or pysim's? Several networks in one process.

    python lab/benchmarks/cuda/graph_fault.py -o FILE [--only MODEL ...] [--type f32|half|autocast|bf16] [options]
    python lab/benchmarks/cuda/graph_fault.py -o FILE --run all [--seconds 500]      # one process for each of VARIANTS
    python lab/benchmarks/cuda/graph_fault.py --list                                 # the hypotheses and their experiments

Each network is first called under torch.compile(mode="reduce-overhead"), then optimized by pysim.torch.optimize(cuda_graph="caller"),
captured twice by torch.cuda.graph (NCHW and channels last) and replayed. Each replay's result is compared with eager PyTorch's. One JSON
line per step; after an error one with the step in which it surfaced: with --sync, the one that caused it. `--audit` says which addresses
each graph holds whose memory is another graph's, free or unmapped (graph_pointers.py), before a replay could fault. Exit status 1 after an
error.
"""

import argparse
import gc
import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import graph_pointers
import torch
from small_networks import NETWORKS

MODELS = ("decoder", "convnext_v2", "vit")
ERRORS = {"f32": 1e-3, "half": 5e-2, "autocast": 5e-2, "bf16": 0.3}  # a result further from eager's was read from other memory


class Variant(NamedTuple):
    """What an outcome tells, and the options that make it."""

    question: str
    options: str


VARIANTS = {
    "as-reported": Variant("does it fault at all, and in which step?", "--sync"),
    "async": Variant("the same without waiting after each step", ""),
    "audit": Variant("which kernels hold addresses that do not belong to their graph?", "--sync --audit --replay-all"),
    # 1. cuBLAS's workspace, which PyTorch keeps per handle and stream. All captures use one stream, so a later graph reads the workspace
    #    in the private pool of an earlier one. torch.compile frees all workspaces whenever it warms up or records, newer versions those of
    #    a graph's stream with the graph; if the earlier graph is gone, its pool is then unmapped by the next capture's empty_cache().
    "eager-graphs": Variant("1: eager graphs, torch.compile, then pysim's graphs", "--sync --audit --eager-graphs"),
    "capture-first": Variant(
        "1: workspaces of the model before, freed by this one's torch.compile", "--sync --audit --order capture-first"
    ),
    "torch-capture-first": Variant(
        "1, PyTorch alone: if this faults, pysim is not needed", "--sync --audit --order capture-first --without-pysim"
    ),
    "clear": Variant("1: captures that begin and end without workspaces must not fault", "--sync --order capture-first --cublas clear"),
    "own-stream": Variant("1: captures on streams of their own must not fault", "--sync --order capture-first --cublas own-stream"),
    "freed-by-hand": Variant(
        "1: the same without torch.compile, workspaces freed by hand", "--sync --audit --order capture-first --no-compile --free"
    ),
    "torch-replace": Variant(
        "1: the first graph, whose pool holds the workspace, is gone when the second is replayed",
        "--sync --audit --without-pysim --replace",
    ),
    "keep-graphs": Variant("1: no pool is ever released, so nothing can be unmapped", "--sync --order capture-first --keep-pools graphs"),
    "without-pysim": Variant("is pysim needed?", "--sync --audit --without-pysim --replay-all"),
    "no-compile": Variant("is torch.compile needed?", "--sync --audit --no-compile --replay-all"),
    # 2. Weights that pysim prepared, replaced or dropped while a graph reads them: another layout, type or setting of the program makes
    #    new ones in caches of limited size; and the optimized model itself, if the caller keeps only the graph.
    "prepared": Variant("2: everything is kept, all graphs are replayed after all models", "--sync --audit --keep-pools all --replay-all"),
    "drop-model": Variant(
        "2: the caller drops the optimized model and keeps its graphs (must be reported as freed)",
        "--sync --audit --keep-pools graphs --drop-model",
    ),
    # 3. A kernel that reads beyond an array: it faults only where the array ends with its segment, so the allocator's state decides. Run
    #    with PYTORCH_NO_CUDA_MEMORY_CACHING=1 under compute-sanitizer, where each array is an allocation.
    "eager": Variant("3: for compute-sanitizer: no graph, no compiler", "--sync --eager --no-compile"),
    # 4. Attention by cuDNN, for 197 tokens, which is no multiple of its tiles.
    "math": Variant("4: attention by products", "--sync --sdpa math"),
    "efficient": Variant("4: attention by PyTorch's own kernels", "--sync --sdpa efficient"),
    # 5. Weights that autocast cast once and frees when it ends, while a graph reads them.
    "autocast": Variant("5: autocast ends before the replays", "--sync --audit --type autocast"),
    # 6. Triton's modules unloaded with compiled functions whose graphs live on; cycles collected during a capture.
    "reset": Variant("6: torch._dynamo.reset() after each model", "--sync --reset"),
    "no-gc": Variant("6: no cycle is ever collected", "--sync --gc off"),
    "gc": Variant("6: cycles are collected before each step", "--sync --gc each"),
    # 7. pysim's workspaces, kept per stream: allocated while another pool was current, or freed while work is on the way.
    "forget": Variant(
        "7: pysim's kept workspaces are freed before the replays (never part of a graph, so nothing must change)", "--sync --audit --forget"
    ),
    "same-stream": Variant(
        "7, 1: warm-ups on the stream of the capture: workspaces in the ordinary pool", "--sync --audit --warm-up-on-capture-stream"
    ),
}


class Log:
    """Steps as JSON lines; each is on disk before the next begins."""

    def __init__(self, out: Path, sync: bool, collect: bool) -> None:
        self._out, self._sync, self._collect = out.open("a"), sync, collect

    def write(self, **row: Any) -> None:
        self._out.write(json.dumps(row) + "\n")
        self._out.flush()

    @contextmanager
    def step(self, model: str, name: str) -> Iterator[None]:
        if self._collect:
            gc.collect()
        begin = time.perf_counter()
        try:
            yield
            if self._sync:
                torch.cuda.synchronize()
        except Exception as error:
            text = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            self.write(model=model, step=name, error=text)
            print(f"{model:<12} {name:<32} {text}", flush=True)
            raise SystemExit(1) from error
        self.write(model=model, step=name, seconds=time.perf_counter() - begin)


class Captured(NamedTuple):
    """A graph, what it was made of, and the addresses in it."""

    name: str
    graph: Any
    result: Any
    wanted: Any
    held: list[graph_pointers.Pointer]
    kept: tuple[Any, ...]


def optimized(model: Any) -> Any:
    import pysim.torch  # here, so that a run without it is one without it

    return pysim.torch.optimize(model, cuda_graph="caller")


class Session:
    def __init__(self, given: argparse.Namespace, log: Log) -> None:
        self.given, self.log, self.all = given, log, list[Captured]()

    def casting(self) -> AbstractContextManager[Any]:
        return torch.autocast("cuda", torch.float16) if self.given.type == "autocast" else nullcontext()

    def model(self, name: str) -> tuple[Any, Any]:
        one, types = NETWORKS[name], {"half": torch.float16, "bf16": torch.bfloat16}
        torch.manual_seed(0)
        model = one.make().cuda().train()
        x = torch.randn(self.given.batch, one.channels, one.size, one.size, device="cuda")
        for _ in range(3):
            model(x)
        kind = types.get(self.given.type, torch.float32)
        return model.eval().to(kind), x.to(kind)

    def capture(self, name: str, call: Callable[[], Any], wanted: Any, kept: tuple[Any, ...]) -> Captured:
        """A warm-up and a capture, as a program would do it."""
        given = self.given
        stream = torch.cuda.Stream() if given.cublas == "own-stream" else None
        side = torch.cuda.Stream()
        if given.warm_up_on_capture_stream:
            torch.cuda.graph.default_capture_stream = torch.cuda.graph.default_capture_stream or torch.cuda.Stream()
            side = stream or torch.cuda.graph.default_capture_stream
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        if given.cublas == "clear":
            torch._C._cuda_clearCublasWorkspaces()
        graph = torch.cuda.CUDAGraph(keep_graph=True) if given.audit else torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            result = call()
        if given.cublas == "clear":
            torch._C._cuda_clearCublasWorkspaces()
        return Captured(name, graph, result, wanted, graph_pointers.pointers(graph) if given.audit else [], kept)

    def replay(self, model: str, one: Captured, when: str) -> None:
        if self.given.audit:
            told = graph_pointers.audit(one.held, tuple(one.graph.pool()))
            counts = {kind: len(nodes) for kind, nodes in told.items()}
            wrong = {kind: sorted(set(nodes))[:12] for kind, nodes in told.items() if kind not in ("own", "normal")}
            self.log.write(model=model, step=f"audit {one.name} {when}", addresses=counts, wrong=wrong)
            if wrong:
                print(f"{model:<12} audit {one.name} {when}: {counts} {wrong}", flush=True)
        with self.log.step(model, f"replay {one.name} {when}"):
            one.graph.replay()
        with self.log.step(model, f"compare {one.name} {when}"):
            error = float((one.result.double() - one.wanted.double()).abs().max() / one.wanted.double().abs().max())
        self.log.write(model=model, step=f"error {one.name} {when}", error_of_result=error)
        if not error <= ERRORS[self.given.type]:
            print(f"{model:<12} replay {one.name} {when}: wrong by {error:.1e}", flush=True)

    def compiled(self, name: str, model: Any, x: Any) -> Any:
        compiled = torch.compile(model, mode="reduce-overhead")
        for at in range(self.given.calls):
            with self.log.step(name, f"compiled call {at}"), self.casting():
                compiled(x)
        return compiled

    def captures(self, name: str, model: Any, x: Any, wanted: Any) -> list[Captured]:
        given, made = self.given, list[Captured]()
        with self.log.step(name, "optimize"), self.casting():
            ours = model if given.without_pysim else optimized(model)
            ours(x)
        for layout in ("contiguous_format", "channels_last"):
            image = x.to(memory_format=getattr(torch, layout))
            if given.eager:
                with self.log.step(name, f"eager {layout}"), self.casting():
                    ours(image)
                continue
            with self.log.step(name, f"capture {layout}"), self.casting():
                kept = (image, model) if given.drop_model else (image, model, ours)
                made.append(self.capture(f"{name} {layout}", partial(ours, image), wanted, kept))
            self.replay(name, made[-1], "at once")
            if given.replace:
                del made[:-1]
        return made

    def run(self, name: str) -> None:
        given = self.given
        with self.log.step(name, "make"):
            model, x = self.model(name)
            with self.casting():
                wanted = model(x).clone()
        compiled, made, eager = None, [], []
        if given.eager_graphs:
            for layout in ("contiguous_format", "channels_last"):
                image = x.to(memory_format=getattr(torch, layout))
                with self.log.step(name, f"capture eager {layout}"), self.casting():
                    call = partial(model, image)
                    eager.append(self.capture(f"{name} eager {layout}", call, wanted, (image, model)))
        if given.order == "capture-first":
            made = self.captures(name, model, x, wanted)
        if not given.no_compile:
            compiled = self.compiled(name, model, x)
        if given.order == "compile-first":
            made = self.captures(name, model, x, wanted)
        if given.free:
            torch._C._cuda_clearCublasWorkspaces()
        if given.forget:
            from pysim.runtime.cuda_call import forget_workspaces

            forget_workspaces()
        with self.log.step(name, "empty_cache"):
            torch.cuda.empty_cache()
        for turn in range(given.rounds):
            if compiled is not None:
                with self.log.step(name, f"compiled again {turn}"), self.casting():
                    compiled(x)
            for one in (*eager, *made):
                self.replay(name, one, f"round {turn}")
        if given.keep_pools != "none":
            self.all += [*eager, *made]
        if given.keep_pools == "all":
            self.all[-1:] = [one._replace(kept=(*one.kept, compiled)) for one in self.all[-1:]]
        if given.reset:
            torch._dynamo.reset()

    def end(self) -> None:
        if self.given.replay_all:
            for one in self.all:
                self.replay("all", one, "at the end")
        with self.log.step("all", "end"):
            torch.cuda.synchronize()


def clears_by_stream() -> bool:
    """Whether this PyTorch can free cuBLAS's workspaces of one stream, as it does when a graph is destroyed."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"
    if not path.exists():
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as found:
        return found.find(b"clearCublasWorkspacesForStream") >= 0


def attention(kind: str) -> AbstractContextManager[Any]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kinds = {"math": SDPBackend.MATH, "efficient": SDPBackend.EFFICIENT_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
    return sdpa_kernel(kinds[kind]) if kind in kinds else nullcontext()


def run_variants(given: argparse.Namespace) -> None:
    """One process for each variant, until the time is over; variants that the file has are left out."""
    begin, longest = time.time(), 60.0
    names = [*VARIANTS] if given.run == ["all"] else given.run
    rows = map(json.loads, given.output.read_text().splitlines()) if given.output.exists() else ()
    done = {row["variant"] for row in rows if "variant" in row}
    for name in names:
        left = given.seconds - (time.time() - begin)
        if name in done or left < longest:
            print(f"{name:<20} {'done before' if name in done else 'no time left'}", flush=True)
            continue
        steps, options = given.output.with_suffix(f".{name}.steps"), VARIANTS[name].options.split()
        steps.unlink(missing_ok=True)
        command = [sys.executable, __file__, "-o", str(steps), "--batch", str(given.batch), *options]
        command += [] if "--type" in options else ["--type", given.type]
        command += ["--only", *given.only]
        start, limit, said = time.time(), min(left, given.each), ""
        try:
            ended = subprocess.run(command, timeout=limit, check=False, stderr=subprocess.PIPE, text=True)
            status, said = ended.returncode, ended.stderr[-1500:]
        except subprocess.TimeoutExpired:
            status, said = 124, f"longer than {limit:.0f} s"
        longest = max(longest, min(time.time() - start, given.each))
        found = [json.loads(line) for line in steps.read_text().splitlines()] if steps.exists() else []
        errors = [row for row in found if "error" in row]
        wrong = [row for row in found if row.get("wrong")]
        far = [row for row in found if not row.get("error_of_result", 0) <= ERRORS["autocast" if name == "autocast" else given.type]]
        row = {"variant": name, "type": given.type, **VARIANTS[name]._asdict(), "status": status, "seconds": time.time() - start}
        row |= {"header": found[:1], "steps": len(found), "last": found[-1:], "errors": errors, "wrong": wrong[:20], "far": far[:20]}
        row |= {"said": said} if status else {}
        with given.output.open("a") as out:
            out.write(json.dumps(row) + "\n")
        steps.unlink(missing_ok=True)
        at = f"{errors[0]['model']}: {errors[0]['step']}: {errors[0]['error']}" if errors else said[-200:] if status else "no error"
        told = f"{len(wrong)} audits with foreign or freed memory, {len(far)} wrong results"
        print(f"{name:<20} status {status} {row['seconds']:.0f} s  {at}; {told}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("graph-fault.jsonl"))
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=[*MODELS], metavar="MODEL", help="these networks, in this order")
    parser.add_argument("--type", choices=ERRORS, default="half")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--calls", type=int, default=4, help="of the compiled network before anything else")
    parser.add_argument("--rounds", type=int, default=3, help="of interleaved calls and replays")
    parser.add_argument("--without-pysim", action="store_true", help="capture eager modules instead")
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--order", choices=("compile-first", "capture-first"), default="compile-first")
    parser.add_argument("--sync", action="store_true", help="wait for the device after each step")
    parser.add_argument("--audit", action="store_true", help="the addresses in each graph before each replay")
    parser.add_argument("--eager-graphs", action="store_true", help="capture the eager module twice before all else")
    parser.add_argument("--eager", action="store_true", help="call instead of capturing")
    parser.add_argument("--keep-pools", choices=("none", "graphs", "all"), default="none", help="what outlives its network")
    parser.add_argument("--replay-all", action="store_true", help="after the last network, the graphs of all (implies --keep-pools graphs)")
    parser.add_argument("--replace", action="store_true", help="the second graph replaces the first")
    parser.add_argument("--drop-model", action="store_true", help="keep graphs but not the optimized network")
    parser.add_argument("--cublas", choices=("share", "clear", "own-stream"), default="share", help="workspaces of captures")
    parser.add_argument("--free", action="store_true", help="free cuBLAS's workspaces before the replays, as torch.compile does")
    parser.add_argument("--forget", action="store_true", help="free pysim's workspaces before the replays")
    parser.add_argument("--warm-up-on-capture-stream", action="store_true")
    parser.add_argument("--sdpa", choices=("any", "math", "efficient", "cudnn"), default="any")
    parser.add_argument("--gc", choices=("auto", "off", "each"), default="auto")
    parser.add_argument("--reset", action="store_true", help="torch._dynamo.reset() after each network")
    parser.add_argument("--run", nargs="+", choices=("all", *VARIANTS), metavar="VARIANT", help="these variants, each in a process")
    parser.add_argument("--seconds", type=float, default=500.0, help="with --run: all of them")
    parser.add_argument("--each", type=float, default=150.0, help="with --run: the longest that one may take")
    parser.add_argument("--list", action="store_true", help="print the variants")
    given = parser.parse_args()
    if given.list:
        print("\n".join(f"{name:<20} {one.question}\n{'':<20} {one.options}" for name, one in VARIANTS.items()))
        return
    if given.run:
        run_variants(given)
        return
    if not torch.cuda.is_available():
        raise SystemExit("a GPU is needed; without one: --list, --help")
    if given.replay_all and given.keep_pools == "none":
        given.keep_pools = "graphs"
    if given.gc == "off":
        gc.disable()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    log = Log(given.output, given.sync, given.gc == "each")
    versions = {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version(), "clears_by_stream": clears_by_stream()}
    device = torch.cuda.get_device_name()
    log.write(kind="header", device=device, versions=versions, options=sys.argv[1:], allocator=os.environ.get("PYTORCH_CUDA_ALLOC_CONF"))
    session = Session(given, log)
    with torch.no_grad(), attention(given.sdpa):
        for name in given.only:
            session.run(name)
        session.end()
    print(f"{', '.join(given.only)}: no error", flush=True)


if __name__ == "__main__":
    main()
