"""`forebay doctor`: runs every check, shows what each found, and says how to mend what is wrong."""

from pathlib import Path

import msgspec

from forebay.cli.doctor_authority import check_authority, check_sharing
from forebay.cli.doctor_config import check_configuration, check_edits
from forebay.cli.doctor_deployments import check_deployments
from forebay.cli.doctor_engines import check_engines
from forebay.cli.doctor_machine import (
    check_data_folder,
    check_disk,
    check_limits,
    check_packages,
    check_python,
)
from forebay.cli.doctor_oidc import check_identity_provider
from forebay.cli.doctor_running import check_ports, check_running
from forebay.cli.doctor_targets import check_targets
from forebay.cli.finding import Finding, Verdict
from forebay.cli.tables import WIDE_COLUMNS, Cell, Column, Table, print_table, terminal_columns
from forebay.cli.terminal import Outcome, is_plain, paint, print_line

_STYLES = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red"}


def doctor(file: Path | None, *, as_json: bool) -> Outcome:
    findings = examine(file)
    failed = sum(finding.verdict is Verdict.FAIL for finding in findings)
    if as_json:
        value = {"ok": not failed, "findings": findings}
        print_line(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
    else:
        _print_findings(findings)
        _print_verdict(findings)
    return Outcome.PROBLEM if failed else Outcome.OK


def examine(file: Path | None) -> list[Finding]:
    """All findings.  Where the configuration can't be used, what depends on it is left out."""
    findings = [check_python(), *check_packages()]
    config, finding = check_configuration(file)
    findings.append(finding)
    if config is None:
        return findings
    findings += [*check_data_folder(config), check_disk(config), check_limits(config)]
    findings += check_engines(config)
    findings += check_targets(config)
    findings += check_authority(config)
    findings += check_identity_provider(config)
    findings += check_ports(config)
    findings += check_running(config)
    findings += check_deployments(config)
    findings += check_sharing(config)
    if finding.verdict is not Verdict.FAIL:
        findings += check_edits(config)
    return findings


def _print_findings(findings: list[Finding]) -> None:
    if is_plain():
        for each in findings:
            hint = f" ({each.hint})" if each.hint else ""
            print_line(f"{each.verdict:<4}  {each.name}: {each.message}{hint}")
        return
    columns = [Column(title="", kind="whole"), Column(title="What"), Column(title="Found", kind="prose")]
    if terminal_columns() < WIDE_COLUMNS:
        print_table(Table(columns=columns, rows=[_short_row(each) for each in findings]))
    else:
        mend = Column(title="How to mend it", kind="prose")
        print_table(Table(columns=[*columns, mend], rows=[_row(each) for each in findings]))


def _row(finding: Finding) -> list[str | Cell]:
    return [_mark(finding), finding.name, finding.message, finding.hint]


def _short_row(finding: Finding) -> list[str | Cell]:
    """Found and how to mend it below each other, for lack of room beside each other."""
    return [_mark(finding), finding.name, Cell(text=finding.message, note=finding.hint)]


def _mark(finding: Finding) -> Cell:
    return Cell(text=finding.verdict, style=_STYLES[finding.verdict])


def _print_verdict(findings: list[Finding]) -> None:
    failed, warned = (
        sum(finding.verdict is verdict for finding in findings) for verdict in (Verdict.FAIL, Verdict.WARN)
    )
    if failed or warned:
        print_line(paint(f"{failed} failed, {warned} to look at", "red" if failed else "yellow"))
    else:
        print_line(paint("all is well", "green"))
