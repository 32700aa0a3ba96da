"""The command `etrace-config`: list, show, check and explain configurations, and print the matrix."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ._codec import fields_in, parse_json, parse_toml, to_dict
from ._config import ETraceConfig, fields_of
from ._explain import explain
from ._presets import PRESETS, name_of
from ._rules import RULES, Violation

LEGAL, ILLEGAL = 0, 1  # argparse exits with 2 for bad usage


class Answer(NamedTuple):
    """What a command prints, as text and as JSON, and its exit status."""

    text: str
    data: Any  # Any: JSON values
    status: int = LEGAL


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0, 1 for an illegal configuration; bad usage exits with 2."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        answer: Answer = options.run(options)
    except UsageError as error:
        parser.error(str(error))
    print(json.dumps(answer.data, indent=2) if options.json else answer.text)
    return answer.status


class UsageError(Exception):
    """The command line asks for something that does not exist."""


def list_presets(options: argparse.Namespace) -> Answer:
    """Name every preset."""
    rows = [(name, _signature(preset), _summary(preset)) for name, preset in PRESETS.items()]
    width = max(len(signature) for _, signature, _ in rows)
    return Answer(
        "\n".join(f"{signature:{width}}  {summary}" for _, signature, summary in rows),
        [{"name": name, "signature": signature, "summary": summary} for name, signature, summary in rows],
    )


def show(options: argparse.Namespace) -> Answer:
    """Print the coordinate of a preset."""
    preset = PRESETS.get(options.name)
    if preset is None:
        raise UsageError(f"no preset is called {options.name!r}; choose from {', '.join(PRESETS)}")
    arguments = _parse_pairs(options.arguments)
    try:
        inspect.signature(preset).bind(**arguments)
    except TypeError as error:
        raise UsageError(f"{error}; {_signature(preset)} takes its arguments as name=value") from error
    try:
        config = preset(**arguments)
    except (TypeError, ValueError) as error:
        return _refusal([Violation("-", "value", str(error))])
    fields = [f"{name:20}{value!r}" for name, value in fields_of(config)._asdict().items()]
    return Answer("\n".join([_summary(preset), *fields]), to_dict(config))


def check(options: argparse.Namespace) -> Answer:
    """Judge the configuration in a file."""
    path = Path(options.file)
    parse: Callable[[str], Any] | None = {".json": parse_json, ".toml": parse_toml}.get(path.suffix.lower())
    if parse is None:
        raise UsageError(f"cannot tell the format of {options.file!r}; name the file *.json or *.toml")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {options.file!r}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        return _refusal([Violation("-", "document", f"The file is not UTF-8 text: {error}.")])
    try:
        fields = fields_in(parse(text))
    except (TypeError, ValueError) as error:
        return _refusal([Violation("-", "document", str(error))])
    return _verdict(fields)


def show_rules(options: argparse.Namespace) -> Answer:
    """Print the compatibility matrix."""
    return Answer(
        "\n".join(f"{rule.number:>2}  {rule.rejects}\n    because {rule.because}" for rule in RULES),
        [{name: getattr(rule, name) for name in ("number", "name", "rejects", "because", "instead")} for rule in RULES],
    )


def explain_fields(options: argparse.Namespace) -> Answer:
    """Judge the fields given on the command line."""
    return _verdict(_parse_pairs(options.fields))


def _verdict(fields: dict[str, Any]) -> Answer:
    """Return the coordinate of the fields, or every rule they violate."""
    found = explain(**fields)
    if found:
        return _refusal(found)
    config = ETraceConfig(**fields)
    preset = name_of(config)
    return Answer(
        f"legal: {config.describe()}" + (f" ({preset})" if preset else ""),
        {"legal": True, "preset": preset, "config": to_dict(config), "violations": []},
    )


def _refusal(found: Iterable[Violation]) -> Answer:
    """Return the answer for an illegal configuration."""
    return Answer(
        "\n".join(f"rule {v.number}: {v.message}" if v.number != "-" else v.message for v in found),
        {"legal": False, "preset": None, "config": None, "violations": [v._asdict() for v in found]},
        ILLEGAL,
    )


def _signature(preset: Callable[..., ETraceConfig]) -> str:
    """Return a preset's name and parameters, without their types."""
    parameters = [p.replace(annotation=p.empty) for p in inspect.signature(preset).parameters.values()]
    return f"{preset.__name__}{inspect.Signature(parameters)}"


def _summary(preset: Callable[..., ETraceConfig]) -> str:
    """Return what a preset is, from the first line of its docstring."""
    return (inspect.getdoc(preset) or "").partition("\n")[0].removeprefix("Return ")


def _parse_pairs(pairs: Iterable[str]) -> dict[str, Any]:
    """Return the values of `name=value` arguments; a comma makes a pair."""
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise UsageError(f"expected name=value, got {pair!r}")
        if name in values:
            raise UsageError(f"{name!r} is given more than once")
        values[name] = tuple(map(_parse_value, text.split(","))) if "," in text else _parse_value(text)
    return values


def _parse_value(text: str) -> int | float | str:
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the five commands."""
    parser = argparse.ArgumentParser(
        prog="etrace-config",
        description="Learning rules as points in a space of axes.",
        epilog="Exit status: 0 if all is well, 1 for an illegal configuration, 2 for bad usage.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: Callable[[argparse.Namespace], Answer]) -> argparse.ArgumentParser:
        summary = inspect.getdoc(run) or ""
        command = commands.add_parser(name, help=summary, description=summary)
        command.add_argument("--json", action="store_true", help="print JSON")
        command.set_defaults(run=run)
        return command

    add("list", list_presets)
    showing = add("show", show)
    showing.add_argument("name", metavar="NAME", help="a preset")
    showing.add_argument("arguments", nargs="*", metavar="name=value", help="its arguments")
    add("check", check).add_argument("file", metavar="FILE", help="a .json or .toml file")
    add("rules", show_rules)
    add("explain", explain_fields).add_argument("fields", nargs="*", metavar="name=value", help="fields; a,b is a pair")
    return parser


if __name__ == "__main__":
    sys.exit(main())
