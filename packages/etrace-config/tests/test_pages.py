"""The manual's tables are the data's, and its examples run."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from etrace_config import _tables

PACKAGE = Path(__file__).parents[1]
DOCS = PACKAGE.parents[1] / "docs" if len(PACKAGE.parents) > 1 else PACKAGE
AXES_PAGE = DOCS / "concepts" / "axes.md"

in_tree = pytest.mark.skipif(not AXES_PAGE.exists(), reason="an installed wheel is tested without the manual")


@in_tree
def test_tables_of_the_axes_page_are_printed_from_the_data() -> None:
    page = AXES_PAGE.read_text(encoding="utf-8")

    assert all(f"<!-- table {name} -->" in page for name in _tables.TABLES)
    assert page == _tables.fill(page), "run `python -m etrace_config._tables docs/concepts/axes.md`"


def test_stale_table_is_replaced() -> None:
    page = "before\n<!-- table cost -->\n| stale |\n<!-- end -->\nafter\n"

    filled = _tables.fill(page)

    assert filled == f"before\n<!-- table cost -->\n\n{_tables.cost_table()}\n\n<!-- end -->\nafter\n"


@in_tree
@pytest.mark.parametrize(
    "page", [PACKAGE / "README.md", DOCS / "packages" / "etrace-config.md"], ids=["readme", "manual"]
)
def test_examples_run(page: Path) -> None:
    result = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)

    assert result.attempted > 0
    assert result.failed == 0
