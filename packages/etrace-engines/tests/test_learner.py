"""The learner as an object: batches, resets, transforms, and refusals that change nothing."""

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_models import BATCH, BUILDERS, INPUTS, UNITS, call_gradients, data, make, sequence_gradient
from engine_oracles import relative_error, squared

import etrace_config
import etrace_engines
from etrace_engines import MultiStepData

SLOW = pytest.mark.slow
RULES = {
    "per_param": etrace_config.d_rtrl(),
    "coupled": etrace_config.ostl_recurrent(),
    "sparse_n": etrace_config.snap(2),
    "io_factorized": etrace_config.pp_prop(0.9),
    "kappa": etrace_config.eprop(0.8, "symmetric"),
    "random_projection": etrace_config.uoro(),
}
every_rule = pytest.mark.parametrize("rule", [n if n == "per_param" else pytest.param(n, marks=SLOW) for n in RULES])
every_batched_rule = pytest.mark.parametrize(
    "rule", [pytest.param(n, marks=[] if n == "io_factorized" else SLOW) for n in RULES if n != "random_projection"]
)


@pytest.mark.usefixtures("double")
@every_batched_rule
def test_batch_is_as_many_separate_runs(rule):
    xs, targets = data()
    together, _ = make("leaky", RULES[rule], xs[0])
    alone, _ = make("leaky", RULES[rule], xs[0, 0], batch=None)

    found = sequence_gradient(together, xs, targets)

    each = [sequence_gradient(alone, xs[:, b], targets[:, b]) for b in range(BATCH)]
    assert relative_error(found, jax.tree.map(lambda *g: sum(g), *each)) < 1e-12
    assert relative_error(each[0], each[1]) > 1e-2


@every_rule
def test_reset_repeats_a_run_bit_for_bit(rule):
    xs, targets = data()
    learner, _ = make("leaky", RULES[rule], xs[0])

    first = call_gradients(learner, xs, targets)

    assert relative_error(call_gradients(learner, xs, targets), first) == 0.0


def test_without_reset_the_next_sequence_goes_on():
    xs, targets = data()
    learner, _ = make("leaky", "D_RTRL", xs[0])
    run = brainstate.transform.jit(
        lambda: learner.etrace_grad(xs, targets, step_fn=lambda x, y: squared(learner(x), y))
    )

    first, second = run(), run()

    learner.reset_state()
    assert relative_error(second, first) > 1e-2
    assert relative_error(run(), first) == 0.0


def test_reset_works_in_place_and_restores_what_was_captured():
    xs, _ = data()
    learner, _ = make("leaky", "D_RTRL", xs[0])
    states = dict(learner.hidden_states)
    learner(xs[0])

    learner.reset_state()

    assert all(learner.hidden_states[path] is state for path, state in states.items())
    assert not any(np.any(state.value) for state in states.values())


def test_init_etrace_state_keeps_the_models_states():
    xs, _ = data()
    learner, _ = make("leaky", "D_RTRL", xs[0])
    learner(xs[0])
    before = learner.hidden_states[("h",)].value

    learner.init_etrace_state()

    assert jnp.array_equal(learner.hidden_states[("h",)].value, before)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(learner.trace.value))


@pytest.mark.slow
@every_rule
def test_eager_run_agrees_with_the_compiled_one(rule):
    xs, targets = data(steps=2)
    learner, _ = make("tanh", RULES[rule], xs[0])
    compiled = call_gradients(learner, xs, targets)
    learner.reset_state()

    eager = [
        brainstate.transform.grad(lambda x=x, y=y: squared(learner(x), y), learner.param_states)()
        for x, y in zip(xs, targets, strict=True)
    ]

    assert relative_error(jax.tree.map(lambda *g: jnp.stack(g), *eager), compiled) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["per_param", "io_factorized", "kappa"])
def test_vmap_over_samples_agrees_with_the_batched_run(rule):
    xs, targets = data()
    batched, _ = make("gru", RULES[rule], xs[0])
    learner, _ = make("gru", RULES[rule], xs[0, 0], batch=None)

    found = _vmapped_gradient(learner, xs, targets)

    assert relative_error(found, sequence_gradient(batched, xs, targets)) < 1e-5


