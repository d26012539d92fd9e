"""What goes in comes out, to the bit; look-ups; sessions; what follows a turn."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stereorl.data import Feedback, Message, NextState, ToolCall
from stereorl.data.message import chain_key
from stereorl.errors import MisalignedError, NotFoundError, StoreError
from stereorl.store import Drop, NewSession, SessionEvent, Store, TurnRef, codec, schema
from tests.store.build import GOOD, HINT, REFUSED, fill, followed, make_ready, make_turn, same_turn, score_of

ODD = "na\0ïve \ud800 \x1ajson: 你好 🙂"


def test_turn_comes_back_to_the_bit(store: Store) -> None:
    smallest = np.array([-0.0, -np.finfo(np.float32).tiny, -1e-45, -3.4e38, 0.0, 1e-7], np.float32)
    call = ToolCall("c1", "ls", '{"path": "/"}')
    turn = make_turn(
        ODD,
        messages=(
            Message("user", ODD),
            Message("assistant", "", None, (call,)),
            Message("tool", "etc", "ls", (), "c1"),
        ),
        reply=Message("assistant", ODD),
        log_probs=smallest,
        size=6,
        response_ids=np.array([0, 1, -(2**31), 2**31 - 1, 5, 6], np.int32),
        versions=np.array([0, 0, 1, 1, 2, 3], np.int32),
        model=ODD,
        parent_turn_id="t-1",
        tools=({"type": "function", "function": {"name": "ls", "parameters": {"x": [1, 2.5, None]}}},),
    )
    store.put([NewSession("s0", 1.0, "header"), turn])
    assert same_turn(store.turn(ODD), turn)
    assert store.turn(ODD).log_probs.flags.writeable  # torch.from_numpy warns about others


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(width=32)), st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_arrays_survive(floats: list[float], ints: list[int]) -> None:
    f, i = np.array(floats, np.float32), np.array(ints, np.int32)
    assert codec.unpack_floats(codec.pack_floats(f, "f")).tobytes() == f.tobytes()
    assert codec.unpack_ints(codec.pack_ints(i, "i")).tobytes() == i.tobytes()


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(codec=None)) | st.just("\x1ajson:1"))
def test_any_text_survives(text: str) -> None:
    kind, dialect = schema.AnyText(), None
    stored = kind.process_bind_param(text, dialect)  # type: ignore[arg-type]
    assert stored is not None
    assert "\0" not in stored
    stored.encode()
    assert kind.process_result_value(stored, dialect) == text  # type: ignore[arg-type]


@pytest.mark.parametrize("values", [np.array([2**31]), np.array([0.5]), np.zeros((2, 2), np.int32), ["a"]])
def test_what_is_no_int32_is_refused(values: object) -> None:
    with pytest.raises(MisalignedError):
        codec.pack_ints(values, "ids")  # type: ignore[arg-type]


def test_long_conversation_stores_each_message_once(store: Store) -> None:
    """n turns cost 2 n nodes and parts, not n^2."""
    messages: list[Message] = []
    store.put([NewSession("s0", 1.0, "new")])
    for k in range(40):
        messages.append(Message("user", f"q{k}"))
        turn = make_turn(f"t{k}", index=k, messages=tuple(messages), reply=Message("assistant", f"a{k}"))
        store.put([turn])
        messages.append(turn.reply)
    assert store.turn("t39").messages == tuple(messages[:-1])
    assert _rows(store, "part") == _rows(store, "context") == 80


def _rows(store: Store, table: str) -> int:
    with store._engine.connect() as connection:
        return int(connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one())


def test_records_twice_are_stored_once(store: Store) -> None:
    turn = make_turn()
    records = [
        NewSession("s0", 1.0, "new"),
        turn,
        followed("t0"),
        Feedback("t0", -1, "Shorter.", 2.0),
        SessionEvent("s0", "closed", "done", 3.0),
    ]
    store.put(records)
    store.put(records)
    detail = store.detail("t0")
    assert len(detail.next_states) == len(detail.feedback) == 1
    assert _rows(store, "session_event") == 1


def test_turn_id_is_not_given_to_another_turn(store: Store) -> None:
    fill(store, ["t0"])
    with pytest.raises(StoreError, match="taken"):
        store.put([make_turn("t0", reply=Message("assistant", "Something else."))])


@pytest.mark.parametrize(
    "record",
    [
        make_turn("t9", "nowhere"),
        followed("t9"),
        Feedback("t9", 1, None, 1.0),
        Drop("t9", "captured", "x"),
        SessionEvent("nowhere", "closed", "done", 1.0),
    ],
)
def test_unknown_session_or_turn(store: Store, record: object) -> None:
    with pytest.raises(NotFoundError, match=r"t9|nowhere"):
        store.put([NewSession("s1", 1.0, "new"), record])  # type: ignore[list-item]
    assert store.sessions() == []  # all or nothing


def test_continuation_and_same_prompt_find_the_latest(store: Store) -> None:
    fill(store, ["t0"])
    first = store.turn("t0")
    again = make_turn("t1", "s1", messages=first.messages, reply=first.reply, kind="side", index=3)
    reply_key, prompt_key = chain_key([*first.messages, first.reply]), chain_key(first.messages)
    assert store.continuation(reply_key) == store.same_prompt(prompt_key) == TurnRef("t0", "s0", 0, "main")
    store.put([NewSession("s1", 2.0, "prefix", "s0"), again])
    assert store.continuation(reply_key) == store.same_prompt(prompt_key) == TurnRef("t1", "s1", 3, "side")
    assert store.continuation(prompt_key) is None


def test_last_main_turn_and_session_turns(store: Store) -> None:
    fill(store, ["a", "b"])
    store.put([make_turn("c", index=2, kind="side")])
    assert store.last_main_turn("s0") == TurnRef("b", "s0", 1, "main")
    assert store.last_main_turn("nowhere") is None
    assert store.session_turns("s0") == ["a", "b", "c"]
    with pytest.raises(NotFoundError, match="nowhere"):
        store.session_turns("nowhere")


def test_find_turn_by_prefix(store: Store) -> None:
    fill(store, ["turn_ab", "turn_ac", "turn_a", "x%_y"])
    assert store.find_turn("turn_ab") == "turn_ab"
    assert store.find_turn("turn_a") == "turn_a"  # whole, though others begin with it
    assert store.find_turn("x%") == "x%_y"
    with pytest.raises(NotFoundError, match="Several"):
        store.find_turn("turn_")
    with pytest.raises(NotFoundError, match="No turn"):
        store.find_turn("TURN")
    with pytest.raises(NotFoundError, match="no turn"):
        store.turn("turn_")


def test_sessions_close_and_open_again(store: Store) -> None:
    now = time.time()
    store.put([NewSession("old", now - 99, "new"), make_turn("t0", "old", created_at=now - 90)])
    store.put([NewSession("empty", now - 50, "new"), NewSession("fork", now, "prefix", "old")])
    assert store.idle_sessions(now - 40) == ["old", "empty"]
    store.put([SessionEvent("old", "closed", "idle", now)])
    assert store.idle_sessions(now - 40) == ["empty"]
    rows = {row.id: row for row in store.sessions()}
    assert (rows["old"].state, rows["old"].reason, rows["old"].turns) == ("closed", "idle", 1)
    assert (rows["fork"].state, rows["fork"].forked_from) == ("open", "old")
    store.put([make_turn("t1", "old", index=1, created_at=now + 1)])  # no event needed
    assert {row.id: row.state for row in store.sessions()}["old"] == "open"
    assert [row.id for row in store.sessions(limit=1)] == ["old"]
    assert len(store.sessions(limit=5, offset=1)) == 2


def test_turn_and_end_of_session_in_one_go(store: Store) -> None:
    store.put([NewSession("s0", 1.0, "header"), make_turn(), SessionEvent("s0", "closed", "done", 2.0)])
    assert store.sessions()[0].state == "closed"
    assert store.orphan_queue() == ["t0"]


def test_judge_prefers_the_reply_to_a_regeneration(store: Store) -> None:
    fill(store, [])
    store.put([make_turn(), NextState("t0", "regenerate", (), 1.0), Feedback("t0", None, "Shorter.", 2.0)])
    (item,) = store.judge_queue()
    assert item.next_state is not None
    assert (item.next_state.kind, item.next_state.messages) == ("regenerate", ())
    store.put([followed("t0", "No.")])
    (item,) = store.judge_queue()
    assert item.next_state == followed("t0", "No.")
    assert item.feedback == (Feedback("t0", None, "Shorter.", 2.0),)


def test_feedback_alone_is_enough_to_judge(store: Store) -> None:
    store.put([NewSession("s0", 1.0, "new"), make_turn(), Feedback("t0", 1, None, 2.0)])
    assert [(item.turn.turn_id, item.next_state) for item in store.judge_queue()] == [("t0", None)]


def test_detail_tells_everything(store: Store) -> None:
    fill(store, ["t0"])
    store.record_judgement("t0", GOOD, [REFUSED, HINT])
    score = score_of(store.turn("t0"))
    store.record_teacher_score(score)
    claim = store.claim(1, parent_version=0)
    assert claim is not None
    before = store.detail("t0")
    assert (before.use, before.version, before.stage) == (claim.step_id, None, "used")
    store.finish_step(claim.step_id, "published", version=7, metrics={})
    detail = store.detail("t0")
    assert (detail.verdict, detail.votes, detail.hints) == (GOOD, GOOD.votes, (REFUSED, HINT))
    assert detail.teacher_scores[0].log_probs.tobytes() == score.log_probs.tobytes()
    assert (detail.use, detail.version, detail.drop, detail.stage) == (claim.step_id, 7, None, None)
    assert store.versions_of_turns(["t0", "t9"]) == {"t0": 7}


def test_score_over_time_in_the_order_of_turns(store: Store) -> None:
    make_ready(store, [f"t{k}" for k in range(5)])
    assert [(mean, n) for _, mean, n in store.score_over_time(bucket=2)] == [(1, 2), (1, 2), (1, 1)]
