"""Results of a run of texts about graphs: the records of ``metrics.json``."""

from __future__ import annotations

from collections.abc import Mapping

from probattn.data import GraphText
from probattn.report import ModelKey, Results
from probattn.report.record import Record


class Piece(Record):
    """Words of a text that belong together: a copied entity, or what stands between two of them."""

    words: str
    entity: int | None = None


class GraphTextSample(Record):
    """A test text with its graph, and what each model wrote.

    Attributes:
        title: of the text.
        entities: of the graph.
        types: of each entity.
        relations: entity, name of the relation, entity.
        reference: the text as it should be.
        texts: by model.
    """

    title: str
    entities: tuple[str, ...]
    types: tuple[str, ...]
    relations: tuple[tuple[int, str, int], ...]
    reference: tuple[Piece, ...]
    texts: Mapping[ModelKey, tuple[Piece, ...]]


class GraphTextResults(Results):
    """Everything that the report shows.

    Attributes:
        signature: how BLEU and METEOR were computed.
        samples: texts with their graphs.
    """

    signature: str = ""
    samples: tuple[GraphTextSample, ...] = ()


def pieces(tokens: list[str | int], row: GraphText) -> tuple[Piece, ...]:
    """Pieces of a text, from words and numbers of entities.

    Example:
        >>> row = GraphText("t", ("a parser",), ("method",), ())
        >>> [(piece.words, piece.entity) for piece in pieces(["we", "use", 0, "."], row)]
        [('we use', None), ('a parser', 0), ('.', None)]
    """
    spans: list[Piece] = []
    between: list[str] = []
    for token in [*tokens, None]:
        if isinstance(token, str):
            between.append(token)
            continue
        if between:
            spans.append(Piece(words=" ".join(between)))
            between = []
        if token is not None:
            spans.append(Piece(words=row.entities[token], entity=token))
    return tuple(spans)
