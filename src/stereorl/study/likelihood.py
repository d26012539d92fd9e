"""What a style rule cannot see, as likelihoods in nats per token, on the very token ids that were sampled.

relevance(reply) = mean_t log pi_base(a_t | prompt + the persona's instruction, a_<t): a reply that passes the rule by
nonsense is unlikely under the frozen base, even when the base is told the rule.
retention(version) = mean_t log pi_version(b_t | prompt, b_<t) over the base's own replies b to unrelated prompts: what
the model lost of what it was. Both at temperature 1; a mean over replies of each reply's mean over tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stereorl.config import Config
from stereorl.data import Turn
from stereorl.policy.adapters import attach, load_into
from stereorl.policy.load import load
from stereorl.policy.render import Renderer, with_hint
from stereorl.policy.score import score
from stereorl.study.stats import mean


class Likelihoods:
    """The base model of a configuration, loaded once; `retention` of a version ends its life as the base."""

    def __init__(self, config: Config):
        self._config = config
        self._loaded = load(config.model)
        self._renderer = Renderer(self._loaded.tokenizer, self._loaded.context_length, self._loaded.eos_ids)
        self._model: Any = self._loaded.model
        self._is_base = True

    def relevance(self, turns: Sequence[Turn], instruction: str) -> float | None:
        """Of the turns' replies, under the base that is told the instruction. None when all are empty."""
        assert self._is_base, "ask for relevance before a version is put in"
        label = self._config.signals.hint_label
        prompts = [self._renderer.encode(with_hint(turn.messages, instruction, label)) for turn in turns]
        return self._mean_log_prob(prompts, turns)

    def retention(self, turns: Sequence[Turn], adapter: Path | None = None) -> float | None:
        """Of the turns' replies to their own prompts, under the version in folder `adapter` (None: the base)."""
        if adapter is not None:
            assert self._is_base, "one version can be measured"
            learn = self._config.learn
            self._model = attach(
                self._loaded, kind=learn.adapter, r=learn.lora_r, alpha=learn.lora_alpha, seed=learn.seed
            )
            load_into(self._model, adapter)
            self._is_base = False
        return self._mean_log_prob([turn.prompt_ids.tolist() for turn in turns], turns)

    def _mean_log_prob(self, prompts: Sequence[Sequence[int]], turns: Sequence[Turn]) -> float | None:
        means = [
            float(score(self._model, prompt, turn.response_ids, temperature=1.0).log_probs.mean())
            for prompt, turn in zip(prompts, turns, strict=True)
            if len(turn.response_ids)
        ]
        return mean(means)
