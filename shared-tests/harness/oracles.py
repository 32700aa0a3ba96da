"""Where truth comes from: BPTT and the rules' equations, as in the engines' tests, and loops of torch optimizers."""

import numpy as np
import torch
from engine_oracles import CELLS, DenseRule, Flat, bptt, functional, relative_error, rule_gradient, squared

__all__ = [
    "CELLS",
    "bptt",
    "feedback_matrix",
    "functional",
    "relative_error",
    "rule_gradient",
    "squared",
    "torch_loop",
]

_TORCH = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


def torch_loop(kind, params, rates, gradients, **options):
    """Step every member by its own torch optimizer; `params` (members, ...), `gradients` a list of such dicts."""
    members = [
        {name: torch.nn.Parameter(tensor[m].clone()) for name, tensor in params.items()} for m in range(len(rates))
    ]
    optimizers = [
        _TORCH[kind](member.values(), lr=float(rate), **options) for member, rate in zip(members, rates, strict=True)
    ]
    for step in gradients:
        for m, (member, optimizer) in enumerate(zip(members, optimizers, strict=True)):
            for name, parameter in member.items():
                parameter.grad = step[name][m].clone()
            optimizer.step()
    return {name: torch.stack([member[name].detach() for member in members]) for name in params}


def feedback_matrix(cell, params, config, h, x, gradient):
    """Read a learner's matrix of random feedback off its gradients of one step, from hidden states h.

    ``gradient(j)`` is the gradient of the first step where the signal of sample 0 is e_j and that of others is 0: what
    the equations give for column j of the matrix.
    """
    exact = DenseRule(cell, Flat(params), config).local(np.asarray(h[:, 0], float), np.asarray(x[0], float)).exact
    units = h.shape[-1]
    rows = exact[cell.output * units : (cell.output + 1) * units]
    columns = [np.linalg.lstsq(rows.T, Flat(gradient(j)).vector, rcond=None)[0] for j in range(units)]
    return np.stack(columns, axis=1)
