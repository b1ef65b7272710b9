"""An engine of a deployment that answers as its environment says: `good`, `errs`, `slow` or `refuses`.

`make_environment` lays a "Python" into a data folder that is this file: a deployment that names the
environment has it started with the arguments of llama.cpp's runner.  Standard library alone; SIGTERM lets
answers leave.
"""

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

WORDS = ("one ", "two ", "three")


def make_environment(data: Path, digest: str, mode: str) -> str:
    folder = data / "environments" / digest / "bin"
    folder.mkdir(parents=True)
    (folder / "mode").write_text(mode)
    python = folder / "python"
    python.write_text(f"#!{sys.executable} -S\n{Path(__file__).read_text()}")
    python.chmod(0o755)
    return digest


class Handler(BaseHTTPRequestHandler):
    mode = "good"
    in_flight = 0
    lock = threading.Lock()

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/metrics":
            page = f"llamacpp:requests_processing {self.in_flight}\nllamacpp:requests_deferred 0\n"
            self.reply(200, page.encode(), "text/plain")
            return
        self.reply(200 if self.path == "/health" else 404, b"{}")

    def do_POST(self) -> None:
        with self.lock:
            Handler.in_flight += 1
        try:
            self.answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        finally:
            with self.lock:
                Handler.in_flight -= 1

    def answer(self, asked: dict) -> None:  # type: ignore[type-arg]
        if self.mode == "errs":
            self.reply(500, b'{"error": {"message": "broken", "type": "server_error"}}')
            return
        time.sleep(2.0 if self.mode == "slow" else 0.1)
        if not asked.get("stream"):
            message = {"role": "assistant", "content": "".join(WORDS)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            usage = {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}
            whole = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
            self.reply(200, json.dumps({**whole, "usage": usage}).encode())
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for word in WORDS:
            choice = {"index": 0, "delta": {"content": word}, "finish_reason": None}
            chunk = {
                "id": "c",
                "object": "chat.completion.chunk",
                "created": 1,
                "model": "m",
                "choices": [choice],
            }
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
            self.wfile.flush()
            time.sleep(0.02)
        self.wfile.write(b"data: [DONE]\n\n")

    def reply(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    Handler.mode = Path(sys.argv[0]).with_name("mode").read_text()
    if Handler.mode == "refuses":
        print("the weights are not there", file=sys.stderr)
        sys.exit(2)
    port = next(int(each.partition("=")[2]) for each in sys.argv if each.startswith("--port="))
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)

    def leave() -> None:
        server.shutdown()
        while Handler.in_flight:
            time.sleep(0.01)
        os._exit(0)

    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=leave, daemon=True).start())
    print(f"an engine that is {Handler.mode}", flush=True)
    server.serve_forever(poll_interval=0.05)
    time.sleep(600)  # until `leave` ends it


if __name__ == "__main__":
    main()
