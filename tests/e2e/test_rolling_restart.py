"""`forebay restart` under load: every request is answered, every stream whole, and all workers are new."""

import json
import threading
import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from whole import Whole, running

from forebay.testing.openai import well_behaved
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Script, Sleep
from forebay.testing.threaded import ThreadedUpstream

CONFIG = """
gateway: {port: 0, workers: 2, drain: {deadline_s: 20}}
control: {port: 0}
models:
  m:
    endpoints: [chat/completions]
    targets: [{url: "%s"}]
"""
WORDS = [f"word{number} " for number in range(8)]


def answer_slowly(request: RecordedRequest) -> Script:
    """A stream takes about half a second."""
    for step in well_behaved(*WORDS)(request):
        yield step
        if request.json().get("stream"):
            yield Sleep(0.02)


class Caller(threading.Thread):
    """One request after the other, each on a connection that is kept while the gateway keeps it."""

    def __init__(self, whole: Whole, *, stream: bool) -> None:
        super().__init__(daemon=True)
        self.good = 0
        self.bad: list[str] = []
        self.stopping = threading.Event()
        self._port = int(whole.url.rpartition(":")[2].removesuffix("/v1"))
        self._headers = {"authorization": f"Bearer {whole.key}", "content-type": "application/json"}
        body = {"model": "m", "stream": stream, "messages": [{"role": "user", "content": "Hi"}]}
        self._body = json.dumps(body).encode()
        self._end = b"[DONE]\n\n" if stream else b"}"

    def run(self) -> None:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=60)
        while not self.stopping.is_set():
            try:
                connection.request("POST", "/v1/chat/completions", self._body, self._headers)
                answer = connection.getresponse()
                content = answer.read()
            except (OSError, HTTPException) as error:
                self.bad.append(repr(error))
                connection.close()
                continue
            if answer.status == 200 and content.endswith(self._end):
                self.good += 1
            else:
                self.bad.append(f"{answer.status} {content[-200:]!r}")


def test_no_request_fails_while_all_workers_are_started_anew(tmp_path: Path) -> None:
    with ThreadedUpstream(answer_slowly) as upstream, running(tmp_path, CONFIG % upstream.url) as whole:
        before = {child.name: child.pid for child in whole.state.children}
        callers = [Caller(whole, stream=bool(number % 2)) for number in range(8)]
        for caller in callers:
            caller.start()
        time.sleep(0.5)
        told = whole.command("restart")
        assert (told.returncode, told.stdout.strip()) == (0, "2 workers were started anew"), told.stderr
        good = [caller.good for caller in callers]
        deadline = time.monotonic() + 120
        while any(caller.good <= count for caller, count in zip(callers, good, strict=True)):
            assert time.monotonic() < deadline, "all go on"
            time.sleep(0.05)
        for caller in callers:
            caller.stopping.set()
        for caller in callers:
            caller.join(90)
        after = {child.name: child.pid for child in whole.state.children}
        new = {name for name, pid in after.items() if pid != before[name]}
        assert new == {"worker-0", "worker-1"}
        assert [error for caller in callers for error in caller.bad] == []
        assert "started anew, one after the other" in whole.output()
    again = whole.command("restart")
    assert again.returncode == 1
    assert "no Forebay runs here" in again.stderr
