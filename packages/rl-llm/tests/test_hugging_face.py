"""Models of Hugging Face, made on the spot: training, adapters, export; skipped without transformers."""

import pytest
import torch

from rl.llm import (
    GRPO,
    SFT,
    ChatTemplate,
    LLMSettings,
    Rollout,
    Segment,
    SortTask,
    TokenScorer,
    Tool,
    ToolCall,
    ToolRegistry,
    ToolTask,
    TorchEngine,
    load_model,
    packed,
    padded,
    save_model,
    train_llm,
)
from rl.llm.training import evaluate_run  # what `rl eval` runs

transformers = pytest.importorskip("transformers")

# peft reads names that newer versions of transformers renamed.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}</s>"
    "{% endgeneration %}{% else %}{{ m.content }}</s>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny Llama with a tokenizer of characters, as a folder."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    special = ["</s>", "<|user|>", "<|assistant|>", "<|system|>", "<|tool|>", "<unk>"]
    words = {one: i for i, one in enumerate([*special, *"0123456789"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="</s>")
    fast.add_special_tokens({"additional_special_tokens": special[1:]})
    fast.chat_template = CHATML
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=len(fast), eos_token_id=0, **sizes))
    path = tmp_path_factory.mktemp("model")
    model.save_pretrained(path)
    fast.save_pretrained(path)
    return path


FEW = {"task_options": {"length": 2, "digits": 2}, "eval_problems": 4}


@pytest.mark.parametrize("options", [{}, {"lora_rank": 2}, {"checkpoint_activations": True}])
def test_grpo_trains_and_exports_a_folder_that_hugging_face_reads(folder, tmp_path, options):
    if "lora_rank" in options:
        pytest.importorskip("peft")
    settings = LLMSettings(model=str(folder), updates=2, **FEW, **options)
    result = train_llm(settings, GRPO(groups=2, group_size=4), out=tmp_path / "run")
    exported = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model").state_dict()
    before = transformers.AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert exported.keys() == before.keys()
    assert any(not torch.equal(exported[name], before[name]) for name in before)
    assert (result.folder / "model" / "model.safetensors").is_file()
    load_model(str(tmp_path / "run" / "model"))


def test_adapters_get_masks_and_positions(folder):
    pytest.importorskip("peft")
    model, _ = load_model(str(folder), lora_rank=2)
    plain, _ = load_model(str(folder))
    rollouts = [Rollout.of([Segment.given(row, role="user")]) for row in ([5, 6], [7, 8, 9, 6])]
    for batch in (padded(rollouts, side="left"), packed(rollouts)):
        found = [TokenScorer(one)(batch.clone())["log_probs", "full"] for one in (model.eval(), plain.eval())]
        torch.testing.assert_close(found[0], found[1])  # an adapter that is not trained changes nothing


def test_the_small_model_is_exported_as_a_gpt2_with_its_tokenizer(tmp_path):
    tiny, tokenizer = load_model("tiny", alphabet="0123456789 +=")
    save_model(tiny, tokenizer, tmp_path / "model")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert type(model).__name__ == "GPT2LMHeadModel"
    found = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    conversation = [{"role": "user", "content": "1 + 2="}, {"role": "assistant", "content": "3"}]
    options = {"return_dict": True, "return_assistant_tokens_mask": True}
    given = found.apply_chat_template(conversation, **options)
    expected = tokenizer.apply_chat_template(conversation)
    assert list(given["input_ids"]) == expected["input_ids"]
    assert list(given["assistant_masks"]) == expected["assistant_masks"]
    assert found.decode(found("1 + 2=")["input_ids"]) == "1 + 2="
    assert ChatTemplate(found).prompt(conversation[:1]).tokens.tolist() == tokenizer.apply_chat_template(
        conversation[:1], add_generation_prompt=True
    )["input_ids"]  # fmt: skip
    tokens = torch.tensor([expected["input_ids"]])
    with torch.no_grad():
        torch.testing.assert_close(model(tokens).logits, tiny(tokens).logits, atol=1e-5, rtol=0)
    again, _ = load_model(str(tmp_path / "model"))
    torch.testing.assert_close(again.state_dict(), tiny.state_dict(), atol=0, rtol=0)


