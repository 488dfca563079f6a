"""Texts from texts: the command line, the measures, generation, and what is refused."""

import json
import random

import pytest
import torch
from runs import overrides, refused, succeeds, tokenizer
from transformers import BartConfig, BartForConditionalGeneration, T5Config, T5ForConditionalGeneration

import probattn
from probattn.inference import generate_with_uncertainty
from probattn.metrics.functional import bleu
from probattn.models import convert
from probattn.recipes import load_any_recipe
from probattn.tasks import load_results
from probattn.tasks.fine_tuning import Sequences
from probattn.tasks.fine_tuning.predictor import Predictor
from probattn.tasks.networks import Network

pytest.importorskip("sacrebleu", reason="needs sacrebleu (the extra 'translation')")

OTHER = {"good": "bad", "film": "plot", "the": "a", "fine": "poor", "was": "cast"}
ENDS = {"pad_token_id": 0, "eos_token_id": 3, "decoder_start_token_id": 0}


def net_of(name):
    torch.manual_seed(0)
    if name == "t5":
        return T5ForConditionalGeneration(
            T5Config(vocab_size=16, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, **ENDS)
        ).eval()
    sizes = {f"{side}_{key}": n for side in ("encoder", "decoder") for key, n in SIZES.items()}
    return BartForConditionalGeneration(
        BartConfig(
            vocab_size=16,
            d_model=16,
            max_position_embeddings=32,
            bos_token_id=2,
            forced_eos_token_id=3,
            init_std=0.5,
            **ENDS,
            **sizes,
        )
    ).eval()


SIZES = {"layers": 1, "attention_heads": 2, "ffn_dim": 16}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sequences")
    draw = random.Random(0)
    with (folder / "pairs.jsonl").open("w") as opened:
        for _ in range(60):
            words = draw.choices(list(OTHER), k=draw.randint(2, 6))
            row = {"source": " ".join(words), "target": " ".join(OTHER[word] for word in words)}
            opened.write(json.dumps(row) + "\n")
    for name in ("t5", "bart"):
        tokenizer().save_pretrained(folder / name)
        net_of(name).save_pretrained(folder / name)
    file = folder / "recipe.yaml"
    file.write_text(
        f"sequences: {{train: {folder}/pairs.jsonl, prefix: 'the a ', source_length: 12, target_length: 8}}\n"
        f"network: {{name: {folder}/bart}}\nattention: {{method: babn}}\n"
    )
    return file


def task_of(recipe, *keys):
    return Sequences(load_any_recipe(recipe, keys))


def test_a_run_is_reported_and_answers(reported):
    run = reported("sequences")
    results = load_results(run)
    plain, mean, expected = results.scores
    values = ["deterministic", "bayesian_mean", "bayesian_expectation"]
    assert [plain.model, mean.model, expected.model] == values
    assert mean.values["bleu"] == expected.values["bleu"]
    assert mean.values["nll"] != expected.values["nll"]
    listing = results.listings[-1]
    assert listing.headings[:3] == ("Text", "Reference", "Generated")
    answer = json.loads(succeeds("predict", run, "the film was good", "--json"))
    assert answer.keys() == {"text", "prediction", "score", "entropy", "mutual_information"}
    assert answer["score"] < 0 < answer["entropy"]
    assert "Generated" in succeeds("predict", run, "the film was good")


def batch_of(task, network, examples):
    return next(Predictor(task, network).completed(examples))


def network_of(task, net, key="deterministic"):
    return Network(task.program_of(net).eval(), None, key, tokenizer())


