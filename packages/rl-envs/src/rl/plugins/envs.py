"""Components of rl-envs, as data."""

from collections.abc import Iterator

from rl.core.component import Command, Component
from rl.core.hookspecs import hookimpl

_TRANSFORMS = {
    "action-chunk": ("ActionChunkTransform", "Writes the next actions of each step."),
    "action-clipping": ("ActionClipping", "Accepts actions without bounds, and clips them to the bounds."),
    "action-discretizer": (
        "ActionDiscretizer",
        "Gives the caller a choice among intervals in place of each element of a bounded action.",
    ),
    "action-mask": ("ActionMask", "Keeps the mask of legal actions of the action spec up to date."),
    "action-scaling": ("ActionScaling", "Gives the caller actions in [-1."),
    "auto-reset": (
        "AutoResetTransform",
        "Separates the first observation of a new episode from the outcome of a step.",
    ),
    "batch-size": ("BatchSizeTransform", "Reshapes the batch of an environment."),
    "binarize-reward": ("BinarizeReward", "Replaces rewards by 1 where they are positive."),
    "cat-frames": ("CatFrames", "Concatenates the last N frames of an episode, the oldest first."),
    "cat-tensors": ("CatTensors", "Concatenates observations."),
    "center-crop": ("CenterCrop", "Cuts the middle out of images."),
    "clip": ("ClipTransform", "Clips entries to an interval."),
    "conditional-policy-switch": ("ConditionalPolicySwitch", "Lets another policy act while a condition holds."),
    "conditional-skip": ("ConditionalSkip", "Does not step elements for which a condition holds."),
    "crop": ("Crop", "Cuts a rectangle out of images."),
    "device-cast": ("DeviceCastTransform", "Moves all entries that the environment writes to a device."),
    "discrete-action-projection": ("DiscreteActionProjection", "Gives the caller max_actions actions."),
    "double-to-float": ("DoubleToFloat", "Converts float64 entries to float32."),
    "dtype-cast": ("DTypeCastTransform", "Converts entries from one dtype to another."),
    "end-of-life": ("EndOfLifeTransform", "Writes whether a step lost a life or ended the episode."),
    "exclude": ("ExcludeTransform", "Removes observations."),
    "expand-as": ("ExpandAs", "Expands an entry on the right to the shape of another one."),
    "finite-tensordict-check": (
        "FiniteTensorDictCheck",
        "Raises a ContractError that names the entry if a floating-point entry is NaN or infinite.",
    ),
    "flatten-action": ("FlattenAction", "Gives the caller an action whose dimensions are flattened."),
    "flatten-observation": ("FlattenObservation", "Flattens adjacent dimensions of an observation."),
    "flatten-tensordict": ("FlattenTensorDict", "Flattens the dimensions of a batch into one."),
    "frame-skip": ("FrameSkipTransform", "Repeats each action and adds up the rewards."),
    "gray-scale": ("GrayScale", "Replaces colours by their luminance."),
    "gsde-noise": ("gSDENoise", "Draws the noise of gSDE when an episode begins."),
    "hash": ("Hash", "Writes the hash of each value."),
    "init-tracker": ("InitTracker", "Writes whether a step is the first after a reset."),
    "linearise-rewards": ("LineariseRewards", "Weighted sum of the rewards of several objectives."),
    "module": ("ModuleTransform", "Runs a module on what an environment writes, or on what it reads."),
    "next-observation-delta": (
        "NextObservationDelta",
        "Stores next observations as differences of low precision.",
    ),
    "next-state-reconstructor": (
        "NextStateReconstructor",
        "Writes the next observations of sampled sequences.",
    ),
    "noop-reset-env": ("NoopResetEnv", "Takes a number of steps with action 0 after each reset."),
    "observation-indices": ("ObservationIndices", "Selects elements of a vector."),
    "observation-norm": ("ObservationNorm", "Affine map of observations."),
    "permute": ("PermuteTransform", "Permutes the last dimensions."),
    "pin-memory": ("PinMemoryTransform", "Copies a batch to page-locked memory."),
    "pixel-render": ("PixelRenderTransform", "Writes pictures of the simulator."),
    "policy-version": ("PolicyVersion", "Writes the version of the policy next to each step."),
    "random-truncation": ("RandomTruncationTransform", "Truncates episodes at random lengths."),
    "remove-empty-specs": ("RemoveEmptySpecs", "Removes groups without entries from the specs."),
    "rename": ("RenameTransform", "Renames entries that the environment writes, and entries that it reads."),
    "resize": ("Resize", "Resizes images."),
    "reward-clipping": ("RewardClipping", "Clips rewards to an interval."),
    "reward-norm": ("RewardNorm", "Divides rewards by the running standard deviation of the discounted return."),
    "reward-scaling": ("RewardScaling", "Affine map of rewards."),
    "reward-sum": ("RewardSum", "Adds up rewards from the start of each episode, undiscounted."),
    "rnd": ("RNDTransform", "Writes an intrinsic reward of random network distillation."),
    "select": ("SelectTransform", "Keeps the selected observations and removes the others."),
    "sign": ("SignTransform", "Replaces entries by their sign."),
    "squeeze": ("SqueezeTransform", "Removes a dimension of size 1."),
    "stack": ("Stack", "Stacks observations of one shape and dtype along a new dimension."),
    "step-counter": ("StepCounter", "Writes how many steps the episode has had, and truncates it after max_steps."),
    "success-reward": ("SuccessReward", "Writes a sparse reward."),
    "target-return": ("TargetReturn", "Writes the return that is still to be achieved in an episode."),
    "team-reward": ("TeamReward", "Writes the mean of the rewards of all agents as the reward of the team."),
    "tensordict-primer": ("TensorDictPrimer", "Writes entries at the root when an episode begins."),
    "terminate": ("TerminateTransform", "Terminates episodes when a condition on the outcome of a step holds."),
    "time-max-pool": ("TimeMaxPool", "Takes the elementwise maximum of the last T frames of an episode."),
    "timer": ("Timer", "Writes durations in seconds."),
    "to-tensor-image": ("ToTensorImage", "Moves the channels of images to the front, and scales integers to [0, 1]."),
    "traj-counter": ("TrajCounter", "Writes the number of each episode, from 0 on, in the order in which they begin."),
    "unsqueeze": ("UnsqueezeTransform", "Inserts a dimension of size 1."),
    "vec-gym-env": ("VecGymEnvTransform", "Puts the last observation of an episode under next."),
    "vec-norm": ("VecNorm", "Normalizes entries with the running mean and standard deviation of all values so far."),
}


