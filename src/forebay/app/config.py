"""Reads `forebay.yaml` and the environment: the only module that does.

`load_config` returns a frozen `Config` or raises `ConfigInvalid` with every mistake at once; `check_config`
returns the mistakes and the warnings.  Nothing here changes a configuration, starts or writes anything.

Environment: `FOREBAY_CONFIG` names the file, `FOREBAY_API_KEY` holds the key for `forebay chat`; what a
secret's `env:NAME` names is looked up to see whether it is set.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import yaml
from pydantic import ValidationError

from forebay.app.config_checks import compute_check_problems
from forebay.app.config_checks_alerts import compute_alert_problems
from forebay.app.config_defaults import drop_left_out
from forebay.app.config_explain import explain_errors
from forebay.app.config_model import Config
from forebay.app.config_problems import ConfigInvalid, ConfigProblem, Severity
from forebay.app.config_source import Source, parse_source, read_source_bytes
from forebay.app.config_values import ConfigOrigin

__all__ = [
    "Config",
    "ConfigInvalid",
    "ConfigProblem",
    "Severity",
    "check_config",
    "dump_config",
    "find_config_file",
    "load_config",
]

CONFIG_FILE_NAME = "forebay.yaml"
API_KEY_VARIABLE = "FOREBAY_API_KEY"


def find_config_file(path: Path | None, env: Mapping[str, str] | None = None) -> Path | None:
    """The file that applies: the one given, or FOREBAY_CONFIG, or `forebay.yaml` here, or none."""
    env = os.environ if env is None else env
    if path is not None:
        return path
    if named := env.get("FOREBAY_CONFIG"):
        return Path(named)
    here = Path(CONFIG_FILE_NAME)
    return here if here.exists() else None


def load_config(
    path: Path | None = None, env: Mapping[str, str] | None = None, *, secrets_needed: bool = True
) -> Config:
    """The configuration that applies.

    Args:
        path: the file; None looks where `find_config_file` says.
        env: the environment; None takes the process's.
        secrets_needed: whether a reference to a secret that is not there is a mistake.  Commands that send
            nothing to a target pass False.

    Raises:
        ConfigInvalid: with every mistake at once.
    """
    config, problems = check_config(path, env)
    blocking = [
        problem
        for problem in problems
        if problem.severity is Severity.ERROR or (secrets_needed and problem.secret)
    ]
    if blocking or config is None:
        raise ConfigInvalid(blocking)
    return config


def check_config(
    path: Path | None = None, env: Mapping[str, str] | None = None
) -> tuple[Config | None, tuple[ConfigProblem, ...]]:
    """Every mistake and every warning, by line; and the configuration if there is no mistake."""
    env = os.environ if env is None else env
    file = find_config_file(path, env)
    folder = (file.parent if file else Path()).absolute()
    origin = ConfigOrigin(folder=folder, file=file.absolute() if file else None)
    try:
        source = parse_source(read_source_bytes(file), file) if file else Source.empty()
        source = replace(source, data=drop_left_out(source.data))
    except ConfigInvalid as error:
        return None, error.problems
    problems = list(source.problems)
    config: Config | None = None
    try:
        config = Config.model_validate(source.data, context=origin)
    except ValidationError as error:
        problems += explain_errors(error, source)
    problems += compute_check_problems(source, origin, env)
    problems += compute_alert_problems(source, origin, env)
    problems.sort(key=lambda problem: (problem.line or 0, problem.key))
    if any(problem.severity is Severity.ERROR for problem in problems):
        return None, tuple(problems)
    return config, tuple(problems)


def dump_config(config: Config) -> str:
    """All settings as YAML, defaults included.  Secrets are references and stay references."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=1000)


def read_api_key(env: Mapping[str, str] | None = None) -> str | None:
    """The key for `forebay chat` from the environment; None when it is not set or empty."""
    return (os.environ if env is None else env).get(API_KEY_VARIABLE) or None
