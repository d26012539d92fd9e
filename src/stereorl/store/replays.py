"""Trained turns drawn again. Functions on a transaction.

A draw is a fact of its step (`replay` rows); it moves no turn, so that what is trained exactly once, and every queue,
is untouched by it.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa

from stereorl.data import Sample
from stereorl.errors import MisalignedError
from stereorl.store import reading
from stereorl.store.codec import unpack_ints
from stereorl.store.schema import replay, step_result, train_step, turn, use

WINDOW = 4096  # of the turns that were trained last
log = logging.getLogger(__name__)


def draw(connection: sa.Connection, step_id: int, n: int, oldest_version: int) -> tuple[Sample, ...]:
    """At most `n` of the last trained turns, uniformly and without repeats, noted as drawn by `step_id`. None holds
    a token of a version before `oldest_version`; what was forgotten has no rows to draw.
    """
    turn_ids: list[str] = list(connection.execute(_candidates(step_id, oldest_version)).scalars())
    random.Random(step_id).shuffle(turn_ids)
    samples: list[Sample] = []
    for sample in _readable(connection, turn_ids, oldest_version):
        samples.append(sample)
        if len(samples) == n:
            break
    rows = [
        {"turn_id": sample.turn.turn_id, "step_id": step_id, "position": k}
        for k, sample in enumerate(samples)
    ]
    if rows:
        connection.execute(sa.insert(replay), rows)
    return tuple(samples)


def _candidates(step_id: int, oldest_version: int) -> sa.Select[Any]:
    """The last trained first. A step that began at an older version can hardly hold tokens of a newer one, and need
    not be looked into.
    """
    return (
        sa.select(use.c.turn_id)
        .join(step_result, step_result.c.step_id == use.c.step_id)
        .join(train_step, train_step.c.step_id == step_result.c.step_id)
        .where(step_result.c.step_id < step_id, step_result.c.outcome == "published")
        .where(train_step.c.parent_version >= oldest_version)
        .order_by(step_result.c.step_id.desc(), use.c.position.desc())
        .limit(WINDOW)
    )


def _readable(connection: sa.Connection, turn_ids: Sequence[str], oldest_version: int) -> Iterator[Sample]:
    for turn_id in turn_ids:
        row = connection.execute(sa.select(turn).where(turn.c.turn_id == turn_id)).one_or_none()
        if row is None or unpack_ints(row.versions).min(initial=oldest_version) < oldest_version:
            continue
        try:
            yield reading.sample_of(connection, row, replayed=True)
        except (MisalignedError, ValueError) as error:
            log.warning("Turn %s cannot be trained again: %s", turn_id, error)
