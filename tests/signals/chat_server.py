"""A small HTTP server that speaks the chat API and answers from a script; it remembers what it was asked."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Raw:
    """An answer that is no chat completion: a status and a body, sent in pieces with a pause before each."""

    status: int = 200
    body: bytes = b"{}"
    pause_s: float = 0.0
    pieces: int = 1


Answer = str | Raw


@dataclass
class Server:
    url: str
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    together: int = 0  # most requests that were under way at once


def completion(text: Any) -> bytes:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return json.dumps({"id": "c", "object": "chat.completion", "choices": [choice]}).encode()


@contextmanager
def chat_server(answer: Callable[[int, dict[str, Any]], Answer]) -> Iterator[Server]:
    """`answer(number, body)` gives the text, or a Raw answer, of the request with that number (from 0)."""
    lock = threading.Lock()
    under_way = 0

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            nonlocal under_way
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with lock:
                number = len(server.bodies)
                server.bodies.append({**body, "path": self.path})
                server.headers.append({k.lower(): v for k, v in self.headers.items()})
                under_way += 1
                server.together = max(server.together, under_way)
            try:
                self._send(answer(number, body))
            except OSError:  # the client has hung up
                pass
            finally:
                with lock:
                    under_way -= 1

        def _send(self, found: Answer) -> None:
            raw = found if isinstance(found, Raw) else Raw(body=completion(found))
            self.send_response(raw.status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(raw.body)))
            self.end_headers()
            size = -(-len(raw.body) // raw.pieces)
            for start in range(0, len(raw.body), size):
                time.sleep(raw.pause_s)
                self.wfile.write(raw.body[start : start + size])
                self.wfile.flush()

        def log_message(self, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server = Server(f"http://127.0.0.1:{http.server_address[1]}/v1")
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join(5)
