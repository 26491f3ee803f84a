"""`LSTMModule` and `GRUModule`: single steps, sequences, and what they refuse."""

import pickle
from copy import deepcopy

import pytest
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torch.testing import assert_close

from rl.core import ArgumentError, BackendError, ContractError, ShapeError, SpecError, set_recurrent_mode, states_of
from rl.core.registry import Registry
from rl.core.tensor_functions import as_function
from rl.modules import (
    Actor,
    ActorValueOperator,
    GRUModule,
    LSTMModule,
    ProbabilisticActor,
    TanhNormal,
    ValueOperator,
    get_recurrent_matmul_precision,
    set_recurrent_matmul_precision,
)

# only kernels of GPUs read what an alias of a precision stands for
from rl.modules.recurrent._layout import concrete
from rl.plugins import modules as declaration
from rl.testing import recurrent_reference

H, C = ("recurrent_state", "h"), ("recurrent_state", "c")
MODULES = {"lstm": LSTMModule, "gru": GRUModule}
each_module = pytest.mark.parametrize("kind", list(MODULES.values()), ids=list(MODULES))
each_depth = pytest.mark.parametrize("layers", [1, 2])
BACKENDS = ["scan", "pad"]


def make(kind, layers=1, width=3, hidden=4, **options):
    torch.manual_seed(0)
    return kind(width, hidden, layers, in_key="observation", out_key="features", **options)


def batch(module, *size, p=0.4):
    td = TensorDict(observation=torch.randn(*size, 3), is_init=torch.rand(*size, 1) < p, batch_size=size)
    for state in module.states:
        td[state.name] = torch.randn(*size, *state.shape)
    return td


def nexts(module, td):
    return tuple(td["next"][state.name] for state in module.states)


# ------------------------------------------------------------------ what they declare


def test_keys_as_users_know_them():
    lstm = make(LSTMModule)
    assert lstm.in_keys == ["observation", H, C, "is_init"]
    assert lstm.out_keys == ["features", ("next", *H), ("next", *C)]
    named = LSTMModule(3, 4, in_keys=["o", "h", "c"], out_keys=["f", ("next", "h"), ("next", "c")])
    assert named.in_keys == ["o", "h", "c", "is_init"]
    assert LSTMModule(3, 4, in_keys=["o", "h", "c"], out_key="f").out_keys == named.out_keys
    assert LSTMModule(3, 4, in_key="o", out_keys=["f", ("next", "h"), ("next", "c")]).in_keys == named.in_keys
    nested = GRUModule(3, 4, in_keys=[("a", "o"), ("a", "h"), ("a", "is_init")], out_key=("a", "f"))
    assert nested.in_keys == [("a", "o"), ("a", "h"), ("a", "is_init")]
    assert nested.out_keys == [("a", "f"), ("next", "a", "h")]


@each_module
@each_depth
def test_states_and_contract_say_what_is_carried(kind, layers):
    module = make(kind, layers)
    states = states_of(nn.Sequential(module))
    assert [state.name for state in states] == ([H, C] if kind is LSTMModule else [H])
    assert all(state.shape == (layers, 4) and state.initial == 0 for state in states)
    assert all(state.owner == kind.__name__ for state in states)
    assert module.contract.in_keys == module.in_keys
    assert module.contract.out_keys == module.out_keys
    assert {state.dtype for state in module.double().states} == {torch.float64}


