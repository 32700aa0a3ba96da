"""The compact form of L-BFGS.

The inverse-Hessian estimate of m pairs is applied in its compact form (Byrd, Nocedal & Schnabel 1994, theorem 2.2)::

    H g = gamma * g + S c - gamma * Y a,    a = R^-1 S'g,    c = R^-T ((D + gamma * Y'Y) a - gamma * Y'g)

with R the upper triangle, in order of age, of S'Y, and D its diagonal. It equals the two-loop recursion, but reads the
history twice rather than in 2 m dependent steps; all else happens on m x m matrices, in float64.

The history is a ring of m + 1 slots: a new pair is always written to the free one, and if it is accepted the slot of
the oldest pair becomes the free one; nothing is ever shifted or copied. R^-1 and Y'Y are kept in the order of the slots
and updated by one row and column per pair. Two facts make that exact. Appending a pair to an upper triangular matrix
leaves the inverse of the rest as it was, and the inverse without its oldest row and column is the inverse of the rest.
Free slots are rows and columns of zeros in R^-1, so that no masks are needed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._members import Rows


class Pairing:
    """The large tensors of one parameter during an update."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.history = rows.buffers["history"].flatten(1, 2)  # slot by slot: s, y
        self.previous = rows.buffers["previous"]
        self.gradient = as_vectors(rows.gradient, None)
        self.theta = as_vectors(rows.theta, None).to(self.gradient.dtype)
        s, y = self.theta - self.previous[:, 0], self.gradient - self.previous[:, 1]
        self.vectors = torch.stack((s, y, self.gradient), 1)
        self.direction = self.gradient

    def gram(self) -> Tensor:
        """Return the inner products of s and y with each other, shape (rows, 2, 2)."""
        pair = self.vectors[:, :2]
        return torch.bmm(pair, pair.transpose(1, 2))

    def record(self, head: Tensor) -> None:
        """Write the new pair to the free slot."""
        history = self.rows.buffers["history"]
        rows, slots, _, width = history.shape
        slot = head + slots * torch.arange(rows, device=head.device)
        history.view(rows * slots, 2 * width).index_copy_(0, slot, self.vectors[:, :2].reshape(rows, 2 * width))

    def products(self) -> Tensor:
        """Return the inner products of the new y and of g with the history, shape (rows, 2, 2 * slots)."""
        return torch.bmm(self.vectors[:, 1:], self.history.transpose(1, 2))

    def combine(self, weights: Tensor) -> None:
        """Set the direction, up to the factor gamma: the gradient plus the weighted history."""
        weights = weights[:, None].to(self.history.dtype)
        self.direction = torch.baddbmm(self.gradient[:, None], weights, self.history)[:, 0]

    def norms(self) -> Tensor:
        """Return the L2 norm of each row's direction, shape (rows,), in float64: squares would overflow float32."""
        norms: Tensor = torch.linalg.vector_norm(self.direction, dim=1, dtype=torch.float64)
        return norms

    def step_direction(self) -> Tensor:
        """Return the direction in the shape of the parameter, made finite for rows that do not move."""
        return torch.nan_to_num_(self.direction, 0.0, 0.0, 0.0).view_as(self.rows.gradient)

    def remember(self, active: Tensor) -> None:
        """Keep parameters and gradient for the next pair, of active rows only where inactive ones hold their buffers.

        What is not finite is kept as zero: the next pair is not accepted then, but it must be finite to be harmless.
        """
        for side, new in enumerate((self.theta, self.gradient)):
            old = self.previous[:, side]
            kept = torch.nan_to_num(new, 0.0, 0.0, 0.0)
            old.copy_(torch.where(active[:, None], kept, old) if self.rows.holds_buffers else kept)


