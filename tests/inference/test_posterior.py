"""What draws of predictions say: entropies, spread, tables and pictures, of rows, data sets and loaders."""

import math

import numpy as np
import pytest
import torch
import transformers as hf
from scipy import stats
from torch.utils.data import DataLoader

import probattn
from probattn.inference import Posterior, posterior_expectation, posterior_predict
from probattn.metrics.functional import mutual_information, predictive_entropy
from probattn.models import Classifier, convert, program_for
from probattn.sites.observation import ObservationNoise, ObservedNoise

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}


def network(head="SequenceClassification", **options):
    torch.manual_seed(0)
    net = getattr(hf, f"BertFor{head}")(hf.BertConfig(**SIZES, vocab_size=40, **options))
    return convert(net, probattn.BayesianAttention.bam(1.0)).eval()


def rows(number=5, length=4):
    ids = torch.randint(3, 40, (number, length), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.arange(number) % 2}


def test_the_entropies_are_those_of_the_metrics():
    logits = torch.randn(6, 5, 3, dtype=torch.float64) * 3
    draws = Posterior(logits)
    assert torch.allclose(draws.entropy, predictive_entropy(logits.float(), inputs="logits"), atol=1e-6)
    information = mutual_information(logits.float(), inputs="logits")
    assert torch.allclose(draws.mutual_information, information, atol=1e-6)
    assert np.allclose(draws.entropy, stats.entropy(draws.mean_probabilities.numpy(), axis=-1), atol=1e-6)
    assert torch.allclose(draws.std, logits.float().softmax(-1).std(dim=0))
    assert Posterior(logits[:1]).std.eq(0).all()


def test_each_of_several_labels_has_an_entropy_of_its_own():
    logits = torch.randn(6, 5, 3)
    draws = Posterior(logits, link="sigmoid")
    p = logits.sigmoid().mean(dim=0)
    assert np.allclose(draws.entropy, stats.bernoulli(p.numpy()).entropy(), atol=1e-5)
    both = torch.stack([logits, torch.zeros_like(logits)], dim=-1)  # sigmoid as a softmax over two
    assert torch.allclose(draws.mutual_information, Posterior(both).mutual_information, atol=1e-6)


@pytest.mark.parametrize(("law", "degrees"), [("normal", 4.0), ("student_t", 5.0)])
def test_numbers_have_a_spread_of_draws_and_noise(law, degrees):
    noise = ObservationNoise(law, degrees=degrees, scale=0.5)
    program = program_for(network(num_labels=2, problem_type="regression"), noise=noise)
    draws = posterior_predict(program, rows(), 7)
    expected = 0.5 if law == "normal" else 0.5 * stats.t(5).std()
    assert np.allclose(draws.noise.std, expected)
    assert torch.allclose(draws.mean, draws.logits.mean(dim=0))
    assert torch.allclose(draws.predictive_std, (draws.logits.std(dim=0) ** 2 + expected**2).sqrt())
    with pytest.raises(
        ValueError, match="expected a head that predicts classes, got one that predicts numbers"
    ):
        assert draws.probabilities is None
    with pytest.raises(ValueError, match="expected a head that predicts numbers and learns their noise"):
        assert Posterior(torch.zeros(2, 3, 4)).predictive_std is None


def test_a_bare_network_is_its_program():
    net, batch = network(), rows()
    assert torch.equal(
        posterior_predict(net, batch, 3).logits, posterior_predict(Classifier(net), batch, 3).logits
    )
    assert torch.equal(posterior_expectation(net, batch), posterior_expectation(Classifier(net), batch))
    tokens = posterior_predict(network("TokenClassification"), {**batch, "labels": batch["input_ids"]}, 3)
    assert tokens.entropy.shape == (5, 4)
    spans = posterior_predict(network("QuestionAnswering"), {"input_ids": batch["input_ids"]}, 3)
    assert spans.mean_probabilities.shape == (5, 2, 4)
    with pytest.raises(TypeError, match="BertModel: no program is known for this head"):
        posterior_predict(hf.BertModel(hf.BertConfig(**SIZES)), batch)


