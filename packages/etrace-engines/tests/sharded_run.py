"""Print the error of a batch split over the devices there are to one device, and in how many parts the trace lies."""

import json
import sys

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
from engine_models import normal
from engine_oracles import relative_error

import etrace_engines


def compare(rule, options):
    """Return the findings, as a dict."""
    model = brainstate.nn.Sequential(brainstate.nn.GRUCell(3, 5), brainstate.nn.Linear(5, 2))
    xs = normal(1, 12, 8, 3)  # time, batch, inputs
    learner = etrace_engines.compile(model, rule, xs[0], batch_size=8, **options)

    @brainstate.transform.jit
    def gradients(xs):
        learner.reset_state()
        return learner.etrace_grad(xs, step_fn=lambda x: (learner(x) ** 2).mean())

    alone = gradients(xs)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("batch",))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "batch"))
    together = gradients(jax.device_put(xs, split))
    largest = max(jax.tree.leaves(learner.trace.value), key=jnp.size)
    return {
        "devices": len(jax.devices()),
        "error": float(relative_error(together, alone)),
        "doubled": float(relative_error(gradients(jax.device_put(2 * xs, split)), alone)),
        "parts": len({str(shard.index) for shard in largest.addressable_shards}),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(compare(sys.argv[1], json.loads(sys.argv[2]))))
