"""A hidden state on its whole way, policy -> collector -> buffer -> slice -> loss, against loops written by hand.

The loops below know episodes by the ``done`` flags alone, and the cells by their formulas.
"""

import pytest
import torch
from rl_trainers_test_envs import GuessEnv
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn

from rl.collectors import Collector
from rl.core import ContractError
from rl.envs import GymEnv, InitTracker, TransformedEnv
from rl.modules import Categorical, GRUModule, LSTMModule, ProbabilisticActor, QValueActor
from rl.objectives import ClipPPOLoss, DQNLoss, SoftUpdate
from rl.objectives.value import GAE
from rl.replay import BurnInTransform, LazyTensorStorage, SliceSampler, TensorDictReplayBuffer, check_slices

WIDTH, ENVS, STEPS, BATCHES = 5, 4, 14, 3
GAMMA, LAMBDA = 0.9, 0.8
PARTS = {LSTMModule: ("h", "c"), GRUModule: ("h",)}


class UnequalEnv(GuessEnv):
    """Four environments whose episodes last 3, 5, 8 and 40 steps; no more than the protocol asks for."""

    def _flags(self, done):
        del done
        return super()._flags(self._steps >= torch.tensor([[3], [5], [8], [40]]))

    def reset(self, tensordict=None):
        root = super().reset(tensordict)
        return root.update({"done": torch.zeros_like(root["done"]), "terminated": torch.zeros_like(root["done"])})


ENVIRONMENTS = {
    "tensordict": UnequalEnv,
    "leaves": lambda: GymEnv("CartPole-v1", num_envs=ENVS, categorical_action_encoding=True),
}


@pytest.fixture(params=["pad", "scan-torch", "scan-native"])
def backend(request, monkeypatch):
    """The name to ask for; what answers is looked at in `networks`."""
    monkeypatch.setenv("RL_NATIVE", "off" if request.param == "scan-torch" else "auto")
    return request.param


@pytest.fixture(
    params=[(LSTMModule, 1), (LSTMModule, 2), (GRUModule, 1), (GRUModule, 2)], ids=["lstm", "lstm-2", "gru", "gru-2"]
)
def cell(request):
    return request.param


@pytest.fixture(params=list(ENVIRONMENTS))
def env(request):
    made = ENVIRONMENTS[request.param]()
    made.set_seed(3)
    return made


def remembering(cell, backend, env):
    kind, layers = cell
    torch.manual_seed(1)
    inputs = env.observation_spec["observation"].shape[-1]
    module = kind(
        inputs, WIDTH, layers, in_key="observation", out_key="features", recurrent_backend=backend.split("-")[0]
    )
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.7)
    if backend == "scan-native" and module.backend.distribution != "rl-native":
        pytest.skip("rl-native does not answer here")
    if backend == "scan-torch":
        assert module.backend.distribution == "rl-modules"
    return module


def actor_critic(cell, backend, env):
    """Both behind one memory."""
    memory = remembering(cell, backend, env)
    head, value = nn.Linear(WIDTH, 2), nn.Linear(WIDTH, 1)
    actor = ProbabilisticActor(
        TensorDictSequential(memory, TensorDictModule(head, ["features"], ["logits"])),
        in_keys=["logits"],
        distribution_class=Categorical,
        return_log_prob=True,
    )
    critic = TensorDictSequential(memory, TensorDictModule(value, ["features"], ["state_value"]))
    return actor, critic, memory, head, value


# ---------------------------------------------------------------- the loops by hand


def start(memory):
    return tuple(torch.zeros(memory.network.num_layers, WIDTH) for _ in PARTS[type(memory)])


