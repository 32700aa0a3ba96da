"""One field at a time: what each kind of value becomes, or which error it raises."""

from __future__ import annotations

import enum
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from etrace_config import AXES, ETraceConfig


def leak(decay: Any) -> ETraceConfig:
    return ETraceConfig(temporal_recursion="scalar_leak", decay=decay)


def sparse(order: Any) -> ETraceConfig:
    return ETraceConfig(recurrence_scope="sparse_n", sparse_n=order)


ALMOST_ONE = Fraction(10**30 - 1, 10**30)  # below 1, and 1.0 as a float


def label(value: Any) -> str:
    """Return an id without memory addresses."""
    return f"{type(value).__name__}-{value!r:.12}"


class Signal(enum.StrEnum):
    MODULATORY = "modulatory"


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (0.5, 0.5),
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.longdouble(0.5), 0.5),
        (np.array(0.5), 0.5),
        (Fraction(1, 2), 0.5),
        (5e-324, 5e-324),
        (math.nextafter(1.0, 0.0), math.nextafter(1.0, 0.0)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_number_is_stored_as_a_plain_float(given: Any, stored: float) -> None:
    decay = leak(given).decay

    assert (type(decay), decay) == (float, stored)


@pytest.mark.parametrize("given", [0, -0.0, np.int64(0), np.float32(-0.0)], ids=repr)
def test_any_zero_is_stored_as_positive_zero(given: Any) -> None:
    decay = leak(given).decay

    assert repr(decay) == "0.0"


@pytest.mark.parametrize(
    "given",
    [1, 1.0, -1e-9, math.nan, math.inf, -math.inf, np.float32("nan"), np.array(math.inf), 10**400, ALMOST_ONE],
    ids=label,
)
def test_number_outside_its_range_is_a_value_error(given: Any) -> None:
    with pytest.raises(ValueError, match=r"^`decay` must lie in \[0, 1\), got "):
        leak(given)


@pytest.mark.parametrize(
    "given",
    [True, False, np.True_, np.array(True), "0.9", b"0.9", Decimal("0.9"), 0.9j, {"x": 0.9}, np.array([0.9]), object()],
    ids=label,
)
def test_what_is_not_a_number_is_a_type_error(given: Any) -> None:
    with pytest.raises(TypeError, match=r"^`decay` must be a number in \[0, 1\), got .* of type \w+\.$"):
        leak(given)


@pytest.mark.parametrize("given", [3, np.int32(3), np.uint8(3), np.array(3)], ids=lambda value: type(value).__name__)
def test_integer_is_stored_as_a_plain_int(given: Any) -> None:
    order = sparse(given).sparse_n

    assert (type(order), order) == (int, 3)


@pytest.mark.parametrize("given", [0, -1, np.int64(0)])
@pytest.mark.parametrize("name", ["sparse_n", "window_size"])
def test_integer_below_one_is_a_value_error(name: str, given: Any) -> None:
    with pytest.raises(ValueError, match=rf"^`{name}` must be an integer >= 1, got "):
        ETraceConfig(**{name: given})


def test_smallest_count_is_one() -> None:
    assert ETraceConfig(update_schedule="window", window_size=1).window_size == 1


@pytest.mark.parametrize("given", [True, np.False_, 2.0, math.nan, math.inf, "2", [2], (2, 2), np.float32(2)], ids=repr)
@pytest.mark.parametrize("name", ["sparse_n", "window_size"])
def test_what_is_not_an_integer_is_a_type_error(name: str, given: Any) -> None:
    with pytest.raises(TypeError, match=rf"^`{name}` must be an integer >= 1, got .* of type \w+\.$"):
        ETraceConfig(**{name: given})


@pytest.mark.parametrize("name", AXES)
@pytest.mark.parametrize(
    "given", ["Diagonal", "", None, 0, True, 1.5, ["none"], {}, object(), np.array(["none"])], ids=label
)
def test_value_outside_the_vocabulary_lists_the_legal_ones(name: str, given: Any) -> None:
    with pytest.raises(ValueError, match=rf"^`{name}` must be one") as caught:
        ETraceConfig(**{name: given})

    pair = name == "temporal_recursion" and isinstance(given, list)
    assert pair or all(repr(value) in str(caught.value) for value in AXES[name])


def test_near_miss_is_suggested() -> None:
    with pytest.raises(ValueError, match=r"did you mean 'symmetric'\?$"):
        ETraceConfig(learning_signal="symetric")  # type: ignore[arg-type]  # the point of the test


@pytest.mark.parametrize("given", [Signal.MODULATORY, np.str_("modulatory")], ids=["enum", "numpy"])
def test_string_subclass_is_stored_as_a_plain_string(given: Any) -> None:
    assert type(ETraceConfig(learning_signal=given).learning_signal) is str


def test_lists_are_stored_as_tuples() -> None:
    config = ETraceConfig("io_factorized", ["scalar_leak", "jacobian"], decay=[0.9, 0.8])  # type: ignore[arg-type]

    assert (config.temporal_recursion, config.decay) == (("scalar_leak", "jacobian"), (0.9, 0.8))


@pytest.mark.parametrize("name", ["temporal_recursion", "decay"])
@pytest.mark.parametrize("given", [(), (0.9,), [0.9, 0.8, 0.7]], ids=len)
def test_pair_has_two_values(name: str, given: Any) -> None:
    with pytest.raises(ValueError, match=rf"^`{name}` must be one value or an \(x, f\) pair, got {len(given)} values"):
        ETraceConfig(trace_factorization="io_factorized", **{name: given})


@pytest.mark.parametrize(
    ("given", "error"), [((0.9, True), TypeError), ((0.9, None), TypeError), ((1, 0.9), ValueError)]
)
def test_each_side_of_a_pair_is_checked(given: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^`decay` must "):
        ETraceConfig(trace_factorization="io_factorized", decay=given)


def test_jax_scalars_are_stored_as_plain_numbers() -> None:
    jnp = pytest.importorskip("jax.numpy", reason="this package does not depend on JAX")

    assert leak(jnp.float32(0.5)).decay == 0.5
    assert type(sparse(jnp.int32(3)).sparse_n) is int


def test_jax_bool_is_a_type_error() -> None:
    jnp = pytest.importorskip("jax.numpy", reason="this package does not depend on JAX")

    with pytest.raises(TypeError, match="must be a number"):
        leak(jnp.asarray(True))


def test_traced_jax_value_is_a_type_error() -> None:
    jax = pytest.importorskip("jax", reason="this package does not depend on JAX")

    with pytest.raises(TypeError, match=r"^`decay` must be a number known when the configuration is built"):
        jax.jit(lambda decay: leak(decay).decay)(0.5)
