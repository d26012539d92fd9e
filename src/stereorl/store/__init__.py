"""Durable memory: what was said, what was learned from it, and the weights that came of it."""

from stereorl.store.records import (
    Claim,
    Drop,
    Forgotten,
    Funnel,
    JudgeItem,
    NewSession,
    OpenStep,
    Ready,
    Record,
    SessionEvent,
    SessionRow,
    StepRow,
    TurnDetail,
    TurnRef,
)
from stereorl.store.store import Store
from stereorl.store.versions import Manifest, Versions
from stereorl.store.writer import Writer

__all__ = [
    "Claim",
    "Drop",
    "Forgotten",
    "Funnel",
    "JudgeItem",
    "Manifest",
    "NewSession",
    "OpenStep",
    "Ready",
    "Record",
    "SessionEvent",
    "SessionRow",
    "StepRow",
    "Store",
    "TurnDetail",
    "TurnRef",
    "Versions",
    "Writer",
]
