"""Learning rates that change while training: a plateau schedule per member, and PyTorch's schedules for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ._ensemble import EnsembleOptimizer
from ._members import Index
from ._validation import check_range


class ReduceOnPlateau:
    """Reduce the learning rate of each member whose loss has stopped falling.

    A member's loss has improved when it is below its best so far by more than `threshold` times that best's magnitude.
    After more than `patience` calls in a row without improvement, that member's rate is multiplied by `factor`, down to
    `min_lr`, and its patience starts anew. No other member is concerned.

    Parameters
    ----------
    optimizer : BatchedSGD, BatchedAdam or BatchedLBFGS
        The optimizer; its rate becomes one per member.
    factor : float, in (0, 1)
        Factor on the rate. Default 0.1.
    patience : int
        Calls without improvement that are let pass. Default 10.
    min_lr : float, in [0, inf)
        Lower bound of the rate. Default 0.
    threshold : float, in [0, inf)
        Relative improvement that counts. Default 1e-4, as in `torch.optim.lr_scheduler.ReduceLROnPlateau`.

    Examples
    --------
    >>> import torch
    >>> from batched_optim import BatchedSGD, ReduceOnPlateau
    >>> optimizer = BatchedSGD({"w": torch.zeros(2, 3)}, [], lr=1.0)
    >>> schedule = ReduceOnPlateau(optimizer, factor=0.5, patience=1)
    >>> for losses in ([4.0, 4.0], [3.0, 4.0], [2.0, 4.0]):
    ...     schedule.step(torch.tensor(losses))
    >>> optimizer.lr.tolist()
    [1.0, 0.5]
    """

    def __init__(
        self,
        optimizer: EnsembleOptimizer,
        factor: float = 0.1,
        patience: int = 10,
        min_lr: float = 0.0,
        threshold: float = 1e-4,
    ) -> None:
        check_range("factor", factor, 0.0, 1.0, open_low=True, open_high=True)
        check_range("patience", patience, 0)
        check_range("min_lr", min_lr, 0.0)
        check_range("threshold", threshold, 0.0)
        self.optimizer = optimizer
        self.factor = factor
        self.patience = patience
        self.min_lr = min_lr
        self.threshold = threshold
        size, device = optimizer.num_members, optimizer.lr.device
        self.best = torch.full((size,), torch.inf, dtype=torch.float64, device=device)
        self.bad_calls = torch.zeros(size, dtype=torch.int64, device=device)
        self._spread()

    def _spread(self) -> None:
        """Give every member a rate of its own."""
        size = self.optimizer.num_members
        if self.optimizer.lr.shape != (size,):
            self.optimizer.lr = self.optimizer.lr.reshape(-1).expand(size)

    def step(self, losses: Tensor) -> None:
        """Take note of each member's loss and reduce rates where due.

        Parameters
        ----------
        losses : Tensor, shape (members,)
            The monitored losses; NaN counts as no improvement.
        """
        if losses.shape != self.best.shape:
            raise ValueError(f"`losses` must have shape {tuple(self.best.shape)}, got {tuple(losses.shape)}.")
        self._spread()
        losses = losses.detach().to(self.best)
        # Infinity times zero would be NaN, so the first loss is compared with infinity itself.
        margin = torch.where(torch.isinf(self.best), 0.0, self.threshold * self.best.abs())
        improved = losses < self.best - margin
        self.best = torch.where(improved, losses, self.best)
        self.bad_calls = torch.where(improved, 0, self.bad_calls + 1)
        due = self.bad_calls > self.patience
        rate = self.optimizer.lr
        # A rate that is below the bound already is left alone.
        reduced = torch.minimum(rate, (rate * self.factor).clamp(min=self.min_lr))
        rate.copy_(torch.where(due, reduced, rate))
        self.bad_calls = torch.where(due, 0, self.bad_calls)

    def select(self, members: Index, optimizer: EnsembleOptimizer) -> ReduceOnPlateau:
        """Return the schedule of some members.

        Parameters
        ----------
        members : int, slice, list of int, or Tensor
            Their positions, as for the optimizer's `select`.
        optimizer : BatchedSGD, BatchedAdam or BatchedLBFGS
            The optimizer of these members.

        Returns
        -------
        ReduceOnPlateau
            A schedule of its own.
        """
        rows = self.optimizer._positions(members)
        new = ReduceOnPlateau(optimizer, self.factor, self.patience, self.min_lr, self.threshold)
        new.best, new.bad_calls = self.best[rows], self.bad_calls[rows]
        return new

    def state_dict(self) -> dict[str, Any]:
        """Return the best losses and the calls without improvement.

        Returns
        -------
        dict of str -> Tensor
            Owned copies, shape (members,).
        """
        return {"best": self.best.clone(), "bad_calls": self.bad_calls.clone()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; the rates themselves belong to the optimizer.

        Parameters
        ----------
        state_dict : dict of str -> Tensor
            What `state_dict` returned.
        """
        best, bad_calls = state_dict["best"], state_dict["bad_calls"]
        if best.shape != self.best.shape or bad_calls.shape != self.best.shape:
            raise ValueError(f"The state is of {len(best)} members, expected {len(self.best)}.")
        self.best, self.bad_calls = best.clone(), bad_calls.clone()


