"""A trainer's policy is that of its predictions."""

import pytest
import torch

from probattn import BayesianAttention, ProbabilisticTrainer
from probattn.triage import TriageOptions, calibrate, judged_probabilities


def trainer_of(scene, folder):
    net = scene.network(scene.bert, BayesianAttention())
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

    expected = calibrate(judged(test, "the data set"), judged(pilot, "pilot"), TriageOptions(error=0.7))
    assert trainer.triage(test, error=0.7) == expected
    assert trainer.triage(test, error=0.7, pilot=pilot) == expected
    limit = expected.limits[0]
    assert limit.answered and str(expected).startswith(f"{limit.answered} of 60 held-out inputs answered (")
    assert f"{limit.errors} wrong, at most {limit.bound:.1%} with 95% confidence" in str(expected)
    trainer.eval_dataset = {"one": pilot, "two": test}
    alone = calibrate(judged(test, "the data set"), None, TriageOptions(cost=5.0))
    assert trainer.triage(test, error=None, cost=5.0) == alone and "at the least cost" in str(alone)
    by_class = trainer.triage(test, error=0.7, by_class=True)
    assert by_class.by_class and "at an error of at most 70%" in str(by_class)


def test_what_it_cannot_judge_is_refused(scene, tmp_path):
    trainer = trainer_of(scene, tmp_path)
    unlabelled = [
        {name: value for name, value in row.items() if name != "labels"} for row in scene.classes(4)
    ]
    with pytest.raises(
        ValueError, match=r"the data set: expected logits .* and one class a row, got .* no labels"
    ):
        trainer.triage(unlabelled)
    with pytest.raises(ValueError, match="confidence"):
        trainer.triage(scene.classes(4), confidence=2.0)
