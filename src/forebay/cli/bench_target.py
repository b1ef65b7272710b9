"""What a name stands for that `forebay bench` is given: a deployment, a pool, a model, an address.

Reads the configuration and, of what runs here, the fleet and the addresses; sends no load.
"""

import http.client
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

import msgspec

from forebay.app.bench_run import Target
from forebay.app.config import Config
from forebay.app.config_model import LlamaCppEngine, TargetConfig
from forebay.app.config_running import load_live_state
from forebay.app.deployment_views import DeploymentView
from forebay.app.secret_refs import read_secret
from forebay.app.up_children import load_last_engine_urls
from forebay.cli.bench_deployment import find_replicas, list_deployments
from forebay.cli.fleet import fetch_fleet
from forebay.cli.terminal import BadOption, Failure
from forebay.engines.hardware import detect_hardware
from forebay.engines.load_names import EngineKind

ASK_S: Final = 10.0
POOL, MODEL = "pool:", "model:"


class About(msgspec.Struct, kw_only=True):
    """What is measured, for the record."""

    target: Target
    name: str
    public: str = ""  #: the model's public name, of a pool or a deployment
    version: str = ""
    engine: str = ""
    engine_version: str = ""
    manifest_version: str | None = None  #: of the engine, as its manifest asks for it; None: it has none
    hardware: str = ""
    precision: str = ""


def find_target(
    config: Config | None, name: str, *, model: str | None, key: str | None, endpoint: str
) -> About:
    """A name in the configuration, or an address.

    Args:
        config: None where there is none that can be read; then only addresses are known.
        model: the model's name there, instead of what follows from the rest.
        key: a credential for an address or the gateway; None takes what the configuration has.

    Raises:
        Failure, BadOption: the name stands for nothing that can be measured.
    """
    if name.startswith(("http://", "https://")):
        url = name.rstrip("/")
        url = url if urlsplit(url).path else f"{url}/v1"
        target = Target(urls=(url,), model=model or _ask_model(url, key), secret=key or "", endpoint=endpoint)
        return About(target=target, name=name)
    if config is None:
        raise BadOption(
            f"there is no configuration, so {name!r} must be an address", hint="http://HOST:PORT/v1"
        )
    bare = name.removeprefix(POOL).removeprefix(MODEL)
    deployments = list_deployments(config)
    deployment = next((each for each in deployments if each.name == bare), None)
    if deployment is not None and not name.startswith(MODEL):
        return _describe_deployment(config, deployment, model, endpoint)
    listed = None if name.startswith(MODEL) else _find_in_pool(config, bare)
    if listed is not None:
        public, found = listed
        return _describe_pool(config, bare, public, found, model, endpoint)
    models = {*config.models, *(each.model for each in deployments)}
    if bare in models and not name.startswith(POOL):
        return _describe_model(config, bare, key, endpoint)
    raise _tell_unknown(config, bare, deployments, models)


def _tell_unknown(
    config: Config, name: str, deployments: Sequence[DeploymentView], models: Collection[str]
) -> BadOption:
    pools = {target.chosen_pool for each in config.models.values() for target in each.targets}
    known = {"deployments": {each.name for each in deployments}, "pools": pools, "models": set(models)}
    told = [f"{what}: {', '.join(sorted(names)) or 'none'}" for what, names in known.items()]
    if load_live_state(config.state_path) is None:
        told[0] = "deployments: known where Forebay runs, `forebay up`"
    return BadOption(
        f"{name!r} is neither a deployment, a pool nor a model", hint=f"{'; '.join(told)}; or give an address"
    )


def _describe_deployment(config: Config, view: DeploymentView, model: str | None, endpoint: str) -> About:
    target = find_replicas(view, model, endpoint)
    engine, _, version = view.engine.partition(" ")
    return About(
        target=target,
        name=view.name,
        public=view.model if target.model == view.model else "",  # of an adapter nothing is asked for
        version=view.version,
        engine=engine,
        engine_version=_find_engine_version(config, target.urls[0]),
        manifest_version=version,
        hardware=view.hardware,
        precision=view.precision,
    )


def _find_in_pool(config: Config, pool: str) -> tuple[str, TargetConfig] | None:
    """The first model that is served there, by its public name, and the target that says so."""
    for public, model in config.models.items():
        for target in model.targets:
            if target.chosen_pool == pool and target.dialect == "openai":
                return public, target
    return None


def _describe_pool(
    config: Config, pool: str, public: str, target: TargetConfig, model: str | None, endpoint: str
) -> About:
    own = config.pools.get(pool)
    if target.engine is not None:
        url = load_last_engine_urls(config).get(target.engine)
        if url is None or load_live_state(config.state_path) is None:
            raise Failure(f"the engine {target.engine} does not run here", hint="start it with `forebay up`")
        urls: tuple[str, ...] = (url,)
    else:
        urls = (target.url,) if target.url is not None else own.replicas if own is not None else ()
    if not urls:
        raise Failure(f"the pool {pool} has no replicas", hint="give it `replicas` in forebay.yaml")
    try:
        secret = "" if target.api_key is None else read_secret(target.api_key)
    except LookupError as error:
        raise Failure(f"the pool's credential is missing: {error}") from None
    engine, hardware, precision = (
        (own.engine or "", own.hardware or "", own.precision or "") if own is not None else ("", "", "")
    )
    if target.engine is not None:
        here = config.engines.get(target.engine)
        engine = EngineKind.LLAMA_CPP.value if isinstance(here, LlamaCppEngine) else engine
        hardware = hardware or detect_hardware()
    there = model or target.chosen_model(public)
    return About(
        target=Target(
            urls=tuple(url.rstrip("/") for url in urls), model=there, secret=secret, endpoint=endpoint
        ),
        name=pool,
        public=public,
        version=target.version or (own.version if own is not None else None) or "",
        engine=engine,
        engine_version=_find_engine_version(config, urls[0]),
        hardware=hardware,
        precision=precision,
    )


def _find_engine_version(config: Config, url: str) -> str:
    with suppress(Failure):
        for replica in fetch_fleet(config).data:
            if replica.url == url.rstrip("/"):
                return replica.engine_version or ""
    return ""


def _describe_model(config: Config, name: str, key: str | None, endpoint: str) -> About:
    """Through the gateway that runs here."""
    state = load_live_state(config.state_path)
    if state is None:
        raise Failure("no Forebay runs here, through which a model could be asked", hint="forebay up")
    secret = key
    if secret is None:
        with suppress(OSError, UnicodeDecodeError):
            secret = config.local_key_path.read_text().strip()
    target = Target(urls=(f"{state.gateway_url}/v1",), model=name, secret=secret or "", endpoint=endpoint)
    return About(target=target, name=name)


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def _ask_model(url: str, key: str | None) -> str:
    """The first model that a server lists.  Raises Failure."""
    parts = urlsplit(url)
    make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    try:
        connection = make(parts.hostname or "", parts.port, timeout=ASK_S)
        connection.request(
            "GET", f"{parts.path}/models", headers={"authorization": f"Bearer {key}"} if key else {}
        )
        answer = connection.getresponse()
        body = answer.read(1 << 20)
        connection.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Failure(f"{url} does not answer: {error or type(error).__name__}") from None
    try:
        models = msgspec.json.decode(body, type=_Models).data
    except (msgspec.MsgspecError, UnicodeError):
        models = []
    if answer.status != 200 or not models:
        raise Failure(
            f"{url}/models lists no model (it answered {answer.status})", hint="name it: --model NAME"
        )
    return models[0].id
