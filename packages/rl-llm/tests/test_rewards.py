"""Rewards of data sets on records written here."""

import time

import pytest

from rl.llm import (
    CountdownRewardParser,
    GSM8KRewardParser,
    IfEvalScorer,
    JSONCallParser,
    MATHRewardParser,
    XMLBlockParser,
)


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("<think>48</think> <answer> 72 </answer>", 1.0),
        ("<answer>72.0</answer>", 1.0),
        ("<answer>$72.</answer>", 1.0),
        ("<answer>71</answer> <answer>72</answer>", 1.0),
        ("<think><answer>72</answer></think>", 0.0),
        ("<think>perhaps <answer>72</answer>, but", 0.0),
        ("<think>a</think><answer>72</answer><think>no", 1.0),
        ("<answer>7,2</answer>", 0.1),
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
        (r"$\boxed{10,\!000}$", "10000", True),
        (r"$\boxed{1,2}$", "12", False),
        (r"$\boxed{1,2}$", "1, 2", True),
        (r"$\boxed{5\text{ cm}^2}$", "5", True),
        (r"$\boxed{45^\circ}$", "45", True),
        (r"$\boxed{\$3.50}$", "3.5", True),
        (r"$\boxed{50\%}$", "50", True),
        (r"$\boxed{x = 7}$", "7", True),
        (r"$\boxed{-\frac{3}{4}}$", "-3/4", True),
        (r"$\boxed{\frac12}$", r"\frac{1}{2}", True),
        (r"$\boxed{\frac{1}2}$", "0.5", True),
        (r"$\boxed{1\frac{1}{2}}$", "11/2", False),
        (r"$\boxed{2\sqrt3}$", r"2\sqrt{3}", True),
        (r"$\boxed{[.5, 1)}$", "[0.5,1)", True),
    ],
)
def test_math(solution, answer, right):
    assert MATHRewardParser()({"solution": solution}, f"<answer>{answer}</answer>") == (1.0 if right else 0.1)


def test_countdown():
    record = {"nums": [3, 4, 5], "target": 8}
    texts = ["(5-3)*4", "(5-3)*4 = 8", "5+3", "4+4"]
    assert [CountdownRewardParser(0.2)(record, f"<answer>{one}</answer>") for one in texts] == [1.0, 1.0, 0.2, 0.2]


# Each with an answer that follows the instruction, and some that do not, by the rules of google-research's code.
CASES = [
    ("keywords:existence", {"keywords": ["sea", "sun"]}, "Sunny sea", ["Sunny"]),
    ("keywords:forbidden_words", {"forbidden_words": ["sea"]}, "seaside", ["the Sea"]),
    ("keywords:frequency", {"keyword": "ab", "frequency": 2, "relation": "at least"}, "abab", ["ab"]),
    ("keywords:letter_frequency", {"letter": "x", "let_frequency": 2, "let_relation": "less than"}, "x", ["xX"]),
    ("language:response_language", {"language": "de"}, "Guten Tag", ["Hello"]),
    ("length_constraints:number_words", {"num_words": 3, "relation": "less than"}, "one two", ["one two three"]),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "at least"}, "One. Two!", ["One. "]),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "one\n***\ntwo\n***", ["one", "a***\n***b"]),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "so"},
        "one\n\n'So, two",
        ["one", "so\n\ntwo", "one\n\nso\n\nthree", "one\n\n \n\nso"],
    ),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n- b", ["* a", "**a**\n- b"]),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2}, "*one* **two**", ["*one* ** **"]),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "SECTION", "num_sections": 2},
        "SECTION 1\na\nSECTION 2\nb",
        ["SECTION 1", "SECTION a SECTION b"],
    ),
    ("detectable_format:title", {}, "<<Title>>\ntext", ["Title", "<< >>"]),
    ("detectable_format:json_format", {}, '```JSON\n{"a": 1}\n```', ["a: 1"]),
    ("detectable_format:constrained_response", {}, "My answer is yes.", ["Yes."]),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[name] [city]", ["[name]"]),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "text\nP. S. more", ["text PS"]),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "text\np.p.s more", ["text P.S."]),
    ("change_case:english_lowercase", {}, "all low", ["Not", "1"]),
    ("change_case:english_capital", {}, "ALL UP", ["Not"]),
    ("change_case:capital_word_frequency", {"capital_frequency": 2, "capital_relation": "at least"}, "I AM", ["AM"]),
    ("punctuation:no_comma", {}, "none", ["one, two"]),
    ("startend:end_checker", {"end_phrase": "The end."}, "It is the end.", ["The end. Or not"]),
    ("startend:quotation", {}, '"text"', ['"text', '"']),
    ("combination:two_responses", {}, "one ****** two", ["one", "one******one", "a************b"]),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say it"}, "say it: it", ["it"]),
]


