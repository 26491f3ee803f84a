"""Training of language models: GRPO, supervised fine-tuning and expert iteration, in one loop of updates."""

from __future__ import annotations

import csv
import json
import random
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from tensordict import TensorDictBase
from torch import nn

from rl.core import state as checkpoints
from rl.core.errors import ArgumentError, CheckpointError, RLError
from rl.core.keys import NEXT, REWARD, TRUNCATED
from rl.llm import policy_losses
from rl.llm._keys import TEACHER, TRAINED
from rl.llm.advantages import MCAdvantage
from rl.llm.collectors import Group, LLMCollector, batch_of
from rl.llm.engines import Sampling, TorchEngine
from rl.llm.environments import read_records
from rl.llm.log_probs import TokenScorer
from rl.llm.models import load_model, save_model
from rl.llm.policy_losses import DistillationLoss
from rl.llm.rollouts import padded
from rl.llm.settings import DPO, GRPO, SFT, Distillation, ExpertIteration, LLMSettings
from rl.llm.supervised_losses import DPOLoss, SFTLoss
from rl.llm.tasks import Task, make_task
from rl.llm.templates import ChatTemplate
from rl.llm.transforms import RetrieveLogProb

Messages = Sequence[Mapping[str, Any]]

__all__ = ["LLMResult", "Method", "evaluate", "train_llm"]


class LLMResult(NamedTuple):
    """How a run ended.

    Attributes:
        folder: Run folder.
        updates: Updates, those before a resume included.
        seconds: Wall time of this call.
        reward: Mean reward of the final evaluation.
        interrupted: Whether the run was stopped before its last update.
    """

    folder: Path
    updates: int
    seconds: float
    reward: float
    interrupted: bool = False


