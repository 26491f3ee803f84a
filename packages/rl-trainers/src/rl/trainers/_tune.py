"""Studies of ``rl tune``: trials of Optuna, each the median return over seeds, in a journal that processes share."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from rl.core.errors import ArgumentError, MissingExtraError, RLError
from rl.trainers._arguments import UsageError, find_recipe
from rl.trainers._space import PLACE, Dimension
from rl.trainers._storage import RunFolder, first_line, settings_of, write_atomic
from rl.trainers.algorithm import Algorithm
from rl.trainers.callbacks import Callback
from rl.trainers.config import RunConfig

#: name of the study in its journal, and of the attribute with the settings of its command
STUDY = "rl"

#: complete trials before one is pruned, as of Optuna's median rule
STARTUP_TRIALS = 5

#: share of a run before which it is not pruned, as in RL Baselines3 Zoo
PATIENCE = 1 / 3

#: evaluations of a run: frames and mean return
Curve = Sequence[Sequence[float]]


class Pruning(Callback):
    """Ends a run that is worse than the median of others on the same seed after as many frames.

    Golovin et al., "Google Vizier: A service for black-box optimization", 2017, section 3.1: the best evaluation so far
    is compared with the median of the best ones so far of the others.

    Args:
        others: Evaluations of complete runs.

    Attributes:
        curve: Evaluations of this run.
        hopeless: Whether the run is to end.
    """

    def __init__(self, others: Sequence[Curve]) -> None:
        self.others, self.hopeless = others, False
        self.curve: list[tuple[int, float]] = []

    def on_evaluation(self, run: Any, return_mean: float) -> None:
        """Compare with the others."""
        self.curve.append((run.frames, return_mean))
        best = [max((value for frames, value in one if frames <= run.frames), default=None) for one in self.others]
        known = [value for value in best if value is not None]
        if run.progress >= PATIENCE and len(known) >= STARTUP_TRIALS:
            self.hopeless = max(value for _, value in self.curve) < median(known)


@dataclass(frozen=True)
class Outcome:
    """How the run of a seed ended.

    Args:
        value: Mean return of the best policy on fresh episodes.
        curve: Evaluations, where it was pruned or could be.
        interrupted: Whether it was stopped by Ctrl-C.
        pruned: Whether it was pruned.
    """

    value: float
    curve: Curve = ()
    interrupted: bool = False
    pruned: bool = False


def train_seed(recipe: str, config: RunConfig, folder: Path, others: Sequence[Curve] | None) -> Outcome:
    """Train one seed of a trial, or continue it.

    Args:
        recipe: What names the recipe.
        config: Settings with the seed.
        folder: Run folder.
        others: Evaluations of complete runs of this seed; None without pruning.
    """
    place: dict[str, Any] = {"resume": folder} if RunFolder(folder).config.is_file() else {"out": folder}
    if others is None:
        result = find_recipe(recipe).train(config, display="none", **place)
        return Outcome(result.eval_return_mean, interrupted=result.interrupted)
    watch = Pruning(others)
    result = find_recipe(recipe).train(
        config, display="none", should_stop=lambda _: watch.hopeless, callbacks=[watch], **place
    )
    pruned = result.interrupted and watch.hopeless
    return Outcome(result.eval_return_mean, watch.curve, interrupted=result.interrupted and not pruned, pruned=pruned)


class Here(Executor):
    """Runs what is submitted at once, in this process."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001  as of a process
            future.set_exception(error)
        return future


def executor(jobs: int) -> Executor:
    """Return what runs `jobs` trainings at a time: in processes of their own if it is several."""
    if jobs == 1:
        return Here()
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))


@dataclass
class Trial:
    """A trial that is running.

    Args:
        trial: The trial of Optuna.
        config: Settings.
        folder: Folder of its runs.
        waiting: Seeds that have not been started.
        returns: Return of each complete seed.
        curves: Evaluations of each complete seed.
        over: Whether it was told to the study.
    """

    trial: Any
    config: RunConfig
    folder: Path
    waiting: list[int]
    returns: dict[int, float] = field(default_factory=dict)
    curves: dict[int, Curve] = field(default_factory=dict)
    over: bool = False

    def remember(self) -> dict[str, Any]:
        """Return what the journal keeps of it."""
        return {"folder": self.folder.name, "returns": [*self.returns.items()], "curves": [*self.curves.items()]}


