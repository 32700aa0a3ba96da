"""Learners by the name of their rule."""

from __future__ import annotations

from typing import Any, Literal

import etrace_config
from etrace_config import ETraceConfig

from .._sequence.learner import ETraceLearner


class ParamDimVjpAlgorithm(ETraceLearner):
    """Learner with a trace per parameter element: e' = R e + x (x) Df.

    Parameters
    ----------
    model : brainstate.nn.Module
        The model.
    config : ETraceConfig, optional
        The rule, with `trace_factorization='per_param'`. Default: D-RTRL.
    **options
        Options of `ETraceLearner`: `vjp_method`, `traced`, `trace_dtype`, and so on.

    Raises
    ------
    ValueError
        If `config` has another factorization, or an option is not allowed.
    """

    def __init__(self, model: Any, config: ETraceConfig | None = None, **options: Any) -> None:
        super().__init__(model, _of_factorization(self, config, "per_param", etrace_config.d_rtrl()), **options)


class IODimVjpAlgorithm(ETraceLearner):
    """Learner with an input-side and an output-side factor: ex' = a_x ex + x, ef' = a_f R ef + (1 - a_f) Df.

    Parameters
    ----------
    model : brainstate.nn.Module
        The model.
    config : ETraceConfig
        The rule, with `trace_factorization='io_factorized'`; it has decays, so there is no default.
    **options
        Options of `ETraceLearner`: `vjp_method`, `traced`, `trace_dtype`, and so on.

    Raises
    ------
    ValueError
        If `config` is missing or has another factorization, or an option is not allowed.
    """

    def __init__(self, model: Any, config: ETraceConfig | None = None, **options: Any) -> None:
        super().__init__(model, _of_factorization(self, config, "io_factorized", None), **options)


class RandomProjectionVjpAlgorithm(ETraceLearner):
    """Learner with a random rank-one trace per hidden group, unbiased (UORO).

    Parameters
    ----------
    model : brainstate.nn.Module
        The model.
    config : ETraceConfig, optional
        The rule, with `trace_factorization='random_projection'`. Default: UORO.
    **options
        Options of `ETraceLearner`: `vjp_method`, `traced`, `trace_dtype`, and so on.

    Raises
    ------
    ValueError
        If `config` has another factorization, or an option is not allowed.
    """

    def __init__(self, model: Any, config: ETraceConfig | None = None, **options: Any) -> None:
        super().__init__(model, _of_factorization(self, config, "random_projection", etrace_config.uoro()), **options)


def _of_factorization(
    learner: ETraceLearner, config: ETraceConfig | None, name: str, default: ETraceConfig | None
) -> ETraceConfig:
    config = config if config is not None else default
    if config is None or config.trace_factorization != name:
        got = "none" if config is None else repr(config.trace_factorization)
        raise ValueError(f"`config` of {type(learner).__name__} needs `trace_factorization={name!r}`, got {got}.")
    return config


class D_RTRL(ParamDimVjpAlgorithm):  # the rule's name in the literature
    """Diagonal real-time recurrent learning: e' = D e + x (x) Df, with D what each hidden position keeps of itself.

    Parameters
    ----------
    model : brainstate.nn.Module
        The model.
    **options
        Options of `ETraceLearner`: `vjp_method`, `traced`, `trace_dtype`, and so on.
    """

    def __init__(self, model: Any, **options: Any) -> None:
        super().__init__(model, etrace_config.d_rtrl(), **options)


class pp_prop(IODimVjpAlgorithm):
    """Pre- and postsynaptic propagation: leaky input trace times leaky output trace.

    Parameters
    ----------
    model : brainstate.nn.Module
        The model.
    decay_or_rank : float in [0, 1), or int >= 1
        Decay of both factors, or the rank r of decay (r - 1) / (r + 1).
    **options
        Options of `ETraceLearner`: `vjp_method`, `traced`, `trace_dtype`, and so on.
    """

    def __init__(self, model: Any, decay_or_rank: Any, **options: Any) -> None:
        super().__init__(model, etrace_config.pp_prop(decay_or_rank), **options)


