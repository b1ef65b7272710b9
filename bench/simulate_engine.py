"""An engine that batches step by step, as slow as it is told: what the simulator is held against.

usage: python bench/simulate_engine.py PORT PREFILL_S_PER_TOKEN STEP_S STEP_PER_STREAM_S SLOTS

It shares nothing with the simulator.  A step reads one prompt whole, in which nobody else gets a token, or
gives each stream one token.  Requests beyond its slots wait.
"""

import asyncio
import sys
from collections import deque
from collections.abc import Iterator

import uvloop

from forebay.testing.answers import answer, chunk, json_answer, last_chunk, sse_head
from forebay.testing.openai import chat_stream
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Gate, Script, Step, Wait
from forebay.testing.upstream import ScriptedUpstream, UpstreamSettings

MODEL = "scripted"


class Stream:
    """One request."""

    def __init__(self, input_tokens: int, output_tokens: int) -> None:
        self.input_tokens, self.left = input_tokens, output_tokens
        self.gates = deque(Gate() for _ in range(output_tokens))  # each opens with its token

    def give(self) -> bool:
        """A token; whether it was the last."""
        self.left -= 1
        self.gates[-self.left - 1].open()
        return not self.left


class Engine:
    """See the module."""

    def __init__(self, prefill_s: float, step_s: float, step_per_stream_s: float, slots: int) -> None:
        self.prefill_s, self.step_s, self.step_per_stream_s = prefill_s, step_s, step_per_stream_s
        self.slots = slots
        self.waiting: deque[Stream] = deque()
        self.streams: list[Stream] = []
        self.came = asyncio.Event()

    async def run(self) -> None:
        while True:
            if not self.waiting and not self.streams:
                self.came.clear()
                await self.came.wait()
            if self.waiting and len(self.streams) < self.slots:
                stream = self.waiting.popleft()
                await asyncio.sleep(stream.input_tokens * self.prefill_s)
                if not stream.give():
                    self.streams.append(stream)
            else:
                await asyncio.sleep(self.step_s + self.step_per_stream_s * len(self.streams))
                self.streams = [stream for stream in self.streams if not stream.give()]

    def serve(self, request: RecordedRequest) -> Script:
        if request.path == "/health":
            return answer(b"ok")
        if request.method == "GET":
            return json_answer({"object": "list", "data": [{"id": MODEL, "object": "model"}]})
        asked = request.json()
        words = sum(len(str(message["content"]).split()) for message in asked["messages"])
        stream = Stream(words, int(asked["max_tokens"]))
        self.waiting.append(stream)
        self.came.set()
        return self.answer(stream)

    def answer(self, stream: Stream) -> Iterator[Step]:
        tokens = {"prompt_tokens": stream.input_tokens, "completion_tokens": stream.left}
        tokens["total_tokens"] = sum(tokens.values())
        _, *events = chat_stream(["word "] * stream.left, model=MODEL, tokens=tokens)
        yield from sse_head()
        gates = list(stream.gates)
        for gate, event in zip(gates, events, strict=False):
            yield Wait(gate)
            yield chunk(event)
        for event in events[len(gates) :]:
            yield chunk(event)
        yield last_chunk()


async def serve(port: int, *facts: float) -> None:
    prefill_s, step_s, step_per_stream_s, slots = facts
    engine = Engine(prefill_s, step_s, step_per_stream_s, int(slots))
    async with ScriptedUpstream(engine.serve, UpstreamSettings(port=port)):
        await engine.run()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), *map(float, sys.argv[2:6])))
