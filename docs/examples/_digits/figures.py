"""The demo's pictures, one function each; all take plain results and write one PNG."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

from .cue import GOAL, REPORT, CueRun
from .ensemble import Outcome
from .online import Run

# Distinguishable in the common colour vision deficiencies (Okabe and Ito).
COLOURS = {
    "BPTT": "#000000",
    "D-RTRL": "#0072B2",
    "pp-prop": "#E69F00",
    "DNI": "#0072B2",
    "truncated": "#D55E00",
    "sgd": "#E69F00",
    "adam": "#0072B2",
    "lbfgs": "#009E73",
}
FAMILIES = {"polynomial": "second-degree polynomials", "rbf": "radial basis functions"}
TITLES = {"rows": "8 steps of one row", "pixels": "64 steps of one pixel"}
STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "legend.frameon": False,
    "figure.dpi": 110,
    "savefig.bbox": "tight",
}


def save(figure: plt.Figure, path: Path) -> None:
    """Write the figure and let go of its memory."""
    figure.savefig(path)
    plt.close(figure)


def learning_curves(runs: Sequence[Run], path: Path) -> None:
    """Plot test accuracy against epochs, one panel a task."""
    with plt.rc_context(STYLE):
        tasks = list(dict.fromkeys(run.task for run in runs))
        figure, axes = plt.subplots(1, len(tasks), figsize=(5 * len(tasks), 3.6), sharey=True, squeeze=False)
        for task, ax in zip(tasks, axes[0], strict=True):
            for run in (run for run in runs if run.task == task):
                label = f"{run.method}: {run.accuracy:.1%}"
                ax.plot(range(1, len(run.curve) + 1), run.curve, color=COLOURS[run.method], label=label)
            ax.set(title=TITLES[task], xlabel="epoch", ylim=(0, 1))
            ax.legend(loc="lower right", title="at the end")
        axes[0][0].set_ylabel("test accuracy")
        figure.suptitle("The same GRU on handwritten digits, trained by three kinds of gradient", y=1.02)
        save(figure, path)


def memory(lengths: Sequence[int], measured: dict[str, list[int]], path: Path) -> None:
    """Plot the scratch memory of one gradient against the length of the sequence."""
    with plt.rc_context(STYLE):
        figure, ax = plt.subplots(figsize=(6, 3.8))
        for method, sizes in measured.items():
            ax.plot(lengths, [size / 2**20 for size in sizes], marker="o", color=COLOURS[method], label=method)
        ax.set(xlabel="steps in the sequence", ylabel="temporary memory (MiB)", xscale="log", yscale="log")
        ax.set_xticks(lengths, [str(length) for length in lengths])
        ax.minorticks_off()
        ax.set_title("Memory of one gradient, as compiled")
        ax.legend()
        save(figure, path)


def ensembles(outcomes: Sequence[Outcome], path: Path) -> None:
    """Plot losses over the steps, and what each member reached against its learning rate; one column a family."""
    with plt.rc_context(STYLE):
        families = list(dict.fromkeys(outcome.family for outcome in outcomes))
        figure, axes = plt.subplots(2, len(families), figsize=(5 * len(families), 6.6), squeeze=False, sharey="row")
        for (above, below), family in zip(axes.T, families, strict=True):
            for outcome in (outcome for outcome in outcomes if outcome.family == family):
                colour = COLOURS[outcome.optimizer]
                above.plot(outcome.best_loss, color=colour, label=f"{outcome.optimizer}, best member")
                above.plot(outcome.median_loss, color=colour, linestyle="--", label="median member")
                below.scatter(outcome.rates, outcome.accuracy, s=14, color=colour, label=outcome.optimizer)
            above.set(title=FAMILIES[family], xlabel="step", ylim=(0, None))
            below.set(xlabel="the member's learning rate", xscale="log", ylim=(0, 1))
        axes[0][0].set_ylabel("training loss")
        axes[1][0].set_ylabel("the member's test accuracy")
        axes[0][0].legend(loc="lower right", ncols=len(outcomes) // len(families), fontsize="x-small")
        axes[1][0].legend(loc="lower right")
        figure.suptitle("64 members, one optimizer: every member has its own learning rate")
        figure.tight_layout()
        save(figure, path)


def cue_recall(runs: Sequence[CueRun], path: Path) -> None:
    """Plot the loss of the cue task with and without synthetic gradients."""
    labels = {
        "truncated": "windows of 4, DNI off",
        "DNI": "windows of 4, DNI on",
        "BPTT": "one window of 24 (BPTT)",
    }
    floor = 1e-9  # where float32 has nothing more to say about a loss of order 1
    with plt.rc_context(STYLE):
        figure, ax = plt.subplots(figsize=(6, 3.8))
        for run in runs:
            updates = [REPORT * (point + 1) for point in range(len(run.curve))]
            shown = [max(loss, floor) for loss in run.curve]
            ax.plot(updates, shown, color=COLOURS[run.method], label=f"{labels[run.method]}: {run.loss:.1e}")
        ax.axhline(GOAL**2, color="#888888", linewidth=1, linestyle=":")
        ax.annotate("chance", (0, GOAL**2), xytext=(2, 4), textcoords="offset points", color="#666666")
        ax.set(xlabel="update", ylabel="loss at the last step", yscale="log", ylim=(floor / 3, 30))
        ax.set_title("A cue at step 1, judged at step 24")
        ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), title="loss at the end")
        save(figure, path)
