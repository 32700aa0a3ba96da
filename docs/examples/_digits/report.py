"""The demo's last words: one table on the terminal and one JSON file."""

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .cue import CueRun
from .ensemble import Outcome
from .online import Run

HEADINGS = ("experiment", "method", "result", "seconds", "memory")
PACKAGES = (
    "batched-optim",
    "etrace-config",
    "etrace-engines",
    "dni-synth",
    "torch",
    "jax",
    "brainstate",
    "scikit-learn",
)

Row = tuple[str, str, str, str, str]


def online_rows(runs: Sequence[Run]) -> list[Row]:
    """Return a row for every gradient on every task."""
    return [
        (
            f"GRU on {run.task}",
            run.method,
            f"{run.accuracy:.1%} of test digits",
            f"{run.seconds:.1f}",
            f"{run.temporary_bytes / 2**20:.2f} MiB",
        )
        for run in runs
    ]


def ensemble_rows(outcomes: Sequence[Outcome]) -> list[Row]:
    """Return a row for every fit of an ensemble."""
    return [
        (
            f"{len(outcome.rates)} x {outcome.family}",
            outcome.optimizer,
            f"{outcome.best:.1%} best, {outcome.vote:.1%} vote; resumed run "
            + ("bit-identical" if outcome.identical else "DIFFERS"),
            f"{outcome.seconds:.1f}",
            "",
        )
        for outcome in outcomes
    ]


def cue_rows(runs: Sequence[CueRun]) -> list[Row]:
    """Return a row for every way of crediting the cue."""
    return [("cue recall", run.method, f"loss {run.loss:.1e}", f"{run.seconds:.1f}", "") for run in runs]


def table(rows: Sequence[Row]) -> str:
    """Return the rows in aligned columns under the headings, with a rule wherever the experiment changes."""
    widths = [max(len(row[column]) for row in [HEADINGS, *rows]) for column in range(len(HEADINGS))]

    def line(row: Row) -> str:
        first, last = row[:3], row[3:]
        cells = [cell.ljust(width) for cell, width in zip(first, widths[:3], strict=True)]
        return "  ".join(cells + [cell.rjust(width) for cell, width in zip(last, widths[3:], strict=True)]).rstrip()

    rule = "  ".join("-" * width for width in widths)
    lines = [line(HEADINGS)]
    for above, row in zip([("",) * 5, *rows], rows, strict=False):
        lines += [rule] if above[0] != row[0] else []
        lines.append(line(row))
    return "\n".join(lines)


def write_json(path: Path, results: dict[str, Any]) -> None:
    """Write results, with the versions that produced them."""
    found = {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}
    path.write_text(json.dumps({"versions": found, **results}, indent=1, default=asdict) + "\n", encoding="utf-8")
