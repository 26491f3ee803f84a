"""Wrappers on TensorDict, adapters against fakes of the engines, and the phases of a push of weights."""

from types import SimpleNamespace

import pytest
import torch
from tensordict import NonTensorStack, TensorDict, lazy_stack

from rl.core.errors import ContractError, RLError
from rl.llm import (
    CharTokenizer,
    ChatTemplate,
    Engine,
    EngineReceiver,
    History,
    LLMWrapperBase,
    Rollout,
    Sampling,
    ScriptedEngine,
    Segment,
    SGLangWrapper,
    TinyTransformer,
    TokenScorer,
    TransformersWrapper,
    WeightPush,
    vLLMWrapper,
)

TOKENIZER = CharTokenizer("0123456789")
GREEDY = Sampling(max_tokens=3, temperature=0)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return TinyTransformer(len(TOKENIZER), width=16, depth=1, heads=2, max_length=32)


def texts(*rows):
    return TensorDict({}, batch_size=[len(rows)]).set(("text", "prompt"), NonTensorStack(*rows))


@pytest.mark.parametrize("pad", [True, False])
def test_text_history_and_tokens_give_the_same_responses(model, pad):
    options = {"sampling": GREEDY, "pad_output": pad}
    by_text = TransformersWrapper(model, TOKENIZER, input_mode="text", raw=True, **options)(texts("12", "345"))
    rows = [TOKENIZER.encode("12"), TOKENIZER.encode("345")]
    mask = torch.tensor([[False, True, True], [True, True, True]])
    tokens = TensorDict({"tokens": {"prompt": torch.tensor([[0, *rows[0]], rows[1]])}}, batch_size=[2])
    tokens["masks"] = {"all_attention_mask": mask}
    by_tokens = TransformersWrapper(model, TOKENIZER, input_mode="tokens", **options)(tokens.clone())
    for one, other in zip(by_text["tokens", "full"].unbind(), by_tokens["tokens", "full"].unbind(), strict=True):
        assert one.tolist() == other.tolist()
    assert by_text["tokens", "full"].is_nested != pad
    assert len(list(by_text["text", "response"])) == 2


def test_a_text_that_would_skip_the_chat_template_is_refused(model):
    """Reward 0 and no error (reported for TRL 1.9.2)."""
    with pytest.raises(ValueError, match="input_mode 'text' skips the chat template"):
        TransformersWrapper(model, TOKENIZER, input_mode="text")
    plain = SimpleNamespace(encode=TOKENIZER.encode, decode=TOKENIZER.decode, chat_template=None, eos_token_id=1)
    with pytest.raises(ValueError, match="raw=True"):
        TransformersWrapper(model, plain, input_mode="text", template=ChatTemplate(TOKENIZER))
    TransformersWrapper(model, plain, input_mode="text")


def test_any_engine_is_a_policy():
    engine = ScriptedEngine([[9, 1], [10, 1]], stop_tokens=[1], log_prob=-2.0, version=3)
    policy = LLMWrapperBase(engine, TOKENIZER, input_mode="text", raw=True)
    assert isinstance(policy, Engine)
    td = policy(texts("1", "2"))
    assert list(td["text", "response"]) == ["2", "3"]
    assert td["policy_version"].tolist() == [[-1, 3, 3]] * 2
    assert td["log_probs", "full"].tolist() == [[0.0, -2.0, -2.0]] * 2


def test_histories_get_an_answer(model):
    chats = [History.from_chats([{"role": "user", "content": text}]) for text in ("1", "23")]
    td = TensorDict({}, batch_size=[2]).set(("history", "prompt"), lazy_stack(chats))
    td = TransformersWrapper(model, TOKENIZER, sampling=GREEDY)(td)
    full = td.get(("history", "full"))
    for i, text in enumerate(td["text", "response"]):
        assert full[i].messages()[-1] == {"role": "assistant", "content": text}
    assert td["masks", "all_assistant_mask"].sum(-1).le(3).all()


