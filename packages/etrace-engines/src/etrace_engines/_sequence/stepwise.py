"""The sum of gradients, one call of the step function at a time."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from .drive import Task, add_trees, first_slices, purify, to_chunks


def stepwise_sum(task: Task) -> tuple[dict[Any, Any], Array, Any]:
    """Return summed gradients, losses of shape (time,), and stacked auxiliary outputs; states advance."""
    chunks, mask = to_chunks(task.sequences, task.size), to_chunks((task.mask,), task.size)[0]
    pure = purify(task.step_fn, first_slices(chunks), list(task.weights.values()))
    where = [pure.states.index(state) for state in task.weights.values()]
    start = [jax.tree.map(jnp.zeros_like, state.value) for state in task.weights.values()]

    def body(carry: Any, x: Any) -> Any:
        values, total = carry
        slices, weight = x

        def objective(chosen: list[Any]) -> Any:
            inner = list(values)
            for i, value in zip(where, chosen, strict=True):
                inner[i] = value
            after, out = pure.call(inner, slices)
            loss, aux = task.split(out)
            return jnp.sum(loss * weight), (after, loss, aux)

        chosen = [values[i] for i in where]
        (_, (after, loss, aux)), gradient = jax.value_and_grad(objective, has_aux=True)(chosen)
        return (after, add_trees(total, gradient)), (loss, aux)

    (values, total), (losses, aux) = jax.lax.scan(body, (pure.values(), start), (chunks, mask))
    pure.write(values)
    return dict(zip(task.weights, total, strict=True)), losses.reshape(task.mask.shape), aux
