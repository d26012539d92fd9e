"""The scripted user over real HTTP, against a server without a model."""

from __future__ import annotations

import pytest

from stereorl.study.demo import served_version
from stereorl.study.evaluate import first_replies
from stereorl.study.personas import PERSONAS
from stereorl.study.user import Asking, ScriptedUser, connect, hold_sessions
from tests.study.fake_server import fake_server

BRIEF = PERSONAS["brief"]
LONG = "word " * 40


def test_it_thanks_at_once_when_its_preference_is_kept() -> None:
    with fake_server(lambda messages: ("Boil it.", "stop")) as (url, asked):
        result = ScriptedUser(connect(url), BRIEF).hold(0, "How?")
    assert [reply.kept for reply in result.replies] == [True]
    assert result.score == 1
    first, closing = asked.requests
    assert first["body"]["messages"] == [{"role": "user", "content": "How?"}]
    assert closing["body"]["messages"][1] == {"role": "assistant", "content": "Boil it."}
    assert closing["body"]["messages"][2]["content"] in BRIEF.thanks
    assert closing["body"]["max_tokens"] == 1


def test_it_complains_until_its_preference_is_kept_and_reads_the_real_reply() -> None:
    def answer(messages: list[dict[str, str]]) -> tuple[str, str]:
        return (LONG, "length") if len(messages) < 3 else ("Boil it.", "stop")

    with fake_server(answer) as (url, asked):
        result = ScriptedUser(connect(url), BRIEF, turns=3).hold(0, "How?")
    assert [reply.kept for reply in result.replies] == [False, True]
    assert [reply.turn_id for reply in result.replies] == ["turn1", "turn2"]
    last = asked.bodies()[-1]["messages"]
    assert last[2]["content"] in BRIEF.complaints
    assert last[4]["content"] in BRIEF.thanks


def test_it_gives_up_with_a_last_complaint_and_closes_the_session() -> None:
    with fake_server(lambda messages: (LONG, "length")) as (url, asked):
        result = ScriptedUser(connect(url), BRIEF, turns=2).hold(0, "How?")
    assert result.score == -1
    assert len(asked.requests) == 3
    assert asked.bodies()[-1]["messages"][-1]["content"] in BRIEF.complaints
    done = [request["headers"].get("x-session-done") for request in asked.requests]
    assert done == [None, None, "true"]
    assert all("x-session-id" not in request["headers"] for request in asked.requests)


def test_the_same_seed_says_the_same() -> None:
    def words(seed: int) -> list[str]:
        with fake_server(lambda messages: (LONG, "length")) as (url, asked):
            ScriptedUser(connect(url), BRIEF, seed=seed).hold(5, "How?")
        return [body["messages"][-1]["content"] for body in asked.bodies()]

    assert words(1) == words(1)
    assert any(words(1) != words(seed) for seed in range(2, 6))


def test_sessions_come_back_in_order_and_an_error_ends_the_run() -> None:
    seen: list[int] = []
    with fake_server(lambda messages: ("Boil it.", "stop")) as (url, _):
        user = ScriptedUser(connect(url), BRIEF)
        results = hold_sessions(
            user, ["a", "b", "c"], concurrent=2, done=lambda result: seen.append(result.number)
        )
        assert [result.replies[0].prompt for result in results] == ["a", "b", "c"]
        assert sorted(seen) == [0, 1, 2]

        def refuse() -> None:
            raise TimeoutError("the learner")

        with pytest.raises(TimeoutError, match="the learner"):
            hold_sessions(user, ["a"] * 5, concurrent=1, may_start=refuse)


def test_held_out_prompts_are_side_turns_with_the_same_seeds_each_time() -> None:
    with fake_server(lambda messages: ("Boil it.", "stop")) as (url, asked):
        client = connect(url)
        for _ in range(2):
            replies = first_replies(client, BRIEF, ["a", "b"], Asking(8, 0.5), seed=3)
        assert served_version(client) == 3
    assert [reply.prompt for reply in replies] == ["a", "b"]
    assert {request["headers"]["x-turn-type"] for request in asked.requests} == {"side"}
    seeds = sorted((body["messages"][0]["content"], body["seed"]) for body in asked.bodies())
    assert seeds[0] == seeds[1]
    assert seeds[0][1] != seeds[2][1]
    assert {(body["max_tokens"], body["temperature"]) for body in asked.bodies()} == {(8, 0.5)}
