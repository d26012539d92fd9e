"""What `forget` says, and how sessions are named by the beginning of their id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stereorl.errors import NotFoundError

if TYPE_CHECKING:
    from stereorl.store.records import Forgotten
    from stereorl.store.store import Store


def full_id(store: Store, prefix: str) -> str:
    """The one session whose id is `prefix` or begins with it; NotFoundError otherwise."""
    found = [row.id for row in store.sessions(limit=1_000_000) if row.id.startswith(prefix)]
    if prefix in found:
        return prefix
    if len(found) != 1:
        count = f"{len(found)} sessions begin" if found else "No session begins"
        raise NotFoundError(f"{count} with '{prefix}'; 'stereorl sessions' lists them.")
    return found[0]


def describe(gone: Forgotten) -> str:
    """What was removed, and what still carries traces of it."""
    lines = [f"{gone.turns} turns of session {gone.session_id} deleted."]
    if not gone.purged:
        lines.append(
            "Their bytes may linger in the database file until the server and the learner have stopped."
        )
    if gone.versions:
        numbers = ", ".join(map(str, gone.versions))
        lines.append(
            f"Versions {numbers} learned from it, and each later one builds on them. To be rid of that too: "
            f"stereorl rollback {min(gone.versions) - 1}"
        )
    if gone.open_steps:
        lines.append(
            "An update that is under way holds turns of it and may still publish; look again afterwards."
        )
    if gone.forks:
        lines.append(f"Sessions that branched off it keep the messages they share: {', '.join(gone.forks)}")
    return "\n".join(lines)
