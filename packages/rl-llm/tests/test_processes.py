"""Two processes with gloo train as one process with the same total batch does."""

import csv
from datetime import timedelta

import pytest
import torch
from tensordict import TensorDict
from torch import distributed, multiprocessing

from rl.core.errors import ArgumentError, CheckpointError
from rl.llm import DPO, GRPO, SFT, DAPOLoss, DPOLoss, DrGRPOLoss, LLMSettings, Method, PolicyLoss, PPOClip, train_llm

SMALL = {"task_options": {"length": 2, "digits": 2}, "eval_problems": 4, "updates": 3, "threads": 1}


class Given(Method):
    """A batch of random tokens; each of several processes has rows of its own, with other numbers of tokens."""

    make = DAPOLoss

    def __init__(self, *parts):
        super().__init__(*parts)
        self.loss = self.make(self.scorer)

    def batch(self):
        generator = torch.Generator().manual_seed(self.rng.randrange(1000))
        tokens = torch.randint(7, 17, (8, 6), generator=generator)
        lengths = torch.randint(0, 5, (8, 1), generator=generator)
        mask = (torch.arange(6) >= 1) & (torch.arange(6) <= lengths)
        batch = TensorDict(
            {
                "tokens": {"full": tokens},
                "masks": {"all_attention_mask": torch.ones(8, 6, dtype=torch.bool), "all_assistant_mask": mask},
                "log_probs": {"full": -2.3 + 0.1 * torch.randn(8, 6, generator=generator)},
                "ref_log_probs": {"full": -2.3 + 0.1 * torch.randn(8, 6, generator=generator)},
                "advantage": torch.randn(8, 1, generator=generator),
                "group": torch.arange(4).repeat_interleave(2).unsqueeze(-1),
            },
            batch_size=[8],
        )
        if self.make is DPOLoss:
            batch = batch.reshape(4, 2)
        if not distributed.is_initialized():
            return batch
        size = len(batch) // 2
        return batch[distributed.get_rank() * size :][:size]


class Prompts(Given):
    """The same, with a mean for each prompt."""

    def make(self, scorer):
        return PolicyLoss(scorer, PPOClip(), ratio="token", normalizer="prompt")


class Constant(Given):
    """The same, divided by a constant."""

    def make(self, scorer):
        return DrGRPOLoss(scorer, max_tokens=5)


class Pairs(Given):
    """The same, as pairs."""

    make = DPOLoss


METHODS = {
    "tokens": Given,
    "prompts": Prompts,
    "constant": Constant,
    "pairs": Pairs,
    "sft": SFT(batch_size=6),
}


def rows(folder):
    with (folder / "metrics.csv").open() as file:
        return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]


def train_each(folder):
    for name, method in METHODS.items():
        for size in (0, 2):
            train_llm(LLMSettings(micro_batch=size, **SMALL), method, out=folder / f"{name}-{size}")


SHARDED = {"tokens": Given, "sft": SFT(batch_size=6), "dpo": DPO(pairs=4, group_size=2)}


def shard(folder):
    for name, method in SHARDED.items():
        settings = LLMSettings(micro_batch=2, shard=True, checkpoint_every=1, **SMALL)
        train_llm(settings, method, out=folder / f"{name}-sharded")
    train_llm(settings, method, out=folder / "dpo-parts", should_stop=lambda update: update == 2)
    train_llm(settings, method, out=folder / "dpo-parts", resume=True)


GROUPS = GRPO(groups=4, group_size=4, epochs=1)


def sample(folder):
    settings = LLMSettings(checkpoint_every=1, **SMALL)
    train_llm(settings, GROUPS, out=folder / "whole")
    train_llm(settings, GROUPS, out=folder / "parts", should_stop=lambda update: update == 2)
    train_llm(settings, GROUPS, out=folder / "parts", resume=True)
    train_llm(settings, DPO(pairs=4, group_size=2), out=folder / "dpo")


def refuse(folder):
    with pytest.raises(ValueError, match="groups must be a multiple of the 2 processes, got 3"):
        train_llm(LLMSettings(**SMALL), GRPO(groups=3, group_size=4), out=folder / "run")
    with pytest.raises(ValueError, match="batch_size must be a multiple"):
        train_llm(LLMSettings(**SMALL), SFT(batch_size=3), out=folder / "run")


def _process(rank, folder):
    file = f"file://{folder / 'rendezvous'}"
    distributed.init_process_group("gloo", init_method=file, rank=rank, world_size=2, timeout=timedelta(seconds=120))
    for work in (train_each, sample, refuse, shard):
        work(folder)
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder of the runs of two processes."""
    path = tmp_path_factory.mktemp("two")
    multiprocessing.spawn(_process, (path,), nprocs=2)
    return path


@pytest.mark.filterwarnings("ignore:.*in the first batch the log-ratio")  # of a batch that was made up
def test_losses_and_gradients_are_those_of_one_process(folder, tmp_path):
    train_each(tmp_path)
    for name in METHODS:
        for size in (0, 2):
            found, expected = (rows(many / f"{name}-{size}") for many in (folder, tmp_path))
            assert len(found) == 3
            for one, other in zip(found, expected, strict=True):
                assert one["train/loss"] == pytest.approx(other["train/loss"], abs=1e-6, rel=1e-6), name
                assert one["train/grad_norm"] == pytest.approx(other["train/grad_norm"], rel=1e-4), name


def test_each_process_samples_its_groups_and_the_run_continues_bit_by_bit(folder):
    weights = [(folder / name / "model" / "model.safetensors").read_bytes() for name in ("whole", "parts")]
    assert weights[0] == weights[1]
    with pytest.raises(CheckpointError, match="had 2 processes, got 1"):
        train_llm(LLMSettings(checkpoint_every=1, **SMALL), GROUPS, out=folder / "whole", resume=True)


@pytest.mark.filterwarnings("ignore:.*in the first batch the log-ratio")  # of a batch that was made up
def test_divided_weights_train_as_entire_ones_and_continue_bit_by_bit(folder):
    for name, whole in (("tokens", "tokens-2"), ("sft", "sft-2")):
        for one, other in zip(rows(folder / f"{name}-sharded"), rows(folder / whole), strict=True):
            assert one["train/loss"] == pytest.approx(other["train/loss"], abs=1e-6, rel=1e-6)
            assert one["train/grad_norm"] == pytest.approx(other["train/grad_norm"], rel=1e-4)
    first = rows(folder / "dpo-sharded")[0]
    assert first["train/loss"] == pytest.approx(0.693147, abs=1e-4)  # policy and reference are equal at the start
    weights = [(folder / name / "model" / "model.safetensors").read_bytes() for name in ("dpo-sharded", "dpo-parts")]
    assert weights[0] == weights[1]


def test_weights_are_divided_among_several_processes_alone(tmp_path):
    with pytest.raises(ArgumentError, match="Start them with torchrun"):
        train_llm(LLMSettings(shard=True, **SMALL), SFT(batch_size=2), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
