"""Latent alignments against sums by hand; the sampled gradient against the exact one; training, search, refusals."""

import copy
import math

import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, TraceEnum_ELBO, TraceGraph_ELBO

import probattn
from probattn.inference import KLSchedule, OptimizerOptions, SVIDriver, TraceGraphMeanFieldELBO
from probattn.inference.program_elbo import ProgramELBOModule
from probattn.models import (
    AlignmentGuide,
    RecurrentForTranslation,
    RecurrentTranslationConfig,
    SearchOptions,
    TransformerSize,
    Translator,
    VariationalTranslator,
    build_transformer,
    convert,
    load,
    save,
    translate,
)
from probattn.models.translation import token_measures

WORDS = 12
LENGTHS = ((5, 4), (3, 2), (1, 1))
SIZES = {"vocab_size": WORDS, "embedding_size": 5, "hidden_size": 4, "output_size": 7}


def network(seed=0, **options):
    torch.manual_seed(seed)
    sizes = SIZES | {"decoder_hidden_size": 6, "hidden_dropout": 0.0, "num_hidden_layers": 1}
    return RecurrentForTranslation(RecurrentTranslationConfig(**sizes | options))


def program(estimator="enumerate", seed=0, sharp=1.0, **options):
    model = VariationalTranslator(network(seed), **options).double()
    guide = AlignmentGuide(model, estimator).double()
    with torch.no_grad():  # so that alignments matter
        model.net.model.attention.query.weight.mul_(sharp**3)
        guide.inference.map.weight.mul_(sharp**3)
        model.net.output.logits.weight.mul_(sharp)
    return model, guide


def batch(seed=0):
    draw = torch.Generator().manual_seed(seed)
    sides = []
    for side in (0, 1):
        mask = torch.tensor([[1] * pair[side] + [0] * (LENGTHS[0][side] - pair[side]) for pair in LENGTHS])
        sides.append((torch.randint(4, WORDS, mask.shape, generator=draw), mask))
    labels = torch.randint(4, WORDS, sides[1][0].shape, generator=draw).masked_fill(sides[1][1] == 0, -100)
    names = ("input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask")
    return dict(zip(names, (*sides[0], *sides[1]), strict=True)) | {"labels": labels}


def parts_by_hand(model, guide, inputs, epsilon):
    """Expected log-likelihood, KL and exact log-likelihood over a batch: sums over pairs, tokens and places."""
    net, labels = model.net, inputs["labels"]
    h, s, _ = net.model.read(**{name: value for name, value in inputs.items() if name != "labels"})
    W = net.model.attention.head_weights()[0]
    expected = divergence = exact = 0.0
    for row, (length, steps) in enumerate(LENGTHS):
        alone = [inputs["input_ids"][row : row + 1, :length], labels[row : row + 1, :steps]]
        q = guide.inference(alone[0], None, alone[1], None)[0].exp()
        for t in range(steps):
            scores = torch.stack([s[row, t] @ W @ h[row, place] for place in range(length)])
            prior = scores.exp() / scores.exp().sum()
            likelihoods = []
            for place in range(length):
                log_p = net.output(h[row, place], s[row, t]).log_softmax(-1)
                own, mean = log_p[labels[row, t]], log_p.mean()
                expected = expected + q[t, place] * ((1 - epsilon) * own + epsilon * mean)
                divergence = divergence + q[t, place] * (q[t, place].log() - prior[place].log())
                likelihoods.append(prior[place] * own.exp())
            exact = exact + sum(likelihoods).log()
    return expected, divergence, exact


