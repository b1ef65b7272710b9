"""OpenAI's client for Node: its forms are read, and audio and images reach it as they are."""

import base64
import json
import subprocess

import pytest
from client_cases import NODE, NODE_MAX_S, explain_no_node
from gateway_stage import Stage

from forebay.testing.gateway import GatewayProcess
from forebay.testing.media import PNG, read_form, srt, wav, well_behaved


def test_audio_and_images_by_the_client_for_node(gateway: GatewayProcess, upstream: Stage) -> None:
    if why := explain_no_node():
        pytest.skip(why)
    upstream.answer = well_behaved("Hel", "lo", sound=[b"\xff\xfb", b"\0" * 5000])
    told = {"origin": gateway.origin, "key": gateway.key, "model": "alias"}
    told |= {"sound": base64.b64encode(wav(0.3)).decode(), "picture": base64.b64encode(PNG).decode()}
    done = subprocess.run(
        ["node", "media.mjs"],
        cwd=NODE,
        input=json.dumps(told),
        capture_output=True,
        text=True,
        timeout=NODE_MAX_S,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert base64.b64decode(said.pop("spoken")) == b"\xff\xfb" + b"\0" * 5000
    assert said == {
        "heard": "Hello",
        "subtitles": srt("Hello").decode(),
        "events": ["transcript.text.delta", "transcript.text.delta", "transcript.text.done"],
        "translated": "Hello",
        "drawn": 2,
        "edited": 1,
        "varied": 1,
        "pictures": ["image_generation.partial_image", "image_generation.completed"],
        "error": ["NotFoundError", 404],
    }
    forms = [
        read_form(request) for request in upstream.requests if request.path.startswith("/v1/audio/trans")
    ]
    assert len(forms) == 4
    for form in forms:
        fields = {field.name: field.value for field in form}
        assert (fields["model"], fields["file"]) == (b"the-name-there", wav(0.3))
