"""The published learning rules that are points of the space, by name."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

from ._config import ETraceConfig
from ._values import check_count, check_fraction, python_number

DecayOrRank = float | int | tuple[float | int, float | int]


def d_rtrl() -> ETraceConfig:
    """Return D-RTRL: a trace per parameter element, carried by the diagonal of the hidden Jacobian.

    ``e <- D * e + x (x) Df``, where D is the elementwise dh/dh' and Df is dh/dy.

    Returns
    -------
    ETraceConfig
        The default coordinate.

    References
    ----------
    C. Wang, X. Dong, Z. Ji, J. Jiang, X. Liu and S. Wu, "BrainScale: enabling scalable online learning in spiking
    neural networks", bioRxiv, 2024. https://doi.org/10.1101/2024.09.24.614728

    Examples
    --------
    >>> d_rtrl() == ETraceConfig()
    True
    """
    return ETraceConfig()


def pp_prop(decay_or_rank: DecayOrRank) -> ETraceConfig:
    """Return pp-prop (ES-D-RTRL): an input-side and an output-side factor instead of a trace per element.

    ``ex <- a * ex + x`` and ``ef <- a * D * ef + (1 - a) * Df``. The gradient after t steps is the signal times
    ``ex (x) ef / (1 - a^t)``.

    Parameters
    ----------
    decay_or_rank : float or int, or an (x, f) pair of them
        A float in [0, 1) is the decay a, of both sides or of its own. An integer r >= 1 is the number of steps over
        which the factors average, and means ``a = (r - 1) / (r + 1)``.

    Returns
    -------
    ETraceConfig
        The coordinate.

    Raises
    ------
    ValueError
        If the decay is outside [0, 1) or the rank is below 1.
    TypeError
        If `decay_or_rank` is not a number.

    References
    ----------
    C. Wang, X. Dong, Z. Ji, J. Jiang, X. Liu and S. Wu, "BrainScale: enabling scalable online learning in spiking
    neural networks", bioRxiv, 2024, where the rule is called ES-D-RTRL. https://doi.org/10.1101/2024.09.24.614728

    Examples
    --------
    >>> pp_prop(19).decay
    (0.9, 0.9)
    """
    return ETraceConfig(trace_factorization="io_factorized", decay=_decay(decay_or_rank))


def es_d_rtrl(decay_or_rank: DecayOrRank) -> ETraceConfig:
    """Return ES-D-RTRL, the earlier name of `pp_prop`.

    Parameters
    ----------
    decay_or_rank : float or int, or an (x, f) pair of them
        As in `pp_prop`.

    Returns
    -------
    ETraceConfig
        The coordinate of `pp_prop`.

    Raises
    ------
    ValueError
        If the decay is outside [0, 1) or the rank is below 1.
    TypeError
        If `decay_or_rank` is not a number.

    References
    ----------
    As in `pp_prop`.

    Examples
    --------
    >>> es_d_rtrl(0.9) == pp_prop(0.9)
    True
    """
    return pp_prop(decay_or_rank)


def eprop(kappa: float, feedback: Literal["symmetric", "random"] = "symmetric") -> ETraceConfig:
    """Return e-prop: D-RTRL's trace, low-pass filtered like the readout.

    ``e <- D * e + x (x) Df`` and ``filtered <- kappa * filtered + e``.

    Parameters
    ----------
    kappa : float
        Coefficient of the filter, in [0, 1): ``exp(-dt / tau)`` of a leaky readout, and 0 for a readout without
        leak, where e-prop is `d_rtrl`.
    feedback : {'symmetric', 'random'}, default 'symmetric'
        Whether errors return through the readout's own weights or through fixed random ones.

    Returns
    -------
    ETraceConfig
        The coordinate.

    Raises
    ------
    ValueError
        If `kappa` is outside [0, 1) or `feedback` is neither of the two.
    TypeError
        If `kappa` is not a number.

    References
    ----------
    G. Bellec, F. Scherr, A. Subramoney, E. Hajek, D. Salaj, R. Legenstein and W. Maass, "A solution to the learning
    dilemma for recurrent networks of spiking neurons", Nature Communications 11, 3625, 2020.
    https://doi.org/10.1038/s41467-020-17236-y

    Examples
    --------
    >>> eprop(0.8, 'random').learning_signal
    'random_feedback'
    """
    signals: dict[object, Any] = {"symmetric": "symmetric", "random": "random_feedback"}  # Any: a literal of the axis
    if not isinstance(feedback, str) or feedback not in signals:
        raise ValueError(f"`feedback` must be 'symmetric' or 'random', got {feedback!r:.80}.")
    return ETraceConfig(learning_signal=signals[feedback], trace_filter="kappa", kappa=check_fraction("kappa", kappa))


def ostl_recurrent() -> ETraceConfig:
    """Return OSTL for recurrent layers: the trace follows the recurrent weights as well.

    ``e <- D * e + x (x) Df``, where D includes the mixing within a hidden group.

    Returns
    -------
    ETraceConfig
        The coordinate.

    References
    ----------
    T. Bohnstingl, S. Woźniak, A. Pantazi and E. Eleftheriou, "Online spatio-temporal learning in deep neural
    networks", IEEE Transactions on Neural Networks and Learning Systems, 2022.
    https://doi.org/10.1109/TNNLS.2022.3153985

    Examples
    --------
    >>> ostl_recurrent().recurrence_scope
    'coupled'
    """
    return ETraceConfig(recurrence_scope="coupled")


def ostl_feedforward(decay_or_rank: DecayOrRank = 1e-6) -> ETraceConfig:
    """Return OSTL for feed-forward layers, as a pair of factors that forgets almost at once.

    Parameters
    ----------
    decay_or_rank : float or int, or an (x, f) pair of them, default 1e-6
        As in `pp_prop`. The default keeps next to nothing of the past: the rule is the instantaneous one.

    Returns
    -------
    ETraceConfig
        The coordinate.

    Raises
    ------
    ValueError
        If the decay is outside [0, 1) or the rank is below 1.
    TypeError
        If `decay_or_rank` is not a number.

    Notes
    -----
    The paper's trace of a layer without recurrent weights carries each neuron's own leak; the default decay drops it,
    and a larger one keeps a smoothed part of it.

    References
    ----------
    T. Bohnstingl, S. Woźniak, A. Pantazi and E. Eleftheriou, "Online spatio-temporal learning in deep neural
    networks", IEEE Transactions on Neural Networks and Learning Systems, 2022.
    https://doi.org/10.1109/TNNLS.2022.3153985

    Examples
    --------
    >>> ostl_feedforward().decay
    (1e-06, 1e-06)
    """
    return pp_prop(decay_or_rank)


def snap(n: int) -> ETraceConfig:
    """Return SnAp-n: keep the influence that reaches a state within n steps of the model's transition.

    Parameters
    ----------
    n : int
        The order, at least 1. From the diameter of a hidden group on, the rule is full real-time recurrent learning
        within the group; ``snap(1)`` is the scope ``'coupled'``.

    Returns
    -------
    ETraceConfig
        The coordinate.

    Raises
    ------
    ValueError
        If `n` is below 1.
    TypeError
        If `n` is not an integer.

    References
    ----------
    J. Menick, E. Elsen, U. Evci, S. Osindero, K. Simonyan and A. Graves, "Practical real time recurrent learning
    with a sparse approximation to the Jacobian", ICLR 2021. https://arxiv.org/abs/2006.07232

    Examples
    --------
    >>> snap(2).describe()
    "recurrence_scope='sparse_n', sparse_n=2"
    """
    return ETraceConfig(recurrence_scope="sparse_n", sparse_n=check_count("n", n))


def uoro() -> ETraceConfig:
    """Return UORO: an unbiased random rank-one estimate of real-time recurrent learning.

    ``s <- rho0 * (dF/dh) s + rho1 * nu`` and ``th <- th / rho0 + (nu^T dF/dtheta) / rho1``, with random signs nu.

    Returns
    -------
    ETraceConfig
        The coordinate.

    References
    ----------
    C. Tallec and Y. Ollivier, "Unbiased online recurrent optimization", ICLR 2018. https://arxiv.org/abs/1702.05043

    Examples
    --------
    >>> uoro().describe()
    "trace_factorization='random_projection', recurrence_scope='coupled'"
    """
    return ETraceConfig(trace_factorization="random_projection", recurrence_scope="coupled")


def three_factor() -> ETraceConfig:
    """Return three-factor learning: D-RTRL's trace meets a neuromodulator instead of a gradient.

    Returns
    -------
    ETraceConfig
        The coordinate.

    References
    ----------
    W. Gerstner, M. Lehmann, V. Liakoni, D. Corneil and J. Brea, "Eligibility traces and plasticity on behavioral time
    scales: experimental support of neoHebbian three-factor learning rules", Frontiers in Neural Circuits 12, 53, 2018.
    https://doi.org/10.3389/fncir.2018.00053

    Examples
    --------
    >>> three_factor().describe()
    "learning_signal='modulatory'"
    """
    return ETraceConfig(learning_signal="modulatory")


def dni() -> ETraceConfig:
    """Return DNI: D-RTRL's trace, and a learned estimate of the future's gradient at the end of each window.

    Returns
    -------
    ETraceConfig
        The coordinate.

    References
    ----------
    M. Jaderberg, W. M. Czarnecki, S. Osindero, O. Vinyals, A. Graves, D. Silver and K. Kavukcuoglu, "Decoupled neural
    interfaces using synthetic gradients", ICML 2017. https://arxiv.org/abs/1608.05343

    Examples
    --------
    >>> dni().describe()
    "learning_signal='bootstrapped'"
    """
    return ETraceConfig(learning_signal="bootstrapped")


#: Every preset by its name.
PRESETS: Mapping[str, Callable[..., ETraceConfig]] = MappingProxyType(
    {
        preset.__name__: preset
        for preset in (
            d_rtrl,
            pp_prop,
            es_d_rtrl,
            eprop,
            ostl_recurrent,
            ostl_feedforward,
            snap,
            uoro,
            three_factor,
            dni,
        )
    }
)


def name_of(config: ETraceConfig) -> str | None:
    """Return the name of the preset that a coordinate is, if it is one.

    Where presets overlap, one that needs no argument wins: ``eprop(0)`` is ``'d_rtrl'``, ``snap(1)`` is
    ``'ostl_recurrent'``, ``pp_prop(1e-6)`` is ``'ostl_feedforward'``. ``es_d_rtrl`` is reported as ``'pp_prop'``.

    Parameters
    ----------
    config : ETraceConfig
        The coordinate.

    Returns
    -------
    str or None
        A key of `PRESETS`, or None.

    Examples
    --------
    >>> name_of(ETraceConfig(trace_factorization='io_factorized', decay=0.9))
    'pp_prop'
    >>> name_of(ETraceConfig(update_schedule='window', window_size=4)) is None
    True
    """
    for name in ("d_rtrl", "ostl_recurrent", "uoro", "three_factor", "dni", "ostl_feedforward"):
        if PRESETS[name]() == config:
            return name
    if isinstance(config.decay, tuple) and pp_prop(config.decay) == config:
        return "pp_prop"
    if config.sparse_n is not None and snap(config.sparse_n) == config:
        return "snap"
    feedback: Literal["symmetric", "random"] = "random" if config.learning_signal == "random_feedback" else "symmetric"
    return "eprop" if eprop(config.kappa or 0.0, feedback) == config else None


def _decay(decay_or_rank: object) -> float | tuple[float, float]:
    """Return the decay, or the pair of them, that decays (floats) or ranks (integers) mean."""
    if isinstance(decay_or_rank, tuple | list) and len(decay_or_rank) == 2:
        return _one_decay(decay_or_rank[0]), _one_decay(decay_or_rank[1])
    return _one_decay(decay_or_rank)


def _one_decay(decay_or_rank: object) -> float:
    number = python_number("decay_or_rank", decay_or_rank)
    if not isinstance(number, bool) and isinstance(number, numbers.Integral):
        rank = check_count("decay_or_rank", number)
        return (rank - 1) / (rank + 1)
    return check_fraction("decay_or_rank", number)
