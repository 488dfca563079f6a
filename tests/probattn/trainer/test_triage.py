"""A trainer's policy is that of its predictions."""

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.nn import functional as F
from transformers import (
    BertConfig,
    BertForMultipleChoice,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
)

from probattn import AlignmentAttention, BayesianAttention, ProbabilisticTrainer, RepulsiveAttention, convert
from probattn.checks import PlainWarning
from probattn.inference import posterior_expectation
from probattn.tasks import RunError
from probattn.triage import (
    TriageOptions,
    calibrate,
    judged_probabilities,
    judged_scores,
    read_policy,
    save_policy,
    selective_pipeline,
    write_policy,
)
from probattn.triage.trainers import weights_digest


def trainer_of(scene, folder, *head, **options):
    net = scene.network(lambda: scene.bert(*head, **options), BayesianAttention())
    return ProbabilisticTrainer(model=net, args=scene.arguments(folder), data_collator=scene.collate)


def test_it_is_that_of_the_predictions(scene, tmp_path):
    trainer = trainer_of(scene, tmp_path)
    test, pilot = scene.classes(60), scene.classes(20, seed=1)
    trainer.eval_dataset = pilot

    def judged(part, name):
        output = trainer.predict(part)
        probabilities = torch.as_tensor(output.predictions).double().softmax(dim=-1)
        names = list(trainer.model.config.id2label.values())
        return judged_probabilities(probabilities, torch.as_tensor(output.label_ids), names, title=name)

    weights = weights_digest(trainer.model.state_dict().values())
    mean = {"num_samples": 0, "seed": trainer.args.seed, "network": weights}  # one pass at the posterior mean
    expected = calibrate(judged(test, "the data set"), judged(pilot, "pilot"), TriageOptions(error=0.7))
    expected = expected.model_copy(update=mean)
    assert trainer.triage(test, error=0.7) == expected
    assert trainer.triage(test, error=0.7, pilot=pilot) == expected
    limit = expected.limits[0]
    assert limit.answered and str(expected).startswith(f"{limit.answered} of 60 held-out inputs answered (")
    assert f"{limit.errors} wrong, at most {limit.bound:.1%} with 95% confidence" in str(expected)
    trainer.eval_dataset = {"one": pilot, "two": test}
    alone = calibrate(judged(test, "the data set"), None, TriageOptions(cost=5.0)).model_copy(update=mean)
    assert trainer.triage(test, error=None, cost=5.0) == alone and "at the least cost" in str(alone)
    by_class = trainer.triage(test, error=0.7, by_class=True)
    assert by_class.by_class and "an error of at most 70%" in str(by_class)


def test_other_options_of_the_trainer_do_not_change_it(scene, tmp_path):
    trainer, rows = trainer_of(scene, tmp_path), scene.classes(60)
    trainer.eval_dataset = scene.classes(20, seed=1)
    expected = trainer.triage(rows, error=0.7)
    trainer.preprocess_logits_for_metrics = lambda logits, *_: logits.softmax(-1) / 10
    trainer.args.eval_do_concat_batches = False
    assert trainer.triage(rows, error=0.7) == expected
    assert trainer.preprocess_logits_for_metrics is not None and not trainer.args.eval_do_concat_batches
    trainer.model.config.id2label = {0: "LABEL_0"}
    with pytest.raises(ValueError, match=r"expected a name in config\.id2label for each of 2 classes"):
        trainer.triage(rows, error=0.7)


@pytest.mark.parametrize(
    ("method", "draws"),
    [
        (None, 0),
        (RepulsiveAttention(), 0),
        (AlignmentAttention("gan"), 0),
        (BayesianAttention(), 0),
        (BayesianAttention(), 3),
        (BayesianAttention.bam(2.0), 3),
    ],
)
def test_it_belongs_to_the_weights_that_it_was_calibrated_with(scene, tmp_path, method, draws):
    net = scene.bert() if method is None else scene.network(scene.bert, method)
    options = {"prediction": "draws", "num_samples": draws} if draws else {}
    trainer = ProbabilisticTrainer(
        model=net, args=scene.arguments(tmp_path), data_collator=scene.collate, **options
    )
    policy = trainer.triage(scene.classes(60), error=0.9)
    trainer.save_model(tmp_path / "saved")
    file = save_policy(policy, tmp_path / "saved", max_length=9)
    stored = read_policy(file)
    assert stored.max_length == 9 and stored.num_samples == draws
    save_policy(stored, tmp_path / "saved")  # it has the folder's fingerprint now
    with torch.no_grad():
        net.classifier.bias.add_(1)
    trainer.save_model(tmp_path / "other")
    for one in (policy, stored):
        with pytest.raises(
            RunError, match="expected the weights with which the policy was calibrated, got others"
        ):
            save_policy(one, tmp_path / "other")


