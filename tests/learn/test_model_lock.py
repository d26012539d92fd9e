"""The base judge and a learning step never use the weights at the same time."""

from __future__ import annotations

import threading

from stereorl.config import Config
from stereorl.learn.parts import assemble
from stereorl.signals.base_judge import BaseJudge
from stereorl.signals.hinter import ModelHinter, QuoteHinter
from stereorl.signals.judge import CompositeJudge, RulesJudge
from stereorl.signals.make import make_judge


def test_the_learner_holds_the_lock_through_its_round(home, monkeypatch):
    home.talk("good", "bad", "good", "bad")
    learner = home.learner()
    learner.parts.collector.collect()
    free = []

    def step(samples, *, version, real=learner.parts.trainer.step):
        other = threading.Thread(target=lambda: free.append(learner.parts.model_lock.acquire(blocking=False)))
        other.start()
        other.join()
        return real(samples, version=version)

    monkeypatch.setattr(learner.parts.trainer, "step", step)
    assert learner.learn_once()
    assert free == [False]
    assert learner.parts.model_lock.acquire(blocking=False)  # and lets go of it
    learner.parts.model_lock.release()


def test_judge_and_hinter_are_made_as_the_configuration_says(home, tiny, monkeypatch):
    url = {"url": "http://127.0.0.1:9/v1"}
    signals = {"judge": "rules, base, endpoint", "hinter": "base", "judge_endpoint": url}
    config = Config.model_validate({"home": home.path, "signals": signals, "gate": {"retention_prompts": 0}})
    parts = assemble(config, store=home.store, versions=home.versions, loaded=tiny)
    judge, hinter = parts.collector._judge, parts.collector._hinter
    assert isinstance(judge, CompositeJudge)
    assert [type(j).__name__ for j in judge._judges] == ["RulesJudge", "BaseJudge", "EndpointJudge"]
    assert isinstance(judge._judges[1], BaseJudge)
    assert all(primed._lock is parts.model_lock for primed in judge._judges[1]._primed)
    assert isinstance(hinter, ModelHinter)
    plain = Config.model_validate({"home": home.path}).signals
    assert isinstance(make_judge(plain, model=None, loaded=tiny, lock=parts.model_lock), RulesJudge)
    assert isinstance(home.learner().parts.collector._hinter, QuoteHinter)