def _vmapped_gradient(learner, xs, targets):
    """Map the whole sequence over samples, all from the states as they are now, and sum."""

    def one(x, y):
        return learner.etrace_grad(x, y, step_fn=lambda x, y: squared(learner(x), y), reduction="sum")

    pure = brainstate.transform.StatefulFunction(one, return_only_write=False)
    pure.make_jaxpr(xs[:, 0], targets[:, 0])
    values = [state.value for state in pure.get_states(xs[:, 0], targets[:, 0])]
    per_sample = jax.vmap(lambda x, y: pure.jaxpr_call(values, x, y)[1], in_axes=1)(xs, targets)
    return jax.tree.map(lambda g: g.sum(0), per_sample)


@every_rule
def test_vmap_over_members_agrees_with_separate_models(rule):
    xs, targets = data()
    learner, _ = make("gru", RULES[rule], xs[0])
    run = lambda: learner.etrace_grad(xs, targets, step_fn=lambda x, y: squared(learner(x), y), reduction="sum")
    pure = brainstate.transform.StatefulFunction(run, return_only_write=False)
    pure.make_jaxpr()
    states = pure.get_states()
    is_param = [isinstance(state, brainstate.ParamState) for state in states]
    scaled = lambda factor: [
        jax.tree.map(lambda p: factor * p, state.value) if param else state.value
        for state, param in zip(states, is_param, strict=True)
    ]
    one = jax.jit(lambda values: pure.jaxpr_call(values)[1])
    members = [scaled(factor) for factor in (1.0, 0.5, 1.5)]
    stacked = [
        jax.tree.map(lambda *leaves: jnp.stack(leaves), *values) if param else values[0]
        for *values, param in zip(*members, is_param, strict=True)
    ]

    found = jax.jit(
        jax.vmap(lambda values: pure.jaxpr_call(values)[1], in_axes=([0 if p else None for p in is_param],))
    )(stacked)

    for k, values in enumerate(members):
        assert relative_error(jax.tree.map(lambda g, k=k: g[k], found), one(values)) < 1e-5
    assert relative_error(one(members[1]), one(members[0])) > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("method", ["single-step", "multi-step"])
def test_no_tracer_leaks(method):
    xs, targets = data()
    with jax.checking_leaks():
        learner, _ = make("tanh", "D_RTRL", xs[0], vjp_method=method)
        sequence_gradient(learner, xs, targets, window=None if method == "single-step" else 2)


@pytest.mark.slow
def test_model_without_batch_axis_learns():
    xs, targets = data(batch=None)
    learner, _ = make("gru", "D_RTRL", xs[0], batch=None)

    gradients = sequence_gradient(learner, xs, targets)

    assert all(np.any(leaf) for leaf in jax.tree.leaves(gradients))


@pytest.mark.slow
def test_nan_in_one_sample_stays_in_its_sample():
    xs, _ = data()
    learner, _ = make("lstm", "D_RTRL", xs[0])
    learner(xs[0].at[0].set(jnp.nan))
    learner(xs[1])

    traces = [leaf for leaf in jax.tree.leaves(learner.trace.value) if leaf.ndim == 6]  # (K, S, b, f, k, g)
    weight = max(traces, key=lambda leaf: leaf.shape[-2])

    assert np.isnan(weight[:, :, :, 0]).any()
    assert not np.isnan(weight[:, :, :, 1]).any()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_low_precision_models_get_gradients_of_their_dtype(dtype):
    xs, targets = data()
    brainstate.random.seed(0)
    model = BUILDERS["leaky"]()
    brainstate.nn.init_all_states(model, batch_size=BATCH)
    for state in model.states().values():
        state.value = jax.tree.map(lambda v: v.astype(dtype), state.value)
    learner = etrace_engines.D_RTRL(model).compile_graph(xs[0].astype(dtype), batch_size=BATCH)

    found = sequence_gradient(learner, xs.astype(dtype), targets.astype(dtype))

    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {jnp.dtype(dtype)}
    assert all(np.isfinite(np.asarray(leaf, float)).all() for leaf in jax.tree.leaves(found))


@pytest.mark.slow
def test_trace_dtype_sets_the_dtype_of_traces():
    xs, targets = data()
    learner, _ = make("leaky", "D_RTRL", xs[0], trace_dtype=jnp.bfloat16)

    coarse = call_gradients(learner, xs, targets)

    assert {leaf.dtype for leaf in jax.tree.leaves(learner.trace.value)} == {jnp.dtype(jnp.bfloat16)}
    fine = call_gradients(make("leaky", "D_RTRL", xs[0])[0], xs, targets)
    assert 1e-5 < relative_error(coarse, fine) < 2e-2


