"""Saving, stopping and resuming: nothing of a run is lost."""

import copy

import pytest
import torch
from safetensors.torch import load_file
from transformers import EarlyStoppingCallback, TrainerCallback
from transformers.core_model_loading import WeightRenaming

import probattn
from probattn.inference import KLSchedule, NonFiniteError
from probattn.models import Regressor, convert
from probattn.sites.site import LatentSite

METHODS = (probattn.BayesianAttention(), probattn.AlignmentAttention("gan"))


class CutError(Exception):
    """Stands for a signal that kills the process."""


class CutAfter(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise CutError


def run(scene, folder, *, cut=None, resume=None, methods=METHODS, **options):
    args = scene.arguments(
        folder,
        per_device_train_batch_size=4,
        num_train_epochs=2,
        save_strategy="steps",
        save_steps=2,
        eval_strategy="steps",
        eval_steps=3,
        gradient_accumulation_steps=2,
        **options,
    )
    trainer = probattn.ProbabilisticTrainer(
        model=scene.network(lambda: scene.bert(dropout=0.2), *methods, seed=0 if resume is None else 9),
        args=args,
        train_dataset=scene.classes(32),
        eval_dataset=scene.classes(8, seed=1),
        callbacks=[] if cut is None else [CutAfter(cut)],
    )
    if cut is None:
        trainer.train(resume_from_checkpoint=resume)
    else:
        with pytest.raises(CutError):
            trainer.train()
    return trainer


@pytest.mark.parametrize("methods", [METHODS, (probattn.RepulsiveAttention(sampler="sgld"),)])
def test_a_run_that_was_cut_resumes_bit_for_bit(scene, tmp_path, methods):
    """At an epoch's end (4) and within one (2), with dropout, noise, accumulation, and a network made anew."""
    whole = run(scene, tmp_path / "whole", methods=methods)
    run(scene, tmp_path / "cut", cut=5, methods=methods)
    for step in (4, 2):
        folder = tmp_path / "cut"
        resumed = run(scene, folder, resume=str(folder / f"checkpoint-{step}"), methods=methods)
        assert_same(scene, resumed, whole)


def assert_same(scene, resumed, whole):
    mine, other = scene.weights(resumed.model), scene.weights(whole.model)
    assert mine.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in mine.items())
    for name in ("loss", "kl", "kl_weight", "eval_loss", "eval_kl_nats"):
        assert scene.losses(resumed, name) == scene.losses(whole, name)
    states = [trainer.optimizer.state_dict() for trainer in (resumed, whole)]
    assert states[0]["param_groups"] == states[1]["param_groups"]
    for number, state in states[0]["state"].items():
        assert all(torch.equal(value, states[1]["state"][number][name]) for name, value in state.items())


def test_the_best_model_has_its_sites_back(scene, tmp_path):
    args = scene.arguments(
        tmp_path,
        per_device_train_batch_size=8,
        num_train_epochs=8,
        save_strategy="epoch",
        eval_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="eval_log_likelihood",
        greater_is_better=False,  # the worst, so that the first one is the best
        learning_rate=1e-2,
    )
    trainer = probattn.ProbabilisticTrainer(
        model=scene.network(scene.bert, probattn.BayesianAttention()),
        args=args,
        train_dataset=scene.classes(16),
        eval_dataset=scene.classes(16),
        kl_schedule=KLSchedule("constant", final=0.001),
        callbacks=[EarlyStoppingCallback(early_stopping_patience=2)],
    )
    trainer.train()
    assert trainer.state.global_step < 16
    best = min(scene.losses(trainer, "eval_log_likelihood"))
    assert trainer.evaluate()["eval_log_likelihood"] == best
    assert trainer.state.best_metric == best


