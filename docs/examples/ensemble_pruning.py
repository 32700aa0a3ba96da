"""Fit several hundred small models of handwritten digits at once, and prune the worst half twice.

Each member is a network of one hidden layer with its own initial weights and its own learning rate. All of them are
fitted together, a quarter of the time; then the worse half goes, and the rest continue with their state as if the
others had never been there; and so once more. The plot shows every member's loss, those pruned in grey.

    python docs/examples/ensemble_pruning.py            # 256 members, about a minute on one core
    python docs/examples/ensemble_pruning.py 32 60      # members, steps per round
"""

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from sklearn.datasets import load_digits

from batched_optim import BatchedAdam, fit_ensemble

mpl.use("Agg")
import matplotlib.pyplot as plt

HIDDEN, CLASSES, ROUNDS = 12, 10, 3
MEMBERS, STEPS = map(int, sys.argv[1:3]) if len(sys.argv) > 2 else (256, 150)

# %% The data: 1,797 scans of 8 by 8 pixels, a quarter of them held back.

digits = load_digits()
generator = torch.Generator().manual_seed(0)
order = torch.randperm(len(digits.target), generator=generator)
inputs = torch.tensor(digits.data, dtype=torch.float32)[order] / 16
targets = torch.tensor(digits.target)[order]
train = inputs[:1350], targets[:1350]
test = inputs[1350:], targets[1350:]

# %% The models. A loss is written for one member; the ensemble is on the leading dimension of every tensor.


def logits(member, x):
    return torch.tanh(x @ member["w1"] + member["b1"]) @ member["w2"] + member["b2"]


def loss(member, batch):
    x, y = batch
    return torch.nn.functional.cross_entropy(logits(member, x), y)


params = {
    "w1": torch.randn(MEMBERS, 64, HIDDEN, generator=generator) / 8,
    "b1": torch.zeros(MEMBERS, HIDDEN),
    "w2": torch.randn(MEMBERS, HIDDEN, CLASSES, generator=generator) / HIDDEN**0.5,
    "b2": torch.zeros(MEMBERS, CLASSES),
}
rates = torch.logspace(-4, 0, MEMBERS)
optimizer = BatchedAdam(params, [], lr=rates)

# %% Fit, prune the worse half, fit, prune, fit.

histories = np.full((ROUNDS * STEPS, MEMBERS), np.nan)
members = torch.arange(MEMBERS)
for number in range(ROUNDS):
    result = fit_ensemble(
        loss, params, train, optimizer, max_steps=STEPS, batch_size=256, validation=test, generator=generator
    )
    histories[number * STEPS : number * STEPS + len(result.losses), members] = result.losses
    correct = torch.func.vmap(logits, in_dims=(0, None))(result.params, test[0]).argmax(2) == test[1]
    accuracy = correct.float().mean(dim=1)
    print(
        f"round {number + 1}: {len(members):4d} members, rates {optimizer.lr.min():.1e} to {optimizer.lr.max():.1e}, "
        f"accuracy median {accuracy.median():.3f}, best {accuracy.max():.3f}"
    )
    if number < ROUNDS - 1:
        survivors = result.best_loss.argsort()[: len(members) // 2].sort().values
        optimizer = result.optimizer.select(survivors)
        params = {name: tensor[survivors] for name, tensor in result.last_params.items()}
        members = members[survivors]

# %% Every member's loss.

figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
survived = np.isin(np.arange(MEMBERS), members.numpy())
colours = plt.colormaps["viridis"](np.linspace(0, 1, MEMBERS))
for member in range(MEMBERS):
    style = {"color": colours[member]} if survived[member] else {"color": "0.8", "zorder": 0}
    axes.plot(histories[:, member], linewidth=0.5, **style)
axes.set(xlabel="step", ylabel="training loss", yscale="log", title=f"{MEMBERS} members, the worse half pruned twice")
colour_bar = figure.colorbar(
    mpl.cm.ScalarMappable(mpl.colors.LogNorm(rates[0].item(), rates[-1].item()), "viridis"), ax=axes
)
colour_bar.set_label("learning rate of the survivors")
target = Path("demo-output") / "ensemble_pruning.png"
target.parent.mkdir(exist_ok=True)
figure.savefig(target, dpi=150)
print(f"wrote {target}")
