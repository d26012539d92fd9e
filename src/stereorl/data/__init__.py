"""Frozen values that pass between the layers. They are dumb; identity and durability belong to the store."""

from stereorl.data.message import Message, ToolCall
from stereorl.data.sample import Sample
from stereorl.data.signal import Feedback, Hint, NextState, TeacherScore, Verdict, Vote
from stereorl.data.turn import Sampling, Turn

__all__ = [
    "Feedback",
    "Hint",
    "Message",
    "NextState",
    "Sample",
    "Sampling",
    "TeacherScore",
    "ToolCall",
    "Turn",
    "Verdict",
    "Vote",
]
