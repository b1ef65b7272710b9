"""Manifests are kept, shown and audited as they are written: what is a secret has no place in them."""

from forebay.app.deployment_arguments import find_argument_problems


def test_a_token_among_an_engines_arguments_is_refused_with_the_way_to_give_it() -> None:
    for name in ("hf-token", "hf_token"):
        (found,) = find_argument_problems("vllm", "", {name: "hf_0123456789"})
        assert "HF_TOKEN" in found.hint
        assert "hf_0123456789" not in f"{found.message} {found.hint}"
