"""A training loop for ensembles: every member has its own loss, patience and fate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from ._ensemble import EnsembleOptimizer
from ._schedule import ReduceOnPlateau
from ._shared import finite_rows
from ._validation import check_range

Params = dict[str, Tensor]
Data = Any  # a tensor, or a tuple, list or dict of Data, all with the samples on the leading dimension
LossFunction = Callable[[Params, Data], Tensor]
STATUS = ("completed", "stopped", "diverged")


@dataclass(frozen=True)
class FitResult:
    """What became of each member.

    Parameters
    ----------
    params : dict of str -> Tensor
        Each member's parameters at its lowest monitored loss; shared parameters as they ended.
    last_params : dict of str -> Tensor
        The parameters as each member ended.
    losses : Tensor, shape (steps, members)
        The training losses; NaN once a member has ended.
    best_loss : Tensor, shape (members,)
        Each member's lowest monitored loss; infinite if it never had a finite one.
    best_step : Tensor, shape (members,)
        The number of steps taken before it was measured; -1 if it never was.
    status : tuple of {'completed', 'stopped', 'diverged'}
        Whether a member used all steps, ran out of patience, or met a loss or gradient that is not finite.
    optimizer : BatchedSGD, BatchedAdam or BatchedLBFGS
        The optimizer as it ended; after compaction, that of the remaining members.
    members : Tensor
        Whose state the optimizer holds.
    """

    params: Params
    last_params: Params
    losses: Tensor
    best_loss: Tensor
    best_step: Tensor
    status: tuple[str, ...]
    optimizer: EnsembleOptimizer
    members: Tensor


def fit_ensemble(
    loss_fn: LossFunction,
    params: Params,
    data: Data,
    optimizer: EnsembleOptimizer,
    *,
    max_steps: int = 1000,
    batch_size: int | None = None,
    validation: Data = None,
    check_every: int = 10,
    patience: int | None = None,
    min_delta: float = 0.0,
    schedule: ReduceOnPlateau | None = None,
    compact: bool = False,
    progress: bool = False,
    generator: torch.Generator | None = None,
) -> FitResult:
    """Fit all members at once, each until it stops improving; one bad member never disturbs the others.

    Parameters
    ----------
    loss_fn : callable
        Takes one member's parameters and a batch, returns its loss, a scalar; written for a single member.
    params : dict of str -> Tensor, shape (members, ...)
        Initial parameters, as the optimizer was made for.
    data : Tensor, or tuple, list or dict of such, shape (samples, ...)
        What all members are fitted to.
    optimizer : BatchedSGD, BatchedAdam or BatchedLBFGS
        The optimizer.
    max_steps : int
        Steps to take at most. Default 1000.
    batch_size : int or None
        Samples per step, drawn with replacement, the same for all members; None takes all data at each step.
    validation : like `data`, or None
        What the monitored loss is measured on; None monitors the training loss.
    check_every : int
        Steps between two looks at the monitored loss. Default 10.
    patience : int or None
        Looks in a row without improvement after which a member stops; None never stops one.
    min_delta : float
        Fall of the loss that counts as an improvement. Default 0.
    schedule : ReduceOnPlateau or None
        Stepped with the monitored losses at each look.
    compact : bool
        Drop members that have ended whenever they are half of those computed, which saves their time. Default False.
    progress : bool
        Show a progress bar; needs `tqdm`. Default False.
    generator : torch.Generator or None
        Draws the batches.

    Returns
    -------
    FitResult
        Parameters, losses and fate of each member.

    Raises
    ------
    ImportError
        If `progress` is asked for and tqdm is not installed.

    Examples
    --------
    Three members fit y = 2 x; the rate of the last is far too high.

    >>> import torch
    >>> from batched_optim import BatchedSGD, fit_ensemble
    >>> x = torch.linspace(-1, 1, 20)
    >>> loss = lambda member, batch: ((member["w"] * batch[0] - batch[1]) ** 2).mean()
    >>> params = {"w": torch.zeros(3)}
    >>> optimizer = BatchedSGD(params, [], lr=torch.tensor([0.1, 0.2, 1e6]))
    >>> result = fit_ensemble(loss, params, (x, 2 * x), optimizer, max_steps=200)
    >>> result.status, [round(w, 3) for w in result.params["w"].tolist()]
    (('completed', 'completed', 'diverged'), [2.0, 2.0, 0.0])
    """
    check_range("max_steps", max_steps, 0)
    check_range("check_every", check_every, 1)
    check_range("min_delta", min_delta, 0.0)
    if patience is not None:
        check_range("patience", patience, 1)
    if batch_size is not None:
        check_range("batch_size", batch_size, 1)
    run = _Run(loss_fn, params, optimizer, schedule, patience, min_delta)
    for step in _counted(max_steps, progress):
        batch = data if batch_size is None else _draw(data, batch_size, generator)
        run.measure(batch)
        if step % check_every == 0:
            run.look(step, validation)
            if not run.any_active():
                break
            if compact:
                run.compact()
        run.move()
    else:
        run.look(max_steps, data if validation is None else validation)
    return run.result()


class _Run:
    """The state of a fit: tensors over the members still computed, and stores over all."""

    def __init__(
        self,
        loss_fn: LossFunction,
        params: Params,
        optimizer: EnsembleOptimizer,
        schedule: ReduceOnPlateau | None,
        patience: int | None,
        min_delta: float,
    ) -> None:
        self.optimizer = optimizer
        self.schedule = schedule
        self.patience = patience
        self.min_delta = min_delta
        layout = optimizer._layout
        layout.check_params(params)
        self.batched = [name for name, spec in layout.specs.items() if not spec.shared]
        axes = {name: None if spec.shared else 0 for name, spec in layout.specs.items()}
        self.differentiate = vmap(grad_and_value(loss_fn), in_dims=(axes, None), randomness="different")
        self.evaluate = vmap(loss_fn, in_dims=(axes, None), randomness="different")
        self.params = {name: tensor.detach() for name, tensor in params.items()}
        size, device = layout.size, layout.device
        self.members = torch.arange(size, device=device)
        self.active = torch.ones(size, dtype=torch.bool, device=device)
        self.waited = torch.zeros(size, dtype=torch.int64, device=device)
        self.best = {name: self.params[name].clone() for name in self.batched}
        self.last = {name: self.params[name].clone() for name in self.batched}
        self.best_loss = torch.full((size,), torch.inf, dtype=torch.float64, device=device)
        self.best_step = torch.full((size,), -1, dtype=torch.int64, device=device)
        self.status = torch.zeros(size, dtype=torch.int64, device=device)
        self.history: list[Tensor] = []

    def measure(self, batch: Data) -> None:
        """Compute losses and gradients; members whose are not finite have diverged."""
        self.grads, self.losses = self.differentiate(self.params, batch)
        finite = torch.isfinite(self.losses)
        for gradient in self.grads.values():
            if gradient.numel():
                finite = finite & finite_rows(gradient)
        self._end(self.active & ~finite, "diverged")
        row = torch.full_like(self.best_loss, torch.nan)
        row[self.members] = torch.where(self.active, self.losses.double(), torch.nan)
        self.history.append(row)

    @torch.no_grad()
    def look(self, step: int, validation: Data) -> None:
        """Note improvements of the monitored loss, and stop members whose patience is over."""
        losses = (self.losses if validation is None else self.evaluate(self.params, validation)).double()
        best = self.best_loss[self.members]
        improved = self.active & (losses < best - torch.where(torch.isinf(best), 0.0, self.min_delta))
        self.best_loss[self.members] = torch.where(improved, losses, best)
        self.best_step[self.members] = torch.where(improved, step, self.best_step[self.members])
        for name in self.batched:
            old = self.best[name][self.members]
            chosen = improved.reshape(-1, *[1] * (old.ndim - 1))
            self.best[name][self.members] = torch.where(chosen, self.params[name], old)
        self.waited = torch.where(improved, 0, self.waited + 1)
        if self.patience is not None:
            self._end(self.active & (self.waited >= self.patience), "stopped")
        if self.schedule is not None:
            self.schedule.step(losses)

    def _end(self, ended: Tensor, status: str) -> None:
        self.status[self.members] = torch.where(ended, STATUS.index(status), self.status[self.members])
        self.active = self.active & ~ended

    def any_active(self) -> bool:
        """Tell whether any member is still being fitted."""
        return bool(self.active.any())

    def move(self) -> None:
        """Take one step."""
        self.params = self.optimizer.step(self.params, self.grads, self.active)

    def compact(self) -> None:
        """Drop the members that have ended if they are at least half."""
        rows = self.active.nonzero()[:, 0]
        if 2 * len(rows) > len(self.active):
            return
        self._store()
        self.optimizer = self.optimizer.select(rows)
        if self.schedule is not None:
            self.schedule = self.schedule.select(rows, self.optimizer)
        self.params = {name: t[rows] if name in self.batched else t for name, t in self.params.items()}
        self.grads = {name: gradient[rows] for name, gradient in self.grads.items()}
        self.losses = self.losses[rows]
        self.members, self.active, self.waited = self.members[rows], self.active[rows], self.waited[rows]

    def _store(self) -> None:
        for name in self.batched:
            self.last[name][self.members] = self.params[name]

    def result(self) -> FitResult:
        """Return what became of each member."""
        self._store()
        shared = {name: tensor for name, tensor in self.params.items() if name not in self.batched}
        losses = torch.stack(self.history) if self.history else self.best_loss.new_empty((0, len(self.best_loss)))
        order = list(self.params)
        best, last = {**self.best, **shared}, {**self.last, **shared}
        return FitResult(
            params={name: best[name] for name in order},
            last_params={name: last[name] for name in order},
            losses=losses,
            best_loss=self.best_loss,
            best_step=self.best_step,
            status=tuple(STATUS[code] for code in self.status.tolist()),
            optimizer=self.optimizer,
            members=self.members,
        )


def _counted(steps: int, progress: bool) -> Iterator[int]:
    """Return the numbers of the steps, behind a progress bar if asked for."""
    if not progress:
        return iter(range(steps))
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise ImportError("`progress=True` needs tqdm; install it by `python -m pip install tqdm`.") from error
    return iter(tqdm(range(steps), desc="fit_ensemble", unit="step"))


def _draw(data: Data, size: int, generator: torch.Generator | None) -> Data:
    """Return random samples of all data."""
    first = _first(data)
    device = first.device if generator is None else generator.device
    chosen = torch.randint(len(first), (size,), generator=generator, device=device).to(first.device)
    return _index(data, chosen)


def _first(data: Data) -> Tensor:
    """Return the first tensor of some data."""
    if isinstance(data, Tensor):
        return data
    parts = list(data.values()) if isinstance(data, dict) else list(data)
    return _first(parts[0])


def _index(data: Data, chosen: Tensor) -> Data:
    """Return chosen samples of all tensors of some data."""
    if isinstance(data, Tensor):
        return data[chosen]
    if isinstance(data, dict):
        return {key: _index(part, chosen) for key, part in data.items()}
    return type(data)(_index(part, chosen) for part in data)
