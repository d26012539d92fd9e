"""What a cue is. The tables in `cues_en` and `cues_zh` hold them; add a line there to teach the judge a phrase.

A clause is read cue by cue in table order, and what a cue matched is hidden from the cues after it. So idioms come
first ("not bad" must be gone before "bad" is looked for). Patterns see lower-case text and should not span commas.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

# praise, moves_on: +1. bare: -1 without saying what to change. complaint: bare, and counts in a question too.
# directive: -1, and says how the reply should have been. own_mistake: the user corrects themself, no verdict.
# neutral: matched and ignored.
Kind = Literal["praise", "moves_on", "bare", "complaint", "directive", "own_mistake", "neutral"]


@dataclass(frozen=True, slots=True)
class Cue:
    """`pattern` is a regular expression over one lower-case clause; `name` appears in the verdict's reason."""

    name: str
    kind: Kind
    pattern: str


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
