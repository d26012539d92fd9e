"""Sessions are recognised from the messages alone; headers override. One row of DESIGN's invariant 8 per test."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.serve.setting import Setup, assistant, say, user

pytestmark = pytest.mark.anyio

HELLO = "Hello there!"


async def settled(setup: Setup, response: Any) -> Any:
    """The detail of the turn that `response` carries."""
    assert response.status_code == 200, response.text
    return setup.store.detail(response.headers["x-turn-id"])


def said(detail: Any) -> list[tuple[str, list[str]]]:
    return [(state.kind, [m.content for m in state.messages]) for state in detail.next_states]


async def test_a_plain_client_for_three_turns(setup: Setup) -> None:
    talk = [user("one")]
    answers = []
    async with setup.client() as client:
        for text in ("two", "three", "end"):
            answers.append(await say(client, talk))
            talk += [assistant(HELLO), user(text)]
    details = [await settled(setup, answer) for answer in answers]
    assert len({detail.turn.session_id for detail in details}) == 1
    assert [detail.turn.index for detail in details] == [0, 1, 2]
    assert [said(detail) for detail in details] == [[("reply", ["two"])], [("reply", ["three"])], []]
    assert details[2].turn.parent_turn_id == details[1].turn.turn_id
    assert details[0].next_states[0].messages[0].role == "user"


async def test_two_anonymous_clients_with_the_same_first_message(setup: Setup) -> None:
    setup.engine.script = lambda n: [f"answer {n}", ""]
    async with setup.client() as client:
        a = await say(client, [user("hi")])
        b = await say(client, [user("hi")])
        a2 = await say(client, [user("hi"), assistant("answer 0"), user("from a")])
        b2 = await say(client, [user("hi"), assistant("answer 1"), user("from b")])
    assert a.headers["x-session-id"] != b.headers["x-session-id"]
    assert a2.headers["x-session-id"] == a.headers["x-session-id"]
    assert b2.headers["x-session-id"] == b.headers["x-session-id"]
    assert said(await settled(setup, a)) == [("reply", ["from a"])]
    assert said(await settled(setup, b)) == [("reply", ["from b"])]


@pytest.mark.parametrize(
    "echo",
    [
        assistant(f"  {HELLO}\n"),
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "Hello"}, {"type": "text", "text": " there!"}],
        },
        {"role": "assistant", "content": HELLO, "name": "bot", "refusal": None, "annotations": []},
    ],
    ids=["white space", "parts", "extra fields"],
)
async def test_echoes_that_differ_in_form_only(setup: Setup, echo: dict[str, Any]) -> None:
    async with setup.client() as client:
        first = await say(client, [user("hi")])
        second = await say(client, [user(" hi "), echo, user("more")])
    assert second.headers["x-session-id"] == first.headers["x-session-id"]
    assert said(await settled(setup, first)) == [("reply", ["more"])]


async def test_developer_is_system(setup: Setup) -> None:
    async with setup.client() as client:
        first = await say(client, [{"role": "system", "content": "s"}, user("hi")])
        second = await say(
            client, [{"role": "developer", "content": "s"}, user("hi"), assistant(HELLO), user("x")]
        )
    assert second.headers["x-session-id"] == first.headers["x-session-id"]


async def test_tool_results_are_the_next_state(setup: Setup) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "run", "arguments": "{}"}}
    async with setup.client() as client:
        first = await say(client, [user("hi")])
        talk = [
            user("hi"),
            assistant(HELLO),
            {"role": "tool", "tool_call_id": "c1", "content": "exit 1"},
            user("so?"),
        ]
        second = await say(client, talk)
        # an assistant message that was never ours (a tool call made elsewhere) is a part of the extension
        odd = [
            *talk,
            assistant(HELLO),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            user("z"),
        ]
        third = await say(client, odd)
    assert said(await settled(setup, first)) == [("reply", ["exit 1", "so?"])]
    assert said(await settled(setup, second)) == [("reply", ["", "z"])]
    assert third.headers["x-session-id"] == first.headers["x-session-id"]


async def test_rewritten_history_without_a_header_is_a_new_session(setup: Setup) -> None:
    async with setup.client() as client:
        first = await say(client, [user("hi")])
        second = await say(client, [user("hi"), assistant("I never said that"), user("more")])
    assert second.headers["x-session-id"] != first.headers["x-session-id"]
    assert said(await settled(setup, first)) == []


async def test_a_retry_tells_its_next_state_once_and_branches(setup: Setup) -> None:
    talk = [user("hi"), assistant(HELLO), user("more")]
    async with setup.client() as client:
        first = await say(client, talk[:1])
        both = await asyncio.gather(say(client, talk), say(client, talk))
        again = await say(client, talk)
    details = [await settled(setup, answer) for answer in [*both, again]]
    assert {detail.turn.parent_turn_id for detail in details} == {first.headers["x-turn-id"]}
    assert {detail.turn.index for detail in details} == {1}
    assert {detail.turn.session_id for detail in details} == {first.headers["x-session-id"]}
    assert set(map(str, said(await settled(setup, first)))) == {"('reply', ['more'])"}


async def test_two_different_reactions_to_one_turn_are_both_kept(setup: Setup) -> None:
    async with setup.client() as client:
        first = await say(client, [user("hi")])
        await say(client, [user("hi"), assistant(HELLO), user("good")])
        await say(client, [user("hi"), assistant(HELLO), user("bad")])
    assert said(await settled(setup, first)) == [("reply", ["good"]), ("reply", ["bad"])]


async def test_regenerating_means_nothing_by_default(setup: Setup) -> None:
    async with setup.client() as client:
        first = await say(client, [user("hi")])
        second = await say(client, [user("hi")])
    assert said(await settled(setup, first)) == []
    assert second.headers["x-session-id"] != first.headers["x-session-id"]


async def test_regenerating_as_dissatisfaction(setup: Setup) -> None:
    setup.overrides["serve.regenerate"] = "negative"
    async with setup.client() as client:
        first = await say(client, [user("hi")])
        second = await say(client, [user("hi")])
        third = await say(client, [user("hi")])
        side = await say(client, [user("hi")], headers={"X-Turn-Type": "side"})
    assert said(await settled(setup, first)) == [("regenerate", [])]
    assert said(await settled(setup, second)) == [("regenerate", [])]
    assert said(await settled(setup, third)) == []
    assert second.headers["x-session-id"] == first.headers["x-session-id"]
    assert {(await settled(setup, r)).turn.index for r in (first, second, third)} == {0}
    assert side.status_code == 200


async def test_a_reply_that_was_answered_is_not_regenerated(setup: Setup) -> None:
    setup.overrides["serve.regenerate"] = "negative"
    async with setup.client() as client:
        first = await say(client, [user("hi")])
        await say(client, [user("hi"), assistant(HELLO), user("thanks")])
        await say(client, [user("hi")])
    assert said(await settled(setup, first)) == [("reply", ["thanks"])]


async def test_a_named_session(setup: Setup) -> None:
    name = {"X-Session-Id": "alpha"}
    async with setup.client() as client:
        anonymous = await say(client, [user("hi")])
        first = await say(client, [user("hi")], headers=name)
        second = await say(client, [user("hi"), assistant(HELLO), user("more")], headers=name)
        other = await say(
            client, [user("hi"), assistant(HELLO), user("more")], headers={"X-Session-Id": "beta"}
        )
    assert [r.headers["x-session-id"] for r in (first, second)] == ["alpha", "alpha"]
    assert said(await settled(setup, first)) == [("reply", ["more"])]
    assert said(await settled(setup, anonymous)) == []  # a name is never left for another session
    assert other.headers["x-session-id"] == "beta"


async def test_a_name_given_by_the_first_answer_can_be_sent_back(setup: Setup) -> None:
    async with setup.client() as client:
        first = await say(client, [user("hi")])
        name = {"X-Session-Id": first.headers["x-session-id"]}
        second = await say(client, [user("hi"), assistant(HELLO), user("more")], headers=name)
    assert second.headers["x-session-id"] == first.headers["x-session-id"]
    assert (await settled(setup, second)).turn.index == 1


async def test_rewritten_history_under_a_name_forks(setup: Setup) -> None:
    name = {"X-Session-Id": "alpha"}
    rewritten = [user("hi"), assistant("shorter"), user("more")]
    async with setup.client() as client:
        first = await say(client, [user("hi")], headers=name)
        fork = await say(client, rewritten, headers=name)
        after = await say(client, [*rewritten, assistant(HELLO), user("again")], headers=name)
        back = await say(client, [user("hi"), assistant(HELLO), user("old way")], headers=name)
        metrics = await client.get("/metrics")
        forked = fork.headers["x-session-id"]
        echoed = [*rewritten, assistant(HELLO), user("again"), assistant(HELLO), user("more")]
        named = await say(client, echoed, headers={"X-Session-Id": forked})
    assert named.headers["x-session-id"] == forked
    assert forked.startswith("alpha~")
    assert after.headers["x-session-id"] == forked
    assert said(await settled(setup, fork)) == [("reply", ["again"])]
    assert back.headers["x-session-id"] == "alpha"
    assert said(await settled(setup, first)) == [("reply", ["old way"])]
    assert setup.store.funnel().forks == 1
    assert {row.id: row.forked_from for row in setup.store.sessions()}[forked] == "alpha"
    assert "stereorl_rewritten_histories_total 1.0" in metrics.text


async def test_side_turns_react_to_nothing_and_never_train(setup: Setup) -> None:
    side = {"X-Turn-Type": "side"}
    async with setup.client() as client:
        first = await say(client, [user("hi")])
        summary = await say(client, [user("hi"), assistant(HELLO), user("Summarise this.")], headers=side)
        named = await say(client, [user("beat")], headers={**side, "X-Session-Id": "alpha"})
        main = await say(client, [user("hi")], headers={"X-Session-Id": "alpha"})
        beside = await say(client, [user("anything else")], headers={**side, "X-Session-Id": "alpha"})
    assert said(await settled(setup, first)) == []
    assert (await settled(setup, summary)).turn.kind == "side"
    assert summary.headers["x-session-id"] == first.headers["x-session-id"]
    assert [r.headers["x-session-id"] for r in (named, main, beside)] == ["alpha"] * 3
    funnel = setup.store.funnel()
    assert (funnel.captured, funnel.side, funnel.forks) == (2, 3, 0)


async def test_done_closes_and_a_later_turn_opens_again(setup: Setup) -> None:
    async with setup.client() as client:
        first = await say(client, [user("hi")], headers={"X-Session-Done": "true"})
        (row,) = setup.store.sessions()
        assert (row.state, row.reason) == ("closed", "done")
        assert setup.store.orphan_queue() == [first.headers["x-turn-id"]]
        second = await say(client, [user("hi"), assistant(HELLO), user("wait")])
    (row,) = setup.store.sessions()
    assert row.state == "open"
    assert second.headers["x-session-id"] == first.headers["x-session-id"]
    assert said(await settled(setup, first)) == [("reply", ["wait"])]


async def test_idle_sessions_close_but_busy_ones_do_not(setup: Setup) -> None:
    setup.overrides["serve.idle_timeout_s"] = 0.4
    async with setup.client() as client:
        first = await say(client, [user("hi")], headers={"X-Session-Id": "idle"})
        busy = await say(client, [user("hi")], headers={"X-Session-Id": "busy"})
        setup.engine.hold = asyncio.Event()
        talk = [user("hi"), assistant(HELLO), user("more")]
        waiting = asyncio.create_task(say(client, talk, headers={"X-Session-Id": "busy"}))
        end = time.monotonic() + 5
        while {row.id: row.state for row in setup.store.sessions()}["idle"] == "open":
            assert time.monotonic() < end, "the idle session stayed open"
            await asyncio.sleep(0.05)
        states = {row.id: (row.state, row.reason) for row in setup.store.sessions()}
        setup.engine.hold.set()
        assert (await waiting).status_code == 200
    assert states == {"idle": ("closed", "idle"), "busy": ("open", None)}
    assert first.status_code == busy.status_code == 200


async def test_a_request_that_is_too_long_still_tells_the_next_state(setup: Setup) -> None:
    async with setup.client() as client:
        first = await say(client, [user("hi")])
        setup.renderer.context_length = 8
        refused = await say(client, [user("hi"), assistant(HELLO), user("no that is far too long an answer")])
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert said(await settled(setup, first)) == [("reply", ["no that is far too long an answer"])]
    assert len(setup.turns()) == 1


async def test_a_session_that_is_forgotten_meanwhile(setup: Setup) -> None:
    setup.engine.hold = asyncio.Event()
    setup.engine.hold.set()
    async with setup.client() as client:
        first = await say(client, [user("hi")])
        setup.engine.hold.clear()
        talk = [user("hi"), assistant(HELLO), user("more")]
        waiting = asyncio.create_task(say(client, talk))
        while len(setup.engine.requests) < 2:
            await asyncio.sleep(0.01)
        setup.store.forget(first.headers["x-session-id"])
        setup.engine.hold.set()
        second = await waiting
    assert second.status_code == 200
    assert [turn.turn_id for turn in setup.turns()] == [second.headers["x-turn-id"]]
