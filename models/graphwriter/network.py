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

    def observe(self, prediction: Tensor, labels: Batch | None, inputs: Batch) -> None:
        """The site ``"target"``, one event a text, and the term of coverage where texts are observed."""
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
        num_beams: number of beams, >= 1; 1 is greedy search.
        length_penalty: exponent a: finished texts are ranked by log-probability / length^a; 1, as in the released
            GraphWriter, ranks by the mean per token.
        max_length: maximum number of tokens of a text, >= 1.
        batch_size: texts that are generated at once, >= 1.

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
    """Output of the network.

    Attributes:
        loss: mean negative log-likelihood of the labels that are no padding; with labels.
        logits: log-probabilities ``[B, T, V + K]`` of words and then of the row's entities.
        cache: the decoder's state, by transformers' name: ``past_key_values`` before its version 5.24.
        cross_attentions: weights to vertices ``[B, H, T, N]`` and to the title ``[B, H, T, S]``, if requested.
        encoder_attentions: weights ``[B, H, N, N]`` of each block of the graph transformer, if requested.
        encoder_last_hidden_state: vertices ``[B, N, d]``.
        decoder_last_hidden_state: h ``[B, T, d]``.
        contexts: c ``[B, T, 2d]``.
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
        """Two short rows, the second padded, in which no two sequences have the same length."""
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
    """Encoder and decoder without the output.

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
        """Reads titles, graphs and the texts so far.

        Args:
            input_ids: words of the titles, int64 ``[B, S]``.
            attention_mask: ``[B, S]``, 0 at padding; None for 0 where the word is padding.
            entity_ids: words of the entities, int64 ``[B, K, W]``; an entity of padding alone is none.
            entity_types: tokens of the entities' types, int64 ``[B, K]``, which stand for a copied entity as input.
            relations: int64 ``[B, M, 3]``, numbers of entity, relation and entity, -1 at padding.
            decoder_input_ids: the text shifted by one, int64 ``[B, T]``: a word, or V and the number of an entity.
            decoder_attention_mask: ``[B, T]``, 0 at padding; None where there is none.
            encoder_outputs: what the encoder gave, in place of title and graph.
            output_attentions: whether to give the weights; None for the configuration's value.
            **options: ``cache`` or ``past_key_values``, the decoder's state, from which ``decoder_input_ids`` go on.

        Returns:
            States and contexts, without logits.

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
        embedded: Tensor = self.encoder.dropout(self.encoder.embed_tokens(words))
        return embedded


class GraphWriterForGeneration(GraphWriterPreTrainedModel, GenerationMixin, auto=[AutoModelForSeq2SeqLM]):
    r"""Writes a text about a title and a knowledge graph (Koncel-Kedziorski et al., NAACL 2019).

    A bidirectional LSTM reads the title, another each entity; a graph transformer lets entities, relations and a vertex
    for the whole attend to their neighbours; an LSTM with input feeding attends to vertices and to the title's words,
    and each of its tokens is a word of the vocabulary or a copied entity (:class:`CopyOutput`).

    Token V + k is entity k of the row. As input it stands for its type, so that nothing depends on entities' numbers.

    Args:
        config: sizes.

    Attributes:
        model: encoder and decoder.
        output: the mixture of words and copies.

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
        """Predicts each token of the text from title, graph and the tokens before it.

        Arguments are those of :class:`GraphWriterModel`; without ``decoder_input_ids`` they are the labels shifted by
        one. With ``labels``, int64 ``[B, T]``, -100 at padding, the loss is computed.

        Returns:
            Log-probabilities, and what they were made of.

        Raises:
            ValueError: neither decoder inputs nor labels, or what :class:`GraphWriterModel` refuses.
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
        """As transformers' networks do, over words and entities."""
        read = options.get("encoder_outputs")
        entities = options.get("entity_ids") if read is None else read.entity_types
        # Beam search takes the number of words from the configuration before transformers 5.18.
        searching: Any = copy(self)
        searching.config = deepcopy(self.config)
        searching.config.vocab_size += 0 if entities is None else entities.shape[1]
        return GenerationMixin.generate(searching, *inputs, **options)
