"""Print the tables of the documentation from the data: `python -m etrace_config._tables PAGE` rewrites a page."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from ._axes import AXES, COEFFICIENTS
from ._coordinates import legal_coordinates
from ._cost import TRACE_ELEMENTS
from ._presets import PRESETS
from ._rules import RULES

#: The arguments with which the page shows each preset that needs one.
SHOWN = {"pp_prop": (0.9,), "es_d_rtrl": (0.9,), "eprop": (0.8,), "snap": (2,)}


def axes_table() -> str:
    """Return the vocabulary of the axes."""
    rows = [(f"`{axis}`", f"`{value}`", meaning) for axis, values in AXES.items() for value, meaning in values.items()]
    return _markdown(("axis", "value", "meaning"), rows)


def coefficients_table() -> str:
    """Return the coefficients with their ranges and categories."""
    rows = [(f"`{name}`", c.legal, f"`{c.axis}={c.value!r}`") for name, c in COEFFICIENTS.items()]
    return _markdown(("coefficient", "range", "category"), rows)


def rules_table() -> str:
    """Return the compatibility matrix."""
    rows = [(rule.number, rule.rejects, rule.because, rule.instead) for rule in RULES]
    return _markdown(("rule", "rejects", "because", "instead"), rows)


def presets_table() -> str:
    """Return the presets with their coordinates."""
    shown = {name: SHOWN.get(name, ()) for name in PRESETS}
    rows = [
        (f"`{name}({', '.join(map(repr, arguments))})`", f"`{PRESETS[name](*arguments).describe()}`")
        for name, arguments in shown.items()
    ]
    return _markdown(("preset", "coordinate"), rows)


def cost_table() -> str:
    """Return the size of the trace by factorization, with the number of legal coordinates."""
    counts = dict.fromkeys(TRACE_ELEMENTS, 0)
    for config in legal_coordinates():
        counts[config.trace_factorization] += 1
    rows = [(f"`{name}`", f"`{formula}`", str(counts[name])) for name, formula in TRACE_ELEMENTS.items()]
    return _markdown(("factorization", "numbers in the trace", "legal coordinates"), rows)


TABLES: Mapping[str, Callable[[], str]] = {
    "axes": axes_table,
    "coefficients": coefficients_table,
    "rules": rules_table,
    "presets": presets_table,
    "cost": cost_table,
}


def fill(page: str) -> str:
    """Return a page with the text between `<!-- table NAME -->` and `<!-- end -->` replaced by that table."""
    return re.sub(
        r"(<!-- table (\w+) -->\n).*?(<!-- end -->)",
        lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n\n{found[3]}",
        page,
        flags=re.DOTALL,
    )


def _markdown(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ("---",) * len(header), *rows))


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(fill(path.read_text(encoding="utf-8")), encoding="utf-8")
