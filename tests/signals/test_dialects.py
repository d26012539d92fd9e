"""What is sent to a remote teacher, and what is refused of what comes back: no server, only values."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import numpy as np
import pytest

from stereorl.config import TeacherEndpointConfig
from stereorl.errors import TeacherError
from stereorl.policy.engine import Scores
from stereorl.signals.dialects import Ask, StereoDialect, VllmDialect, empty
from stereorl.signals.remote import RemoteTeacher
from tests.learn.tiny import make_turn

ASK = Ask(prompt_ids=[5, 6], response_ids=[7, 8], temperature=0.7, top_k=2, vocabulary=10)
ANSWER: dict[str, Any] = {
    "log_probs": [-0.5, -2],
    "top_ids": [[7, 1], [9, 8]],
    "top_log_probs": [[-0.5, -1.5], [-0.25, -2]],
    "policy_version": 3,
}


def test_the_question_to_a_stereorl_server() -> None:
    assert StereoDialect().body(ASK) == {
        "prompt_ids": [5, 6],
        "response_ids": [7, 8],
        "temperature": 0.7,
        "top_k": 2,
    }
    assert StereoDialect().refuses(ASK) is None


def test_its_answer_becomes_arrays() -> None:
    found = StereoDialect().parse(ANSWER, ASK)
    assert found.log_probs.tolist() == [-0.5, -2.0]
    assert found.top_ids is not None
    assert found.top_log_probs is not None
    assert (found.top_ids.tolist(), found.top_ids.dtype) == ([[7, 1], [9, 8]], np.int32)
    assert (found.top_log_probs.tolist(), found.top_log_probs.dtype) == (ANSWER["top_log_probs"], np.float32)


Change = Callable[[dict[str, Any]], object]
NONSENSE: dict[str, Change] = {
    "a log-prob too few": lambda a: a["log_probs"].pop(),
    "a log-prob too many": lambda a: a["log_probs"].append(-1.0),
    "one that is absent": lambda a: a["log_probs"].__setitem__(0, None),
    "one above 0": lambda a: a["log_probs"].__setitem__(0, 0.1),
    "one as text": lambda a: a["log_probs"].__setitem__(0, "-0.5"),
    "a truth value": lambda a: a.update(log_probs=[True, False]),
    "not finite": lambda a: a["log_probs"].__setitem__(0, float("-inf")),
    "beyond float32": lambda a: a["log_probs"].__setitem__(0, -1e300),
    "no top ids": lambda a: a.pop("top_ids"),
    "null for top ids": lambda a: a.update(top_ids=None, top_log_probs=None),
    "a row too few": lambda a: (a["top_ids"].pop(), a["top_log_probs"].pop()),
    "ragged rows": lambda a: a["top_ids"][0].pop(),
    "ids that are no whole numbers": lambda a: a["top_ids"][0].__setitem__(0, 7.5),
    "an id twice": lambda a: a["top_ids"].__setitem__(0, [7, 7]),
    "an id below 0": lambda a: a["top_ids"][0].__setitem__(0, -1),
    "an id beyond the vocabulary": lambda a: a["top_ids"][0].__setitem__(0, 10),
    "worst first": lambda a: a["top_log_probs"][0].reverse(),
    "more than probability 1": lambda a: a["top_log_probs"].__setitem__(0, [-0.1, -0.2]),
}


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("name", NONSENSE)
def test_what_cannot_be_log_probs_of_what_was_asked_is_refused(name: str) -> None:
    answer = copy.deepcopy(ANSWER)
    NONSENSE[name](answer)
    with pytest.raises((ValueError, TypeError, LookupError)):
        StereoDialect().parse(answer, ASK)


def test_the_question_to_vllm_has_the_reply_at_the_end_of_the_prompt() -> None:
    body = VllmDialect("big").body(ASK)
    assert (body["model"], body["prompt"], body["max_tokens"]) == ("big", [5, 6, 7, 8], 1)
    assert body["prompt_logprobs"] == 2


def test_an_empty_reply_is_not_asked_about() -> None:
    none = empty(ASK)
    assert none.log_probs.shape == (0,)
    assert none.top_ids is not None
    assert none.top_ids.shape == (0, 2)


class Slow(BaseHTTPRequestHandler):
    """Sends a byte now and then: no single wait is long, the whole answer never comes."""

    def do_POST(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        for _ in range(100):
            try:
                self.wfile.write(b" ")
                self.wfile.flush()
            except OSError:
                return
            time.sleep(0.05)

    def log_message(self, *_: Any) -> None:
        pass


def test_an_answer_that_drips_is_cut_off_in_time() -> None:
    server = HTTPServer(("127.0.0.1", 0), Slow)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    teacher = RemoteTeacher(
        TeacherEndpointConfig(url=url, timeout_s=0.5),
        None,  # type: ignore[arg-type]  # nothing is rendered without a hint
        "[hint]",
        vocabulary=10,
    )
    began = time.monotonic()
    with pytest.raises(TeacherError, match=r"no whole answer within 0\.5 s"):
        teacher.score([(make_turn([1, 2], [3]), "")])
    assert time.monotonic() - began < 3
    (none,) = teacher.score([(make_turn([1, 2], []), "")])  # and this one is not sent at all
    assert isinstance(none, Scores)
    teacher.close()
    server.shutdown()
    server.server_close()