def test_two_with_one_state_key_are_refused():
    with pytest.raises(ContractError, match="in_keys="):
        states_of(nn.ModuleList([make(LSTMModule), make(GRUModule)]))


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"out_key": "f"}, "either in_key= or in_keys="),
        ({"in_key": "o", "in_keys": ["o", "h", "c"], "out_key": "f"}, "either in_key= or in_keys="),
        ({"in_key": "o"}, "either out_key= or out_keys="),
        ({"in_keys": ["o", "h"], "out_key": "f"}, "3 or 4 entries"),
        ({"in_keys": ["o", "h", "c", "start"], "out_key": "f"}, "ending in 'is_init'"),
        ({"in_key": "o", "out_keys": ["f", "h", "c"]}, "writes states under 'next'"),
        ({"in_keys": ["o", "h", "c"], "out_keys": ["f", ("next", "c"), ("next", "h")]}, "got out_keys"),
    ],
)
def test_keys_that_do_not_fit_are_refused(keys, what):
    with pytest.raises(ArgumentError, match=what):
        LSTMModule(3, 4, **keys)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({}, "needs input_size= and hidden_size="),
        ({"input_size": 3, "hidden_size": 4, "batch_first": False}, "batch_first"),
        ({"input_size": 3, "hidden_size": 4, "bidirectional": True}, "future"),
        ({"input_size": 3, "hidden_size": 4, "proj_size": 2}, "proj_size=2"),
        ({"input_size": 3, "hidden_size": 4, "recurrent_recompute": "some"}, "'none' or 'full'"),
        ({"input_size": 3, "hidden_size": 4, "recurrent_matmul_precision": "tf64"}, "tf64"),
        ({"input_size": 3, "lstm": nn.LSTM(3, 4, batch_first=True)}, "not both"),
        ({"lstm": nn.LSTM(3, 4)}, "batch_first"),
        ({"lstm": nn.LSTM(3, 4, batch_first=True, bidirectional=True)}, "future"),
        ({"lstm": nn.GRU(3, 4, batch_first=True)}, "got GRU"),
    ],
)
def test_what_cannot_be_built_is_refused(options, what):
    with pytest.raises(ArgumentError, match=what):
        LSTMModule(in_key="o", out_key="f", **options)


@each_module
def test_a_given_module_lends_its_weights(kind):
    name = kind.cell
    given = {"lstm": nn.LSTM, "gru": nn.GRU}[name](3, 4, 2, batch_first=True, dropout=0.25)
    module = kind(in_key="observation", out_key="features", **{name: given})
    assert module.network.weight_hh_l1 is given.weight_hh_l1
    assert module.network.dropout == 0.25
    assert list(module.state_dict()) == [f"{name}.{key}" for key in given.state_dict()]
    td = batch(module, 2, 5, p=0.0)
    td["is_init"][:, 0] = True
    for state in module.states:
        td[state.name].zero_()
    with set_recurrent_mode(True):
        assert_close(module.eval()(td)["features"], given.eval()(td["observation"])[0])


# ------------------------------------------------------------------ single steps


@each_module
@each_depth
@pytest.mark.parametrize("size", [(), (5,), (2, 3)], ids=str)
def test_a_step_equals_the_recurrence(kind, layers, size):
    module = make(kind, layers)
    td = batch(module, *size)
    flat = td.reshape(-1) if size else td.unsqueeze(0)
    out = module(td)
    zero = tuple(torch.zeros_like(flat[state.name]).unsqueeze(1) for state in module.states)
    first = tuple(flat[state.name] for state in module.states)
    want, after = recurrent_reference(module.network, flat["observation"].unsqueeze(1), first, flat["is_init"], zero)
    assert_close(out["features"], want[:, 0].view(*size, 4))
    for got, state in zip(nexts(module, out), after, strict=True):
        assert_close(got, state[:, 0].view(*size, layers, 4))


@each_module
@each_depth
def test_results_share_no_memory(kind, layers):
    module = make(kind, layers)
    td = batch(module, 5)
    with torch.no_grad():
        module(td)
    before = [part.clone() for part in nexts(module, td)]
    td["features"].zero_()
    assert all(torch.equal(part, old) for part, old in zip(nexts(module, td), before, strict=True))


@each_module
def test_a_state_may_be_left_out_where_every_trajectory_begins(kind):
    module = make(kind)
    td = batch(module, 5).select("observation", "is_init")
    td["is_init"][:] = True
    full = batch(module, 5).update(td)
    assert_close(module(td)["features"], module(full)["features"])


# ------------------------------------------------------------------ sequences


