"""The supervisor with small stand-ins for the two processes."""

from __future__ import annotations

import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from stereorl.cli.options import parse_setting
from stereorl.config import load_config
from stereorl.errors import ProcessError
from stereorl.study.supervise import (
    Patience,
    Supervisor,
    child_arguments,
    log_tail,
    process_alive,
    read_address,
)

SERVE = """
    import http.server, json, os, pathlib, sys, signal, threading
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200); self.end_headers()
        def log_message(self, *a): pass
    port = int(sys.argv[-1].split("=")[-1]) if sys.argv[-1].startswith("serve.port") else 0
    http.server.HTTPServer.allow_reuse_address = True
    server = http.server.HTTPServer(("127.0.0.1", port), Handler)
    run = pathlib.Path(sys.argv[1]) / "run"
    run.mkdir(parents=True, exist_ok=True)
    facts = {"pid": os.getpid(), "host": "127.0.0.1", "port": server.server_address[1]}
    aside = run / ".serve.json"
    aside.write_text(json.dumps(facts)); aside.replace(run / "serve.json")
    print("passive:", os.environ["OMP_WAIT_POLICY"], flush=True)
    signal.signal(signal.SIGTERM, lambda *a: (print("ends well", flush=True), os._exit(0)))
    server.serve_forever()
"""
IDLE = "import time; time.sleep(600)"
DIE = "import sys; print('no such model'); sys.exit(3)"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"


def python(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]


@pytest.fixture
def supervise(tmp_path: Path):
    made: list[Supervisor] = []
    said: list[str] = []

    def make(serve: str = SERVE, learn: str = IDLE, **patience: float) -> Supervisor:
        commands = {"serve": python(serve, tmp_path), "learn": python(learn)}
        quick = Patience(**{"start_s": 20, "stop_s": 5, "first_backoff_s": 0.05, **patience})  # type: ignore[arg-type]
        made.append(Supervisor(tmp_path, [], report=said.append, patience=quick, commands=commands))
        return made[-1]

    make.said = said  # type: ignore[attr-defined]
    yield make
    for supervisor in made:
        supervisor.stop()


def wait_for(what, timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_it_starts_both_waits_for_health_and_ends_both(supervise, tmp_path: Path) -> None:
    supervisor = supervise()
    url = supervisor.start()
    assert url == read_address(tmp_path).url
    assert supervisor.alive("serve")
    assert supervisor.alive("learn")
    supervisor.stop()
    assert read_address(tmp_path) is None
    assert "ends well" in log_tail(tmp_path / "logs" / "serve.log")
    assert "passive: PASSIVE" in log_tail(tmp_path / "logs" / "serve.log")


def test_a_server_that_cannot_start_shows_its_last_words(supervise) -> None:
    with pytest.raises(ProcessError, match=r"ended with status 3 while starting(?s:.*)no such model"):
        supervise(serve=DIE).start()


def test_a_wait_in_vain_says_for_what(supervise) -> None:
    with pytest.raises(ProcessError, match=r"Waited 0\.3 s for the server's /healthz"):
        supervise(serve=IDLE, start_s=0.3).start()


def test_a_stop_during_the_start_is_heeded(supervise) -> None:
    stop = threading.Event()
    stop.set()
    assert supervise(serve=IDLE).start(stop) == ""


def test_a_crashed_server_comes_back_at_the_same_address(supervise, tmp_path: Path) -> None:
    supervisor = supervise()
    url = supervisor.start()
    first = supervisor.children["serve"].process
    first.kill()
    first.wait()
    wait_for(
        lambda: supervisor.tick() or (read_address(tmp_path) and read_address(tmp_path).pid != first.pid)
    )
    assert read_address(tmp_path).url == url
    assert any("was ended by SIGKILL; restart 1 of 5" in line for line in supervise.said)


def test_a_learner_that_keeps_dying_ends_the_run_by_name(supervise) -> None:
    supervisor = supervise(learn=DIE, restarts=2)
    supervisor.start()
    with pytest.raises(
        ProcessError, match=r"learn ended with status 3 and has done so 3 times(?s:.*)no such model"
    ):
        wait_for(lambda: supervisor.tick())
    assert sum("restart" in line for line in supervise.said) == 2


def test_crashes_long_ago_are_forgotten(supervise) -> None:
    supervisor = supervise(stable_s=0.1)
    supervisor.start()
    supervisor.children["learn"].crashes = 4
    wait_for(lambda: supervisor.tick() or supervisor.children["learn"].crashes == 0)


def test_a_process_that_does_not_end_is_killed_and_said_so(supervise, tmp_path: Path) -> None:
    supervisor = supervise(learn=DEAF, stop_s=0.3)
    supervisor.start()
    wait_for(lambda: "deaf" in log_tail(tmp_path / "logs" / "learn.log"))
    pid = supervisor.children["learn"].process.pid
    supervisor.stop()
    assert not process_alive(pid)
    assert "learn did not end within 0.3 s; killed." in supervise.said


def test_a_second_supervisor_of_one_home_is_refused(supervise) -> None:
    url = supervise().start()
    with pytest.raises(ProcessError, match=f"already runs at {url}"):
        supervise().start()


def test_a_child_ends_itself_when_its_supervisor_is_gone(tmp_path: Path) -> None:
    child = tmp_path / "child.py"
    child.write_text(
        "import os, time\nfrom pathlib import Path\nfrom stereorl.study.supervise import follow_supervisor\n"
        f"follow_supervisor(0.05)\nPath({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\ntime.sleep(600)\n"
    )
    parent = (
        "import os, sys, time\nfrom pathlib import Path\nfrom stereorl.study.supervise import Supervisor\n"
        f"s = Supervisor(Path({str(tmp_path)!r}), [], commands={{'learn': [sys.executable, {str(child)!r}]}})\n"
        "(s.home / 'logs').mkdir()\ns._spawn(s.children['learn'])\n"
        f"while not Path({str(tmp_path / 'pid')!r}).exists(): time.sleep(0.02)\nos.kill(os.getpid(), 9)\n"
    )
    import subprocess

    subprocess.run([sys.executable, "-c", parent], check=False, timeout=60)
    pid = int((tmp_path / "pid").read_text())
    wait_for(lambda: not process_alive(pid) or Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z")


def test_children_get_exactly_the_parents_configuration(tmp_path: Path) -> None:
    given = {
        "home": str(tmp_path),
        "learn.betas": [0.8, 0.9],
        "model.name": "a b",
        "serve.port": 0,
        "preset": "code",
    }
    config = load_config(None, given).config
    home, arguments = child_arguments(config)[1], child_arguments(config)[2:]
    assert set(arguments[::2]) == {"--set"}
    parsed = dict(parse_setting(text) for text in arguments[1::2])
    assert load_config(None, {"home": home, **parsed}).config == config
