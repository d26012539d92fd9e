"""Teachers over HTTP: a real StereoRL server on the real model, and a server that speaks as vLLM does."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stereorl.config import TeacherEndpointConfig
from stereorl.data import Message, Sampling
from stereorl.errors import ConfigError, TeacherError
from stereorl.policy.adapters import attach
from stereorl.policy.engine import Scores
from stereorl.policy.render import Renderer
from stereorl.signals.chat import key_header
from stereorl.signals.dialects import TEACHER_TEMPERATURE
from stereorl.signals.remote import RemoteTeacher
from stereorl.signals.teacher import HINT_OVER_CONTEXT, BaseTeacher
from stereorl.store.store import Store
from tests.learn.tiny import make_turn
from tests.serve.setting import Setup

LABEL = "[hint]"
HINT = "Please answer in one short sentence."
VOCABULARY = 258


@pytest.fixture
def plain(tiny: Any) -> Renderer:
    """A renderer whose ids are bytes."""
    return Renderer(tiny.tokenizer, tiny.context_length, tiny.eos_ids)


@contextmanager
def asking(url: str, renderer: Any) -> Iterator[RemoteTeacher]:
    endpoint = TeacherEndpointConfig(url=f"{url}/v1/")
    vocabulary = len(renderer._tokenizer)
    with closing(RemoteTeacher(endpoint, renderer, LABEL, vocabulary=vocabulary)) as teacher:
        yield teacher


@pytest.mark.model
def test_a_stereorl_server_teaches_as_the_base_does(
    engine: Any, renderer: Any, fresh_loaded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEREORL_API_KEY", "s3cret")
    monkeypatch.setenv("STEREORL_TEACHER_API_KEY", "s3cret")
    model = attach(fresh_loaded, kind="lora", r=4, seed=0)
    base = BaseTeacher(model, renderer, LABEL)
    pairs = []
    for number, (text, temperature) in enumerate([("Ice floats.", 0.7), ("Bread is made of flour.", 1.3)]):
        asked = (Message("user", f"Question {number}?"),)
        turn = make_turn(
            renderer.encode(asked),
            renderer._tokenizer(text)["input_ids"],
            messages=asked,
            temperature=temperature,
        )
        pairs += [(turn, HINT), (turn, "")]
    with Store.open(f"sqlite:///{tmp_path / 'stereorl.db'}") as store:
        with Setup(tmp_path, store, engine, renderer).server() as url:
            with asking(url, renderer) as remote:
                found = remote.score(pairs, top_k=4)
                short = remote.score(pairs[:1])
                with pytest.raises(TeacherError, match=r"400.*outside this model's vocabulary"):
                    remote.score([(make_turn([1, 2], [10**6]), "")])
            monkeypatch.delenv("STEREORL_TEACHER_API_KEY")
            with asking(url, renderer) as keyless, pytest.raises(TeacherError, match="401"):
                keyless.score(pairs)
    for here, there in zip(base.score(pairs, top_k=4), found, strict=True):
        assert isinstance(here, Scores)
        assert isinstance(there, Scores)
        assert np.abs(here.log_probs - there.log_probs).max() < 1e-4
        assert np.abs(here.top_log_probs - there.top_log_probs).max() < 1e-4  # type: ignore[operator]
        assert here.top_ids is not None
        assert np.mean(here.top_ids == there.top_ids) > 0.95  # but for ties
    assert isinstance(short[0], Scores)
    assert short[0].top_ids is None
    assert not remote.moves


class Vllm:
    """Answers /v1/completions with prompt_logprobs drawn from a seed; `change` bends the answer."""

    def __init__(self, change: Callable[[Any], Any] = lambda answer: answer, status: int = 200):
        self.change, self.status = change, status
        self.asked: list[dict[str, Any]] = []
        rng = np.random.default_rng(0)
        logits = rng.normal(size=(600, VOCABULARY))
        self.logp = logits - np.log(np.exp(logits).sum(1, keepdims=True))

    def answer(self, body: dict[str, Any]) -> Any:
        self.asked.append(body)
        rows: list[Any] = [None]
        for at, token in enumerate(body["prompt"][1:], 1):
            best = np.argsort(-self.logp[at])[: body["prompt_logprobs"]].tolist()
            order = np.argsort(np.argsort(-self.logp[at]))
            shown = [token, *(k for k in best if k != token)]
            rows.append(
                {
                    str(k): {
                        "logprob": float(self.logp[at, k]),
                        "rank": int(order[k]) + 1,
                        "decoded_token": "x",
                    }
                    for k in shown
                }
            )
        choice = {"index": 0, "text": "x", "finish_reason": "length", "prompt_logprobs": rows}
        return self.change({"id": "cmpl-1", "object": "text_completion", "choices": [choice]})

    @contextmanager
    def server(self) -> Iterator[str]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert self.path == "/v1/completions"
                data = json.dumps(outer.answer(body)).encode()
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        finally:
            server.shutdown()
            server.server_close()

    @contextmanager
    def teacher(self, renderer: Renderer) -> Iterator[RemoteTeacher]:
        with self.server() as url:
            endpoint = TeacherEndpointConfig(url=url, api="vllm", model="big", timeout_s=5)
            with closing(RemoteTeacher(endpoint, renderer, LABEL, vocabulary=VOCABULARY)) as teacher:
                yield teacher


def test_vllm_log_probs_are_those_of_the_reply_under_the_hint(plain: Renderer) -> None:
    vllm = Vllm()
    turn = make_turn(plain.encode([Message("user", "hello")]), [10, 20, 30], temperature=1.0)
    with vllm.teacher(plain) as teacher:
        (found,) = teacher.score([(turn, HINT)], top_k=5)
        (own,) = teacher.score([(turn, "")])
    assert isinstance(found, Scores)
    assert isinstance(own, Scores)
    asked = vllm.asked[0]
    assert {key: asked[key] for key in ("model", "max_tokens", "prompt_logprobs")} == {
        "model": "big",
        "max_tokens": 1,
        "prompt_logprobs": 5,
    }
    text = plain.decode(asked["prompt"])
    assert f"hello\n\n{LABEL}\n{HINT}" in text
    start = len(asked["prompt"]) - 3
    logp = vllm.logp[start : start + 3]
    assert np.allclose(found.log_probs, logp[range(3), [10, 20, 30]], atol=1e-6)
    assert found.top_ids is not None
    assert found.top_ids.tolist() == np.argsort(-logp)[:, :5].tolist()
    assert np.allclose(found.top_log_probs, -np.sort(-logp)[:, :5], atol=1e-6)
    assert vllm.asked[1]["prompt"] == [*turn.prompt_ids.tolist(), 10, 20, 30]
    assert vllm.asked[1]["prompt_logprobs"] == 1
    assert own.top_ids is None


def test_what_vllm_cannot_score_has_a_reason(plain: Renderer) -> None:
    prompt = plain.encode([Message("user", "hello")])
    warm, greedy = (make_turn(prompt, [10], temperature=t) for t in (0.7, 0.0))
    vllm = Vllm()
    with vllm.teacher(plain) as teacher:
        assert teacher.score([(warm, "")]) == [TEACHER_TEMPERATURE]
        assert vllm.asked == []
        assert isinstance(teacher.score([(greedy, "")])[0], Scores)  # greedy replies are scored at 1
        assert teacher.score([(greedy, "Be brief. " * 100)]) == [HINT_OVER_CONTEXT]
    refusing = Vllm(lambda _: {"message": "This model's maximum context length is 8 tokens."}, 400)
    with refusing.teacher(plain) as teacher:
        assert teacher.score([(greedy, "")]) == [HINT_OVER_CONTEXT]


def bent(act: Callable[[list[Any]], object]) -> Callable[[Any], Any]:
    """An answer whose prompt_logprobs `act` has changed."""

    def change(answer: Any) -> Any:
        act(answer["choices"][0]["prompt_logprobs"])
        return answer

    return change


def put(value: Any, key: str = "20") -> Callable[[list[Any]], object]:
    return lambda rows: rows[-2].update({key: {"logprob": value}})


NONSENSE: dict[str, Callable[[Any], Any]] = {
    "another shape": lambda answer: {"choices": []},
    "no object": lambda answer: [1, 2],
    "no text": lambda answer: None,
    "a row too few": bent(lambda rows: rows.pop()),
    "the reply's id is missing": bent(lambda rows: rows[-1].pop("30")),
    "a row is null": bent(lambda rows: rows.__setitem__(-1, None)),
    "a log-prob above 0": bent(put(0.5)),
    "a log-prob that is no number": bent(put(float("nan"))),
    "a log-prob of minus infinity": bent(put(float("-inf"))),
    "a log-prob as text": bent(put("low")),
    "too few of the likeliest": bent(
        lambda rows: rows[-1].clear() or rows[-1].update({"30": {"logprob": -1.0}})
    ),
    "an id beyond the vocabulary": bent(put(-1e-4, str(VOCABULARY))),
    "a negative id": bent(put(-1e-4, "-1")),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_is_an_error_that_can_be_tried_again(plain: Renderer, name: str) -> None:
    turn = make_turn(plain.encode([Message("user", "hello")]), [10, 20, 30], temperature=1.0)
    with Vllm(NONSENSE[name]).teacher(plain) as teacher:
        with pytest.raises(TeacherError, match=r"answered nonsense: ."):
            teacher.score([(turn, HINT)], top_k=5)


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
def test_a_server_that_fails_may_be_asked_again(plain: Renderer, status: int) -> None:
    turn = make_turn([1, 2], [3], temperature=1.0)
    with Vllm(lambda _: {"error": "later"}, status).teacher(plain) as teacher:
        with pytest.raises(TeacherError, match=f"refuses with {status}: .*later"):
            teacher.score([(turn, "")])


def test_a_server_that_is_not_there(plain: Renderer) -> None:
    with Vllm().server() as url:
        pass
    teacher = RemoteTeacher(TeacherEndpointConfig(url=url, api="vllm"), plain, LABEL, vocabulary=VOCABULARY)
    turn = replace(make_turn([1, 2], [3]), sampling=Sampling(temperature=1.0))
    with pytest.raises(TeacherError, match="cannot be reached"):
        teacher.score([(turn, "")])
    assert teacher.score([]) == []


def test_rounding_above_zero_is_put_to_zero(plain: Renderer) -> None:
    turn = make_turn([1, 2], [3, 20, 4], temperature=1.0)
    with Vllm(bent(put(5e-4))).teacher(plain) as teacher:
        (found,) = teacher.score([(turn, "")])
    assert isinstance(found, Scores)
    assert found.log_probs[1] == 0.0


def test_an_answer_without_an_end_is_let_go(plain: Renderer) -> None:
    with Vllm(lambda _: {"choices": "x" * 2_000_000}).teacher(plain) as teacher:
        with pytest.raises(TeacherError, match="an answer of more than"):
            teacher.score([(make_turn([1, 2], [3], temperature=1.0), "")])


def test_a_key_that_no_header_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "kéy")
    with pytest.raises(ConfigError, match="A_KEY"):
        key_header("A_KEY")
    monkeypatch.setenv("A_KEY", "key\n")
    assert key_header("A_KEY") == {"Authorization": "Bearer key"}