CALL_ERRORS = {
    "input shape": (lambda learner: learner(jnp.zeros((BATCH, INPUTS + 1))), r"\(2, 3\).* got \[\(2, 4\)\]"),
    "batch size": (lambda learner: learner(jnp.zeros((5, INPUTS))), r"\(2, 3\).* got \[\(5, 3\)\]"),
    "window": (
        lambda learner: learner(MultiStepData(jnp.zeros((3, BATCH, INPUTS)))),
        "needs `vjp_method='multi-step'`",
    ),
}


@pytest.mark.parametrize("case", CALL_ERRORS)
def test_wrong_call_is_refused_and_changes_nothing(case):
    xs, _ = data()
    learner, _ = make("leaky", "D_RTRL", xs[0])
    learner(xs[0])
    states = lambda: jax.tree.map(np.asarray, [learner.trace.value, learner.hidden_states[("h",)].value])
    before = states()

    call, message = CALL_ERRORS[case]
    with pytest.raises(ValueError, match=message):
        call(learner)

    assert jax.tree.all(jax.tree.map(np.array_equal, states(), before))


def _compile(rule="D_RTRL", **options):
    return etrace_engines.compile(BUILDERS["leaky"](), rule, jnp.zeros((BATCH, INPUTS)), batch_size=BATCH, **options)


def _compile_with_wrong_batch():
    model = BUILDERS["leaky"]()
    brainstate.nn.init_all_states(model, batch_size=BATCH)
    etrace_engines.D_RTRL(model).compile_graph(jnp.zeros((BATCH, INPUTS)), batch_size=7)


COMPILE_ERRORS = {
    "not compiled": (lambda: etrace_engines.D_RTRL(BUILDERS["leaky"]())(jnp.zeros(3)), ValueError, "is not compiled"),
    "batch": (_compile_with_wrong_batch, ValueError, r"`batch_size=7` does not lead the shape \(2, 4\) .*'h'"),
    "rule name": (lambda: _compile("RTRL"), ValueError, "`rule='RTRL'` is not one of"),
    "rule type": (lambda: _compile(3), TypeError, "got int"),
    "method": (lambda: _compile(vjp_method="both"), ValueError, "`vjp_method='both'` is not one of"),
    "groups": (lambda: _compile(hidden_groups="all"), ValueError, "`hidden_groups='all'` is not one of"),
    "joint": (lambda: _compile(hidden_groups="joint"), ValueError, "needs `recurrence_scope='sparse_n'`"),
    "traced": (lambda: _compile(traced=[("no", "such")]), ValueError, "which are not parameters of the model"),
    "no inputs": (lambda: etrace_engines.compile(BUILDERS["leaky"](), "D_RTRL"), ValueError, "needs example inputs"),
    "engine": (
        lambda: etrace_engines.IODimVjpAlgorithm(None, etrace_config.d_rtrl()),
        ValueError,
        "'io_factorized'.*'per_param'",
    ),
}


@pytest.mark.parametrize("case", COMPILE_ERRORS)
def test_wrong_construction_is_refused_with_the_remedy(case):
    call, kind, message = COMPILE_ERRORS[case]

    with pytest.raises(kind, match=message):
        call()


PRESETS = {
    "D_RTRL": ({}, etrace_config.d_rtrl()),
    "ES_D_RTRL": ({"decay_or_rank": 9}, etrace_config.pp_prop(9)),
    "EProp": ({"kappa_filter_decay": 0.5}, etrace_config.eprop(0.5, "symmetric")),
    "OSTLFeedforward": ({}, etrace_config.ostl_feedforward()),
    "OSTLRecurrent": ({}, etrace_config.ostl_recurrent()),
    "SnAp": ({"n": 3}, etrace_config.snap(3)),
    "ThreeFactor": ({}, etrace_config.three_factor()),
    "UORO": ({}, etrace_config.uoro()),
    "pp_prop": ({"decay_or_rank": 0.8}, etrace_config.pp_prop(0.8)),
}


@pytest.mark.parametrize("name", PRESETS)
def test_preset_is_its_coordinate(name):
    options, config = PRESETS[name]

    assert getattr(etrace_engines, name)(None, **options).config == config


@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS)
def test_preset_compiles_by_name(name):
    options, config = PRESETS[name]

    learner = _compile(name, **options)

    assert learner.config == config
    assert learner.report().rows[0].treatment == "traced"
    assert learner.hidden_states[("h",)].value.shape == (BATCH, UNITS)
