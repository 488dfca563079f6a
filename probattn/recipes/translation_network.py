"""The network of a recipe of translation."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from probattn.recipes.section import Section

OF_ONE: dict[str, tuple[str, ...]] = {
    "transformer": ("feed_forward", "attention_dropout", "activation_dropout"),
    "lstm": ("bidirectional", "recurrent_dropout", "output_width", "uniform_attention"),
}
"""Keys that only one of the networks has."""

LSTM_SIZE: dict[str, Any] = {"width": 256, "layers": 2, "heads": 1, "dropout": 0.0}
"""What an LSTM has of the keys that both have, where they are left out."""


class TranslationNetworkRecipe(Section):
    """An encoder-decoder with one embedding for both languages: a Transformer (Vaswani et al. 2017) or an LSTM.

    The defaults are the size that An et al. 2020 call small: that of IWSLT experiments, with 4 heads. An LSTM has those
    of Snell et al. 2021: `width: 256`, `layers: 2`, `heads: 1`, `dropout: 0.0`.

    Example:
        >>> TranslationNetworkRecipe(name="lstm").width, TranslationNetworkRecipe().width
        (256, 512)
    """

    name: Literal["transformer", "lstm"] = Field(
        default="transformer",
        description="`transformer`, or `lstm`: a bidirectional LSTM encoder and an LSTM decoder with dot attention "
        "between them (Luong et al. 2015, Snell et al. 2021).",
    )
    width: int = Field(
        default=512,
        ge=1,
        description="Of embeddings and hidden states; of an `lstm` encoder's in each direction.",
    )
    layers: int = Field(default=6, ge=1, description="Of the encoder, and of the decoder.")
    heads: int = Field(
        default=4,
        ge=1,
        description="Of every attention call. They divide the width of a `transformer`; those of an `lstm` have the "
        "size of the encoder's states each, and their contexts are summed.",
    )
    dropout: float = Field(
        default=0.3,
        ge=0,
        lt=1,
        description="Of embeddings and of every sublayer's output; of an `lstm`, of embeddings and in the network that "
        "makes tokens of contexts and states.",
    )
    feed_forward: int = Field(
        default=1024, ge=1, description="Hidden width of the feed-forward layers of a `transformer`."
    )
    attention_dropout: float = Field(
        default=0.0, ge=0, lt=1, description="Of a `transformer`'s attention weights; latent ones have none."
    )
    activation_dropout: float = Field(
        default=0.0, ge=0, lt=1, description="Inside the feed-forward layers of a `transformer`."
    )
    bidirectional: bool = Field(
        default=True, description="Whether the encoder of an `lstm` reads from both ends."
    )
    recurrent_dropout: float = Field(
        default=0.5, ge=0, lt=1, description="Of what passes from layer to layer of an `lstm`."
    )
    output_width: int | None = Field(
        default=None,
        ge=0,
        description="Hidden units of the network that makes tokens of an `lstm`'s contexts and states; 0 for a single "
        "linear map, null for the width.",
    )
    uniform_attention: bool = Field(
        default=False,
        description="Whether an `lstm` attends to all tokens alike, whatever the scores: what is learned about single "
        "words while attention is not.",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, value: Any) -> Any:
        return LSTM_SIZE | value if isinstance(value, dict) and value.get("name") == "lstm" else value

    @model_validator(mode="after")
    def _whole_heads(self) -> TranslationNetworkRecipe:
        fields = type(self).model_fields
        for name, keys in OF_ONE.items():
            for key in keys if name != self.name else ():
                if getattr(self, key) != fields[key].default:
                    raise ValueError(f"{key}: this key is for {name!r}, and the network is {self.name!r}")
        if self.name == "transformer" and (self.width % self.heads or self.width % 2):
            raise ValueError(f"width: expected an even multiple of heads ({self.heads}), got {self.width}")
        return self
