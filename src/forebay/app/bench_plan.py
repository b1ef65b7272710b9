"""What a benchmark asks, and when: prompts and arrivals, the same from the same seed.  Pure, but for the file
of prompts that `load_prompts` reads.
"""

import json
import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

PROMPTS_MAX: Final = 100_000  #: of a file
FILE_MAX_BYTES: Final = 1 << 30
BYTES_PER_TOKEN: Final = 4  #: of an answer in a ShareGPT file, whose tokens nobody counts here
Arrival = Literal["poisson", "constant"]
_TEXT: Final = (
    "time year people way day man thing woman life child world school state family student group country "
    "problem hand part place case week company system program question work government number night point "
    "home water room mother area money story fact month lot right study book eye job word business issue "
    "side kind head house service friend father power hour game line end member law car city community name "
    "president team minute idea body information back parent face others level office door health person art "
    "war history party result change morning reason research girl guy moment air teacher force education"
)
#: Common English words: most tokenizers have each of them, with the blank before it, as one token.
WORDS: Final = tuple(_TEXT.split())


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """One request's question.

    Attributes:
        messages: as chat has them.
        output_tokens: at most, in its answer.
    """

    messages: list[dict[str, Any]]
    output_tokens: int

    @property
    def text(self) -> str:
        """For endpoints that take a text."""
        return "\n".join(str(message.get("content", "")) for message in self.messages)


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts that are made up.

    Attributes:
        input_tokens: of each, roughly: a word for each, so that the server's own count is a little more.
        prefix_tokens: of them, at the beginning, that all prompts share.
        spread: share by which lengths differ, evenly: 0.5 is from half to one and a half.
    """

    input_tokens: int = 128
    output_tokens: int = 64
    prefix_tokens: int = 0
    spread: float = 0.0


def make_prompts(wanted: Wanted, count: int, seed: int) -> list[Prompt]:
    """Prompts of which no two begin alike behind the shared part."""
    draw = random.Random(f"prompts {seed}")
    prefix = draw.choices(WORDS, k=wanted.prefix_tokens)
    made = []
    for _ in range(count):
        own = max(1, _vary(wanted.input_tokens, wanted.spread, draw) - wanted.prefix_tokens)
        text = " ".join([*prefix, *draw.choices(WORDS, k=own)])
        output = max(1, _vary(wanted.output_tokens, wanted.spread, draw))
        made.append(Prompt(messages=[{"role": "user", "content": text}], output_tokens=output))
    return made


def _vary(tokens: int, spread: float, draw: random.Random) -> int:
    return tokens if not spread else round(tokens * draw.uniform(1 - spread, 1 + spread))


def plan_arrivals(rate_per_s: float, count: int, seed: int, arrival: Arrival) -> list[float]:
    """Seconds from the start at which each request is sent, whatever becomes of those before."""
    draw = random.Random(f"arrivals {seed}")
    if arrival == "constant":
        return [at / rate_per_s for at in range(count)]
    at, found = 0.0, []
    for _ in range(count):
        found.append(at)
        at += draw.expovariate(rate_per_s)
    return found


def load_prompts(path: Path, output_tokens: int, count: int, seed: int) -> list[Prompt]:
    """Of a file: JSON lines with `prompt` or `messages` (and `output_tokens`), or ShareGPT's list.

    Args:
        output_tokens: of each answer at most.
        count: prompts that are wanted; a file with fewer is gone through again.

    Raises:
        OSError: the file can't be read.
        ValueError: there is nothing to ask in it; says where.
    """
    if path.stat().st_size > FILE_MAX_BYTES:
        raise ValueError(f"{path} is longer than {FILE_MAX_BYTES >> 30} GiB")
    text = path.read_text("utf-8")
    entries = _read_entries(text, path)
    found = list(
        islice((made for entry in entries if (made := _read_prompt(entry, output_tokens))), PROMPTS_MAX)
    )
    if not found:
        raise ValueError(
            f"{path} has no prompts: give JSON lines with `prompt` or `messages`, or ShareGPT's form"
        )
    random.Random(f"order {seed}").shuffle(found)
    return [found[at % len(found)] for at in range(count)]


def _read_entries(text: str, path: Path) -> Iterator[Any]:
    if text.lstrip()[:1] == "[":
        try:
            yield from json.loads(text)
        except ValueError as error:
            raise ValueError(f"{path} is no JSON: {error}") from None
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}:{number} is no JSON: {error}") from None


def _read_prompt(entry: Any, output_tokens: int) -> Prompt | None:
    if not isinstance(entry, dict):
        return None
    turns = entry.get("conversations")
    if isinstance(turns, list):
        return _read_conversation(turns, output_tokens)
    messages = entry.get("messages")
    if messages is None and isinstance(entry.get("prompt"), str):
        messages = [{"role": "user", "content": entry["prompt"]}]
    if not isinstance(messages, list) or not messages:
        return None
    own = entry.get("output_tokens")
    return Prompt(messages=messages, output_tokens=own if isinstance(own, int) and own > 0 else output_tokens)


def _read_conversation(turns: Sequence[Any], output_tokens: int) -> Prompt | None:
    """The first question, and an answer about as long as the one in the file."""
    said = [turn for turn in turns if isinstance(turn, dict) and isinstance(turn.get("value"), str)]
    if len(said) < 2 or said[0].get("from") not in ("human", "user"):
        return None
    long = max(1, len(said[1]["value"]) // BYTES_PER_TOKEN)
    messages = [{"role": "user", "content": said[0]["value"]}]
    return Prompt(messages=messages, output_tokens=min(long, output_tokens))
