"""Training of language models: one loop of updates, with evaluations, checkpoints and a run folder."""

from __future__ import annotations

import csv
import json
import math
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tensordict import TensorDictBase
from torch import nn

from rl.core import state as checkpoints
from rl.core.errors import ArgumentError, BackendError, CheckpointError, RLError
from rl.llm import _processes as processes
from rl.llm.collectors import Group, LLMCollector
from rl.llm.engines import Sampling, TorchEngine
from rl.llm.environments import DatasetTask, make_record_task
from rl.llm.log_probs import TokenScorer
from rl.llm.methods import Method, make_method
from rl.llm.models import load_model, positions_of, save_model
from rl.llm.settings import DPO, GRPO, SFT, Distillation, ExpertIteration, LLMSettings
from rl.llm.supervised_losses import DPOLoss
from rl.llm.tasks import Task, make_task
from rl.llm.templates import ChatTemplate
from rl.llm.tiny import CharTokenizer
from rl.llm.tools import ToolTask

__all__ = ["LLMResult", "evaluate", "train_llm"]

_DISTRIBUTIONS = ("rl-core", "rl-llm", "torch", "tensordict", "transformers", "peft")


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


def evaluate(
    task: Task,
    template: ChatTemplate,
    engine: TorchEngine,
    *,
    problems: int,
    seed: int,
    max_tokens: int = 0,
    max_total: int = 0,
    temperature: float = 0.0,
) -> list[Group]:
    """Return dialogues on fresh problems.

    Args:
        task: Task.
        template: Template.
        engine: Engine.
        problems: Number of problems.
        seed: Seed of the problems.
        max_tokens: Largest number of tokens of an answer; 0 for what the task needs.
        max_total: Largest number of tokens of a dialogue; 0 for the positions of the model.
        temperature: Temperature of sampling; 0 for the most probable tokens.
    """
    total = max_total or positions_of(engine.model)
    sampling = Sampling(max_tokens or task.max_tokens, temperature=temperature, max_total=total)
    options: dict[str, Any] = {"groups_per_batch": problems, "group_size": 1, "sampling": sampling, "seed": seed}
    return LLMCollector(task, template, engine, **options).collect()


def evaluate_run(
    settings: LLMSettings, method: Any, folder: str | Path, *, problems: int, seed: int, temperature: float = 0.0
) -> list[float]:
    """Return the reward of the model of a run, which has ended, on each of some problems."""
    path = Path(folder) / "model"
    if not path.is_dir():
        raise CheckpointError(f"evaluate_run: the run in {folder} has no model yet. Continue it with resume")
    task = _tasks_of(settings, method)[1]
    model, tokenizer = load_model(str(path))  # with the template of the run
    chat = "raw" if settings.chat_template == "raw" else ""
    template, engine = _sampler(model.to(_check_device(settings.device)), tokenizer, seed % 2**63, chat, task)
    options: dict[str, Any] = {"max_tokens": settings.max_tokens, "max_total": settings.max_total}
    groups = evaluate(task, template, engine, problems=problems, seed=seed, temperature=temperature, **options)
    return [group.dialogues[0].reward for group in groups]


def _tasks_of(settings: LLMSettings, method: Any) -> tuple[Task, Task]:
    """Return the task of training and that of evaluations."""
    file, reward, other = getattr(method, "dataset", ""), getattr(method, "reward", ""), settings.eval_dataset
    if other and not file:
        raise ArgumentError("train_llm: eval_dataset holds out records of a data set. Pass dataset= of the method too")
    if not file or not reward:  # conversations and pairs have answers, and no rewards
        task = make_task(settings.task, **settings.task_options)
        return task, task
    task = make_record_task(file, reward)
    return task, make_record_task(other, reward) if other else task


