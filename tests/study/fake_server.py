"""A server of the same dialect without a model: it answers from a function, and remembers what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[list[dict[str, str]]], tuple[str, str]]


class Asked:
    """Every request's path, headers (lower case) and body, in the order of arrival."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def add(self, request: dict[str, Any]) -> int:
        with self._lock:
            self.requests.append(request)
            return len(self.requests)

    def bodies(self, path: str = "/v1/chat/completions") -> list[Any]:
        return [request["body"] for request in self.requests if request["path"] == path]


@contextmanager
def fake_server(answer: Answer) -> Iterator[tuple[str, Asked]]:
    """`answer(messages)` gives the reply's text and finish reason."""
    asked = Asked()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send({"status": "ok", "policy_version": 3})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            headers = {name.lower(): value for name, value in self.headers.items()}
            number = asked.add({"path": self.path, "headers": headers, "body": body})
            if self.path != "/v1/chat/completions":
                self._send({"recorded": True})
            elif body.get("stream"):
                self._stream(number, *answer(body["messages"]))
            else:
                text, finish = answer(body["messages"])
                message = {"role": "assistant", "content": text}
                self._send(
                    {
                        "id": f"chatcmpl-turn{number}",
                        "object": "chat.completion",
                        "created": 0,
                        "model": "m",
                        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
                    }
                )

        def _send(self, value: Any) -> None:
            data = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def _stream(self, number: int, text: str, finish: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for piece, reason in [*((word + " ", None) for word in text.split()), ("", finish)]:
                choice = {"index": 0, "delta": {"content": piece}, "finish_reason": reason}
                chunk = {
                    "id": f"chatcmpl-turn{number}",
                    "object": "chat.completion.chunk",
                    "created": 0,
                    "model": "m",
                }
                self.wfile.write(f"data: {json.dumps({**chunk, 'choices': [choice]})}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
