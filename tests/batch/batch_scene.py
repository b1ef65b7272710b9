"""What the tests of files and batches stand on: a real worker, the process of batches, and an upstream."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from openai import OpenAI

from forebay.app.batch_place import make_batch_secret, open_batch_listener
from forebay.app.config import Config
from forebay.app.config_values import ConfigOrigin
from forebay.app.control_watch import save_config
from forebay.core.keys import KeyEntry
from forebay.core.routes import Route
from forebay.store.database import Database
from forebay.testing.gateway import TEST_KEY, GatewayProcess, make_key

LIMIT_S = 60.0


class BatchScene:
    """A data folder with a gateway worker and the process of batches.

    Args:
        settings: of `batch` in the configuration.
    """

    def __init__(
        self,
        folder: Path,
        routes: Sequence[Route],
        *,
        keys: Sequence[KeyEntry] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder = folder
        run_dir = folder / "run"
        run_dir.mkdir(parents=True)
        origin = ConfigOrigin(folder=folder, file=None)
        sections = {"data": {"dir": str(folder)}, "batch": dict(settings or {})}
        self.config = Config.model_validate(sections, context=origin)
        self.database = Database.open(self.config.database_path)
        self.database.migrate()
        save_config(run_dir / "started.json", self.config)
        make_batch_secret(run_dir)
        self._listener = open_batch_listener(run_dir)
        self.gateway = GatewayProcess(routes, folder=folder, keys=[make_key()] if keys is None else keys)
        self._log = folder / "batch.log"
        self.process: subprocess.Popen[bytes]

    def start(self) -> None:
        """The process of batches, anew."""
        fd = self._listener.fileno()
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "forebay.app.batch", "--data", str(self.folder)),
                    *("--started-json", str(self.folder / "run" / "started.json")),
                    *("--gateway-url", self.gateway.origin, "--listen-fd", str(fd)),
                ],
                pass_fds=(fd,),
                env=dict(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8", "replace")

    def client(self, key: str = TEST_KEY) -> OpenAI:
        return OpenAI(base_url=self.gateway.url, api_key=key, max_retries=0, timeout=LIMIT_S)

    def until(self, is_true: Callable[[], Any], limit_s: float = LIMIT_S) -> Any:
        deadline = time.monotonic() + limit_s
        while not (found := is_true()):
            assert time.monotonic() < deadline, f"not within {limit_s} s; the log:\n{self.log}"
            time.sleep(0.02)
        return found

    def __enter__(self) -> Self:
        self.gateway.start()
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self.gateway.close()
        self._listener.close()
        self.database.close()