@pytest.mark.parametrize("converted", [False, True])
def test_adapters_have_policies_too(scene, tmp_path, converted):
    scene.bert().save_pretrained(tmp_path / "base")
    base = BertForSequenceClassification.from_pretrained(tmp_path / "base")
    net = get_peft_model(base, LoraConfig(task_type="SEQ_CLS", target_modules="all-linear", r=2))
    net = convert(net, BayesianAttention()) if converted else net
    trainer = ProbabilisticTrainer(
        model=net, args=scene.arguments(tmp_path / "run"), data_collator=scene.collate
    )
    policy = trainer.triage(scene.classes(60), error=0.9)
    trainer.save_model(tmp_path / "adapters")
    words = {f"w{number}": number for number in range(trainer.model.config.vocab_size)}
    made = Tokenizer(models.WordLevel(words, "w0"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=made, pad_token="w0").save_pretrained(tmp_path / "adapters")
    save_policy(policy, tmp_path / "adapters")
    (output,) = selective_pipeline(tmp_path / "adapters")(["w5 w9 w7"])
    with torch.no_grad():
        logits = net.eval()(
            input_ids=torch.tensor([[5, 9, 7]]), attention_mask=torch.ones(1, 3).long()
        ).logits
    assert output["score"] == pytest.approx(logits.softmax(dim=-1).max().item(), abs=1e-5)


def test_samples_need_a_network_saved_with_its_latent_attention(scene, tmp_path):
    net = scene.bert()
    convert(net.bert, BayesianAttention())
    options = {"prediction": "draws", "num_samples": 3, "data_collator": scene.collate}
    trainer = ProbabilisticTrainer(model=net, args=scene.arguments(tmp_path), **options)
    policy = trainer.triage(scene.classes(60), error=0.9)
    trainer.save_model(tmp_path / "saved")
    with pytest.raises(
        RunError, match="expected a network with latent attention, since the policy is of 3 samples"
    ):
        save_policy(policy, tmp_path / "saved")


@pytest.mark.parametrize("problem", ["single_label_classification", "multi_label_classification"])
def test_inputs_without_a_label_are_left_out(scene, tmp_path, problem):
    several = problem == "multi_label_classification"
    trainer = trainer_of(scene, tmp_path, problem_type=problem)
    rows = scene.classes(60)
    if several:
        rows = [row | {"labels": [float(row["labels"]), 0.0]} for row in rows]
    missing = {"labels": [1.0, torch.nan] if several else -100}
    incomplete = [row | (missing if number % 4 == 0 else {}) for number, row in enumerate(rows)]
    present = [row for number, row in enumerate(rows) if number % 4]
    policy = trainer.triage(incomplete, error=0.8)
    assert policy == trainer.triage(present, error=0.8) and "45 held-out inputs" in str(policy)


def test_inputs_of_the_training_data_are_left_out(scene, tmp_path):
    trainer = trainer_of(scene, tmp_path)
    rows, others = scene.classes(60), scene.classes(20, seed=3)
    alone = trainer.triage(rows, error=0.9)
    # Lists are the same ids as tensors; columns that the network does not take and other labels do not count.
    trainer.train_dataset = [
        {**row, "input_ids": row["input_ids"].tolist(), "labels": 0, "text": "x"} for row in others
    ]
    assert trainer.triage(rows, error=0.9) == alone
    with pytest.warns(PlainWarning, match="the data set: 20 of its 80 inputs are in the training data too"):
        assert trainer.triage([*others, *rows], error=0.9) == alone
    with (
        pytest.warns(PlainWarning, match="pilot: 20 of its 20"),
        pytest.raises(RunError, match="pilot: expected held-out inputs, got training data alone"),
    ):
        trainer.triage(rows, error=0.9, pilot=others)
    # Rows with further inputs, such as questions about images, are not compared by their tokens alone.
    trainer.train_dataset = [{**row, "inputs_embeds": None} for row in rows]
    assert trainer.triage(rows, error=0.9) == alone


def test_what_it_cannot_judge_is_refused(scene, tmp_path):
    trainer = trainer_of(scene, tmp_path)
    unlabelled = [
        {name: value for name, value in row.items() if name != "labels"} for row in scene.classes(4)
    ]
    with pytest.raises(
        ValueError, match=r"the data set: expected logits .* and one class a row .* got .* no labels"
    ):
        trainer.triage(unlabelled)
    with pytest.raises(ValueError, match="confidence"):
        trainer.triage(scene.classes(4), confidence=2.0)
    for option, words in {
        "uncertainty": ("moments", "prediction of"),
        "num_samples": (50, "num_samples of"),
        "seed": (7, r"args\.seed of"),
        "tolerance": (0.5, "for regression"),
    }.items():
        with pytest.raises(ValueError, match=f"expected no {option}, which is {words[1]}"):
            trainer.triage(scene.classes(4), **{option: words[0]})
    trainer.train_dataset = scene.classes(4)
    with pytest.raises(ValueError, match="expected held-out data, got the training data"):
        trainer.triage(trainer.train_dataset)
    numbers = trainer_of(scene, tmp_path, num_labels=1)
    with pytest.raises(ValueError, match=r"expected a head of classes, tokens or labels, got Regressor"):
        numbers.triage(scene.classes(4))
    with pytest.raises(ValueError, match=r"or those of tokens or labels, got predictions"):
        trainer_of(scene, tmp_path, "QuestionAnswering").triage(spans(scene, 4))


def spans(scene, count):
    rows = [{name: row[name] for name in ("input_ids", "attention_mask")} for row in scene.classes(count)]
    return [{**row, "start_positions": 1, "end_positions": 2} for row in rows]


def several(scene, count, seed=0):
    rows = scene.classes(count, seed=seed)
    return [{**row, "labels": [float(row["labels"]), float(n % 3 > 0)]} for n, row in enumerate(rows)]


def right_but_thirds(trainer, rows):
    """Texts whose classes are those that the network predicts, but for the first word of every third."""
    for number, (row, logits) in enumerate(zip(rows, trainer.predict(rows).predictions, strict=True)):
        best = torch.as_tensor(logits).argmax(dim=-1)
        best[0] = (best[0] + (number % 3 == 0)) % 3
        row["labels"] = best.where(row["labels"] >= 0, -100)
    return rows


@pytest.mark.parametrize("head", ["tokens", "labels"])
def test_what_has_several_decisions_is_wrong_as_a_whole(scene, tmp_path, head):
    if head == "tokens":
        trainer = trainer_of(scene, tmp_path, "TokenClassification", num_labels=3)
        test, pilot = (right_but_thirds(trainer, scene.tokens(size, seed=size)) for size in (80, 20))
    else:
        trainer = trainer_of(scene, tmp_path, num_labels=2, problem_type="multi_label_classification")
        test, pilot = several(scene, 80), several(scene, 20, seed=1)

    def judged(part, name):
        output = trainer.predict(part)
        scores, wrong = [], []
        for logits, labels in zip(output.predictions, output.label_ids, strict=True):
            values = torch.as_tensor(logits).double()
            if head == "labels":
                pairs = [(p.item(), bool(truth)) for p, truth in zip(values.sigmoid(), labels, strict=True)]
                scores.append(1 - min(max(p, 1 - p) for p, _ in pairs))
                wrong.append(any((p > 0.5) != truth for p, truth in pairs))
                continue
            decided = [
                (row.softmax(dim=-1), truth) for row, truth in zip(values, labels, strict=True) if truth >= 0
            ]
            scores.append(1 - min(p.max().item() for p, _ in decided))
            wrong.append(any(p.argmax() != truth for p, truth in decided))
        return judged_scores(torch.tensor(scores).double(), torch.tensor(wrong), title=name)

    expected = calibrate(judged(test, "the data set"), judged(pilot, "pilot"), TriageOptions(error=0.9))
    expected = expected.model_copy(update={"num_samples": 0})
    policy = trainer.triage(test, error=0.9, pilot=pilot)
    assert policy.limits[0].answered > 0 and policy.limits == expected.limits
    assert policy.classes == () and policy.held.scores == pytest.approx(expected.held.scores)
    with pytest.raises(RunError, match="by_class: expected predictions of one class for each input"):
        trainer.triage(test, error=0.9, by_class=True)


def test_texts_without_any_labelled_word_are_left_out(scene, tmp_path):
    trainer = trainer_of(scene, tmp_path, "TokenClassification", num_labels=3)
    rows = right_but_thirds(trainer, scene.tokens(60, seed=60))
    none = [{**row, "labels": torch.full_like(torch.as_tensor(row["labels"]), -100)} for row in rows]
    policy = trainer.triage(rows, error=0.9)
    assert trainer.triage(rows + none, error=0.9) == policy and "60 held-out inputs" in str(policy)
    words = "the data set: expected held-out inputs with labels, got none"
    with pytest.warns(UserWarning, match="no row of the data has"), pytest.raises(RunError, match=words):
        trainer.triage(none, error=0.9)
    with pytest.raises(RunError, match="the data set: expected held-out inputs, got none"):
        trainer.triage([], error=0.9)


class Repeating(GPT2LMHeadModel):
    """Predicts that each token comes again, or is followed by the next number."""

    step = 0

    def forward(self, input_ids=None, labels=None, **options):
        output = super().forward(input_ids=input_ids, **options)
        following = (input_ids + self.step) % self.config.vocab_size
        output.logits = 0.001 * output.logits + 20 * F.one_hot(following, self.config.vocab_size)
        output.loss = None if labels is None else output.logits.mean()  # the trainer has its own
        return output


@pytest.mark.parametrize("step", [0, 1])
def test_a_language_model_is_judged_by_the_next_token(scene, tmp_path, step):
    sizes = {"vocab_size": 60, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16}
    torch.manual_seed(0)
    net = convert(Repeating(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)), BayesianAttention())
    net.step = step
    ids = (torch.arange(100)[:, None] + torch.arange(8)) % 60
    rows = [{"input_ids": row, "labels": row} for row in ids]
    with pytest.warns(PlainWarning, match=r"the loss of Repeating\.forward is left out"):
        trainer = ProbabilisticTrainer(model=net, args=scene.arguments(tmp_path))
    said = "100 of 100 held-out inputs answered" if step else "no input can be answered"
    assert str(trainer.triage(rows, error=0.1)).startswith(said)


