"""The command: what it prints and its exit status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from etrace_config import PRESETS, RULES, ETraceConfig, explain, from_dict, pp_prop, to_json
from etrace_config._cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Return the exit status and what is printed on standard output."""
    status = main(arguments)
    return status, capsys.readouterr().out


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    status, out = run(capsys, *arguments, "--json")
    return status, json.loads(out)


def usage_error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the message of a command that ends with status 2."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    return capsys.readouterr().err


def test_list_names_every_preset_with_its_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(capsys, "list")

    assert status == 0
    assert [line.partition("(")[0] for line in out.splitlines()] == list(PRESETS)
    assert "ostl_feedforward(decay_or_rank=1e-06)  OSTL for feed-forward layers" in out


def test_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    status, rows = run_json(capsys, "list")

    assert status == 0
    assert rows[0]["name"] == rows[0]["signature"].partition("(")[0] == "d_rtrl"
    assert rows[0]["summary"].startswith("D-RTRL: ")


def test_show_prints_the_ten_fields(capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(capsys, "show", "pp_prop", "decay_or_rank=19")

    lines = out.splitlines()
    assert status == 0
    assert lines[0].startswith("pp-prop")
    assert [line.split()[0] for line in lines[1:]] == list(ETraceConfig.__match_args__)
    assert lines[7].split(maxsplit=1) == ["decay", "(0.9, 0.9)"]


def test_show_as_json_is_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    status, document = run_json(capsys, "show", "pp_prop", "decay_or_rank=0.9,3")

    assert status == 0
    assert from_dict(document) == pp_prop((0.9, 3))


def test_show_with_an_illegal_argument_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(capsys, "show", "eprop", "kappa=1.5")

    assert (status, out) == (1, "`kappa` must lie in [0, 1), got 1.5.\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "COMMAND"),
        (["frobnicate"], "invalid choice: 'frobnicate'"),
        (["show", "bptt"], "no preset is called 'bptt'; choose from d_rtrl, pp_prop"),
        (["show", "snap"], "missing a required argument: 'n'; snap(n) takes its arguments as name=value"),
        (["show", "snap", "m=2"], "snap(n) takes its arguments as name=value"),
        (["show", "snap", "2"], "expected name=value, got '2'"),
        (["explain", "=2"], "expected name=value, got '=2'"),
        (["explain", "kappa=0.1", "kappa=0.2"], "'kappa' is given more than once"),
        (["check", "rule.yaml"], "cannot tell the format of 'rule.yaml'; name the file *.json or *.toml"),
        (["check", "no-such-file.json"], "cannot read 'no-such-file.json': No such file or directory"),
    ],
)
def test_bad_usage_is_status_2(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert message in usage_error(capsys, *arguments)


DOCUMENTS = {
    "rule.json": to_json(pp_prop(0.9)),
    "rule.toml": 'trace_factorization = "io_factorized"\ndecay = 0.9\n',
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_check_accepts_a_legal_file(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(DOCUMENTS[name])

    status, out = run(capsys, "check", str(tmp_path / name))

    assert (status, out) == (0, f"legal: {pp_prop(0.9).describe()} (pp_prop)\n")


def test_check_reports_every_violation_of_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "rule.toml"
    path.write_text('trace_factorization = "io_factorized"\nkappa = 0.5\n')

    status, answer = run_json(capsys, "check", str(path))

    assert status == 1
    assert not answer["legal"]
    assert [violation["number"] for violation in answer["violations"]] == ["6", "7"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rule.json", b"{", "line 1 column 2"),
        ("rule.json", b"[]", "must be a mapping"),
        ("rule.json", b'{"schema_version": 9}', "`schema_version` must be 1, got 9"),
        ("rule.json", b'{"kapa": 1}', "did you mean 'kappa'?"),
        ("rule.toml", b"kappa", "Expected '='"),
        ("rule.toml", b"\xff", "not UTF-8"),
    ],
    ids=["json", "list", "schema", "key", "toml", "binary"],
)
def test_check_refuses_a_bad_document(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)

    status, out = run(capsys, "check", str(tmp_path / name))

    assert status == 1
    assert message in out


def test_rules_prints_the_matrix(capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(capsys, "rules")

    assert status == 0
    assert all(f"{rule.number:>2}  {rule.rejects}\n    because {rule.because}\n" in out for rule in RULES)


def test_rules_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    status, rows = run_json(capsys, "rules")

    assert status == 0
    assert [row["name"] for row in rows] == [rule.name for rule in RULES]


def test_explain_names_the_preset(capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(capsys, "explain", "recurrence_scope=sparse_n", "sparse_n=1")

    assert (status, out) == (0, "legal: recurrence_scope='coupled' (ostl_recurrent)\n")


def test_explain_without_a_preset(capsys: pytest.CaptureFixture[str]) -> None:
    status, answer = run_json(capsys, "explain", "update_schedule=sequence_end")

    assert status == 0
    assert answer == {
        "legal": True,
        "preset": None,
        "config": {"schema_version": 1, "update_schedule": "sequence_end"},
        "violations": [],
    }


def test_explain_prints_every_violation(capsys: pytest.CaptureFixture[str]) -> None:
    fields = {"temporal_recursion": ("none", "jacobian"), "decay": 0.9, "window_size": 3}

    status, out = run(capsys, "explain", "temporal_recursion=none,jacobian", "decay=0.9", "window_size=3")

    assert status == 1
    assert out.splitlines() == [f"rule {v.number}: {v.message}" for v in explain(**fields)]
