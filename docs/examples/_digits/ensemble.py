"""Experiment (b): an ensemble of small candidate classifiers, every member at its own learning rate.

Each member sees its own six principal components of the digits, through second-degree polynomial features or
through radial basis functions with centres that move. One optimizer steps all members at once; the class bias is
shared by all of them. Half-way everything is saved, and a new process takes over from the file.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import batched_optim as bo

from .data import images

MEMBERS = 64
COMPONENTS = 24  # principal components to draw from
SEEN = 6  # components that one member sees
CENTRES = 24
CLASSES = 10
SHARED = ("bias",)

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Fit:
    """One ensemble and one optimizer: steps, and the lowest and highest of the members' learning rates."""

    family: str
    optimizer: str
    steps: int
    rates: tuple[float, float]

    @property
    def name(self) -> str:
        """Return the stem of the fit's files."""
        return f"{self.family}-{self.optimizer}"


FITS = [
    Fit(family, optimizer, steps, rates)
    for family in ("polynomial", "rbf")
    for optimizer, steps, rates in (("sgd", 120, (0.01, 1.0)), ("adam", 120, (0.002, 0.2)), ("lbfgs", 40, (0.03, 1.0)))
]


@dataclass
class Outcome:
    """What became of a fit: the members' training losses before every step, and their test accuracies."""

    family: str
    optimizer: str
    rates: list[float]
    accuracy: list[float]
    vote: float
    best_loss: list[float]
    median_loss: list[float]
    seconds: float = 0.0
    identical: bool = False

    @property
    def best(self) -> float:
        """Return the best member's test accuracy."""
        return max(self.accuracy)


@dataclass(frozen=True)
class Views:
    """The members' inputs, shape (members, samples, seen), and the labels."""

    train_x: torch.Tensor
    train_y: torch.Tensor
    test_x: torch.Tensor
    test_y: torch.Tensor


def views() -> Views:
    """Return the components each member sees; the same in every process."""
    digits = images()
    flat, test = digits.train_x.reshape(-1, 64), digits.test_x.reshape(-1, 64)
    mean = flat.mean(0)
    _, scale, axes = np.linalg.svd(flat - mean, full_matrices=False)
    whiten = axes[:COMPONENTS].T * (len(flat) ** 0.5 / scale[:COMPONENTS])
    draw = np.random.default_rng(0)
    seen = np.stack([draw.choice(COMPONENTS, SEEN, replace=False) for _ in range(MEMBERS)])

    def look(x: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(((x - mean) @ whiten)[:, seen].swapaxes(0, 1), np.float32))

    return Views(look(flat), torch.from_numpy(digits.train_y), look(test), torch.from_numpy(digits.test_y))


def polynomial(params: Tensors, x: torch.Tensor) -> torch.Tensor:
    """Return one member's class scores from all products of at most two of its inputs."""
    row, column = torch.triu_indices(SEEN, SEEN)
    features = torch.cat([x, x[:, row] * x[:, column]], dim=1)
    return features @ params["weight"] + params["bias"]


def rbf(params: Tensors, x: torch.Tensor) -> torch.Tensor:
    """Return one member's class scores from bumps around its centres."""
    centres, x_norm = params["centre"], (x**2).sum(1, keepdim=True)
    squared = x_norm - 2 * x @ centres.T + (centres**2).sum(1)
    return torch.exp(-squared * torch.exp(params["log_precision"])) @ params["weight"] + params["bias"]


SCORES: dict[str, Callable[[Tensors, torch.Tensor], torch.Tensor]] = {"polynomial": polynomial, "rbf": rbf}