def test_scoring_writes_what_the_scorer_writes(model):
    td = TensorDict({"tokens": {"full": torch.tensor([[8, 9, 10], [9, 9, 7]])}}, batch_size=[2])
    found = TransformersWrapper(model, TOKENIZER, input_mode="tokens", generate=False)(td.clone())
    torch.testing.assert_close(found["log_probs", "full"], TokenScorer(model)(td)["log_probs", "full"].detach())
    with pytest.raises(ContractError, match="which the batch lacks"):
        TransformersWrapper(model, TOKENIZER, input_mode="text", raw=True)(td)
    with pytest.raises(ValueError, match="input_mode"):
        TransformersWrapper(model, TOKENIZER, input_mode="chat")


def test_models_of_hugging_face_sample_as_without_a_cache():
    transformers = pytest.importorskip("transformers")
    for name, sizes in (
        ("GPT2", {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64}),
        ("Llama", {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}),
    ):
        config = getattr(transformers, f"{name}Config")(vocab_size=17, bos_token_id=1, eos_token_id=1, **sizes)
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        prompts = [[8, 9], [10], [8, 9, 10, 11, 12]]
        policy = TransformersWrapper(model, TOKENIZER, input_mode="tokens", max_batch=2)
        for prompt, one in zip(prompts, policy.generate(prompts, Sampling(6, 0)), strict=True):
            tokens = list(prompt)
            for token in one.tokens:
                with torch.no_grad():
                    assert int(model(torch.tensor([tokens])).logits[0, -1].argmax()) == token
                tokens.append(token)


@pytest.mark.slow
def test_a_ray_actor_answers_as_the_model_does(model):
    ray = pytest.importorskip("ray")
    from rl.llm import RemoteTransformersWrapper

    ray.init(num_cpus=1, include_dashboard=False)
    try:
        remote = RemoteTransformersWrapper(lambda: model, TOKENIZER, input_mode="text", raw=True, sampling=GREEDY)
        here = TransformersWrapper(model, TOKENIZER, input_mode="text", raw=True, sampling=GREEDY)
        one, other = remote(texts("12", "3")), here(texts("12", "3"))
        assert one["tokens", "full"].tolist() == other["tokens", "full"].tolist()
        remote.load_weights(model.state_dict(), 4)
        assert remote.version == 4
        remote.close()
    finally:
        ray.shutdown()


class FakeVLLM:
    """The part of ``vllm.LLM`` that the adapter uses: writes token 9 and then 1."""

    def __init__(self):
        self.calls = []

    def generate(self, prompts, params):
        for one, each in zip(prompts, params if isinstance(params, list) else [params] * len(prompts), strict=True):
            ids = one["prompt_token_ids"]
            at = [{token: SimpleNamespace(logprob=-token / 10)} for token in (9, 1)][: each["max_tokens"]]
            before = [None, *({token: SimpleNamespace(logprob=-float(token))} for token in ids[1:])]
            out = SimpleNamespace(
                token_ids=[9, 1][: len(at)], logprobs=at, finish_reason="stop" if at[1:] else "length"
            )
            yield SimpleNamespace(outputs=[out], prompt_logprobs=before)

    def __getattr__(self, name):
        return lambda *arguments: self.calls.append(name)