def test_a_data_set_and_a_loader_are_predicted_batch_by_batch():
    net, columns = network(), rows()
    listed = [{name: value[row] for name, value in columns.items()} for row in range(5)]
    loader = DataLoader(listed, batch_size=2)
    drawn = posterior_predict(net, loader, 3, seed=4, attention="all")
    singly = [
        posterior_predict(net, batch, 3, seed=(4, number), attention="all")
        for number, batch in enumerate(loader)
    ]
    assert torch.equal(drawn.logits, torch.cat([each.logits for each in singly], dim=1))
    for name, weights in drawn.attention.items():
        assert torch.equal(weights, torch.cat([each.attention[name] for each in singly], dim=1))
    whole = posterior_predict(net, listed, 3, seed=4, attention="all", streaming=True)
    # Without the weights some sites draw in tiles.
    torch.testing.assert_close(whole.logits, posterior_predict(net, columns, 3, seed=(4, 0)).logits)
    assert {tuple(each.shape) for each in whole.attention_std.values()} == {(5, 2, 4, 4)}
    with pytest.raises(ValueError, match="expected at least one batch, got none"):
        posterior_predict(net, DataLoader(listed, batch_size=9, drop_last=True))
    with pytest.raises(
        TypeError,
        match="posterior_expectation: expected a batch, a mapping of tensors by name, got DataLoader",
    ):
        posterior_expectation(net, loader)


def test_batches_of_different_lengths_are_filled_up():
    net = network("TokenClassification")
    short, long = rows(2, 3), rows(1, 5)
    drawn = posterior_predict(net, DataLoader([short, long], batch_size=None), 3, attention="all")
    assert drawn.logits.shape == (3, 3, 5, 2)
    assert drawn.logits[:, :2, 3:].isnan().all()
    assert drawn.logits[:, :2, :3].isfinite().all()
    assert drawn.logits[:, 2].isfinite().all()
    weights = next(iter(drawn.attention.values()))
    assert torch.allclose(weights.sum(dim=-1)[:, :2, :, :3], torch.ones(()))
    assert weights[:, :2, :, 3:].eq(0).all()


LINKS = ("softmax", "sigmoid", "identity")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_is_printed_is_mean_and_spread_of_draws(dtype):
    """Two draws, of log-odds 0 and log 3: probabilities 1/2 and 3/4, of mean 5/8 and standard deviation sqrt(2) / 8."""
    odds = torch.tensor([0.0, math.log(3.0)], dtype=dtype)
    logits = torch.stack([torch.zeros_like(odds), odds], dim=-1)[:, None]  # [2, 1, 2]
    assert repr(Posterior(logits)).splitlines()[1] == "  row 0: class 1 0.625 ± 0.177, class 0 0.375 ± 0.177"
    labels = Posterior(logits, link="sigmoid")
    assert repr(labels).splitlines()[1] == "  row 0: class 1 0.625 ± 0.177, class 0 0.500 ± 0.000"
    # One draw says nothing of a spread.
    assert repr(Posterior(logits[:1])).splitlines()[1] == "  row 0: class 0 0.500, class 1 0.500"
    numbers = Posterior(torch.tensor([[[3.0, 8.0]], [[5.0, 8.0]]], dtype=dtype), link="identity")
    assert repr(numbers).splitlines()[1] == "  row 0: number 0 4.000 ± 1.414, number 1 8.000 ± 0.000"
    narrow = Posterior(torch.tensor([[[3.0]], [[3.0001]]], dtype=torch.float64), link="identity")
    assert repr(narrow).splitlines()[1] == "  row 0: number 0 3.000 ± 7e-05"


@pytest.mark.parametrize("link", LINKS)
def test_anything_is_printed_in_a_few_lines_of_80_columns(link):
    shapes = [(0, 3, 2), (4, 0, 2), (4, 3, 0, 2), (4, 3, 2, 0), (1, 1, 1), (2, 5, 3, 4), (2, 2, 2, 2, 3)]
    whole = [torch.randn(shape) for shape in shapes]
    whole += [torch.full((2, 5, 3), value) for value in (torch.nan, torch.inf, -torch.inf, 1e9)]
    # A tensor of 10^13 numbers, none of which is stored.
    whole += [torch.zeros(1, 1, 1, 1).expand(100, 10**6, 10**5, 1)]
    whole += [torch.randn(3, 4, 100_000), torch.randn(2, 1, 2).half(), torch.full((3, 4, 2), -98765.4321)]
    for logits in whole:
        lines = repr(Posterior(logits, link=link)).splitlines()
        assert lines[0].startswith(f"Posterior({logits.shape[0]} draw") and len(lines) <= 5
        assert all(len(line) <= 80 for line in lines)