class _OneRate(torch.optim.Optimizer):
    """An optimizer that is nothing but a rate."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]  # there is no loss to return
        """Do nothing; a scheduler warns if its optimizer has not stepped."""


class TorchSchedule:
    """Drive the rates of all members by one of PyTorch's schedulers.

    PyTorch's schedulers accept only PyTorch's optimizers ("BatchedSGD is not an Optimizer", they say), and only one
    rate. This one runs a scheduler on a rate that starts at 1 and multiplies each member's initial rate by what comes
    out. A scheduler that would change the momentum too is refused by PyTorch itself, with the option that turns it off.

    Parameters
    ----------
    optimizer : BatchedSGD, BatchedAdam or BatchedLBFGS
        The optimizer.
    make : callable
        Takes a `torch.optim.Optimizer` of rate 1 and returns the scheduler for it, whose rates are relative.

    Examples
    --------
    >>> import torch
    >>> from batched_optim import BatchedSGD, TorchSchedule
    >>> optimizer = BatchedSGD({"w": torch.zeros(2, 3)}, [], lr=torch.tensor([1.0, 4.0]))
    >>> schedule = TorchSchedule(optimizer, lambda one: torch.optim.lr_scheduler.StepLR(one, step_size=2, gamma=0.5))
    >>> for _ in range(4):
    ...     schedule.step()
    >>> optimizer.lr.tolist()
    [0.25, 1.0]
    """

    def __init__(
        self,
        optimizer: EnsembleOptimizer,
        make: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler],
    ) -> None:
        self.optimizer = optimizer
        self.initial = optimizer.lr.clone()
        self._stand_in = _OneRate([torch.zeros(())], {"lr": 1.0})
        self.scheduler = make(self._stand_in)
        self._apply()

    def _apply(self) -> None:
        factor = self._stand_in.param_groups[0]["lr"]
        self.optimizer.lr.copy_(self.initial * factor)

    def step(self, *args: Any) -> None:  # Any: what the scheduler takes
        """Step the scheduler and set the rates.

        Parameters
        ----------
        *args
            What the scheduler's `step` takes.
        """
        self._stand_in.step()
        self.scheduler.step(*args)
        self._apply()

    def state_dict(self) -> dict[str, Any]:
        """Return the scheduler's state and the initial rates.

        Returns
        -------
        dict of str -> Any
            What `load_state_dict` takes.
        """
        factor = self._stand_in.param_groups[0]["lr"]
        return {"scheduler": self.scheduler.state_dict(), "initial": self.initial.clone(), "factor": factor}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned, and set the rates.

        Parameters
        ----------
        state_dict : dict of str -> Any
            What `state_dict` returned.
        """
        self.scheduler.load_state_dict(state_dict["scheduler"])
        self.initial = state_dict["initial"].clone()
        self._stand_in.param_groups[0]["lr"] = state_dict["factor"]
        self._apply()
