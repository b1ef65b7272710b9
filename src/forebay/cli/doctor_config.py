"""Checks of the configuration: what is wrong in the file, which secrets are there, what waits for a restart.

A Forebay that runs may have what this shell lacks, and uses its last valid configuration while the file has
mistakes: what it has is asked of its data folder, never of the processes.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from forebay.app.applied import load_applied
from forebay.app.config import Config, ConfigProblem, Severity, check_config
from forebay.app.config_edit import load_edit
from forebay.app.config_problems import format_key
from forebay.app.config_running import STARTED_CONFIG, load_live_state, load_running_config
from forebay.app.control_watch import list_restart_settings, load_saved_config
from forebay.cli.finding import Finding, Verdict
from forebay.core.routes import decode_snapshot

_SEE = "see `forebay config check`"


def check_configuration(file: Path | None) -> tuple[Config | None, Finding]:
    """The configuration that the other checks are about, and what there is to say of the file.

    Where the file has mistakes, it is the one that runs; None where none does.
    """
    config, problems = check_config(file)
    if config is None:
        mistakes = [problem for problem in problems if problem.severity is Severity.ERROR]
        more = f", and {len(mistakes) - 1} more" if len(mistakes) > 1 else ""
        running = load_running_config(file)
        goes_on = "; the gateway that runs goes on with the last valid configuration" if running else ""
        message = f"{mistakes[0].render()}{more}{goes_on}"
        return running, Finding(name="configuration", verdict=Verdict.FAIL, message=message, hint=_SEE)
    missing = [problem for problem in problems if problem.secret]
    if missing:
        return config, _explain_missing(config, missing)
    if problems:
        message = problems[0].render()
        return config, Finding(name="configuration", verdict=Verdict.WARN, message=message, hint=_SEE)
    message = str(config.file or "no file, the defaults apply")
    return config, Finding(name="configuration", verdict=Verdict.OK, message=message)


def check_edits(config: Config) -> Iterator[Finding]:
    """Whether what runs has refused the last edit, or waits for a restart to apply one."""
    if load_live_state(config.state_path) is None:
        return
    edit = load_edit(config.run_path)
    if edit is not None and edit.problems:
        yield Finding(name="last edit", verdict=Verdict.WARN, message=edit.describe())
    started = load_saved_config(config.run_path / STARTED_CONFIG, config.file)
    if started is None:
        return
    if waiting := list_restart_settings(started, config):
        yield Finding(
            name="restart",
            verdict=Verdict.WARN,
            message=f"edited, and in force after a restart only: {', '.join(waiting)}",
            hint="end `forebay up` and start it again",
        )


def _explain_missing(config: Config, missing: list[ConfigProblem]) -> Finding:
    served = find_served_secrets(config)
    references = {
        format_key(("models", name, "targets", index, "api_key")): target.api_key
        for name, model in config.models.items()
        for index, target in enumerate(model.targets)
    }
    nowhere = [problem for problem in missing if references.get(problem.key) not in served]
    if nowhere:
        message = nowhere[0].render()
        return Finding(name="configuration", verdict=Verdict.FAIL, message=message, hint=_SEE)
    first = missing[0]
    return Finding(
        name="configuration",
        verdict=Verdict.WARN,
        message=f"{first.key}: {first.message} here; the gateway that runs has it",
        hint=f"{first.hint} before the next `forebay up`",
    )


def find_served_secrets(config: Config) -> frozenset[str]:
    """References to secrets that every worker of the gateway that runs could resolve."""
    state = load_live_state(config.state_path)
    workers = [child for child in state.children if child.name.startswith("worker-")] if state else []
    try:
        snapshot = decode_snapshot(config.snapshot_path.read_bytes())
    except (OSError, msgspec.MsgspecError):
        return frozenset()
    applied, newest = load_applied(config.run_path), snapshot.compute_hash()
    problems: list[str] = []
    for worker in workers:
        told = applied.get(worker.name)
        if told is None or told.pid != worker.pid or told.snapshot_hash != newest:
            return frozenset()  # it does not say what it has now
        problems += told.problems
    targets = [target for route in snapshot.table.routes for target in route.targets]
    lacking = {
        target.api_key for target in targets for problem in problems if f"target {target.id} " in problem
    }
    named = {target.api_key for target in targets if target.api_key is not None}
    return frozenset(named - lacking) if workers else frozenset()