def step(memory, x, state):
    """One step of all layers: output ``[H]``, and the states ``[layers, H]``."""
    after = []
    for layer in range(memory.network.num_layers):
        weights = [
            getattr(memory.network, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        ]
        w_x, w_h, b_x, b_h = weights
        of_x, of_h = w_x @ x + b_x, w_h @ state[0][layer] + b_h
        if isinstance(memory, LSTMModule):
            i, f, g, o = (of_x + of_h).chunk(4)
            c = f.sigmoid() * state[1][layer] + i.sigmoid() * g.tanh()
            x = o.sigmoid() * c.tanh()
            after.append((x, c))
        else:
            r_x, z_x, n_x = of_x.chunk(3)
            r_h, z_h, n_h = of_h.chunk(3)
            z = (z_x + z_h).sigmoid()
            n = (n_x + (r_x + r_h).sigmoid() * n_h).tanh()
            x = (1 - z) * n + z * state[0][layer]
            after.append((x,))
    return x, tuple(torch.stack(part) for part in zip(*after, strict=True))


def unrolled(memory, row, state, *, begins):
    """Features at each step, features at each outcome, states before and after each step; `row` is ``[T]``.

    Episodes end where ``done`` is true; `begins` says whether one begins with the first step, else it goes on from
    `state`.
    """
    here, there, before, afterwards = [], [], [], []
    for t in range(row.shape[0]):
        if begins:
            state = start(memory)
        before.append(state)
        x, state = step(memory, row["observation"][t], state)
        here.append(x)
        afterwards.append(state)
        there.append(step(memory, row["next", "observation"][t], state)[0])
        begins = bool(row["next", "done"][t])
    return torch.stack(here), torch.stack(there), before, afterwards


def stored_state(memory, row, t):
    return tuple(row["recurrent_state", part][t] for part in PARTS[type(memory)])


def collected(env, actor):
    torch.manual_seed(0)
    collector = Collector(env, actor, frames_per_batch=ENVS * STEPS)
    return [collector.collect() for _ in range(BATCHES)]


def close(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- collector


def test_collected_states_are_those_of_the_loop_at_every_step(cell, backend, env):
    actor, _, memory, head, _ = actor_critic(cell, backend, env)
    whole = torch.cat(collected(env, actor), 1)
    ends = whole["next", "done"].squeeze(-1)
    assert ends[:, 1:-1].any()  # in the middle of a batch
    assert (ends != ends[:1]).any()  # and not for all at once
    for row in whole:
        with torch.no_grad():
            here, _, before, after = unrolled(memory, row, None, begins=True)
            close(row["features"], here)
            close(row["action_log_prob"], head(here).log_softmax(-1).gather(-1, row["action"][:, None]).squeeze(-1))
        for t in range(row.shape[0]):
            for place, part in enumerate(PARTS[cell[0]]):
                close(row["recurrent_state", part][t], before[t][place])
                close(row["next", "recurrent_state", part][t], after[t][place])
        first = torch.cat((torch.tensor([True]), row["next", "done"][:-1, 0]))
        assert torch.equal(row["is_init"].squeeze(-1), first)


# ---------------------------------------------------------------- estimator and loss on the batch


def by_hand(memory, batch):
    """Features here and there ``[E, T, H]``; the first step of each row goes on from what is stored."""
    rows = [unrolled(memory, row, stored_state(memory, row, 0), begins=False) for row in batch]
    return torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])


def test_advantages_and_losses_of_a_batch_are_those_of_the_loop(cell, backend, env):
    actor, critic, memory, head, value = actor_critic(cell, backend, env)
    for batch in collected(env, actor)[1:]:  # the second goes on in the middle of episodes
        assert not batch["is_init"][:, 0].all()
        with torch.no_grad():
            estimated = GAE(gamma=GAMMA, lmbda=LAMBDA, value_network=critic)(batch.clone())
            here, there = by_hand(memory, batch)
            close(estimated["state_value"], value(here))
            close(estimated["advantage"], advantage_by_hand(batch, value(here), value(there)))
        loss = ClipPPOLoss(actor, critic, normalize_advantage=False, entropy_coeff=0.0, loss_critic_type="l2")
        out = loss(estimated)
        assert abs(float(out["kl_approx"])) < 1e-6  # nothing was learned yet
        compare_with_hand(out, estimated, *by_hand(memory, estimated)[:1], actor, critic, head, value)


def advantage_by_hand(batch, here, there):
    out, following = torch.zeros_like(here), torch.zeros_like(here[:, 0])
    for t in range(STEPS - 1, -1, -1):
        reward, done, ended = (batch["next", key][:, t].float() for key in ("reward", "done", "terminated"))
        error = reward + GAMMA * (1 - ended) * there[:, t] - here[:, t]
        out[:, t] = following = error + GAMMA * LAMBDA * (1 - done) * following
    return out


def compare_with_hand(out, batch, features, actor, critic, head, value):
    log_prob = head(features).log_softmax(-1).gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1)
    ratio, advantage = (log_prob - batch["action_log_prob"]).exp(), batch["advantage"].squeeze(-1)
    surrogate = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    error = (value(features) - batch["value_target"]).square().mean()
    close(out["loss_objective"], surrogate)
    close(out["loss_critic"], error)
    parameters = list(dict.fromkeys([*actor.parameters(), *critic.parameters()]))
    actual = torch.autograd.grad(out["loss_objective"] + out["loss_critic"], parameters)
    for got, wanted in zip(actual, torch.autograd.grad(surrogate + error, parameters), strict=True):
        close(got, wanted)


# ---------------------------------------------------------------- buffer, slices, burn-in


def buffered(batches, sampler, size, transform=None):
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(ENVS * STEPS * 2, ndim=2), sampler=sampler, batch_size=size, transform=transform
    )
    for batch in batches:  # three batches into room for two: the ring has wrapped
        buffer.extend(batch)
    torch.manual_seed(5)
    return buffer


