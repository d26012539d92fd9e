"""The server process: one per home, from loading the model to the last drained stream."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from stereorl.config import Config, ServeConfig
from stereorl.errors import ConfigError
from stereorl.policy.threads import prepare_environment
from stereorl.serve.guard import api_key
from stereorl.serve.watch import write_json

log = logging.getLogger("stereorl.serve")

DRAIN_S = 10


def run_server(config: Config) -> None:
    """Serve until SIGINT or SIGTERM. ConfigError when the address is taken or another server has this home."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    prepare_environment(config.engine.threads)
    api_key(config.serve)  # before anything slow
    run = config.home_path / "run"
    with only_server(run), bind(config.serve) as listener:
        _serve_model(config, listener, run)


def _serve_model(config: Config, listener: socket.socket, run: Path) -> None:
    """Load, serve, close; the heavy imports come after the environment is prepared."""
    from stereorl.policy.load import load
    from stereorl.policy.render import Renderer
    from stereorl.policy.torch_engine import TorchEngine
    from stereorl.serve.app import create_app
    from stereorl.store.store import Store
    from stereorl.store.versions import Versions

    store = Store.open(config.store_url)
    with contextlib.closing(store):
        loaded = load(config.model)
        renderer = Renderer(loaded.tokenizer, loaded.context_length)
        engine = TorchEngine(loaded, config.engine)
        app = create_app(
            config,
            engine=engine,
            store=store,
            versions=Versions(config.versions_path),
            renderer=renderer,
            model_name=loaded.name,
        )
        try:
            asyncio.run(serve(app, listener, run))
        finally:
            asyncio.run(engine.close())


async def serve(app: FastAPI, listener: socket.socket, run: Path) -> None:
    """Serve `app` on `listener` until told to stop; run/serve.json says where while it lasts."""
    host, port = listener.getsockname()[:2]
    told = run / "serve.json"
    facts = {"pid": os.getpid(), "host": host, "port": port, "started_at": time.time()}

    def ready() -> None:
        write_json(told, facts)
        shown = f"[{host}]" if ":" in host else host
        log.info("Serving at http://%s:%d", shown, port)

    settings = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=DRAIN_S,
        server_header=False,
        ws="none",
    )
    server = _Server(settings, ready)
    try:
        with stop_on_signals(server):
            await server.serve(sockets=[listener])
    finally:
        told.unlink(missing_ok=True)


class _Server(uvicorn.Server):
    """Tells when it listens, and leaves signals to us: uvicorn's own handling ends the process before cleaning up."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]):
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.contextmanager
def stop_on_signals(server: uvicorn.Server) -> Iterator[None]:
    """First signal: drain and end. Second SIGINT: end at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    def stop(number: int) -> None:
        server.force_exit = server.should_exit and number == signal.SIGINT
        server.should_exit = True

    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, stop, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def only_server(run: Path) -> Iterator[None]:
    """Hold the lock of this home; the system lets go of it however the process ends."""
    try:
        run.mkdir(parents=True, exist_ok=True)
        lock = (run / "serve.lock").open("a")
    except OSError as error:
        raise ConfigError(f"{run} cannot be written: {error.strerror}. Choose another `home`.") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"Another server already runs on {run.parent}; stop it, or use another --home."
            ) from None
        yield


@contextlib.contextmanager
def bind(config: ServeConfig) -> Iterator[socket.socket]:
    """A bound socket, before the model is loaded, so that a taken port is known at once."""
    host = config.host.strip("[]")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"serve.host '{config.host}' is no address of this machine: {error}.") from error
    with listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            raise ConfigError(
                f"Cannot listen at {config.host}:{config.port}: {error.strerror}. Choose another serve.port "
                "(0 picks a free one)."
            ) from error
        yield listener
