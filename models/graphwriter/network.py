"""GraphWriter in the shape of transformers' networks, as a Pyro program, and writing texts with beam search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy, deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModel, AutoModelForSeq2SeqLM, GenerationMixin
from transformers.utils.generic import ModelOutput

from probattn.checks import check_number
from probattn.models.graphwriter.graph import NO_RELATION, GraphWriterConfig
from probattn.models.graphwriter.layers import (
    CopyOutput,
    FedState,
    GraphWriterDecoder,
    GraphWriterEncoder,
    GraphWriterEncoderOutput,
)
from probattn.models.heads.sequences import Translator
from probattn.models.hosts.cache import CACHE, cache_in, cached_output
from probattn.models.layers import BEGIN, END, PAD, UNKNOWN, OwnEncoderDecoder, all_maps, check_mask
from probattn.models.program import IGNORED, Batch, Program, evaluating
from probattn.options import Count, Options
from probattn.sites.handlers import announce


class GraphTextProgram(Translator):
    r"""Program of a network that writes texts about graphs: a :class:`probattn.models.Translator` from graphs to texts.

    With ``coverage`` > 0 the log density has a further term, which penalises copying an entity repeatedly. With the
    probability :math:`c_{tj}` of copying entity j at position t it has the form of See et al. (2017, Eq. 12),

    .. math:: -\text{coverage} \sum_t \sum_j \min\Bigl(c_{tj}, \sum_{s<t} c_{sj}\Bigr)

    but, unlike in See et al., attention scores do not depend on previous copies.

    Args:
        net: a network whose output ``logits`` are log-probabilities ``[B, T, V + K]`` of V words and K entities, such
            as :class:`probattn.models.GraphWriterForGeneration`.
        num_data: number of training texts, to which log densities of a batch are scaled. Default: the batch size.
        mean_length: mean number of tokens of a training text, > 0; None for an objective in nats per text.
        coverage: weight of the coverage term, >= 0.
        label_name: key of the texts in a batch, int64 ``[B, T]``, -100 at padding; V + k is entity k of the row.

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

    def observe(self, prediction: Tensor, labels: Batch | None, inputs: Batch) -> None:
        """Samples the site ``"target"``; with ``labels`` it is observed and the coverage term is added."""
        super().observe(prediction, labels, inputs)
        if labels is None or not self.coverage:
            return
        net: Any = self.net
        copies = prediction[..., net.config.vocab_size :].exp()
        real = labels[self.label_name] != IGNORED
        mode: dict[str, Any] = {"training": self.training, "what": "coverage"}
        shape = prediction.shape[:1]
        announce("coverage", lambda: -self.coverage * repeated_copies(copies, real), shape, **mode)


def repeated_copies(copies: Tensor, real: Tensor) -> Tensor:
    """Computes the double sum in the coverage term of :class:`GraphTextProgram`, ``[B]``; 0 without repeated copies.

    Args:
        copies: probability of copying each of K entities at each of T positions, ``[B, T, K]``.
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
    r"""Options of the beam search for a text.

    Args:
        num_beams: number of beams, >= 1; 1 is greedy search.
        length_penalty: exponent a: finished texts are ranked by log-probability / length^a. The released GraphWriter
            has 1, the mean log-probability per token.
        max_length: maximum number of tokens of a text, >= 1.
        batch_size: number of texts that are generated at once, >= 1.

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
    """Writes texts by transformers' beam search; latent attention weights are at their posterior expectation.

    Args:
        model: a program whose ``net`` is a :class:`probattn.models.GraphWriterForGeneration`. It runs in evaluation
            mode; its mode is restored afterwards.
        batches: titles and graphs, as :class:`probattn.data.GraphTextCollate` makes them; texts in them are ignored.
        options: options of the search. Default: ``WritingOptions()``; ``batch_size`` has no effect here.
        suppress: tokens that are never written, in addition to padding, the unknown word and "begin".

    Yields:
        For each batch the tokens of its texts without the end token: numbers of words, and V + k for entity k.
    """
    options = options or WritingOptions()
    net: Any = model.net
    shut = sorted({PAD, UNKNOWN, BEGIN, *suppress})
    for batch in batches:
        names = [name for name in batch if not name.startswith(("decoder_", "labels"))]
        arguments = {name: batch[name].to(net.device) for name in names}
        with evaluating(model):
            search: dict[str, Any] = {
                "num_beams": options.num_beams,
                "length_penalty": options.length_penalty,
            }
            search |= {"do_sample": False, "max_new_tokens": options.max_length, "suppress_tokens": shut}
            tokens: Tensor = net.generate(**arguments, **search)  # [B, T]
        yield [_text(row) for row in tokens.tolist()]


def _text(tokens: list[int]) -> list[int]:
    """Tokens after "begin" and before the first end."""
    end = tokens.index(END) if END in tokens else len(tokens)
    return [token for token in tokens[:end] if token not in (PAD, BEGIN)]


