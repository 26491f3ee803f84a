"""Models and tokenizers by name: the small one, those of Hugging Face, and those of earlier runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import nn

from rl.core import state as checkpoints
from rl.core.errors import ArgumentError
from rl.llm.tasks import TASKS
from rl.llm.tiny import CharTokenizer, TinyTransformer

__all__ = ["load_model", "save_model"]


def load_model(
    name: str, *, alphabet: str = "", lora_rank: int = 0, checkpoint_activations: bool = False
) -> tuple[nn.Module, Any]:
    """Return a causal language model and its tokenizer.

    Args:
        name: "tiny" for a new `TinyTransformer`, a folder that `save_model` wrote, or a folder or id of Hugging Face.
        alphabet: Characters of a new tokenizer, for "tiny"; those of all tasks if empty.
        lora_rank: Rank of adapters that are trained in place of the weights, with peft; 0 for none.
        checkpoint_activations: Whether activations are computed again in the backward pass (Hugging Face).

    Raises:
        ArgumentError: If an option does not fit the model, or a library is absent.

    Example:
        >>> model, tokenizer = load_model("tiny", alphabet="01")
        >>> len(tokenizer), model.config["width"]
        (9, 64)
    """
    folder = Path(name)
    own = (folder / "char_tokenizer.json").is_file()
    if name.startswith((".", "/", "~")) and not folder.is_dir():  # no id of Hugging Face begins so
        raise ArgumentError(f"load_model: there is no folder {name}. Pass the folder of a model, an id, or 'tiny'")
    if name != "tiny" and not own:
        return _hugging_face(name, lora_rank=lora_rank, checkpoint_activations=checkpoint_activations)
    if lora_rank or checkpoint_activations:
        raise ArgumentError(
            f"load_model: lora_rank and checkpoint_activations need a model of Hugging Face, got {name!r}"
        )
    if own:
        with checkpoints.reading("load_model"):
            tokenizer = CharTokenizer(**json.loads((folder / "char_tokenizer.json").read_text(encoding="utf-8")))
        return TinyTransformer.from_pretrained(folder), tokenizer
    everything = "".join(dict.fromkeys("".join(task.alphabet for task in TASKS.values())))
    tokenizer = CharTokenizer(alphabet or everything)
    return TinyTransformer(len(tokenizer)), tokenizer


def positions_of(model: Any) -> int | None:
    """Return the largest number of tokens of a sequence; None if the model does not tell."""
    config = getattr(model, "config", None)
    return config["max_length"] if isinstance(config, dict) else getattr(config, "max_position_embeddings", None)


def _hugging_face(name: str, *, lora_rank: int, checkpoint_activations: bool) -> tuple[nn.Module, Any]:
    try:
        import transformers  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ArgumentError(
            f"load_model: {name!r} is neither 'tiny' nor a folder of an earlier run, and transformers is not installed."
            " Install rl-llm[hf]"
        ) from error
    try:
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(name)
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ArgumentError(f"load_model: {name!r} is no causal language model with a tokenizer ({reason})") from error
    if checkpoint_activations:
        model.gradient_checkpointing_enable()
    if lora_rank:
        try:
            import peft  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ArgumentError("load_model: lora_rank needs peft. Install rl-llm[peft]") from error
        adapters = peft.LoraConfig(r=lora_rank, target_modules="all-linear", task_type="CAUSAL_LM")
        model = peft.get_peft_model(model, adapters)
    return model, tokenizer


def save_model(model: nn.Module, tokenizer: Any, folder: str | Path) -> None:
    """Write a model and its tokenizer to a folder that `load_model` and Hugging Face read.

    Args:
        model: Model; adapters are merged into the weights.
        tokenizer: Tokenizer.
        folder: Folder, which is created.
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    other: Any = model
    merged = other.merge_and_unload() if hasattr(other, "merge_and_unload") else other
    merged.save_pretrained(path)
    tokenizer.save_pretrained(path)