@pytest.mark.parametrize("options", [{}, {"lora_rank": 2, "precision": "bf16", "micro_batch": 3}])
def test_an_interrupted_run_continues_bit_by_bit(folder, tmp_path, options):
    if "lora_rank" in options:
        pytest.importorskip("peft")
    settings = LLMSettings(model=str(folder), updates=3, threads=1, **FEW, **options)
    method = GRPO(groups=2, group_size=4)
    train_llm(settings, method, out=tmp_path / "whole")
    train_llm(settings, method, out=tmp_path / "parts", should_stop=lambda update: update == 2)
    train_llm(settings, method, out=tmp_path / "parts", resume=True)
    found = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("whole", "parts")]
    assert found[0] == found[1]


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is no causal language model") as caught:
        load_model(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_samples_of_a_thread_train_a_model_of_hugging_face(folder, tmp_path):
    settings = LLMSettings(model=str(folder), updates=3, **FEW)
    result = train_llm(settings, GRPO(groups=2, group_size=4, max_staleness=1), out=tmp_path / "run")
    assert result.updates == 3


def test_a_template_of_a_file_replaces_that_of_the_tokenizer_and_is_saved_with_the_model(folder, tmp_path):
    file = tmp_path / "chat.jinja"
    file.write_text(CHATML.replace("<|assistant|>", "<|tool|>"))  # another start of an answer
    settings = LLMSettings(model=str(folder), chat_template=str(file), updates=1, **FEW)
    train_llm(settings, GRPO(groups=2, group_size=2), out=tmp_path / "run")
    tokenizer = load_model(str(tmp_path / "run" / "model"))[1]
    assert tokenizer.chat_template == file.read_text()


@pytest.mark.parametrize(
    ("old", "new", "method", "task", "message"),
    [
        ("{% generation %}", "", SFT(batch_size=2), "sort", "does not mark the assistant"),
        ("</s>{% endgeneration %}", "{% endgeneration %}</s>", SFT(batch_size=2), "sort", "stop token is not marked"),
        ("{{ m.content }}</s>{% endgeneration %}", "{{ m.content }}{% endgeneration %}", None, "sort", "without </s>"),
        (
            "{{ m.content }}</s>{% endgen",
            "{{ m.content if loop.last }}</s>{% endgen",
            None,
            "guess",
            "earlier tokens change",
        ),
    ],
)
def test_a_template_is_checked_for_what_the_run_needs(folder, tmp_path, old, new, method, task, message):
    text = CHATML.replace(old, new)
    text = text if "{% generation %}" in text else text.replace("{% endgeneration %}", "")
    (tmp_path / "chat.jinja").write_text(text)
    settings = LLMSettings(model=str(folder), chat_template=str(tmp_path / "chat.jinja"), task=task, updates=1)
    with pytest.raises(ValueError, match=message):
        train_llm(settings, method or GRPO(groups=2, group_size=2), out=tmp_path / "run")


class Doubles(ToolTask):
    """Sort two digits, with a tool that is called ``7``."""

    def __init__(self):
        tool = Tool("7", "", {}, lambda: "3")
        super().__init__(SortTask(length=2, digits=2), ToolRegistry([tool]), parser=lambda _: [ToolCall("7", {})])


def test_a_template_shows_the_tools_of_the_task_to_the_policy(folder, tmp_path, monkeypatch):
    (tmp_path / "chat.jinja").write_text("{% for t in tools %}{{ t.function.name }}{% endfor %}" + CHATML)
    seen = []
    generate = TorchEngine.generate
    monkeypatch.setattr(TorchEngine, "generate", lambda *given: seen.extend(map(list, given[1])) or generate(*given))
    options = {"model": str(folder), "chat_template": str(tmp_path / "chat.jinja"), "max_tokens": 3}
    settings = LLMSettings(task=f"{__name__}:Doubles", updates=1, eval_problems=2, **options)
    method = GRPO(groups=2, group_size=2)
    result = train_llm(settings, method, out=tmp_path / "run")
    trained = len(seen)
    evaluate_run(settings, method, result.folder, problems=2, seed=0)
    decode = load_model(str(result.folder / "model"))[1].decode
    assert 0 < trained < len(seen)
    assert all(decode(one).startswith("7") for one in seen)


def test_a_template_without_marks_is_enough_for_sampled_answers(folder, tmp_path):
    (tmp_path / "chat.jinja").write_text(CHATML.replace("{% generation %}", "").replace("{% endgeneration %}", ""))
    settings = LLMSettings(model=str(folder), chat_template=str(tmp_path / "chat.jinja"), updates=1, **FEW)
    assert train_llm(settings, GRPO(groups=2, group_size=2), out=tmp_path / "run").updates == 1
