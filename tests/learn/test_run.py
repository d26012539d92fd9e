"""A learner as a process: it learns, refuses a second one, and ends when asked to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from stereorl.config import Config, ModelConfig
from stereorl.data import Message, NextState
from stereorl.policy.load import load
from stereorl.policy.render import Renderer
from stereorl.store.records import NewSession
from stereorl.store.store import Store
from stereorl.store.versions import Versions
from tests.learn.tiny import make_turn

CODE = """
import sys
from stereorl.config import Config
from stereorl.learn.loop import run_learner
run_learner(Config.model_validate_json(sys.argv[1]))
"""


@pytest.mark.e2e
def test_a_learner_process(tmp_path):
    config = Config.model_validate(
        {"home": tmp_path, "learn": {"batch_size": 2}, "gate": {"retention_prompts": 0}}
    )
    store = Store.open(config.store_url)
    talk(store, "Thanks, that is perfect!", "Too long. Please answer in one short sentence.")
    with subprocess.Popen(command(config), env=environment(), stderr=subprocess.PIPE, text=True) as first:
        versions = Versions(config.versions_path)
        deadline = time.monotonic() + 240
        while versions.current() == 0:
            assert first.poll() is None, first.stderr.read()
            assert time.monotonic() < deadline, "no version in 240 s"
            time.sleep(0.2)
        second = subprocess.run(
            command(config), env=environment(), capture_output=True, text=True, timeout=120
        )
        assert second.returncode != 0
        assert f"A learner (process {first.pid}) already works on" in second.stderr
        assert os.getpriority(os.PRIO_PROCESS, first.pid) >= 10
        first.send_signal(signal.SIGTERM)
        _, logged = first.communicate(timeout=60)
    assert first.returncode == 0, logged
    assert "step 1 -> version 1, 2 samples (2 rewards, 1 hints)" in logged
    assert "The learner has stopped." in logged
    assert store.funnel().trained == 2
    store.close()


def command(config):
    return [sys.executable, "-c", CODE, config.model_dump_json()]


def environment():
    return {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}


def talk(store, *next_states):
    loaded = load(ModelConfig(), with_model=False)
    renderer = Renderer(loaded.tokenizer, loaded.context_length, loaded.eos_ids)
    messages = (Message("user", "What is a glacier?"),)
    response = loaded.tokenizer("A glacier is a mass of ice that moves over land.")["input_ids"]
    for number, text in enumerate(next_states):
        turn = make_turn(
            renderer.encode(messages),
            response,
            messages=messages,
            log_probs=np.full(len(response), -1.0),
            session_id=f"s{number}",
        )
        following = NextState(turn.turn_id, "reply", (Message("user", text),), 2.0)
        store.put([NewSession(f"s{number}", 1.0, "new"), turn, following])
