"""How a learner is run: gradients call by call, of one step or of `WINDOW` steps, from the states as they are."""

import brainstate
import jax
import jax.numpy as jnp
from engine_models import BATCH, data, make
from engine_oracles import squared

from etrace_engines import MultiStepData

WINDOW = 2
STEPS = 4

__all__ = ["BATCH", "STEPS", "WINDOW", "caller", "data", "make", "total"]


def caller(learner):
    """Return the function from a sequence to the gradients of its calls, which compiles the call of a learner once."""
    single = learner.vjp_method == "single-step"
    size = 1 if single else WINDOW

    @brainstate.transform.jit
    def call(x, target, modulator):
        def loss():
            extra = {} if modulator is None else {"modulator": modulator}
            return squared(
                learner(x[0], **extra) if single else learner(MultiStepData(x)), target[0] if single else target
            )

        return brainstate.transform.grad(loss, learner.param_states)()

    def gradients(xs, targets, modulators=None):
        spans = [slice(t, t + size) for t in range(0, len(xs), size)]
        return [call(xs[s], targets[s], None if modulators is None else modulators[s.start]) for s in spans]

    return gradients


def total(gradients):
    """Return the sum of gradients."""
    return jax.tree.map(lambda *g: jnp.sum(jnp.stack(g), 0), *gradients)
