"""Sees edits of `forebay.yaml`, and says which of them take effect only after a restart.

An edit is read when the file has looked the same twice in a row, so one that is half written is not taken for
a whole.  What is not valid never replaces what is: the last valid configuration stays in force, and lies on
disk for the case that the control plane itself is restarted while the file is not valid.  A file that comes
where there was none is an edit like any other.
"""

import hashlib
import logging
import stat
from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from forebay.app.atomic_file import write_atomically
from forebay.app.config import Config, ConfigInvalid, ConfigProblem, load_config
from forebay.app.config_values import ConfigOrigin

logger = logging.getLogger("forebay.control")

Stamp = tuple[int, int, int]
#: Of a file without content.  To start with it is to start with the defaults, but as an edit it is what a
#: full disk, or an editor between two steps, leaves behind.
EMPTY = hashlib.sha256(b"").digest()


AGAIN_LOOKS: Final = 8  #: from one reading of an edit that was refused to the next


class ConfigWatch:
    """The configuration in force, and what is wrong with the file's newest content.

    Args:
        file: forebay.yaml; None when there can be none, and the defaults apply.
        saved: where the last valid configuration is kept; there only if a file with content was taken.
        defaults: what applies without a file.
        is_expected: whether the file was there when everything was started.
        started: what everything was started with; it applies where the file is not valid and none was kept.
        env: where references to secrets are looked up; None takes the process's.

    Raises:
        ConfigInvalid: the file is not valid, and there is no earlier one.
    """

    def __init__(
        self,
        file: Path | None,
        *,
        saved: Path,
        defaults: Config,
        is_expected: bool = True,
        started: Config | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.config = defaults
        self.problems: tuple[str, ...] = ()
        self._env = env
        self.file = file
        self._saved = saved
        self._stamp: Stamp | None = None  #: of the last look
        self._read_stamp: Stamp | None = None  #: of the content that was read last
        self._digest: bytes | None = None
        self._has_content = False  #: what is in force stood in the file
        self._looks = 0
        if file is None:
            return
        kept = load_saved_config(saved, file)
        if is_expected or kept is not None:
            self._read_first(file, kept, started)
        # Else what has come since the start is an edit: `poll` finds it, and it is told as one.

    def _read_first(self, file: Path, kept: Config | None, started: Config | None) -> None:
        self._stamp = self._read_stamp = self._look()
        self._digest = self._compute_digest()
        if kept is not None and self._digest in (None, EMPTY):
            self.config, self._has_content = kept, True
            self.problems = (self._explain_loss(),)
            return
        try:
            self.config = load_config(file, self._env)
        except ConfigInvalid as error:
            last = kept or started
            if last is None:
                raise
            self.config, self._has_content = last, True
            self.problems = tuple(map(render_edit_problem, error.problems))
            return
        if self._digest != EMPTY:
            self._keep()

    def poll(self) -> bool:
        """Looks at the file; whether anything changed: `config`, or `problems`."""
        if self.file is None:
            return False
        stamp, before = self._look(), self._stamp
        self._stamp = stamp
        if stamp != before:
            return False
        if stamp == self._read_stamp:
            return self._try_again(self.file)
        self._read_stamp = stamp
        digest = self._compute_digest()
        if digest == self._digest:
            return False
        if digest in (None, EMPTY):
            self._digest = digest
            problems: tuple[str, ...] = (self._explain_loss(),) if self._has_content else ()
            # Where the defaults apply, to have no content is to ask for what is in force.
            is_news, self.problems = bool(problems or self.problems), problems
            return is_news
        config, problems = self._load(self.file)
        if self._look() != stamp:
            return False  # it changed while it was read: the next looks take it
        self._digest, self.problems = digest, problems
        if config is not None:
            self.config = config
            self._keep()
        return True

    def _try_again(self, file: Path) -> bool:
        """What an edit was refused for may be mended without another one: a file that it names has come."""
        self._looks += 1
        if not self.problems or self._digest in (None, EMPTY) or self._looks % AGAIN_LOOKS:
            return False
        config, problems = self._load(file)
        if self._look() != self._read_stamp or problems == self.problems:
            return False
        self.problems = problems
        if config is not None:
            self.config = config
            self._keep()
        return True

    def _load(self, file: Path) -> tuple[Config | None, tuple[str, ...]]:
        try:
            return load_config(file, self._env), ()
        except ConfigInvalid as error:
            return None, tuple(map(render_edit_problem, error.problems))

    def _explain_loss(self) -> str:
        what = "can't be read" if self._digest is None else "is empty"
        return f"{self.file} {what} (put its content back; a restart without it takes the defaults)"

    def _keep(self) -> None:
        self._has_content = True
        try:
            save_config(self._saved, self.config)
        except OSError as error:
            logger.warning("the configuration in force can't be kept for a restart: %s", error)

    def _look(self) -> Stamp | None:
        if self.file is None:
            return None
        try:
            status = self.file.stat()
        except OSError:
            return None
        if not stat.S_ISREG(status.st_mode):
            return None  # to open a pipe is to wait, perhaps for ever
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _compute_digest(self) -> bytes | None:
        if self.file is None or self._look() is None:
            return None
        try:
            data = self.file.read_bytes()
        except OSError:
            return None
        return hashlib.sha256(data if data.strip() else b"").digest()


def render_edit_problem(problem: ConfigProblem) -> str:
    """As it is mended while everything runs: what is exported in another terminal does not get here."""
    if problem.secret and "environment variable" in problem.message:
        hint = (
            "it has to be in the environment of `forebay up`: export it and start that again, "
            "or use file:PATH, which takes effect at once"
        )
        problem = replace(problem, hint=hint)
    return problem.render()


def save_config(path: Path, config: Config) -> None:
    """Keeps a configuration as it applies, defaults included.  Raises OSError."""
    write_atomically(path, config.model_dump_json(indent=2).encode())


def load_saved_config(path: Path, file: Path | None) -> Config | None:
    """What `save_config` kept, as if read from `file`; None when there is nothing usable."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    try:
        return Config.model_validate_json(data, context=ConfigOrigin(folder=path.parent, file=file))
    except ValidationError:
        return None


#: Settings that are read at the start alone; engines are as well.
RESTART_SETTINGS: Final = (
    "data.dir",
    "data.database",
    "gateway.host",
    "gateway.port",
    "gateway.workers",
    "gateway.connections_max",
    "gateway.drain",
    "limits.authority",
    "limits.fleet",
    "control.host",
    "control.port",
    "ledger.segment_max_bytes",
    "ledger.keep_segments_s",
    "batch",
)
_RESTART: Final = tuple((name, attrgetter(name)) for name in RESTART_SETTINGS)


def list_restart_settings(running: Config, edited: Config) -> tuple[str, ...]:
    """The settings whose edit waits for the next `forebay up`, by their names in the file."""
    changed = [name for name, get in _RESTART if get(running) != get(edited)]
    for name in sorted({*running.engines, *edited.engines}):
        if running.engines.get(name) != edited.engines.get(name):
            changed.append(f"engines.{name}")
    return tuple(changed)
