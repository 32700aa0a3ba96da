"""Gradients of whole sequences: ours, braintrace's, and backpropagation through time, side by side.

Run it with ``nox -s bench -- engines``. Rounds are interleaved, numbers are medians of same-round ratios, compile time
stands apart, and every contender gives the gradients of all parameters, readout included. braintrace is left out where
it is not installed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

PARSER = argparse.ArgumentParser(description=__doc__)
PARSER.add_argument("--threads", type=int, default=1, choices=(1, 2))
PARSER.add_argument("--rounds", type=int, default=9)
PARSER.add_argument("--json", help="file for the results")
PARSER.add_argument("--only", nargs="*", help="names of models")
OPTIONS = PARSER.parse_args()
if OPTIONS.threads == 1:
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import brainpy.state  # noqa: E402  # after the flags
import brainstate  # noqa: E402
import brainunit as unit  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

import etrace_engines  # noqa: E402

try:
    import braintrace
except ImportError:
    braintrace = None

warnings.simplefilter("ignore")
brainstate.environ.set(dt=1.0 * unit.ms)
BY_STEP = ", call by call"
STEPWISE = f"D_RTRL{BY_STEP}"


class Size(NamedTuple):
    """A cell and its sizes, and the rules that are measured on it."""

    cell: str
    inputs: int
    hidden: int
    batch: int
    steps: int
    rules: tuple[str, ...] = ("D_RTRL", "pp_prop", "EProp")


MODELS = {
    "tanh RNN 64, batch 16": Size(
        "ValinaRNNCell", 16, 64, 16, 200, ("D_RTRL", STEPWISE, "pp_prop", "EProp", "OSTLRecurrent", "UORO")
    ),
    "tanh RNN 16, batch 16": Size("ValinaRNNCell", 16, 16, 16, 200, ("SnAp",)),
    "tanh RNN 256, batch 16": Size("ValinaRNNCell", 32, 256, 16, 100),
    "tanh RNN 512, batch 8": Size("ValinaRNNCell", 64, 512, 8, 40),
    "tanh RNN 128, batch 1": Size("ValinaRNNCell", 16, 128, 1, 200, ("D_RTRL", STEPWISE, "pp_prop", "EProp")),
    "GRU 128, batch 16": Size("GRUCell", 16, 128, 16, 100),
    "LSTM 128, batch 16": Size("LSTMCell", 16, 128, 16, 100),
    "ALIF 200, batch 16": Size("ALIF", 32, 200, 16, 100, ("D_RTRL", "pp_prop", "EProp")),
    "convolutional RNN 16 x 8, batch 16": Size("Convolutional", 2, 8, 16, 50, ("D_RTRL", "EProp")),
}
RULES: dict[str, dict[str, Any]] = {
    "D_RTRL": {},
    "pp_prop": {"decay_or_rank": 0.9},
    "EProp": {"kappa_filter_decay": 0.9},
    "OSTLRecurrent": {},
    "SnAp": {"n": 2},
    "UORO": {},
}
SMALLEST = "tanh RNN 64, batch 16"
PLACES = 16  # of the convolutional net


class Spiking(brainstate.nn.Module):
    """Adaptive neurons behind exponential synapses, with recurrent weights."""

    def __init__(self, library: Any, inputs: int, hidden: int) -> None:
        super().__init__()
        self.weights = library.nn.Linear(inputs + hidden, hidden)
        start = brainstate.nn.init.Constant
        self.synapse = brainpy.state.Expon(hidden, tau=5.0 * unit.ms, g_initializer=start(0.0 * unit.mA))
        self.neuron = brainpy.state.ALIF(hidden, V_initializer=start(0.5 * unit.mV))

    def update(self, x: Any) -> Any:
        drive = self.weights(jnp.concatenate([x, self.neuron.get_spike()], axis=-1))
        return self.neuron(self.synapse(drive * unit.mA) + 1.0 * unit.mA)


class Convolutional(brainstate.nn.Module):
    """A recurrent net on a line of places, joined by convolutions."""

    def __init__(self, library: Any, inputs: int, hidden: int) -> None:
        super().__init__()
        self.shape = (PLACES, hidden)
        self.enter = library.nn.Conv1d((PLACES, inputs), hidden, 3)
        self.again = library.nn.Conv1d(self.shape, hidden, 3)

    def init_state(self, batch_size: int | None = None, **_: Any) -> None:
        self.h = brainstate.HiddenState(jnp.zeros((batch_size, *self.shape)))

    def update(self, x: Any) -> Any:
        x = jnp.broadcast_to(x[:, None], (x.shape[0], PLACES, x.shape[1]))
        self.h.value = jnp.tanh(self.enter(x) + self.again(self.h.value))
        return self.h.value.reshape(x.shape[0], -1)


class Net(brainstate.nn.Module):
    """A cell and a linear readout, from either library."""

    def __init__(self, library: Any, cell: str, inputs: int, hidden: int) -> None:
        super().__init__()
        own = {"ALIF": Spiking, "Convolutional": Convolutional}.get(cell)
        options = {"activation": "tanh"} if cell == "ValinaRNNCell" else {}
        self.cell = own(library, inputs, hidden) if own else getattr(library.nn, cell)(inputs, hidden, **options)
        self.readout = library.nn.Linear(hidden * PLACES if cell == "Convolutional" else hidden, 3)

    def update(self, x: Any) -> Any:
        return self.readout(self.cell(x))


def online(library: Any, rule: str, model: Net, xs: Any) -> Callable[[Any], Any]:
    """Return the jitted gradient of a whole sequence by a rule, from the driver or summed step by step."""
    name = rule.removesuffix(BY_STEP)
    learner = library.compile(model, getattr(library, name), xs[0], batch_size=xs.shape[1], **RULES[name])
    weights = model.states(brainstate.ParamState)
    loss = lambda x: (learner(x) ** 2).mean()

    def step(total: Any, x: Any) -> Any:
        gradient = brainstate.transform.grad(lambda: loss(x), weights)()
        return jax.tree.map(jnp.add, total, gradient), None

    def run(xs: Any) -> Any:
        learner.reset_state(*() if library is etrace_engines else (xs.shape[1],))
        if rule == name:
            return learner.etrace_grad(xs, step_fn=loss, reduction="sum")
        start = {path: jax.tree.map(jnp.zeros_like, state.value) for path, state in weights.items()}
        return brainstate.transform.scan(step, start, xs)[0]

    return brainstate.transform.jit(run)


def peer(rule: str, cell: str, inputs: int, hidden: int, xs: Any) -> Callable[[Any], Any] | None:
    """Return braintrace's gradient, or None where it is not installed or refuses the model."""
    if braintrace is None:
        return None
    try:
        run = online(braintrace, rule, Net(braintrace, cell, inputs, hidden), xs)
        jax.block_until_ready(run(xs[:2]))
    except Exception as refusal:  # whatever it says, it is a result
        print(f"{rule} (braintrace) refuses: {type(refusal).__name__}: {str(refusal)[:200]}")
        return None
    return run


