"""The flow of transformers' example of translation, on Multi30k: three lines are not transformers' own.

Usage: captions.py FOLDER
"""

from __future__ import annotations

import sys
from collections import Counter
from math import log
from pathlib import Path

import numpy as np
from flow import arguments, report, train
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    DataCollatorForSeq2Seq,
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    set_seed,
)

import probattn
from probattn.data import load_multi30k
from probattn.metrics.functional import bleu
from probattn.models import convert

SPECIAL = ("<pad>", "</s>", "<unk>")


class ProbabilisticSeq2SeqTrainer(probattn.ProbabilisticTrainer, Seq2SeqTrainer):
    """Generates in evaluation."""


def byte_pairs(texts, size):
    """A tokenizer of byte pairs, learned from the texts, that closes every text with </s>."""
    found = Tokenizer(models.BPE(unk_token=SPECIAL[2]))
    found.normalizer = normalizers.NFC()
    found.pre_tokenizer = pre_tokenizers.Metaspace()
    found.decoder = decoders.Metaspace()
    found.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=size, special_tokens=list(SPECIAL), show_progress=False)
    )
    found.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", SPECIAL.index("</s>"))]
    )
    names = dict(zip(("pad_token", "eos_token", "unk_token"), SPECIAL, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=found, **names)


def main(output: Path) -> None:
    args = arguments(
        output,
        learning_rate=2e-3,
        per_device_train_batch_size=32,
        max_steps=300,
        warmup_steps=30,
        eval_steps=100,
        save_steps=100,
        logging_steps=20,
        predict_with_generate=True,
        generation_max_length=40,
    )
    set_seed(args.seed)
    data = load_multi30k()
    pairs, validation, test = data.train.take(6000), data.validation.take(50), data.test.take(100)
    tokenizer = byte_pairs([*pairs.sources, *pairs.targets], 2000)
    sizes = {"d_model": 128, "encoder_layers": 2, "decoder_layers": 2}
    heads = {
        f"{side}_{name}": size
        for side in ("encoder", "decoder")
        for name, size in (("attention_heads", 4), ("ffn_dim", 256))
    }
    ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "forced_eos_token_id": None}
    config = MarianConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **sizes, **heads, **ids)
    net = MarianMTModel(config)
    net = convert(net, probattn.BayesianAttention())

    def tokenized(part):
        found = tokenizer(list(part.sources), text_target=list(part.targets), truncation=True, max_length=40)
        return [
            {name: found[name][place] for name in ("input_ids", "attention_mask", "labels")}
            for place in range(len(part))
        ]

    def compute_metrics(prediction):
        given, wanted = (
            tokenizer.batch_decode(np.where(ids < 0, 0, ids), skip_special_tokens=True)
            for ids in (prediction.predictions, prediction.label_ids)
        )
        return {"bleu": bleu(given, wanted).score}

    trainer = ProbabilisticSeq2SeqTrainer(
        model=net,
        args=args,
        train_dataset=tokenized(pairs),
        eval_dataset=tokenized(validation),
        processing_class=tokenizer,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=net),
        compute_metrics=compute_metrics,
    )
    resumed = train(trainer)
    held_out = tokenized(test)
    metrics = trainer.evaluate(held_out, metric_key_prefix="test")
    counts = Counter(token for row in trainer.train_dataset for token in row["labels"])
    total = counts.total() + len(tokenizer)
    unigram = np.mean([log((counts[token] + 1) / total) for row in held_out for token in row["labels"]])
    report(
        trainer, resumed, metrics,
        test_log_likelihood=float(unigram), test_bleu=bleu(test.sources, test.targets).score,
    )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]))
