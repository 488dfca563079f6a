"""The papers' claims with what was measured of them, from the package's claims and records; a part a paper."""

from measured_tables.markdown import table
from probattn.metrics.functional import MeanInterval
from probattn.reproduce import Claim, Evidence, claims, papers
from probattn.reproduce.evidence import VERDICTS, shown, shown_mean

SOURCE = "probattn reproduce claims"
ALL = "all"
PARTS = (ALL, *papers())
SIDES = {"higher": "", "lower": " (claimed: below 0)"}


def load(part: str) -> str:
    """The name of the paper, or "all"; claims come with the package."""
    return part


def tables(part: str) -> str:
    """Numbers of verdicts by paper, or the claims of a paper."""
    if part == ALL:
        return _counts()
    rows = [
        [
            str(number),
            f"{claim.text} *({claim.where[0].upper()}{claim.where[1:]}.)*",
            _measured(claim),
            _verdict(claim),
        ]
        for number, claim in claims().items()
        if claim.paper == part
    ]
    return table(["", "claim", "measured here", "verdict"], rows)


def _counts() -> str:
    all_claims = list(claims().values())
    rows = [
        [f"[{paper.paper.title}]({name}.md)", *_numbers(of_paper)]
        for name, paper in papers().items()
        if (of_paper := [claim for claim in all_claims if claim.paper == name])
    ]
    return table(["paper", *VERDICTS, "claims"], [*rows, ["all", *_numbers(all_claims)]])


def _numbers(counted: list[Claim]) -> list[str]:
    return [
        *(str(sum(claim.verdict == verdict for claim in counted)) for verdict in VERDICTS),
        str(len(counted)),
    ]


def _verdict(claim: Claim) -> str:
    return f"**{claim.verdict}**. {claim.because}"


def _measured(claim: Claim) -> str:
    return "<br>".join(map(_item, claim.evidence))


def _item(item: Evidence) -> str:
    mean = item.mean()
    if mean is None:
        return f"{item.statement[0].upper()}{item.statement[1:]}{'; one seed' if item.seeds == 1 else ''}."
    return (
        f"{item.about}: {shown_mean(mean)}{item.unit and f' {item.unit}'}{_side(item)}{_seeds(item, mean)}."
    )


def _side(item: Evidence) -> str:
    return f" (claimed: at most {item.margin:g} either way)" if item.margin else SIDES[item.better]


def _seeds(item: Evidence, mean: MeanInterval) -> str:
    effect = item.detectable()
    return ", one seed" if effect is None else f", {mean.seeds} seeds, MDE {shown(effect, sign=False)[0]}"
