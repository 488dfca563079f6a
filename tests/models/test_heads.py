"""Programs of networks with a head against the losses of transformers' own heads."""

import math
from contextlib import nullcontext
from types import SimpleNamespace

import pyro
import pyro.distributions as dist
import pytest
import torch
import transformers as hf
from packaging.version import Version
from pyro import poutine

import probattn
from probattn.inference import AttentionELBO, AttentionGuide, SVIDriver, posterior_predict
from probattn.models import (
    CausalLanguageModel,
    Classifier,
    GraphWriterConfig,
    GraphWriterForGeneration,
    MaskedLanguageModel,
    McanConfig,
    McanForQuestionAnswering,
    MultiLabelClassifier,
    MultipleChoice,
    Regressor,
    SpanExtractor,
    StoredNetworkError,
    TokenClassifier,
    convert,
    load,
    program_for,
    save,
)
from probattn.sites.observation import ObservationNoise

ROWS, LENGTH, WORDS = 3, 6, 40
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
BERT = SIZES | {"vocab_size": WORDS}
GPT = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": WORDS, "bos_token_id": 1, "eos_token_id": 1}
T5 = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "vocab_size": WORDS}
BART = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "vocab_size": WORDS,
}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0}


def texts(*shape):
    """Token numbers with two places of padding at the end of the second row."""
    ids = torch.randint(3, WORDS, shape, generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, ..., -2:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def words(batch):
    return batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)


def bert(head, **options):
    return getattr(hf, f"BertFor{head}")(hf.BertConfig(**BERT, **options))


def vit():
    config = hf.ViTConfig(**SIZES, image_size=8, patch_size=4, num_labels=3)
    return hf.ViTForImageClassification(config)


def token_labels(batch):
    labels = batch["input_ids"] % 3
    return labels.masked_fill(batch["attention_mask"] == 0, -100)


CASES = {
    # network, inputs, labels, name of the program, observed labels that the network's own loss is a mean of
    "classes": (
        lambda: bert("SequenceClassification", num_labels=3),
        lambda: texts(ROWS, LENGTH),
        lambda _: {"labels": torch.tensor([0, 2, 1])},
        "Classifier",
        ROWS,
    ),
    "labels": (
        lambda: bert("SequenceClassification", num_labels=3, problem_type="multi_label_classification"),
        lambda: texts(ROWS, LENGTH),
        lambda _: {"labels": torch.tensor([[0.0, 1, 1], [1, 0, 0], [0, 0, 0]])},
        "MultiLabelClassifier",
        ROWS * 3,
    ),
    "tokens": (
        lambda: bert("TokenClassification", num_labels=3),
        lambda: texts(ROWS, LENGTH),
        lambda batch: {"labels": token_labels(batch)},
        "TokenClassifier",
        ROWS * LENGTH - 2,
    ),
    "span": (
        lambda: bert("QuestionAnswering"),
        lambda: texts(ROWS, LENGTH),
        lambda _: {"start_positions": torch.tensor([0, 1, 2]), "end_positions": torch.tensor([0, 3, 2])},
        "SpanExtractor",
        ROWS * 2,
    ),
    "choices": (
        lambda: bert("MultipleChoice"),
        lambda: texts(ROWS, 4, LENGTH),
        lambda _: {"labels": torch.tensor([3, 0, 1])},
        "MultipleChoice",
        ROWS,
    ),
    "masked": (
        lambda: bert("MaskedLM"),
        lambda: texts(ROWS, LENGTH),
        lambda batch: {"labels": words(batch).masked_fill(torch.arange(LENGTH) % 2 == 0, -100)},
        "MaskedLanguageModel",
        ROWS * LENGTH // 2 - 1,
    ),
    "causal": (
        lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**GPT)),
        lambda: texts(ROWS, LENGTH),
        lambda batch: {"labels": words(batch)},
        "CausalLanguageModel",
        ROWS * (LENGTH - 1) - 2,
    ),
    "t5": (
        lambda: hf.T5ForConditionalGeneration(hf.T5Config(**T5, **SPECIAL)),
        lambda: texts(ROWS, LENGTH),
        lambda batch: {"labels": words(batch)[:, 1:].contiguous()},
        "Translator",
        ROWS * (LENGTH - 1) - 2,
    ),
    "bart": (
        lambda: hf.BartForConditionalGeneration(hf.BartConfig(**BART, **SPECIAL)),
        lambda: texts(ROWS, LENGTH),
        lambda batch: {"labels": words(batch)[:, 1:].contiguous()},
        "Translator",
        ROWS * (LENGTH - 1) - 2,
    ),
    "marian": (
        lambda: hf.MarianMTModel(hf.MarianConfig(**BART, **SPECIAL)),
        lambda: texts(ROWS, LENGTH),
        lambda batch: {"labels": words(batch)[:, 1:].contiguous()},
        "Translator",
        ROWS * (LENGTH - 1) - 2,
    ),
    "images": (
        vit,
        lambda: {"pixel_values": torch.rand(ROWS, 3, 8, 8, generator=torch.Generator().manual_seed(1))},
        lambda _: {"labels": torch.tensor([0, 2, 1])},
        "Classifier",
        ROWS,
    ),
}


