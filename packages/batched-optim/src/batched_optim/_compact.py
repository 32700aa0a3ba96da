"""The compact form of L-BFGS.

The inverse-Hessian estimate of m pairs is applied in its compact form (Byrd, Nocedal & Schnabel 1994, theorem 2.2)::

    H g = gamma * g + S c - gamma * Y a,    a = R^-1 S'g,    c = R^-T ((D + gamma * Y'Y) a - gamma * Y'g)

with R the upper triangle, in order of age, of S'Y, and D its diagonal. It equals the two-loop recursion, but reads the
history twice rather than in 2 m dependent steps; all else happens on m x m matrices, in float64.

The history is a ring: a new pair overwrites the oldest and nothing is ever shifted. R^-1 and Y'Y are kept in the order
of the slots and updated by one row and column per pair. Two facts make that exact. Appending a pair to an upper
triangular matrix leaves the inverse of the rest as it was, and the inverse without its oldest row and column is the
inverse of the rest. Empty slots are rows and columns of zeros, so that no masks are needed.
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
        gradient = as_vectors(rows.gradient, None)
        self.current = torch.stack((as_vectors(rows.theta, None).to(gradient.dtype), gradient), 1)
        self.pair = self.current - self.previous
        self.direction = gradient

    def gram(self) -> Tensor:
        """Return the inner products of s and y with each other, shape (rows, 2, 2)."""
        return torch.bmm(self.pair, self.pair.transpose(1, 2))

    def record(self, head: Tensor, keep: Tensor) -> None:
        """Write the new pair over the oldest where it is to be kept."""
        history = self.rows.buffers["history"]
        index = torch.arange(len(head), device=head.device)
        history[index, head] = torch.where(keep[:, None, None], self.pair, history[index, head])

    def products(self) -> Tensor:
        """Return the inner products of g and of the new y with the history, shape (rows, 2, 2 * history_size)."""
        vectors = torch.stack((self.current[:, 1], self.pair[:, 1]), 1)
        return torch.bmm(vectors, self.history.transpose(1, 2))

    def combine(self, weights: Tensor) -> None:
        """Set the direction, up to the factor gamma: the gradient plus the weighted history."""
        weights = weights[:, None].to(self.history.dtype)
        self.direction = torch.baddbmm(self.current[:, 1:], weights, self.history)[:, 0]

    def norms(self) -> Tensor:
        """Return the L2 norm of each row's direction, shape (rows,)."""
        norms: Tensor = torch.linalg.vector_norm(self.direction, dim=1)
        return norms

    def remember(self, chosen: Tensor | None) -> None:
        """Keep parameters and gradient for the next pair, of the chosen rows only unless None."""
        current = self.current if chosen is None else torch.where(chosen[:, None, None], self.current, self.previous)
        self.previous.copy_(current)


def recur(state: dict[str, Tensor], stored: Tensor, curvature: Tensor, products: Tensor) -> Tensor:
    """Take the new pairs into the small matrices; return the weights of the history in the direction.

    Parameters
    ----------
    state : dict of str -> Tensor
        `inverse`, `gram`, `gamma`, `head` and `hist_count`, updated in place.
    stored : Tensor, shape (rows,)
        Which rows have a new pair, in slot `head`.
    curvature : Tensor, shape (rows,)
        y.s of the new pair.
    products : Tensor, shape (rows, 2, history_size, 2)
        Inner products of g and of the new y with each slot's s and y.

    Returns
    -------
    Tensor, shape (rows, 2 * history_size)
        Weights of s and y, slot by slot, of which the direction is gamma * (g + their sum).
    """
    inverse, gram, gamma, head = state["inverse"], state["gram"], state["gamma"], state["head"]
    (s_g, y_g), (s_y, y_y) = (block.unbind(2) for block in products.unbind(1))
    size = inverse.shape[1]
    slot = stored[:, None] & (torch.arange(size, device=head.device) == head[:, None])
    row, column = slot[:, :, None], slot[:, None, :]

    rest = inverse.masked_fill(row, 0.0)
    appended = torch.where(slot, 1.0, -_times(rest, s_y)) / curvature[:, None]
    inverse.copy_(torch.where(column, appended[:, :, None], rest))
    gram.copy_(torch.where(column, y_y[:, :, None], torch.where(row, y_y[:, None, :], gram)))
    head.add_(stored).remainder_(size)
    state["hist_count"].add_(stored).clamp_(max=size)

    diagonal = inverse.diagonal(dim1=1, dim2=2)
    curvatures = torch.where(diagonal != 0, diagonal, torch.inf).reciprocal()
    first = _times(inverse, s_g)
    second = curvatures * first + gamma[:, None] * (_times(gram, first) - y_g)
    return torch.stack((_times(inverse.transpose(1, 2), second) / gamma[:, None], -first), 2).flatten(1)


def _times(matrices: Tensor, vectors: Tensor) -> Tensor:
    """Return the product of each row's matrix and vector."""
    return torch.bmm(matrices, vectors[:, :, None])[:, :, 0]


def as_vectors(tensor: Tensor, rows: slice | None) -> Tensor:
    """Return some rows of a tensor as vectors, shape (rows, elements)."""
    chosen = tensor if rows is None else tensor[rows]
    return chosen.reshape(len(chosen), -1)


def ring_order(head: Tensor, size: int) -> Tensor:
    """Return the slots of each row from the oldest to the newest, shape (rows, size)."""
    return (head[:, None] + torch.arange(size, device=head.device)) % size
