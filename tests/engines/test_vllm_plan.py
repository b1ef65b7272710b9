"""The command line of vLLM that a specification gives; `tests/vllm` has the real one read it."""

from forebay.engines.model import DRAIN_S, EngineSpec, Speculation
from forebay.engines.plan import Place, plan_engine
from forebay.engines.vllm_options import MODULE

PLACE = Place(port=18000, python="/environment/bin/python")


def make(**settings: object) -> EngineSpec:
    return EngineSpec(name="chat", kind="vllm", model="/models/chat", **settings)  # type: ignore[arg-type]


def test_it_runs_from_its_environment() -> None:
    plan = plan_engine(make(threads=2, slots=8, context_tokens=2048), PLACE)
    assert plan.argv[:4] == ("/environment/bin/python", "-m", MODULE, "serve")
    assert {
        "--model=/models/chat",
        "--served-model-name=chat",
        "--host=127.0.0.1",
        "--port=18000",
        "--max-model-len=2048",
        "--max-num-seqs=8",
    } <= set(plan.argv)
    assert plan.health_url == "http://127.0.0.1:18000/health"
    assert plan.env["OMP_NUM_THREADS"] == "2"
    assert plan.env["VLLM_NO_USAGE_STATS"] == plan.env["DO_NOT_TRACK"] == plan.env["HF_HUB_OFFLINE"] == "1"


def test_answers_in_flight_may_leave() -> None:
    plan = plan_engine(make(), PLACE)
    assert f"--shutdown-timeout={int(DRAIN_S)}" in plan.argv
    assert plan.stop_timeout_s > DRAIN_S
    plan = plan_engine(make(arguments={"shutdown-timeout": 5}), PLACE)
    assert "--shutdown-timeout=5" in plan.argv
    assert not any(each == f"--shutdown-timeout={int(DRAIN_S)}" for each in plan.argv)


def test_arguments_are_written_as_vllm_reads_them() -> None:
    arguments = {
        "enforce-eager": True,
        "enable-prefix-caching": False,
        "dtype": "float32",
        "ignore-patterns": ("a", "b"),
    }
    argv = plan_engine(make(arguments=arguments), PLACE).argv
    assert "--enforce-eager" in argv
    assert "--no-enable-prefix-caching" in argv
    assert "--dtype=float32" in argv
    place = argv.index("--ignore-patterns")
    assert argv[place + 1 : place + 3] == ("a", "b")


def test_adapters_are_loaded_by_their_names() -> None:
    argv = plan_engine(make(adapters={"legal": "/lora/legal", "tone": "/lora/tone"}), PLACE).argv
    assert "--enable-lora" in argv
    assert "--max-loras=2" in argv
    place = argv.index("--lora-modules")
    assert argv[place + 1 : place + 3] == (
        '{"name":"legal","path":"/lora/legal"}',
        '{"name":"tone","path":"/lora/tone"}',
    )


def test_speculation_is_said_in_vllm_s_words() -> None:
    ngram = Speculation(method="ngram", tokens=4, lookup_max=5)
    argv = plan_engine(make(speculation=ngram), PLACE).argv
    assert '--speculative-config={"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":5}' in argv
    draft = Speculation(method="draft", tokens=2, model="/models/small")
    argv = plan_engine(make(speculation=draft), PLACE).argv
    assert (
        '--speculative-config={"method":"draft_model","model":"/models/small","num_speculative_tokens":2}'
        in argv
    )
