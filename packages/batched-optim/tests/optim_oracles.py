"""References that share no code with the package: PyTorch's optimizers, and L-BFGS as the textbook has it."""

import torch


class Loop:
    """One of PyTorch's optimizers for each member, and one for the shared parameters.

    It is given the rate of each member and, at each step, what the shared parameters' gradient and rate are to be.
    """

    def __init__(self, kind, params, shared, rates, **options):
        self.members = []
        for i, rate in enumerate(rates.tolist()):
            own = {name: torch.nn.Parameter(p[i].clone()) for name, p in params.items() if name not in shared}
            self.members.append((own, kind(list(own.values()), lr=rate, **options)))
        self.shared = {name: torch.nn.Parameter(params[name].clone()) for name in shared}
        self.shared_optimizer = kind(list(self.shared.values()), lr=1.0, **options) if shared else None

    def step(self, grads, mask=None, shared_rate=None):
        """Step the active members, and the shared parameters if any member is active."""
        active = range(len(self.members)) if mask is None else mask.nonzero()[:, 0].tolist()
        for i in active:
            own, optimizer = self.members[i]
            for name, parameter in own.items():
                parameter.grad = grads[name][i].clone()
            optimizer.step()
        if self.shared and len(active):
            for name, parameter in self.shared.items():
                parameter.grad = torch.stack([grads[name][i] for i in active]).mean(dim=0)
            self.shared_optimizer.param_groups[0]["lr"] = shared_rate
            self.shared_optimizer.step()

    def params(self):
        """Return the parameters stacked over members."""
        names = self.members[0][0]
        own = {name: torch.stack([member[name].detach() for member, _ in self.members]) for name in names}
        return {**own, **{name: parameter.detach() for name, parameter in self.shared.items()}}


class TwoLoop:
    """L-BFGS for one vector: Nocedal & Wright, Numerical Optimization, 2nd edition, algorithm 7.4."""

    def __init__(self, history_size=10, max_step=1.0, curvature_eps=1e-8):
        self.history_size = history_size
        self.max_step = max_step
        self.curvature_eps = curvature_eps
        self.pairs = []
        self.previous = None

    def step(self, theta, gradient, rate):
        """Return the next vector."""
        if self.previous is not None:
            s, y = theta - self.previous[0], gradient - self.previous[1]
            if s @ y > self.curvature_eps * s.norm() * y.norm():
                self.pairs = [*self.pairs, (s, y)][-self.history_size :]
        self.previous = (theta, gradient)
        update = rate * self.direction(gradient)
        if self.max_step is not None and update.norm() > self.max_step:
            update = update * (self.max_step / update.norm())
        return theta - update

    def direction(self, gradient):
        """Return H g by the two loops."""
        q = gradient.clone()
        alphas = []
        for s, y in reversed(self.pairs):
            alphas.append((s @ q) / (s @ y))
            q = q - alphas[-1] * y
        if self.pairs:
            s, y = self.pairs[-1]
            q = q * ((s @ y) / (y @ y))
        for (s, y), alpha in zip(self.pairs, reversed(alphas), strict=True):
            q = q + s * (alpha - (y @ q) / (s @ y))
        return q