@each_module
@each_depth
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [(6,), (3, 5), (2, 2, 4), (1, 1)], ids=str)
def test_a_sequence_equals_the_recurrence_from_stored_states(kind, layers, backend, size):
    module = make(kind, layers, recurrent_backend=backend)
    td = batch(module, *size)
    rows = td.reshape(-1, size[-1])
    stored = tuple(rows[state.name] for state in module.states)
    want, after = recurrent_reference(
        module.network, rows["observation"], tuple(part[:, 0] for part in stored), rows["is_init"][..., 0], stored
    )
    with set_recurrent_mode(True):
        out = module(td)
    assert_close(out["features"], want.view(*size, 4))
    for got, state in zip(nexts(module, out), after, strict=True):
        assert_close(got, state.view(*size, layers, 4))


@each_module
@pytest.mark.parametrize("lengths", [[4, 4, 4], [1, 5, 2, 2, 5, 3, 1], [7], [1, 1, 1], [2, 9]], ids=str)
def test_a_flat_batch_is_cut_where_trajectories_begin(kind, lengths, monkeypatch):
    module = make(kind)
    td = batch(module, sum(lengths), p=0.0)
    starts = [sum(lengths[:place]) for place in range(len(lengths))]
    td["is_init"][starts[1:]] = True  # the first row may begin anywhere
    steps = []
    backend, said = module._backend_for(torch.device("cpu"))

    def spy(network, x, *rest):
        steps.append(x.shape[:2])
        return backend(network, x, *rest)

    monkeypatch.setitem(module._found, "cpu", (spy, said))
    with set_recurrent_mode(True):
        out = module(td.clone())
        parts = [module(td[start : start + length].clone()) for start, length in zip(starts, lengths, strict=True)]
    assert_close(out["features"], torch.cat([part["features"] for part in parts]))
    for place, state in enumerate(nexts(module, out)):
        assert_close(state, torch.cat([nexts(module, part)[place] for part in parts]))
    rows, time = steps[0]
    assert time == max(lengths)
    assert rows * time <= 2 * sum(lengths) + max(lengths)


@each_module
def test_the_mode_that_a_module_was_built_for_holds_where_none_is_set(kind):
    module, other = make(kind, default_recurrent_mode=True), make(kind)
    td = batch(module, 3, 5)
    with set_recurrent_mode(True):
        want = other(td.clone())["features"]
    assert_close(module(td.clone())["features"], want)
    with set_recurrent_mode(False):
        assert_close(module(td.clone())["features"], other(td.clone())["features"])


@each_module
def test_a_sequence_without_stored_states_needs_rows_that_begin(kind):
    module = make(kind)
    td = batch(module, 3, 5)
    td["is_init"][:, 0] = True
    for state in module.states:
        td[state.name].zero_()
    bare = td.select("observation", "is_init")
    with set_recurrent_mode(True):
        assert_close(module(bare.clone())["features"], module(td.clone())["features"])
        bare["is_init"][1, 0] = False
        with pytest.raises(ContractError, match=r"recurrent_state(?s:.*)select\(\)(?s:.*)first step of a row"):
            module(bare)


# ------------------------------------------------------------------ refusals


@each_module
@pytest.mark.parametrize("mode", [True, False])
def test_missing_entries_name_who_writes_them(kind, mode):
    module = make(kind)
    td = batch(module, 3, 5)
    with set_recurrent_mode(mode):
        with pytest.raises(ContractError, match=r"is_init(?s:.*)InitTracker"):
            module(td.exclude("is_init"))
        with pytest.raises(ContractError, match=r"'recurrent_state'(?s:.*)make_tensordict_primer"):
            module(td.exclude("recurrent_state"))
        with pytest.raises(ContractError, match=r"observation(?s:.*)in_key="):
            module(td.exclude("observation"))
    if kind is LSTMModule:
        td["is_init"][:] = True
        with pytest.raises(ContractError, match="'c'"):
            module(td.exclude(C))


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("observation", torch.zeros(5, 4), r"'observation' is torch.float32 \[5, 4\], expected \[5, 3\]"),
        ("is_init", torch.zeros(5, dtype=torch.bool), "'is_init' is torch.bool"),
        ("is_init", torch.ones(5, 1), r"expected bool \[\*B, 1\]"),
        (H, torch.zeros(5, 4), r"'recurrent_state'.* \[5, 4\], expected \[5, 1, 4\]"),
        (H, torch.zeros(5, 2, 4), r"expected \[5, 1, 4\]"),
    ],
)
def test_wrong_shapes_are_named(mode, key, value, what):
    module = make(LSTMModule)
    td = batch(module, 5).set(key, value)
    with set_recurrent_mode(mode), pytest.raises(ShapeError, match=what):
        module(td)