@cached_output
class GraphWriterOutput(ModelOutput):
    """Output of :class:`GraphWriterForGeneration`, or of :class:`GraphWriterModel` without loss and logits.

    Attributes:
        loss: mean negative log-likelihood per token in nats, padding excluded; None without labels.
        logits: log-probabilities ``[B, T, V + K]`` of V words, then of the row's K entities.
        cache: state of the decoder; before transformers 5.24 this attribute is ``past_key_values``.
        cross_attentions: weights of vertices ``[B, H, T, N]`` and of the title's words ``[B, H, T, S]``, if requested.
        encoder_attentions: attention weights ``[B, H, N, N]`` of each block of the graph transformer, if requested.
        encoder_last_hidden_state: states of the vertices, ``[B, N, d]``.
        decoder_last_hidden_state: decoder states, ``[B, T, d]``.
        contexts: contexts from the graph and from the title, concatenated, ``[B, T, 2d]``.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    cache: FedState | None = None
    cross_attentions: tuple[Tensor, ...] | None = None
    encoder_attentions: tuple[Tensor, ...] | None = None
    encoder_last_hidden_state: Tensor | None = None
    decoder_last_hidden_state: Tensor | None = None
    contexts: Tensor | None = None


class GraphWriterPreTrainedModel(OwnEncoderDecoder):
    """Base of the networks."""

    config_class = GraphWriterConfig

    def dry_inputs(self) -> dict[str, Tensor]:
        """Returns a small example batch: two rows, the second padded, with sequences of different lengths."""
        first = END + 1
        words = [first + index % max(1, self.config.vocab_size - first) for index in range(7)]
        relations = [[[0, 0, 1], [2, 0, 1]], [[1, 0, 0], [NO_RELATION] * 3]]
        rows: dict[str, Any] = {
            "input_ids": [words, [*words[:5], 0, 0]],
            "attention_mask": [[1] * 7, [1] * 5 + [0] * 2],
            "entity_ids": [[words[:2], [words[2], 0], words[3:5]], [words[:2], [words[1], 0], [0, 0]]],
            "entity_types": [words[:3], words[:3]],
            "relations": relations,
            "decoder_input_ids": [words[:5], words[:5]],
            "decoder_attention_mask": [[1] * 5, [1] * 3 + [0] * 2],
        }
        return {name: torch.tensor(values, device=self.device) for name, values in rows.items()}


class GraphWriterModel(GraphWriterPreTrainedModel, auto=[AutoModel]):
    """Encoder and decoder of :class:`GraphWriterForGeneration`, without the output layer.

    Args:
        config: sizes.
    """

    def __init__(self, config: GraphWriterConfig) -> None:
        super().__init__(config)
        self.encoder = GraphWriterEncoder(config)
        self.decoder = GraphWriterDecoder(config)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        entity_ids: Tensor | None = None,
        entity_types: Tensor | None = None,
        relations: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        *,
        encoder_outputs: GraphWriterEncoderOutput | None = None,
        output_attentions: bool | None = None,
        **options: Any,
    ) -> GraphWriterOutput:
        """Encodes titles and graphs and runs the decoder over the texts.

        Args:
            input_ids: words of the titles, int64 ``[B, S]``.
            attention_mask: ``[B, S]``, 0 at padding. Default: 0 at the padding token.
            entity_ids: the W words of each entity, int64 ``[B, K, W]``; an entity with padding only is padding.
            entity_types: token of each entity's type, int64 ``[B, K]``, whose embedding represents a copied entity.
            relations: int64 ``[B, M, 3]``: number of the first entity, type of the relation, number of the second
                entity; -1 at padding.
            decoder_input_ids: the text shifted by one, int64 ``[B, T]``: numbers of words, or V + k for entity k.
            decoder_attention_mask: ``[B, T]``, 0 at padding; None without padding.
            encoder_outputs: outputs of the encoder instead of titles and graphs.
            output_attentions: whether to return attention weights; None for the configuration's value.
            **options: ``cache`` or ``past_key_values``: decoder state from which ``decoder_input_ids`` continue.

        Returns:
            Vertices, decoder states and contexts, without logits.

        Raises:
            ValueError: a missing input, or shapes or numbers that do not fit.
        """
        owner = type(self).__name__
        if decoder_input_ids is None:
            raise ValueError(f"{owner}: expected decoder_input_ids, the text shifted by one")
        attentions = self.config.output_attentions if output_attentions is None else output_attentions
        if encoder_outputs is None:
            if input_ids is None:
                raise ValueError(f"{owner}: expected input_ids, the words of the titles, got none")
            inputs = (input_ids, attention_mask, entity_ids, entity_types, relations)
            encoder_outputs = self.encoder(*inputs, output_attentions=attentions)
        shape = decoder_input_ids.shape
        check_mask(owner, "decoder_attention_mask", decoder_attention_mask, shape)
        real = None if decoder_attention_mask is None else decoder_attention_mask.bool()
        embedded = self._embedded(decoder_input_ids, cast(Tensor, encoder_outputs.entity_types))
        states, contexts, past, maps = self.decoder(embedded, encoder_outputs, real, cache_in(options))
        return GraphWriterOutput(
            **{CACHE: past},
            cross_attentions=all_maps(maps) if attentions else None,
            encoder_attentions=encoder_outputs.attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            decoder_last_hidden_state=states,
            contexts=contexts,
        )

    def _embedded(self, tokens: Tensor, types: Tensor) -> Tensor:
        """Vectors ``[B, T, d]`` of words, and of the types of copied entities."""
        copied = tokens - self.config.vocab_size
        if tokens.numel() and int(copied.max()) >= types.shape[1]:
            raise ValueError(
                f"{type(self).__name__}: expected decoder_input_ids below {self.config.vocab_size + types.shape[1]}, "
                f"the words and entities, got {int(tokens.max())}"
            )
        words = torch.where(copied >= 0, types.gather(1, copied.clamp_min(0)), tokens)
        return self.encoder.dropout(self.encoder.embed_tokens(words))


class GraphWriterForGeneration(GraphWriterPreTrainedModel, GenerationMixin, auto=[AutoModelForSeq2SeqLM]):
    r"""Writes a text about a title and a knowledge graph (Koncel-Kedziorski et al., NAACL 2019).

    A bidirectional LSTM reads a title of S words, another bidirectional LSTM each of K entities. In the graph
    transformer, N = K + 2 M + 1 vertices (entities, two for each of M relations, and a global one) attend to their
    neighbours; see :func:`~probattn.models.graphwriter.adjacency`. The decoder, an LSTM with input feeding, attends to
    the vertices and to the words of the title. Each of T output tokens is one of V words or a copied entity; a gate
    mixes the two distributions.

    Token V + k is entity k of the row. As an input token it has the embedding of the entity's type, so predictions do
    not depend on the order of the entities.

    Args:
        config: sizes.

    Attributes:
        model: encoder and decoder.
        output: the output layer, a mixture of words and copied entities.

    Example:
        >>> config = GraphWriterConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
        >>> net = GraphWriterForGeneration(config).eval()
        >>> output = net(**net.dry_inputs())
        >>> output.logits.shape, output.logits.exp().sum(-1).allclose(torch.ones(2, 5))
        (torch.Size([2, 5, 23]), True)
    """

    program_class: ClassVar[type[Program]] = GraphTextProgram

    def __init__(self, config: GraphWriterConfig) -> None:
        super().__init__(config)
        self.model = GraphWriterModel(config)
        self.output = CopyOutput(config)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        entity_ids: Tensor | None = None,
        entity_types: Tensor | None = None,
        relations: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        encoder_outputs: GraphWriterEncoderOutput | None = None,
        **options: Any,
    ) -> GraphWriterOutput:
        """Predicts each token of the text from title, graph and the previous tokens.

        Arguments are those of :class:`GraphWriterModel` and ``labels``, int64 ``[B, T]``, -100 at padding. Labels
        shifted by one replace missing ``decoder_input_ids``.

        Returns:
            Log-probabilities ``logits`` and the outputs of :class:`GraphWriterModel`; with labels also ``loss``.

        Raises:
            ValueError: neither decoder inputs nor labels, or an error of :class:`GraphWriterModel`.
        """
        if decoder_input_ids is None and labels is not None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        if encoder_outputs is None and input_ids is not None:
            maps = options.get("output_attentions")
            maps = self.config.output_attentions if maps is None else maps
            inputs = (input_ids, attention_mask, entity_ids, entity_types, relations)
            encoder_outputs = self.model.encoder(*inputs, output_attentions=maps)
        decoder = {"decoder_input_ids": decoder_input_ids, "decoder_attention_mask": decoder_attention_mask}
        read: GraphWriterOutput = self.model(**decoder, encoder_outputs=encoder_outputs, **options)
        assert encoder_outputs is not None
        entities = cast(Tensor, encoder_outputs.entity_mask)
        vertices = cast(Tensor, encoder_outputs.last_hidden_state)[:, : entities.shape[1]]
        logits = self.output(read.decoder_last_hidden_state, read.contexts, vertices, entities)
        read["logits"] = logits
        if labels is not None:
            read["loss"] = F.nll_loss(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        return read

    def generate(self, *inputs: Any, **options: Any) -> Any:
        """Generates texts of words and entities; arguments and result are those of ``generate`` in transformers."""
        read = options.get("encoder_outputs")
        entities = options.get("entity_ids") if read is None else read.entity_types
        # Beam search takes the number of words from the configuration before transformers 5.18.
        searching: Any = copy(self)
        searching.config = deepcopy(self.config)
        searching.config.vocab_size += 0 if entities is None else entities.shape[1]
        return GenerationMixin.generate(searching, *inputs, **options)
