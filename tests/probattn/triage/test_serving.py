"""A policy beside a saved network, and a pipeline of transformers that abstains by it."""

import json
import shutil

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from probattn import BayesianAttention, convert, posterior_moments, posterior_predict
from probattn.tasks import RunError
from probattn.triage import (
    NoveltyRule,
    TriageOptions,
    calibrate,
    judged_probabilities,
    read_policy,
    save_policy,
    selective_pipeline,
)

pytestmark = pytest.mark.filterwarnings("ignore::probattn.data.DataWarning")
TEXTS = ["a good film", "bad", "the plot was good and the cast was bad", "film film"]


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        *["a", "the", "good", "bad", "film", "plot", "cast", "was", "and"],
    ]
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, "[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]")


@pytest.fixture(scope="module", params=["plain", "latent", "moments"])
def saved(request, tmp_path_factory):
    """A saved network, its policy in memory, and the probabilities by which it decides."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp(request.param)
    config = BertConfig(
        vocab_size=13,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=3,
    )
    net = BertForSequenceClassification(config).eval()
    with torch.no_grad():
        net.classifier.weight.mul_(30)
    if request.param != "plain":
        net = convert(net, BayesianAttention.bam(concentration=2.0)).eval()
    codec = tokenizer()
    net.save_pretrained(folder)
    codec.save_pretrained(folder)
    batch = codec(TEXTS, return_tensors="pt", padding=True)
    if request.param == "plain":
        probabilities = net(**batch).logits.softmax(dim=-1)
    elif request.param == "latent":
        probabilities = posterior_predict(net, batch, 7, seed=3).mean_probabilities
    else:
        probabilities = posterior_moments(net, batch, num_samples=7, seed=3).mean_probabilities
    many, labels = probabilities.detach().double().repeat(60, 1), torch.randint(3, (240,))
    judged = judged_probabilities(many, labels, ["LABEL_0", "LABEL_1", "LABEL_2"])
    uncertainty = "moments" if request.param == "moments" else "draws"
    options = TriageOptions(error=0.9, num_samples=7, seed=3, uncertainty=uncertainty, sets="lac")
    policy = calibrate(judged, None, options)
    middle = probabilities.amax(dim=-1).sort().values[1:3].mean().item()
    limit = policy.limits[0].model_copy(update={"threshold": 1 - middle})
    return folder, policy.model_copy(update={"limits": (limit,)}), probabilities


def test_it_decides_as_its_policy_does(saved):
    folder, policy, probabilities = saved
    assert save_policy(policy, folder).name == "policy.json"
    outputs = selective_pipeline(folder, batch_size=len(TEXTS))(TEXTS)
    names = ["LABEL_0", "LABEL_1", "LABEL_2"]
    for output, row in zip(outputs, probabilities, strict=True):
        answer = {
            "label": names[int(row.argmax())],
            "probabilities": dict(zip(names, row.tolist(), strict=True)),
        }
        decision = policy.decide(answer)
        assert output["decision"] == decision.words and output["set"] == list(decision.classes)
        assert output["label"] == answer["label"] and output["score"] == pytest.approx(
            row.max().item(), abs=1e-5
        )
        assert output["why"] == ([] if decision.answered else ["unsure"])
    assert {output["decision"] for output in outputs} == {"answer", "person"}


@pytest.mark.parametrize("size", [1, 3])
def test_a_blank_text_is_no_answer_however_sure_the_network_is(saved, size):
    folder, policy, _ = saved
    save_policy(policy, folder)
    limit = policy.limits[0].model_copy(update={"threshold": 1.0})
    sure = read_policy(folder).model_copy(update={"limits": (limit,)})
    pipeline = selective_pipeline(folder, sure, batch_size=size)
    pipeline.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", 2)]
    )
    good, blank, unseen = pipeline([TEXTS[0], "  ", "\u200b"])
    assert good["decision"] == "answer"
    for none in (blank, unseen):
        assert (none["decision"], none["why"]) == ("person", ["no text"])


def test_a_policy_belongs_to_its_weights(saved, tmp_path):
    folder, policy, _ = saved
    with pytest.raises(RunError, match="expected a policy for this network, got one for another"):
        selective_pipeline(folder, policy)  # it names no network
    save_policy(policy, folder)
    other = shutil.copytree(folder, tmp_path / "other")
    net = selective_pipeline(other).model
    with torch.no_grad():
        net.classifier.bias.add_(1)
    net.save_pretrained(other)
    with pytest.raises(RunError, match="got one for another"):
        selective_pipeline(other)
    with pytest.raises(RunError, match=r"config\.json"):
        save_policy(policy, tmp_path)
    save_policy(policy.model_copy(update={"novelty": NoveltyRule(share=0.1, threshold=1.0)}), folder)
    with pytest.raises(
        RunError, match=r"triage\.features\.safetensors: expected the features .* got no such file"
    ):
        selective_pipeline(folder)


def test_texts_are_truncated_as_those_of_the_calibration(saved):
    folder, policy, _ = saved
    save_policy(policy, folder)
    long = " ".join(TEXTS[2].split() * 200)
    assert selective_pipeline(folder)([TEXTS[0], long])[1]["decision"] in ("answer", "person")
    save_policy(policy, folder, max_length=5)
    pipeline = selective_pipeline(folder)
    first = " ".join(TEXTS[2].split()[:5])
    scores = [output["score"] for output in pipeline([TEXTS[2], first])]
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)
    with pytest.raises(RunError, match="expected max_length=5, with which the policy was calibrated, got 4"):
        selective_pipeline(folder, max_length=4)


def test_a_damaged_folder_is_refused(saved, tmp_path):
    folder, policy, _ = saved
    save_policy(policy, folder)
    other = shutil.copytree(folder, tmp_path / "other")
    if not (other / "probattn.json").exists():
        pytest.skip("has no manifest")
    (other / "probattn.json").unlink()
    with pytest.raises(RunError, match=r"expected the network as it was saved, got .*probattn\.json"):
        selective_pipeline(other)


@pytest.mark.parametrize("novelty", [(), ("--novelty", "0.3")], ids=["by uncertainty", "and by distance"])
def test_a_run_decides_as_predict_does(run, command, tmp_path, novelty):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    options = ("--error", "0.9", "--num-samples", "5", "--quiet", *novelty)
    assert command("triage", folder, *options).exit_code == 0
    done = command("predict", folder, *TEXTS, "--policy", folder, "--json", "--quiet")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    outputs = selective_pipeline(folder, batch_size=len(TEXTS))(TEXTS)
    for answer, output in zip(answers, outputs, strict=True):
        assert output["label"] == answer["label"] and output["decision"] == answer["decision"]
        assert output["score"] == pytest.approx(answer["probability"], abs=1e-5)
        assert output.get("novelty") == (pytest.approx(answer["novelty"], rel=1e-4) if novelty else None)
    assert any("unlike" in " ".join(output["why"]) for output in outputs) or not novelty
    assert read_policy(folder).num_samples == 5