@pytest.mark.parametrize("weight", [1.0, 0.3])
@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_the_enumerated_bound_is_the_sum_by_hand(epsilon, weight):
    model, guide = program(label_smoothing=epsilon, num_data=30, mean_length=2.5, sharp=3.0)
    guide.kl_weight = weight
    expected, divergence, exact = parts_by_hand(model, guide, batch(), epsilon)
    objective = weight * divergence - expected
    loss = TraceEnum_ELBO(max_plate_nesting=2).differentiable_loss(model, guide, batch())
    torch.testing.assert_close(loss, objective * 10 / 2.5, rtol=1e-10, atol=0)
    found = ProgramELBOModule(model, guide, TraceEnum_ELBO(max_plate_nesting=2))(batch())
    torch.testing.assert_close(found.loss, objective / 3 / 2.5, rtol=1e-10, atol=0)
    torch.testing.assert_close(found.log_likelihood, expected.detach() / 3 / 2.5, rtol=1e-10, atol=0)
    torch.testing.assert_close(found.kl, weight * divergence.detach() / 3 / 2.5, rtol=1e-9, atol=0)
    parameters = [*model.parameters(), *guide.parameters()]
    by_hand = torch.autograd.grad(objective / 3 / 2.5, parameters, allow_unused=True)
    own = torch.autograd.grad(found.loss, parameters, allow_unused=True)
    for one, other in zip(own, by_hand, strict=True):
        if other is not None:
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)
    if epsilon == 0 and weight == 1:
        assert objective > -exact  # a bound of the likelihood


