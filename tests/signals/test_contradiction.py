"""A model's hint held against the user's words: inversions and inventions are caught, faithful wordings pass."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stereorl.signals.contradiction import contradiction

FAITHFUL = (  # (what the user wrote, what the model made of it)
    ("Please don't use bullet points.", "Write without bullet points."),
    ("no bullet points please", "Avoid bullet points and write prose."),
    ("I asked you not to use bullet points", "Write the answer in flowing prose, not in bullet points."),
    ("That is too long. Answer in one short sentence.", "Answer in one short sentence."),
    ("Too long.", "Give a brief answer of one sentence."),
    ("not long enough", "Give a longer answer."),
    ("Too formal, be more casual", "Write in a casual tone."),
    ("I don't understand this at all, simpler words please", "Use simple words."),
    ("You forgot the units.", "Include the units."),
    ("You skipped the third step.", "Do not skip the third step."),
    ("You used Fahrenheit, I need Celsius", "Give the temperature in Celsius."),
    ("I asked for Python, not JavaScript.", "Write the function in Python."),
    ("Please answer in French.", "Answer in French."),
    ("Use two sentences only.", "Answer in two sentences."),
    ("Wrong. The Battle of Hastings was in 1066.", "State that the Battle of Hastings was in 1066."),
    ("Use metric units instead of miles.", "Use metric units instead of miles."),
    ("Don't use emojis.", "Leave out emojis."),
    ("Could you rewrite this without bold text and numbered lists?", "Replace the numbered list with prose."),
    ("Stop apologising and just give me the code.", "Don't apologise, give only the code."),
    ("not enough detail", "Give more detail in the answer."),
    ("不要用列表", "不要使用列表，写成段落"),
    ("太长了，用一句话回答", "请用一句话回答"),
    ("不要用表情符号", "回答里别用表情符号"),
    ("请用中文回答", "用中文回答这个问题"),
    ("你漏掉了第二步", "请写出第二步的内容"),
    ("看不懂，说简单点", "用简单的话来解释"),
    ("只要三个例子", "请列出三个例子"),
    ("不是这个意思，我要的是表格", "请用表格来展示"),
    ("no headings, tables or bold", "Add a table of the numbers."),
    ("Not great. Be more specific.", "Be more specific about the causes."),
    ("at most 50 words", "Use no more than 50 words."),
    ("最多三个例子", "举例不超过三个，要简短"),
    ("I said Tuesday, not Monday", "Use Tuesday rather than Monday."),
    ("Less text, more code", "Give more code and less text."),
    ("Stop apologising", "Do not apologise."),
    ("You ignored the second question", "Answer the second question as well."),
    ("The function should return a list, not a tuple", "Return a list rather than a tuple."),
    ("can you make it a bit friendlier? the tone is cold", "Use a friendly, warm tone."),
)
TWISTED = (
    ("Good, but you missed the third step.", "Only the fourth step."),
    ("Please don't use bullet points.", "Use bullet points in the answer."),
    ("Stop using bullet points, they are ugly.", "Use bullet points."),
    ("That is too long. Answer in one short sentence.", "Make the answer longer."),
    ("Too long.", "Expand the answer with more examples."),
    ("not long enough", "Give a shorter answer."),
    ("Too formal", "Write in a more formal tone."),
    ("I don't understand this at all, simpler words please", "Use technical words and jargon."),
    ("You forgot the units.", "Leave out the units."),
    ("You skipped the third step.", "Skip the third step."),
    ("You used Fahrenheit, I need Celsius", "Answer in Fahrenheit."),
    ("I asked for Python, not JavaScript.", "Write the function in JavaScript."),
    ("Please answer in French.", "Answer in Spanish."),
    ("Use two sentences only.", "Answer in three sentences."),
    ("Wrong. The Battle of Hastings was in 1066.", "The battle of Hastings was in 1067."),
    ("Use metric units instead of miles.", "Use miles instead of metric units."),
    ("Don't use emojis.", "Use emojis to make it lively."),
    ("Could you rewrite this without bold text and numbered lists?", "Use bold text and numbered lists."),
    ("Stop apologising and just give me the code.", "Apologise before the code."),
    ("I want more detail", "Give less detail in the answer."),
    ("too much detail", "Give more detail about it."),
    ("不要用列表", "用列表回答问题"),
    ("太长了，用一句话回答", "请把答案写得更长一些"),
    ("不要用表情符号", "请使用表情符号"),
    ("请用中文回答", "请用英文回答这个问题"),
    ("你漏掉了第二步骤", "请省略第二步骤"),
    ("看不懂，说简单点", "请用更复杂的专业词语"),
    ("只要三个例子", "请列出五个例子"),
    ("不是这个意思，我要的是表格", "不要使用表格格式"),
    ("Please write in UPPERCASE", "Write everything in lowercase."),
    ("Answer in at most 50 words", "Answer in at least 50 words."),
    ("最多写五十个字", "请至少写五十个字"),
    ("Put the summary before the list", "Put the summary after the list."),
    ("Put the answer first", "Put the answer last."),
    ("The tone is too harsh", "Make the tone harsher."),
    ("You should have asked me first", "Do not ask the user first."),
    ("I prefer tabs over spaces", "Use spaces instead of tabs."),
    ("I said Tuesday, not Monday", "Use Monday, not Tuesday."),
    ("Keep the second paragraph", "Remove the second paragraph."),
    ("不需要解释，只要代码", "只要解释，不需要代码"),
    ("Not great. Be more specific.", "Keep the answer general and vague."),
)


@pytest.mark.parametrize(("words", "candidate"), FAITHFUL)
def test_a_faithful_wording_passes(words: str, candidate: str) -> None:
    assert contradiction(candidate, words) is None


@pytest.mark.parametrize(("words", "candidate"), TWISTED)
def test_an_inversion_or_invention_is_named(words: str, candidate: str) -> None:
    reason = contradiction(candidate, words)
    assert reason is not None
    assert reason.startswith(("it inverts the user's words:", "a number that", "it names what"))


def test_there_are_enough_pairs() -> None:
    assert len(set(FAITHFUL)) >= 25
    assert len(set(TWISTED)) >= 25


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        ("Be brief.", "too short"),
        ("  shorter \n", "too short"),
        ("短一点", "too short"),
        ("[HINT_START]Answer in one short sentence.", "it copies the prompt's marks"),
        ("user>>> Answer in one short sentence.", "it copies the prompt's marks"),
        ("Answer in one short sentence. \\boxed{+1}", "it copies the prompt's marks"),
        ("<|im_start|>user says: be brief", "it copies the prompt's marks"),
    ],
)
def test_what_is_no_hint_at_all(candidate: str, reason: str) -> None:
    assert contradiction(candidate, "Too long. Answer in one short sentence.") == reason


def test_a_small_models_hint_must_be_about_what_the_user_named() -> None:
    stray = "Mention the history of the lighthouse."
    assert contradiction(stray, "please use a table") is None
    assert (
        contradiction(stray, "please use a table", strict=True) == "it is about nothing that the user named"
    )
    assert contradiction("Show the data in a table.", "please use a table", strict=True) is None
    assert contradiction("Give a brief answer.", "Too long.", strict=True) is None
    assert contradiction("Explain it simply, in a table.", "please use a table", strict=True) == (
        "it adds what the user did not say: simplicity"
    )
    assert contradiction("Include the second step.", "你漏掉了第二步", strict=True) is None
    assert contradiction("请用表格展示数据", "我要的是表格", strict=True) is None


@given(st.text(max_size=400), st.text(max_size=400))
def test_any_text_can_be_compared(candidate: str, words: str) -> None:
    reason = contradiction(candidate, words, strict=True)
    assert reason is None or reason


@given(st.sampled_from([words for words, _ in FAITHFUL]))
def test_a_quotation_never_contradicts_itself(words: str) -> None:
    assert contradiction(words, words) in (None, "too short")