def judge(gram: Tensor, candidate: Tensor, curvature_eps: float | None) -> tuple[Tensor, Tensor]:
    """Return which candidate rows store their new pair, and which reject it.

    Parameters
    ----------
    gram : Tensor, shape (rows, 2, 2)
        Inner products of s and y.
    candidate : Tensor, shape (rows,)
        Rows that have a pair.
    curvature_eps : float or None
        Threshold on the cosine of s and y; None accepts all with s != 0.
    """
    ss, sy, yy = gram[:, 0, 0], gram[:, 0, 1], gram[:, 1, 1]
    if curvature_eps is None:
        accepted = (ss > 0) & torch.isfinite(ss + yy)
    else:
        accepted = sy > curvature_eps * ss.sqrt() * yy.sqrt()
    return candidate & accepted, candidate & ~accepted


def recur(state: dict[str, Tensor], stored: Tensor, gram_of_pair: Tensor, products: Tensor) -> Tensor:
    """Take the new pairs into the small matrices; return the weights of the history in the direction.

    Parameters
    ----------
    state : dict of str -> Tensor
        `inverse`, `gram`, `gamma`, `head` and `hist_count`, updated in place.
    stored : Tensor, shape (rows,)
        Which rows have a new pair, in slot `head`.
    gram_of_pair : Tensor, shape (rows, 2, 2)
        Inner products of the new s and y.
    products : Tensor, shape (rows, 2, slots, 2)
        Inner products of the new y and of g with each slot's s and y.

    Returns
    -------
    Tensor, shape (rows, 2 * slots)
        Weights of s and y, slot by slot, of which the direction is gamma * (g + their sum).
    """
    inverse, gram, head = state["inverse"], state["gram"], state["head"]
    (s_y, y_y), (s_g, y_g) = (block.unbind(2) for block in products.unbind(1))
    sy, yy = gram_of_pair[:, 0, 1], gram_of_pair[:, 1, 1]
    slots = inverse.shape[1]
    row, column = (-1, 1, slots), (-1, slots, 1)
    new = head[:, None, None].clone()
    head.add_(stored).remainder_(slots)
    freed = head[:, None, None]

    # Of a rejected pair, zeros are written to the row and column of the slot that stays free, which hold zeros.
    inverse.scatter_(1, freed.expand(row), 0.0)
    own = torch.arange(slots, device=head.device) == new[:, 0]
    appended = torch.where(own, 1.0, -_times(inverse, s_y)) / sy[:, None]
    inverse.scatter_(2, new.expand(column), torch.where(stored[:, None], appended, 0.0).view(column))
    crossed = torch.where(stored[:, None], y_y, 0.0)
    gram.scatter_(1, new.expand(row), crossed.view(row)).scatter_(2, new.expand(column), crossed.view(column))
    gamma = state["gamma"].copy_(torch.where(stored, sy / yy, state["gamma"]))
    state["hist_count"].add_(stored).clamp_(max=slots - 1)

    diagonal = inverse.diagonal(dim1=1, dim2=2)
    curvatures = torch.where(diagonal != 0, diagonal, torch.inf).reciprocal()
    first = _times(inverse, s_g)
    second = curvatures * first + gamma[:, None] * (_times(gram, first) - y_g)
    return torch.stack((_times(inverse.transpose(1, 2), second) / gamma[:, None], -first), 2).flatten(1)


def forget(state: dict[str, Tensor], failed: Tensor) -> None:
    """Empty the histories of some rows; without their inverse, no slot has any weight."""
    state["inverse"].masked_fill_(failed[:, None, None], 0.0)
    state["gamma"].masked_fill_(failed, 1.0)
    state["hist_count"].masked_fill_(failed, 0)


def _times(matrices: Tensor, vectors: Tensor) -> Tensor:
    """Return the product of each row's matrix and vector."""
    return torch.bmm(matrices, vectors[:, :, None])[:, :, 0]


def as_vectors(tensor: Tensor, rows: slice | None) -> Tensor:
    """Return some rows of a tensor as vectors, shape (rows, elements)."""
    chosen = tensor if rows is None else tensor[rows]
    return chosen.reshape(len(chosen), -1)


def ring_order(head: Tensor, size: int) -> Tensor:
    """Return the slots of each row from the oldest pair to the newest, shape (rows, size)."""
    return (head[:, None] + torch.arange(1, size + 1, device=head.device)) % (size + 1)
