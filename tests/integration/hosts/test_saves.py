"""Saves of converted networks that give their attentions always, and of networks that only the save refers to."""

import copy
import json

import peft
import pytest
import torch
import transformers as hf
from transformers import AutoModelForSequenceClassification, TrainingArguments

import probattn
from probattn import BayesianAttention
from probattn.models import convert, load, save

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
BATCH = {"input_ids": torch.arange(12).view(2, 6) + 1}
DATA = {**BATCH, "labels": torch.tensor([0, 1])}


def plain():
    torch.manual_seed(0)
    config = hf.BertConfig(vocab_size=40, initializer_range=0.4, **SIZES)
    return hf.BertForSequenceClassification(config).eval()


def sampled(net):
    with torch.no_grad(), probattn.sampling(net):
        return net(**BATCH).logits


def test_a_network_that_always_gives_attentions_is_saved(tmp_path):
    """As viewers of attention load it; and the option set later, as transformers' message says."""
    plain().save_pretrained(tmp_path / "plain")
    first = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "plain", output_attentions=True, attn_implementation="eager"
    )
    second = convert(plain(), BayesianAttention())
    with pytest.raises(ValueError, match="Please set it to 'eager'"):
        second.config.output_attentions = True
    second.config._attn_implementation = "eager"
    second.config.output_attentions = True
    for number, net in enumerate((convert(first, BayesianAttention()), second)):
        assert len(net(**BATCH).attentions) == 2
        net.save_pretrained(tmp_path / f"{number}")
        save(net, tmp_path / f"whole{number}")
        for folder in (f"{number}", f"whole{number}"):
            assert json.loads((tmp_path / folder / "config.json").read_text())["output_attentions"] is True
            again = load(tmp_path / folder).eval()
            assert torch.equal(sampled(again), sampled(net)) and len(again(**BATCH).attentions) == 2
        rows = [{name: value[i % 2] for name, value in DATA.items()} for i in range(4)]
        arguments = TrainingArguments(
            str(tmp_path / "run"), max_steps=1, save_steps=1, report_to=[], use_cpu=True
        )
        arguments.disable_tqdm = True
        probattn.ProbabilisticTrainer(model=net, args=arguments, train_dataset=rows).train()
    lora = peft.get_peft_model(second, peft.LoraConfig(target_modules=["query"], task_type="SEQ_CLS"))
    lora.save_pretrained(str(tmp_path / "lora"))


def test_one_expression_makes_and_saves_a_network(tmp_path):
    convert(plain(), BayesianAttention()).save_pretrained(tmp_path / "a")
    load(tmp_path / "a").save_pretrained(tmp_path / "b")
    probattn.from_pretrained(AutoModelForSequenceClassification, tmp_path / "b").save_pretrained(
        tmp_path / "c"
    )
    copy.deepcopy(load(tmp_path / "c")).save_pretrained(tmp_path / "d")
    kept = load(tmp_path / "d").save_pretrained
    kept(tmp_path / "e")
    first = load(tmp_path / "a").eval()
    assert torch.equal(sampled(load(tmp_path / "e").eval()), sampled(first))
    with pytest.raises(TypeError, match="expected one of commit_description"):
        load(tmp_path / "a").push_to_hub("name", nonsense=1)
