"""Which session a request belongs to, told from its messages alone (DESIGN, invariant 8).

A client sends the whole conversation each time. The longest prefix of it that ends with an assistant message and is
some turn's prompt + reply tells the turn that it continues; the messages after that prefix are the turn's next state.
Headers override: a named session is never left for another one. A named session whose history was rewritten is
forked: the fork is called NAME~xxxxxxxx, so that later requests under NAME find it again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from stereorl.data import Message, NextState
from stereorl.data.message import chain_key, chain_keys
from stereorl.data.turn import TurnKind
from stereorl.store.records import NewSession, Origin, Record, TurnRef
from stereorl.store.store import Store

FORK = "~"


@dataclass(frozen=True, slots=True)
class Marks:
    """What the headers of a request say about its session."""

    session_id: str | None = None
    kind: TurnKind = "main"
    done: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Where a turn goes. `arrival` is known, and recorded, before the reply is made; `opening` goes with the turn,
    every time: it changes nothing in a session that is there, and brings back one that was forgotten meanwhile."""

    session_id: str
    index: int
    kind: TurnKind
    opening: NewSession
    done: bool = False
    parent_turn_id: str | None = None
    arrival: tuple[Record, ...] = ()


class Sessions:
    """Finds places, and knows which sessions are busy."""

    def __init__(self, store: Store, *, regenerate: Literal["ignore", "negative"] = "ignore"):
        self._store = store
        self._regenerate = regenerate
        self._busy: dict[str, int] = {}

    def place(self, messages: Sequence[Message], marks: Marks, now: float) -> Place:
        """Blocking: reads the store, writes nothing."""
        keys = list(chain_keys(messages))
        parent, cut = self._continued(messages, keys, marks.session_id)
        twin = self._store.same_prompt(keys[-1], within=marks.session_id)
        arrival: list[Record] = []
        if parent is not None and marks.kind == "main" == parent.kind:
            arrival += self._next_state(parent, tuple(messages[cut:]), now)
        again = twin is not None and self._is_regeneration(twin, marks)
        if again:
            assert twin is not None
            arrival.append(NextState(twin.turn_id, "regenerate", (), now))
        if parent is not None:
            return self._within(parent, parent.index + 1, marks, now, arrival)
        if twin is not None and (again or marks.session_id):
            return self._within(twin, twin.index, marks, now, arrival)
        return self._begin(marks, now)

    def _continued(
        self, messages: Sequence[Message], keys: Sequence[str], name: str | None
    ) -> tuple[TurnRef | None, int]:
        """The turn that the longest matching prefix ends with, and that prefix's length."""
        for i in range(len(messages) - 1, -1, -1):
            if messages[i].role == "assistant":
                ref = self._store.continuation(keys[i], within=name)
                if ref is not None:
                    return ref, i + 1
        return None, 0

    def _next_state(self, parent: TurnRef, new: tuple[Message, ...], now: float) -> list[Record]:
        """The messages after the parent's reply, unless a retry of this request has told them already."""
        if not new or any(
            chain_key(new) == chain_key(s.messages) for s in self._store.next_states(parent.turn_id)
        ):
            return []
        return [NextState(parent.turn_id, "reply", new, now)]

    def _is_regeneration(self, twin: TurnRef, marks: Marks) -> bool:
        """The same prompt again, about a reply that nothing else was said about."""
        if self._regenerate == "ignore" or marks.kind == "side" or twin.kind == "side":
            return False
        return not self._store.next_states(twin.turn_id)

    def _within(self, ref: TurnRef, index: int, marks: Marks, now: float, arrival: Iterable[Record]) -> Place:
        """Beside or after the turn `ref`, in its session."""
        parent_id = ref.turn_id if index > ref.index else None
        opening = NewSession(ref.session_id, now, "header" if marks.session_id else "prefix")
        return Place(ref.session_id, index, marks.kind, opening, marks.done, parent_id, tuple(arrival))

    def _begin(self, marks: Marks, now: float) -> Place:
        """What no known turn leads to: a new session, a fork of a named one, or a side turn in it."""
        name, index = marks.session_id, 0
        origin: Origin = "header"
        left: str | None = None
        if name is None:
            name, origin = uuid.uuid4().hex, "new"
        elif (last := self._store.last_main_turn(name)) is not None:
            if marks.kind == "side":  # it may ask anything: its history says nothing
                index = last.index + 1
            else:
                name, left = f"{name}{FORK}{uuid.uuid4().hex[:8]}", name
        return Place(name, index, marks.kind, NewSession(name, now, origin, left), marks.done)

    # --- life of a session: called on the event loop ---------------------------------------------------------

    def enter(self, session_id: str) -> None:
        """A reply for this session is being made: it is not idle."""
        self._busy[session_id] = self._busy.get(session_id, 0) + 1

    def leave(self, session_id: str) -> None:
        left = self._busy[session_id] - 1
        if left:
            self._busy[session_id] = left
        else:
            del self._busy[session_id]

    def idle(self, before: float) -> list[str]:
        """Open sessions whose last turn is older than `before`. Blocking."""
        return self._store.idle_sessions(before)

    def busy(self, session_id: str) -> bool:
        return session_id in self._busy
