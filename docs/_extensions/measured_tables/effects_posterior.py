"""Parts of the tables of docs/data/effects.json: spreads over draws, and the words that are listed."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from measured_tables.markdown import table

SETS = {
    "rotten_tomatoes": "Rotten Tomatoes",
    "sst2": "SST-2",
    "snli": "SNLI",
    "mrpc": "MRPC",
    "banking77": "BANKING77",
    "clinc150": "CLINC150",
    "imdb": "IMDB",
    "bbc_news": "BBC",
}
SCORES = {
    "spread": "spread",
    "spread_by_size": "spread / size",
    "other_sign": "share of draws of the other sign",
    "size": "size (no draws)",
    "small_size": "small size (no draws)",
    "small_part": "small part of the largest (no draws)",
}


def form(value: Sequence[float] | None, digits: int = 2, scale: float = 1.0) -> str:
    """A figure with its interval."""
    if value is None:
        return ""
    mean, low, high = (f"{scale * number:.{digits}f}" for number in value)
    return f"{mean} [{low}, {high}]"


def spreads(sets: Mapping[str, Mapping[str, Any]]) -> str:
    """What the spread over draws says of errors."""
    rows = []
    for name, of_set in sets.items():
        figures = of_set["distrust"]
        for index, (score, title) in enumerate(SCORES.items()):
            key = f"deleted/{score}"
            rows.append(
                [
                    "" if index else SETS.get(name, name),
                    title,
                    form(figures[f"{key}/error"]),
                    form(figures.get(f"{key}/error_above_naive")),
                    form(figures[f"{key}/auroc"]),
                    form(figures.get(f"{key}/auroc_above_naive")),
                    form(figures[f"knockout/{score}/auroc"]),
                    form(figures.get(f"knockout/{score}/auroc_above_naive")),
                ]
            )
    head = [
        "data",
        "score",
        "rank correlation with the error",
        "above size",
        "AUROC of wrong signs",
        "above small part",
        "AUROC, signs of knock-outs",
        "above small part",
    ]
    return (
        "Networks with latent attention (BABN): does a score say which slopes are wrong? Error: difference to the "
        "change of the log-odds when the word is left out. Wrong: of the other sign.\n\n"
        f"{table(head, rows)}"
    )


def listed(summary: Mapping[str, Any]) -> Iterator[str]:
    """Function words among those that are named as what makes a network unsure."""
    titles = {
        ("deterministic", "causes_of_doubt"): "causes of doubt",
        ("babn", "causes_of_doubt"): "causes of doubt, BABN",
        ("babn", "shares"): "largest shares of the variance, BABN",
    }
    rows = []
    for (kind, name), title in titles.items():
        for data, of_set in summary.get(kind, {}).items():
            counted = of_set.get("reviewed", {}).get(name)
            if counted:
                columns = ("texts", "words", "unmoved", "function_words", "function_words_unmoved")
                rows.append([f"{SETS.get(data, data)}, {title}", *(f"{counted[key]}" for key in columns)])
    if rows:
        head = [
            "words that are listed",
            "texts",
            "words",
            "that change less than a point",
            "function words and punctuation",
            "of them less than a point",
        ]
        yield (
            "At most three words a text, and how many of them change the probability of the answer by less than a "
            f"point:\n\n{table(head, rows)}"
        )
