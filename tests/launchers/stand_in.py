"""A stand-in for an engine: a small server that ends in whatever way it is told.  Standard library alone.

usage: stand_in.py --host=HOST --port=N [--exit=CODE] [--hold-mib=N] [--say=TEXT]; `--exit` comes first.
GET /health: its process id.  /stream?n=N: N lines, 0.1 s apart.  /exit?code=N, /hold?mib=N: does so now.
SIGTERM: no new requests, those in flight leave, then it ends with 0.
"""

import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from urllib.parse import parse_qsl, urlsplit

held: list[bytes] = []
in_flight = 0
lock = threading.Lock()


def hold(mib: int) -> None:
    for _ in range(mib):
        held.append(os.urandom(1 << 20))


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        global in_flight
        with lock:
            in_flight += 1
        try:
            self.answer()
        finally:
            with lock:
                in_flight -= 1

    def answer(self) -> None:
        url = urlsplit(self.path)
        wanted = dict(parse_qsl(url.query))
        if url.path == "/exit":
            os._exit(int(wanted["code"]))
        if url.path == "/hold":
            hold(int(wanted["mib"]))
        self.send_response(200)
        self.end_headers()
        if url.path == "/stream":
            for number in range(int(wanted["n"])):
                self.wfile.write(f"{number}\n".encode())
                self.wfile.flush()
                time.sleep(0.1)
        self.wfile.write(str(os.getpid()).encode())


class Server(ThreadingTCPServer):
    """Not that of `http.server`, which asks for the name of its address and may wait long for it."""

    allow_reuse_address = daemon_threads = True
    request_queue_size = 128


def main() -> None:
    options = dict(argument.removeprefix("--").split("=", 1) for argument in sys.argv[1:])
    print(options.get("say", "ready"), flush=True)
    if "exit" in options:
        sys.exit(int(options["exit"]))
    server = Server((options["host"], int(options["port"])), Handler)

    def end(*_: object) -> None:
        threading.Thread(target=leave, daemon=True).start()

    def leave() -> None:
        server.shutdown()
        while in_flight:
            time.sleep(0.01)
        print("drained", flush=True)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    hold(int(options.get("hold-mib", "0")))
    server.serve_forever(poll_interval=0.05)
    time.sleep(600)  # until `leave` ends it


if __name__ == "__main__":
    main()