def directions(parameters, number, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return [[torch.randn(p.shape, generator=draw, dtype=p.dtype) for p in parameters] for _ in range(number)]


def projections(objective, inputs, parameters, ways):
    grads = torch.autograd.grad(objective(inputs).loss, parameters, allow_unused=True)
    return torch.stack(
        [
            sum((grad * way).sum() for grad, way in zip(grads, each, strict=True) if grad is not None)
            for each in ways
        ]
    )


SAMPLED = (TraceGraphMeanFieldELBO, TraceGraph_ELBO)


@pytest.mark.slow_but("guide-TraceGraphMeanFieldELBO")
@pytest.mark.parametrize("kind", SAMPLED)
@pytest.mark.parametrize("of", ["model", "guide"])
def test_the_sampled_gradient_is_unbiased(of, kind):
    """Projections on eight directions, 30 means of 32 draws each: within four standard errors of the exact ones."""
    exact_model, exact_guide = program(label_smoothing=0.1, sharp=3.0)
    exact = ProgramELBOModule(exact_model, exact_guide, TraceEnum_ELBO(max_plate_nesting=2))
    sampled_guide = AlignmentGuide(exact_model, "sample").double()
    sampled_guide.load_state_dict(exact_guide.state_dict())
    sampled = ProgramELBOModule(exact_model, sampled_guide, kind())
    parameters = list((exact_model if of == "model" else exact_guide).parameters())
    others = list((exact_model if of == "model" else sampled_guide).parameters())
    ways = directions(parameters, 8)
    truth = projections(exact, batch(), parameters, ways)
    copies = {name: value.repeat(32, 1) for name, value in batch().items()}
    torch.manual_seed(0)
    draws = torch.stack([projections(sampled, copies, others, ways) for _ in range(30)])
    z = (draws.mean(0) - truth) / (draws.std(0) / math.sqrt(len(draws)))
    assert (draws.std(0) > 1e-3 * truth.abs()).all()
    assert z.abs().max() < 4, z


@pytest.mark.slow_but("0.4")
@pytest.mark.parametrize("weight", [0.0, 0.4, 1.0])
def test_with_a_closed_form_the_divergence_has_no_noise(weight):
    model, guide = program(label_smoothing=0.1, sharp=3.0, num_data=30, mean_length=2.5)
    sampler = AlignmentGuide(model, "sample").double()
    sampler.load_state_dict(guide.state_dict())
    guide.kl_weight = weight
    exact = ProgramELBOModule(model, guide, TraceEnum_ELBO(max_plate_nesting=2))(batch())
    spread = {}
    for kind in SAMPLED:
        torch.manual_seed(0)
        draws = [ProgramELBOModule(model, sampler, kind())(batch()).kl for _ in range(20)]
        spread[kind] = torch.stack(draws).std().item()
        if kind is TraceGraphMeanFieldELBO:
            torch.testing.assert_close(draws[0], exact.kl, rtol=1e-9, atol=1e-12)
    assert spread[TraceGraphMeanFieldELBO] < 1e-9
    assert spread[TraceGraph_ELBO] > 0.05 or not weight


@pytest.mark.slow
@pytest.mark.parametrize("kind", SAMPLED)
def test_the_baseline_lowers_the_variance_and_the_loss_is_that_of_the_draw(kind):
    spread = {}
    for baseline in (True, False):
        model, guide = program(sharp=3.0)
        guide = AlignmentGuide(model, "sample", baseline=baseline).double()
        guide.load_state_dict(program(sharp=3.0)[1].state_dict())
        objective = ProgramELBOModule(model, guide, kind())
        parameters = list(guide.parameters())
        torch.manual_seed(1)
        found = [projections(objective, batch(), parameters, directions(parameters, 4)) for _ in range(40)]
        spread[baseline] = torch.stack(found).var(0).mean().item()
        torch.manual_seed(2)
        value = objective(batch())
        torch.manual_seed(2)
        torch.testing.assert_close(value.loss.item(), kind().loss(model, guide, batch()) / 3)
    assert spread[True] < 0.5 * spread[False], spread


@pytest.mark.parametrize("estimator", ["enumerate", "sample"])
def test_padding_moves_nothing(estimator):
    inputs, fills = batch(), {"input_ids": 7, "decoder_input_ids": 9, "labels": -100}
    longer = {
        name: torch.cat([value, value.new_full((3, 2), fills.get(name, 0))], 1)
        for name, value in inputs.items()
    }
    model, guide = program(sharp=3.0)
    torch.testing.assert_close(model(longer)[:, :4], model(inputs))
    enumerated = TraceEnum_ELBO(max_plate_nesting=2).differentiable_loss
    torch.testing.assert_close(enumerated(model, guide, longer), enumerated(model, guide, inputs))
    sampler = AlignmentGuide(model, estimator).double()
    with poutine.trace() as traced:
        sampler(longer) if estimator == "sample" else guide(longer)
    if estimator == "sample":
        places = traced.trace.nodes["alignment"]["value"]
        for row, (length, steps) in enumerate(LENGTHS):
            assert int(places[row, :steps].max()) < length


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("weight", [0.0, 0.3])
@pytest.mark.parametrize("estimator", ["enumerate", "sample"])
def test_half_precision_moves_the_bound_by_its_rounding(estimator, weight, half):
    model, guide = (part.float() for part in program(estimator, sharp=3.0, mean_length=2.5))
    guide.kl_weight = weight
    elbo = TraceEnum_ELBO(max_plate_nesting=2) if estimator == "enumerate" else TraceGraphMeanFieldELBO()
    found = []
    for enabled in (False, True):
        torch.manual_seed(0)
        with torch.autocast("cpu", half, enabled=enabled):
            found.append(ProgramELBOModule(model, guide, elbo)(batch()))
    whole, mixed = found
    torch.testing.assert_close(mixed.loss, whole.loss, rtol=2e-3, atol=0)
    torch.testing.assert_close(mixed.kl, whole.kl, rtol=2e-2, atol=0)
    answers = model(batch())
    with torch.autocast("cpu", half):
        torch.testing.assert_close(model(batch()), answers, rtol=5e-3, atol=5e-3)


def test_without_handlers_it_answers_with_the_mixture_or_softly():
    model, _ = program(sharp=3.0)
    inputs = batch()
    net = model.net
    h, s, _ = net.model.read(**{name: value for name, value in inputs.items() if name != "labels"})
    weights = net(**inputs, output_attentions=True).cross_attentions[0][:, 0]
    each = net.output(h[:, None], s[:, :, None]).softmax(-1)  # [B, T, S, V]
    torch.testing.assert_close(model(inputs).exp(), (weights[..., None] * each).sum(2))
    measured = token_measures(model(inputs), inputs["labels"])["nll"].sum()
    _, _, exact = parts_by_hand(model, program(sharp=3.0)[1], inputs, 0.0)
    torch.testing.assert_close(measured.double(), -exact.detach(), rtol=1e-5, atol=0)
    soft = VariationalTranslator(copy.deepcopy(net), prediction="soft")
    plain = copy.deepcopy(net)
    plain.config.latent_alignment = None
    torch.testing.assert_close(soft(inputs), Translator(plain)(inputs))


class Letters:
    def encode(self, text):
        return [4 + "abcdefgh".index(letter) for letter in text]

    def decode(self, tokens):
        return "".join("abcdefgh"[token - 4] for token in tokens if token > 3)


def test_it_translates_with_the_mixture_and_comes_back_from_a_folder(tmp_path):
    model, _ = program(sharp=6.0, seed=2)
    model.float().eval()
    again = Translator(load(save(model.net, tmp_path / "net")))
    assert again.net.config.latent_alignment == "mixture"
    options = SearchOptions(num_beams=1, extra_length=3, batch_size=1)
    sources = ["abc", "hg"]
    for source, found in zip(sources, translate(again, sources, Letters(), options), strict=True):
        tokens = []
        for _ in range(len(source) + 1 + 3):
            ids = torch.tensor([[*Letters().encode(source), 3]])
            with torch.no_grad():
                logits = model({"input_ids": ids, "decoder_input_ids": torch.tensor([[2, *tokens]])})[0, -1]
            logits[[0, 2]] = -torch.inf
            tokens.append(int(logits.argmax()))
            if tokens[-1] == 3:
                break
        assert found == Letters().decode(tokens)
    assert translate(again, sources, Letters(), SearchOptions(num_beams=3)) == translate(
        model, sources, Letters(), SearchOptions(num_beams=3)
    )


def driver(model, guide, folder=None, **options):
    exact = guide.estimator == "enumerate"
    return SVIDriver(
        model,
        guide=guide,
        elbo=TraceEnum_ELBO(max_plate_nesting=2) if exact else TraceGraphMeanFieldELBO(),
        optimizer=OptimizerOptions("Adam", 5e-3),
        scheduler=None,
        batch_size=2,
        cpu=True,
        progress=False,
        folder=folder,
        log_every=1,
        checkpoint_every=3,
        **options,
    )


@pytest.mark.parametrize("estimator", ["enumerate", "sample"])
def test_the_driver_trains_model_and_guide_and_a_resumed_run_is_the_same(estimator, tmp_path):
    def fresh():
        model = VariationalTranslator(network(), num_data=3, mean_length=2.5)
        torch.manual_seed(1)
        return model, AlignmentGuide(model, estimator)

    straight = fresh()
    before = [copy.deepcopy(part.state_dict()) for part in straight]
    records = []
    driver(*straight, tmp_path / "a", callbacks=[lambda record, _: records.append(record)]).fit(
        batch(), batch(), steps=6
    )
    for part, old in zip(straight, before, strict=True):
        moved = [name for name, value in part.state_dict().items() if not torch.equal(value, old[name])]
        assert len(moved) > 0.9 * len(old)
    weights = [record["kl_weight"] for record in records if record["kind"] == "train"]
    assert weights[0] == 0 and weights[-1] == 1 and straight[0].kl_weight == 1
    for record in records:
        parts = record["kl"] - record["log_likelihood"] - record["factors"]
        assert record["loss"] == pytest.approx(parts, rel=1e-5)

    def stop(record, _):
        if record["kind"] == "train" and record["step"] == 4:
            raise KeyboardInterrupt

    halves = driver(*fresh(), tmp_path / "b", callbacks=[stop])
    with pytest.raises(KeyboardInterrupt):
        halves.fit(batch(), batch(), steps=6)
    resumed = fresh()
    driver(*resumed, tmp_path / "b").fit(batch(), batch(), steps=6, resume=True)
    for part, same in zip(straight, resumed, strict=True):
        for name, value in part.state_dict().items():
            assert torch.equal(value, same.state_dict()[name]), name


@pytest.mark.slow_but("sample")
@pytest.mark.parametrize("estimator", ["enumerate", "sample"])
def test_plain_pyro_trains_model_and_guide(estimator):
    pyro.clear_param_store()
    pyro.set_rng_seed(0)
    model, guide = program(estimator)
    elbo = TraceEnum_ELBO(max_plate_nesting=2) if estimator == "enumerate" else TraceGraph_ELBO()
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 1e-2}), elbo)
    losses = [svi.step(batch()) for _ in range(40)]
    assert sum(losses[-10:]) < 0.9 * sum(losses[:10])
    pyro.clear_param_store()


