"""The memory that the eligibility trace of a rule takes, before a model exists."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ._config import ETraceConfig
from ._values import check_count

#: Numbers that the trace of one dense parameter keeps: B batch, I inputs, O outputs, S states, K positions kept by
#: the scope (1 unless 'sparse_n'), F arrays (2 with the filter, else 1).
TRACE_ELEMENTS: Mapping[str, str] = MappingProxyType(
    {
        "per_param": "F * B * I * O * S * K",
        "io_factorized": "B * (I + O * S)",
        "random_projection": "B * (I * O + O * S)",
    }
)


def cost(
    config: ETraceConfig,
    inputs: int,
    outputs: int,
    states: int = 1,
    batch: int = 1,
    *,
    neighbours: int | None = None,
    itemsize: int = 4,
) -> int:
    """Return the bytes that the eligibility trace of one dense parameter takes.

    The trace is what is kept from one step to the next, for a weight of shape (inputs, outputs) that drives a hidden
    group. It does not grow with the length of the sequence. A bias is a parameter with one input; the costs of several
    parameters add up. Parameters, states and the temporary memory of a step are not counted.

    Parameters
    ----------
    config : ETraceConfig
        The rule.
    inputs : int
        Number of inputs I of the parameter, at least 1.
    outputs : int
        Number of outputs O of the parameter, at least 1.
    states : int, default 1
        Number of states S of a hidden position, for example 2 for membrane and adaptation.
    batch : int, default 1
        Batch size B.
    neighbours : int, optional
        The number K of hidden positions that ``'sparse_n'`` keeps for each output, at least 1. It is a property of the
        model; the default is the worst case, `outputs`, which a dense recurrent weight reaches at ``sparse_n=2``. The
        other scopes keep one position, whatever is passed.
    itemsize : int, default 4
        Bytes of one number: 4 for float32, 8 for float64, 2 for bfloat16.

    Returns
    -------
    int
        Bytes.

    Raises
    ------
    ValueError
        If a size is below 1.
    TypeError
        If a size is not an integer.

    Notes
    -----
    Numbers kept, by factorization:

    - ``'per_param'``: ``F * B * I * O * S * K``, where F is 2 under ``trace_filter='kappa'``, which keeps the trace
      and the filtered trace, and else 1;
    - ``'io_factorized'``: ``B * (I + O * S)``, an input-side and an output-side factor;
    - ``'random_projection'``: ``B * (I * O + O * S)``, a parameter-shaped and a hidden-shaped factor.

    Recursion, learning signal and schedule change what is computed, not what is kept.

    Examples
    --------
    A thousand units with a thousand inputs, in MB:

    >>> cost(ETraceConfig(), 1000, 1000) / 1e6
    4.0
    >>> cost(ETraceConfig(trace_factorization='io_factorized', decay=0.9), 1000, 1000) / 1e6
    0.008
    """
    sizes = {"inputs": inputs, "outputs": outputs, "states": states, "batch": batch, "itemsize": itemsize}
    inputs, outputs, states, batch, itemsize = (check_count(name, size) for name, size in sizes.items())
    hidden = outputs * states
    if config.trace_factorization == "io_factorized":
        elements = inputs + hidden
    elif config.trace_factorization == "random_projection":
        elements = inputs * outputs + hidden
    else:
        filtered = 2 if config.trace_filter == "kappa" else 1
        elements = filtered * inputs * hidden * _positions(config, outputs, neighbours)
    return batch * elements * itemsize


def _positions(config: ETraceConfig, outputs: int, neighbours: int | None) -> int:
    """Return how many hidden positions the trace keeps for each output."""
    kept = outputs if neighbours is None else check_count("neighbours", neighbours)
    return kept if config.recurrence_scope == "sparse_n" else 1
