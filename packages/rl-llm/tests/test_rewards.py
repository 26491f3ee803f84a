"""Rewards of data sets on records written here."""

import pytest

from rl.llm import CountdownRewardParser, GSM8KRewardParser, IfEvalScorer, MATHRewardParser


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("<think>48</think> <answer> 72 </answer>", 1.0),
        ("<answer>72.0</answer>", 1.0),
        ("<answer>$72.</answer>", 1.0),
        ("<answer>71</answer> <answer>72</answer>", 1.0),
        ("<think><answer>72</answer></think>", 0.0),
        ("<answer>seventy-two</answer>", 0.1),
        ("<answer>1/0</answer>", 0.1),
        ("72", 0.0),
        ("<answer>72", 0.0),
    ],
)
def test_gsm8k(text, reward):
    assert GSM8KRewardParser()({"question": "?", "answer": "48 + 24 = 72\n#### 72"}, text) == reward


@pytest.mark.parametrize(
    ("solution", "answer", "right"),
    [
        (r"Thus $\boxed{\frac{3}{4}}$.", r"\dfrac{3}{4}", True),
        (r"$\boxed{\frac{3}{4}}$", "0.75", True),
        (r"$\boxed{\frac{3}{4}}$", r"$\boxed{3/4}$", True),
        (r"$\boxed{\frac{x^{2}}{y}}$", r"\frac{x^{2}}{y}", True),
        (r"$\boxed{\frac{x^{2}}{y}}$", r"\frac{x^{2}}{z}", False),
        (r"$\boxed{\left( 1, 2 \right)}$", "(1,2)", True),
        (r"$\boxed{\text{east}}$", "east", True),
        (r"$\boxed{3}$", "4", False),
    ],
)
def test_math(solution, answer, right):
    assert MATHRewardParser()({"solution": solution}, f"<answer>{answer}</answer>") == (1.0 if right else 0.1)


def test_countdown():
    record = {"nums": [3, 4, 5], "target": 8}
    texts = ["(5-3)*4", "(5-3)*4 = 8", "5+3", "4+4"]
    assert [CountdownRewardParser(0.2)(record, f"<answer>{one}</answer>") for one in texts] == [1.0, 1.0, 0.2, 0.2]


CASES = [
    ("keywords:existence", {"keywords": ["sea", "sun"]}, "Sun and sea", "sunny sea"),
    ("keywords:forbidden_words", {"forbidden_words": ["sea"]}, "seaside", "the Sea"),
    ("keywords:frequency", {"keyword": "a", "frequency": 2, "relation": "at least"}, "a a", "a"),
    ("keywords:letter_frequency", {"letter": "x", "let_frequency": 2, "let_relation": "less than"}, "x", "xX"),
    ("length_constraints:number_words", {"num_words": 3, "relation": "less than"}, "one two", "one two three"),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "at least"}, "One. Two!", "One. "),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "one\n***\ntwo", "one"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n- b", "* a"),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 1}, "an *important* part", "none"),
    ("detectable_format:title", {}, "<<Title>>\ntext", "Title"),
    ("detectable_format:json_format", {}, '```json\n{"a": 1}\n```', "a: 1"),
    ("detectable_format:constrained_response", {}, "My answer is yes.", "Yes."),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[name] [city]", "[name]"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "text\nP.S. more", "text P.S."),
    ("change_case:english_lowercase", {}, "all low", "Not"),
    ("change_case:english_capital", {}, "ALL UP", "Not"),
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": "less than"}, "ONE", "ONE TWO"),
    ("punctuation:no_comma", {}, "none", "one, two"),
    ("startend:end_checker", {"end_phrase": "The end."}, "It is the end.", "The end. Or not"),
    ("startend:quotation", {}, '"text"', '"text'),
    ("combination:two_responses", {}, "one ****** two", "one"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say it"}, "say it: it", "it"),
]


@pytest.mark.parametrize(("name", "kwargs", "good", "bad"), CASES, ids=[one[0] for one in CASES])
def test_an_instruction_is_followed_or_not(name, kwargs, good, bad):
    record = {"instruction_id_list": [name], "kwargs": [kwargs]}
    scorer = IfEvalScorer()
    assert (scorer(record, good), scorer(record, bad), scorer(record, "")) == (1.0, 0.0, 0.0)


def test_instructions_are_counted_together():
    record = {"instruction_id_list": ["punctuation:no_comma", "change_case:english_lowercase"], "kwargs": [{}, None]}
    assert IfEvalScorer()(record, "<think>A, B</think> One") == 0.5
    assert IfEvalScorer(all_or_nothing=True)(record, "One") == 0.0
    with pytest.raises(ValueError, match="got language:response_language"):
        IfEvalScorer()({"instruction_id_list": ["language:response_language"], "kwargs": [{}]}, "One")
