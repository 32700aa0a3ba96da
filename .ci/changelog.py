"""Gather the fragments of `changelog.d/` into CHANGELOG.md; `--check` only looks at their names.

A fragment is named `<id>.<package>.<kind>.md` and holds one sentence from the user's side. The id keeps names
apart (a pull request's number, a word), the package is one of ours or `all`.
"""

import sys
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[1]
FRAGMENTS = ROOT / "changelog.d"
CHANGELOG = ROOT / "CHANGELOG.md"
KINDS = ("added", "changed", "fixed", "removed")
PACKAGES = ("all", *sorted(path.name for path in (ROOT / "packages").iterdir()))


def fragments() -> dict[tuple[str, str], list[Path]]:
    """Return the fragments by package and kind; a misnamed or empty one is an error."""
    found: dict[tuple[str, str], list[Path]] = {}
    for path in sorted(FRAGMENTS.glob("*.md")):
        parts = path.name.split(".")
        if len(parts) != 4 or parts[1] not in PACKAGES or parts[2] not in KINDS:
            sys.exit(f"{path.name}: expected <id>.<{'|'.join(PACKAGES)}>.<{'|'.join(KINDS)}>.md")
        if not path.read_text(encoding="utf-8").strip():
            sys.exit(f"{path.name} is empty: write one sentence from the user's side")
        found.setdefault((parts[1], parts[2]), []).append(path)
    return found


def section(version: str, found: dict[tuple[str, str], list[Path]]) -> str:
    """Return the changelog's part about one version."""
    lines = [f"## {version} ({date.today().isoformat()})", ""]
    for package in PACKAGES:
        kinds = [kind for kind in KINDS if (package, kind) in found]
        lines += [f"### {package}", ""] if kinds else []
        for kind in kinds:
            texts = [path.read_text(encoding="utf-8").strip() for path in found[package, kind]]
            lines += [f"**{kind.capitalize()}**", "", *(f"- {text}" for text in texts), ""]
    return "\n".join(lines)


def main(argument: str) -> None:
    """Check the fragments, or move them into the section of the version that is given."""
    found = fragments()
    if argument == "--check":
        return
    title, _, earlier = CHANGELOG.read_text(encoding="utf-8").partition("\n")
    parts = (title, section(argument, found).strip(), earlier.strip())
    CHANGELOG.write_text("\n\n".join(filter(None, parts)) + "\n", encoding="utf-8")
    for paths in found.values():
        for path in paths:
            path.unlink()


if __name__ == "__main__":
    main(*sys.argv[1:])
