"""`forebay models verify` and `gc`: what the registry keeps on this machine, looked after."""

from pathlib import Path
from typing import Final

import msgspec

from forebay.cli.models import open_models
from forebay.cli.models_progress import follow, format_size
from forebay.cli.tenancy import print_json
from forebay.cli.terminal import Outcome, print_line, print_note
from forebay.registry.disk import Damage
from forebay.registry.model import ModelVersion
from forebay.registry.reference import check_name, parse_reference

_SHOWN_MAX: Final = 20  #: files of one content that are told


def verify(file: Path | None, text: str | None, *, as_json: bool) -> Outcome:
    with open_models(file) as opened:
        registry = opened.registry
        if text is None:
            versions = [each for model in registry.repo.list_models() for each in model.versions]
        elif "@" in text:
            versions = [registry.repo.resolve(parse_reference(text))]
        else:
            versions = list(registry.repo.get_model(check_name(text)).versions)
        found: dict[str, Damage] = {}
        total = sum({each.digest: each.size_bytes for each in versions}.values())
        with follow("verify", total) as report:
            for version in versions:
                if version.digest not in found:
                    found[version.digest] = registry.verify(version, report)
    if as_json:
        print_json({each.written: _describe(found[each.digest]) for each in versions})
    else:
        for version in sorted(versions, key=lambda each: (each.name, each.version)):
            _print_damage(version, found[version.digest])
        if not versions:
            print_note("no model is registered here")
    return Outcome.OK if all(each.is_whole for each in found.values()) else Outcome.PROBLEM


def _describe(damage: Damage) -> dict[str, object]:
    return {"whole": damage.is_whole, **msgspec.to_builtins(damage)}


def _print_damage(version: ModelVersion, damage: Damage) -> None:
    if damage.is_whole:
        print_line(f"{version.written}: whole")
        return
    print_line(
        f"{version.written}: not what was registered; register its content again, which mends it "
        f"(`forebay models register {version.name} PATH`)"
    )
    for what in ("changed", "missing", "extra"):
        names = getattr(damage, what)
        for path in names[:_SHOWN_MAX]:
            print_line(f"  {what}: {path}")
        if len(names) > _SHOWN_MAX:
            print_line(f"  {what}: and {len(names) - _SHOWN_MAX} more")


def collect_garbage(file: Path | None, *, is_meant: bool, as_json: bool) -> Outcome:
    with open_models(file) as opened:
        garbage = opened.registry.collect(is_meant=is_meant)
    if as_json:
        key = "removed" if is_meant else "would_remove"
        print_json({key: [msgspec.to_builtins(each) for each in garbage]})
        return Outcome.OK
    for each in garbage:
        verb = "removed" if is_meant else "would remove"
        print_line(f"{verb} {each.path}: {each.why} ({format_size(each.size_bytes)})")
    if not garbage:
        print_note("there is nothing to remove")
    elif not is_meant:
        total = format_size(sum(each.size_bytes for each in garbage))
        print_note(f"nothing was removed: `forebay models gc --yes` gives {total} back")
    return Outcome.OK
