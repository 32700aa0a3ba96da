"""What an import costs, and that nothing hangs on `assert`."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import etrace_config

SOURCE = Path(etrace_config.__file__).parent
BUDGET_MS = 50.0
SLOW_MACHINE = 2.0  # or this many times the modules that every dataclass needs, where these alone take over 25 ms

IMPORTED = """
import sys
before = set(sys.modules)
import {module}
import json
print(json.dumps(sorted({{name.partition(".")[0] for name in set(sys.modules) - before}})))
"""
TIMED = """
import time
start = time.process_time()
import {module}
print(1e3 * (time.process_time() - start))
"""


def in_fresh_interpreter(code: str, *options: str) -> str:
    result = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, check=True)
    return result.stdout


def third_party_imports(module: str) -> set[str]:
    """Return the top-level modules outside the standard library that an import pulls in."""
    imported = set(json.loads(in_fresh_interpreter(IMPORTED.format(module=module))))
    return imported - set(sys.stdlib_module_names) - {"etrace_config"}


def import_ms(module: str) -> float:
    return float(in_fresh_interpreter(TIMED.format(module=module)))


def is_within_budget(module: str) -> bool:
    """Return whether one of a few imports is: other work on the machine only ever adds time."""
    return any(import_ms(module) < max(BUDGET_MS, SLOW_MACHINE * import_ms("dataclasses, typing")) for _ in range(8))


def asserts_in(source: str) -> int:
    return sum(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(source)))


def test_import_pulls_in_the_standard_library_only() -> None:
    assert third_party_imports("etrace_config") == set()


def test_third_party_imports_are_seen() -> None:
    assert "numpy" in third_party_imports("numpy")


def test_import_stays_within_its_budget() -> None:
    assert is_within_budget("etrace_config")


def test_slow_import_is_seen() -> None:
    assert not is_within_budget("numpy, unittest.mock, asyncio, http.server")


def test_source_has_no_assert() -> None:
    assert {
        path.name: asserts_in(path.read_text()) for path in SOURCE.glob("*.py") if asserts_in(path.read_text())
    } == {}


def test_assert_is_seen() -> None:
    assert asserts_in("def f(x):\n    assert x > 0") == 1


def test_optimised_interpreter_runs_the_rules_and_values() -> None:
    here = Path(__file__).parent
    tests = [str(here / name) for name in ("test_rules.py", "test_values.py", "test_canonical.py", "test_config.py")]

    quiet = ["-W", "ignore:assertions not in test modules"]  # pytest rewrites those of test modules, so they still work

    result = subprocess.run(
        [sys.executable, "-O", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not jax", *quiet, *tests],
        capture_output=True,
        text=True,
        cwd=here,
    )

    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("name", etrace_config.__all__)
def test_public_name_exists(name: str) -> None:
    assert hasattr(etrace_config, name)


def test_public_names_are_sorted_and_complete() -> None:
    public = [name for name in vars(etrace_config) if not name.startswith("_")]

    assert set(etrace_config.__all__) == {*public, "__version__"}