def rows_of(sample):
    """Slices, as the flags say."""
    if sample.ndim == 2:
        return list(sample)
    begins = sample["is_init"].flatten().nonzero().flatten().tolist()
    return [sample[a:b] for a, b in zip(begins, [*begins[1:], sample.shape[0]], strict=True)]


SHAPES = {
    "flat": {"slice_len": 3},
    "rows": {"slice_len": 3, "pad_output": True},
    "uneven": {"slice_len": 6, "strict_length": False},
}


@pytest.mark.parametrize("shape", list(SHAPES))
def test_losses_of_slices_go_on_from_their_stored_state(cell, backend, env, shape):
    actor, critic, memory, head, value = actor_critic(cell, backend, env)
    estimate = GAE(gamma=GAMMA, lmbda=LAMBDA, value_network=critic)
    with torch.no_grad():
        batches = [estimate(batch) for batch in collected(env, actor)]
    sample = buffered(batches, SliceSampler(**SHAPES[shape]), 120).sample()
    slices = rows_of(sample)
    assert (len({one.shape[0] for one in slices}) > 1) == (shape == "uneven")
    from_the_middle = [bool((stored_state(memory, one, 0)[0] != 0).any()) for one in slices]
    assert any(from_the_middle)
    hand = [unrolled(memory, one, stored_state(memory, one, 0), begins=False)[0] for one in slices]
    features = torch.stack(hand) if sample.ndim == 2 else torch.cat(hand)
    loss = ClipPPOLoss(actor, critic, normalize_advantage=False, entropy_coeff=0.0, loss_critic_type="l2")
    compare_with_hand(loss(sample), sample, features, actor, critic, head, value)


@pytest.mark.parametrize("shape", ["flat", "rows"])
def test_a_burned_in_state_is_the_one_that_the_present_weights_lead_to(cell, backend, env, shape):
    actor, _, memory, _, _ = actor_critic(cell, backend, env)
    batches = collected(env, actor)
    sampler, again = (SliceSampler(**SHAPES[shape]) for _ in range(2))
    warm = buffered(batches, sampler, 24, BurnInTransform(memory, 2))
    cold = buffered(batches, again, 24)
    with torch.no_grad():
        for parameter in memory.parameters():
            parameter.add_(torch.randn_like(parameter) / 5)
    torch.manual_seed(5)
    left = warm.sample()
    torch.manual_seed(5)
    whole = cold.sample()
    for rest, full in zip(rows_of(left), rows_of(whole), strict=True):
        with torch.no_grad():
            _, _, before, _ = unrolled(memory, full, stored_state(memory, full, 0), begins=False)
        assert rest.shape[0] == full.shape[0] - 2
        for place, part in enumerate(PARTS[cell[0]]):
            close(rest["recurrent_state", part][0], before[2][place])


@pytest.mark.parametrize("lmbda", [0.0, 0.7])
def test_q_learning_on_sequences_over_the_ends_of_episodes(cell, backend, env, lmbda):
    """What the recipe does: the life of an environment as one sequence, cut anywhere."""
    memory = remembering(cell, backend, env)
    head = nn.Linear(WIDTH, 2)
    net = TensorDictSequential(memory, TensorDictModule(head, ["features"], ["action_value"]))
    policy = QValueActor(net, action_space="categorical")
    batches = [
        batch.set(("next", "break"), torch.zeros_like(batch["next", "done"])) for batch in collected(env, policy)
    ]
    loss = DQNLoss(policy, delay_value=True, double_dqn=True, gamma=GAMMA)
    loss.make_value_estimator("td-lambda", gamma=GAMMA, lmbda=lmbda)
    for parameter in loss.target_value_network.parameters():
        parameter.add_(torch.randn_like(parameter) / 5)
    kept = [*loss.in_keys, ("next", "terminated"), ("next", "break")]
    sampler = SliceSampler(slice_len=10, end_key=("next", "break"), pad_output=True)
    sample = buffered([batch.select(*kept) for batch in batches], sampler, 60).sample()
    assert sample.shape == (6, 10)
    original = sample.clone()
    assert (original["is_init"][:, 1:] != 0).any()  # episodes begin inside
    frozen = loss.target_value_network[0]
    values, targets = [], []
    for row in original.clone():
        row["next", "done"][:-1] = row["is_init"][1:]
        here, there = q_values_by_hand(memory, head, row)
        judged = q_values_by_hand(frozen[0], frozen[1].module, row)[1]
        values.append(here)
        targets.append(lambda_returns_by_hand(row, judged.gather(-1, there.argmax(-1, keepdim=True)), lmbda))
    chosen = torch.stack(values).gather(-1, original["action"].unsqueeze(-1))
    wanted = (chosen - torch.stack(targets).detach()).square().mean()
    out = loss(sample)
    close(out["loss"], wanted)
    parameters = list(policy.parameters())
    for got, hand in zip(
        torch.autograd.grad(out["loss"], parameters), torch.autograd.grad(wanted, parameters), strict=True
    ):
        close(got, hand)


