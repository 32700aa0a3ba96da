"""Arrays from JAX to torch and back by DLPack: one buffer, no copy on the CPU."""

import jax
import jax.numpy as jnp
import torch


def to_torch(tree):
    """Return a flat dict of tensors that share the arrays' memory; keys are the leaves' paths."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {name(path): torch.from_dlpack(leaf) for path, leaf in leaves}


def to_jax(tensors, like):
    """Return a tree of arrays, shaped as `like`, that share the tensors' memory."""
    paths, structure = jax.tree_util.tree_flatten_with_path(like)
    return jax.tree.unflatten(structure, [jnp.from_dlpack(tensors[name(path)].contiguous()) for path, _ in paths])


def name(path):
    """Return the path of a leaf as a flat name."""
    return jax.tree_util.keystr(path)
