"""Teachers on the real model: the same ids, the same temperature, zero gap without a hint, a gap with one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from stereorl.config import ModelConfig
from stereorl.data import Message, Sampling, Turn
from stereorl.errors import RequestError
from stereorl.policy.adapters import attach
from stereorl.policy.load import load
from stereorl.policy.render import Renderer
from stereorl.policy.score import score
from stereorl.signals.teacher import BaseTeacher, LiveTeacher

pytestmark = pytest.mark.model

LABEL = "[user's hint / instruction]"
HINT = "Please answer in one short sentence."
QUESTIONS = (
    ("Where do penguins live?", "Penguins live in the Southern Hemisphere, mostly in Antarctica."),
    ("Why is the sky blue?", "The sky is blue because air scatters blue light more than red light."),
    ("What is bread made of?", "Bread is made of flour, water, yeast and salt."),
)
MORE = (
    " They are found in a wide range of places and there are many different kinds of them, each with its own features."
    " In addition, it is important to note that there are several other factors which one may want to consider here."
    " Furthermore, many people find this topic interesting, and there is a lot more that could be said about it."
)


class Parts:
    """The embedded model with a fresh LoRA adapter (zero), its renderer and both teachers."""

    def __init__(self) -> None:
        loaded = load(ModelConfig())
        self.tokenizer = loaded.tokenizer
        self.end = min(loaded.eos_ids)
        self.renderer = Renderer(loaded.tokenizer, loaded.context_length, loaded.eos_ids)
        self.model = attach(loaded, kind="lora", r=4, alpha=8, seed=0)
        self.base = BaseTeacher(self.model, self.renderer, LABEL)
        self.live = LiveTeacher(self.model, self.renderer, LABEL)

    def turn(self, question: str, answer: str, *, end: bool = True, temperature: float = 0.7) -> Turn:
        """A turn with this reply, scored by the policy as it is."""
        messages = (Message("user", question),)
        prompt = np.array(self.renderer.encode(messages), np.int32)
        ids = self.tokenizer(answer, add_special_tokens=False)["input_ids"] + [self.end] * end
        sampling = Sampling(temperature=temperature)
        own = score(self.model, prompt, ids, temperature=sampling.score_temperature).log_probs
        return Turn(
            turn_id=question, session_id="s", index=0, kind="main", messages=messages,
            reply=Message("assistant", answer), prompt_ids=prompt, response_ids=np.array(ids, np.int32),
            log_probs=own, versions=np.zeros(len(ids), np.int32), sampling=sampling, finish_reason="stop",
            model="m", created_at=0.0,
        )  # fmt: skip


@pytest.fixture(scope="module")
def parts() -> Iterator[Parts]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads that spin beside other work cost far more than they bring here
    yield Parts()
    torch.set_num_threads(threads)


@pytest.mark.parametrize("temperature", [0.7, 1.3, 0.0])
def test_no_hint_and_a_zero_adapter_give_no_gap(parts: Parts, temperature: float) -> None:
    turns = [parts.turn(q, a + MORE * (i % 2), temperature=temperature) for i, (q, a) in enumerate(QUESTIONS)]
    for teacher in (parts.base, parts.live):
        for turn, found in zip(turns, teacher.score([(t, "") for t in turns]), strict=True):
            assert found is not None
            assert found.dtype == np.float32
            assert found.shape == turn.log_probs.shape
            assert np.abs(found - turn.log_probs).max() < 1e-4


def test_the_base_teacher_ignores_the_adapter_and_the_live_one_has_it(parts: Parts) -> None:
    turn = parts.turn(*QUESTIONS[0])
    weights = [p for n, p in parts.model.named_parameters() if "lora_B" in n]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in weights:
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.02)
    try:
        parts.model.train()
        (base,) = parts.base.score([(turn, "")])
        (live,) = parts.live.score([(turn, "")])
        assert parts.model.training  # left as it was found
    finally:
        parts.model.eval()
        with torch.no_grad():
            for weight in weights:
                weight.zero_()
    assert base is not None
    assert live is not None
    assert np.abs(base - turn.log_probs).max() < 1e-4
    assert np.abs(live - turn.log_probs).max() > 1e-2


def test_the_hint_for_brevity_ends_earlier_and_frowns_on_rambling(parts: Parts) -> None:
    short = [parts.turn(q, a) for q, a in QUESTIONS]
    ends = [
        s[-1] - t.log_probs[-1]
        for s, t in zip(parts.base.score([(t, HINT) for t in short]), short, strict=True)
    ]  # type: ignore[index]
    assert min(ends) > 0.5, ends  # the end token after one sentence
    rambling = [parts.turn(q, a + MORE) for q, a in QUESTIONS]
    scored = parts.base.score([(t, HINT) for t in rambling])
    # The first token past the sentence, where a short reply would have ended.
    beyond = [
        s[len(t.response_ids) - 1] - r.log_probs[len(t.response_ids) - 1]
        for s, t, r in zip(scored, short, rambling, strict=True)
    ]  # type: ignore[index]
    assert np.mean(beyond) < 0, beyond


def test_the_hint_changes_the_prompt_only(parts: Parts) -> None:
    turn = parts.turn(*QUESTIONS[0])
    prompt = parts.base.prompt_ids(turn, HINT)
    assert prompt is not None
    text = parts.renderer.decode(list(prompt))
    assert f"{QUESTIONS[0][0]}\n\n{LABEL}\n{HINT}" in text
    assert len(prompt) > len(turn.prompt_ids)


def test_a_hint_that_does_not_fit_is_none_and_the_others_are_scored(parts: Parts) -> None:
    turn = parts.turn(*QUESTIONS[0])
    renderer = Renderer(parts.tokenizer, len(turn.prompt_ids) + len(turn.response_ids) + 20, {parts.end})
    teacher = BaseTeacher(parts.model, renderer, LABEL)
    first, second = teacher.score([(turn, "Be brief. " * 40), (turn, "")])
    assert first is None
    assert second is not None


def test_batching_does_not_change_a_score(parts: Parts) -> None:
    turns = [(parts.turn(q, a + MORE * (i % 2)), HINT) for i, (q, a) in enumerate(QUESTIONS)]
    alone = BaseTeacher(parts.model, parts.renderer, LABEL, micro_tokens=1).score(turns)
    for one, other in zip(alone, parts.base.score(turns), strict=True):
        assert one is not None
        assert other is not None
        assert np.abs(one - other).max() < 1e-4
    assert parts.base.score([]) == []


def test_a_refusing_template_is_none(parts: Parts) -> None:
    class Refusing(Renderer):
        def encode(self, messages, tools=()):  # type: ignore[no-untyped-def]
            raise RequestError("no")

    teacher = BaseTeacher(parts.model, Refusing(parts.tokenizer, 100), LABEL)
    assert teacher.score([(parts.turn(*QUESTIONS[0]), HINT)]) == [None]