def backpropagation(model: Net, xs: Any) -> Callable[[Any], Any]:
    """Return the jitted gradient of a whole sequence by backpropagation through time."""
    brainstate.nn.init_all_states(model, batch_size=xs.shape[1])
    states = model.states(brainstate.HiddenState)
    start = {path: state.value for path, state in states.items()}
    weights = model.states(brainstate.ParamState)

    def run(xs: Any) -> Any:
        for path, state in states.items():
            state.value = start[path]
        loss = lambda: brainstate.transform.for_loop(lambda x: (model(x) ** 2).mean(), xs).sum()
        return brainstate.transform.grad(loss, weights)()

    return brainstate.transform.jit(run)


def measure(contenders: dict[str, Callable[[Any], Any]], xs: Any) -> dict[str, dict[str, float]]:
    """Time interleaved rounds; ratios are to backpropagation in the same round."""
    compile_time, rounds = {}, {name: [] for name in contenders}
    for name, run in contenders.items():
        start = time.perf_counter()
        jax.block_until_ready(run(xs))
        compile_time[name] = time.perf_counter() - start
    for _ in range(OPTIONS.rounds):
        for name, run in contenders.items():
            start = time.perf_counter()
            jax.block_until_ready(run(xs))
            rounds[name].append(time.perf_counter() - start)
    ratio = lambda name, base: statistics.median(a / b for a, b in zip(rounds[name], rounds[base], strict=True))
    return {
        name: {
            "milliseconds": 1e3 * statistics.median(times),
            "to_bptt": ratio(name, "BPTT"),
            "compile_seconds": compile_time[name],
            **({"peer_to_ours": ratio(f"{name} (braintrace)", name)} if f"{name} (braintrace)" in rounds else {}),
        }
        for name, times in rounds.items()
    }


def temporary_megabytes(rule: str | None, steps: int) -> float:
    """Return XLA's temporary memory of one gradient on the smallest model; None is backpropagation."""
    cell, inputs, hidden, batch, *_ = MODELS[SMALLEST]
    xs = jnp.zeros((steps, batch, inputs))
    model = Net(brainstate, cell, inputs, hidden)
    run = backpropagation(model, xs) if rule is None else online(etrace_engines, rule, model, xs)
    lifted = brainstate.transform.StatefulFunction(run, return_only_write=False)
    lifted.make_jaxpr(xs)
    values = [state.value for state in lifted.get_states(xs)]
    compiled = jax.jit(lambda values, xs: lifted.jaxpr_call(values, xs)).lower(values, xs).compile()
    return compiled.memory_analysis().temp_size_in_bytes / 1e6


def main() -> None:
    """Print one table per model, and one of memory."""
    results: dict[str, Any] = {"threads": OPTIONS.threads, "models": {}, "memory": {}}
    for name, (cell, inputs, hidden, batch, steps, rules) in MODELS.items():
        if OPTIONS.only and name not in OPTIONS.only:
            continue
        xs = jax.random.normal(jax.random.key(0), (steps, batch, inputs))
        model = Net(brainstate, cell, inputs, hidden)
        contenders = {"BPTT": backpropagation(model, xs)}
        for rule in rules:
            contenders[rule] = online(etrace_engines, rule, model, xs)
            theirs = peer(rule, cell, inputs, hidden, xs)
            contenders |= {f"{rule} (braintrace)": theirs} if theirs else {}
        results["models"][name] = table = measure(contenders, xs)
        print(f"\n{name}, {steps} steps, {OPTIONS.threads} thread(s)")
        print(f"{'':34s}{'ms':>9s}{'/ BPTT':>9s}{'peer / ours':>13s}{'compile s':>11s}")
        for contender, row in table.items():
            ratio = f"{row['peer_to_ours']:13.1f}" if "peer_to_ours" in row else " " * 13
            print(
                f"{contender:34s}{row['milliseconds']:9.1f}{row['to_bptt']:9.2f}{ratio}{row['compile_seconds']:11.1f}"
            )
    print(f"\nTemporary memory, {SMALLEST}: megabytes at 200 and 2000 steps")
    for rule in [None, *RULES]:
        row = results["memory"][rule or "BPTT"] = [temporary_megabytes(rule, steps) for steps in (200, 2000)]
        print(f"{rule or 'BPTT':34s}{row[0]:9.2f}{row[1]:9.2f}")
    if OPTIONS.json:
        with open(OPTIONS.json, "w") as file:
            json.dump(results, file, indent=2)


if __name__ == "__main__":
    main()
