"""Language models with environments' transforms, collectors, and the weights of rl-collectors."""

import re
from pathlib import Path

import pytest
import torch

import rl.llm
from rl.collectors import Collector
from rl.collectors.weights import SharedWeights
from rl.envs import StepCounter, TransformedEnv
from rl.llm import (
    CharTokenizer,
    ChatEnv,
    ChatTemplate,
    EngineReceiver,
    GuessTask,
    Sampling,
    TinyTransformer,
    TransformersWrapper,
    WeightPush,
)
from rl.torchrl._names import instead_of  # what an ImportError says

TOKENIZER = CharTokenizer()
TEMPLATE = ChatTemplate(TOKENIZER)


def policy_of(mode):
    torch.manual_seed(0)
    model = TinyTransformer(len(TOKENIZER), width=16, depth=1, heads=2)
    options = {"sampling": Sampling(max_tokens=3), "template": TEMPLATE, "raw": mode == "text"}
    return TransformersWrapper(model, TOKENIZER, input_mode=mode, **options)


@pytest.mark.parametrize("mode", ["text", "tokens"])
def test_environments_of_dialogues_are_transformed_and_rolled_out(mode):
    env = TransformedEnv(ChatEnv(GuessTask(), TEMPLATE, input_mode=mode, batch_size=3, max_total=40), StepCounter())
    rollout = env.rollout(3, policy_of(mode), break_when_any_done=False)
    assert rollout.batch_size == (3, 3)
    done = rollout["next", "done"]
    expected = torch.ones(3)
    for step in range(3):
        assert rollout["next", "step_count"][:, step].flatten().tolist() == expected.tolist()
        expected = torch.where(done[:, step].flatten(), 1, expected + 1)


def test_a_collector_collects_texts():
    env = ChatEnv(GuessTask(), TEMPLATE, input_mode="text", batch_size=3)
    batch = Collector(env, policy_of("text"), frames_per_batch=6).collect()
    assert batch["next", "reward"].shape == (3, 2, 1)
    assert batch["log_probs", "full"].shape == batch["tokens", "full"].shape


def test_an_engine_gets_the_weights_of_a_versioned_store():
    store, policy = SharedWeights(readers=1), policy_of("tokens")
    push, buffer = WeightPush(EngineReceiver(policy)), {k: v.clone() for k, v in policy.model.state_dict().items()}
    store.map(buffer)
    store.publish({name: torch.full_like(one, 0.5) for name, one in buffer.items()}, version=3)
    assert push.push_from(store, buffer, reader=0)
    assert not push.push_from(store, buffer, reader=0)
    assert policy.generate([[8]], Sampling(1))[0].version == 3
    assert all((one == 0.5).all() for one in policy.model.state_dict().values())
    store.close()


def test_names_of_torchrl_on_the_page_are_there_or_answered():
    page = (Path(__file__).parent.parent / "docs" / "howto" / "llm-names.md").read_text()
    table = page.partition("| TorchRL | here |")[2].partition("## Unverified")[0]
    names = {name for row in table.splitlines() for name in re.findall(r"`(\w+)", row.split("|")[1] if row else "")}
    assert len(names) > 90
    assert [name for name in sorted(names) if not hasattr(rl.llm, name) and instead_of(name) is None] == []
