"""Options of attacks and of their vectors, which the command line shows without importing what attacks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge

from probattn.options import Count, Natural, NonNegative, Options, Positive, Share

AttackName = Literal["textfooler", "textbugger", "bae", "deepwordbug", "pruthi"]
"""Jin et al. 2020, Li et al. 2019, Garg and Ramakrishnan 2020 (replacement), Gao et al. 2018, Pruthi et al. 2019."""
Tagger = Literal["textblob", "nltk", "none"]
"""Package that tags words with their parts of speech."""
Prediction = Literal["point", "draws", "moments"]
"""Attacked probabilities: posterior expectation ("point"), mean over draws, or its closed form ("moments")."""
Randomness = Literal["fixed", "fresh"]
"""Whether draws use the same random numbers for every text and query, or new ones for every query."""

WORD_ATTACKS = ("textfooler", "textbugger")
"""Attacks that need counter-fitted vectors."""
MEANING_ATTACKS = (*WORD_ATTACKS, "bae")
"""Attacks that compare the meanings of sentences."""
TAGGED_ATTACKS = ("textfooler", "bae")
"""Attacks that compare parts of speech."""


@dataclass(frozen=True)
class AttackOptions(Options):
    """Options of an attack on the texts of a run.

    Args:
        attack: kind of change: words (textfooler), words and characters (textbugger), words by a language model (bae),
            or characters (the others).
        prediction: attacked probabilities: posterior expectation (point), mean of draws, closed form (moments). Without
            latent attention, "point" is the only prediction.
        number: maximum number of texts, always the same random ones.
        queries: maximum number of queries of the network per text.
        seed: seed of random changes and of draws.
        num_samples: number of posterior draws of a prediction.
        noise: random numbers of draws: the same for every query (fixed), or new ones (fresh). Fresh noise makes a
            network look more robust: an attack that evaluates a text once mistakes random changes of the prediction for
            effects.
        data: name of a built-in data set, such as textfooler_imdb; the run's test texts by default.
        vectors: file of counter-fitted vectors; that of attack-vectors by default.
        similarity: least cosine of a word and its replacement (textfooler). The default suits vectors of
            :func:`make_vectors`; TextFooler's program uses 0.5 with 300-dimensional ones.
        tagger: package that tags parts of speech. With "none" replacements may have other parts of speech.
        encoder: sentence encoder: minilm, a folder or a name on the hub; none to compare no meanings.
        masked_lm: masked language model of bae: a folder or a name on the hub.

    Raises:
        ValueError: a value is out of its range.
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
        """Name of the attack's files, without extension."""
        fresh = self.noise == "fresh" and self.prediction == "draws"
        words = [self.attack, self.prediction, self.data, "fresh" if fresh else None]
        return "_".join([*(word for word in words if word), str(self.seed)])

    def settings(self) -> dict[str, Any]:
        """The options on which this attack depends."""
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
    r"""Options of :func:`counter_fit`.

    Args:
        epochs: passes over all pairs of words.
        step: step size of a pass, as a factor of the mean gradient.
        antonyms: cosine distance up to which antonyms are pushed apart. It is :math:`\delta`.
        synonyms: cosine distance down to which synonyms are pulled together. It is :math:`\gamma`.
        neighbours: cosine distance within which neighbours are to stay near. It is :math:`\rho`.
    """

    epochs: Count = 20
    step: Positive = 0.1
    antonyms: NonNegative = 1.0
    synonyms: NonNegative = 0.0
    neighbours: NonNegative = 0.2
