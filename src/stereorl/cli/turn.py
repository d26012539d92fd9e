"""`stereorl show`: one turn, its tokens coloured by what each was taught.

The advantage shown is `w_eval * reward + w_dir * clip(gap, -C, C)` by the present settings: the baseline that the
update subtracted from the reward is not part of a turn.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from stereorl.config import Config

if TYPE_CHECKING:
    from rich.console import Console

    from stereorl.store.records import TurnDetail

Token = dict[str, Any]
_SHADES = (
    (-0.75, "white on red"),
    (-0.25, "red"),
    (0.25, "default"),
    (0.75, "green"),
    (float("inf"), "white on green"),
)


def tokens(config: Config, detail: TurnDetail) -> list[Token]:
    """Per response token its text, log-prob, version and, where there is a signal, gap and advantage."""
    from stereorl.policy.load import load
    from stereorl.policy.render import Renderer

    turn = detail.turn
    loaded = load(config.model, with_model=False)
    stream = Renderer(loaded.tokenizer, loaded.context_length, loaded.eos_ids).stream()
    ids = [int(token) for token in turn.response_ids]
    texts = [stream.push(token) for token in ids]
    if texts:
        texts[-1] += stream.flush()
    taught = advantages(config, detail)
    return [
        {
            "id": token,
            "text": "<end>" if token in loaded.eos_ids else text,
            "log_prob": float(turn.log_probs[index]),
            "version": int(turn.versions[index]),
            **taught[index],
        }
        for index, (token, text) in enumerate(zip(ids, texts, strict=True))
    ]


def advantages(config: Config, detail: TurnDetail) -> list[Token]:
    """Per token `gap` and `advantage`; both None where the turn has no such signal."""
    weights, clip, turn = config.weights, config.objective.gap_clip, detail.turn
    reward = detail.verdict.reward if detail.verdict else None
    teacher = detail.teacher_scores[0].log_probs if detail.teacher_scores else None
    found: list[Token] = []
    for index in range(len(turn.response_ids)):
        gap = None if teacher is None else float(teacher[index] - turn.log_probs[index])
        bound = clip if clip is not None else float("inf")
        parts = [] if reward is None else [weights.w_eval * reward]
        parts += [] if gap is None else [weights.w_dir * min(max(gap, -bound), bound)]
        found.append({"gap": gap, "advantage": sum(parts) if parts else None})
    return found


def as_dict(detail: TurnDetail, tokens: list[Token]) -> dict[str, Any]:
    """For --json."""
    turn = detail.turn
    return {
        "turn": turn.turn_id,
        "session": turn.session_id,
        "kind": turn.kind,
        "messages": [message.as_dict() for message in turn.messages],
        "reply": turn.reply.as_dict(),
        "finish_reason": turn.finish_reason,
        "sampling": asdict(turn.sampling),
        "tokens": tokens,
        "verdict": None
        if detail.verdict is None
        else {"reward": detail.verdict.reward, "reason": detail.verdict.reason},
        "votes": [asdict(vote) for vote in detail.votes],
        "hints": [asdict(hint) for hint in detail.hints],
        "teacher": None
        if not detail.teacher_scores
        else {"name": detail.teacher_scores[0].teacher, "hint": detail.teacher_scores[0].hint},
        "unscored": detail.unscored,
        "feedback": [asdict(feedback) for feedback in detail.feedback],
        "next_states": [[message.as_dict() for message in state.messages] for state in detail.next_states],
        "version": detail.version,
        "replays": list(detail.replays),
        "dropped": detail.drop,
    }


def print_turn(config: Config, detail: TurnDetail, tokens: list[Token], *, table: bool) -> None:
    """The turn on a terminal; where there is no colour, the table carries the figures."""
    from rich.console import Console
    from rich.text import Text

    from stereorl.cli.listing import state_of

    console = Console(highlight=False)
    turn = detail.turn

    def line(name: str, value: str) -> None:
        console.print(Text.assemble((f"{name:<9}", "bold"), value), soft_wrap=True)

    line("turn", f"{turn.turn_id} (session {turn.session_id}, number {turn.index}, {turn.kind})")
    line("state", state_of(detail))
    line(
        "sampled",
        f"by version {_span(turn.versions.tolist())}, temperature {turn.sampling.temperature:g}, "
        f"ended by {turn.finish_reason}",
    )
    for message in turn.messages:
        line(message.role, message.content)
    console.print(Text("reply", "bold"))
    coloured = console.color_system is not None and not console.no_color
    _print_table(console, tokens) if table or not coloured else _print_colours(console, tokens)
    if detail.verdict is not None:
        line("reward", f"{_number(detail.verdict.reward)} ({detail.verdict.reason})")
    for vote in detail.votes:
        line(
            "vote",
            f"{vote.judge}: {'abstains' if vote.value is None else f'{vote.value:+d}'} ({vote.reason})",
        )
    for hint in detail.hints:
        line("hint", f"{'' if hint.accepted else f'refused ({hint.reason}): '}{hint.text}")
    for score in detail.teacher_scores:
        line("teacher", f"{score.teacher}, under: {score.hint}")
    if detail.unscored is not None:
        line("teacher", f"none ({detail.unscored})")
    if detail.replays:
        line("replayed", f"into version {', '.join(map(str, detail.replays))}")
    for feedback in detail.feedback:
        line(
            "feedback",
            f"score {_number(feedback.score)}{f', correction: {feedback.correction}' if feedback.correction else ''}",
        )
    for message in (message for state in detail.next_states for message in state.messages):
        line("next", f"{message.role}: {message.content}")


def _print_colours(console: Console, tokens: list[Token]) -> None:
    from rich.text import Text

    text = Text()
    for token in tokens:
        text.append(token["text"], "dim" if token["advantage"] is None else shade(token["advantage"]))
    console.print(text, soft_wrap=False)
    legend = Text("advantage: ")
    bounds = ("below -0.75", "to -0.25", "near 0", "to 0.75", "above")
    for (_, style), label in zip(_SHADES, bounds, strict=True):
        legend.append(f" {label} ", style).append(" ")
    console.print(legend.append("no signal", "dim"))


def _print_table(console: Console, tokens: list[Token]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table("token", "log-prob", "gap", "advantage", "", "version", box=None, pad_edge=False)
    for token in tokens:
        advantage = token["advantage"]
        mark = (
            "" if advantage is None else ("+" if advantage > 0 else "-") * min(8, round(4 * abs(advantage)))
        )
        figures = (_number(token[key]) for key in ("log_prob", "gap", "advantage"))
        table.add_row(Text(repr(token["text"])[1:-1]), *figures, mark, str(token["version"]))
    console.print(table)


def shade(advantage: float) -> str:
    """The style of an advantage, from red over none to green."""
    return next(style for bound, style in _SHADES if advantage <= bound)


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:+.2f}"


def _span(versions: list[int]) -> str:
    if not versions:
        return "-"
    low, high = min(versions), max(versions)
    return str(low) if low == high else f"{low} to {high}"