def _sampler(
    model: nn.Module, tokenizer: Any, seed: int, chat_template: str, task: Task
) -> tuple[ChatTemplate, TorchEngine]:
    """Return the template of a tokenizer or a file, with the tools of the task, and an engine of the model."""
    text = chat_template or None
    if text not in (None, "raw"):
        try:
            text = Path(chat_template).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ArgumentError(f"train_llm: chat_template must be raw or a text file, got {error}") from error
        if not hasattr(tokenizer, "alphabet"):
            tokenizer.chat_template = text  # which is saved with the model
    tools = task.tools.describe() if isinstance(task, ToolTask) and text != "raw" else None
    template = ChatTemplate(tokenizer, template=text, tools=tools)
    pad = getattr(tokenizer, "pad_token_id", None)
    pad = template.stop_tokens[0] if pad is None else pad
    return template, TorchEngine(model, stop_tokens=template.stop_tokens, pad_token=pad, max_batch=1024, seed=seed)


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
    evaluation, ``checkpoints/last.safetensors``, ``history.json`` with each start, and at the end ``summary.json`` and
    ``model``, which `load_model` and Hugging Face read. A resumed run on a CPU has the same numbers as one that was not
    interrupted, but for samples of a thread (``max_staleness``).

    Started by torchrun, all processes together make a batch, and the first one writes the folder.

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
        BackendError: If there is no such device.

    Example:
        >>> import tempfile
        >>> settings = LLMSettings(updates=2, eval_problems=4)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = train_llm(settings, GRPO(groups=2, group_size=4), out=f"{folder}/run")
        ...     sorted(one.name for one in result.folder.iterdir())
        ['checkpoints', 'history.json', 'metrics.csv', 'model', 'samples.txt', 'settings.json', 'summary.json']
    """
    run = _Run(settings, method, Path(out), resume=resume)
    begun, interrupted = time.perf_counter(), False
    try:
        run.begin(files or {})
        while run.update < settings.updates and not interrupted:
            row = run.step()
            done = run.update == settings.updates
            if run.update % settings.eval_every == 0 or done:
                row["eval/return_mean"] = run.evaluate()
                line = f"update {run.update}: reward {run.reward:.3f} on {settings.eval_problems} problems"
                if run.method.held_out:
                    row["eval/loss"] = run.method.held_out_loss()
                    line += f", loss {row['eval/loss']:.3f} on {len(run.method.held_out)} records"
                if report is not None and run.writes:
                    report(line)
            run.write_row(row)
            stop = not done and should_stop is not None and should_stop(run.update)
            interrupted = any(processes.gather(stop))
            if run.update % settings.checkpoint_every == 0 or done or interrupted:
                run.save()
        if not interrupted:
            run.finish()
        processes.wait()
    except BaseException:
        run.remove_failed_start()
        raise
    finally:
        run.method.close()
    return LLMResult(run.folder, run.update, time.perf_counter() - begun, run.reward, interrupted=interrupted)


class _Run:
    """Parts of a run, one update, evaluation, checkpoint."""

    def __init__(self, settings: LLMSettings, method: Any, folder: Path, *, resume: bool) -> None:
        self.settings, self.folder, self.update, self.reward = settings, folder, 0, float("nan")
        self.before = {"seconds": 0.0, "cpu_seconds": 0.0}  # of processes before a resume
        self.begun = {"seconds": time.perf_counter(), "cpu_seconds": time.process_time()}
        device = processes.start(_check_device(settings.device))
        self.writes = processes.rank() == 0
        self.recipe = getattr(method, "recipe", getattr(method, "__name__", "method"))
        if not resume and self.writes and folder.exists():
            raise RLError(f"train_llm: the run folder {folder} exists already. Pass another one, or resume=True")
        if settings.threads:
            torch.set_num_threads(settings.threads)
        torch.manual_seed(settings.seed)  # all processes have the same weights
        self.task, self.eval_task = _tasks_of(settings, method)
        self.model, self.tokenizer = load_model(
            settings.model,
            alphabet=self.task.alphabet,
            lora_rank=settings.lora_rank,
            checkpoint_activations=settings.checkpoint_activations,
        )
        self.model.to(device)
        # Divided weights are joined after each update in the model that samples.
        sampling = deepcopy(self.model) if settings.shard else self.model
        seed = processes.seed_of(settings.seed)
        self.template, self.engine = _sampler(sampling, self.tokenizer, seed, settings.chat_template, self.task)
        self._check_prompts(method)
        if settings.shard:
            processes.shard(self.model)
        scorer = TokenScorer(self.model, temperature=settings.temperature)
        self.method = make_method(method, settings, self.task, self.template, self.engine, scorer)
        self.trained = [one for one in self.model.parameters() if one.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
        self.text = json.dumps({"method": repr(method), **asdict(settings)}, indent=1, default=dict)
        self.described = {key: one for key, one in json.loads(self.text).items() if key not in ("updates", "threads")}
        if resume:
            self._restore()

    def _check_prompts(self, method: Any) -> None:
        """Raise if the template is not one for training, or it cannot encode a record."""
        if not isinstance(self.tokenizer, CharTokenizer):  # whose template is one
            pairs = isinstance(method, DPO) and method.dataset
            self.template.check(given=bool(isinstance(method, SFT) or pairs), turns=self.task.max_turns > 1)
        tasks: Any = {self.task, self.eval_task}
        for task in tasks:
            for number, record in enumerate(task.records if isinstance(task, DatasetTask) else (), start=1):
                try:
                    self.template.prompt(task.problem(record).messages)
                except ArgumentError as error:
                    raise ArgumentError(f"train_llm: record {number} of the data set does not fit ({error})") from error

    def begin(self, files: Mapping[str, str]) -> None:
        """Write what the folder has from the start."""
        if not self.writes:
            return
        history, before = self.folder / "history.json", list[Any]()
        if self.update:
            with checkpoints.reading("train_llm"):
                before = json.loads(history.read_text(encoding="utf-8"))
        else:
            try:
                self.folder.mkdir(parents=True)
            except OSError as error:
                raise RLError(f"train_llm: the run folder cannot be created ({error})") from error
        command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
        started = {
            "frames": self.update,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": command,
        }
        texts = {"settings.json": self.text, "history.json": json.dumps([*before, started], indent=2), **files}
        for name, text in texts.items():
            (self.folder / name).write_text(text, encoding="utf-8")

    def remove_failed_start(self) -> None:
        """Remove the folder of a run whose first update failed."""
        if not self.update and self.writes and (self.folder / "settings.json").is_file():
            shutil.rmtree(self.folder)

    def step(self) -> dict[str, float]:
        """Perform one update, and return its row of metrics."""
        begun = time.perf_counter()
        batch = self.method.loss.normalize(self.method.batch())
        _share_weights(self.method.loss, batch)
        figures = self.method.figures(batch)
        sampled = time.perf_counter()
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate * (1 - self.update / self.settings.updates)
        found: dict[str, float] = {}
        for _ in range(self.method.epochs):
            found = self._optimize(batch)
        names, values = [*figures, *found], torch.tensor([*figures.values(), *found.values()], dtype=torch.float64)
        processes.sum_up([values])
        means = dict(zip(names, (values / processes.count()).tolist(), strict=True))
        self.update += 1
        self.engine.version = self.update  # the engine samples with the model that is trained
        if self.settings.shard:
            self.engine.model.load_state_dict(processes.join(self.model.state_dict()))
        self.method.updated()
        times = {"time/sample": sampled - begun, "time/update": time.perf_counter() - sampled}
        train = {f"train/{name}": value for name, value in means.items()}
        return {
            "frames": self.update,
            "eval/return_mean": math.nan,
            **({"eval/loss": math.nan} if self.method.held_out else {}),
            **train,
            "time/seconds": self._spent()["seconds"],
            **times,
        }

    def _optimize(self, batch: TensorDictBase) -> dict[str, float]:
        """Take one step on all micro-batches, and return what the loss reports."""
        self.optimizer.zero_grad()
        total, found = torch.zeros((), device=self.engine.device), dict[str, float]()
        half = torch.autocast(self.engine.device.type, torch.bfloat16)
        for micro in batch.split(self.settings.micro_batch or len(batch)):
            with half if self.settings.precision == "bf16" else nullcontext():
                out = self.method.loss(micro)
            loss: Any = sum(value for key, value in out.items() if key.startswith("loss"))
            loss.backward()  # of a sum over micro-batches, whose weights `normalize` made those of the batch
            total += loss.detach()
            for key, value in out.items():
                if not key.startswith("loss"):
                    found[key] = found.get(key, 0.0) + float(value) * len(micro) / len(batch)
        # Weights of tokens are those of the step of all processes, so that gradients are summed, not averaged.
        grads = [] if self.settings.shard else [one.grad for one in self.trained if one.grad is not None]
        processes.sum_up([total, *grads])
        if not torch.isfinite(total):
            raise RLError(f"train_llm: the loss is {float(total)} at update {self.update}. Lower the learning rate")
        norm = processes.join(nn.utils.clip_grad_norm_(self.trained, self.settings.max_grad_norm))
        self.optimizer.step()
        return {"loss": float(total), "grad_norm": float(norm), **found}

    def evaluate(self) -> float:
        """Return the mean reward on fresh problems, always the same ones, and write some answers."""
        if self.writes:
            groups = evaluate(
                self.eval_task,
                self.template,
                self.engine,
                problems=self.settings.eval_problems,
                seed=-1 - self.settings.seed,  # those of training are at least 0
                max_tokens=self.settings.max_tokens,
                max_total=self.settings.max_total,
            )
            ones = [group.dialogues[0] for group in groups]
            rewards = torch.tensor([one.reward for one in ones], dtype=torch.float64)
            self.reward, self.deviation = float(rewards.mean()), float(rewards.std(correction=0))
            with (self.folder / "samples.txt").open("a", encoding="utf-8") as file:
                file.write(f"update {self.update}, mean reward {self.reward:.3f}\n")
                for one in ones[:4]:
                    text = " | ".join(f"{message['role']}: {message['content']}" for message in one.messages)
                    file.write(f"  {text} | reward {one.reward:.2f}\n")
        self.reward = processes.gather(self.reward)[0]
        return self.reward

    def write_row(self, row: Mapping[str, float]) -> None:
        """Append a row of metrics; NaN is an empty cell."""
        if not self.writes:
            return
        with (self.folder / "metrics.csv").open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            if not file.tell():
                writer.writerow(row)
            writer.writerow(["" if value != value else value for value in row.values()])  # noqa: PLR0124 - NaN

    def finish(self) -> None:
        """Write the model and the summary, with the keys of other recipes; the last model is the best."""
        if math.isnan(self.reward):  # killed after its last update
            self.evaluate()
        if not self.writes:
            return
        save_model(self.engine.model, self.tokenizer, self.folder / "model")
        returns = {
            f"{which}/return_{name}": value
            for which in ("best", "last")
            for name, value in (("mean", self.reward), ("std", self.deviation))
        }
        about = {"recipe": self.recipe, "env": self.settings.task, "seed": self.settings.seed, "frames": self.update}
        spent = {f"time/{name}": round(value, 3) for name, value in self._spent().items()}
        versions = {one.name: one.version for one in distributions() if one.name in _DISTRIBUTIONS}
        summary = {**about, "best/frames": self.update, **returns, **spent, "versions": versions}
        (self.folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")

    def _spent(self) -> dict[str, float]:
        now = {"seconds": time.perf_counter(), "cpu_seconds": time.process_time()}
        return {name: self.before[name] + now[name] - self.begun[name] for name in now}

    @property
    def _last(self) -> Path:
        return self.folder / "checkpoints" / "last.safetensors"

    def save(self) -> None:
        """Write the checkpoint."""
        random = {"sampler": self.engine.generator.get_state(), "torch": torch.get_rng_state()}
        own = {"method": self.method.state_dict(), **random}
        states = processes.gather(own)
        weights, optimizer = processes.join((dict(self.model.state_dict()), self.optimizer.state_dict()))
        if self.writes:
            state = {
                "settings": self.described,
                "update": self.update,
                "model": weights,
                "optimizer": checkpoints.pack(optimizer, "train_llm"),
                "processes": states,
                "spent": self._spent(),
            }
            checkpoints.save(self._last, state)
        processes.wait()

    def _restore(self) -> None:
        saved = checkpoints.load(self._last, mapped=False)
        differing = sorted(key for key, one in self.described.items() if saved["settings"].get(key) != one)
        if differing:
            raise CheckpointError(f"train_llm: {', '.join(differing)} differ from those of the run in {self.folder}")
        states = saved["processes"]
        if len(states) != processes.count():
            raise CheckpointError(
                f"train_llm: the run in {self.folder} had {len(states)} processes, got {processes.count()}"
            )
        self.update = saved["update"]
        if self.update >= self.settings.updates and (self.folder / "summary.json").is_file():
            raise CheckpointError(
                f"train_llm: the run in {self.folder} has done all its {self.update} updates. Ask for more"
            )
        self.before, self.engine.version = saved["spent"], self.update
        likes = self.model.state_dict()
        self.model.load_state_dict({name: processes.divide(one, likes[name]) for name, one in saved["model"].items()})
        self.engine.model.load_state_dict(saved["model"])
        optimizer = checkpoints.unpack(saved["optimizer"], "train_llm")
        for number, values in optimizer["state"].items():
            like = self.trained[number]
            values.update({name: processes.divide(one, like) for name, one in values.items()})
        self.optimizer.load_state_dict(optimizer)
        own = states[processes.rank()]
        self.method.load_state_dict(own["method"])
        self.engine.generator.set_state(own["sampler"])
        torch.set_rng_state(own["torch"])
        if self.writes:
            self._truncate()

    def _truncate(self) -> None:
        """Remove metrics and samples after the checkpoint, which are written again."""
        metrics, samples = self.folder / "metrics.csv", self.folder / "samples.txt"
        lines = metrics.read_text(encoding="utf-8").splitlines(keepends=True)
        metrics.write_text("".join(lines[: self.update + 1]), encoding="utf-8")
        if samples.is_file():
            parts = samples.read_text(encoding="utf-8").split("update ")[1:]
            kept = [f"update {one}" for one in parts if int(one.partition(",")[0]) <= self.update]
            samples.write_text("".join(kept), encoding="utf-8")


def _share_weights(loss: Any, batch: TensorDictBase) -> None:
    """Make the weights of tokens in a batch those of the step of all processes.

    A weight is one over the number of tokens, sequences, prompts or pairs of this process, and becomes one over that of
    all.
    """
    if processes.count() == 1:
        return
    mask, keys = batch[loss.tensor_keys.mask], loss.tensor_keys
    trained = mask.any(-1)
    if isinstance(loss, DPOLoss):
        own = torch.tensor(float(len(batch)))
    elif loss.normalizer == "prompt":
        own = torch.tensor(float(batch[keys.group][trained].unique().numel()))
    else:
        own = (mask if loss.normalizer == "tokens" else trained).sum().cpu().double()
    total = own.clone()
    processes.sum_up([total])
    batch.set(keys.weight, batch[keys.weight] * float(own / total.clamp(min=1)))


def _check_device(device: str) -> str:
    """Return a device, which must be there."""
    try:
        torch.empty(1, device=device).cpu()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise BackendError(f"train_llm: the device {device!r} cannot be used here ({reason})") from error
    return device
