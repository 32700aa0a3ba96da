"""Draw the pictures of the architecture page: `python docs/pictures.py` writes `docs/_static/architecture/*.svg`.

A picture is a column of steps: what happens on the left, the module that does it on the right.
"""

from pathlib import Path

FOLDER = Path(__file__).parent / "_static" / "architecture"
WIDTH, HEIGHT, GAP = 830, 58, 26

PICTURES: dict[str, tuple[str, list[tuple[str, str, str]]]] = {
    "etrace-config": (
        "#7a5bbf",
        [
            ("fields", "keywords, a dict, JSON, TOML or a preset", "_codec, _presets, _cli"),
            ("values", "each field by itself: legal words, ranges, plain numbers", "_axes, _values"),
            ("canonical form", "equal rules get equal fields", "_canonical"),
            ("matrix", "the table of rules refuses what is no rule", "_rules"),
            ("ETraceConfig", "a frozen, hashable coordinate", "_config"),
        ],
    ),
    "etrace-engines": (
        "#0072B2",
        [
            ("model", "a brainstate module's update, as one flat jaxpr", "_graph/lift"),
            ("relations", "where a weight meets data: y = op(x, w)", "_graph/relations, _ops/"),
            (
                "groups and positions",
                "which states belong together, which of them y reaches",
                "_graph/groups, positions",
            ),
            ("step", "values of the model, with taps at every y and new h", "_graph/evaluate, _learner/step"),
            ("D and Df", "dh/dh of the last step, dh/dy, as the scope says", "_jacobian/"),
            ("trace", "e' = R e + x Df, in the form of the factorization", "_engine/, _trace/"),
            ("gradient", "the signal meets the trace, then the weight's own cone", "_learner/signals, _engine/"),
            ("sequence", "gradients summed, a chunk of steps or a window at a time", "_sequence/"),
        ],
    ),
    "dni-synth": (
        "#D55E00",
        [
            ("window's end", "the hidden states, cut off from what follows", "_sequence"),
            ("estimate", "c = M(h, context), zero where an episode is done", "_synthesisers/"),
            ("injection", "c joins the cotangent of the plain uses", "_window, _credit"),
            ("gradient", "of the window's loss plus <c, h>", "_learner"),
            ("target", "the gradient at the entry: what M should have said", "_targets"),
            ("regression", "one step of M on it, or a closed form", "_fit/"),
            ("report", "estimates beside the true gradients", "_quality, _check, _signature"),
        ],
    ),
    "batched-optim": (
        "#009E73",
        [
            ("gradients", "dict of tensors (members, ...)", "_ensemble"),
            ("rows", "one row a member; shared parameters and masks", "_members"),
            ("clipping", "by value, then by norm, each row", "_clip"),
            ("averages", "of shared parameters, over active members and ranks", "_shared, _distributed"),
            ("update", "the formula on rows", "_sgd, _adam, _lbfgs"),
            ("state", "momentum, moments, curvature pairs", "_buffers, _compact"),
            ("new parameters", "a new dict; the file holds all of it", "_ensemble, _checkpoint"),
        ],
    ),
}


def draw(color: str, steps: list[tuple[str, str, str]]) -> str:
    """Return one picture as SVG."""
    total = len(steps) * (HEIGHT + GAP) - GAP + 20
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total}" font-family="system-ui, sans-serif">',
        f'<rect width="{WIDTH}" height="{total}" rx="12" fill="#fff"/>',
    ]
    for number, (name, what, where) in enumerate(steps):
        top = 10 + number * (HEIGHT + GAP)
        what = what.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        lines += [
            f'<rect x="10" y="{top}" width="520" height="{HEIGHT}" rx="9" fill="{color}" fill-opacity=".1" '
            f'stroke="{color}" stroke-width="2"/>',
            f'<text x="26" y="{top + 24}" font-size="16" font-weight="600" fill="#123">{name}</text>',
            f'<text x="26" y="{top + 45}" font-size="14" fill="#345">{what}</text>',
            f'<text x="548" y="{top + 34}" font-size="13" font-family="monospace" fill="#345">{where}</text>',
        ]
        if number:
            tip = top - 3
            lines += [
                f'<path d="M270 {top - GAP + 2}V{tip - 6}" stroke="#445" stroke-width="2"/>',
                f'<path d="M264 {tip - 8}H276L270 {tip}Z" fill="#445"/>',
            ]
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    """Write every picture."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, (color, steps) in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw(color, steps), encoding="utf-8")


if __name__ == "__main__":
    main()