def test_a_schedule_weighs_the_divergence_alone():
    model, guide = program(sharp=3.0)
    objective = ProgramELBOModule(model, guide, TraceEnum_ELBO(max_plate_nesting=2))
    found = {}
    for weight in (0.0, 0.5, 1.0):
        guide.kl_weight = weight
        found[weight] = objective(batch())
    torch.testing.assert_close(found[0.0].loss, -found[1.0].log_likelihood)
    torch.testing.assert_close(found[0.5].kl, 0.5 * found[1.0].kl)
    assert found[1.0].kl > 0.1


def test_what_cannot_be_is_refused():
    model, guide = program()
    transformer = build_transformer(TransformerSize(width=8, layers=1, heads=2, feed_forward=8), 9)
    with pytest.raises(TypeError, match="expected a RecurrentForTranslation, got MarianMTModel"):
        VariationalTranslator(transformer)
    with pytest.raises(ValueError, match="one head of learned attention, got 2 heads"):
        VariationalTranslator(network(num_attention_heads=2))
    with pytest.raises(ValueError, match="got 1 heads, uniform"):
        VariationalTranslator(network(uniform_attention=True))
    with pytest.raises(ValueError, match="got a converted one; revert it"):
        VariationalTranslator(convert(network(), probattn.BayesianAttention()))
    with pytest.raises(ValueError, match="prediction: expected one of 'mixture', 'soft', got 'hard'"):
        VariationalTranslator(network(), prediction="hard")
    with pytest.raises(ValueError, match="latent_alignment: expected one attention head"):
        network(num_attention_heads=2, latent_alignment="soft")
    with pytest.raises(ValueError, match="latent_alignment: expected 'mixture', 'soft' or None, got 'hard'"):
        network(latent_alignment="hard")
    with pytest.raises(TypeError, match="expected a VariationalTranslator, got Translator"):
        AlignmentGuide(Translator(network()))
    with pytest.raises(ValueError, match="estimator: expected one of 'enumerate', 'sample', got 'exact'"):
        AlignmentGuide(model, "exact")
    without = {name: value for name, value in batch().items() if name != "labels"}
    with pytest.raises(ValueError, match="expected 'labels' in the batch, which the posterior reads"):
        guide(without)
    without = {name: value for name, value in batch().items() if name != "input_ids"}
    with pytest.raises(ValueError, match="expected 'input_ids' in the batch, which the posterior reads"):
        guide(without)
    with pytest.raises(ValueError, match=r"AlignmentGuide: expected attention_mask \[3, 5\], got \[3, 4\]"):
        guide(batch() | {"attention_mask": batch()["attention_mask"][:, 1:]})
    empty = batch()["attention_mask"].clone()
    empty[1] = 0
    for call in (model, lambda inputs: TraceEnum_ELBO(max_plate_nesting=2).loss(model, guide, inputs)):
        with pytest.raises(ValueError, match="a token that counts in every source, got none in row 1"):
            call(batch() | {"attention_mask": empty})
    with pytest.raises(ValueError, match="latent_alignment 'mixture' it answers from single source tokens"):
        convert(model.net, probattn.BayesianAttention())
    with pytest.raises(ValueError, match=r"expected labels in 0\.\.11"):
        guide(batch() | {"labels": batch()["labels"] + 8})
    assert KLSchedule().weight(0, 10) == 0  # the default schedule begins where poutine.scale refuses


def test_decoder_inputs_are_made_from_the_labels():
    model, guide = program()
    inputs = batch()
    labels = inputs["labels"].masked_fill(inputs["labels"] == -100, model.net.config.pad_token_id)
    start = torch.full_like(labels[:, :1], model.net.config.decoder_start_token_id)
    whole = inputs | {"decoder_input_ids": torch.cat((start, labels[:, :-1]), dim=1)}
    without = {name: value for name, value in inputs.items() if name != "decoder_input_ids"}
    elbo = TraceEnum_ELBO(max_plate_nesting=2)
    bounds = [elbo.differentiable_loss(model, guide, one) for one in (whole, without)]
    torch.testing.assert_close(*bounds)