@pytest.mark.cuda
def test_tensors_of_a_device_are_printed():
    logits = torch.randn(4, 3, 5, device="cuda")
    for link in LINKS:
        assert repr(Posterior(logits, link=link)) == repr(Posterior(logits.cpu(), link=link))


def test_tables_and_pictures(tmp_path):
    net, batch = network(num_labels=3), rows()
    drawn = posterior_predict(net, batch, 6, attention="all")
    head, *lines = repr(drawn).splitlines()
    assert head == "Posterior(6 draws of 5 rows, softmax over 3, maps of 2 sites)"
    assert len(lines) == 4 and lines[-1] == "  ..."
    table = drawn.to_pandas(["a", "b", "c"])
    assert list(table.columns) == [
        *(f"mean {name}" for name in "abc"),
        *(f"std {name}" for name in "abc"),
        "entropy",
        "mutual_information",
    ]
    assert np.allclose(table[["mean a", "mean b", "mean c"]].sum(axis=1), 1)
    assert drawn._repr_html_().count("<tr>") == 6
    many = posterior_predict(net, rows(12), 2)
    assert "and 2 more" in many._repr_html_()
    tokens = posterior_predict(network("TokenClassification"), rows(), 3)
    head, first, *_ = repr(tokens).splitlines()
    assert head == "Posterior(3 draws of 5 rows, softmax over 2 at 4 positions)"
    assert first.startswith("  row 0, position 0: class ")
    assert tokens.to_pandas().index.names == ["row", "position 1"]
    streamed = posterior_predict(net, batch, 6, attention="all", streaming=True)
    assert repr(streamed).splitlines()[0].endswith("maps of 2 sites (mean and spread))")
    for number, (posterior, panels) in enumerate([(drawn, 3), (streamed, 3), (tokens, 1), (many, 1)]):
        figure = posterior.plot(1)
        assert len([axis for axis in figure.axes if axis.get_label() != "<colorbar>"]) == panels
        assert all(picture.get_clim()[0] == 0 for axis in figure.axes for picture in axis.get_images())
        figure.savefig(tmp_path / f"{number}.png")
    shown = drawn.plot(2).axes[1].images[0].get_array()
    last = list(drawn.attention.values())[-1]
    assert np.allclose(shown, last[:, 2].mean(dim=(0, 1)))
    with pytest.raises(IndexError, match=r"expected a row in 0\.\.4, got 5"):
        drawn.plot(5)
    with pytest.raises(ValueError, match=r"expected a site of this posterior, got 'x'; it has bert.encoder"):
        drawn.plot(site="x")
    with pytest.raises(ValueError, match="expected 3 class_names, got 1"):
        drawn.to_pandas(["a"])


@pytest.mark.parametrize("level", [0.8, 0.95])
@pytest.mark.parametrize("law", ["normal", "student_t"])
def test_an_interval_holds_its_share_of_the_mixture(law, level):
    """Numbers that are drawn from the mixture lie in it that often, as many below as above."""
    options = ObservationNoise(law, degrees=3.0)
    noise = ObservedNoise(options, torch.tensor([0.5, 2.0]))
    centres = torch.randn(6, 4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 2
    lower, upper = Posterior(centres, link="identity", noise=noise).interval(level)
    frozen = stats.norm() if law == "normal" else stats.t(3.0)
    for end, share in ((lower, (1 - level) / 2), (upper, (1 + level) / 2)):
        below = frozen.cdf((end - centres).numpy() / np.array([0.5, 2.0])).mean(axis=0)
        assert np.allclose(below, share, atol=1e-9)
    wide = Posterior(centres, link="identity", noise=noise).interval(level, stretch=2.0)
    assert torch.allclose(wide[1] - wide[0], 2 * (upper - lower))
    single = Posterior(centres[:1].float(), link="identity", noise=noise).interval(level)
    expected = centres[0].numpy() + frozen.ppf((1 + level) / 2) * np.array([0.5, 2.0])
    assert np.allclose(single[1], expected, atol=1e-5)
    with pytest.raises(ValueError, match=r"Posterior.interval.level: expected a number in \(0, 1\), got 1.0"):
        Posterior(centres, link="identity", noise=noise).interval(1.0)