def test_choices_are_numbered(scene, tmp_path):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    net = convert(BertForMultipleChoice(BertConfig(vocab_size=60, **sizes)), BayesianAttention())
    ids = torch.randint(3, 60, (40, 4, 6))
    rows = [{"input_ids": row, "labels": number % 4} for number, row in enumerate(ids)]
    policy = ProbabilisticTrainer(model=net, args=scene.arguments(tmp_path)).triage(rows, error=0.95)
    assert policy.classes == ("0", "1", "2", "3")


@pytest.mark.parametrize(
    ("prediction", "score"),
    [("mean", "mutual_information"), ("draws", "mutual_information"), ("draws", "expected_entropy")],
)
def test_scores_of_draws_are_refused(scene, tmp_path, prediction, score):
    net = scene.network(scene.bert, BayesianAttention())
    options = {"args": scene.arguments(tmp_path), "data_collator": scene.collate, "prediction": prediction}
    trainer = ProbabilisticTrainer(model=net, **options)
    with pytest.raises(
        ValueError, match=f"score: expected 'least_confidence' .* got '{score}'; give those of"
    ):
        trainer.triage(scene.classes(20), error=0.5, score=score)


def test_inputs_far_from_the_training_data_are_for_people(scene, tmp_path):
    trainer = trainer_of(scene, tmp_path)
    training, test = scene.classes(80, seed=2), scene.classes(60)
    trainer.train_dataset = training
    policy = trainer.triage(test, error=0.9, novelty=0.2)

    def features(rows):
        read = []
        hook = trainer.model.classifier.register_forward_pre_hook(lambda _, args: read.append(args[0]))
        posterior_expectation(trainer.model, scene.collate(rows))
        hook.remove()
        return torch.cat(read).double().cpu().numpy(), np.array([row["labels"] for row in rows])

    inputs, labels = features(training)
    classes = np.unique(labels)
    means = np.stack([inputs[labels == label].mean(0) for label in classes])
    within = inputs - means[np.searchsorted(classes, labels)]
    inverse = np.linalg.pinv(within.T @ within / len(inputs), hermitian=True)
    apart = features(test)[0][:, None] - means
    distances = np.einsum("nci,ij,ncj->nc", apart, inverse, apart).min(1)
    assert policy.novelty.threshold == pytest.approx(np.sort(distances)[int(np.ceil(61 * 0.8)) - 1], rel=1e-3)
    read = read_policy(write_policy(policy, tmp_path / "policy.json"))
    assert read == policy
    measured = read.novelty.distance(tmp_path)(torch.as_tensor(features(test)[0]))
    np.testing.assert_allclose(measured.numpy(), distances, rtol=1e-3)
    trainer.train_dataset = [{**row, "labels": [0.5, 0.25, 0.25]} for row in training]
    with pytest.raises(
        RunError, match="novelty: expected a train_dataset with one class for each input, got other"
    ):
        trainer.triage(test, error=0.9, novelty=0.2)
    trainer.train_dataset = None
    with pytest.raises(RunError, match="novelty: expected a train_dataset with a length, got NoneType"):
        trainer.triage(test, error=0.9, novelty=0.2)
    tokens = trainer_of(scene, tmp_path, "TokenClassification", num_labels=3)
    with pytest.raises(
        RunError, match="novelty: expected a head of one class for each input, got TokenClassifier"
    ):
        tokens.triage(scene.tokens(10), error=0.9, novelty=0.2)
