"""A small Hugging Face server on this machine, for tests that pull. Needs only Python's standard library."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

#: The commit that every repository is at.
COMMIT = "0123456789abcdef0123456789abcdef01234567"
#: Bytes that are sent before a pause.
PIECE = 1 << 16


class Hub:
    """A running server with repositories: their names, and the files of each."""

    def __init__(self, repositories: dict[str, dict[str, bytes]]) -> None:
        self.repositories = repositories
        #: Seconds between two pieces of a file.
        self.pause = 0.0
        #: How often each path was asked for, and how many answers a client has broken off.
        self.asked: Counter[str] = Counter()
        self.broken_off = 0
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                hub.answer(self)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Without a slash at the end."""
        return f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> Hub:
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.shutdown()
        self.server.server_close()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = handler.path.split("?")[0]
        self.asked[path] += 1
        about = re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/main", path)
        if about and about[1] in self.repositories:
            return self.send(handler, json.dumps(self.described(about[1])).encode(), "application/json")
        file = re.fullmatch(rf"/([^/]+/[^/]+)/resolve/{COMMIT}/(.+)", path)
        body = self.repositories.get(file[1], {}).get(file[2]) if file else None
        if body is None:
            handler.send_response(404)
            handler.send_header("X-Error-Code", "RepoNotFound")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return None
        return self.send(handler, body, "application/octet-stream")

    def described(self, name: str) -> dict[str, object]:
        siblings = []
        for file, body in self.repositories[name].items():
            lfs = {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body)}
            siblings.append({"rfilename": file, "size": len(body), "lfs": lfs})
        return {"id": name, "sha": COMMIT, "siblings": siblings}

    def send(self, handler: BaseHTTPRequestHandler, body: bytes, kind: str) -> None:
        start = int(re.sub(r"\D", "", handler.headers.get("Range", "bytes=0-").split("-")[0]) or 0)
        handler.send_response(206 if start else 200)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(body) - start))
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        handler.end_headers()
        try:
            for place in range(start, len(body), PIECE):
                handler.wfile.write(body[place : place + PIECE])
                time.sleep(self.pause)
        except OSError:
            self.broken_off += 1
            handler.close_connection = True
