"""Measure the ensemble optimizers against their peers, side by side in one process on one thread.

Contenders step the same parameters with the same gradients in interleaved rounds; a ratio is the median over rounds of
the quotient of two times in the same round. Times are processor time of the one thread, which on a shared machine is
steadier than the clock. The peer `torchsonn` (0.1.7) takes part where it can be imported; only its optimizers are.

    python benchmarks/bench_optim.py                    # everything, some minutes
    python benchmarks/bench_optim.py --quick            # few rounds, without compilation
    python benchmarks/bench_optim.py --write folder     # also write the table, the numbers and a plot there
"""

import argparse
import importlib.util
import json
import os
import platform
import statistics
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch.profiler import ProfilerActivity, profile

from batched_optim import BatchedAdam, BatchedLBFGS, BatchedSGD, fit_ensemble

torch.set_num_threads(1)

Params = dict[str, torch.Tensor]
Stepper = Callable[[Params, Params], Params]
OPTIMIZERS = {"Adam": BatchedAdam, "SGD": BatchedSGD, "L-BFGS": BatchedLBFGS}
SETTINGS = {"Adam": {"lr": 1e-3}, "SGD": {"lr": 1e-3, "momentum": 0.9, "nesterov": True}}
LOOP_UP_TO = 256  # members for which a loop of one optimizer per member is bearable


def ensemble(name: str) -> tuple[Params, list[str]]:
    """Return parameters and the names of the shared ones: `A16` to `A4096`, small models, or `L`, one large tensor."""
    generator = torch.Generator().manual_seed(0)
    if name == "L":
        return {"w": torch.randn(1024, 4096, generator=generator)}, []
    members = int(name[1:])
    shapes = {"w": (members, 32, 16), "b": (members, 32), "shared": (64,)}
    return {key: torch.randn(shape, generator=generator) for key, shape in shapes.items()}, ["shared"]


def import_peer() -> types.ModuleType | None:
    """Return the peer's optimizers without importing the rest of it, whose requirements are many."""
    spec = importlib.util.find_spec("torchsonn")
    if spec is None or spec.submodule_search_locations is None:
        print("torchsonn is not installed: `python -m pip install --no-deps torchsonn==0.1.7`; going on without it.")
        return None
    package = types.ModuleType("torchsonn")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules["torchsonn"] = package
    return importlib.import_module("torchsonn.optimizers")


def torch_stacked(name: str, params: Params, shared: list[str], **options: bool) -> Stepper:
    """Return one of PyTorch's optimizers on the stacked tensors: one rate, in place, gradients averaged beforehand."""
    own = {key: torch.nn.Parameter(p.clone()) for key, p in params.items()}
    optimizer = getattr(torch.optim, name)(list(own.values()), **SETTINGS[name], **options)
    means: dict[int, Params] = {}

    def step(current: Params, grads: Params) -> Params:
        averaged = means.setdefault(id(grads), {key: grads[key].mean(0) for key in shared if id(grads) not in means})
        for key, parameter in own.items():
            parameter.grad = averaged[key] if key in shared else grads[key]
        optimizer.step()
        return current

    return step


def torch_loop(name: str, params: Params, shared: list[str]) -> Stepper:
    """Return a loop over one of PyTorch's optimizers per member, as it is written without this package."""
    members = len(params["w"])
    own = [
        {key: torch.nn.Parameter(p[i].clone()) for key, p in params.items() if key not in shared}
        for i in range(members)
    ]
    optimizers = [getattr(torch.optim, name)(list(one.values()), **SETTINGS[name]) for one in own]

    def step(current: Params, grads: Params) -> Params:
        for i, (one, optimizer) in enumerate(zip(own, optimizers, strict=True)):
            for key, parameter in one.items():
                parameter.grad = grads[key][i]
            optimizer.step()
        return current

    return step


def contenders(name: str, case: str, peer: types.ModuleType | None, *, compiled: bool) -> dict[str, Stepper]:
    """Return everyone who takes part, ours first."""
    params, shared = ensemble(case)
    rates = torch.full((len(params["w"]),), 1e-3)
    found = {"ours": OPTIMIZERS[name](params, shared, rates).step}
    if compiled:
        found["ours, compiled"] = OPTIMIZERS[name](params, shared, rates, compile=True).step
    if peer is not None:
        found["torchsonn"] = getattr(peer, OPTIMIZERS[name].__name__)(dict(params), shared, rates.clone()).step
    if name in SETTINGS:
        found["torch fused"] = torch_stacked(name, params, shared, fused=True)
        found["torch foreach"] = torch_stacked(name, params, shared, foreach=True)
        if len(rates) <= LOOP_UP_TO and case != "L":
            found["torch loop"] = torch_loop(name, params, shared)
    return found


def time_rounds(steppers: dict[str, Stepper], case: str, rounds: int, warm_up: int) -> dict[str, list[float]]:
    """Return seconds per step of each contender in each round."""
    params, shared = ensemble(case)
    members = len(params["w"])
    shape = lambda key: (members, *params[key].shape) if key in shared else params[key].shape
    grads = [{key: torch.randn(shape(key)) for key in params} for _ in range(3)]
    repeats = 5 if params["w"].numel() < 1e6 else 1
    states = dict.fromkeys(steppers, params)
    times: dict[str, list[float]] = {key: [] for key in steppers}
    for number in range(warm_up + rounds):
        for key, step in steppers.items():
            start = time.thread_time()
            for _ in range(repeats):
                states[key] = step(states[key], grads[number % 3])
            if number >= warm_up:
                times[key].append((time.thread_time() - start) / repeats)
    return times


