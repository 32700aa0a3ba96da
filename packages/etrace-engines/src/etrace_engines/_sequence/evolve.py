"""Running a learner over a sequence without a loss: states and traces advance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from .._data import MultiStepData
from .._learner.learner import StepLearner
from .drive import check_chunk, first_slices, purify, sequence_length, to_chunks


def etrace_evolve(
    learner: StepLearner,
    sequences: Sequence[Any],
    *,
    step_fn: Callable[..., Any] | None,
    chunk_size: int | None,
    return_outputs: bool,
) -> Any:
    """See `ETraceLearner.etrace_evolve`."""
    length = sequence_length(sequences)
    size = check_chunk(chunk_size, length, learner.vjp_method)
    run = step_fn if step_fn is not None else _call(learner, size)
    chunks = to_chunks(sequences, size)
    pure = purify(run, first_slices(chunks))

    def body(values: list[Any], slices: Any) -> Any:
        after, out = pure.call(values, slices)
        return after, out if return_outputs else None

    values, outputs = jax.lax.scan(body, pure.values(), chunks)
    pure.write(values)
    if not return_outputs or size == 1 or step_fn is not None:
        return outputs
    return jax.tree.map(lambda y: y.reshape(length, *y.shape[2:]), outputs)


def _call(learner: StepLearner, size: int) -> Callable[..., Any]:
    if size == 1:
        return learner
    return lambda *slices: learner(*(MultiStepData(s) for s in slices))
