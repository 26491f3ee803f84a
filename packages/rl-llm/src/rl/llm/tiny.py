"""A small causal transformer in plain torch, and a tokenizer of characters: language models without a download."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from rl.core import state as checkpoints
from rl.core.arguments import as_integer, one_of
from rl.core.errors import ArgumentError
from rl.llm.log_probs import token_positions
from rl.llm.rollouts import ROLES

__all__ = ["CausalOutput", "CharTokenizer", "TinyTransformer"]

Cache = tuple[tuple[Tensor, Tensor], ...]

_PRINTABLE = "".join(map(chr, range(32, 127))) + "\n"


#: chat template of `CharTokenizer`, as Hugging Face writes it
_TEMPLATE = (
    "{% for message in messages %}{{ '<' + message['role'] + '>' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<stop>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<stop>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


@dataclass
class CausalOutput:
    """What a causal language model returns, with the names of Hugging Face.

    Attributes:
        logits: Logits of the next token, ``[B, T, V]``.
        past_key_values: Keys and values of each layer, two tensors ``[B, heads, S, D]``; None without a cache.
    """

    logits: Tensor
    past_key_values: Any = None


class _Block(nn.Module):
    """Attention and MLP, each after a normalization and added to the stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(
        self, x: Tensor, mask: Tensor, past: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        rows, steps, width = x.shape
        split = self.qkv(self.norm_attention(x)).view(rows, steps, 3, self.heads, -1)
        q, k, v = split.permute(2, 0, 3, 1, 4)  # each [B, heads, T, D]
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        found = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(found.transpose(1, 2).reshape(rows, steps, width))
        return x + self.mlp(self.norm_mlp(x)), (k, v)


@final
class TinyTransformer(nn.Module):
    """Causal transformer with learned positions, called as models of Hugging Face are; about 150,000 parameters.

    It is a GPT-2 with an output layer of its own, and is written as one, which Hugging Face reads.

    Args:
        vocab_size: Number of tokens.
        width: Size of the hidden states, a multiple of `heads`.
        depth: Number of layers.
        heads: Number of attention heads.
        max_length: Largest number of tokens of a sequence.

    Raises:
        ArgumentError: If a size is below 1, or the width is no multiple of the heads.

    Example:
        >>> model = TinyTransformer(20)
        >>> model(torch.tensor([[3, 4, 5]])).logits.shape
        torch.Size([1, 3, 20])
        >>> sum(one.numel() for one in model.parameters())
        160832
    """

    def __init__(
        self, vocab_size: int, *, width: int = 64, depth: int = 3, heads: int = 4, max_length: int = 128
    ) -> None:
        super().__init__()
        sizes = {"vocab_size": vocab_size, "width": width, "depth": depth, "heads": heads, "max_length": max_length}
        self.config = {name: as_integer(size, "TinyTransformer", name, least=1) for name, size in sizes.items()}
        if width % heads:
            raise ArgumentError(f"TinyTransformer: width must be a multiple of heads ({heads}), got {width}")
        self.tokens, self.positions = nn.Embedding(vocab_size, width), nn.Embedding(max_length, width)
        self.blocks = nn.ModuleList([_Block(width, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab_size, bias=False)
        for one in self.modules():
            if isinstance(one, (nn.Linear, nn.Embedding)):
                nn.init.normal_(one.weight, std=width**-0.5)
            if isinstance(one, nn.Linear) and one is not self.head:
                nn.init.zeros_(one.bias)
        nn.init.normal_(self.head.weight, std=0.1 * width**-0.5)  # the untrained policy is nearly uniform

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the embedding of the tokens, as models of Hugging Face do."""
        return self.tokens

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        *,
        use_cache: bool = False,
    ) -> CausalOutput:
        """Return the logits of the token after each token.

        Args:
            input_ids: Tokens, int64 ``[B, T]``.
            attention_mask: False for padding, bool ``[B, S + T]`` with the tokens of the cache.
            position_ids: Position of each token in its sequence, int64 ``[B, T]``. Without an attention mask,
                sequences of a packed row are separated where positions start again at 0.
            past_key_values: Cache of the ``S`` tokens before.
            use_cache: Whether the cache is returned.

        Raises:
            ArgumentError: If a sequence is longer than `max_length`.
        """
        before = 0 if past_key_values is None else past_key_values[0][0].shape[2]
        steps = input_ids.shape[1]
        if position_ids is None:
            keys = input_ids.new_ones(input_ids.shape[0], before + steps, dtype=torch.bool)
            position_ids = token_positions(keys if attention_mask is None else attention_mask.bool())[:, before:]
        if int(position_ids.max()) >= self.config["max_length"]:
            raise ArgumentError(
                f"TinyTransformer: a sequence must have at most max_length ({self.config['max_length']}) tokens, got"
                f" {int(position_ids.max()) + 1}"
            )
        # Query t sees keys 0 .. S + t.
        mask = torch.ones(steps, before + steps, dtype=torch.bool, device=input_ids.device).tril(before)
        mask = mask.expand(input_ids.shape[0], 1, steps, before + steps)
        if attention_mask is not None:
            # A query of padding sees itself, for a softmax over nothing would be NaN.
            itself = torch.eye(steps, before + steps, dtype=torch.bool, device=mask.device).roll(before, 1)
            mask = (mask & attention_mask.bool()[:, None, None]) | itself
        elif past_key_values is None:
            sequence = (position_ids == 0).cumsum(-1)
            mask = mask & (sequence[:, None, :, None] == sequence[:, None, None])
        x = self.tokens(input_ids) + self.positions(position_ids)
        cache: list[tuple[Tensor, Tensor]] = []
        for i, block in enumerate(self.blocks):
            x, pair = block(x, mask, None if past_key_values is None else past_key_values[i])
            cache.append(pair)
        return CausalOutput(self.head(self.norm(x)), tuple(cache) if use_cache else None)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write ``config.json`` and ``model.safetensors`` of a GPT-2 to a folder."""
        config = {
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            **{theirs: self.config[ours] for ours, theirs in _SIZES.items()},
            "activation_function": "gelu",
            "tie_word_embeddings": False,
            **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0),
            **dict.fromkeys(("bos_token_id", "eos_token_id"), CharTokenizer.eos_token_id),
            "pad_token_id": CharTokenizer.pad_token_id,
        }
        Path(folder, "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
        tensors = {_gpt2_name(name): _transpose(name, one.cpu()) for name, one in self.state_dict().items()}
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        data = b""
        for name, one in tensors.items():
            start, data = len(data), data + one.contiguous().numpy().tobytes()
            header[name] = {"dtype": "F32", "shape": list(one.shape), "data_offsets": [start, len(data)]}
        text = json.dumps(header).encode()
        Path(folder, "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> TinyTransformer:
        """Return the model that `save_pretrained` wrote to a folder.

        Raises:
            CheckpointError: If the files are damaged.
        """
        with checkpoints.reading("TinyTransformer"):
            config = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))
            model = cls(**{ours: config[theirs] for ours, theirs in _SIZES.items()})
            raw = bytearray(Path(folder, "model.safetensors").read_bytes())
            begin = 8 + struct.unpack_from("<Q", raw)[0]
            header = json.loads(raw[8:begin])
            weights: dict[str, Tensor] = {}
            for name in model.state_dict():
                entry = header[_gpt2_name(name)]
                start, end = entry["data_offsets"]
                flat = torch.frombuffer(raw, dtype=torch.float32, count=(end - start) // 4, offset=begin + start)
                weights[name] = _transpose(name, flat.view(entry["shape"])).clone()
            model.load_state_dict(weights)
        return model


_SIZES = {
    "vocab_size": "vocab_size",
    "width": "n_embd",
    "depth": "n_layer",
    "heads": "n_head",
    "max_length": "n_positions",
}

#: parts of names of weights, with those of GPT-2; replaced in order
_GPT2_NAMES = {
    "norm_attention": "ln_1",
    "norm_mlp": "ln_2",
    "qkv": "attn.c_attn",
    "out.": "attn.c_proj.",
    "mlp.0": "mlp.c_fc",
    "mlp.2": "mlp.c_proj",
    "blocks.": "transformer.h.",
    "tokens.": "transformer.wte.",
    "positions.": "transformer.wpe.",
    "norm.": "transformer.ln_f.",
    "head.": "lm_head.",
}


def _gpt2_name(name: str) -> str:
    for ours, theirs in _GPT2_NAMES.items():
        name = name.replace(ours, theirs)
    return name


def _transpose(name: str, weight: Tensor) -> Tensor:
    """Return a weight as the other side has it: linear layers of GPT-2's blocks are transposed."""
    return weight.T if "blocks." in name and weight.ndim == 2 else weight


@final
class CharTokenizer:
    """Tokenizer of single characters with a chat template of its own: role, content, stop token.

    Tokens 0 and 1 are padding and stop, the next five are the roles of `ROLES`, the others are characters.

    Args:
        alphabet: Characters that can be encoded, each once.

    Raises:
        ArgumentError: If a character occurs twice, or none is given.

    Example:
        >>> from rl.llm import ChatTemplate
        >>> tokenizer = CharTokenizer("0123456789 +=")
        >>> tokenizer.encode("1+2"), tokenizer.decode([8, 18, 9, 1])
        ([8, 18, 9], '1+2')
        >>> ChatTemplate(tokenizer).prompt([{"role": "user", "content": "12"}]).tokens.tolist()
        [4, 8, 9, 1, 5]
    """

    pad_token_id, eos_token_id = 0, 1
    chat_template = "role, content, stop token"

    def __init__(self, alphabet: str = _PRINTABLE) -> None:
        if not alphabet or len({*alphabet}) != len(alphabet):
            raise ArgumentError(f"CharTokenizer: alphabet must have different characters, got {alphabet!r}")
        self.alphabet = alphabet
        self._start = 2 + len(ROLES)
        self._ids = {character: self._start + i for i, character in enumerate(alphabet)}

    def __len__(self) -> int:
        return self._start + len(self.alphabet)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return the tokens of a text.

        Raises:
            ArgumentError: If a character is not in the alphabet.
        """
        unknown = sorted({*text} - {*self._ids}) if isinstance(text, str) else [f"{text}"]
        if unknown:
            raise ArgumentError(f"CharTokenizer: text must be of {self.alphabet!r}, got {''.join(unknown)!r}")
        return [self._ids[one] for one in text] + ([self.eos_token_id] if add_special_tokens else [])

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens; padding, stop tokens and roles have none."""
        return "".join(self.alphabet[one - self._start] for one in token_ids if one >= self._start)

    def apply_chat_template(
        self, conversation: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = False, **options: Any
    ) -> dict[str, list[int]]:
        """Return tokens of a conversation, and 1 for those that the assistant writes, its stop tokens included.

        Raises:
            ArgumentError: If a role is unknown, or there is another template.
        """
        if options.get("chat_template", self.chat_template) != self.chat_template:
            raise ArgumentError("CharTokenizer: it has a template of its own, and takes no other one but 'raw'")
        tokens: list[int] = []
        marks: list[int] = []
        for one in conversation:
            role = one_of(one["role"], "CharTokenizer", "role", ROLES)
            content = [*self.encode(one["content"]), self.eos_token_id]
            tokens += [2 + ROLES.index(role), *content]
            marks += [0, *[int(role == "assistant")] * len(content)]
        if add_generation_prompt:
            tokens.append(2 + ROLES.index("assistant"))
            marks.append(0)
        return {"input_ids": tokens, "assistant_masks": marks}

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the alphabet to ``char_tokenizer.json`` in a folder, and the tokenizer in the form of Hugging Face."""
        names = ["<pad>", "<stop>", *(f"<{role}>" for role in ROLES)]
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        vocabulary = {one: i for i, one in enumerate([*names, *self.alphabet])}
        tokenizer = {
            "version": "1.0",
            "added_tokens": [{"id": i, "content": one, "special": True, **flags} for i, one in enumerate(names)],
            "pre_tokenizer": {
                "type": "Split",
                "pattern": {"Regex": r"[\s\S]"},
                "behavior": "Isolated",
                "invert": False,
            },
            "decoder": {"type": "Fuse"},
            "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<pad>"},
        }
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>", "eos_token": "<stop>"}
        files = {"tokenizer.json": tokenizer, "tokenizer_config.json": {**config, "chat_template": _TEMPLATE}}
        for name, content in files.items():
            Path(folder, name).write_text(json.dumps(content, indent=1), encoding="utf-8")
        Path(folder, "char_tokenizer.json").write_text(json.dumps({"alphabet": self.alphabet}), encoding="utf-8")