@pytest.mark.parametrize("name", ["t5", "bart"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_measures_are_those_of_transformers_own_loss_and_of_sacrebleu(recipe, name, dtype):
    task, net = task_of(recipe), net_of(name).to(dtype)
    network, examples = network_of(task, net), task.examples["test"][:4]
    batch = batch_of(task, network, examples)
    posterior = Predictor(task, network).drawn(batch, 0)
    figures = task.figures(task.record(posterior, batch))
    assert figures["nll"] == pytest.approx(net(**batch.tensors).loss.item(), rel=1e-5)
    texts = [each.notes for each in batch.encoded]
    assert figures["bleu"] == pytest.approx(bleu(texts, [each["target"] for each in examples]).score / 100)
    for example, text in zip(examples, texts, strict=True):  # each by itself, without padding
        ids = tokenizer()("the a " + example["text"], return_tensors="pt")["input_ids"]
        alone = net.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8)
        assert tokenizer().decode(alone[0], skip_special_tokens=True) == text


@pytest.mark.parametrize("beams", [1, 3])
def test_scores_of_a_deterministic_network_are_those_of_its_own_generation(recipe, beams):
    task, net = task_of(recipe, f"sequences.num_beams={beams}"), net_of("bart")
    network, example = network_of(task, net), {"text": "film was good"}
    batch = batch_of(task, network, [example])
    (answer,) = task.answer(Predictor(task, network).drawn(batch, 0), batch)
    ids = tokenizer()("the a film was good", return_tensors="pt")["input_ids"]
    out = net.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=8,
        num_beams=beams,
        output_logits=True,
        return_dict_in_generate=True,
    )
    tokens = out.sequences[0, 1:]
    given = {"input_ids": ids, "decoder_input_ids": out.sequences[:, :-1]}
    log_p = net(**given).logits[0].log_softmax(dim=-1).gather(1, tokens[:, None])
    assert answer["score"] == pytest.approx(log_p.sum().item(), rel=1e-5)
    assert answer["mutual_information"] == 0


def test_uncertainties_have_the_law_of_generation_under_sampled_attention(recipe):
    task = task_of(recipe, "prediction.num_samples=100")
    net = convert(net_of("bart"), probattn.BayesianAttention()).eval()
    network, example = network_of(task, net, "bayesian_mean"), {"text": "film was good"}
    batch = batch_of(task, network, [example])
    (answer,) = task.answer(Predictor(task, network).drawn(batch, 0), batch)
    inputs = {name: batch.tensors[name] for name in ("input_ids", "attention_mask")}
    runs = [
        generate_with_uncertainty(net, inputs, draws=100, seed=seed, max_new_tokens=8) for seed in range(4)
    ]
    known = batch.tensors["labels"][0] != -100
    assert all(torch.equal(each.tokens[each.mask], batch.tensors["labels"][0, known]) for each in runs)
    for name, found in (("entropy", "entropy"), ("mutual_information", "mutual_information")):
        values = torch.stack([getattr(each, found)[each.mask].mean() for each in runs])
        spread = 5 * values.std().item() + 1e-4
        assert answer[name] == pytest.approx(values.mean().item(), abs=spread)
    scores = torch.cat([each.scores for each in runs])
    assert answer["score"] == pytest.approx(scores.mean().item(), abs=5 * scores.std().item() + 1e-3)


def test_labels_and_lengths_are_those_of_the_tokenizer(recipe):
    task = task_of(recipe, "sequences.target_length=4", "sequences.source_length=5")
    example = {"text": "film was good", "target": "bad plot cast a"}
    (encoded,) = task.encode(tokenizer(), [example])
    words = {
        name: tokenizer().convert_ids_to_tokens(encoded.rows[0][name]) for name in ("input_ids", "labels")
    }
    assert words == {
        "input_ids": ["[CLS]", "the", "a", "film", "[SEP]"],
        "labels": ["[CLS]", "bad", "plot", "[SEP]"],
    }
    assert load_any_recipe("sequences_t5").sequences.prefix == "translate English to German: "


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"source": "film", "target": ""}', "line 1: expected text in 'target'"),
        ('{"source": 3, "target": "film"}', "line 1: expected text in 'source'"),
        ('{"source": "film"}', "expected a column 'target', got source"),
    ],
)
def test_what_is_no_pair_of_texts_is_refused(recipe, tmp_path, content, expected):
    file = tmp_path / "rows.jsonl"
    file.write_text(content + "\n")
    keys = overrides(*(f"sequences.{part}={file}" for part in ("train", "validation", "test")))
    assert expected in refused("train", recipe, "-o", tmp_path / "run", *keys)
