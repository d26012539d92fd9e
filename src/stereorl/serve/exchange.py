"""One answer on the wire, plain or as server-sent events. Its end is sent only after the turn is committed.

work:   first token ─▶ headers ─▶ pieces ─▶ COMMIT ─▶ finish chunk ─▶ usage ─▶ [DONE]
hangup: waits for the client to go
Whichever ends first decides; a client that goes, or a server that stops, cancels the work, which then records
the turn as cancelled. Errors before the first token have their HTTP status; later ones are an error event,
and no [DONE] follows.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from contextlib import aclosing
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from stereorl import faults
from stereorl.errors import EngineTimeout, RequestError
from stereorl.policy.engine import Token
from stereorl.serve import openai, problems
from stereorl.serve.live import LiveTurn
from stereorl.serve.service import Service

_FINISH = {"stop": "stop", "stop_string": "stop", "length": "length"}


class Exchange(Response):
    """An ASGI response that generates while it sends."""

    def __init__(self, service: Service, live: LiveTurn, request: openai.ChatRequest):
        super().__init__()
        self._service = service
        self._live = live
        self._request = request
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, session_id = self._service, self._live.place.session_id
        service.in_flight += 1
        service.sessions.enter(session_id)
        work = asyncio.create_task(self._run(scope, receive, send))
        hangup = asyncio.create_task(_hung_up(receive))
        try:
            await asyncio.wait({work, hangup}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            work.cancel()
            hangup.cancel()
            await asyncio.gather(work, hangup, return_exceptions=True)
            service.sessions.leave(session_id)
            service.in_flight -= 1
        if not work.cancelled():
            work.result()

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        longest = self._service.config.engine.timeout_s
        try:
            async with asyncio.timeout(longest) as clock:
                await (self._stream(send) if self._request.stream else self._plain(scope, receive, send))
        except asyncio.CancelledError:
            self._live.abandon("cancelled")
            raise
        except Exception as error:
            refused = isinstance(error, RequestError) and not self._live.tokens
            if not refused:
                self._live.abandon("error")
            if clock.expired():
                error = EngineTimeout(f"Waited {longest:g} s for the end of the reply (engine.timeout_s).")
            await self._fail(error, scope, receive, send)

    async def _plain(self, scope: Scope, receive: Receive, send: Send) -> None:
        live = self._live
        async with aclosing(live.pieces()) as pieces:
            async for _ in pieces:
                pass
        await live.commit()
        choice = openai.Choice(
            message=openai.ReplyMessage(content=live.text),
            logprobs=self._log_probs(live.tokens),
            finish_reason=_FINISH[live.finish_reason or ""],
        )
        answer = openai.ChatCompletion(**self._frame(), choices=[choice], usage=self._usage())
        response = JSONResponse(answer.model_dump(mode="json"), headers=self._turn_headers())
        faults.point("serve.before_done")
        await response(scope, receive, send)
        faults.point("serve.after_done")

    async def _stream(self, send: Send) -> None:
        live = self._live
        async with aclosing(live.pieces()) as pieces:
            async for piece in pieces:
                if not self._started:
                    await self._start(send)
                log_probs = self._log_probs([piece.token])
                if piece.text or (log_probs and log_probs.content):
                    await self._chunk(send, {"content": piece.text}, log_probs=log_probs)
        await live.commit()
        await self._chunk(send, {}, finish_reason=_FINISH[live.finish_reason or ""])
        if self._wants_usage:
            frame = self._frame("chat.completion.chunk")
            await _event(send, {**frame, "choices": [], "usage": self._usage().model_dump()})
        faults.point("serve.before_done")
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})
        faults.point("serve.after_done")

    async def _start(self, send: Send) -> None:
        self._started = True
        headers = {
            **self._turn_headers(),
            "Content-Type": "text/event-stream; charset=utf-8",
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",
        }
        raw = [(key.lower().encode(), value.encode()) for key, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        await self._chunk(send, {"role": "assistant", "content": ""})

    async def _chunk(
        self,
        send: Send,
        delta: dict[str, Any],
        *,
        log_probs: openai.LogProbs | None = None,
        finish_reason: str | None = None,
    ) -> None:
        choice = {
            "index": 0,
            "delta": delta,
            "logprobs": None if log_probs is None else log_probs.model_dump(),
            "finish_reason": finish_reason,
        }
        data = {**self._frame("chat.completion.chunk"), "choices": [choice]}
        await _event(send, {**data, "usage": None} if self._wants_usage else data)

    async def _fail(self, error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
        response = problems.render(error)
        if not self._started:
            await response(scope, receive, send)
            return
        data = b"data: " + bytes(response.body) + b"\n\n"
        await send({"type": "http.response.body", "body": data, "more_body": False})

    @property
    def _wants_usage(self) -> bool:
        options = self._request.stream_options
        return bool(options and options.include_usage)

    def _frame(self, kind: str | None = None) -> dict[str, Any]:
        """What every chunk and every plain answer carries."""
        live = self._live
        frame: dict[str, Any] = {
            "id": f"chatcmpl-{live.ask.turn_id}",
            "created": int(live.ask.received_at),
            "model": self._service.model_name,
            "system_fingerprint": f"policy-{live.version}",
            "policy_version": live.version,
        }
        return {**frame, "object": kind} if kind else frame

    def _turn_headers(self) -> dict[str, str]:
        live = self._live
        return {
            "X-Session-Id": live.place.session_id,
            "X-Turn-Id": live.ask.turn_id,
            "X-Policy-Version": str(live.version),
        }

    def _usage(self) -> openai.Usage:
        prompt, reply = len(self._live.ask.prompt_ids), len(self._live.tokens)
        return openai.Usage(prompt_tokens=prompt, completion_tokens=reply, total_tokens=prompt + reply)

    def _log_probs(self, tokens: Iterable[Token]) -> openai.LogProbs | None:
        """Of the sampled tokens but the end token, when they were asked for."""
        if not self._request.logprobs:
            return None
        return openai.LogProbs(
            content=[self._log_prob(token) for token in tokens if token.finish_reason != "stop"]
        )

    def _log_prob(self, token: Token) -> openai.TokenLogProb:
        text = self._service.renderer.decode([token.token_id])
        whole = None if "\ufffd" in text else list(text.encode())
        return openai.TokenLogProb(token=text, logprob=min(token.log_prob, 0.0), bytes=whole)


async def _event(send: Send, data: dict[str, Any]) -> None:
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    await send({"type": "http.response.body", "body": f"data: {text}\n\n".encode(), "more_body": True})


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
