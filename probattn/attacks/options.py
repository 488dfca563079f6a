"""Options of attacks and of their vectors, which the command line shows without importing what attacks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge

from probattn.options import Count, Natural, NonNegative, Options, Positive, Share

if TYPE_CHECKING:
    from probattn.attacks.building import Resources

AttackName = Literal["textfooler", "textbugger", "bae", "deepwordbug", "pruthi"]
"""Jin et al. 2020, Li et al. 2019, Garg and Ramakrishnan 2020 (replacement), Gao et al. 2018, Pruthi et al. 2019."""
Tagger = Literal["textblob", "nltk", "none"]
"""What tags words with their parts of speech."""
Prediction = Literal["point", "draws", "moments"]
"""The probabilities that are attacked: at the posterior expectation, the mean over draws, the closed form of it."""
Randomness = Literal["fixed", "fresh"]
"""Whether draws take the same random numbers for every text and query, or new ones for every query."""

WORD_ATTACKS = ("textfooler", "textbugger")
"""Those that need counter-fitted vectors."""
MEANING_ATTACKS = (*WORD_ATTACKS, "bae")
"""Those that compare meanings."""
TAGGED_ATTACKS = ("textfooler", "bae")
"""Those that look at parts of speech."""


@dataclass(frozen=True)
class AttackOptions(Options):
    """An attack on the texts of a run.

    Args:
        attack: words exchanged by vectors, words and characters, words by a language model, characters.
        prediction: what is attacked: at the posterior expectation, mean of draws, closed form. Without latent
            attention, "point" is the prediction as it is.
        number: most texts, a fixed choice. It looks random.
        queries: most queries of the network for a text.
        seed: seed of random changes and of draws.
        num_samples: posterior draws of a prediction.
        noise: of draws: the same for every query, or new ones, which flatter a network. An attack that looks at fresh
            noise once a text takes luck for success and for failure; see the documentation.
        data: a data set that has a name, such as textfooler_imdb; the run's test texts by default.
        vectors: counter-fitted vectors; the usual file by default.
        similarity: least cosine of a word and its replacement (textfooler). Of vectors of
            :func:`make_vectors` 0.9 suits; TextFooler's program asks 0.5 of 300-dimensional ones.
        tagger: what tags parts of speech. "none" is no such constraint.
        encoder: network of sentences: minilm, a folder or a name on the hub; none for no check.
        masked_lm: masked language model of bae: a folder or a name on the hub.

    Raises:
        ValueError: a value out of its range.
    """

    attack: AttackName = "textfooler"
    prediction: Prediction = "point"
    number: Count = 200
    queries: Annotated[int, Ge(2)] = 500
    seed: Natural = 0
    num_samples: Count = 20
    noise: Randomness = "fixed"
    data: str | None = None
    vectors: str | None = None
    similarity: Share = 0.9
    tagger: Tagger = "textblob"
    encoder: str = "minilm"
    masked_lm: str | None = None

    @property
    def name(self) -> str:
        """Stem of the files of its records."""
        fresh = self.noise == "fresh" and self.prediction == "draws"
        words = [self.attack, self.prediction, self.data, "fresh" if fresh else None]
        return "_".join([*(word for word in words if word), str(self.seed)])

    @property
    def resources(self) -> Resources:
        """What the attack uses beside the network."""
        from probattn.attacks.building import Resources

        return Resources(
            vectors=None if self.vectors is None else Path(self.vectors),
            similarity=self.similarity,
            tagger=self.tagger,
            encoder=None if self.encoder == "none" else self.encoder,
            masked_lm=self.masked_lm,
        )

    def settings(self) -> dict[str, Any]:
        """All that this attack depends on, of the options; what it does not use is left out."""
        from probattn.attacks.vectors import vectors_file
        from probattn.files.durable import digest, file_sha256

        names = {"attack", "prediction", "number", "queries", "seed", "data"}
        names |= {"num_samples", "noise"} if self.prediction == "draws" else set()
        names |= {"similarity"} if self.attack == "textfooler" else set()
        names |= {"tagger"} if self.attack in TAGGED_ATTACKS else set()
        names |= {"encoder"} if self.attack in MEANING_ATTACKS else set()
        names |= {"masked_lm"} if self.attack == "bae" else set()
        values = {name: value for name, value in vars(self).items() if name in names}
        file = Path(self.vectors) if self.vectors else vectors_file()
        if self.attack in WORD_ATTACKS and file.is_file():
            values["vectors"] = file_sha256(file)[:16]
        for name in ("encoder", "masked_lm"):
            folder = Path(str(values.get(name)))
            if folder.is_dir():  # which another training may have filled anew
                values[name] = (
                    f"{values[name]} {digest(map(file_sha256, sorted(folder.glob('*.safetensors'))))}"
                )
        return values


@dataclass(frozen=True)
class CounterFitting(Options):
    r"""How vectors are counter-fitted.

    Args:
        epochs: passes over all pairs of words.
        step: by how much of its mean directions a vector moves in a pass.
        antonyms: distance up to which antonyms repel each other. It is :math:`\delta`.
        synonyms: distance down to which synonyms attract each other. It is :math:`\gamma`.
        neighbours: cosine distance within which neighbours are to stay near. It is :math:`\rho`.
    """

    epochs: Count = 20
    step: Positive = 0.1
    antonyms: NonNegative = 1.0
    synonyms: NonNegative = 0.0
    neighbours: NonNegative = 0.2
