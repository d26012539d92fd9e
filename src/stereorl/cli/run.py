"""Commands that run something: up, serve, learn, demo, prepare."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import Annotated

import typer

from stereorl.cli.options import ConfigFile, Home, Json, Model, Set, effective, overrides


def up(home: Home = None, config: ConfigFile = None, set_: Set = None, model: Model = None) -> None:
    """Serve and learn: an OpenAI-compatible server that improves while it is used.

    Example: `stereorl up`, then point any OpenAI client at http://127.0.0.1:8018/v1. Ctrl-C ends both processes.
    """
    from stereorl.study.supervise import Supervisor, child_arguments

    settings = effective(home, config, set_, model).config
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    supervisor = Supervisor(settings.home_path, child_arguments(settings), report=typer.echo)
    typer.echo(f"Starting server and learner (logs in {settings.home_path / 'logs'}) ...")
    try:
        url = supervisor.start(stop)
        if url:
            typer.echo(_welcome(url))
            supervisor.run(stop)
    finally:
        typer.echo("Stopping ...")
        supervisor.stop()


def serve(home: Home = None, config: ConfigFile = None, set_: Set = None, model: Model = None) -> None:
    """The API alone; nothing is learned until a learner runs on the same home.

    Example: `stereorl serve --set serve.port=9000`
    """
    settings = effective(home, config, set_, model).config
    from stereorl.study.supervise import follow_supervisor

    follow_supervisor()
    from stereorl.serve.run import run_server

    run_server(settings)


def learn(home: Home = None, config: ConfigFile = None, set_: Set = None, model: Model = None) -> None:
    """The learner alone: judges, hints, trains and publishes what a server of the same home captures.

    Example: `stereorl learn --set learn.idle_only_s=60` trains only while nobody talks to the server.
    """
    settings = effective(home, config, set_, model).config
    from stereorl.study.supervise import follow_supervisor

    follow_supervisor()
    from stereorl.learn.loop import run_learner

    run_learner(settings)


def demo(
    home: Home = None,
    config: ConfigFile = None,
    set_: Set = None,
    model: Model = None,
    seed: Annotated[int, typer.Option(help="Seeds the scripted user, the sampling and the learner.")] = 0,
    sessions: Annotated[int | None, typer.Option(help="How many sessions the scripted user holds.")] = None,
    persona: Annotated[str, typer.Option(help="What the user prefers: brief, plain, paragraph.")] = "brief",
    quick: Annotated[
        bool, typer.Option("--quick", help="A short run, within a minute; prints JSON last.")
    ] = False,
    json_: Json = False,
) -> None:
    """The whole loop, start to finish: a scripted user corrects the model until its first answers please.

    Examples: `stereorl demo`, `stereorl demo --quick`, `stereorl demo --seed 1 --home /tmp/seed1`
    """
    from stereorl.cli.demo import settings_of, show_demo

    settings = settings_of(quick, seed=seed, sessions=sessions, persona=persona)
    folder = home or Path("demo-run") / f"{time.strftime('%Y%m%d-%H%M%S')}-seed{seed}"
    if not show_demo(config, overrides(folder, set_, model), settings, as_json=quick or json_):
        raise typer.Exit(1)


def prepare(home: Home = None, config: ConfigFile = None, set_: Set = None, model: Model = None) -> None:
    """Fetch the model and put it into the cache, so that the first start is quick.

    Example: `stereorl prepare --model HuggingFaceTB/SmolLM2-360M-Instruct`
    """
    settings = effective(home, config, set_, model).config
    from stereorl.policy.load import load

    loaded = load(settings.model, with_model=False)
    typer.echo(f"{loaded.name} is ready in {loaded.folder} (weights {loaded.digest[:12]}).")


def _welcome(url: str) -> str:
    body = '{"model": "stereorl", "messages": [{"role": "user", "content": "How do I boil an egg?"}]}'
    return (
        f"Ready: {url}/v1 (any OpenAI-compatible client; what you say next teaches it)\n\n"
        f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\\n    -d '{body}'\n\n"
        "  stereorl chat      talk to it here        stereorl status    what it learned\n"
    )
