"""The function form of attaching."""

from __future__ import annotations

from typing import Any

from ._learner import DNI
from ._protocol import Synthesizer


def attach(learner: DNI, synthesizer: Synthesizer, **options: Any) -> None:
    """Attach a synthesiser to a learner, in place of the one it has.

    Parameters
    ----------
    learner : DNI
        A compiled learner.
    synthesizer : Synthesizer
        What predicts.
    **options
        Those of `DNI.attach`: ``context_dim``, ``optimizer``, ``lr``, ``schedule``, ``key``.

    Raises
    ------
    TypeError
        If `learner` is not a DNI, or `synthesizer` not a synthesiser.

    Examples
    --------
    >>> import brainstate, jax.numpy as jnp, etrace_engines, dni_synth
    >>> model = brainstate.nn.ValinaRNNCell(2, 4)
    >>> learner = etrace_engines.compile(model, dni_synth.DNI, jnp.ones((1, 2)), batch_size=1)
    >>> dni_synth.attach(learner, dni_synth.MLP(width=8))
    >>> type(learner.synthesizer).__name__
    'MLP'
    """
    if not isinstance(learner, DNI):
        raise TypeError(f"`learner` must be a dni_synth.DNI, got {type(learner).__name__}.")
    learner.attach(synthesizer, **options)
