"""Models as users write them, with the treatment that each parameter must get and the rule that is exact on them."""

from typing import NamedTuple

import brainevent
import brainpy.state
import brainstate
import brainunit
import jax
import jax.numpy as jnp
import numpy as np

import etrace_config

brainevent.config.set_backend("cpu", "jax_raw")  # its default there needs numba
INPUTS, UNITS = 3, 4
ms, mA, mS, mV = brainunit.ms, brainunit.mA, brainunit.mS, brainunit.mV


class Spiking(brainstate.nn.Module):
    """A recurrent spiking layer: weights, an exponential synapse as current, and neurons, with physical units."""

    def __init__(self, neuron, **options):
        super().__init__()
        self.weights = brainstate.nn.Linear(INPUTS + UNITS, UNITS)
        self.synapse = brainpy.state.Expon(UNITS, tau=5.0 * ms, g_initializer=brainstate.nn.init.Constant(0.0 * mA))
        self.neuron = neuron(UNITS, V_initializer=brainstate.nn.init.Constant(0.5 * mV), **options)

    def update(self, x):
        joined = jnp.concatenate([x, self.neuron.get_spike()], axis=-1)
        return self.neuron(self.synapse(5.0 * self.weights(joined) * mA) + 3.0 * mA)


class ConductanceBased(brainstate.nn.Module):
    """Excitatory and inhibitory conductances onto one layer of neurons."""

    def __init__(self):
        super().__init__()
        make = lambda: brainpy.state.Expon(UNITS, tau=5.0 * ms, g_initializer=brainstate.nn.init.Constant(0.0 * mS))
        self.excite, self.inhibit = brainstate.nn.Linear(INPUTS, UNITS), brainstate.nn.Linear(UNITS, UNITS)
        self.g_e, self.g_i = make(), make()
        self.neuron = brainpy.state.LIF(UNITS, V_initializer=brainstate.nn.init.Constant(0.5 * mV), tau=20.0 * ms)

    def update(self, x):
        spikes = self.neuron.get_spike()
        g_e = self.g_e(jax.nn.softplus(self.excite(x)) * mS)
        g_i = self.g_i(jax.nn.softplus(self.inhibit(spikes)) * mS)
        v = self.neuron.V.value
        return self.neuron(g_e * (4.0 * mV - v) + g_i * (-2.0 * mV - v) + 0.5 * brainunit.uA)


class Projections(brainstate.nn.Module):
    """Excitatory and inhibitory populations as projections onto one layer, through conductances of their own."""

    def __init__(self):
        super().__init__()
        self.neuron = brainpy.state.LIF(
            2 * UNITS,
            V_rest=0.0 * mV,
            V_reset=0.0 * mV,
            V_th=1.0 * mV,
            tau=20.0 * ms,
            V_initializer=brainstate.nn.init.Constant(0.5 * mV),
        )
        self.drive = brainstate.nn.Linear(INPUTS, 2 * UNITS)
        self.excite, self.inhibit = self._onto(5.0 * ms, 4.0 * mV), self._onto(8.0 * ms, -2.0 * mV)

    def _onto(self, tau, reversal):
        weight = brainstate.nn.init.Normal(0.1, 0.3, unit=mS)
        return brainpy.state.AlignPostProj(
            comm=brainstate.nn.Linear(UNITS, 2 * UNITS, w_init=weight, b_init=None),
            syn=brainpy.state.Expon.desc(2 * UNITS, tau=tau, g_initializer=brainstate.nn.init.Constant(0.0 * mS)),
            out=brainpy.state.COBA.desc(E=reversal),
            post=self.neuron,
        )

    def update(self, x):
        spikes = self.neuron.get_spike()
        self.excite(spikes[..., :UNITS])
        self.inhibit(spikes[..., UNITS:])
        self.neuron(self.drive(x) * mA + 2.0 * mA)
        return self.neuron.get_spike()


class Events(brainstate.nn.Module):
    """A recurrent layer whose spikes travel through an event-driven sparse product."""

    def __init__(self, connect):
        super().__init__()
        self.weights, self.recurrent = brainstate.nn.Linear(INPUTS, UNITS), connect()
        self.synapse = brainpy.state.Expon(UNITS, tau=5.0 * ms, g_initializer=brainstate.nn.init.Constant(0.0 * mA))
        self.neuron = brainpy.state.ALIF(UNITS, V_initializer=brainstate.nn.init.Constant(0.5 * mV))

    def update(self, x):
        events = brainevent.BinaryArray(self.neuron.get_spike())
        return self.neuron(self.synapse(5.0 * (self.weights(x) + self.recurrent(events)) * mA) + 3.0 * mA)


