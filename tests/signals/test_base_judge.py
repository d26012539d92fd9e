"""The frozen base as judge and hint writer: on a tiny model what it does, on the embedded one how well."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from stereorl.data import Message
from stereorl.policy.adapters import attach, reference
from stereorl.policy.head import head_of
from stereorl.signals.base_hinter import BaseWriter
from stereorl.signals.base_judge import BIAS, BaseJudge, read
from stereorl.signals.examples import START, examples, shots
from stereorl.signals.primed import Primed
from tests.signals.table import Case
from tests.signals.table import load as table
from tests.signals.turns import said, turn

FEW = examples("base_verdict_examples")[:1]  # the tiny model's context is short


class Counting:
    """A lock that counts."""

    def __init__(self) -> None:
        self.lock, self.held = threading.RLock(), 0

    def __enter__(self) -> None:
        self.held += 1
        self.lock.acquire()

    def __exit__(self, *error: object) -> None:
        self.lock.release()


def disturbed(loaded: Any, kind: str = "lora") -> Any:
    """An attached model whose trained weights are far from the base."""
    model = attach(loaded, kind=kind, r=4, alpha=8)  # type: ignore[arg-type]
    with torch.no_grad():
        for param in model.parameters():
            if param.requires_grad:
                param.add_(torch.randn(param.shape, generator=torch.Generator().manual_seed(0)) * 0.1)
    return model


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_it_reads_the_base_whatever_was_trained_and_the_cache_changes_nothing(tiny: Any, kind: str) -> None:
    tiny.model.config.max_position_embeddings = 4096
    model, lock, case = disturbed(tiny, kind), Counting(), Message("user", "<<<user\nhm\nuser>>>")
    primed = Primed(model, _long(tiny), shots("base_verdict", FEW), lock)
    ids = primed.ids(case, START)
    with torch.no_grad(), reference(model):
        expected = (
            head_of(model)
            .logits(
                head_of(model).body(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0, -1:]
            )[0]
            .log_softmax(0)
        )
    for _ in range(2):
        found = primed.next_log_probs(case, START)
        assert found is not None
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert lock.held == 2
    plain = Primed(model, _long(tiny), shots("base_verdict", FEW), lock, keep=False).next_log_probs(
        case, START
    )
    assert plain is not None
    torch.testing.assert_close(plain, expected, rtol=1e-4, atol=1e-4)


def test_texts_are_written_by_the_base_the_first_one_greedily(tiny: Any) -> None:
    model, case = disturbed(tiny), Message("user", "hm")
    primed = Primed(model, _long(tiny), (Message("system", "s"),), threading.RLock())
    texts = primed.write(case, START, texts=3, tokens=6, temperature=0.6, seed=1)
    assert len(texts) == 3
    assert primed.write(case, START, texts=3, tokens=6, temperature=0.6, seed=1) == texts
    ids, greedy = primed.ids(case, START), []
    with torch.no_grad(), reference(model):
        for _ in range(6):
            logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
            ids.append(int(logits.argmax()))
            if ids[-1] in tiny.eos_ids:
                break
            greedy.append(ids[-1])
    assert texts[0] == tiny.tokenizer.decode(greedy).strip().split("\n")[0].strip()


def test_what_does_not_fit_the_context_abstains_by_name(tiny: Any) -> None:
    votes = BaseJudge(disturbed(tiny), tiny, threading.RLock(), votes=2).votes(turn(), said("hm"))
    assert [(v.value, v.reason) for v in votes] == [(None, "too long for the context")] * 2
    draft = BaseWriter(tiny.model, tiny, threading.RLock(), votes=2).write(turn(), said("hm"))
    assert (draft.votes, draft.texts) == ((None, None), ())


def test_the_lead_must_reach_the_margin() -> None:
    log_probs = {1: -1.0, -1: -1.4, 0: -3.0}
    assert read(log_probs, dict.fromkeys(BIAS, 0.0), 0.3).value == 1  # type: ignore[arg-type]
    vote = read(log_probs, dict.fromkeys(BIAS, 0.0), 0.5)  # type: ignore[arg-type]
    assert (vote.value, vote.reason) == (None, "+1 leads -1 by 0.40 nats, under 0.5")
    assert read(log_probs, {1: 0.0, -1: 1.0, 0: 0.0}, 0.3).value == -1  # type: ignore[arg-type]


def _long(loaded: Any) -> Any:
    from dataclasses import replace

    return replace(loaded, context_length=4096)


def _case_turn(case: Case) -> Any:
    return turn(case.request, case.reply)


@pytest.mark.model
def test_the_embedded_base_reads_held_out_next_states_better_than_chance(fresh_loaded: Any) -> None:
    model = attach(fresh_loaded, kind="lora", r=1)
    judge = BaseJudge(model, fresh_loaded, threading.RLock(), margin=0.1)
    cases = [case for case in table("held") if case.label != 0][::4]
    assert len(cases) >= 20
    assert {case.label for case in cases} == {1, -1}
    lead, right = {1: [], -1: []}, []  # type: ignore[var-annotated]
    for case in cases:
        (log_probs,) = judge.log_probs(_case_turn(case), case.next_state)
        assert log_probs is not None
        lead[case.label].append(log_probs[1] - log_probs[-1])
        vote = read(log_probs, BIAS, 0.1)
        right += [] if vote.value is None else [vote.value == case.label]
    auc = sum(a > b for a in lead[1] for b in lead[-1]) / (len(lead[1]) * len(lead[-1]))
    print(f"{len(cases)} held-out next states: AUC {auc:.2f}, {sum(right)} of {len(right)} votes right")
    assert auc > 0.65
    assert len(right) >= len(cases) / 2
    assert sum(right) / len(right) > 0.6


@pytest.mark.model
def test_the_embedded_base_words_a_hint_that_keeps_the_users_meaning(fresh_loaded: Any) -> None:
    from stereorl.config import SignalsConfig
    from stereorl.data import Verdict
    from stereorl.signals.contradiction import contradiction
    from stereorl.signals.hinter import ModelHinter

    writer = BaseWriter(attach(fresh_loaded, kind="lora", r=1), fresh_loaded, threading.RLock())
    words = "Too long. Please answer in one short sentence."
    found = ModelHinter(writer, SignalsConfig(hinter="base")).hints(turn(), said(words), (), Verdict(-1, "x"))
    assert [h.text for h in found if h.source == "user"] == [words]  # the fallback, whatever the model wrote
    for hint in found:
        if hint.source == "model" and hint.accepted:
            assert contradiction(hint.text, words, strict=True) is None