def initial_parameters(family: str, x: torch.Tensor) -> Tensors:
    """Return every member's start: zero weights, and centres on samples of the member's own view."""
    shared = {"bias": torch.zeros(CLASSES)}
    if family == "polynomial":
        return {"weight": torch.zeros(MEMBERS, SEEN + SEEN * (SEEN + 1) // 2, CLASSES)} | shared
    chosen = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(0))[:CENTRES]
    return {
        "centre": x[:, chosen].clone(),
        "log_precision": torch.full((MEMBERS, CENTRES), -1.5),
        "weight": torch.zeros(MEMBERS, CENTRES, CLASSES),
    } | shared


class Ensemble:
    """Parameters, optimizer and data of one fit; `advance` is the whole training loop."""

    def __init__(self, fit: Fit, data: Views):
        self.fit, self.data, self.scores = fit, data, SCORES[fit.family]
        self.params = initial_parameters(fit.family, data.train_x)
        self.rates = torch.logspace(*np.log10(fit.rates).tolist(), MEMBERS)
        self.optimizer = bo.make_optimizer(fit.optimizer, self.params, SHARED, lr=self.rates)
        self.axes = {name: None if name in SHARED else 0 for name in self.params}
        self.gradient = torch.func.vmap(torch.func.grad_and_value(self.loss), in_dims=(self.axes, 0, None))

    def loss(self, params: Tensors, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return one member's cross-entropy."""
        return torch.nn.functional.cross_entropy(self.scores(params, x), y)

    def advance(self, steps: int, progress: tqdm | None = None) -> list[torch.Tensor]:
        """Take `steps` steps with all members and return their losses, shape (members,), before each step."""
        losses = []
        for _ in range(steps):
            grads, loss = self.gradient(self.params, self.data.train_x, self.data.train_y)
            self.params = self.optimizer.step(self.params, grads)
            losses.append(loss)
            if progress is not None:
                progress.set_postfix_str(f"{self.fit.name}: best loss {float(loss.min()):.3f}", refresh=False)
                progress.update()
        return losses

    def save(self, path: Path) -> None:
        """Write parameters and optimizer state to one file."""
        bo.save(path, self.optimizer, params=self.params)

    def resume(self, path: Path) -> None:
        """Take parameters and optimizer state from a file."""
        self.params = bo.load_into(path, self.optimizer)

    def test(self) -> tuple[list[float], float]:
        """Return each member's test accuracy and that of their summed probabilities."""
        scores = torch.func.vmap(self.scores, in_dims=(self.axes, 0))(self.params, self.data.test_x)
        votes = torch.cat([scores.argmax(-1), scores.softmax(-1).sum(0).argmax(-1)[None]])
        *members, vote = (votes == self.data.test_y).double().mean(1).tolist()
        return members, vote


def run_straight(fit: Fit, data: Views, folder: Path, progress: tqdm) -> Outcome:
    """Fit without a break, leaving a file at the half and one at the end."""
    ensemble = Ensemble(fit, data)
    started = time.perf_counter()
    losses = ensemble.advance(fit.steps // 2, progress)
    ensemble.save(folder / f"{fit.name}-half.safetensors")
    losses += ensemble.advance(fit.steps - fit.steps // 2, progress)
    seconds = time.perf_counter() - started
    ensemble.save(folder / f"{fit.name}-straight.safetensors")
    accuracy, vote = ensemble.test()
    history = torch.stack(losses)
    return Outcome(
        fit.family,
        fit.optimizer,
        ensemble.rates.tolist(),
        accuracy,
        vote,
        best_loss=history.amin(1).tolist(),
        median_loss=history.median(1).values.tolist(),
        seconds=seconds,
    )


def resume_all(folder: Path) -> None:
    """Run the second half of every fit from its file; meant for a process that has seen nothing of the first."""
    data = views()
    for fit in FITS:
        ensemble = Ensemble(fit, data)
        ensemble.resume(folder / f"{fit.name}-half.safetensors")
        ensemble.advance(fit.steps - fit.steps // 2)
        ensemble.save(folder / f"{fit.name}-resumed.safetensors")


def run_all(folder: Path, script: Path, progress: tqdm) -> list[Outcome]:
    """Fit both families with all optimizers, then let a new process (`script --resume`) repeat the second halves."""
    folder.mkdir(parents=True, exist_ok=True)
    data = views()
    outcomes = [run_straight(fit, data, folder, progress) for fit in FITS]
    progress.set_postfix_str("a new process resumes all fits")
    subprocess.run([sys.executable, str(script), "--resume", str(folder)], check=True)
    for fit, outcome in zip(FITS, outcomes, strict=True):
        straight, resumed = (folder / f"{fit.name}-{end}.safetensors" for end in ("straight", "resumed"))
        outcome.identical = straight.read_bytes() == resumed.read_bytes()
    return outcomes