@pytest.mark.parametrize(("name", "kwargs", "good", "bad"), CASES, ids=[one[0] for one in CASES])
def test_an_instruction_is_followed_or_not(name, kwargs, good, bad):
    record = {"instruction_id_list": [name], "kwargs": [{**kwargs, "another": None}]}
    scorer = IfEvalScorer(detect_language=lambda text: "de" if "Guten" in text else "en")
    assert [scorer(record, text) for text in (good, *bad, "")] == [1.0, *[0.0] * len(bad), 0.0]


def test_all_25_kinds_of_instructions_are_known():
    assert len({name for name, *_ in CASES}) == 25


def test_instructions_are_counted_together():
    record = {"instruction_id_list": ["punctuation:no_comma", "change_case:english_lowercase"], "kwargs": [{}, None]}
    assert IfEvalScorer()(record, "<think>A, B</think> One") == 0.5
    assert IfEvalScorer(all_or_nothing=True)(record, "One") == 0.0
    assert IfEvalScorer()(record, "<think>one") == 0.0
    unknown = {"instruction_id_list": ["keywords:rhyme"], "kwargs": [{}]}
    with pytest.raises(ValueError, match=r"among keywords:existence, .*, language:response_language, got keywords:rhy"):
        IfEvalScorer()(unknown, "One")
    with pytest.raises(ValueError, match="needs detect_language="):
        IfEvalScorer()({"instruction_id_list": ["language:response_language"], "kwargs": [{"language": "de"}]}, "One")


def test_loose_scores_ignore_the_first_line_the_last_line_and_asterisks():
    record = {"instruction_id_list": ["startend:quotation", "change_case:english_lowercase"], "kwargs": [{}, {}]}
    text = 'Sure: \n**"quoted"**'
    assert (IfEvalScorer()(record, text), IfEvalScorer(loose=True)(record, text)) == (0.0, 1.0)


@pytest.mark.parametrize("number", ["1e999999999", "-1E+99999", "9" * 100_000, "1/0", "1e9999/1"])
def test_a_number_that_takes_for_ever_is_wrong_at_once(number):
    begun = time.perf_counter()
    for parser, record in (
        (GSM8KRewardParser(), {"answer": "#### 1"}),
        (MATHRewardParser(), {"solution": r"\boxed{1}"}),
        (CountdownRewardParser(), {"nums": [1], "target": 1}),
    ):
        assert parser(record, f"<answer>{number}</answer>") == 0.1
    assert time.perf_counter() - begun < 5


@pytest.mark.parametrize(
    "piece", ["<answer>", "<think>", "<tool_call>", '<tool name="a">', '<tool name="a"', "<<", "["]
)
def test_an_answer_that_repeats_a_piece_is_read_in_the_time_of_its_length(piece):
    begun, text = time.perf_counter(), piece * 5000
    assert GSM8KRewardParser()({"answer": "#### 1"}, text) == 0
    assert [call for call in JSONCallParser()(text) if not call.error] == []
    assert XMLBlockParser()(text) == []
    names = ["detectable_format:title", "detectable_content:number_placeholders", "detectable_format:json_format"]
    record = {"instruction_id_list": names, "kwargs": [{}, {"num_placeholders": 1}, {}]}
    assert IfEvalScorer()(record, text) == 0
    assert time.perf_counter() - begun < 5


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("<answer>2</answer> or <answer> 1 </answer>", 1.0),
        ("<answer>1</answer> </answer>", 1.0),
        ("<answer>2 <answer>1</answer>", 1.0),
        ("</answer>1<answer>", 0.0),
        ("<answer>1", 0.0),
    ],
)
def test_the_last_answer_counts(text, reward):
    assert GSM8KRewardParser()({"answer": 1}, text) == reward