def compressed_rows():
    """Return a sparse layer of nine connections."""
    matrix = np.random.default_rng(3).normal(size=(UNITS, UNITS)) * (np.add.outer(range(UNITS), range(UNITS)) % 2 == 1)
    return brainstate.nn.SparseLinear(brainevent.CSR.fromdense(jnp.asarray(matrix)))


def fixed_number():
    """Return a layer of two connections per unit."""
    return brainstate.nn.EventFixedNumConn(UNITS, UNITS, 2, brainstate.nn.init.Normal(0.0, 1.0), seed=0)


class DelayLine(brainstate.nn.Module):
    """Outputs that come back two steps late, through a line of hidden states."""

    def __init__(self):
        super().__init__()
        self.weights = brainstate.nn.Linear(INPUTS + UNITS, UNITS)

    def init_state(self, batch_size=None, **kwargs):
        lead = () if batch_size is None else (batch_size,)
        make = lambda *shape: brainstate.HiddenState(jnp.zeros((*lead, *shape), brainstate.environ.dftype()))
        self.h, self.line = make(UNITS), make(2, UNITS)

    def update(self, x):
        late = self.line.value[..., -1, :]
        self.h.value = 0.7 * self.h.value + jnp.tanh(self.weights(jnp.concatenate([x, late], -1)))
        self.line.value = jnp.stack([self.h.value, self.line.value[..., 0, :]], axis=-2)
        return self.h.value


class Normalised(brainstate.nn.Module):
    """Layer norm and dropout inside the recurrence, dropout after it."""

    def __init__(self):
        super().__init__()
        self.weights, self.readout = brainstate.nn.Linear(INPUTS + UNITS, UNITS), brainstate.nn.Linear(UNITS, 2)
        self.norm, self.dropout = brainstate.nn.LayerNorm(UNITS), brainstate.nn.Dropout(0.7)

    def init_state(self, batch_size=None, **kwargs):
        shape = (UNITS,) if batch_size is None else (batch_size, UNITS)
        self.h = brainstate.HiddenState(jnp.zeros(shape, brainstate.environ.dftype()))

    def update(self, x):
        drive = self.dropout(self.weights(jnp.concatenate([x, self.h.value], -1)))
        self.h.value = 0.5 * self.h.value + jnp.tanh(self.norm(drive))
        return self.readout(self.dropout(self.h.value))


class Stack(brainstate.nn.Module):
    """Two recurrent cells and a readout."""

    def __init__(self):
        super().__init__()
        self.low, self.high = brainstate.nn.GRUCell(INPUTS, 3), brainstate.nn.LSTMCell(3, UNITS)
        self.readout = brainstate.nn.Linear(UNITS, 2)

    def update(self, x):
        return self.readout(self.high(self.low(x)))


class Listed(brainstate.nn.Module):
    """Hidden states in a list, written by hand in jax.numpy."""

    def __init__(self):
        super().__init__()
        self.w = brainstate.ParamState(jnp.zeros((INPUTS + UNITS, UNITS)))
        self.leak = brainstate.ParamState(jnp.zeros(UNITS))

    def init_state(self, batch_size=None, **kwargs):
        shape = (UNITS,) if batch_size is None else (batch_size, UNITS)
        make = lambda: brainstate.HiddenState(jnp.zeros(shape, brainstate.environ.dftype()))
        self.layers = [make(), make()]

    def update(self, x):
        slow, fast = self.layers
        leak = jax.nn.sigmoid(self.leak.value)
        fast.value = jnp.tanh(jnp.concatenate([x, slow.value], -1) @ self.w.value)
        slow.value = leak * slow.value + (1 - leak) * fast.value
        return slow.value


class Row(NamedTuple):
    """A model, the parameters that are learned in-step only, and whether its exact rule needs joint groups."""

    build: object
    in_step: tuple = ()
    hidden_groups: str = "joint"


EXACT = etrace_config.snap(16)  # at and above every diameter of the zoo
ZOO = {
    "lif": Row(lambda: Spiking(brainpy.state.LIF)),
    "alif": Row(lambda: Spiking(brainpy.state.ALIF)),
    "gif": Row(lambda: Spiking(brainpy.state.Gif)),
    "conductances": Row(ConductanceBased),
    "projections": Row(Projections),
    "sparse-events": Row(lambda: Events(compressed_rows)),
    "fixed-number-events": Row(lambda: Events(fixed_number)),
    "delay-line": Row(DelayLine),
    "norm-and-dropout": Row(Normalised, in_step=("readout.weight",)),
    "stack": Row(Stack, in_step=("readout.weight",)),
    "listed": Row(Listed),
}