def case(name):
    make, inputs, labels, program, observed = CASES[name]
    torch.manual_seed(0)
    batch = inputs()
    return make().eval(), batch, labels(batch), program, observed


@pytest.mark.parametrize("name", CASES)
def test_the_likelihood_is_the_loss_of_the_head(name):
    """transformers' loss is a mean over observed labels (of both positions of a span), ours a sum."""
    net, batch, labels, expected, observed = case(name)
    program = program_for(net)
    assert type(program).__name__ == expected
    trace = poutine.trace(program).get_trace(batch | labels)
    loss = net(**batch, **labels).loss
    assert torch.isclose(-trace.log_prob_sum(), observed * loss, rtol=1e-5)
    assert program.observations(batch | labels) == observed
    with pytest.raises(ValueError, match=rf"{expected}: expected .* in the batch, got "):
        program.observations(batch)


@pytest.mark.parametrize("name", CASES)
def test_a_converted_network_trains_and_predicts(name):
    if name == "t5" and Version(hf.__version__) < Version("5.15"):
        pytest.skip(f"t5 needs transformers 5.15, installed is {hf.__version__}")
    net, batch, labels, _, _ = case(name)
    plain = program_for(net)(batch | labels).detach()
    program = program_for(convert(net, probattn.BayesianAttention()))
    assert torch.allclose(program(batch | labels), plain, atol=1e-5)
    data = {key: value.repeat(4, *[1] * (value.dim() - 1)) for key, value in (batch | labels).items()}
    result = SVIDriver(program, batch_size=6, seed=0, progress=False, cpu=True).fit(data, steps=3)
    assert result.step == 3
    decoder = {"labels": labels["labels"]} if name in {"t5", "bart", "marian"} else {}
    ids = {"decoder_input_ids": program.inputs(batch | decoder)["decoder_input_ids"]} if decoder else {}
    draws = posterior_predict(program, batch | labels | ids, 4, chunk_size=4)
    one_by_one = posterior_predict(program, batch | labels | ids, 4, chunk_size=1)
    assert draws.logits.shape == (4, *plain.shape)
    assert torch.allclose(draws.logits, one_by_one.logits, atol=1e-5)
    assert not torch.equal(draws.logits[0], draws.logits[1])


def test_the_choices_of_a_datum_share_its_scale():
    """Per datum the terms are the same whatever the size of the data; the KL is that of all choices."""
    net, batch, labels, _, _ = case("choices")
    convert(net, probattn.BayesianAttention())
    terms = []
    for num_data in (None, ROWS, 10 * ROWS):
        program = MultipleChoice(net, num_data=num_data)
        torch.manual_seed(3)
        terms.append(AttentionELBO()(program, AttentionGuide(program))(batch | labels))
    for other in terms[1:]:
        assert torch.allclose(torch.stack(list(terms[0])), torch.stack(list(other)), rtol=1e-5)
    flat = {name: value.flatten(0, 1) for name, value in batch.items()}
    encoder = Classifier(_Features(net))
    torch.manual_seed(3)
    guide = AttentionGuide(encoder)
    kl = AttentionELBO()(encoder, guide)(
        flat | {"labels": torch.zeros(len(flat["input_ids"])).long()}
    ).kl_nats
    assert torch.isclose(terms[0].kl_nats, 4 * kl, rtol=1e-5)