@pytest.mark.parametrize("mode", [True, False])
def test_another_type_than_that_of_the_weights_is_named(mode):
    module = make(LSTMModule)
    td = batch(module, 5)
    td["observation"] = td["observation"].double()
    with set_recurrent_mode(mode), pytest.raises(SpecError, match=r"weights are torch\.float32"):
        module(td)


@each_module
@pytest.mark.parametrize("mode", [True, False], ids=["sequence", "step"])
def test_under_autocast_states_keep_their_type(kind, mode):
    module = make(kind, layers=2)
    td = batch(module, *((3, 5) if mode else (3,)))
    with set_recurrent_mode(mode):
        want = module(td.clone())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            td["observation"] = td["observation"].bfloat16()  # as from a layer before this one
            found = module(td.clone())
    for got, exact in zip(
        (found["features"], *nexts(module, found)), (want["features"], *nexts(module, want)), strict=True
    ):
        assert got.dtype is torch.float32
        assert_close(got, exact, rtol=0, atol=0.05)  # bfloat16 has 8 bits


@pytest.mark.parametrize("size", [(), (0,), (3, 0)], ids=str)
def test_a_sequence_needs_steps(size):
    module = make(GRUModule)
    with set_recurrent_mode(True), pytest.raises(ShapeError, match="last batch dimension is time"):
        module(batch(module, *size))


# ------------------------------------------------------------------ back ends


def test_the_selected_back_end_and_the_reason():
    selected = make(LSTMModule).backend
    assert selected.name == "scan"
    assert "the first that answers for cpu" in selected.why
    named = make(GRUModule, recurrent_backend="pad").backend
    assert (named.name, named.distribution) == ("pad", "rl-modules")
    assert "asked for by name" in str(named)


@pytest.mark.parametrize(("name", "what"), [("cudnn", "known here: auto, pad, scan"), ("pat", "'pat' does not answer")])
def test_an_unknown_back_end_is_refused_at_construction(name, what):
    with pytest.raises(BackendError, match=what):
        make(LSTMModule, recurrent_backend=name)


@pytest.fixture
def plain(monkeypatch):
    """A process in which rl-modules is the only package."""
    only = Registry()
    only.register(declaration, "modules", "rl-modules")
    monkeypatch.setattr("rl.core.registry.default", lambda: only)
    return only


@pytest.mark.usefixtures("plain")
def test_an_absent_accelerator_is_refused_with_the_command_that_installs_it():
    with pytest.raises(BackendError, match=r"type 'cuda'; .*`pip install rl-recurrent-triton`"):
        make(LSTMModule, recurrent_backend="triton")


@pytest.mark.usefixtures("plain")
def test_a_back_end_for_another_device_is_refused_at_the_first_sequence(monkeypatch):
    monkeypatch.setattr("rl.modules.recurrent.modules.is_offered", lambda name: name == "triton")
    module = make(LSTMModule, recurrent_backend="triton")
    td = batch(module, 5)
    module(td)  # single steps need none
    with set_recurrent_mode(True), pytest.raises(BackendError, match="'triton' does not answer"):
        module(td)
    with pytest.raises(BackendError):
        _ = module.backend


def test_scan_and_pad_need_no_plugin(monkeypatch):
    monkeypatch.setattr("rl.core.registry.default", Registry)
    assert make(LSTMModule, recurrent_backend="pad").backend.name == "pad"
    with pytest.raises(BackendError, match="RL_PLUGINS_DISABLE"):
        make(LSTMModule)


@pytest.mark.parametrize(
    ("native", "what"), [("off", "RL_NATIVE=off"), ("auto", "rl-native is not installed")], ids=["off", "auto"]
)
@pytest.mark.usefixtures("plain")
def test_the_reason_names_the_absent_compiled_back_end(monkeypatch, native, what):
    monkeypatch.setenv("RL_NATIVE", native)
    assert what in make(LSTMModule).backend.why


