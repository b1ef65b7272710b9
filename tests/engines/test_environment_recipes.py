"""Recipes, what names an environment, and the Dockerfile that says the same."""

import dockerfile
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.engines.environment import (
    EnvironmentInvalid,
    Platform,
    Recipe,
    Repair,
    ReplaceFile,
    Uninstall,
    WriteMetadata,
    compute_digest,
    list_packages,
    read_pins,
)
from forebay.engines.environment_dockerfile import render_dockerfile
from forebay.engines.environment_recipes import find_recipe, list_recipes, load_recipe
from forebay.engines.hardware import classify, detect_hardware
from forebay.engines.plan import PLANS

PLATFORM = Platform(python="3.11.2", system="linux-x86_64-glibc2.36")
NAMES = list_recipes()


def test_there_are_the_recipes_that_docs_tell_of() -> None:
    assert NAMES == ("llamacpp", "vllm-cpu", "vllm-cuda")


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_pins_its_engine_and_names_no_place(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.engine in PLANS
    packages = list_packages(recipe.requirements)
    assert recipe.version in packages.values()
    assert all("--hash=sha256:" in pin for pin in read_pins(recipe.requirements))
    for word in ("http:", "https:", "file:", "index-url", "find-links", "@ "):
        assert word not in recipe.requirements
    for repair in recipe.repairs:
        if isinstance(repair, Uninstall):
            assert set(repair.packages) <= set(packages)
        assert repair.why


def test_a_recipe_is_found_by_engine_and_hardware() -> None:
    assert find_recipe("vllm", "", "cpu-avx512").name == "vllm-cpu"
    assert find_recipe("vllm", "0.32.0", "cpu").name == "vllm-cpu"
    assert find_recipe("vllm", "", "cuda-h100").name == "vllm-cuda"
    with pytest.raises(
        EnvironmentInvalid, match=r"no recipe for vllm 9.9 on cpu. There are: .*vllm 0.32.0 on cpu"
    ):
        find_recipe("vllm", "9.9", "cpu")
    with pytest.raises(EnvironmentInvalid, match="There are llamacpp"):
        load_recipe("../../etc/passwd")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("engine", "other"),
        ("version", "0.0.1"),
        ("revision", 99),
        ("hardware", "cuda"),
        ("python", "3.12"),
        ("repairs", ()),
        ("env", {"ANOTHER": "1"}),
        ("requirements", "xllamacpp==1 --hash=sha256:00"),
    ],
)
def test_all_that_decides_the_content_is_in_the_digest(field: str, value: object) -> None:
    recipe = load_recipe("vllm-cpu")
    changed = msgspec.structs.replace(recipe, **{field: value})
    assert compute_digest(changed, PLATFORM) != compute_digest(recipe, PLATFORM)


def test_what_people_read_is_not_in_the_digest() -> None:
    recipe = load_recipe("vllm-cpu")
    changed = msgspec.structs.replace(recipe, name="other", summary="other", size_mib=1)
    assert compute_digest(changed, PLATFORM) == compute_digest(recipe, PLATFORM)


def test_the_platform_is_in_the_digest() -> None:
    recipe = load_recipe("llamacpp")
    for other in (
        Platform(python="3.11.3", system=PLATFORM.system),
        Platform(python="3.11.2", system="linux-aarch64-glibc2.36"),
    ):
        assert compute_digest(recipe, other) != compute_digest(recipe, PLATFORM)


@given(st.lists(st.sampled_from(["", "# a word", "   "]), min_size=1, max_size=4))
def test_the_layout_of_the_pinned_file_is_not_in_the_digest(noise: list[str]) -> None:
    recipe = load_recipe("llamacpp")
    pins = read_pins(recipe.requirements)
    split = " \\\n    --hash"
    text = "\n".join([*noise, *(line.replace(" --hash", split) for line in pins), *noise])
    changed = msgspec.structs.replace(recipe, requirements=text)
    assert compute_digest(changed, PLATFORM) == compute_digest(recipe, PLATFORM)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("package", "not pinned"),
        ("package>=1", "not pinned"),
        ("package @ https://example.com/p.whl", "not pinned"),
        ("package==1", "no hash"),
        ("--index-url https://example.com", "may hold requirements alone"),
        ("-e .", "may hold requirements alone"),
    ],
)
def test_a_line_that_pins_nothing_is_refused(line: str, why: str) -> None:
    with pytest.raises(EnvironmentInvalid, match=why):
        read_pins(line)


def parse(recipe: Recipe) -> list[tuple[str, str]]:
    """Commands of the rendered file, by Docker's own parser."""
    return [(each.cmd, each.original) for each in dockerfile.parse_string(render_dockerfile(recipe, "1.2.3"))]


def list_words(repair: Repair) -> tuple[str, ...]:
    """What a command that carries a repair out must hold."""
    match repair:
        case Uninstall():
            return repair.packages
        case ReplaceFile():
            return (repair.path, repair.text.strip())
        case WriteMetadata():
            return (repair.name, repair.version)


@pytest.mark.parametrize("name", NAMES)
def test_a_dockerfile_says_what_the_recipe_does(name: str) -> None:
    recipe = load_recipe(name)
    commands = parse(recipe)
    text = "\n".join(original for _, original in commands)
    first, *_ = commands
    assert first == ("FROM", f"FROM {recipe.container.base}")
    # The pins, all of them, in front of an installation that takes nothing without its hash.
    rendered = render_dockerfile(recipe, "1.2.3")
    for pin in read_pins(recipe.requirements):
        assert f"\n{pin}\n" in rendered
    install = next(original for cmd, original in commands if cmd == "RUN" and "pip install" in original)
    assert {"--require-hashes", "--no-deps", "--no-cache-dir"} <= set(install.split())
    for repair in recipe.repairs:
        for word in list_words(repair):
            assert word in text
    # Nobody runs as root, and whether it works is asked.
    kinds = [cmd for cmd, _ in commands]
    user = next(original for cmd, original in commands if cmd == "USER")
    assert user.split()[1] not in ("0", "root")
    assert kinds.index("USER") < kinds.index("ENTRYPOINT")
    assert kinds.count("HEALTHCHECK") == 1
    assert "/health" in next(original for cmd, original in commands if cmd == "HEALTHCHECK")
    for variable, value in recipe.env.items():
        assert f'ENV {variable}="{value}"' in text
    assert "http://" not in text.replace("http://127.0.0.1", "")
    assert "https://" not in text
    # Whoever needs an index gives it as an argument, which leaves nothing in the image.
    assert "ARG PIP_INDEX_URL" in text
    assert ("ARG FOREBAY_WHEEL=forebay-1.2.3-py3-none-any.whl" in text) == recipe.container.needs_forebay


def test_classes_of_hardware() -> None:
    assert classify((), frozenset({"avx2"})) == "cpu"
    assert classify((), frozenset({"avx2", "avx512f"})) == "cpu-avx512"
    assert classify((), frozenset(), "aarch64") == "cpu-arm64"
    assert classify(("NVIDIA H100 80GB HBM3",), frozenset()) == "cuda-h100"
    assert classify(("NVIDIA H200",), frozenset({"avx512f"})) == "cuda-h200"
    assert classify(("Tesla T4",), frozenset()) == "cuda-t4"
    assert classify(("NVIDIA A100-SXM4-80GB",), frozenset()) == "cuda-a100"
    assert classify(("NVIDIA GeForce RTX 4090",), frozenset()) == "cuda-rtx-4090"
    assert classify(("NVIDIA",), frozenset()) == "cuda-unknown"
    assert detect_hardware().startswith(("cpu", "cuda"))