class _Features(torch.nn.Module):
    """The scored rows of a network of choices, one by one, as two classes."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, **inputs):
        scores = self.net.classifier(self.net.bert(**inputs)[1])
        return torch.cat([scores, -scores], dim=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("law", ["normal", "student_t"])
def test_numbers_spread_around_their_prediction(law, dtype):
    torch.manual_seed(0)
    net = bert("SequenceClassification", num_labels=2, problem_type="regression").eval().to(dtype)
    program = program_for(net, noise=ObservationNoise(law, scale=0.7))
    batch, y = texts(ROWS, LENGTH), torch.randn(ROWS, 2, dtype=dtype)
    prediction = program(batch)
    trace = poutine.trace(program).get_trace(batch | {"labels": y})
    z = ((y - prediction) / 0.7).double()
    if law == "normal":
        expected = -0.5 * z.square() - 0.5 * math.log(2 * math.pi) - math.log(0.7)
    else:  # the density of Student's t with 4 degrees of freedom
        expected = (3 / 8 * (1 + z.square() / 4) ** -2.5).log() - math.log(0.7)
    assert torch.isclose(trace.log_prob_sum().double(), expected.sum(), rtol=1e-5)


@pytest.mark.slow
def test_the_scale_of_the_noise_is_learned():
    """At the maximum of the likelihood sigma is the residuals' root mean square."""
    torch.manual_seed(0)
    net = bert("SequenceClassification", num_labels=1)
    for parameter in net.parameters():
        parameter.requires_grad_(False)
    program = program_for(net)
    assert isinstance(program, Regressor)
    batch = texts(30, LENGTH)
    y = 0.3 * torch.randn(30)
    options = {"batch_size": 30, "scheduler": None, "cpu": True, "progress": False}
    optimizer = probattn.inference.OptimizerOptions(noise_learning_rate=0.1)
    SVIDriver(program, optimizer=optimizer, **options).fit(batch | {"labels": y}, steps=150)
    residual = (y - program(batch)[:, 0]).square().mean().sqrt()
    assert torch.isclose(net.probattn.log_scale.exp(), residual, rtol=1e-2)
    assert Regressor(net).scale is net.probattn
    with pytest.raises(ValueError, match=r"expected the noise that the network has, .*normal.*student_t"):
        Regressor(net, noise=ObservationNoise("student_t"))


@pytest.mark.parametrize(
    ("name", "labels", "message"),
    [
        (
            "labels",
            {"labels": torch.full((3, 3), 2)},
            r"labels from 0 to 1 \[3, 3\], got torch.int64 \[3, 3\] with other",
        ),
        (
            "labels",
            {"labels": torch.zeros(3)},
            r"labels from 0 to 1 \[3, 3\], got torch.float32 \[3\]; give one",
        ),
        (
            "tokens",
            {"labels": torch.full((3, 6), 3)},
            r"labels in 0\.\.2, or -100 where there is none, got 3\.\.3",
        ),
        (
            "tokens",
            {"labels": torch.zeros(3, 5).long()},
            r"int64 \[3, 6\] as labels, got torch.int64 \[3, 5\]",
        ),
        ("span", {"start_positions": torch.zeros(3).long()}, "or none of them; end_positions is missing"),
        (
            "span",
            {"start_positions": torch.zeros(3).long(), "end_positions": torch.full((3,), 6)},
            r"end_positions in 0\.\.5, got 6\.\.6",
        ),
        (
            "choices",
            {"labels": torch.full((3,), 4)},
            r"labels in 0\.\.3, or -100 where there is none, got 4\.\.4",
        ),
    ],
)
def test_labels_that_do_not_fit_are_refused(name, labels, message):
    net, batch, _, _, _ = case(name)
    with pytest.raises(ValueError, match=message):
        poutine.trace(program_for(net)).get_trace(batch | labels)