class Method:
    """What an update learns from: subclasses give a loss and batches for it.

    Args:
        settings: Settings that all methods share.
        task: Task.
        template: Template.
        engine: Engine that samples with the model that is trained.
        scorer: Policy.
    """

    epochs: int = 1

    def __init__(
        self, settings: LLMSettings, task: Task, template: ChatTemplate, engine: TorchEngine, scorer: TokenScorer
    ) -> None:
        self.settings, self.task, self.template, self.engine, self.scorer = settings, task, template, engine, scorer

    @property
    @abstractmethod
    def loss(self) -> Any:
        """Loss, with `normalize`."""

    @abstractmethod
    def batch(self) -> TensorDictBase:
        """Return the data of one update."""

    def figures(self, batch: TensorDictBase) -> dict[str, float]:
        """Return figures of a batch for the log."""
        reward = batch[NEXT, REWARD]
        lengths = batch[TRAINED].sum(-1).float()
        return {
            "reward": float(reward.mean()),
            "reward_std": float(reward.std()),
            "completions/mean_length": float(lengths.mean()),
            "completions/clipped_ratio": float(batch[NEXT, TRUNCATED].float().mean()),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the source of data."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""


def _collector(method: Method, groups: int, size: int, max_dropped: int) -> LLMCollector:
    settings, task = method.settings, method.task
    return LLMCollector(
        task,
        method.template,
        method.engine,
        groups_per_batch=groups,
        group_size=size,
        sampling=Sampling(settings.max_tokens or task.max_tokens, settings.temperature),
        max_dropped=max_dropped,
        seed=settings.seed,
    )


@final
class _GRPO(Method):
    def __init__(self, options: GRPO, *parts: Any) -> None:
        super().__init__(*parts)
        self.epochs = options.epochs
        self.collector = _collector(self, options.groups, options.group_size, options.max_dropped)
        extra: dict[str, Any] = {"kl_to_ref_coeff": None} if options.loss == "GRPOLoss" else {}
        if options.loss == "DrGRPOLoss":
            extra["max_tokens"] = self.collector.sampling.max_tokens
        self._loss = getattr(policy_losses, options.loss)(self.scorer, **extra)
        rloo = options.loss == "RLOOLoss"
        baseline, scale = "leave_one_out" if rloo else "group", "group" if options.scale and not rloo else None
        self.advantage = MCAdvantage(options.group_size, baseline=baseline, scale=scale)

    @property
    def loss(self) -> Any:
        return self._loss

    def batch(self) -> TensorDictBase:
        batch = batch_of(self.collector.collect(), pad_token=self.engine.pad_token)
        return self.advantage(batch.to(self.engine.device))

    def state_dict(self) -> dict[str, Any]:
        return self.collector.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.collector.load_state_dict(state)


@final
class _ExpertIteration(Method):
    def __init__(self, options: ExpertIteration, *parts: Any) -> None:
        super().__init__(*parts)
        self.epochs, self.options = options.epochs, options
        self.collector = _collector(self, options.groups, options.group_size, 0)
        self._loss = SFTLoss(self.scorer)

    @property
    def loss(self) -> Any:
        return self._loss

    def batch(self) -> TensorDictBase:
        batch = batch_of(self.collector.collect(), pad_token=self.engine.pad_token).to(self.engine.device)
        reward = batch[NEXT, REWARD].view(-1, self.options.group_size)
        best = (reward == reward.amax(-1, keepdim=True)) & (reward >= self.options.threshold)
        return batch.set(TRAINED, batch[TRAINED] & best.view(-1, 1))

    def state_dict(self) -> dict[str, Any]:
        return self.collector.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.collector.load_state_dict(state)


@final
class _SFT(Method):
    def __init__(self, options: SFT, *parts: Any) -> None:
        super().__init__(*parts)
        self.options, self.rng = options, random.Random(self.settings.seed)
        self._loss = SFTLoss(self.scorer)
        self.rows = read_conversations(options.dataset) if options.dataset else []

    @property
    def loss(self) -> Any:
        return self._loss

    def _conversation(self) -> Messages:
        if self.rows:
            return self.rows[self.rng.randrange(len(self.rows))]
        problem = self.task.sample(self.rng)
        if not problem.solution:
            raise ArgumentError(f"SFT: the task {self.settings.task!r} has no solutions. Pass a dataset")
        return [*problem.messages, {"role": "assistant", "content": problem.solution}]

    def batch(self) -> TensorDictBase:
        rollouts = [self.template.rollout(self._conversation()) for _ in range(self.options.batch_size)]
        return padded(rollouts, pad_token=self.engine.pad_token).to(self.engine.device)

    def figures(self, batch: TensorDictBase) -> dict[str, float]:
        return {"completions/mean_length": float(batch[TRAINED].sum(-1).float().mean())}

    def state_dict(self) -> dict[str, Any]:
        return {"rng": _rng_state(self.rng)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        _restore_rng(self.rng, state["rng"])


@final
class _DPO(Method):
    def __init__(self, options: DPO, *parts: Any) -> None:
        super().__init__(*parts)
        self.options, self.rng = options, random.Random(self.settings.seed)
        self.rows = read_pairs(options.dataset) if options.dataset else []
        # Groups without a best answer give no pair.
        self.collector = _collector(self, options.pairs, options.group_size, 10 * options.pairs)
        self._loss = DPOLoss(self.scorer, beta=options.beta)
        reference = TokenScorer(deepcopy(self.scorer.model).requires_grad_(requires_grad=False), entropy=False)
        self._reference = RetrieveLogProb(reference)

    @property
    def loss(self) -> Any:
        return self._loss

    def batch(self) -> TensorDictBase:
        if self.rows:
            chosen = [self.rows[self.rng.randrange(len(self.rows))] for _ in range(self.options.pairs)]
            found = [self.template.rollout(one) for pair in chosen for one in pair]
        else:
            groups = [sorted(one.dialogues, key=lambda each: each.reward) for one in self.collector.collect()]
            found = [one.rollout for group in groups for one in (group[-1], group[0])]
        batch = self._reference(padded(found, pad_token=self.engine.pad_token).to(self.engine.device))
        return batch.reshape(-1, 2)

    def figures(self, batch: TensorDictBase) -> dict[str, float]:
        return {"completions/mean_length": float(batch[TRAINED].sum(-1).float().mean())}

    def state_dict(self) -> dict[str, Any]:
        return {"collector": self.collector.state_dict(), "rng": _rng_state(self.rng)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.collector.load_state_dict(state["collector"])
        _restore_rng(self.rng, state["rng"])


@final
class _Distillation(Method):
    def __init__(self, options: Distillation, *parts: Any) -> None:
        super().__init__(*parts)
        self.collector = _collector(self, options.batch_size, 1, 0)
        self._loss = DistillationLoss(self.scorer)
        teacher, tokenizer = load_model(options.teacher, alphabet=self.task.alphabet)
        if len(tokenizer) != len(self.template.tokenizer):  # pyright: ignore[reportArgumentType]
            raise ArgumentError(f"Distillation: teacher must have the tokenizer of the model, got {options.teacher!r}")
        scorer = TokenScorer(teacher.to(self.engine.device).requires_grad_(requires_grad=False), entropy=False)
        self._teacher = RetrieveLogProb(scorer, key=TEACHER)

    @property
    def loss(self) -> Any:
        return self._loss

    def batch(self) -> TensorDictBase:
        batch = batch_of(self.collector.collect(), pad_token=self.engine.pad_token)
        return self._teacher(batch.to(self.engine.device))

    def state_dict(self) -> dict[str, Any]:
        return self.collector.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.collector.load_state_dict(state)


def _rng_state(rng: random.Random) -> list[Any]:
    version, internal, gauss = rng.getstate()
    return [version, list(internal), gauss]


def _restore_rng(rng: random.Random, state: Sequence[Any]) -> None:
    version, internal, gauss = state
    rng.setstate((version, tuple(internal), gauss))


def read_pairs(file: str | Path) -> list[tuple[Messages, Messages]]:
    """Return pairs of conversations, the chosen one first, of a file with a JSON object a line.

    Args:
        file: File, whose objects have ``prompt``, ``chosen`` and ``rejected``.

    Raises:
        ArgumentError: If the file is absent or empty, or a line lacks an entry.
    """
    found: list[tuple[Messages, Messages]] = []
    for number, row in enumerate(read_records(file), start=1):
        if not {"prompt", "chosen", "rejected"} <= row.keys():
            raise ArgumentError(
                f"read_pairs: record {number} of {file} must have prompt, chosen and rejected, got {sorted(row)}"
            )
        user = {"role": "user", "content": row["prompt"]}
        one, other = ([user, {"role": "assistant", "content": row[name]}] for name in ("chosen", "rejected"))
        found.append((one, other))
    return found


_METHODS: dict[type, Callable[..., Method]] = {
    DPO: _DPO,
    GRPO: _GRPO,
    SFT: _SFT,
    Distillation: _Distillation,
    ExpertIteration: _ExpertIteration,
}


def read_conversations(file: str | Path) -> list[Messages]:
    """Return the conversations of a file with a JSON object a line.

    Args:
        file: File, whose objects have ``messages``, or ``prompt`` and ``completion``.

    Raises:
        ArgumentError: If the file is absent or empty, or a line has neither.
    """
    found: list[Messages] = []
    for number, row in enumerate(read_records(file), start=1):
        if "messages" in row:
            found.append(row["messages"])
        elif {"prompt", "completion"} <= row.keys():
            user = {"role": "user", "content": row["prompt"]}
            found.append([user, {"role": "assistant", "content": row["completion"]}])
        else:
            raise ArgumentError(
                f"read_conversations: record {number} of {file} must have messages, or prompt and completion, got"
                f" {sorted(row)}"
            )
    return found


def evaluate(
    task: Task, template: ChatTemplate, engine: TorchEngine, *, problems: int, seed: int, max_tokens: int = 0
) -> list[Group]:
    """Return dialogues on fresh problems, with the most probable tokens.

    Args:
        task: Task.
        template: Template.
        engine: Engine.
        problems: Number of problems.
        seed: Seed of the problems.
        max_tokens: Largest number of tokens of an answer; 0 for what the task needs.
    """
    sampling = Sampling(max_tokens or task.max_tokens, temperature=0)
    options: dict[str, Any] = {"groups_per_batch": problems, "group_size": 1, "sampling": sampling, "seed": seed}
    return LLMCollector(task, template, engine, **options).collect()


def train_llm(
    settings: LLMSettings,
    method: DPO | GRPO | SFT | Distillation | ExpertIteration | Callable[..., Method],
    *,
    out: str | Path,
    resume: bool = False,
    report: Callable[[str], Any] | None = None,
    should_stop: Callable[[int], bool] | None = None,
    files: Mapping[str, str] | None = None,
) -> LLMResult:
    """Train a language model.

    The folder gets ``settings.json``, ``metrics.csv`` with a row for each update, ``samples.txt`` with answers of each
    evaluation, ``checkpoints/last.safetensors``, and at the end ``model``, which `load_model` and, for their models,
    Hugging Face read. A resumed run on a CPU has the same numbers as one that was not interrupted.

    Args:
        settings: Settings that all methods share.
        method: `GRPO`, `SFT`, `DPO`, `Distillation` or `ExpertIteration` with their settings; or a class of one's own,
            called with the arguments of `Method`.
        out: Run folder, which must not exist without `resume`.
        resume: Whether the run in the folder continues from its last checkpoint.
        report: Function that is called with a line for each evaluation.
        should_stop: Function that is called with the number of updates; the run is saved and ends where it is true.
        files: Contents of further text files of the folder, by name.

    Raises:
        RLError: If the folder exists, or the loss is not finite.
        CheckpointError: If there is nothing to resume, or with other settings.

    Example:
        >>> import tempfile
        >>> settings = LLMSettings(updates=2, eval_problems=4)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = train_llm(settings, GRPO(groups=2, group_size=4), out=f"{folder}/run")
        ...     sorted(one.name for one in result.folder.iterdir())
        ['checkpoints', 'metrics.csv', 'model', 'samples.txt', 'settings.json']
    """
    run = _Run(settings, method, Path(out), resume=resume)
    for name, text in (files or {}).items():
        (run.folder / name).write_text(text, encoding="utf-8")
    started = time.perf_counter()
    with run.logged():
        interrupted = False
        while run.update < settings.updates and not interrupted:
            run.step()
            done = run.update == settings.updates
            if run.update % settings.eval_every == 0 or done:
                reward = run.evaluate()
                if report is not None:
                    report(f"update {run.update}: reward {reward:.3f} on {settings.eval_problems} problems")
            interrupted = not done and should_stop is not None and should_stop(run.update)
            if run.update % settings.checkpoint_every == 0 or done or interrupted:
                run.save()
    seconds = time.perf_counter() - started
    if interrupted:
        return LLMResult(run.folder, run.update, seconds, float("nan"), interrupted=True)
    save_model(run.model, run.tokenizer, run.folder / "model")
    return LLMResult(run.folder, run.update, seconds, run.reward)


class _Run:
    """Parts of a run, one update, evaluation, checkpoint."""

    def __init__(self, settings: LLMSettings, method: Any, folder: Path, *, resume: bool) -> None:
        self.settings, self.folder, self.update, self.reward = settings, folder, 0, float("nan")
        if settings.threads:
            torch.set_num_threads(settings.threads)
        torch.manual_seed(settings.seed)
        self.task = make_task(settings.task, **settings.task_options)
        self.model, self.tokenizer = load_model(
            settings.model,
            alphabet=self.task.alphabet,
            lora_rank=settings.lora_rank,
            checkpoint_activations=settings.checkpoint_activations,
        )
        self.model.to(settings.device)
        self.template = ChatTemplate(self.tokenizer)
        pad = getattr(self.tokenizer, "pad_token_id", None)
        pad = self.template.stop_tokens[0] if pad is None else pad
        options: dict[str, Any] = {"stop_tokens": self.template.stop_tokens, "pad_token": pad}
        self.engine = TorchEngine(self.model, **options, max_batch=1024, seed=settings.seed)
        scorer = TokenScorer(self.model, temperature=settings.temperature)
        parts = (settings, self.task, self.template, self.engine, scorer)
        known = _METHODS.get(type(method))
        self.method: Method = method(*parts) if known is None else known(method, *parts)
        trained = [one for one in self.model.parameters() if one.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
        described = json.dumps({"method": repr(method), **asdict(settings)}, indent=1, default=dict)
        self.described = {key: one for key, one in json.loads(described).items() if key not in ("updates", "threads")}
        if resume:
            self._restore()
        elif folder.exists():
            raise RLError(f"train_llm: the run folder {folder} exists already. Pass another one, or resume=True")
        else:
            folder.mkdir(parents=True)
        (folder / "settings.json").write_text(described, encoding="utf-8")

    def step(self) -> None:
        """Make one update."""
        begun = time.perf_counter()
        batch = self.method.loss.normalize(self.method.batch())
        figures = self.method.figures(batch)
        sampled = time.perf_counter()
        size = self.settings.micro_batch or len(batch)
        half = torch.autocast(self.engine.device.type, torch.bfloat16)
        totals: dict[str, float] = {}
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate * (1 - self.update / self.settings.updates)
        for _ in range(self.method.epochs):
            self.optimizer.zero_grad()
            totals = {}
            for micro in batch.split(size):
                with half if self.settings.precision == "bf16" else nullcontext():
                    out = self.method.loss(micro)
                total: Any = sum(value for key, value in out.items() if key.startswith("loss"))
                total.backward()  # of a sum over micro-batches, whose weights `normalize` made those of the batch
                totals["loss"] = totals.get("loss", 0.0) + float(total.detach())
                if "entropy" in out:
                    totals["entropy"] = totals.get("entropy", 0.0) + float(out["entropy"]) * len(micro) / len(batch)
            if not torch.isfinite(torch.tensor(totals["loss"])):
                raise RLError(
                    f"train_llm: the loss is {totals['loss']} at update {self.update}. Lower the learning rate"
                )
            trained = self.optimizer.param_groups[0]["params"]
            totals["grad_norm"] = float(nn.utils.clip_grad_norm_(trained, self.settings.max_grad_norm))
            self.optimizer.step()
        self.update += 1
        self.engine.version = self.update  # the engine samples with the model that is trained
        seconds = {"seconds/sample": sampled - begun, "seconds/update": time.perf_counter() - sampled}
        self._row({"update": self.update, **figures, **totals, **seconds})

    def evaluate(self) -> float:
        """Return the mean reward on fresh problems, always the same ones, and write some answers."""
        options: dict[str, Any] = {"problems": self.settings.eval_problems, "max_tokens": self.settings.max_tokens}
        # Seeds of training are at least 0.
        groups = evaluate(self.task, self.template, self.engine, **options, seed=-1 - self.settings.seed)
        ones = [group.dialogues[0] for group in groups]
        self.reward = sum(one.reward for one in ones) / len(ones)
        with (self.folder / "samples.txt").open("a", encoding="utf-8") as file:
            file.write(f"update {self.update}, mean reward {self.reward:.3f}\n")
            for one in ones[:4]:
                text = " | ".join(f"{message['role']}: {message['content']}" for message in one.messages)
                file.write(f"  {text} | reward {one.reward:.2f}\n")
        return self.reward

    def logged(self) -> Any:
        """Open the metrics; close them at the end."""
        self._file = (self.folder / "metrics.csv").open("a", newline="", encoding="utf-8")
        self._writer: Any = None
        return self._file

    def _row(self, row: dict[str, float]) -> None:
        if self._writer is None:
            self._writer = csv.DictWriter(self._file, list(row))
            if not self._file.tell():
                self._writer.writeheader()
        self._writer.writerow(row)
        self._file.flush()

    @property
    def _last(self) -> Path:
        return self.folder / "checkpoints" / "last.safetensors"

    def save(self) -> None:
        """Write the checkpoint."""
        state = {
            "settings": self.described,
            "update": self.update,
            "model": dict(self.model.state_dict()),
            "optimizer": checkpoints.pack(self.optimizer.state_dict(), "train_llm"),
            "method": self.method.state_dict(),
            "sampler": self.engine.generator.get_state(),
            "torch": torch.get_rng_state(),
        }
        checkpoints.save(self._last, state)

    def _restore(self) -> None:
        saved = checkpoints.load(self._last, mapped=False)
        differing = sorted(key for key, one in self.described.items() if saved["settings"].get(key) != one)
        if differing:
            raise CheckpointError(f"train_llm: {', '.join(differing)} differ from those of the run in {self.folder}")
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(checkpoints.unpack(saved["optimizer"], "train_llm"))
        self.method.load_state_dict(saved["method"])
        self.engine.generator.set_state(saved["sampler"])
        torch.set_rng_state(saved["torch"])
        self.update = self.engine.version = saved["update"]
        self._truncate_metrics()

    def _truncate_metrics(self) -> None:
        """Remove rows after the checkpoint, which are written again."""
        path = self.folder / "metrics.csv"
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(lines[: self.update + 1]), encoding="utf-8")
