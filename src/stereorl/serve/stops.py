"""Stop strings in a stream of text: nothing that may still turn out to be one is let through."""

from __future__ import annotations

from collections.abc import Sequence


class StopScanner:
    """Feed text as it comes; what is returned may be shown. Once `hit`, nothing more comes out."""

    def __init__(self, stops: Sequence[str]):
        self._stops = tuple(stops)
        self._held = ""
        self.hit = False

    def push(self, text: str) -> str:
        if self.hit:
            return ""
        self._held += text
        at = min((i for i in (self._held.find(stop) for stop in self._stops) if i >= 0), default=-1)
        if at >= 0:
            self.hit = True
            return self._release(at)
        return self._release(len(self._held) - self._open_end())

    def flush(self) -> str:
        """The end of the text: what was held back is no stop string after all."""
        return "" if self.hit else self._release(len(self._held))

    def _release(self, n: int) -> str:
        out, self._held = self._held[:n], "" if self.hit else self._held[n:]
        return out

    def _open_end(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for n in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-n:]) for stop in self._stops):
                return n
        return 0
