"""What one check of `forebay doctor` found."""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`hint` says how to mend it, and is empty where nothing is to mend."""

    name: str
    verdict: Verdict
    message: str
    hint: str = ""
