"""Export to JSONL and Parquet, import from JSONL. A file that was exported and imported is the same store
again.

What leaves: sessions, turns, what followed them, and all that was learned from them. Steps and versions stay:
they are about weights, which the versions folder holds. An imported turn that was trained where it comes from
will not train again, unless asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from stereorl.errors import ConfigError, StereoError, StoreError
from stereorl.store.codec import dump
from stereorl.store.lines import SessionLine, TurnLine, parse, session_line, turn_line
from stereorl.store.records import Drop, ImportedTurn, NewSession, TurnDetail
from stereorl.store.store import Store

ROWS = 500  # turns in one Parquet row group


@dataclass(frozen=True, slots=True)
class BadLine:
    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class ImportReport:
    """`imported` turns are new; `skipped` were there already; `bad` lines were left out, by number and
    reason.
    """

    imported: int
    skipped: int
    bad: tuple[BadLine, ...] = ()


def export_jsonl(store: Store, target: IO[str] | Path | str, session_id: str | None = None) -> int:
    """Write one session or all, oldest first; returns how many turns. A file appears whole or not at all."""
    with _opened(target) as out:
        count = 0
        for session, events in store.session_records(session_id):
            out.write(dump(session_line(session, events)) + "\n")
            for turn_id in store.session_turns(session.session_id):
                out.write(dump(turn_line(store.detail(turn_id))) + "\n")
                count += 1
        return count


@contextmanager
def _opened(target: IO[str] | Path | str) -> Iterator[IO[str]]:
    if not isinstance(target, str | Path):
        yield target
        return
    with _aside(Path(target)) as path, open(path, "w", encoding="utf-8") as file:
        yield file


@contextmanager
def _aside(target: Path) -> Iterator[Path]:
    """A path to write to; renamed to `target` when all went well, removed when not. Private, as the store is."""
    path = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
        yield path
        os.replace(path, target)
    except OSError as error:
        if isinstance(error, StereoError):
            raise
        raise StoreError(f"{target} cannot be written: {error.strerror or error}.") from error
    finally:
        path.unlink(missing_ok=True)


def import_jsonl(store: Store, path: Path | str, *, retrain: bool = False) -> ImportReport:
    """Import every good line of a file; the bad ones are reported.

    Turns that are there already are left alone, so that the same file may be imported again. `retrain` lets
    turns train here that were trained where they come from. StoreError: the file or the store cannot be used
    at all.
    """
    run = _Import(store, retrain=retrain)
    try:
        with open(path, "rb") as file:
            for number, raw in enumerate(file, 1):
                if raw.strip():
                    run.take(number, raw)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}.") from error
    return run.report()


class _Import:
    """Counts, and the session lines, whose events come last: a turn would open a closed session again."""

    def __init__(self, store: Store, *, retrain: bool):
        self._store = store
        self._retrain = retrain
        self._imported = 0
        self._skipped = 0
        self._bad: list[BadLine] = []
        self._sessions: list[SessionLine] = []

    def take(self, number: int, raw: bytes) -> None:
        try:
            line = parse(raw.decode("utf-8"))
            if isinstance(line, SessionLine):
                self._store.put([line.value()])
                self._sessions.append(line)
            elif self._store.import_turn(_imported(line, retrain=self._retrain)):
                self._imported += 1
            else:
                self._skipped += 1
        except (
            ValueError
        ) as error:  # also MisalignedError and undecodable bytes; a StoreError stops the import
            self._bad.append(BadLine(number, str(error)))

    def report(self) -> ImportReport:
        for line in self._sessions:
            self._store.put(line.event_values())
        return ImportReport(self._imported, self._skipped, tuple(self._bad))


def _imported(line: TurnLine, *, retrain: bool) -> ImportedTurn:
    drop = None
    if line.drop is not None:
        drop = Drop(line.turn_id, line.drop.stage, line.drop.reason)
    elif line.trained_version is not None and not retrain:
        drop = Drop(line.turn_id, "import", "trained_elsewhere")
    return ImportedTurn(
        session=NewSession(line.session_id, line.created_at, "new"),
        turn=line.value(),
        following=tuple(line.following()),
        verdict=line.verdict_value(),
        hints=tuple(line.hint_values()),
        score=line.score_value(),
        drop=drop,
        unscored=line.unscored,
    )


def export_parquet(store: Store, path: Path | str) -> int:
    """One row per turn: texts as JSON, arrays as lists of int32 and float32. Returns how many.

    ConfigError when pyarrow is missing.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ConfigError("Parquet needs pyarrow: pip install 'stereorl[parquet]'.") from error
    schema = pa.schema([(name, _arrow(pa, kind)) for name, kind in _COLUMNS.items()])
    count = 0
    with _aside(Path(path)) as aside, pq.ParquetWriter(aside, schema) as out:
        for details in _batches(store):
            out.write_table(pa.Table.from_pylist([_parquet_row(detail) for detail in details], schema=schema))
            count += len(details)
    return count


_COLUMNS = {
    "turn_id": "string",
    "session_id": "string",
    "index": "int32",
    "kind": "string",
    "created_at": "float64",
    "model": "string",
    "messages": "string",
    "reply": "string",
    "prompt_ids": "list int32",
    "response_ids": "list int32",
    "log_probs": "list float32",
    "versions": "list int32",
    "temperature": "float64",
    "sampling": "string",
    "finish_reason": "string",
    "next_states": "string",
    "feedback": "string",
    "reward": "int8",
    "votes": "string",
    "hints": "string",
    "hint": "string",
    "teacher_log_probs": "list float32",
    "teacher_top_ids": "list list int32",
    "teacher_top_log_probs": "list list float32",
    "unscored": "string",
    "drop": "string",
    "trained_version": "int32",
}


def _arrow(pa: Any, kind: str) -> Any:
    if kind.startswith("list "):
        return pa.list_(_arrow(pa, kind.removeprefix("list ")))
    return getattr(pa, kind)()


def _batches(store: Store) -> Iterator[list[TurnDetail]]:
    batch: list[TurnDetail] = []
    for session, _ in store.session_records():
        for turn_id in store.session_turns(session.session_id):
            batch.append(store.detail(turn_id))
            if len(batch) == ROWS:
                yield batch
                batch = []
    if batch:
        yield batch


def _parquet_row(detail: TurnDetail) -> dict[str, Any]:
    """Invalid text (lone surrogates), which Parquet cannot hold, is escaped in JSON columns, replaced
    elsewhere.
    """
    line = turn_line(detail)
    score = line["teacher_score"]
    row = {
        **line,
        "temperature": detail.turn.sampling.temperature,
        "reward": detail.verdict.reward if detail.verdict else None,
        "votes": line["verdict"]["votes"] if detail.verdict else None,
        "hint": score["hint"] if score else None,
        "teacher_log_probs": score["log_probs"] if score else None,
        "teacher_top_ids": score["top_ids"] if score else None,
        "teacher_top_log_probs": score["top_log_probs"] if score else None,
        "drop": detail.drop,
    }
    return {name: _cell(row[name], kind) for name, kind in _COLUMNS.items()}


def _cell(value: Any, kind: str) -> Any:
    if kind != "string" or value is None:
        return value
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else dump(value)
