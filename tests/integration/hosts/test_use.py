"""Converted networks in the hands of transformers, and after training."""

import copy
import pickle

import pyro
import pytest
import torch
import transformers as hf
from transformers import Trainer, TrainingArguments, pipeline

from probattn import BayesianAttention
from probattn.inference import AttentionELBO, AttentionGuide, posterior_predict
from probattn.models import Classifier, convert, inspect, load, save

WORDS = ["[PAD]", "[BOS]", "[EOS]", "[UNK]", "good", "bad", "film", "a", "the"]


@pytest.fixture(scope="module")
def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, "[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="[PAD]",
        unk_token="[UNK]",
        bos_token="[BOS]",
        eos_token="[EOS]",
        model_input_names=["input_ids", "attention_mask"],
    )


def train(model, batch, steps=2):
    pyro.clear_param_store()
    module = AttentionELBO()(model, AttentionGuide(model))
    optimizer = torch.optim.Adam(module.parameters(), 0.01)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        module(batch).loss.backward()
        optimizer.step()
    model.eval()


def text(family, rows=4):
    return {name: value for name, value in family.inputs(rows).items() if not name.startswith("decoder")}


def test_pipeline_of_texts_of_different_lengths(by_name, tokenizer):
    net = by_name["bert"].classification()
    texts = ["a good film", "the bad", "a the good bad film film"]
    eager = pipeline("text-classification", net, tokenizer=tokenizer, device="cpu")(texts, batch_size=3)
    convert(net, BayesianAttention())
    classify = pipeline("text-classification", net, tokenizer=tokenizer, device="cpu")
    for answer, before in zip(classify(texts, batch_size=3), eager, strict=True):
        assert answer["label"] == before["label"]
        assert answer["score"] == pytest.approx(before["score"], abs=1e-5)
    assert [a["score"] for a in classify(texts)] == [a["score"] for a in classify(texts)]


def test_pipeline_that_generates(by_name, tokenizer):
    net = by_name["gpt2"].network()
    options = {"max_new_tokens": 5, "do_sample": False, "return_tensors": True}
    before = pipeline("text-generation", net, tokenizer=tokenizer, device="cpu")("a good film", **options)
    convert(net, BayesianAttention())
    assert (
        pipeline("text-generation", net, tokenizer=tokenizer, device="cpu")("a good film", **options)
        == before
    )


def test_trainer_predicts_but_does_not_train(families, by_name, tmp_path):
    family = by_name["distilbert"]
    net, batch = family.classification(), text(family)
    eager = families.forward(net, batch)
    convert(net, BayesianAttention())
    rows = [{key: value[row] for key, value in batch.items()} | {"labels": row % 2} for row in range(4)]
    arguments = TrainingArguments(tmp_path, use_cpu=True, report_to="none", disable_tqdm=True, max_steps=1)
    trainer = Trainer(net, arguments, train_dataset=rows)
    predicted = torch.as_tensor(trainer.predict(rows).predictions)
    assert (predicted - eager).abs().max() < 1e-5
    with pytest.raises(RuntimeError, match="training without a driver"):
        trainer.train()


@pytest.mark.parametrize("name", ["albert", "swin", "gpt2"])
def test_copies_pickles_and_files_after_training(families, by_name, name, tmp_path):
    family = by_name[name]
    torch.manual_seed(0)
    net = convert(family.classification(), families.FULL)
    if name == "gpt2":
        net.config.pad_token_id = 0
    model, batch = Classifier(net, num_data=4), text(family)
    train(model, batch | {"labels": torch.tensor([0, 1, 1, 0])})
    expected = posterior_predict(model, batch, 3).logits
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    copies.append(Classifier(pickle.loads(pickle.dumps(net)), num_data=4))
    copies.append(Classifier(load(save(net, tmp_path / "net")), num_data=4))
    fresh = Classifier(convert(family.classification(), families.FULL))
    fresh.load_state_dict(model.state_dict())
    for copied in [*copies, fresh]:
        assert torch.equal(posterior_predict(copied, batch, 3).logits, expected)
        train(copied, batch | {"labels": torch.tensor([0, 1, 1, 0])}, steps=1)
    assert torch.equal(posterior_predict(model, batch, 3).logits, expected)


def test_sites_of_albert_are_drawn_apart(families, by_name):
    family = by_name["albert"]
    torch.manual_seed(0)
    model = Classifier(convert(family.classification(), families.FULL))
    drawn = posterior_predict(model, text(family), 2, attention="all").attention
    first, second = (drawn[call.name] for call in inspect(model.net))
    assert first.shape == second.shape and not torch.allclose(first, second)


def test_only_the_chosen_calls_are_sites(families, by_name):
    family = by_name["bart"]
    torch.manual_seed(0)
    net = convert(family.network(), families.FULL, layers="last", attention="cross")
    trace = families.trace(families.program(net), family.inputs())
    assert [name for name in trace.stochastic_nodes if name != "data"] == [
        "model.decoder.layers.1.encoder_attn"
    ]


@pytest.mark.only("padded")
def test_padding_moves_no_part_of_the_kl(families, family):
    for reduction in ("sum", "keys", "mean") if family.name in ("bert", "bart") else ("mean",):
        torch.manual_seed(0)
        net, inputs = convert(family.network(), BayesianAttention(kl_reduction=reduction)), family.inputs()
        terms = []
        for rows in (inputs, family.pad(inputs, "left"), family.pad(inputs, "right")):
            _, sites = families.observe(net, rows)
            terms.append(torch.stack([site.kl() * site.reduction_factor() for site in sites.values()]))
        torch.testing.assert_close(terms[1], terms[0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(terms[2], terms[0], atol=1e-5, rtol=1e-5)


def test_batch_keys_of_a_network_with_shared_inputs(families, by_name):
    """Inputs without a batch dimension are named by leaving them out of ``batch_keys``."""
    family = by_name["bert"]
    torch.manual_seed(0)
    model = Classifier(convert(family.classification(), families.FULL))
    batch = text(family, 3)
    places = torch.arange(batch["input_ids"].shape[1])[None]
    expected = posterior_predict(model, batch, 3).logits
    keys = ["input_ids", "attention_mask"]
    assert torch.equal(
        posterior_predict(model, batch | {"position_ids": places}, 3, batch_keys=keys).logits, expected
    )
    with pytest.raises(ValueError, match="expected one batch size"):
        posterior_predict(model, batch | {"position_ids": places}, 3)


@pytest.mark.parametrize(
    ("name", "dtype"), [("bert", torch.bfloat16), ("swin", torch.bfloat16), ("bert", torch.float16)]
)
def test_low_precision_networks_train_and_draw(families, by_name, name, dtype):
    family = by_name[name]
    torch.manual_seed(0)
    net = convert(family.classification().to(dtype), families.FULL)
    batch = {
        key: value.to(dtype) if value.is_floating_point() else value for key, value in text(family).items()
    }
    model = Classifier(net)
    terms = AttentionELBO()(model, AttentionGuide(model))(batch | {"labels": torch.tensor([0, 1, 1, 0])})
    terms.loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    assert posterior_predict(model, batch, 2).probabilities.isfinite().all()


def test_autocast(families, by_name):
    family = by_name["llama"]
    torch.manual_seed(0)
    model = families.program(convert(family.network(), families.FULL))
    with torch.autocast("cpu", torch.bfloat16):
        terms = AttentionELBO()(model, AttentionGuide(model))(family.pad(family.inputs(), "left"))
    assert terms.loss.isfinite() and terms.kl.dtype == torch.float32
