"""Results of benchmarks in the data folder, one file each: a line of JSON.  Nothing here measures.

A file holds what was measured on what (model, version, engine, engine_version, hardware, precision), the
figures of the best level, and each level with its samples, so that two can be compared later.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from forebay.app.atomic_file import write_atomically
from forebay.app.bench_run import Level, Load
from forebay.app.bench_stats import Sample

FOLDER: Final = "bench"
SAMPLES_MAX: Final = 5_000  #: of a level, kept evenly spaced
GAPS_MAX: Final = 64  #: of a sample
FILE_MAX_BYTES: Final = 1 << 28


class BenchResult(msgspec.Struct, kw_only=True):
    """One run.

    Attributes:
        figures: of the level with the most output tokens a second.
        asked: how it was asked: prompts, seed and the like, as far as they are needed to do it again.
        replicas: that were asked, in turn.
    """

    target: str
    at_ns: int
    model: str
    version: str = ""
    engine: str = ""
    engine_version: str = ""
    hardware: str = ""
    precision: str = ""
    figures: dict[str, float] = {}
    slo_s: dict[str, float] = {}
    asked: dict[str, Any] = {}
    replicas: int = 1
    levels: list[Level] = []


def find_best(levels: list[Level]) -> Level:
    """The level that stands for a run: the one with the most goodput, else with the most output."""
    return max(
        levels,
        key=lambda level: (
            level.figures.get("goodput_per_s", 0.0),
            level.figures.get("output_tokens_per_s", 0.0),
        ),
    )


def save_bench(data_path: Path, result: BenchResult) -> Path:
    """Writes a result below the data folder.  Raises OSError."""
    folder = data_path / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    at = datetime.fromtimestamp(result.at_ns / 1e9, UTC).strftime("%Y%m%dT%H%M%S")
    name = "".join(each if each.isalnum() or each in "-_." else "-" for each in result.target)[:80]
    path = folder / f"{at}-{result.at_ns % 1_000_000_000:09d}-{name.strip('.')}.json"
    slim = msgspec.structs.replace(result, levels=[_thin(level) for level in result.levels])
    write_atomically(path, msgspec.json.encode(slim) + b"\n")
    return path


def _thin(level: Level) -> Level:
    """With as many samples, and gaps of each, as are worth keeping; figures were made of all of them."""
    step = max(1, -(-len(level.samples) // SAMPLES_MAX))
    kept = [_round(sample) for sample in level.samples[::step]]
    return msgspec.structs.replace(level, samples=kept)


def _round(sample: Sample) -> Sample:
    step = max(1, -(-len(sample.itl_s) // GAPS_MAX))
    return Sample(
        lag_s=round(sample.lag_s, 6),
        ttft_s=round(sample.ttft_s, 6),
        e2el_s=round(sample.e2el_s, 6),
        itl_s=[round(gap, 6) for gap in sample.itl_s[::step]],
        input_tokens=sample.input_tokens,
        output_tokens=sample.output_tokens,
        error=sample.error,
    )


def load_bench(path: Path) -> BenchResult:
    """Raises OSError, ValueError."""
    if path.stat().st_size > FILE_MAX_BYTES:
        raise ValueError(f"{path} is too long for a result")
    try:
        return msgspec.json.decode(path.read_bytes(), type=BenchResult)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise ValueError(f"{path} is no result of `forebay bench`: {error}") from None


def list_benches(data_path: Path) -> Iterator[Path]:
    """The newest first."""
    folder = data_path / FOLDER
    yield from sorted(folder.glob("*.json"), reverse=True) if folder.is_dir() else ()


def find_bench(data_path: Path, name: str) -> BenchResult:
    """A file, or the newest result of a target.  Raises OSError, ValueError."""
    path = Path(name)
    if path.is_file():
        return load_bench(path)
    for each in list_benches(data_path):
        result = load_bench(each)
        if result.target == name:
            return result
    raise ValueError(f"{name} is neither a file nor a target with a result in {data_path / FOLDER}")


def describe_load(load: Load) -> str:
    return load.describe()
