"""How `forebay simulate` tells what came of it: tables for people, one line of JSON for programs."""

from collections.abc import Sequence
from typing import Final

import msgspec

from forebay.app.sim_profiles import Calibration, Check
from forebay.app.sim_report import Report, Row, Verdict
from forebay.cli.tables import Cell, Column, Table, print_table
from forebay.cli.terminal import print_line, print_note


def encode(report: Report, verdicts: Sequence[Verdict]) -> object:
    shown = [
        {"name": each.objective.name, "most": each.objective.most, "found": each.found, "met": each.is_met}
        for each in verdicts
    ]
    return {**msgspec.to_builtins(report), "slo": shown}


def tell(
    model: str, reports: Sequence[Report], verdicts: Sequence[Sequence[Verdict]], *, as_json: bool
) -> None:
    if as_json:
        loads = [encode(*each) for each in zip(reports, verdicts, strict=True)]
        print_line(msgspec.json.encode({"model": model, "loads": loads}).decode())
    else:
        print_reports(reports, verdicts)


_FIGURES: Final = (
    ("TTFT p50", "median_ttft_ms", "{:.0f}"),
    ("p99", "p99_ttft_ms", "{:.0f}"),
    ("TPOT p50", "median_tpot_ms", "{:.1f}"),
    ("p99", "p99_tpot_ms", "{:.1f}"),
    ("Output tok/s", "output_tokens_per_s", "{:.0f}"),
)


def print_reports(reports: Sequence[Report], verdicts: Sequence[Sequence[Verdict]]) -> None:
    columns = [Column(title=title) for title in ("Load", "Tier", "Pool")]
    titles = "Requests", "Share", "Refused", *(title for title, _, _ in _FIGURES), "USD", "Busiest"
    columns += [Column(title=title, align="right", kind="whole") for title in titles]
    rows = []
    for report in reports:
        rows += [_make_cells(report.load, row) for row in report.rows]
        rows.append(_make_cells(report.load, report.total))
    print_table(Table(columns=columns, rows=rows))
    print_note(
        "simulated; times in ms, as callers see them; Busiest: requests in progress at one replica, at most"
    )
    for report in reports:
        for row in report.rows:
            if row.use is not None and row.use.streams_max > row.use.streams_measured:
                print_note(
                    f"{report.load}: a replica of {row.pool} had {row.use.streams_max} requests at once, "
                    f"and its benchmark {row.use.streams_measured} at most: beyond that it is extrapolated",
                    "yellow",
                )
    for report, found in zip(reports, verdicts, strict=True):
        for each in found:
            _print_verdict(report.load, each)


def _make_cells(load: str, row: Row) -> list[str | Cell]:
    figures = [form.format(row.figures[name]) if name in row.figures else "" for _, name, form in _FIGURES]
    cost = "" if row.cost_usd is None else f"{row.cost_usd:.4g}"
    busiest = "" if row.use is None else str(row.use.streams_max)
    refused = Cell(
        text=str(row.refused) if row.refused or not row.pool else "", style="red" if row.refused else ""
    )
    place = (row.tier, row.pool) if row.pool else ("all", "")
    return [load, *place, str(row.requests), f"{row.share:.1%}", refused, *figures, cost, busiest]


def _print_verdict(load: str, verdict: Verdict) -> None:
    name, is_share = verdict.objective.name, verdict.objective.name == "refused"
    said = [
        f"{value:.2%}" if is_share else f"{value * 1000:.4g} ms"
        for value in (verdict.found, verdict.objective.most)
    ]
    words = "met" if verdict.is_met else "missed"
    print_note(f"{load}: {name} {said[0]} of {said[1]}: {words}", "green" if verdict.is_met else "red")


def print_calibration(found: Calibration) -> None:
    profile = found.profile
    slots = "no bound seen" if profile.slots is None else f"{profile.slots} at once"
    print_line(
        f"first token: {profile.first_s * 1000:.1f} ms, and {profile.prefill_s_per_token * 1000:.3f} ms for "
        "each token of the prompt"
    )
    print_line(
        f"each further token: {profile.step_s * 1000:.2f} ms, and {profile.step_per_stream_s * 1000:.3f} ms "
        f"for each stream; while a prompt is read at {profile.overlap:.0%} of that speed"
    )
    print_line(f"in progress at once: {slots}")
    columns = [Column(title="Load"), Column(title="")]
    columns += [
        Column(title=title, align="right", kind="whole")
        for title in (
            "TTFT mean",
            "simulated",
            "TPOT mean",
            "simulated",
            "Output tok/s",
            "simulated",
            "Off by",
        )
    ]
    print_table(Table(columns=columns, rows=[_make_check_cells(check) for check in found.checks]))
    print_note("times in ms; Off by: the largest error of these three")


def _make_check_cells(check: Check) -> list[str | Cell]:
    names = "mean_ttft_ms", "mean_tpot_ms", "output_tokens_per_s"
    cells: list[str | Cell] = [check.load.describe(), "predicted" if check.is_held_out else "fitted"]
    for name in names:
        cells += [f"{value:.2f}" for value in check.figures.get(name, (0.0, 0.0))]
    worst = max((check.errors[name] for name in names if name in check.errors), key=abs, default=0.0)
    return [*cells, f"{worst:+.1%}"]