def test_the_program_follows_the_head_and_the_labels():
    names = [
        (bert("SequenceClassification", num_labels=1), None, "Regressor"),
        (bert("SequenceClassification", num_labels=3), torch.zeros(2, 3), "MultiLabelClassifier"),
        (bert("SequenceClassification", num_labels=3), torch.zeros(2).long(), "Classifier"),
        (hf.BartForCausalLM(hf.BartConfig(**BART, is_decoder=True)), None, "CausalLanguageModel"),
    ]
    for net, labels, expected in names:
        assert type(program_for(net, labels=labels)).__name__ == expected
    program = program_for(names[0][0])
    assert program_for(program) is program
    with pytest.raises(
        TypeError, match="BertModel: no program is known for this head; expected a network for"
    ):
        program_for(hf.BertModel(hf.BertConfig(**BERT)))


def test_without_labels_they_are_values_to_predict():
    for name in ("labels", "tokens", "span", "choices"):
        net, batch, _, _, _ = case(name)
        trace = poutine.trace(program_for(net)).get_trace(batch)
        latent = [
            site for site in trace.nodes.values() if site["type"] == "sample" and not site["is_observed"]
        ]
        assert latent
        assert all(isinstance(site["fn"], dist.Distribution) for site in latent)


@pytest.mark.parametrize("latent", [True, False])
def test_the_noise_of_numbers_is_saved_and_loaded(latent, tmp_path, caplog):
    """By ``save_pretrained`` and ``save``; transformers reads the folder as that of a plain network."""
    torch.manual_seed(0)
    net = bert("SequenceClassification", num_labels=2, problem_type="regression").eval()
    if latent:
        convert(net, probattn.BayesianAttention())
    program = program_for(net, noise=ObservationNoise("student_t", degrees=3.0))
    torch.nn.init.uniform_(net.probattn.log_scale)
    net.save_pretrained(tmp_path / "one")
    save(net, tmp_path / "two")
    batch = texts(ROWS, LENGTH)
    for name in ("one", "two"):
        again = load(tmp_path / name)
        assert program_for(again).scale.noise == program.scale.noise
        assert torch.equal(again.probattn.log_scale, net.probattn.log_scale)
        number = 3 if latent else 1
        drawn, expected = (posterior_predict(each, batch, number) for each in (again, net))
        assert torch.equal(drawn.logits, expected.logits)
        assert torch.equal(drawn.interval(0.8), expected.interval(0.8))
        again.save_pretrained(tmp_path / f"{name} again")
        assert torch.equal(load(tmp_path / f"{name} again").probattn.log_scale, net.probattn.log_scale)
        _, report = type(net).from_pretrained(tmp_path / name, output_loading_info=True)
        assert not any(report.values())
    described = (tmp_path / "one" / "probattn.json").read_text(encoding="utf-8")
    (tmp_path / "one" / "manifest.json").unlink()
    (tmp_path / "one" / "probattn.json").write_text(
        described.replace("student_t", "cauchy"), encoding="utf-8"
    )
    with pytest.raises(StoredNetworkError, match="expected one of 'normal', 'student_t', got 'cauchy'"):
        load(tmp_path / "one")


def test_classes_name_their_program_and_tables_are_followed_to_the_letter():
    """A suffix alone makes a network for visual questions one that marks spans."""
    words = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    mcan = McanForQuestionAnswering(McanConfig(vocab_size=9, num_labels=3, **words))
    graphs = GraphWriterForGeneration(GraphWriterConfig(vocab_size=20, **words))
    assert type(program_for(mcan)).__name__ == "VisualQuestionProgram"
    assert type(program_for(graphs)).__name__ == "GraphTextProgram"
    net, inputs = convert(mcan, probattn.BayesianAttention()).eval(), mcan.dry_inputs()
    assert posterior_predict(net, inputs, 3).mean_probabilities.shape == (2, 3)
    vilt = hf.ViltForQuestionAnswering(hf.ViltConfig(**SIZES, image_size=8, patch_size=4, vocab_size=WORDS))
    assert "ViltForQuestionAnswering: no program is known" in _program_of(vilt)


