"""Tables of sessions, turns and versions: rows of plain values, and how they are printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stereorl.cli.forget import full_id
from stereorl.cli.open import current_of
from stereorl.cli.write import when

if TYPE_CHECKING:
    from stereorl.store.store import Store
    from stereorl.store.versions import Versions

Row = dict[str, Any]
_ID = 8  # characters of an id that a table shows
_TEXTS = ("hint", "reply", "state")  # columns that may take several lines
_UNSHOWN = ("metrics", "step", "parent", "forked_from", "tokens")  # in the JSON only


def sessions(store: Store, limit: int) -> list[Row]:
    return [
        {
            "session": row.id,
            "last": when(row.last_at),
            "turns": row.turns,
            "reward": None if row.reward is None else round(row.reward, 2),
            "state": row.state if row.reason is None else f"{row.state} ({row.reason})",
            "forked_from": row.forked_from,
        }
        for row in store.sessions(limit=limit)
    ]


def turns(store: Store, session: str) -> list[Row]:
    rows = []
    for detail in map(store.detail, store.session_turns(full_id(store, session))):
        turn, verdict = detail.turn, detail.verdict
        rows.append(
            {
                "turn": turn.turn_id,
                "kind": turn.kind,
                "tokens": len(turn.response_ids),
                "finish": turn.finish_reason,
                "reward": verdict.reward if verdict else None,
                "hint": next((hint.text for hint in detail.hints if hint.accepted), None),
                "state": state_of(detail),
                "reply": turn.reply.content,
            }
        )
    return rows


def state_of(detail: Any) -> str:
    """Where a turn is in the funnel, in a few words."""
    if detail.drop is not None:
        return f"dropped: {detail.drop}"
    if detail.version is not None:
        return f"trained into version {detail.version}"
    if detail.use is not None:
        return f"in update {detail.use}"
    if detail.turn.kind == "side":
        return "side turn, never trains"
    waits = {
        "captured": "waits for a next state",
        "judge": "waits for the judge",
        "score": "waits for the teacher",
    }
    return waits.get(detail.stage or "", "waits for an update")


def versions(versions: Versions) -> list[Row]:
    """`lost`: how many nats per token the base's own replies to unrelated prompts lost."""
    current = current_of(versions)
    rows: list[Row] = [{"version": 0, "serves": current == 0, "status": "base", "made": None, "parent": None}]
    for manifest in versions.list():
        rows.append(
            {
                "version": manifest.version,
                "serves": manifest.version == current,
                "status": manifest.status,
                "made": when(manifest.created_at),
                "parent": manifest.parent,
                "step": manifest.step_id,
                "reward": manifest.metrics.get("reward_mean"),
                "kl": manifest.metrics.get("gate_kl"),
                "lost": manifest.metrics.get("retention_drop"),
                "metrics": manifest.metrics,
            }
        )
    return rows


def print_rows(rows: list[Row]) -> None:
    """A table of the rows' plain columns; ids by their beginning, which is enough to name them, texts on one line."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not rows:
        console.print("None yet.")
        return
    columns = [name for name in dict.fromkeys(key for row in rows for key in row) if name not in _UNSHOWN]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name.replace("_", " "), no_wrap=name not in _TEXTS)
    for row in rows:
        table.add_row(*(Text(_cell(name, row.get(name))) for name in columns))
    console.print(table)


def _cell(name: str, value: Any) -> str:
    if value is None or value is False:
        return "-"
    if value is True:
        return "yes"
    if isinstance(value, float):
        return f"{value:+.2f}"
    text = " ".join(str(value).split())
    return text[:_ID] if name in ("session", "turn") else text
