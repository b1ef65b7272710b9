"""What audio and images cost over a whole Forebay: the bill and the limit of money agree to the nano-USD."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
from whole import Whole, await_period, running, wait_until

from forebay.testing.media import audio_usage, duration_usage, image_usage, wav, well_behaved
from forebay.testing.recorded import RecordedRequest
from forebay.testing.steps import Script
from forebay.testing.threaded import ThreadedUpstream

#: By the path of a request.
USAGE = {
    "/v1/audio/transcriptions": duration_usage(90),
    "/v1/audio/translations": audio_usage(100, 10, 20),
    "/v1/images/generations": image_usage(50, 0, 1000),
}
PRICES = """prices:
  book:
    - {model: hears, usd_per_unit: {audio_seconds: "0.0001"}}
    - {model: translates, usd_per_mtok: {input: 1, input_audio: 10, output: 100}}
    - {model: speaks, usd_per_unit: {characters: "0.000015"}}
    - {model: draws, usd_per_mtok: {input: 1, output: 10}, usd_per_unit: {images: "0.01"}}
"""
ENDPOINTS = {
    "hears": "audio/transcriptions",
    "translates": "audio/translations",
    "speaks": "audio/speech",
    "draws": "images/generations",
}
#: Nano-USD of a request: 90 s; 10, 100 and 20 tokens; 1000 characters; 50 and 1000 tokens, 2 images.
COSTS = {"hears": 9_000_000, "translates": 3_010_000, "speaks": 15_000_000, "draws": 30_050_000}


def serve(request: RecordedRequest) -> Script:
    return well_behaved("Hello", usage=USAGE.get(request.path))(request)


def send(whole: Whole, model: str, **more: Any) -> httpx.Response:
    url, headers = f"{whole.url}/{ENDPOINTS[model]}", {"authorization": f"Bearer {whole.key}"}
    if ENDPOINTS[model].startswith("audio/trans"):
        form: Any = {"model": (None, model), "file": ("a.wav", more.pop("sound", wav(1)))}
        return httpx.post(url, files=form, headers=headers, timeout=60)
    asked = {"model": model, "input": "x" * 1000} if model == "speaks" else {"model": model, "n": 2}
    return httpx.post(url, json=asked | more, headers=headers, timeout=60)


def admin(whole: Whole, path: str) -> dict[str, Any]:
    token = (whole.data / "admin.token").read_text().strip()
    url = f"{whole.state.control_url}/admin/v1{path}"
    found: dict[str, Any] = httpx.get(url, headers={"authorization": f"Bearer {token}"}, timeout=30).json()
    return found


def test_the_bill_and_the_limit_agree(tmp_path: Path) -> None:
    await_period()
    with ThreadedUpstream(serve) as upstream:
        models = "".join(
            f"  {name}: {{endpoints: ['{endpoint}'], targets: [{{url: '{upstream.url}'}}]}}\n"
            for name, endpoint in ENDPOINTS.items()
        )
        text = f"gateway: {{port: 0, workers: 1}}\ncontrol: {{port: 0}}\nmodels:\n{models}{PRICES}"
        rule = "    - {team: default, cost_usd: 0.2, per: day, window: calendar}\n"
        with running(tmp_path, text + "limits:\n  rules:\n" + rule) as whole:
            for model in ENDPOINTS:
                got = send(whole, model)
                assert got.status_code == 200, got.text
            bill: dict[str, Any] = {}

            def is_billed() -> bool:
                bill.update(admin(whole, "/bill?by=model"))
                return int(bill["total"]["requests"]) == len(COSTS)

            wait_until(is_billed, 60, "all records on the bill")
            lines = {line["model"]: int(Decimal(line["cost_usd"]).scaleb(9)) for line in bill["data"]}
            assert lines == COSTS

            def count_used() -> int:
                limit = next(each for each in admin(whole, "/limits")["data"] if each["unit"] == "nano_usd")
                return -1 if limit["lent"] else int(limit["amount"] - limit["left"])

            wait_until(lambda: count_used() == sum(COSTS.values()), 60, "the limit agrees with the bill")
            # What would cost more than is left is refused before anything is sent.
            asked = len(upstream.requests)
            assert send(whole, "speaks", input="x" * 10_000).status_code == 429
            assert send(whole, "hears", sound=wav(2000)).status_code == 429
            assert send(whole, "draws", n=20).status_code == 429
            assert len(upstream.requests) == asked
