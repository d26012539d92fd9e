"""Votes from the next state by rules: one per kind of evidence, abstentions included.

Three witnesses, each with its own source, so that none can speak for another: `user_words` hears user messages only,
`environment` hears tool messages and the command output inside user messages, `regenerate` knows how the next state
came. The tables that they read by are in `cues_en`, `cues_zh` (words) and `cues_tools` (tools).
"""

from __future__ import annotations

from collections.abc import Sequence

from stereorl.data import Message, NextState, Vote
from stereorl.signals.environment import read_environment
from stereorl.signals.user_words import read

USER_WORDS = "user_words"
ENVIRONMENT = "environment"
REGENERATE = "regenerate"


def rule_votes(turn_request: Sequence[Message], reply: Message, next_state: NextState) -> tuple[Vote, ...]:
    """The votes on `reply` (to the conversation `turn_request`) given what came after it."""
    if next_state.kind == "regenerate":  # the messages, if any, are the old request again
        return (
            Vote(USER_WORDS, None, "no new words of the user's"),
            Vote(ENVIRONMENT, None, "no environment output"),
            Vote(REGENERATE, -1, "the reply was asked for again"),
        )
    words = read(next_state.messages, turn_request, reply)
    outcome = read_environment(reply, next_state)
    return (
        Vote(USER_WORDS, words.value, words.reason),
        Vote(ENVIRONMENT, outcome.value, outcome.reason),
        Vote(REGENERATE, None, "not a regeneration"),
    )