def _program_of(net):
    try:
        return type(program_for(net)).__name__
    except TypeError as error:
        return str(error)


def test_as_many_labels_a_row_as_classes_are_advised_to_name_the_problem():
    program = program_for(bert("SequenceClassification", num_labels=3))
    batch = {"input_ids": torch.ones(2, 4, dtype=torch.long), "labels": torch.ones(2, 3, dtype=torch.long)}
    with pytest.raises(ValueError, match=r'one whole number a row, or for several .* = "multi_label_class'):
        poutine.trace(program).get_trace(batch)


def test_tensors_in_a_list_are_refused_by_what_they_are():
    batch = {"parts": [torch.zeros(2, 3), torch.zeros(2, 4)]}
    with pytest.raises(TypeError, match=r"'parts', got 2 tensors in a list; .* its own, such as 'parts_0'"):
        posterior_predict(lambda inputs: inputs["parts"][0], batch, 2)


@pytest.mark.parametrize("shape", [(2, 4, 1), None])
def test_a_span_needs_two_vectors_of_logits(shape):
    class Net(torch.nn.Module):
        def forward(self, input_ids):
            logits = None if shape is None else torch.zeros(shape)
            return hf.modeling_outputs.QuestionAnsweringModelOutput(start_logits=logits, end_logits=logits)

    with pytest.raises(ValueError, match="expected a network that returns start_logits and end_logits"):
        SpanExtractor(Net())({"input_ids": torch.ones(2, 4, dtype=torch.long)})


@pytest.mark.parametrize("padded", [True, False])
def test_labels_to_predict_are_those_of_real_tokens(padded):
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    batch = {"input_ids": torch.ones(2, 4, dtype=torch.long)} | ({"attention_mask": mask} if padded else {})
    trace = poutine.trace(program_for(bert("TokenClassification"))).get_trace(batch)
    law = trace.nodes["label"]["fn"].base_dist
    expected = law.base_dist.log_prob(torch.zeros(2, 4)) * (mask if padded else 1)
    torch.testing.assert_close(law.log_prob(torch.zeros(2, 4)), expected)


class Given(torch.nn.Module):
    """A network whose logits are an input."""

    def forward(self, logits):
        return logits


HEADS = {
    "Classifier": (Classifier, (2, 3), r"\[2, C\], got .*; load it with AutoModelForSequenceClassification"),
    "MultiLabelClassifier": (
        MultiLabelClassifier,
        (2, 3),
        r"\[2, C\], got .*AutoModelForSequenceClassification",
    ),
    "MultipleChoice": (MultipleChoice, (2, 3), r"\[2, 3\], got .*; load it with AutoModelForMultipleChoice"),
    "Regressor": (Regressor, (2, 1), r"\[2, 1\], got .*; load it with num_labels=1"),
    "TokenClassifier": (TokenClassifier, (2, 4, 3), r"\[2, C, C\], got .*AutoModelForTokenClassification"),
    "MaskedLanguageModel": (MaskedLanguageModel, (2, 4, 3), r"\[2, C, C\], got .*AutoModelForMaskedLM"),
    "CausalLanguageModel": (CausalLanguageModel, (2, 4, 3), r"\[2, C, C\], got .*AutoModelForCausalLM"),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_head_reads_logits_of_its_shape_alone(name):
    make, shape, message = HEADS[name]
    logits = torch.randn(shape)
    assert torch.equal(make(Given())({"logits": logits}), logits)
    assert make.link == "identity" if name == "Regressor" else make.link != "identity"
    for wrong in (logits[..., None], logits.flatten()[:2])[: 1 if make is MultipleChoice else 2]:
        with pytest.raises(ValueError, match=message):
            make(Given())({"logits": wrong})
    for bad in (0, -1):
        with pytest.raises(ValueError, match="num_data"):
            make(Given(), num_data=bad)
    if name != "MultipleChoice":
        named = make(Given(), label_name="answer")
        assert named.label_names == ("answer",) and make(Given()).label_names == ("labels",)


def test_one_logit_is_no_class():
    with pytest.raises(
        ValueError, match=r"two classes or more, got logits \[2, 1\]: a single output is regression"
    ):
        Classifier(Given())({"logits": torch.zeros(2, 1)})
    with pytest.raises(ValueError, match=r"expected inputs \[B, K, ...\] of K choices, got \[2\]"):
        MultipleChoice(Given()).attention_plate(nullcontext(), {"logits": torch.zeros(2)})


@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_a_share_of_smoothing_is_below_one(smoothing):
    with pytest.raises(
        ValueError, match=rf"Classifier.label_smoothing: expected a number in \[0, 1\), got {smoothing}"
    ):
        Classifier(Given(), label_smoothing=smoothing)


def test_labels_are_smoothed_in_training_alone():
    logits, labels = torch.randn(5, 3), torch.tensor([0, 2, 1, 1, 0])
    batch = {"logits": logits, "labels": labels}
    for training, smoothing, expected in ((True, 0.2, 0.2), (False, 0.2, 0.0), (True, 0.0, 0.0)):
        program = Classifier(Given(), label_smoothing=smoothing).train(training)
        loss = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=expected, reduction="sum")
        assert torch.isclose(-poutine.trace(program).get_trace(batch).log_prob_sum(), loss)
        assert not poutine.trace(program).get_trace({"logits": logits}).nodes["label"]["is_observed"]
    assert Classifier(Given()).label_smoothing == 0