def peak_memory(step: Stepper, case: str) -> float:
    """Return the memory that one step takes at its peak, results included, in units of the parameters."""
    params, shared = ensemble(case)
    members = len(params["w"])
    grads = {key: torch.randn((members, *p.shape) if key in shared else p.shape) for key, p in params.items()}
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        step(params, grads)
    events = [event for event in record.profiler.kineto_results.events() if event.name() == "[memory]"]
    level = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        level += event.nbytes()
        peak = max(peak, level)
    return peak / sum(p.numel() * p.element_size() for p in params.values())


def bandwidth() -> float:
    """Return the bytes per second that one thread moves when it adds two large tensors."""
    a, b, out = (torch.ones(4 * 1024 * 1024) for _ in range(3))
    times = []
    for _ in range(15):
        start = time.thread_time()
        torch.add(a, b, out=out)
        times.append(time.thread_time() - start)
    return 3 * a.numel() * 4 / statistics.median(times)


def measure(name: str, case: str, peer: types.ModuleType | None, *, quick: bool) -> dict[str, object]:
    """Return all that is known about one optimizer on one ensemble."""
    torch._dynamo.reset()
    steppers = contenders(name, case, peer, compiled=not quick)
    rounds, warm_up = (5, 2) if quick else (15, 3)
    times = time_rounds(steppers, case, rounds, warm_up + (10 if name == "L-BFGS" else 0))
    ratios = {
        key: statistics.median(theirs / ours for theirs, ours in zip(taken, times["ours"], strict=True))
        for key, taken in times.items()
    }
    params, _ = ensemble(case)
    floats = {"Adam": 7, "SGD": 5, "L-BFGS": 2 * 2 * 10 + 8}[name]  # read or written once per element, at the least
    bound = floats * sum(p.numel() for p in params.values()) * 4 / bandwidth()
    return {
        "optimizer": name,
        "case": case,
        "milliseconds": {key: 1e3 * statistics.median(taken) for key, taken in times.items()},
        "ratios": ratios,
        "bound": 1e3 * bound,
        "memory": {key: peak_memory(steppers[key], case) for key in ("ours", "torchsonn") if key in steppers},
    }


def compaction() -> float:
    """Return how many times longer a fit takes if members that stopped, half of 512, are not dropped."""
    generator = torch.Generator().manual_seed(0)
    params = {"w": torch.randn(512, 64, 32, generator=generator)}
    data = torch.randn(128, 64, generator=generator)
    rates = torch.full((512,), 1e-3)
    rates[::2] = 0.0  # these never improve, and stop at the second look
    loss = lambda member, x: torch.tanh(x @ member["w"]).square().mean()
    ratios = []
    for _ in range(5):
        times = []
        for compact in (False, True):
            optimizer = BatchedAdam(params, [], rates)
            start = time.thread_time()
            fit_ensemble(loss, params, data, optimizer, max_steps=40, check_every=4, patience=1, compact=compact)
            times.append(time.thread_time() - start)
        ratios.append(times[0] / times[1])
    return statistics.median(ratios)


COLUMNS = ("ours, compiled", "torchsonn", "torch loop", "torch fused", "torch foreach")


def table(results: list[dict[str, object]]) -> str:
    """Return the results as a Markdown table: how many times our time each contender takes."""
    head = ["", "ours, ms", *(f"{key} / ours" for key in COLUMNS), "bound, ms", "peak memory, ours / torchsonn"]
    lines = [" | ".join(head), " | ".join(["---"] * len(head))]
    for row in results:
        ratios, memory = row["ratios"], row["memory"]
        cells = [f"{row['optimizer']}, {row['case']}", f"{row['milliseconds']['ours']:.3g}"]
        cells += [f"{ratios[key]:.2f}" if key in ratios else "" for key in COLUMNS]
        cells += [f"{row['bound']:.3g}", " / ".join(f"{value:.1f}" for value in memory.values())]
        lines.append(" | ".join(cells))
    return "\n".join(f"| {line} |" for line in lines)


def plot(results: list[dict[str, object]], path: Path) -> None:
    """Draw the ratios."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    labels = [f"{row['optimizer']}\n{row['case']}" for row in results]
    for offset, key in enumerate(COLUMNS):
        places = [i + 0.16 * (offset - 2) for i, row in enumerate(results) if key in row["ratios"]]
        axes.bar(places, [row["ratios"][key] for row in results if key in row["ratios"]], 0.15, label=key)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set(yscale="log", ylabel="time of a step / ours", xticks=range(len(labels)), xticklabels=labels)
    axes.legend(fontsize="small", ncols=3)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Measure, print, and write if asked."""
    parser = argparse.ArgumentParser(description="Measure the ensemble optimizers against their peers.")
    parser.add_argument("--quick", action="store_true", help="few rounds, without compilation")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="write the table, the numbers and a plot there")
    arguments = parser.parse_args()
    peer = import_peer()
    cases = [("Adam", "A16"), ("Adam", "A4096"), ("Adam", "L"), ("SGD", "A16"), ("SGD", "A4096"), ("SGD", "L")]
    cases += [("L-BFGS", case) for case in ("A16", "A64", "A256", "A4096", "L")]
    results = []
    for name, case in cases:
        print(f"{name} {case} ...", file=sys.stderr, flush=True)
        results.append(measure(name, case, peer, quick=arguments.quick))
    print(f"PyTorch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, one thread\n")
    print(table(results))
    print(
        f"\nA fit in which half of the members stop early takes {compaction():.2f} times longer without `compact=True`."
    )
    if arguments.write is not None:
        arguments.write.mkdir(parents=True, exist_ok=True)
        (arguments.write / "optim.json").write_text(json.dumps(results, indent=1))
        (arguments.write / "optim.md").write_text(table(results) + "\n")
        plot(results, arguments.write / "optim.png")


if __name__ == "__main__":
    main()
