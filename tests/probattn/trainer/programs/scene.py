"""Networks, rows and trainers that the tests of the trainer and the programs that they start share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transformers as hf
from torch import Tensor

from probattn import ProbabilisticTrainer
from probattn.models import convert

WORDS, LENGTH = 24, 6
BERT = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": WORDS,
    "initializer_range": 0.3,
}
GPT = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": WORDS, "bos_token_id": 1, "eos_token_id": 2}
BART = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "vocab_size": WORDS,
    "init_std": 0.3,
    "dropout": 0.0,
}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0}


def bert(head: str = "SequenceClassification", dropout: float = 0.0, **options: Any) -> Any:
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return getattr(hf, f"BertFor{head}")(hf.BertConfig(**BERT, **rates, **options))


def gpt2() -> Any:
    rates = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return hf.GPT2LMHeadModel(hf.GPT2Config(**GPT, **rates))


def bart() -> Any:
    return hf.BartForConditionalGeneration(hf.BartConfig(**BART, **SPECIAL))


def network(make: Any = bert, *methods: Any, seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(seed)
    net = make().to(dtype)
    return convert(net, *methods) if methods else net


def words(count: int, *shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, WORDS, (count, *(shape or (LENGTH,))), generator=generator)


def classes(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Texts with a class each: whether their first word is in the upper half."""
    return [
        {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": int(ids[0] >= WORDS // 2)}
        for ids in words(count, seed=seed)
    ]


def tokens(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Texts with a class for each of some of their words, a different number in each text."""
    found = []
    for number, ids in enumerate(words(count, seed=seed)):
        labels = ids % 3
        labels[1 + number % (LENGTH - 1) :] = -100
        found.append({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels})
    return found


class Constant:
    """Noise without chance, the same for every row whatever rows share its batch."""

    draws = 1

    def uniform(self, like: Tensor) -> Tensor:
        return torch.full_like(like, 0.3)

    def normal(self, like: Tensor) -> Tensor:
        return torch.full_like(like, 0.5)


class InOrder:
    """Takes the rows in their order."""

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


class Ordered(InOrder, ProbabilisticTrainer):
    """Takes the rows in their order."""


class Plain(InOrder, hf.Trainer):
    """transformers' own, with the rows in their order."""


class Noiseless(Ordered):
    """Every draw is made of the same numbers."""

    def noise(self, kind: int, *place: int) -> Any:
        return Constant()


def arguments(folder: Any, **options: Any) -> Any:
    kind = hf.Seq2SeqTrainingArguments if "predict_with_generate" in options else hf.TrainingArguments
    usual = {
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "logging_steps": 1,
        "save_strategy": "no",
        "optim": "adamw_torch",
        "learning_rate": 1e-3,
    }
    return kind(str(folder), **usual | options)


def losses(trainer: hf.Trainer, name: str = "loss") -> list[float]:
    return [record[name] for record in trainer.state.log_history if name in record]


def weights(net: Any) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in net.state_dict().items()}


def collate(rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    return hf.default_data_collator(list(rows))