def q_values_by_hand(memory, head, row):
    """Values of all actions at each step, and of each outcome, ``[T, 2]``."""
    return [head(part) for part in unrolled(memory, row, stored_state(memory, row, 0), begins=False)[:2]]


def lambda_returns_by_hand(row, value, lmbda):
    """Targets ``[T, 1]`` from values of the outcomes ``[T, 1]``, from the last step to the first."""
    after, found = row["next"], []
    for t in reversed(range(row.shape[0])):
        beyond = value[t]
        if found and not row["is_init"][t + 1]:
            beyond = (1 - lmbda) * value[t] + lmbda * found[-1]
        found.append(after["reward"][t] + GAMMA * beyond * ~after["terminated"][t])
    return torch.stack(found[::-1])


# ---------------------------------------------------------------- wired wrongly


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        pytest.param(lambda b: b.exclude("is_init"), "is_init", id="no-mark"),
        pytest.param(lambda b: b.exclude("recurrent_state"), "recurrent_state", id="no-state"),
        pytest.param(
            lambda b: b.set("is_init", torch.zeros_like(b["is_init"])), "leak into the next episode", id="never-true"
        ),
        pytest.param(lambda b: b[:, torch.randperm(STEPS)], "time order|leak into", id="shuffled"),
    ],
)
def test_parts_that_are_wired_wrongly_are_rejected(spoil, message):
    env = UnequalEnv()
    actor, critic, *_ = actor_critic((LSTMModule, 1), "pad", env)
    batch = collected(env, actor)[0]
    with torch.no_grad():
        ready = GAE(gamma=GAMMA, lmbda=LAMBDA, value_network=critic)(batch.clone())
    with pytest.raises(ContractError, match=message):
        ClipPPOLoss(actor, critic)(spoil(ready))


@pytest.mark.parametrize("place", ["postproc", "select", "transform"])
def test_a_recurrent_state_that_was_removed_is_named(place):
    state = ("recurrent_state", "h")

    def cut(data):
        return data.exclude(state)

    memory = GRUModule(4, WIDTH, in_key="observation", out_key="features")
    head = TensorDictModule(nn.Linear(WIDTH, 2), ["features"], ["action_value"])
    critic = TensorDictSequential(memory, TensorDictModule(nn.Linear(WIDTH, 1), ["features"], ["state_value"]))
    policy = QValueActor(TensorDictSequential(memory, head), spec=ENVIRONMENTS["leaves"]().action_spec)
    collector = Collector(
        ENVIRONMENTS["leaves"], policy, frames_per_batch=80, postproc=cut if place == "postproc" else None
    )
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(200, ndim=2),
        sampler=SliceSampler(slice_len=5),
        batch_size=10,
        transform=cut if place == "transform" else None,
    )
    data = collector.collect()
    buffer.extend(cut(data) if place == "select" else data)
    with pytest.raises(ContractError, match=r"reads \('recurrent_state', 'h'\), which nothing"):
        GAE(gamma=GAMMA, lmbda=LAMBDA, value_network=critic)(buffer.sample().reshape(2, 5))


@pytest.mark.parametrize("ndim", [1, 2])
def test_check_slices_finds_rows_of_two_environments_in_one_trajectory(ndim):
    """Rollouts without trajectory ids, in a storage of one dimension: no flag says where an environment ends."""
    torch.manual_seed(0)
    memory = GRUModule(4, WIDTH, in_key="observation", out_key="features")
    head = TensorDictModule(nn.Linear(WIDTH, 2), ["features"], ["action_value"])
    env = TransformedEnv(GymEnv("CartPole-v1", num_envs=ENVS, categorical_action_encoding=True), InitTracker())
    env.append_transform(memory.make_tensordict_primer())
    policy = QValueActor(TensorDictSequential(memory, head), spec=env.action_spec)
    loss = DQNLoss(policy, double_dqn=True, delay_value=True)
    loss.make_value_estimator("td-lambda", gamma=GAMMA, lmbda=LAMBDA)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(800, ndim=ndim), sampler=SliceSampler(slice_len=5), batch_size=50
    )
    root = env.reset()
    for _ in range(5):
        steps = []
        for _ in range(40):
            with torch.no_grad():
                step, root = env.step_and_maybe_reset(policy(root))
            steps.append(step.select(*loss.in_keys, ("next", "terminated")))
        rollout = torch.stack(steps, 1)
        buffer.extend(rollout.reshape(-1) if ndim == 1 else rollout)
    if ndim == 2:
        SoftUpdate(loss, tau=0.1)
        for _ in range(20):
            loss(buffer.sample())["loss"].backward()
        return
    with pytest.raises(ContractError, match="observation"):
        check_slices(buffer)
