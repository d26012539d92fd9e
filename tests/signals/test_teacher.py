"""Teachers on the real model: the same ids, the same temperature, zero gap without a hint, a gap with one."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pytest
import torch

from stereorl.config import ModelConfig
from stereorl.data import Message, Sampling, Turn
from stereorl.errors import MisalignedError, RequestError
from stereorl.policy.adapters import attach
from stereorl.policy.engine import Scores
from stereorl.policy.load import load
from stereorl.policy.render import Renderer
from stereorl.policy.score import score
from stereorl.signals.teacher import HINT_OVER_CONTEXT, BaseTeacher, EMATeacher, LiveTeacher, Teacher

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


def scores(teacher: Teacher, *pairs: tuple[Turn, str], top_k: int = 0) -> list[Scores]:
    """Of items that all can be scored."""
    found = teacher.score(pairs, top_k=top_k)
    assert all(isinstance(item, Scores) for item in found), found
    return [item for item in found if isinstance(item, Scores)]


def log_probs(teacher: Teacher, *pairs: tuple[Turn, str]) -> list[npt.NDArray[np.float32]]:
    return [item.log_probs for item in scores(teacher, *pairs)]


@contextmanager
def moved(parts: Parts, size: float = 0.02) -> Iterator[None]:
    """Within it the adapter is not zero."""
    generator = torch.Generator().manual_seed(0)
    weights = [p for n, p in parts.model.named_parameters() if "lora_B" in n]
    with torch.no_grad():
        for weight in weights:
            weight.copy_(torch.randn(weight.shape, generator=generator) * size)
    try:
        yield
    finally:
        with torch.no_grad():
            for weight in weights:
                weight.zero_()


@pytest.mark.parametrize("temperature", [0.7, 1.3, 0.0])
def test_no_hint_and_a_zero_adapter_give_no_gap(parts: Parts, temperature: float) -> None:
    turns = [parts.turn(q, a + MORE * (i % 2), temperature=temperature) for i, (q, a) in enumerate(QUESTIONS)]
    for teacher in (parts.base, parts.live, EMATeacher(parts.model, parts.renderer, LABEL)):
        for turn, found in zip(turns, log_probs(teacher, *[(t, "") for t in turns]), strict=True):
            assert found.dtype == np.float32
            assert found.shape == turn.log_probs.shape
            assert np.abs(found - turn.log_probs).max() < 1e-4


def test_the_base_teacher_ignores_the_adapter_and_the_live_one_has_it(parts: Parts) -> None:
    turn = parts.turn(*QUESTIONS[0])
    with moved(parts):
        parts.model.train()
        try:
            (base,) = log_probs(parts.base, (turn, ""))
            (live,) = log_probs(parts.live, (turn, ""))
            assert parts.model.training  # left as it was found
        finally:
            parts.model.eval()
    assert np.abs(base - turn.log_probs).max() < 1e-4
    assert np.abs(live - turn.log_probs).max() > 1e-2
    assert not parts.base.moves
    assert parts.live.moves


def test_the_hint_for_brevity_ends_earlier_and_frowns_on_rambling(parts: Parts) -> None:
    short = [parts.turn(q, a) for q, a in QUESTIONS]
    hinted = log_probs(parts.base, *[(t, HINT) for t in short])
    ends = [s[-1] - t.log_probs[-1] for s, t in zip(hinted, short, strict=True)]
    assert min(ends) > 0.5, ends  # the end token after one sentence
    rambling = [parts.turn(q, a + MORE) for q, a in QUESTIONS]
    scored = log_probs(parts.base, *[(t, HINT) for t in rambling])
    # The first token past the sentence, where a short reply would have ended.
    beyond = [
        s[len(t.response_ids) - 1] - r.log_probs[len(t.response_ids) - 1]
        for s, t, r in zip(scored, short, rambling, strict=True)
    ]
    assert np.mean(beyond) < 0, beyond


def test_the_hint_changes_the_prompt_only(parts: Parts) -> None:
    turn = parts.turn(*QUESTIONS[0])
    prompt = parts.base.prompt_ids(turn, HINT)
    assert prompt is not None
    text = parts.renderer.decode(list(prompt))
    assert f"{QUESTIONS[0][0]}\n\n{LABEL}\n{HINT}" in text
    assert len(prompt) > len(turn.prompt_ids)


def test_a_hint_that_does_not_fit_has_its_reason_and_the_others_are_scored(parts: Parts) -> None:
    turn = parts.turn(*QUESTIONS[0])
    renderer = Renderer(parts.tokenizer, len(turn.prompt_ids) + len(turn.response_ids) + 20, {parts.end})
    teacher = BaseTeacher(parts.model, renderer, LABEL)
    first, second = teacher.score([(turn, "Be brief. " * 40), (turn, "")])
    assert first == HINT_OVER_CONTEXT
    assert isinstance(second, Scores)
    with pytest.raises(MisalignedError, match="no longer fits"):
        teacher.positions([(turn, "Be brief. " * 40)])


def test_batching_does_not_change_a_score(parts: Parts) -> None:
    turns = [(parts.turn(q, a + MORE * (i % 2)), HINT) for i, (q, a) in enumerate(QUESTIONS)]
    alone = BaseTeacher(parts.model, parts.renderer, LABEL, micro_tokens=1)
    for one, other in zip(log_probs(alone, *turns), log_probs(parts.base, *turns), strict=True):
        assert np.abs(one - other).max() < 1e-4
    assert parts.base.score([]) == []


def test_a_refusing_template_has_a_reason(parts: Parts) -> None:
    class Refusing(Renderer):
        def encode(self, messages, tools=()):  # type: ignore[no-untyped-def]
            raise RequestError("no")

    teacher = BaseTeacher(parts.model, Refusing(parts.tokenizer, 100), LABEL)
    assert teacher.score([(parts.turn(*QUESTIONS[0]), HINT)]) == [HINT_OVER_CONTEXT]


def test_the_likeliest_ids_come_best_first_and_agree_with_the_sampled_ones(parts: Parts) -> None:
    turns = [parts.turn(q, a) for q, a in QUESTIONS]
    for turn, found in zip(turns, scores(parts.base, *[(t, HINT) for t in turns], top_k=4), strict=True):
        assert found.top_ids is not None
        assert found.top_log_probs is not None
        assert found.top_ids.shape == found.top_log_probs.shape == (len(turn.response_ids), 4)
        assert (np.diff(found.top_log_probs) <= 0).all()
        at, k = np.nonzero(found.top_ids == turn.response_ids[:, None])
        assert len(at) > len(turn.response_ids) / 2  # a plausible reply
        assert np.abs(found.top_log_probs[at, k] - found.log_probs[at]).max() < 1e-4


def test_the_distribution_is_the_one_that_was_scored(parts: Parts) -> None:
    pairs = [(parts.turn(q, a), HINT) for q, a in QUESTIONS[:2]]
    with moved(parts):
        for teacher in (parts.base, parts.live):
            positions = teacher.positions(pairs)
            rows = [row.log_probs for row in positions.scores()]
            for found, expected in zip(rows, log_probs(teacher, *pairs), strict=True):
                assert np.abs(found - expected).max() < 1e-4
            assert not positions.hidden_NH.requires_grad


def test_the_average_begins_as_the_policy_and_goes_its_share_of_the_way(parts: Parts) -> None:
    turn = parts.turn(*QUESTIONS[0])
    teacher = EMATeacher(parts.model, parts.renderer, LABEL, ema_rate=0.25)
    assert teacher.moves
    names = [n for n, _ in parts.model.named_parameters() if "lora_B" in n]
    with moved(parts):
        policy = {n: p.detach().clone() for n, p in parts.model.named_parameters() if n in names}
        (still,) = log_probs(teacher, (turn, HINT))  # not told of a step yet
        for k in (1, 2, 3):
            teacher.follow()
            share = 1 - 0.75**k
            for name in names:
                assert torch.allclose(teacher.state_dict()[name], share * policy[name], atol=1e-6)
        (after,) = log_probs(teacher, (turn, HINT))
        (live,) = log_probs(parts.live, (turn, HINT))
        assert all(torch.equal(p, policy[n]) for n, p in parts.model.named_parameters() if n in names)
    (base,) = log_probs(parts.base, (turn, HINT))
    assert np.abs(still - base).max() < 1e-4
    assert np.abs(after - base).max() > 1e-3
    assert np.abs(after - live).max() > 1e-3


def test_an_average_at_rate_1_is_the_policy(parts: Parts) -> None:
    turn = parts.turn(*QUESTIONS[0])
    teacher = EMATeacher(parts.model, parts.renderer, LABEL, ema_rate=1.0)
    with moved(parts):
        teacher.follow()
        (own,), (live,) = log_probs(teacher, (turn, HINT)), log_probs(parts.live, (turn, HINT))
    assert np.abs(own - live).max() < 1e-5


def test_a_saved_average_comes_back_and_an_absent_one_begins_anew(parts: Parts) -> None:
    turn = parts.turn(*QUESTIONS[0])
    teacher = EMATeacher(parts.model, parts.renderer, LABEL, ema_rate=0.5)
    with moved(parts):
        teacher.follow()
        saved = copy.deepcopy(teacher.state_dict())
        (before,) = log_probs(teacher, (turn, HINT))
        (live,) = log_probs(parts.live, (turn, HINT))
        anew = EMATeacher(parts.model, parts.renderer, LABEL, ema_rate=0.5)
        anew.load_state_dict(saved)
        assert np.abs(log_probs(anew, (turn, HINT))[0] - before).max() < 1e-6
        anew.follow()  # what it took up is its own
        assert all(torch.equal(saved[n], teacher.state_dict()[n]) for n in saved)
        anew.load_state_dict({})
        assert np.abs(log_probs(anew, (turn, HINT))[0] - live).max() < 1e-5
    assert parts.base.state_dict() == {}
