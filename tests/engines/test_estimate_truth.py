"""The estimate of a prompt's tokens against a real tokenizer: for each kind of text, how far it may be off.

`docs/limits.md` publishes the figures.  The embedded model's vocabulary is small and English, so other texts
are more tokens here than with large models.
"""

import base64
import json
import random
from pathlib import Path

import pytest
from engine_process import Engine

from forebay.providers.openai_estimate import MEDIA_TOKENS_MAX, estimate_input

ROOT = Path(__file__).parent.parent.parent
TEMPLATE_TOKENS = 10  #: that a chat puts around one message
CHINESE = (
    "人工智能是计算机科学的一个分支，它试图了解智能的实质，并生产出一种新的能以人类智能相似的方式做出反应的智能机器。"
    "该领域的研究包括机器人、语言识别、图像识别、自然语言处理和专家系统等。"
)
JAPANESE = (
    "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。"
    "何でも薄暗いじめじめした所でニャーニャー泣いていた事だけは記憶している。"
)
RUSSIAN = (
    "Все счастливые семьи похожи друг на друга, каждая несчастливая семья несчастлива по-своему. "
    "Все смешалось в доме Облонских. "
)
GERMAN = (
    "Jemand musste Josef K. verleumdet haben, denn ohne dass er etwas Böses getan hätte, wurde er eines "
    "Morgens verhaftet. Die Köchin der Frau Grubach, seiner Zimmervermieterin, kam diesmal nicht. "
)
#: Each kind of text, and the estimate as a part of the truth: least and most.
TEXTS = {
    "English prose": ((ROOT / "LICENSE").read_text()[:6000], 0.9, 1.6),
    "Markdown": ((ROOT / "ARCHITECTURE.md").read_text()[:6000], 0.6, 1.4),
    "code": ((ROOT / "src/forebay/net/client.py").read_text()[:6000], 0.7, 1.4),
    "JSON": (json.dumps([{"id": n, "name": f"user {n}", "score": n * 1.37} for n in range(90)]), 0.4, 1.2),
    "German": (GERMAN * 5, 0.5, 1.2),
    "Russian": (RUSSIAN * 5, 0.7, 1.8),
    "Chinese": (CHINESE * 5, 0.6, 1.5),
    "Japanese": (JAPANESE * 5, 0.6, 1.5),
    "emoji": ("😀🎉👍🔥" * 40, 0.4, 1.5),
    "random letters": (base64.b64encode(random.Random(1).randbytes(4000)).decode(), 0.25, 0.6),
}


def count_tokens(engine: Engine, text: str) -> int:
    status, body = engine.ask("/tokenize", {"content": text})
    assert status == 200, body
    return len(json.loads(body)["tokens"]) + TEMPLATE_TOKENS


def build_body(text: object, *, ascii_only: bool) -> bytes:
    asked = {"model": "m", "messages": [{"role": "user", "content": text}]}
    return json.dumps(asked, ensure_ascii=ascii_only).encode()


@pytest.mark.parametrize("ascii_only", [False, True], ids=["utf-8", "escaped"])
@pytest.mark.parametrize("kind", TEXTS)
def test_an_estimate_is_near_the_truth(llama: Engine, kind: str, ascii_only: bool) -> None:
    text, least, most = TEXTS[kind]
    ratio = estimate_input(build_body(text, ascii_only=ascii_only)) / count_tokens(llama, text)
    print(f"{kind}: {ratio:.2f}")
    assert least <= ratio <= most * (1.6 if ascii_only else 1)


@pytest.mark.parametrize("ascii_only", [False, True], ids=["utf-8", "escaped"])
def test_no_text_takes_more_than_four_times_its_estimate(llama: Engine, ascii_only: bool) -> None:
    """Also such as was made to: whatever is one token a byte."""
    luck = random.Random(1)
    letters = "\u0e01\u1780\u13a0\u2c00", "\U0001f600\u2603\u16a0"
    for alphabet in ("!?#$%&*()[]{};:,.<>/|", "qxzjkv", "0123456789", *letters):
        text = "".join(luck.choices(alphabet, k=2000))
        truth = count_tokens(llama, text)
        estimate = estimate_input(build_body(text, ascii_only=ascii_only))
        assert truth <= 4 * estimate + TEMPLATE_TOKENS, alphabet


@pytest.mark.parametrize("count", [1, 3])
def test_pictures_and_sound_count_as_so_many_tokens_whatever_their_bytes(count: int) -> None:
    data = base64.b64encode(bytes(1_000_000)).decode()
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    sound = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    text = {"type": "text", "text": "What is this? " * 400}
    for media in (picture, sound):
        alone = estimate_input(build_body([text], ascii_only=False))
        with_media = estimate_input(build_body([text, *[media] * count], ascii_only=False))
        assert 0 <= with_media - alone - count * MEDIA_TOKENS_MAX <= 50 * count