class Study:
    """A search, whose journal other processes may share.

    Args:
        file: Journal of Optuna. Runs and result are in the folder of its name without the ending.
        recipe: The recipe.
        config: Settings that all trials have in common.
        space: What is searched.
        seeds: Seeds of each trial.
        report: Function that is called with each trial of Optuna that has ended.

    Raises:
        MissingExtraError: If Optuna is not installed.
        UsageError: If the file is no journal, or that of a search with other settings, or the folder is another one's.
    """

    def __init__(
        self,
        file: Path,
        recipe: Algorithm,
        config: RunConfig,
        space: Sequence[Dimension],
        seeds: Sequence[int],
        *,
        report: Callable[[Any], object] = lambda trial: None,  # noqa: ARG005
    ) -> None:
        self.file, self.recipe, self.config, self.space, self.seeds = file, recipe, config, space, tuple(seeds)
        self.optuna = _import_optuna()
        self._running: list[Trial] = []
        self._report = report
        settings = settings_of(recipe.reference, config)
        about = {
            "recipe": recipe.reference,
            "settings": {name: value for name, value in settings.items() if name not in ("seed", *PLACE)},
            "seeds": list(seeds),
            "space": {one.name: one.text for one in space},
        }
        self._about = json.loads(json.dumps(about))
        if file.exists():
            _check_same(file, _read(self.optuna, file), self._about, recipe)
        elif self.folder.exists():
            raise UsageError(
                f"{self.folder} is there, without its study {file}: remove it, or name another file with --study"
            )

    @property
    def folder(self) -> Path:
        """Folder of the runs."""
        return self.file.with_suffix("")

    @property
    def preset(self) -> Path:
        """File of the best settings."""
        return self.folder / "preset.yaml"

    @cached_property
    def study(self) -> Any:
        """The study of Optuna, which is created where there is none."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        found = self.optuna.create_study(
            storage=_storage(self.optuna, self.file),
            study_name=STUDY,
            direction="maximize",
            sampler=self.optuna.samplers.TPESampler(constant_liar=True),  # other processes know running trials
            load_if_exists=True,
        )
        if STUDY not in found.user_attrs:
            found.set_user_attr(STUDY, self._about)
            usual = {one.name: one.find(getattr(self.config, one.name)) for one in self.space}
            usual = {name: value for name, value in usual.items() if value is not None}
            if usual:  # the settings as they are come first
                found.enqueue_trial(usual)
        _check_same(self.file, found.user_attrs[STUDY], self._about, self.recipe)  # another process may have been first
        return found

    @property
    def trials(self) -> list[Any]:
        """Trials that are complete, pruned or failed, without those that were interrupted."""
        return [
            one
            for one in self.study.get_trials(deepcopy=False)
            if one.state.is_finished() and not one.user_attrs.get("interrupted")
        ]

    @property
    def ranking(self) -> list[Any]:
        """Complete trials, the best one first."""
        done = [one for one in self.trials if one.state.name == "COMPLETE"]
        return sorted(done, key=lambda one: -one.value)

    def run(self, trials: int, *, jobs: int = 1, prune: bool = False) -> bool:
        """Search until `trials` trials have ended, those of other processes and earlier calls included.

        Args:
            trials: Number of trials.
            jobs: Number of runs at a time.
            prune: Whether to end runs that are worse than the median.

        Returns:
            Whether the search is over; False if it was interrupted.
        """
        running: dict[Future[Outcome], tuple[Trial, int]] = {}
        pool = executor(jobs)
        try:
            while True:
                while len(running) < jobs and (task := self._next(trials)) is not None:
                    trial, seed = task
                    others = self._curves(seed) if prune else None
                    arguments = (self.recipe.reference, replace(trial.config, seed=seed), trial.folder / f"seed-{seed}")
                    running[pool.submit(train_seed, *arguments, others)] = task
                if not running:
                    return True
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    self._record(*running.pop(future), future)
                if any(isinstance(future.exception(), BrokenExecutor) for future in done):
                    for future, task in running.items():  # a process has died, and the others with it
                        self._record(*task, future)
                    running = {}
                    pool.shutdown()
                    pool = executor(jobs)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)  # waits until the runs are saved
            for future, task in running.items():
                if not future.cancelled() and future.exception() is None and not future.result().interrupted:
                    self._record(*task, future)
            self._put_back()
            return False
        finally:
            pool.shutdown()

    def _next(self, trials: int) -> tuple[Trial, int] | None:
        """Return the next seed to train, of a trial that is running or of a new one; None if no more are needed."""
        while True:
            for one in self._running:
                if one.waiting:
                    return one, one.waiting.pop(0)
            if len(self.trials) + len(self._running) >= trials:
                return None
            self._ask()

    def _ask(self) -> None:
        """Begin a trial, which may be one that was interrupted."""
        trial = self.study.ask()
        values = {one.name: one.suggest(trial) for one in self.space}
        known = trial.user_attrs
        returns, curves = dict(known.get("returns", [])), dict(known.get("curves", []))
        folder = self.folder / known.get("folder", f"trial-{trial.number}")
        waiting = [seed for seed in self.seeds if seed not in returns]
        one = Trial(trial, self.config, folder, waiting, returns, curves)
        try:
            one.config = replace(self.config, **values)
        except ArgumentError as error:  # values that exclude each other
            self._tell(one, "FAIL", error=str(error))
        else:
            self._running.append(one)

    def _record(self, one: Trial, seed: int, future: Future[Outcome]) -> None:
        """Take the outcome of a seed.

        Raises:
            KeyboardInterrupt: If its run was interrupted.
        """
        error = future.exception()
        if isinstance(error, KeyboardInterrupt):
            raise error
        if error is not None:
            self._tell(one, "FAIL", error=f"seed {seed}: {first_line(error)}")
            return
        outcome = future.result()
        if outcome.interrupted:
            raise KeyboardInterrupt
        one.curves[seed] = [[frames, value] for frames, value in outcome.curve]
        if outcome.pruned:
            self._tell(one, "PRUNED", pruned_at=seed)
            return
        one.returns[seed] = outcome.value
        if len(one.returns) == len(self.seeds):
            self._tell(one, "COMPLETE")

    def _tell(self, one: Trial, state: str, **facts: Any) -> None:
        """Tell the study how a trial has ended; once, as several of its seeds may be running."""
        if one.over:
            return
        one.over = True
        self._running = [other for other in self._running if other is not one]
        for name, value in (one.remember() | facts).items():
            one.trial.set_user_attr(name, value)
        known = [value for curve in one.curves.values() for _, value in curve]
        if state == "PRUNED" and known:  # from which the sampler learns as well
            one.trial.report(median(known), step=sum(int(curve[-1][0]) for curve in one.curves.values() if curve))
        value = median(one.returns.values()) if state == "COMPLETE" else None
        self._report(self.study.tell(one.trial, value, state=self.optuna.trial.TrialState[state]))

    def _put_back(self) -> None:
        """Let trials that were interrupted be the next ones, with what they have done."""
        for one in self._running:
            one.trial.set_user_attr("interrupted", value=True)
            self.study.tell(one.trial, state=self.optuna.trial.TrialState.FAIL)
            self.study.enqueue_trial(one.trial.params, user_attrs=one.remember())
        self._running = []

    def _curves(self, seed: int) -> list[Curve]:
        """Return the evaluations of a seed in complete trials."""
        found = (dict(one.user_attrs.get("curves", [])).get(seed) for one in self.ranking)
        return [curve for curve in found if curve]

    def settings(self, trial: Any) -> dict[str, Any]:
        """Return the values of what is searched, in a trial."""
        return {one.name: one.read(trial.params[one.name]) for one in self.space if one.name in trial.params}

    def importance(self) -> dict[str, float]:
        """Return the share of each setting in the differences between good trials and all, the largest first.

        Watanabe et al., "PED-ANOVA: efficiently quantifying hyperparameter importance in arbitrary subspaces", 2023.
        Empty with too few trials.
        """
        if len({one.value for one in self.ranking}) < 2 or len(self.ranking) < 2 * STARTUP_TRIALS:
            return {}
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it was experimental before Optuna 5
            evaluator = self.optuna.importance.PedAnovaImportanceEvaluator()
            found = self.optuna.importance.get_param_importances(self.study, evaluator=evaluator)
        return {name: float(share) for name, share in found.items()}

    def write_preset(self) -> Path:
        """Write the settings of the best trial, as `--preset FILE` reads them.

        Raises:
            RLError: If no trial is complete.
        """
        if not self.ranking:
            errors = [str(one.user_attrs["error"]) for one in self.trials if "error" in one.user_attrs]
            why = f"; trial {self.trials[-1].number} failed with {errors[-1]}" if errors else ""
            raise RLError(f"no trial of {self.file} is complete{why}")
        best = self.ranking[0]
        now = settings_of(self.recipe.reference, replace(self.config, **self.settings(best)))
        usual = settings_of(self.recipe.reference, self.recipe.config())
        searched = {one.name for one in self.space}
        kept = [name for name in now if name in searched or now[name] != usual[name]]
        changed = {name: now[name] for name in kept if name not in ("env", "seed", *PLACE)}
        returns: Mapping[int, float] = dict(best.user_attrs["returns"])
        entry = {
            "source": f"rl tune, trial {best.number} of {len(self.trials)}",
            "seeds": list(self.seeds),
            "returns": [returns[seed] for seed in self.seeds],
            "settings": changed,
        }
        text = yaml.safe_dump(
            {self.recipe.name: {str(self.config.env): entry}}, sort_keys=False, default_flow_style=None
        )
        write_atomic(self.preset, text)
        return self.preset


def _import_optuna() -> Any:
    try:
        optuna = import_module("optuna")
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "rl tune needs optuna, which is not installed: pip install 'rl-trainers[tune]'"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _storage(optuna: Any, file: Path) -> Any:
    return optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(file)))


def _read(optuna: Any, file: Path) -> Mapping[str, Any]:
    """Return what a journal says about its study; empty if it has none yet.

    Raises:
        UsageError: If it is no journal, or has no study of ``rl tune``.
    """
    try:
        found = {one.study_name: one for one in optuna.get_all_study_summaries(_storage(optuna, file))}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{file} is no journal of Optuna, or damaged: name another file with --study") from error
    if found and (STUDY not in found or STUDY not in found[STUDY].user_attrs):
        raise UsageError(f"{file} has the study {', '.join(found)}, none of rl tune: name another file with --study")
    return found[STUDY].user_attrs[STUDY] if found else {}


def _check_same(file: Path, before: Mapping[str, Any], now: Mapping[str, Any], recipe: Algorithm) -> None:
    """Raise if a study has another algorithm, other settings, seeds or ranges.

    Raises:
        UsageError: If so.
    """
    if not before:
        return
    if before["recipe"] != now["recipe"]:
        raise UsageError(
            f"{file} is a study of {before['recipe']}, not of {now['recipe']}: name another file with --study"
        )
    # an older version may have lacked a setting
    then = {**settings_of(recipe.reference, recipe.config()), **before["settings"]}
    differing = [(name, then.get(name), value) for name, value in now["settings"].items() if then.get(name) != value]
    differing += [("seeds", before["seeds"], now["seeds"])] if before["seeds"] != now["seeds"] else []
    names = [*dict.fromkeys([*before["space"], *now["space"]])]
    spaces = [(name, before["space"].get(name, "fixed"), now["space"].get(name, "fixed")) for name in names]
    differing += [(f"space {name}", one, two) for name, one, two in spaces if one != two]
    if differing:
        listed = "; ".join(f"{name} {one}, not {two}" for name, one, two in differing)
        raise UsageError(f"{file} is a study with {listed}: name another file with --study")