ES_D_RTRL = pp_prop


class OSTLFeedforward(IODimVjpAlgorithm):
    """Online spatio-temporal learning without recurrent credit: pp_prop with a decay near zero.

    Parameters
    ----------
    model : brainstate.nn.Module
        The model.
    decay_or_rank : float in [0, 1), or int >= 1
        As for `pp_prop`. Default 1e-6.
    **options
        Options of `ETraceLearner`: `vjp_method`, `traced`, `trace_dtype`, and so on.
    """

    def __init__(self, model: Any, decay_or_rank: Any = 1e-6, **options: Any) -> None:
        super().__init__(model, etrace_config.ostl_feedforward(decay_or_rank), **options)


class OSTLRecurrent(ParamDimVjpAlgorithm):
    """Online spatio-temporal learning with the coupled transition of each hidden group.

    Parameters
    ----------
    model : brainstate.nn.Module
        The model.
    **options
        Options of `ETraceLearner`: `vjp_method`, `traced`, `trace_dtype`, and so on.

    References
    ----------
    Bohnstingl et al. (2022), doi:10.1109/TNNLS.2022.3153985.
    """

    def __init__(self, model: Any, **options: Any) -> None:
        super().__init__(model, etrace_config.ostl_recurrent(), **options)


class SnAp(ParamDimVjpAlgorithm):
    """Sparse n-step approximation of RTRL.

    Parameters
    ----------
    model : brainstate.nn.Module
        The model.
    n : int >= 1
        Steps of the model's own transition within which influence is kept.
    **options
        Options of `ETraceLearner`: `vjp_method`, `traced`, `trace_dtype`, and so on.
    """

    def __init__(self, model: Any, n: int = 1, **options: Any) -> None:
        super().__init__(model, etrace_config.snap(n), **options)


class EProp(ParamDimVjpAlgorithm):
    """E-prop: D-RTRL with a low-pass on the trace and, if asked for, random feedback.

    Parameters
    ----------
    model : brainstate.nn.Module
        The model.
    feedback : {'symmetric', 'random'}
        The true signal, or the signal through a fixed random matrix. Default 'symmetric'.
    kappa_filter_decay : float in [0, 1)
        Decay of the low-pass; 0 is none. Default 0.
    random_feedback_key : jax key or int
        Seed of the random matrix. Default 0.
    **options
        Options of `ETraceLearner`: `vjp_method`, `traced`, `trace_dtype`, and so on.
    """

    def __init__(
        self,
        model: Any,
        feedback: Literal["symmetric", "random"] = "symmetric",
        kappa_filter_decay: float = 0.0,
        random_feedback_key: Any = 0,
        **options: Any,
    ) -> None:
        config = etrace_config.eprop(kappa_filter_decay, feedback)
        super().__init__(model, config, random_feedback_key=random_feedback_key, **options)


class ThreeFactor(ParamDimVjpAlgorithm):
    """Three-factor learning: the trace meets a neuromodulator, a keyword of each call.

    Parameters
    ----------
    model : brainstate.nn.Module
        The model.
    **options
        Options of `ETraceLearner`: `vjp_method`, `traced`, `trace_dtype`, and so on.
    """

    def __init__(self, model: Any, **options: Any) -> None:
        super().__init__(model, etrace_config.three_factor(), **options)


class UORO(RandomProjectionVjpAlgorithm):
    """Unbiased online recurrent optimization: one random rank-one estimate of the exact influence per hidden group.

    The step's own influence is exact in the in-step gradient; only the past goes through the estimate, unlike in the
    paper, which lowers the variance and leaves the mean.

    Parameters
    ----------
    model : brainstate.nn.Module
        The model.
    projection_key : jax key or int
        Seed of the signs. Default 0.
    **options
        Options of `ETraceLearner`: `vjp_method`, `traced`, `trace_dtype`, and so on.

    References
    ----------
    Tallec and Ollivier (2018), arXiv:1702.05043.
    """

    def __init__(self, model: Any, projection_key: Any = 0, **options: Any) -> None:
        super().__init__(model, etrace_config.uoro(), projection_key=projection_key, **options)