class FakeSGLang:
    """The part of ``sglang.Engine`` that the adapter uses."""

    def __init__(self):
        self.calls = []

    def generate(self, input_ids, sampling_params, return_logprob, logprob_start_len=-1):
        given = sampling_params if isinstance(sampling_params, list) else [sampling_params] * len(input_ids)
        for ids, each in zip(input_ids, given, strict=True):
            count = each["max_new_tokens"]
            entries = [(-0.9, 9, None), (-0.1, 1, None)][:count]
            meta = {"output_token_logprobs": entries, "finish_reason": {"type": "stop" if count > 1 else "length"}}
            meta["input_token_logprobs"] = [(None if not i else -float(one), one, None) for i, one in enumerate(ids)]
            yield {"output_ids": [one[1] for one in entries], "meta_info": meta}

    def update_weights_from_tensor(self, named):
        self.calls.append([name for name, _ in named])

    def flush_cache(self):
        self.calls.append("flush_cache")


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_adapters_translate_the_interface_of_the_engine(name):
    fake = FakeVLLM() if name == "vllm" else FakeSGLang()
    engine = (
        vLLMWrapper(fake, stop_tokens=[1], make_params=dict) if name == "vllm" else SGLangWrapper(fake, stop_tokens=[1])
    )
    assert isinstance(engine, Engine)
    (one,) = engine.generate([[3, 4]], Sampling(max_tokens=5))
    assert (one.tokens, one.log_probs, one.finish) == ([9, 1], [-0.9, -0.1], "stop")
    for short in (Sampling(max_tokens=1), Sampling(max_tokens=5, max_total=3)):
        (cut,) = engine.generate([[3, 4]], short)
        assert (cut.tokens, cut.finish) == ([9], "length")
    assert engine.score([Rollout.of([Segment.given([3, 4], role="user")])])[0].tolist() == [0.0, -4.0]
    engine.load_weights({"w": torch.ones(1)}, 2)
    assert engine.version == 2
    engine.load_weights({"w": torch.ones(1)}, 3)
    phases = ["pause_generation", "start_weight_update", "update_weights", "finish_weight_update", "resume_generation"]
    expected = ["init_weight_transfer_engine", *phases * 2] if name == "vllm" else [["w"], "flush_cache"] * 2
    assert fake.calls == expected
    with pytest.raises(ValueError, match="version must be"):
        engine.load_weights({"w": torch.ones(1)}, 3)


def test_phases_in_another_order_are_refused():
    engine = ScriptedEngine([[1]], stop_tokens=[1])
    receiver = EngineReceiver(engine)
    push, weights = WeightPush(receiver), {"a": torch.ones(2), "b": torch.zeros(3)}
    for phase in (lambda: push.start(1), lambda: push.update(weights), push.finish):
        with pytest.raises(RLError, match="call init"):
            phase()
    push.init(weights)
    with pytest.raises(RLError, match="call start"):
        push.init(weights)
    push.start(1)
    assert receiver.paused
    with pytest.raises(RLError, match="call update or finish"):
        push.start(2)
    push.update({"a": weights["a"]})
    for bad, message in (({"a": weights["a"]}, "sent before"), ({"c": weights["a"]}, "unknown")):
        with pytest.raises(ValueError, match=message):
            push.update(bad)
    with pytest.raises(ValueError, match=r"must be torch\.float32"):
        push.update({"b": torch.zeros(2)})
    with pytest.raises(RLError, match="1 weights were not sent, among them b"):
        push.finish()
    assert engine.version == 0
    push.update({"b": weights["b"]})
    push.finish()
    assert (engine.version, receiver.paused, push.state) == (1, False, "ready")
    with pytest.raises(ValueError, match="version"):
        push.start(1)


def test_weights_of_a_store_are_pushed_once_per_version(model):
    class Store:
        """The interface of ``SharedWeights`` of rl-collectors."""

        version = 0

        def acquire(self, weights, reader, known=0):
            if self.version != known:
                for one in weights.values():
                    one.fill_(self.version)
            return self.version

    store, policy = Store(), TransformersWrapper(model, TOKENIZER, input_mode="tokens")
    push = WeightPush(EngineReceiver(policy))
    buffer = {name: torch.empty_like(one) for name, one in model.state_dict().items()}
    assert not push.push_from(store, buffer, reader=0)
    store.version = 5
    assert push.push_from(store, buffer, reader=0)
    assert not push.push_from(store, buffer, reader=0)
    assert policy.generate([[8]], Sampling(1))[0].version == 5
    assert all((one == 5).all() for one in model.state_dict().values())


def test_weights_are_sent_in_parts_of_bounded_size():
    sent = []

    class Receiver:
        init = pause = start = finish = resume = lambda self, *arguments: None

        def update(self, weights):
            sent.append(sorted(weights))

    WeightPush(Receiver()).push({"a": torch.ones(4), "b": torch.ones(1), "c": torch.ones(2)}, 1, bucket_bytes=12)
    assert sent == [["a"], ["b", "c"]]
