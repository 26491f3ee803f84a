"""Adapters of the engines vLLM and SGLang, against the part of their documented interfaces that is used here.

Neither can be installed beside the torch that this package is tested with: each adapter is tested against a fake of
that part, and was never run with the engine itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor

from rl.llm.engines import Completion, Sampling, check_version, response_limit
from rl.llm.rollouts import Rollout
from rl.llm.weights import WeightPush

__all__ = ["SGLangWrapper", "vLLMWrapper"]


@final
class vLLMWrapper:  # noqa: N801 - TorchRL's name
    """Engine on ``vllm.LLM``.

    The part that is used:

    - ``llm.generate([{"prompt_token_ids": ids}], params)``, with params for all prompts or for each, returns objects
      with ``prompt_logprobs`` and ``outputs[0]`` with ``token_ids``, ``logprobs`` (a mapping from token to an object
      with ``logprob``, for each position) and ``finish_reason``;
    - ``llm.init_weight_transfer_engine(request)``, ``start_weight_update``, ``update_weights(request)`` and
      ``finish_weight_update``; ``pause_generation`` and ``resume_generation`` where the object has them.

    It is a `WeightReceiver` too. ``LLMWrapperBase(vLLMWrapper(...), tokenizer)`` is a policy on TensorDict.

    Args:
        llm: ``vllm.LLM`` or an object with these methods.
        make_params: Function that creates sampling parameters; ``vllm.SamplingParams`` if None.
        stop_tokens: Tokens that end a response.
        version: Version of the weights, at least 0.
    """

    def __init__(
        self, llm: Any, *, stop_tokens: Sequence[int], make_params: Callable[..., Any] | None = None, version: int = 0
    ) -> None:
        if make_params is None:
            from vllm import SamplingParams as make_params  # noqa: N813 # pyright: ignore[reportMissingImports]
        self.llm, self.version = llm, version
        self.make_params: Any = make_params
        self.stop_tokens = list(stop_tokens)
        self._push = WeightPush(self)  # one, whose `init` is called once

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        params = [
            self.make_params(
                max_tokens=response_limit(sampling, prompt),
                temperature=sampling.temperature,
                stop=list(sampling.stop_strings) or None,
                stop_token_ids=self.stop_tokens,
                include_stop_str_in_output=True,
                logprobs=0,  # those of the sampled tokens alone
            )
            for prompt in prompts
        ]
        found: list[Completion] = []
        for one in self.llm.generate([{"prompt_token_ids": list(prompt)} for prompt in prompts], params):
            (out,) = one.outputs
            tokens = [int(token) for token in out.token_ids]
            log_probs = [float(at[token].logprob) for token, at in zip(tokens, out.logprobs, strict=True)]
            found.append(Completion(tokens, log_probs, self.version, _finish(out.finish_reason)))
        return found

    def score(self, rollouts: Sequence[Rollout]) -> list[Tensor]:
        params = self.make_params(max_tokens=1, temperature=0.0, prompt_logprobs=0)
        rows = [one.tokens.tolist() for one in rollouts]
        outs = self.llm.generate([{"prompt_token_ids": row} for row in rows], params)
        return [
            torch.tensor(
                [0.0] + [at[token].logprob for token, at in zip(row[1:], one.prompt_logprobs[1:], strict=True)]
            )
            for row, one in zip(rows, outs, strict=True)
        ]

    def load_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        self._push.push(weights, version)

    def init(self, layout: Mapping[str, Any]) -> None:
        self.llm.init_weight_transfer_engine({"names": list(layout)})

    def pause(self) -> None:
        getattr(self.llm, "pause_generation", lambda: None)()

    def start(self, version: int) -> None:
        self._next = check_version("vLLMWrapper", version, self.version)
        self.llm.start_weight_update()

    def update(self, weights: Mapping[str, Tensor]) -> None:
        self.llm.update_weights({"weights": [(name, one.detach()) for name, one in weights.items()]})

    def finish(self) -> None:
        self.llm.finish_weight_update()
        self.version = self._next

    def resume(self) -> None:
        getattr(self.llm, "resume_generation", lambda: None)()


@final
class SGLangWrapper:
    """Engine on ``sglang.Engine``.

    The part that is used:

    - ``engine.generate(input_ids=, sampling_params=, return_logprob=True)``, with parameters for all prompts or for
      each, returns dictionaries with ``meta_info``, which has ``output_token_logprobs`` and, with
      ``logprob_start_len=0``, ``input_token_logprobs`` as ``(log-probability, token, text)``, and
      ``finish_reason["type"]``;
    - ``engine.update_weights_from_tensor(named_tensors)``, ``engine.flush_cache()``.

    Args:
        engine: ``sglang.Engine`` or an object with these methods.
        stop_tokens: Tokens that end a response.
        version: Version of the weights, at least 0.
    """

    def __init__(self, engine: Any, *, stop_tokens: Sequence[int], version: int = 0) -> None:
        self.engine, self.stop_tokens, self.version = engine, list(stop_tokens), version

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        params = [
            {
                "max_new_tokens": response_limit(sampling, prompt),
                "temperature": sampling.temperature,
                "stop": list(sampling.stop_strings),
                "stop_token_ids": self.stop_tokens,
                "no_stop_trim": True,
            }
            for prompt in prompts
        ]
        ids = [list(prompt) for prompt in prompts]
        found: list[Completion] = []
        for one in self.engine.generate(input_ids=ids, sampling_params=params, return_logprob=True):
            log_probs = [float(entry[0]) for entry in one["meta_info"]["output_token_logprobs"]]
            tokens = [int(entry[1]) for entry in one["meta_info"]["output_token_logprobs"]]
            finish = _finish(one["meta_info"]["finish_reason"]["type"])
            found.append(Completion(tokens, log_probs, self.version, finish))
        return found

    def score(self, rollouts: Sequence[Rollout]) -> list[Tensor]:
        outs = self.engine.generate(
            input_ids=[one.tokens.tolist() for one in rollouts],
            sampling_params={"max_new_tokens": 0},
            return_logprob=True,
            logprob_start_len=0,
        )
        entries = [one["meta_info"]["input_token_logprobs"] for one in outs]
        return [torch.tensor([0.0 if one[0] is None else float(one[0]) for one in row]) for row in entries]

    def load_weights(self, weights: Mapping[str, Tensor], version: int) -> None:
        check_version("SGLangWrapper", version, self.version)
        self.engine.update_weights_from_tensor([(name, one.detach()) for name, one in weights.items()])
        self.engine.flush_cache()
        self.version = version


def _finish(reason: Any) -> str:
    return "stop" if reason == "stop" else "length"
