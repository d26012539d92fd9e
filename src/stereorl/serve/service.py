"""The parts that the routes share, passed in rather than looked up."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from stereorl.config import Config
from stereorl.policy.engine import Engine
from stereorl.policy.render import Renderer
from stereorl.serve.journal import Journal
from stereorl.serve.metrics import Metrics
from stereorl.serve.sessions import Sessions
from stereorl.store.store import Store
from stereorl.store.versions import Versions


@dataclass
class Service:
    """One server. `journal` is there between start and shutdown."""

    config: Config
    engine: Engine
    store: Store
    versions: Versions
    renderer: Renderer
    model_name: str
    metrics: Metrics
    sessions: Sessions
    started_at: int = field(default_factory=lambda: int(time.time()))
    in_flight: int = 0
    last_request_at: float = 0.0
    opened: Journal | None = None

    @property
    def journal(self) -> Journal:
        assert self.opened is not None, "the app's lifespan has not begun"
        return self.opened
