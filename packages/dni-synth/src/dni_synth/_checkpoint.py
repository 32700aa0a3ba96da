"""A fitted synthesiser and its signature in one safetensors file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import brainstate
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ._fit.separate import attached
from ._signature import Fitted, Signature
from ._window import Injection

FORMAT = "dni-synth/1"


def save_synthesizer(learner: Any, path: str | os.PathLike[str]) -> None:
    """Write the attached synthesiser and the signature of its fit to one file.

    Parameters
    ----------
    learner : DNI
        A compiled learner with a synthesiser attached.
    path : path-like
        Where to; a file that is there is replaced once the new one is complete.

    Raises
    ------
    RuntimeError
        If no synthesiser is attached.

    Notes
    -----
    The file holds parameters and running statistics, the number of joint-fit calls, the signature, and a SHA-256 of
    all arrays, since the format itself has no checksum. The state of an optimizer is not in it.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import brainstate, jax.numpy as jnp, etrace_engines, dni_synth
    >>> model = brainstate.nn.ValinaRNNCell(2, 4)
    >>> learner = etrace_engines.compile(model, dni_synth.DNI, jnp.ones((1, 2)), batch_size=1)
    >>> learner.attach(dni_synth.Affine())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     dni_synth.save_synthesizer(learner, pathlib.Path(folder, "affine.safetensors"))
    ...     dni_synth.load_synthesizer(learner, pathlib.Path(folder, "affine.safetensors"))
    """
    injection = attached(learner)
    arrays = {f"state/{name}": np.asarray(state.value) for name, state in stored_states(injection).items()}
    metadata = {"format": FORMAT, "synthesizer": type(injection.synthesizer).__name__, "signature": "null"}
    fitted: Fitted | None = injection.fitted
    if fitted is not None:
        metadata["signature"] = fitted.signature.to_json()
        arrays["fit/digest"] = np.asarray(injection.digest.value)
        probes = {"window": fitted.signature.window_probe, "step": fitted.signature.step_probe}
        arrays |= {f"fit/{name}_probe": probe for name, probe in probes.items() if probe is not None}
    metadata["sha256"] = checksum(arrays, metadata["signature"])
    target = Path(path)
    part = target.with_name(target.name + ".part")
    save_file({name: np.asarray(array, order="C") for name, array in arrays.items()}, part, metadata=metadata)
    part.replace(target)


def load_synthesizer(learner: Any, path: str | os.PathLike[str]) -> None:
    """Give the attached synthesiser the parameters and the signature of a file.

    Parameters
    ----------
    learner : DNI
        A compiled learner with a synthesiser of the saved kind attached.
    path : path-like
        A file that `save_synthesizer` wrote.

    Raises
    ------
    RuntimeError
        If no synthesiser is attached.
    ValueError
        If the file is corrupted or of another format, or its parameters do not fit; the learner is then as before.
    """
    injection = attached(learner)
    arrays, metadata = read(path)
    states = stored_states(injection)
    check_fit(path, arrays, metadata, injection, states)
    for name, state in states.items():
        state.value = jnp.asarray(arrays[f"state/{name}"])
    injection.fitted = None
    if metadata["signature"] != "null":
        probes = arrays.get("fit/window_probe"), arrays.get("fit/step_probe")
        injection.fitted = Fitted(Signature.from_json(metadata["signature"], *probes))
        injection.digest.value = arrays["fit/digest"]


def stored_states(injection: Injection) -> dict[str, brainstate.State]:
    """Return the states that a file holds, by name."""
    statistics: dict[str, brainstate.State] = getattr(injection.synthesizer, "statistics_dict", dict)()
    return {**injection.synthesizer.states_dict(), **statistics, "calls": injection.calls}


def read(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return a file's arrays and metadata, or refuse it."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = dict(file.metadata() or {})
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
    except SafetensorError as error:
        raise ValueError(f"`path` is not a readable safetensors file: {os.fspath(path)} ({error}).") from error
    if metadata.get("format") != FORMAT:
        raise ValueError(
            f"`path` must hold the format {FORMAT!r}, got {metadata.get('format')!r} in {os.fspath(path)}."
        )
    if metadata.get("sha256") != checksum(arrays, metadata.get("signature", "")):
        raise ValueError(f"`path` is corrupted: the checksum of {os.fspath(path)} does not match its arrays.")
    return arrays, metadata


def check_fit(
    path: str | os.PathLike[str],
    arrays: Mapping[str, np.ndarray],
    metadata: Mapping[str, str],
    injection: Injection,
    states: Mapping[str, brainstate.State],
) -> None:
    """Refuse a file of another kind of synthesiser or of other hidden groups."""
    kind = type(injection.synthesizer).__name__
    have = {name.removeprefix("state/"): array.shape for name, array in arrays.items() if name.startswith("state/")}
    need = {name: tuple(state.value.shape) for name, state in states.items()}
    if metadata["synthesizer"] != kind or have != need:
        raise ValueError(
            f"`path` holds {metadata['synthesizer']} parameters {have}, but the learner's {kind} has {need}. Attach a "
            f"synthesiser of the saved kind to a model of the saved shape, {os.fspath(path)}."
        )


def checksum(arrays: Mapping[str, np.ndarray], signature: str) -> str:
    """Return the SHA-256 of names, types, shapes, bytes and signature."""
    digest = hashlib.sha256(signature.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(json.dumps([name, str(array.dtype), array.shape]).encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