@pytest.mark.parametrize("methods", [(), (probattn.BayesianAttention(),)])
def test_weights_are_read_under_the_names_they_are_saved_with(scene, tmp_path, methods):
    """``save_pretrained`` writes the names that a network was read with; resumed and best networks have all weights."""

    def renamed():
        net = scene.bert()
        net._weight_conversions = [
            WeightRenaming(source_patterns="LayerNorm.gamma", target_patterns="LayerNorm.weight"),
            WeightRenaming(source_patterns="LayerNorm.beta", target_patterns="LayerNorm.bias"),
        ]
        return net

    def trained(folder, resume=None, **options):
        args = scene.arguments(
            folder, per_device_train_batch_size=4, max_steps=4, save_strategy="steps", save_steps=2, **options
        )
        rows = {"train_dataset": scene.classes(16), "eval_dataset": scene.classes(8)}
        trainer = probattn.ProbabilisticTrainer(model=scene.network(renamed, *methods), args=args, **rows)
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    whole = scene.weights(trained(tmp_path).model)
    stored = load_file(tmp_path / "checkpoint-2" / "model.safetensors")
    assert "bert.embeddings.LayerNorm.gamma" in stored and "bert.embeddings.LayerNorm.weight" not in stored
    again = scene.weights(trained(tmp_path, resume=str(tmp_path / "checkpoint-2")).model)
    assert all(torch.equal(value, whole[name]) for name, value in again.items())
    best = trained(
        tmp_path / "best",
        eval_strategy="steps",
        eval_steps=2,
        load_best_model_at_end=True,
        metric_for_best_model="eval_log_likelihood",
        greater_is_better=False,  # the worst
        learning_rate=1e-2,
    )
    folder = tmp_path / "best" / "checkpoint-2"
    assert best.state.best_model_checkpoint == str(folder)
    expected = load_file(folder / "model.safetensors")
    found = scene.weights(best.model)
    assert torch.equal(found["bert.embeddings.LayerNorm.weight"], expected["bert.embeddings.LayerNorm.gamma"])


def test_a_checkpoint_of_another_network_is_refused(scene, tmp_path):
    run(scene, tmp_path, cut=3, methods=())
    message = r"a checkpoint without weights of attention sites, bert\..* first of \d+"
    with pytest.raises(ValueError, match=message):
        run(scene, tmp_path, resume=str(tmp_path / "checkpoint-2"))


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # PEFT's
@pytest.mark.parametrize("adapters", [False, True])
def test_the_scale_of_a_regression_is_kept(scene, tmp_path, adapters):
    rows = [{"input_ids": ids, "labels": float(ids[0]) / 9} for ids in scene.words(8)]
    trainers = []
    for seed, resume in ((0, None), (1, str(tmp_path / "checkpoint-2"))):
        args = scene.arguments(
            tmp_path, max_steps=2 if resume is None else 3, save_strategy="steps", save_steps=2
        )
        net = scene.network(lambda: scene.bert(num_labels=1), probattn.BayesianAttention(), seed=seed)
        if adapters:
            peft = pytest.importorskip("peft")
            net = peft.get_peft_model(net, peft.LoraConfig(r=2, target_modules=["query"]))
        trainer = probattn.ProbabilisticTrainer(
            model=net, args=args, train_dataset=rows, site_learning_rate=0.1
        )
        trainer.train(resume_from_checkpoint=resume)
        trainers.append(trainer)
    scales = [trainer.program.scale.log_scale.item() for trainer in trainers]
    assert isinstance(trainers[0].program, Regressor)
    assert scales[0] == scales[1] != 0  # the schedule of the first run had come to its end


def test_a_loss_that_is_not_finite_stops_with_the_site(scene, tmp_path):
    net = scene.network(scene.bert, probattn.BayesianAttention())
    args = scene.arguments(tmp_path, max_steps=4, save_strategy="steps", save_steps=1)

    class Break(TrainerCallback):
        def on_step_begin(self, args, state, control, model=None, **kwargs):
            if state.global_step == 2:
                with torch.no_grad():
                    model.bert.encoder.layer[1].attention.self.query.weight.fill_(float("nan"))

    trainer = probattn.ProbabilisticTrainer(
        model=net, args=args, train_dataset=scene.classes(8), callbacks=[Break()]
    )
    with pytest.raises(NonFiniteError) as caught:
        trainer.train()
    message = str(caught.value)
    assert message.startswith("the loss of step 3 is not finite: loss nan")
    assert "sites: bert.encoder.layer.1.attention.self" in message
    assert f"last checkpoint: {tmp_path / 'checkpoint-2'}" in message
    assert "train with bf16=False and fp16=False" in message and "\n" not in message
    moved = scene.network(scene.bert, probattn.BayesianAttention())
    assert not torch.equal(net.classifier.weight, moved.classifier.weight)
    assert net.classifier.weight.isfinite().all()