@pytest.mark.usefixtures("plain")
def test_a_required_compiled_back_end_is_not_replaced(monkeypatch):
    monkeypatch.setenv("RL_NATIVE", "require")
    with pytest.raises(BackendError, match="RL_NATIVE=require"):
        make(LSTMModule)
    assert make(LSTMModule, recurrent_backend="scan").backend.name == "scan"


def test_precision_is_of_the_module_or_of_all():
    assert get_recurrent_matmul_precision() == "auto"
    module = make(LSTMModule)
    assert module._options().matmul_precision is None
    try:
        set_recurrent_matmul_precision("fast")
        assert module._options().matmul_precision == "tf32"
        assert make(LSTMModule, recurrent_matmul_precision="ieee")._options().matmul_precision == "ieee"
        assert make(LSTMModule, recurrent_matmul_precision="auto")._options().matmul_precision is None
    finally:
        set_recurrent_matmul_precision("auto")
    assert concrete("high-prec") == "tf32x3"
    with pytest.raises(ArgumentError, match="got 'exact'"):
        set_recurrent_matmul_precision("exact")


def test_options_reach_the_back_end():
    module = make(GRUModule, recurrent_recompute="full", recurrent_compute_dtype=torch.float64)
    options = module._options()
    assert (options.recompute, options.compute_dtype) == ("full", torch.float64)


def test_the_primer_comes_from_rl_envs():
    envs = pytest.importorskip("rl.envs")
    module = make(LSTMModule, 2)
    primer = module.make_tensordict_primer()
    env = envs.TransformedEnv(envs.PendulumEnv(batch_size=(5,)), primer)
    root = env.reset()
    for state in module.states:
        assert_close(root[state.name], state.start((5,)))


# ------------------------------------------------------------------ as a part of others


@each_module
@pytest.mark.parametrize("mode", [True, False])
def test_the_plain_form_equals_the_module(kind, mode):
    module = make(kind, 2)
    td = batch(module, 3, 5)
    plain = as_function(module)
    with set_recurrent_mode(mode):
        want, got = module(td.clone()), plain(*[td[key] for key in plain.in_keys])
    for key, value in zip(plain.out_keys, got, strict=True):
        assert_close(value, want[key], rtol=0, atol=0)


def test_a_changed_module_has_no_plain_form():
    class Louder(LSTMModule):
        def forward(self, tensordict):
            return super().forward(tensordict)

    assert as_function(Louder(3, 4, in_key="o", out_key="f")) is None
    module = make(LSTMModule)
    module.select_out_keys("features")
    assert as_function(module) is None
    assert "next" not in module(batch(module, 5))


def composed(kind):
    core = make(kind)
    if kind is LSTMModule:
        head = TensorDictModule(nn.Linear(4, 2), ["features"], ["loc"])
        return ProbabilisticActor(
            TensorDictSequential(core, head),
            ["loc"],
            distribution_class=TanhNormal,
            distribution_kwargs={"scale": torch.ones(2)},
            return_log_prob=True,
        )
    head, value = Actor(nn.Linear(4, 2), ["features"]), ValueOperator(nn.Linear(4, 1), ["features"])
    return ActorValueOperator(core, head, value)


@each_module
@pytest.mark.parametrize("mode", [True, False])
def test_inside_of_policies_states_are_found_and_calls_lowered(kind, mode):
    policy = composed(kind)
    core = next(module for module in policy.modules() if isinstance(module, kind))
    assert [state.name for state in states_of(policy)] == [state.name for state in core.states]
    td, plain = batch(core, 3, 5), as_function(policy)
    assert plain is not None
    with set_recurrent_mode(mode):
        want, got = policy(td.clone()), plain(*[td[key] for key in plain.in_keys])
    for key, value in zip(plain.out_keys, got, strict=True):
        assert_close(value, want[key], rtol=0, atol=0)


