"""Train on handwritten digits with all four packages, in a few minutes on two cores.

(a) a GRU learns online by D-RTRL and pp-prop, beside backpropagation through time;
(b) two ensembles of 64 small classifiers, every member at its own learning rate, are fitted by each optimizer,
    saved half-way and resumed in a new process;
(c) a network remembers a cue over six windows because synthetic gradients carry credit across them.

Run `python docs/examples/digits.py`; plots and `results.json` go to `demo-output/`.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from _digits import cue, ensemble, figures, online, report
from tqdm import tqdm

TASKS = (online.ROWS, online.PIXELS)
LENGTHS = (64, 512, 4096)


def bar(title: str, total: int) -> tqdm:
    """Return a progress bar for one experiment."""
    layout = "{desc} {percentage:3.0f}% |{bar:20}| {elapsed}{postfix}"
    seconds = 0.1 if sys.stderr.isatty() else 10  # a log keeps every line
    return tqdm(total=total, desc=title, bar_format=layout, mininterval=seconds)


def run_online(out: Path) -> tuple[list[report.Row], dict[str, Any]]:
    """Run experiment (a)."""
    methods = online.METHODS
    with bar("(a) online learning", len(methods) * (sum(task.epochs for task in TASKS) + len(LENGTHS))) as progress:
        runs = [online.train(task, method, progress) for task in TASKS for method in methods]
        memory = online.memory_by_length(LENGTHS, progress)
    figures.learning_curves(runs, out / "learning_curves.png")
    figures.memory(LENGTHS, memory, out / "memory.png")
    return report.online_rows(runs), {"online": runs, "memory": {"steps": LENGTHS, "bytes": memory}}


def run_ensembles(out: Path) -> tuple[list[report.Row], dict[str, Any]]:
    """Run experiment (b)."""
    with bar("(b) ensembles", sum(fit.steps for fit in ensemble.FITS)) as progress:
        outcomes = ensemble.run_all(out / "checkpoints", Path(__file__), progress)
    figures.ensembles(outcomes, out / "ensembles.png")
    return report.ensemble_rows(outcomes), {"ensembles": outcomes}


def run_cue(out: Path) -> tuple[list[report.Row], dict[str, Any]]:
    """Run experiment (c)."""
    with bar("(c) cue recall", len(cue.METHODS) * (cue.UPDATES // cue.REPORT)) as progress:
        runs = [cue.train(method, progress) for method in cue.METHODS]
    figures.cue_recall(runs, out / "dni.png")
    return report.cue_rows(runs), {"cue": runs}


EXPERIMENTS = {"online": run_online, "ensembles": run_ensembles, "cue": run_cue}


def main() -> None:
    """Run the chosen experiments, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiments", nargs="*", choices=[[], *EXPERIMENTS], help="which to run; all by default")
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="folder for plots and results")
    parser.add_argument("--resume", type=Path, help=argparse.SUPPRESS)  # the new process of experiment (b)
    options = parser.parse_args()
    if options.resume:
        ensemble.resume_all(options.resume)
        return

    started = time.perf_counter()
    options.out.mkdir(parents=True, exist_ok=True)
    rows, results = [], {}
    for name in options.experiments or EXPERIMENTS:
        more_rows, more_results = EXPERIMENTS[name](options.out)
        rows += more_rows
        results |= more_results
    seconds = time.perf_counter() - started
    report.write_json(options.out / "results.json", {"seconds": round(seconds, 1), **results})
    print(f"\n{report.table(rows)}\n\nin {seconds:.0f} s; plots and results.json are in {options.out}/")


if __name__ == "__main__":
    main()
