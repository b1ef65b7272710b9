"""Usage rules over a whole Forebay: from what a target says to the bill, the limit of money and a recount."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
from whole import Whole, await_period, running, wait_until

from forebay.testing.answers import json_answer, sse_answer
from forebay.testing.openai import DONE, chat_completion, chat_stream, event, usage_chunk
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Script
from forebay.testing.threaded import ThreadedUpstream

USED = {
    **{"prompt_tokens": 1000, "completion_tokens": 40, "total_tokens": 1040, "hits": 600},
    "prompt_tokens_details": {"cache_write_tokens": 300},
    "server_tool_use": {"web_search_requests": 3},
}
RULES = """
          - {class: input_cached, pointer: /usage/hits, included_in: input}
          - {unit: searches, pointer: /usage/server_tool_use/web_search_requests}"""
PRICES = """
prices:
  book:
    - usd_per_mtok: {input: 1000, input_cached: 100, input_cache_write: 1250, output: 2000}
      usd_per_unit: {searches: 0.01}
"""
#: Nano-USD for 100 tokens of input, 600 cached, 300 written, 40 of output, and three searches.
COST = 100 * 10**6 + 600 * 10**5 + 300 * 1_250_000 + 40 * 2 * 10**6 + 3 * 10**7


def answer(request: RecordedRequest) -> Script:
    if not request.json().get("stream"):
        return json_answer(chat_completion() | {"usage": USED})
    events = chat_stream(include_usage=False, done=False)
    return sse_answer([*events, event(usage_chunk() | {"usage": USED}), DONE])


def configure(url: str, rules: str, prices: str = PRICES) -> str:
    return f"""gateway: {{port: 0, workers: 1}}
control: {{port: 0}}
models:
  m:
    endpoints: [chat/completions]
    targets:
      - url: {url}
        usage: {rules}
limits:
  rules:
    - {{team: default, cost_usd: 100, per: day, window: calendar}}
{prices}"""


def admin(whole: Whole, path: str) -> dict[str, Any]:
    token = (whole.data / "admin.token").read_text().strip()
    url = f"{whole.state.control_url}/admin/v1{path}"
    got = httpx.get(url, headers={"authorization": f"Bearer {token}"}, timeout=30)
    assert got.status_code == 200, got.text
    found: dict[str, Any] = got.json()
    return found


def recompute(whole: Whole) -> tuple[str, dict[str, Any]]:
    """What is told on the error output, and the bill."""
    done = whole.command("bill", "--recompute", "--json", "--by", "model")
    assert done.returncode == 0, done.stderr
    return done.stderr, json.loads(done.stdout)["total"]


def test_what_a_rule_counts_is_charged_limited_and_recounted_the_same(tmp_path: Path) -> None:
    await_period()
    file = tmp_path / "forebay.yaml"
    with ThreadedUpstream(answer) as upstream:
        with running(tmp_path, configure(upstream.url, RULES)) as whole:
            for number in range(4):
                got = httpx.post(
                    f"{whole.url}/chat/completions",
                    json={"model": "m", "messages": [], "max_tokens": 50, "stream": number % 2 == 0},
                    headers={"authorization": f"Bearer {whole.key}"},
                    timeout=60,
                )
                assert got.status_code == 200
                assert b'"hits"' not in got.content or number % 2, "nobody asked for usage in the stream"
            wait_until(lambda: admin(whole, "/bill?by=model")["total"]["requests"] == 4, 60, "all records")
            total = admin(whole, "/bill?by=model")["total"]
            assert int(Decimal(total["cost_usd"]).scaleb(9)) == 4 * COST
            known = {name: count for name, count in total["tokens"].items() if count is not None}
            assert known == {"input": 400, "input_cached": 2400, "input_cache_write": 1200, "output": 160}

            def is_settled() -> bool:
                (limit,) = admin(whole, "/limits")["data"]
                return bool(limit["lent"] == 0 and limit["amount"] - limit["left"] == 4 * COST)

            wait_until(is_settled, 60, "the limit of money agrees with the bill")
        told, total = recompute(whole)
        assert "nothing changed" in told
        # Rules say how to count from now on; what was counted stays, and so do its costs.
        file.write_text(configure(upstream.url, "[]"))
        told, again = recompute(whole)
        assert "nothing changed" in told
        assert again == total
        file.write_text(configure(upstream.url, RULES, PRICES.replace("searches: 0.01", "searches: 0.02")))
        told, dearer = recompute(whole)
        assert "4 changed" in told
        more = Decimal(dearer["cost_usd"]) - Decimal(total["cost_usd"])
        assert more == 4 * 3 * Decimal("0.01")
        file.write_text(configure(upstream.url, RULES, PRICES.replace("{searches: 0.01}", "{pages: 0.01}")))
        told, unknown = recompute(whole)
        assert unknown["cost_usd"] is None
        assert unknown["unpriced"] == 4
