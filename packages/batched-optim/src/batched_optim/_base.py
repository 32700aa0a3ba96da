"""The public base class: settings that all optimizers share, the learning rate, gradient clipping."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Literal, NoReturn, TypedDict

from torch import Tensor
from torch.distributed import ProcessGroup

from ._clip import clip_by_norm, clip_by_value, row_norms
from ._validation import LRLike, check_choice, check_flag, check_optional, check_range, shared_names


class Options(TypedDict, total=False):
    """The keywords that every optimizer hands on to `BaseOptimizer`."""

    clip_scope: Literal["tensor", "member"]
    maximize: bool
    inactive: Literal["advance", "freeze"]
    nonfinite: Literal["propagate", "skip"]
    compile: bool
    process_group: ProcessGroup | None


class BaseOptimizer(ABC):
    """Base class of the ensemble-batched optimizers.

    Every parameter tensor carries the ensemble on its leading dimension, one row per member, and a subclass's `step`
    updates all rows at once. Parameters named in `shared_param_names` have no ensemble dimension; they are updated
    once per step from the gradient averaged over the active members, at the mean of those members' learning rates
    times `shared_param_lr_multiplier`.

    Parameters
    ----------
    shared_param_names : iterable of str
        Names of the parameters shared by every member.
    lr : float or Tensor, shape (), (1,), (members,) or (members, 1)
        Learning rate, one per member when a tensor.
    clip_value : float or None
        Clamp every gradient element to [-clip_value, clip_value]; None for no clamp.
    clip_norm : float or None
        Rescale each member's gradient to at most this L2 norm; None for no limit.
    shared_param_lr_multiplier : float, in [0, inf)
        Factor on the learning rate of the shared parameters. Default 1.
    clip_scope : {'tensor', 'member'}
        Whether `clip_norm` limits each tensor by itself (default) or a member's gradient over all its tensors, its
        rows of the shared parameters' gradients included.
    maximize : bool
        Ascend instead of descend. Default False.
    inactive : {'advance', 'freeze'}
        Whether the buffers of members that sit out a step advance all the same (default) or stay as they are, so that
        a member that paused equals one that had no pause.
    nonfinite : {'propagate', 'skip'}
        Whether NaN and inf in one member's gradient reach the shared parameters (default) or such a member is left out
        of the average and counted in `nonfinite_counts`. Other members' batched parameters are never touched.
    compile : bool
        Compile the step by `torch.compile`, at the first step, into one graph without breaks. Default False; results
        agree up to rounding.
    process_group : torch.distributed.ProcessGroup or None
        The ranks over which the members are divided; see `members_of_rank`. None, the default, means that all are here.

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong type or out of range.
    """

    def __init__(
        self,
        shared_param_names: Iterable[str],
        lr: LRLike,
        clip_value: float | None = None,
        clip_norm: float | None = None,
        shared_param_lr_multiplier: float = 1.0,
        *,
        clip_scope: Literal["tensor", "member"] = "tensor",
        maximize: bool = False,
        inactive: Literal["advance", "freeze"] = "advance",
        nonfinite: Literal["propagate", "skip"] = "propagate",
        compile: bool = False,
        process_group: ProcessGroup | None = None,
    ) -> None:
        self.shared_param_names = shared_names(shared_param_names)
        check_range("lr", lr, 0.0, open_high=True)
        check_optional("clip_value", clip_value)
        check_optional("clip_norm", clip_norm)
        check_range("shared_param_lr_multiplier", shared_param_lr_multiplier, 0.0, open_high=True)
        check_choice("clip_scope", clip_scope, ("tensor", "member"))
        check_flag("maximize", maximize)
        check_choice("inactive", inactive, ("advance", "freeze"))
        check_choice("nonfinite", nonfinite, ("propagate", "skip"))
        check_flag("compile", compile)
        self.lr = lr
        self.clip_value = clip_value
        self.clip_norm = clip_norm
        self.shared_param_lr_multiplier = shared_param_lr_multiplier
        self.clip_scope = clip_scope
        self.maximize = maximize
        self.inactive = inactive
        self.nonfinite = nonfinite
        self.compile = compile
        self.process_group = process_group

    lr: Any  # a plain attribute here; the optimizers of this package make it a property that owns a tensor

    @property
    def param_groups(self) -> NoReturn:
        """Not here: there are no groups, for every member may have its own rate, in `lr`."""
        raise AttributeError(
            f"{type(self).__name__} has no `param_groups`: read and set its rates by `lr`, lower them by "
            "`batched_optim.ReduceOnPlateau`, and run a scheduler of PyTorch by `batched_optim.TorchSchedule`."
        )

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer state as a dict; implemented by subclasses.

        Returns
        -------
        dict of str -> Any
            An owned snapshot.
        """

    @abstractmethod
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state written by `state_dict`; implemented by subclasses.

        Parameters
        ----------
        state_dict : dict of str -> Any
            What `state_dict` returned.
        """

    def gradient_clipping(self, g: Tensor) -> Tensor:
        """Clip a batched gradient by value, then by per-member norm.

        Parameters
        ----------
        g : Tensor, shape (members, ...)
            Gradient with the ensemble on the leading dimension.

        Returns
        -------
        Tensor, shape (members, ...)
            `g` clamped to +-`clip_value` (when set), then each member's slice scaled by min(1, `clip_norm` / norm)
            (when set), so a norm equal to the limit is untouched. `g` itself when both are None.

        Examples
        --------
        >>> import torch
        >>> from batched_optim import BatchedSGD
        >>> optimizer = BatchedSGD({"w": torch.zeros(2, 2)}, [], lr=0.1, clip_norm=1.0)
        >>> optimizer.gradient_clipping(torch.tensor([[3.0, 4.0], [0.3, 0.4]])).tolist()
        [[0.6000000238418579, 0.800000011920929], [0.30000001192092896, 0.4000000059604645]]
        """
        if g.numel() == 0:
            return g
        g = clip_by_value(g, self.clip_value)
        return g if self.clip_norm is None else clip_by_norm(g, row_norms(g), self.clip_norm)