@each_module
def test_modules_are_copied_and_sent_around(kind):
    module = make(kind, 2)
    td = batch(module, 3, 5)
    with set_recurrent_mode(True):
        want = module(td.clone())
        for copy in (deepcopy(module), pickle.loads(pickle.dumps(module))):
            assert (copy(td.clone()) == want).all()
            assert copy.backend == module.backend
            assert copy.network.weight_hh_l0 is not module.network.weight_hh_l0


@each_module
def test_parameters_that_are_exchanged_are_those_that_count(kind):
    module, other = make(kind), make(kind)
    for parameter in other.parameters():
        nn.init.normal_(parameter)
    td = batch(module, 3, 5)
    values = {name: parameter.detach() for name, parameter in other.named_parameters()}
    for mode in (True, False):
        with set_recurrent_mode(mode):
            got = torch.func.functional_call(module, values, (td.clone(),))
            assert_close(got["features"], other(td.clone())["features"])


@each_module
def test_parametrized_weights_work_in_both_modes(kind):
    module = make(kind)
    nn.utils.parametrizations.weight_norm(module.network, "weight_hh_l0")
    td = batch(module, 3, 5, p=1.0)
    for mode in (True, False):
        with set_recurrent_mode(mode):
            assert module(td.clone())["features"].isfinite().all()


def test_time_has_to_be_the_last_dimension_of_a_sequence():
    lstm = LSTMModule(3, 4, in_key="observation", out_key="features")
    start = torch.ones(5, 2, 1, dtype=torch.bool)
    td = TensorDict(observation=torch.zeros(5, 2, 3), is_init=start, batch_size=[5, 2], names=["time", None])
    with set_recurrent_mode(True), pytest.raises(ContractError, match=r"time is dimension 0 .*transpose"):
        lstm(td)
    with set_recurrent_mode(True):
        assert lstm(td.transpose(0, 1))["features"].shape == (2, 5, 4)
    assert lstm(td)["features"].shape == (5, 2, 4)


@pytest.mark.parametrize("mode", [False, True])
@pytest.mark.parametrize("size", [(2,), (2, 3)])
def test_another_device_than_that_of_the_weights_is_named(mode, size):
    lstm = LSTMModule(3, 4, in_key="observation", out_key="features", device="meta")
    start = torch.ones(*size, 1, dtype=torch.bool)
    td = TensorDict(observation=torch.zeros(*size, 3), is_init=start, batch_size=size)
    with (
        set_recurrent_mode(mode),
        pytest.raises(SpecError, match=r"weights are on meta, and 'observation' cpu.*\.to\("),
    ):
        lstm(td)


@pytest.mark.parametrize("key", [H, C])
def test_a_state_of_more_layers_is_named(key):
    lstm = LSTMModule(3, 4, num_layers=2, in_key="observation", out_key="features")
    td = TensorDict({"observation": torch.zeros(5, 3), "is_init": torch.zeros(5, 1, dtype=torch.bool)}, batch_size=[5])
    td[H] = td[C] = torch.zeros(5, 2, 4)
    lstm(td)
    td[key] = torch.zeros(5, 3, 4)
    with pytest.raises(ShapeError, match=r"expected \[5, 2, 4\]"):
        lstm(td)


@pytest.mark.parametrize(
    ("options", "error", "what"),
    [
        ({"default_recurrent_mode": "sequential"}, ArgumentError, "default_recurrent_mode must be True, False or None"),
        ({"recurrent_compute_dtype": torch.int32}, ArgumentError, "floating torch.dtype"),
        ({"recurrent_compute_dtype": "bfloat16"}, ArgumentError, "floating torch.dtype"),
        ({"in_keys": ["x", "h", "h"]}, ArgumentError, "'h' twice"),
        ({"in_keys": ["h", "h", "c"]}, ArgumentError, "'h' twice"),
        ({"in_keys": ["x", "out", "c"]}, ArgumentError, "would write its output over 'out'"),
    ],
)
def test_options_that_would_mean_something_else_are_refused(options, error, what):
    options = {"in_key": "x", **options} if "in_keys" not in options else options
    with pytest.raises(error, match=what):
        LSTMModule(3, 4, out_key="out", **options)
