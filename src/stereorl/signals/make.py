"""Judge and hinter as the configuration asks for them. Only those that it names are made."""

from __future__ import annotations

from typing import Any

from stereorl.config import SignalsConfig
from stereorl.policy.load import Loaded
from stereorl.signals.chat import HttpChat
from stereorl.signals.endpoint import EndpointJudge, EndpointWriter
from stereorl.signals.hinter import Hinter, ModelHinter, QuoteHinter, Writer
from stereorl.signals.judge import CompositeJudge, Judge, RulesJudge
from stereorl.signals.primed import Lock


def make_judge(config: SignalsConfig, *, model: Any, loaded: Loaded, lock: Lock) -> Judge:
    """The chain `config.judge`. `model` is the attached policy, whose weights `lock` guards."""

    def one(name: str) -> Judge:
        if name == "rules":
            return RulesJudge()
        if name == "endpoint":
            return EndpointJudge(HttpChat(config.judge_endpoint), votes=config.judge_votes)
        from stereorl.signals.base_judge import BaseJudge

        return BaseJudge(model, loaded, lock, votes=config.judge_votes, margin=config.judge_margin)

    judges = [one(name) for name in dict.fromkeys(config.judge)]
    return judges[0] if len(judges) == 1 else CompositeJudge(judges)


def make_hinter(config: SignalsConfig, *, model: Any, loaded: Loaded, lock: Lock) -> Hinter:
    """The quote, or a model that words it with the quote behind it."""
    if config.hinter == "quote":
        return QuoteHinter(config)
    writer: Writer
    if config.hinter == "endpoint":
        votes = max(config.judge_votes, config.hint_candidates)
        writer = EndpointWriter(HttpChat(config.judge_endpoint), votes=votes)
    else:
        from stereorl.signals.base_hinter import BaseWriter

        writer = BaseWriter(model, loaded, lock, votes=config.judge_votes, texts=config.hint_candidates)
    return ModelHinter(writer, config)