class ThreeNumbers(Given):
    """A network that says how many numbers it gives a row."""

    config = SimpleNamespace(num_labels=3)


def likelihood(program, logits, labels):
    """Sum of the log-densities of a program's labels."""
    return poutine.trace(program).get_trace({"logits": logits, "labels": labels}).log_prob_sum()


def test_labels_between_0_and_1_are_shares():
    logits, program = torch.randn(2, 3), MultiLabelClassifier(Given())
    for labels in (torch.tensor([[0, 1, 1], [1, 0, 0]]), torch.tensor([[0.0, 0.3, 1], [1, 0.6, 0]])):
        expected = torch.nn.functional.binary_cross_entropy_with_logits(
            logits, labels.float(), reduction="sum"
        )
        assert torch.isclose(-likelihood(program, logits, labels), expected)
    for outside in (-0.1, 1.1):
        message = r"labels from 0 to 1 \[2, 3\], got torch.float32 \[2, 3\] with other"
        with pytest.raises(ValueError, match=message):
            likelihood(program, logits, torch.tensor([[0, 1, 1], [1, 0, outside]]))
    message = r"labels from 0 to 1 \[2, 3\], got torch.float32 \[2, 2\]; give one number"
    with pytest.raises(ValueError, match=message):
        likelihood(program, logits, torch.zeros(2, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_of_classes_and_soft_labels_are_those_of_torch(dtype):
    """Weights and smoothing in training alone, soft labels always; rows of a soft label count once."""
    logits, hard = torch.randn(5, 3, dtype=dtype), torch.tensor([0, 2, 1, 1, 0])
    soft, weights = torch.rand(5, 3, dtype=dtype).softmax(dim=-1), [0.5, 2.0, 1.0]
    for labels in (hard, soft):
        for training, smoothing in ((True, 0.0), (True, 0.2), (False, 0.2)):
            program = Classifier(Given(), label_smoothing=smoothing, class_weights=weights).train(training)
            theirs = {"weight": torch.tensor(weights), "label_smoothing": smoothing} if training else {}
            expected = torch.nn.functional.cross_entropy(
                logits.float(), labels if labels is hard else labels.float(), reduction="sum", **theirs
            )
            assert torch.isclose(-likelihood(program, logits, labels), expected)
            assert program.observations({"logits": logits, "labels": labels}) == 5
    assert not Classifier(Given(), class_weights=weights).state_dict()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_of_positive_labels_are_those_of_torch(dtype):
    """In training alone; labels that are missing are left out, shares of votes weigh by their share."""
    logits, weights = torch.randn(5, 3, dtype=dtype), [0.5, 4.0, 1.0]
    program = MultiLabelClassifier(Given(), positive_weights=weights)
    shares = torch.rand(5, 3, dtype=dtype)
    for labels in (shares.round().long(), shares):
        for training in (True, False):
            factors = torch.tensor(weights) if training else None
            terms = torch.nn.functional.binary_cross_entropy_with_logits(
                logits.float(), labels.float(), pos_weight=factors, reduction="none"
            )
            assert torch.isclose(-likelihood(program.train(training), logits, labels), terms.sum())
        some = labels.double().index_fill(0, torch.tensor([1, 4]), torch.nan)
        assert torch.isclose(-likelihood(program, logits, some), terms[[0, 2, 3]].sum())
    program.train()
    wide = poutine.trace(pyro.plate("particles", 2, dim=-2)(program))  # expands the law
    site = wide.get_trace({"logits": logits, "labels": shares}).nodes["label"]
    assert site["fn"].log_prob(shares.float()).shape == (2, 5) and not program.state_dict()
    with pytest.raises(ValueError, match="positive_weights: expected one for each of 3 classes, got 2"):
        likelihood(MultiLabelClassifier(Given(), positive_weights=[1.0, 2.0]), logits, shares)
    with pytest.raises(
        TypeError, match=r"MultiLabelClassifier.positive_weights: expected numbers in the order"
    ):
        MultiLabelClassifier(Given(), positive_weights="balanced")


@pytest.mark.parametrize(
    ("program", "labels", "count"),
    [
        (Classifier(Given()), torch.tensor([2, -100, 0]), 2),
        (Classifier(Given(), class_weights=[1.0, 2.0, 3.0]), torch.tensor([2, -100, 0]), 2),
        (Classifier(Given()), torch.tensor([[0.2, 0.8, 0], [torch.nan] * 3, [1, 0, 0]]), 2),
        (MultiLabelClassifier(Given()), torch.tensor([[0.0, 1, torch.nan], [torch.nan] * 3, [1, 0, 1]]), 5),
        (MultiLabelClassifier(Given()), torch.tensor([[0, 1, -100], [-100] * 3, [1, 0, 1]]), 5),
        (
            Regressor(ThreeNumbers(), noise=ObservationNoise("student_t")),
            torch.tensor([[0.3, -2, torch.nan], [torch.nan] * 3, [1, 0, 1]]),
            5,
        ),
    ],
)
def test_missing_labels_are_not_observed(program, labels, count):
    """A row that has all its labels alone gives the same; the gradient of a row without is 0."""
    logits = torch.randn(3, 3, requires_grad=True)
    total = likelihood(program, logits, labels)
    (gradient,) = torch.autograd.grad(total, logits)
    assert total.isfinite() and torch.equal(gradient[1], torch.zeros(3)) and gradient[0].abs().sum() > 0
    assert program.observations({"logits": logits, "labels": labels}) == count
    rows = [0, 2] if count == 2 else [2]
    missing = labels[0].isnan() if labels.is_floating_point() else labels[0] == -100
    if count == 5:  # the first row by its observed columns
        assert torch.equal(gradient[0] == 0, missing)
    alone = torch.autograd.grad(likelihood(program, logits[rows], labels[rows]), logits)[0]
    torch.testing.assert_close(gradient[rows], alone[rows])
    nothing = torch.full_like(labels, -100 if not labels.is_floating_point() else torch.nan)
    assert likelihood(program, logits, nothing) == 0


@pytest.mark.parametrize(
    ("labels", "weights", "message"),
    [
        (
            [[0.5, 0.5, 0.5], [0, 0, 1]],
            None,
            r"sum to 1 in each row, .* got \[0.5, 0.5, 0.5\] in row 0; divide",
        ),
        ([[0.5, 0.5, 0.0], [-1, 1, 1]], None, "in row 1"),
        ([[0.5, 0.5, 0.0], [torch.nan, 0, 1]], None, "in row 1"),
        ([[0.5, 0.5], [0, 1]], None, r"class numbers int64 \[2\] as labels, got torch.float32 \[2, 2\]"),
        ([0, 1], [1.0, 2.0], "class_weights: expected one for each of 3 classes, got 2"),
    ],
)
def test_soft_labels_or_weights_that_do_not_fit(labels, weights, message):
    with pytest.raises(ValueError, match=f"Classifier.*{message}"):
        likelihood(Classifier(Given(), class_weights=weights), torch.zeros(2, 3), torch.tensor(labels))


@pytest.mark.parametrize("weights", ["balanced", {"a": 1.0}])
def test_weights_of_classes_are_numbers(weights):
    with pytest.raises(
        TypeError, match=r"Classifier.class_weights: expected numbers in the order of the classes"
    ):
        Classifier(Given(), class_weights=weights)


@pytest.mark.parametrize("weights", [[-1.0, 1.0], [[1.0]], [0.0, 0.0], [torch.nan, 1.0]])
def test_weights_of_classes_are_positive(weights):
    with pytest.raises(ValueError, match=r"Classifier.class_weights: expected a number >= 0 for each class"):
        Classifier(Given(), class_weights=weights)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_numbers_of_a_row_may_stand_alone(dtype):
    """A network without a configuration gives one; its labels are rounded as its predictions are."""
    program, prediction = Regressor(Given(), noise=ObservationNoise(scale=2.0)), torch.tensor([[0.5], [-1.0]])
    assert program.scale.log_scale.shape == (1,) and program.noise.scale.item() == pytest.approx(2)
    labels = torch.tensor([1.0, 3.0], dtype=dtype)
    expected = dist.Normal(prediction[:, 0], 2.0).log_prob(labels.float()).sum()
    for numbers in (labels, labels[:, None]):
        trace = poutine.trace(program).get_trace({"logits": prediction, "labels": numbers})
        assert torch.isclose(trace.log_prob_sum(), expected)
    for wrong in (labels[:1], labels[:, None].expand(2, 2), labels.float() / 0):
        with pytest.raises(
            ValueError,
            match=r"Regressor: expected finite numbers \[2, 1\] as labels, NaN where there is none, got torch",
        ):
            poutine.trace(program).get_trace({"logits": prediction, "labels": wrong})
    assert Regressor(Given()).noise.scale.item() == 1
    again = Regressor(program.net, noise=ObservationNoise(scale=2.0))
    assert again.scale is program.scale
    with pytest.raises(ValueError, match=r"leave it out, or delete net\.probattn"):
        Regressor(program.net, noise=ObservationNoise(scale=3.0))


@pytest.mark.parametrize("make", [TokenClassifier, CausalLanguageModel])
def test_tokens_are_in_nats_per_mean_length(make):
    logits, labels = torch.randn(2, 4, 3), torch.tensor([[0, 1, -100, 2], [2, -100, -100, -100]])
    batch = {"logits": logits, "labels": labels}
    shift = int(make is CausalLanguageModel)
    loss = torch.nn.functional.cross_entropy(
        logits[:, : 4 - shift].flatten(0, 1), labels[:, shift:].flatten(), reduction="sum"
    )
    for length, divisor in ((None, 1), (2.5, 2.5)):
        program = make(Given(), mean_length=length)
        assert torch.isclose(-poutine.trace(program).get_trace(batch).log_prob_sum() * divisor, loss)
        assert program.observations(batch) == 4 - 2 * shift
    for bad in (0.0, -1.0, math.inf):
        with pytest.raises(ValueError, match=rf"{make.__name__}.mean_length: expected a"):
            make(Given(), mean_length=bad)


def test_an_encoder_decoder_answers_a_labelled_batch(families):
    """The program makes its decoder's inputs of the labels, whatever predicts."""
    sizes = dict.fromkeys(("d_model", "encoder_ffn_dim", "decoder_ffn_dim"), 8)
    layers = {
        f"{part}_{name}": 1 for part in ("encoder", "decoder") for name in ("layers", "attention_heads")
    }
    config = hf.BartConfig(vocab_size=20, **sizes, **layers, **families.SPECIAL, decoder_start_token_id=0)
    program = program_for(hf.BartForConditionalGeneration(config).eval())
    batch = {"input_ids": torch.randint(3, 20, (2, 5)), "labels": torch.randint(3, 20, (2, 4))}
    torch.testing.assert_close(probattn.inference.posterior_expectation(program, batch), program(batch))
