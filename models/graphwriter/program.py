"""GraphWriter as a Pyro program, and writing texts with beam search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from probattn.checks import check_number
from probattn.models.heads.sequences import Translator
from probattn.models.lstm import BEGIN, END, PAD, UNKNOWN
from probattn.models.program import IGNORED, evaluating
from probattn.options import Count, Options
from probattn.sites.handlers import announce


class GraphTextProgram(Translator):
    r"""A network that writes texts about graphs, with observed texts; see :class:`probattn.models.Translator`.

    With ``coverage`` > 0 the log density has a further term, which keeps an entity from being copied again and again.
    With :math:`c_{tj}` the probability of copying entity j at place t it is, in the form of See et al. (2017, Eq. 12),

    .. math:: -\text{coverage} \sum_t \sum_j \min\Bigl(c_{tj}, \sum_{s<t} c_{sj}\Bigr)

    It is a penalty alone: no score depends on what was copied before.

    Args:
        net: whose output has log-probabilities ``[B, T, V + K]``, such as
            :class:`probattn.models.GraphWriterForGeneration`.
        num_data: N, number of training texts. Default: the batch is the data.
        mean_length: mean number of tokens of a training text, > 0, or None for nats per text.
        coverage: weight of the term, >= 0.
        label_name: key of the texts in a batch.

    Raises:
        ValueError: an argument outside its range.

    Example:
        >>> from probattn.models import GraphWriterConfig, GraphWriterForGeneration
        >>> config = GraphWriterConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
        >>> net = GraphWriterForGeneration(config)
        >>> GraphTextProgram(net).eval()(net.dry_inputs()).shape
        torch.Size([2, 5, 23])
    """

    def __init__(
        self,
        net: nn.Module,
        *,
        num_data: int | None = None,
        mean_length: float | None = None,
        coverage: float = 0.0,
        label_name: str = "labels",
    ) -> None:
        super().__init__(net, num_data=num_data, mean_length=mean_length, label_name=label_name)
        check_number(type(self).__name__, "coverage", coverage, positive=False)
        self.coverage = coverage

    def observe(
        self, prediction: Tensor, labels: Mapping[str, Tensor] | None, inputs: Mapping[str, Tensor]
    ) -> None:
        """The site ``"target"``, one event a text, and the term of coverage where texts are observed."""
        super().observe(prediction, labels, inputs)
        if labels is None or not self.coverage:
            return
        net: Any = self.net
        copies = prediction[..., net.config.vocab_size :].exp()
        real = labels[self.label_name] != IGNORED
        announce(
            "coverage",
            lambda: -self.coverage * repeated_copies(copies, real),
            prediction.shape[:1],
            training=self.training,
            what="coverage",
        )


def repeated_copies(copies: Tensor, real: Tensor) -> Tensor:
    """How much is copied that was copied before, ``[B]``: the sum of :class:`GraphTextProgram`.

    Args:
        copies: probability of copying each entity, ``[B, T, K]``.
        real: bool ``[B, T]``, False at padding.

    Example:
        >>> once = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.0, 0.0]]])
        >>> repeated_copies(once, torch.ones(2, 2, dtype=torch.bool))
        tensor([0., 1.])
    """
    copies = copies * real[..., None]
    before = copies.cumsum(dim=1) - copies
    return torch.minimum(copies, before).sum(dim=(1, 2))


@dataclass(frozen=True)
class WritingOptions(Options):
    r"""Options of the search for a text.

    Args:
        num_beams: width of the beam, >= 1; 1 is greedy.
        length_penalty: :math:`\alpha`: finished texts are ranked by their log-probability over
            :math:`\text{length}^\alpha`; 1, the mean of a token, as GraphWriter was released.
        max_length: most tokens of a text, >= 1.
        batch_size: texts that are searched for at once, >= 1.

    Raises:
        ValueError: a number out of its range.
    """

    num_beams: Count = 4
    length_penalty: float = 1.0
    max_length: Count = 200
    batch_size: Count = 32


def write_texts(
    model: nn.Module,
    batches: Iterable[Mapping[str, Tensor]],
    options: WritingOptions | None = None,
    *,
    suppress: Iterable[int] = (),
) -> Iterator[list[list[int]]]:
    """Writes a text for each row by transformers' own beam search, at the posterior expectation of latent attention.

    Args:
        model: a program whose ``net`` is a :class:`probattn.models.GraphWriterForGeneration`; it runs in evaluation
            mode, and every part of it is left in the mode it was in.
        batches: titles and graphs, as :class:`probattn.data.GraphTextCollate` makes them; texts are not looked at.
        options: of the search.
        suppress: tokens that no text has, beside padding, the unknown word and "begin".

    Yields:
        For each batch the tokens of its texts, without their ends: words, and V + k for entity k.
    """
    options = options or WritingOptions()
    net: Any = model.net
    shut = sorted({PAD, UNKNOWN, BEGIN, *suppress})
    for batch in batches:
        arguments = {
            name: value.to(net.device)
            for name, value in batch.items()
            if not name.startswith(("decoder_", "labels"))
        }
        with evaluating(model):
            tokens: Tensor = net.generate(
                **arguments,
                num_beams=options.num_beams,
                length_penalty=options.length_penalty,
                do_sample=False,
                max_new_tokens=options.max_length,
                suppress_tokens=shut,
            )  # [B, T]
        yield [_text(row) for row in tokens.tolist()]


def _text(tokens: list[int]) -> list[int]:
    """Tokens after "begin" and before the first end."""
    end = tokens.index(END) if END in tokens else len(tokens)
    return [token for token in tokens[:end] if token not in (PAD, BEGIN)]
