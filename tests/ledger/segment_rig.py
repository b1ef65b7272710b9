"""What the tests of segments share: a writer under a clock that stands still, and a reader of whole files."""

from pathlib import Path

from forebay.ledger.segment import SegmentWriter, read_frames


class StoppedClock:
    """The hardest clock for names that must differ: it always says the same."""

    def wall_ns(self) -> int:
        return 1_700_000_000_000_000_000

    def monotonic_ns(self) -> int:
        return 0


def make_writer(folder: Path, segment_max_bytes: int = 1 << 20) -> SegmentWriter:
    return SegmentWriter(folder, "0", segment_max_bytes, StoppedClock())


def write_file(folder: Path, payloads: list[bytes]) -> Path:
    writer = make_writer(folder)
    for payload in payloads:
        writer.append(payload)
    path = writer.path
    assert path is not None
    writer.close()
    return path


def read_all(path: Path) -> list[bytes]:
    return [payload for payload, _ in read_frames(path)]
