"""The tables of docs/data/effects.json, which `tests/benchmarks/study.py effects` writes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from measured_tables.effects_posterior import SETS, form, listed, spreads
from measured_tables.markdown import table

SOURCE = "tests/benchmarks/study.py effects"
METHODS = {
    "slope": "**slope**",
    "screened": "**screened**",
    "knockout": "**knock-out**",
    "attention_gradient": "attention x gradient",
    "gradient_input": "gradient x input",
    "integrated_gradients": "integrated gradients",
    "layer_integrated_gradients": "the same, middle layer",
    "deeplift": "DeepLIFT",
    "shapley_sampling": "Shapley value sampling",
    "occlusion": "occlusion",
    "shap_partition": "shap, partition",
    "lime": "LIME",
    "chefer": "Chefer et al. 2021",
    "rollout": "attention rollout",
    "attnlrp": "AttnLRP",
    "random": "random",
}
DOUBT = {
    "doubt_slope": "slope, entropy",
    "doubt_screened": "screened, entropy",
    "doubt_knockout": "knock-out, entropy",
}
PAIRS = ("snli", "mrpc")
OTHERS = ("integrated_gradients", "chefer", "gradient_input", "rollout", "shap_partition")
"""Methods that the slope was to exceed."""
Sets = Mapping[str, Mapping[str, Any]]


def tables(content: Mapping[str, Any]) -> str:
    """The networks; agreement with words left out; other measures; doubt; costs; spreads over draws; what is listed."""
    summary = content["summary"]
    sets = summary["deterministic"]
    margins = summary.get("margin", {})
    parts = [networks(sets), targets(sets, margins), *ranks(sets)]
    if margins:
        parts += margin_ranks(margins)
    parts += [others(sets), *planted(sets), doubts(sets)]
    latent = summary.get("babn")
    if latent:
        parts.append(spreads(latent))
    return "\n\n".join([*parts, *listed(summary)])


def names_of(sets: Sets) -> list[str]:
    """Headings of data sets, with the number of networks."""
    return [SETS.get(name, name) for name in sets]


def networks(sets: Sets) -> str:
    """What was trained and measured."""
    rows = [
        [
            SETS.get(name, name),
            ", ".join(map(str, of_set["seeds"])),
            ", ".join(f"{100 * value:.1f}" for value in of_set["accuracy"]),
            f"{of_set['texts']}",
            f"{of_set['words']:.0f}",
            f"{of_set['planted']}",
            form(of_set["planted_drop"]),
            form(of_set["agreement"], 0, 100),
            form(of_set["agreement_texts"], 0, 100),
        ]
        for name, of_set in sets.items()
    ]
    head = [
        "data",
        "seeds",
        "accuracy, %",
        "texts",
        "words a text",
        "planted clauses",
        "probability that they take",
        "leading word of a side agrees, %",
        "of both sides, %",
    ]
    return (
        "One network a seed. In the last columns: in how many sides, and texts, the screened effects name the word "
        f"that leads the knock-outs of all words.\n\n{table(head, rows)}"
    )


def targets(sets: Sets, margins: Sets) -> str:
    """What was expected before the measurements, and how many data sets reach it."""
    every = [(name, margins.get(name, of_set)) for name, of_set in sets.items()]
    of_odds = list(sets.items())
    short = [(name, of_set) for name, of_set in every if not of_set["long"]]
    clauses = [(name, of_set) for name, of_set in of_odds if of_set["planted"]]

    def figure(name: str, measure: str) -> Callable[[Mapping[str, Any]], float]:
        return lambda of_set: of_set["methods"][name][measure][0]

    def row(
        words: str, some: Sequence[tuple[str, Any]], value: Any, least: float, pairs: float | None = None
    ) -> list[str]:
        values = {name: value(of_set) for name, of_set in some}
        bars = {name: pairs if name in PAIRS and pairs is not None else least for name in values}
        reached = sum(values[name] >= bars[name] for name in values)
        listed_values = ", ".join(f"{SETS.get(name, name)} {number:.2f}" for name, number in values.items())
        return [words, listed_values, f"{reached} of {len(values)}"]

    def lowest(of_set: Mapping[str, Any]) -> float:
        return min(of_set["methods"][name]["compared"][1] for name in OTHERS)

    def above_gradients(of_set: Mapping[str, Any]) -> float:
        return of_set["methods"]["attention_gradient"]["compared"][2]

    def clause_above(of_set: Mapping[str, Any]) -> float:
        return of_set["methods"]["integrated_gradients"]["compared_planted"][0]

    rows = [
        row("slope, rank correlation at least .7, of pairs .5", every, figure("slope", "deleted"), 0.7, 0.5),
        row("the same with log-odds of all classes", of_odds, figure("slope", "deleted"), 0.7, 0.5),
        row("knock-out, at least .85, of pairs .8", every, figure("knockout", "deleted"), 0.85, 0.8),
        row(
            "slope above five others: lowest end of the intervals, above 0 in six of eight",
            every,
            lowest,
            0.0,
        ),
        row("slope not below attention x gradient: upper end of the interval", every, above_gradients, 0.0),
        row(
            "screened: leading word of a side agrees, at least .85",
            every,
            lambda of_set: of_set["agreement"][0],
            0.85,
        ),
        row("entropy removed, knock-outs, at least .9", short, figure("doubt_knockout", "removed"), 0.9),
        row("entropy removed, screened, at least .75", short, figure("doubt_screened", "removed"), 0.75),
        row("planted words, slope, at least .9", clauses, figure("slope", "planted_words"), 0.9),
        row("the same, above integrated gradients", clauses, clause_above, 0.0),
    ]
    return (
        "What was expected before the measurements, of the margin, with two classes the log-odds; the five others are "
        "integrated gradients, Chefer et al., gradient x input, rollout and shap:\n\n"
        f"{table(['expected', 'measured', 'reached'], rows)}"
    )


def by_set(intro: str, sets: Sets, titles: Mapping[str, str], measure: str, *digits: Any) -> str:
    """A row a method, a column a data set: a measure with its interval."""
    rows = [
        [title, *(form(of_set["methods"][name].get(measure), *digits) for of_set in sets.values())]
        for name, title in titles.items()
        if any(measure in of_set["methods"][name] for of_set in sets.values())
    ]
    return f"{intro}:\n\n{table(['method', *names_of(sets)], rows)}"


def ranks(sets: Sets) -> Iterator[str]:
    """Rank correlation with leaving a word out, and by how much the slope's are above the others'."""
    yield by_set(
        "Rank correlation over the words of a text with the change of the answer's log-odds when the word is left out",
        sets,
        METHODS,
        "deleted",
    )
    yield by_set(
        "By how much the slope's rank correlation is above the method's, on the same texts",
        sets,
        METHODS,
        "compared",
    )


def margin_ranks(margins: Sets) -> Iterator[str]:
    """The same of the margin."""
    yield by_set(
        "Rank correlation with the change of the margin, the difference of the two leading logits, where there are "
        "more than two classes",
        margins,
        METHODS,
        "deleted",
    )
    yield by_set("By how much the slope's is above the method's there", margins, METHODS, "compared")


def others(sets: Sets) -> str:
    """Other measures, means over data sets."""
    measures = {
        "masked": "masking",
        "comprehensiveness": "comprehensiveness",
        "sufficiency": "sufficiency",
        "varied": "another wording",
        "control": "random network",
        "passes": "passes",
        "cost": "time, passes",
    }

    def value(name: str, measure: str, lengths: bool) -> str:
        figures = [of_set["methods"][name] for of_set in sets.values() if of_set["long"] == lengths]
        values = [
            one[measure] if measure == "cost" else one[measure][0] for one in figures if one.get(measure)
        ]
        return f"{fmean(values):.{1 if measure in ('passes', 'cost') else 2}f}" if values else ""

    rows = [
        [
            title,
            *(
                " / ".join(filter(None, (value(name, measure, lengths) for lengths in (False, True))))
                for measure in measures
            ),
        ]
        for name, title in METHODS.items()
    ]
    return (
        "Means over data sets, of short texts / of long texts: rank correlation with masking; comprehensiveness "
        "(higher is better) and sufficiency (lower is better) at 20% of the words; rank correlation with the scores in "
        "another wording, and with those of a random network; passes forward and backward, and time in units of a "
        "forward pass:"
        f"\n\n{table(['method', *measures.values()], rows)}"
    )


def planted(sets: Sets) -> Iterator[str]:
    """Planted clauses, by their words and as a whole."""
    having = {name: of_set for name, of_set in sets.items() if of_set["planted"]}
    intros = {
        "words": "Planted clauses: area under the ROC curve of the clause's words among all words, the most negative "
        "scores first",
        "clause": "The clause as a whole: share of the other parts of the text, as long as the clause, whose sum of "
        "scores is above the clause's",
    }
    for part, intro in intros.items():
        rows = by_set(intro, having, METHODS, f"planted_{part}")
        left_out = " | ".join(form(of_set[f"planted_{part}_left_out"]) for of_set in having.values())
        yield f"{rows}\n| leaving the word out | {left_out} |"


def doubts(sets: Sets) -> str:
    """Removal of uncertainty."""
    short = {name: of_set for name, of_set in sets.items() if not of_set["long"]}
    intro = (
        "Entropy removed by leaving out the word that the method names, in % of the most that leaving out one word "
        "removes, sums over texts. Effects on the entropy name the word that adds most, all others the word that "
        "speaks most against the answer"
    )
    return by_set(intro, short, DOUBT | METHODS, "removed", 0, 100)
