"""Every code block of the manual and of the READMEs runs, and prints what the page says.

A `python` block runs as it stands; a `text` block right after it holds what it prints (`...` matches anything).
A `pycon` block is a doctest. The blocks of a page share their names, in the order of the page.
"""

import contextlib
import doctest
import io
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(python|pycon)\n(.*?)^```$(?:\n+^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
PAGES = [
    path
    for pattern in ("README.md", "packages/*/README.md", "docs/**/*.md")
    for path in sorted(ROOT.glob(pattern))
    if "_build" not in path.parts and BLOCK.search(path.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_code_blocks_do_what_the_page_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "__main__"}

    for match in BLOCK.finditer(text):
        language, code, expected = match.groups()
        line = text.count("\n", 0, match.start()) + 1
        run_session(code, names, page, line) if language == "pycon" else run_program(code, names, page, line, expected)


def run_session(code: str, names: dict[str, Any], page: Path, line: int) -> None:
    """Run a doctest in `names` and keep what it defines there."""
    example = doctest.DocTestParser().get_doctest(code, names, page.name, str(page), line)
    report = io.StringIO()
    result = doctest.DocTestRunner(optionflags=OPTIONS).run(example, out=report.write, clear_globs=False)
    names.update(example.globs)

    assert result.failed == 0, report.getvalue()


def run_program(code: str, names: dict[str, Any], page: Path, line: int, expected: str | None) -> None:
    """Run a block in `names` and compare what it prints, if the page says what."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\n" * line + code, str(page), "exec"), names)

    if expected is not None:
        assert doctest.OutputChecker().check_output(expected, printed.getvalue(), OPTIONS), printed.getvalue()


@pytest.mark.parametrize(
    ("code", "expected"), [("print(1 + 1)", "3\n"), ("raise RuntimeError", None)], ids=["output", "error"]
)
def test_a_wrong_page_is_noticed(code: str, expected: str | None) -> None:
    with pytest.raises((AssertionError, RuntimeError)):
        run_program(code, {}, Path("page.md"), 1, expected)


def test_a_wrong_session_is_noticed() -> None:
    with pytest.raises(AssertionError):
        run_session(">>> 1 + 1\n3\n", {}, Path("page.md"), 1)
