"""What a style rule cannot see, as likelihoods in nats per token, on the very token ids that were sampled.

relevance(reply) = mean_t log pi_base(a_t | prompt + the persona's instruction, a_<t): a reply that passes the rule by
nonsense is unlikely under the frozen base, even when the base is told the rule.
retention(version) = mean_t log pi_version(b_t | prompt, b_<t) over the base's own replies b to unrelated prompts: what
the model lost of what it was. Both at temperature 1; a mean over replies of each reply's mean over tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stereorl.config import Config
from stereorl.data import Turn
from stereorl.policy.adapters import attach, load_into
from stereorl.policy.load import Loaded, load
from stereorl.policy.render import Renderer, with_hint
from stereorl.policy.score import score
from stereorl.store.store import Store
from stereorl.study.evaluate import Evaluation
from stereorl.study.stats import mean
from stereorl.study.user import Reply


def measure(
    config: Config,
    store: Store,
    *,
    instruction: str,
    before: Evaluation,
    after: Evaluation,
    base_replies: Sequence[Reply],
    adapter: Path | None,
) -> tuple[Evaluation, Evaluation]:
    """Both evaluations with relevance and retention filled in. `adapter` None: `after` is the base too."""
    loaded = load(config.model)
    renderer = Renderer(loaded.tokenizer, loaded.context_length, loaded.eos_ids)
    turns = {
        reply.turn_id: store.turn(reply.turn_id) for reply in (*before.replies, *after.replies, *base_replies)
    }

    def relevance(evaluation: Evaluation) -> float | None:
        hinted = [turns[reply.turn_id] for reply in evaluation.replies]
        prompts = [
            renderer.encode(with_hint(turn.messages, instruction, config.signals.hint_label))
            for turn in hinted
        ]
        return _mean_log_prob(loaded.model, prompts, hinted)

    own = [turns[reply.turn_id] for reply in base_replies]
    own_prompts = [turn.prompt_ids.tolist() for turn in own]
    first = replace(
        before, relevance=relevance(before), retention=_mean_log_prob(loaded.model, own_prompts, own)
    )
    second = replace(after, relevance=relevance(after), retention=first.retention)
    if adapter is not None:
        model = _with_version(loaded, config, adapter)
        second = replace(second, retention=_mean_log_prob(model, own_prompts, own))
    return first, second


def _with_version(loaded: Loaded, config: Config, folder: Path) -> Any:
    learn = config.learn
    model = attach(loaded, kind=learn.adapter, r=learn.lora_r, alpha=learn.lora_alpha, seed=learn.seed)
    load_into(model, folder)
    return model


def _mean_log_prob(model: Any, prompts: Sequence[Sequence[int]], turns: Sequence[Turn]) -> float | None:
    means = [
        float(score(model, prompt, turn.response_ids, temperature=1.0).log_probs.mean())
        for prompt, turn in zip(prompts, turns, strict=True)
        if len(turn.response_ids)
    ]
    return mean(means)