def test_rates_and_decay_of_what_conversion_added(scene, tmp_path):
    net = scene.network(
        scene.bert, probattn.BayesianAttention(upward="heads"), probattn.AlignmentAttention("gan")
    )
    args = scene.arguments(tmp_path, weight_decay=0.1, learning_rate=1e-4)
    options = {"model": net, "args": args, "train_dataset": scene.classes(4)}
    trainer = probattn.ProbabilisticTrainer(**options, site_learning_rate=2e-3, alignment_learning_rate=None)
    groups = trainer.create_optimizer().param_groups
    places = {id(value): group for group in groups for value in group["params"]}
    assert sum(len(group["params"]) for group in groups) == len(places) == len(list(net.parameters()))
    sites = {id(p) for m in net.modules() if isinstance(m, LatentSite) for p in m.parameters()}
    assert sites
    for name, value in net.named_parameters():
        group = places[id(value)]
        assert group["lr"] == (2e-3 if id(value) in sites else 1e-4)
        if value.ndim < 2:
            assert group["weight_decay"] == 0, name
    mine = torch.optim.SGD(net.parameters(), lr=0.5)
    trainer = probattn.ProbabilisticTrainer(**options, optimizers=(mine, None))
    assert trainer.create_optimizer() is mine and len(mine.param_groups) == 1


def test_a_network_made_by_model_init_has_a_program_of_its_own(scene, tmp_path):
    args = scene.arguments(tmp_path, max_steps=1)
    trainer = probattn.ProbabilisticTrainer(
        model_init=lambda: scene.network(scene.bert, probattn.BayesianAttention()),
        args=args,
        train_dataset=scene.classes(4),
    )
    first = trainer.program
    trainer.train()
    assert trainer.program is not first and trainer.program.net is trainer.model
    again = copy.deepcopy(trainer.model)
    trainer.train()
    same = zip(again.parameters(), trainer.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in same)


def test_a_second_run_goes_on(scene, tmp_path):
    """A second run continues with the network of the first."""
    net = convert(scene.network(scene.bert), probattn.BayesianAttention())
    args = scene.arguments(tmp_path, max_steps=2, bf16=True)
    trainer = probattn.ProbabilisticTrainer(model=net, args=args, train_dataset=scene.classes(8))
    trainer.train()
    before = scene.weights(net)
    trainer.train()
    assert trainer.model is net
    assert any(not torch.equal(value, before[name]) for name, value in scene.weights(net).items())


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # PEFT's own
@pytest.mark.parametrize("converted_first", [False, True])
def test_adapters_and_sites_resume_together(scene, tmp_path, converted_first):
    """Both train, one checkpoint has both, and a network made anew goes on from it."""
    peft = pytest.importorskip("peft")

    def adapted():
        options = {"target_modules": ["query", "value"], "modules_to_save": ["classifier"], "r": 2}
        net = scene.bert()
        net = convert(net, probattn.BayesianAttention()) if converted_first else net
        net = peft.get_peft_model(net, peft.LoraConfig(task_type="SEQ_CLS", **options))
        return net if converted_first else convert(net, probattn.BayesianAttention())

    trained = []
    for resume in (None, str(tmp_path / "checkpoint-2")):
        args = scene.arguments(
            tmp_path, max_steps=4, per_device_train_batch_size=4, save_strategy="steps", save_steps=2
        )
        trainer = probattn.ProbabilisticTrainer(
            model=scene.network(adapted), args=args, train_dataset=scene.classes(16)
        )
        before = scene.weights(trainer.model)
        trainer.train(resume_from_checkpoint=resume)
        trained.append(scene.weights(trainer.model))
    changed = {name for name, value in before.items() if not torch.equal(value, trained[0][name])}
    assert any("lora_" in name for name in changed) and any(".probattn." in name for name in changed)
    assert all("lora_" in name or ".probattn." in name or "classifier" in name for name in changed)
    assert all(torch.equal(value, trained[0][name]) for name, value in trained[1].items())