@hookimpl
def rl_components() -> Iterator[Component]:
    """Environments and transforms."""
    yield Component("env", "gym", "rl.envs:GymEnv", summary="Any Gymnasium environment, by its id.", extra="gym")
    yield Component(
        "env", "dm-control", "rl.envs:DMControlEnv", summary="A task of the dm_control suite.", extra="dm-control"
    )
    yield Component(
        "env", "envpool", "rl.envs:EnvPoolEnv", summary="Any environment of EnvPool, by its id.", extra="envpool"
    )
    yield Component(
        "env", "open-spiel", "rl.envs:OpenSpielEnv", summary="A game of OpenSpiel, by its name.", extra="open-spiel"
    )
    yield Component(
        "env",
        "pettingzoo",
        "rl.envs:PettingZooEnv",
        summary="Any environment of PettingZoo or MPE2, with several agents.",
        extra="pettingzoo",
    )
    yield Component(
        "env", "pendulum", "rl.envs:PendulumEnv", summary="Pendulum swing-up in torch, batched, differentiable."
    )
    yield Component("env", "acrobot", "rl.envs:AcrobotEnv", summary="Two-link pendulum in torch, batched.")
    yield Component("env", "bandit", "rl.envs:BanditEnv", summary="Multi-armed bandit in torch, batched.")
    for name, target, summary in (
        ("metaworld", "MetaWorldEnv", "A manipulation task of Meta-World, by its name."),
        ("mo-gymnasium", "MOGymEnv", "An environment of MO-Gymnasium, by its id, with a vector of rewards."),
        ("safety-gymnasium", "SafetyGymnasiumEnv", "An environment of Safety-Gymnasium, by its id, with costs."),
        ("brax", "BraxEnv", "An environment of Brax, by its name, in JAX."),
        ("gymnax", "GymnaxEnv", "An environment of gymnax, by its id, in JAX."),
        ("jumanji", "JumanjiEnv", "An environment of Jumanji, by its id, in JAX."),
        ("mujoco-playground", "MujocoPlaygroundEnv", "An environment of MuJoCo Playground, by its name, in JAX."),
    ):
        yield Component("env", name, f"rl.envs:{target}", summary=summary, extra=name)
    yield Component(
        "env", "isaac-lab", "rl.envs:isaac_lab_env", summary="A task of Isaac Lab, by its id.", extra="isaac-lab"
    )
    yield Component(
        "env", "unity-mlagents", "rl.envs:UnityMLAgentsEnv", summary="A scene of Unity.", extra="unity-mlagents"
    )
    yield Component("env", "chess", "rl.envs:ChessEnv", summary="Chess, with masks of legal moves.", extra="chess")
    yield Component("env", "cartpole", "rl.envs:CartPoleEnv", summary="Pole balancing in torch, batched.")
    yield Component("env", "grid-world", "rl.envs:GridWorldEnv", summary="Maze of cells in torch, batched.")
    yield Component(
        "env", "pixel-grid-world", "rl.envs:PixelGridWorldEnv", summary="Maze of cells as an image in torch, batched."
    )
    yield Component("env", "snake", "rl.envs:SnakeEnv", summary="The game Snake in torch, batched.")
    yield Component("env", "breakout", "rl.envs:BreakoutEnv", summary="A small Breakout in torch, batched.")
    yield Component("env", "2048", "rl.envs:Game2048Env", summary="The game 2048 in torch, batched.")
    yield Component("env", "door-key", "rl.envs:DoorKeyEnv", summary="Two rooms, a key and a door in torch, batched.")
    yield Component("env", "mountain-car", "rl.envs:MountainCarEnv", summary="Mountain car in torch, batched.")
    for name, target in {
        "ant": "AntEnv",
        "half-cheetah": "HalfCheetahEnv",
        "hopper": "HopperEnv",
        "humanoid": "HumanoidEnv",
        "walker2d": "Walker2dEnv",
    }.items():
        summary = "Gymnasium's MuJoCo task of this name, batched over threads."
        yield Component("env", name, f"rl.envs:{target}", summary=summary, extra="mujoco")
    yield Component("env", "tic-tac-toe", "rl.envs:TicTacToeEnv", summary="Game of two players in torch, batched.")
    yield Component(
        "env_pool",
        "async",
        "rl.envs:AsyncEnvPool",
        summary="Environments in workers that step independently.",
    )
    yield Component("env", "vmas", "rl.envs:VmasEnv", summary="A VMAS scenario: agents in torch.", extra="vmas")
    for name, (target, summary) in _TRANSFORMS.items():
        yield Component("transform", name, f"rl.envs:{target}", summary=summary)


@hookimpl
def rl_commands() -> Iterator[Command]:
    """``rl suggest-workers``."""
    yield Command(
        name="suggest-workers",
        target="rl.envs.cli:suggest_workers",
        summary="Measure how many worker processes an environment needs.",
    )
