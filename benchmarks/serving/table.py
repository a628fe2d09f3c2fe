"""The serving section of RESULTS.md, and its goals."""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.report import Goal

QUIET = 0.05  # of all processors' time may be others', or the figures are called disturbed
NAMES = {
    "local": "in-process, batch {}",
    "bus": "Tenure over the bus, {} client",
    "infinity": "infinity-emb over HTTP, {} client",
}
# What is divided by what (system and width), by which figure, and what it should be.
GOALS = (
    ("one sentence, p50: Tenure over the bus, one client ÷ in-process encode", "bus-1", "local-1", "p50_ms", 1.15),
    ("sentences/s: Tenure over the bus, 8 clients ÷ in-process, batch 8", "bus-8", "local-8", "per_s", 0.9),
    ("sentences/s: Tenure over the bus, 32 clients ÷ in-process, batch 32", "bus-32", "local-32", "per_s", 0.9),
    ("sentences/s, 8 clients: Tenure over the bus ÷ infinity-emb over HTTP", "bus-8", "infinity-8", "per_s", 2.0),
)


def _systems(served: dict[str, Any]) -> list[str]:
    return ["local", "bus"] if served["infinity"] else ["local", "bus", "infinity"]


def goals(served: dict[str, Any]) -> list[Goal]:
    rounds, systems = served["rounds"], _systems(served)
    return [
        Goal(what, median(each[over][name] / each[under][name] for each in rounds), wanted, at_least=name == "per_s")
        for what, over, under, name, wanted in GOALS
        if under.partition("-")[0] in systems
    ]


def lines(served: dict[str, Any]) -> list[str]:
    widths, systems, infinity = list(served["counts"]), _systems(served), served["infinity"]
    sizes = ", ".join(f"{count} sentences at {width}" for width, count in served["counts"].items())
    return [
        "## Serving MiniLM, short sentences, one to a request",
        "",
        f"CPU, {served['threads']} threads each; {len(served['rounds'])} rounds in turn, {sizes} in each. Medians",
        "of the rounds; milliseconds are of one request, or of one batch in one process. Processor time is of all that",
        "takes part, clients and nats-server too. Clients are light, and in a process of their own.",
        "",
        "| | p50 ms | p99 ms | sentences/s | processor ms per sentence | sentences per batch |",
        "|---|---|---|---|---|---|",
        *(_row(served, system, width) for width in widths for system in systems),
        *(["| infinity-emb | not measured | | | | |"] if infinity else []),
        "",
        *([f"infinity-emb was not measured: {infinity}.", ""] if infinity else []),
        *_agreement(served),
        _quiet(served),
        "",
    ]


def _row(served: dict[str, Any], system: str, width: int) -> str:
    def of(name: str) -> list[float]:
        return [each[f"{system}-{width}"][name] for each in served["rounds"]]

    per_s = of("per_s")
    cells = [
        NAMES[system].format(width) + ("" if width == 1 or system == "local" else "s"),
        f"{median(of('p50_ms')):.2f}",
        f"{median(of('p99_ms')):.2f}",
        f"{median(per_s):,.0f} ({min(per_s):,.0f} to {max(per_s):,.0f})",
        f"{median(of('cpu_ms')):.2f}",
        {"bus": f"{median(of('batch')):.1f}", "local": str(width), "infinity": ""}[system],
    ]
    return f"| {' | '.join(cells)} |"


def _agreement(served: dict[str, Any]) -> list[str]:
    def all_of(system: str, name: str) -> list[float]:
        return [each[f"{system}-{width}"][name] for each in served["rounds"] for width in served["counts"]]

    alone = median(each["bus-1"]["identical"] for each in served["rounds"])
    told = [
        "Every vector was compared with the one that in-process encoding gave for the sentence alone: over the bus",
        f"with one client {alone:.0%} are the same to the last bit, and no component of any differs by more than",
        f"{max(all_of('bus', 'difference')):.0e} (in-process, in batches: {max(all_of('local', 'difference')):.0e}).",
    ]
    if not served["infinity"]:
        told.append(f"infinity-emb's cosine with it is at least {min(all_of('infinity', 'cosine')):.6f}.")
    return [*told, ""]


def _quiet(served: dict[str, Any]) -> str:
    others = [served["others_before"], *(each["others"] for each in served["rounds"])]
    verdict = "the machine was quiet" if max(others) <= QUIET else "**the machine was not quiet: disturbed figures**"
    return (
        f"Others took {median(others):.1%} of the processors' time, {max(others):.1%} at most: {verdict}. "
        f"The idle plane took {served['idle']:.1%}."
    )
