"""What the code does where it asks no tensor for its values, as on an accelerator, is what it does on a CPU."""

import sys
import warnings

import pytest
import torch
import transformers as hf

from probattn import AlignmentAttention, BayesianAttention, RepulsiveAttention
from probattn.host import on_cpu
from probattn.inference import (
    AttentionELBO,
    AttentionGuide,
    HeadParticles,
    posterior_moments,
    posterior_predict,
)
from probattn.models import Classifier, convert
from probattn.sites import noise
from probattn.sites.masks import AttentionMask

METHODS = {
    "babn": BayesianAttention(),
    "bam": BayesianAttention.bam(),
    "lognormal": BayesianAttention.bam(posterior="lognormal"),
    "ct": AlignmentAttention("ct"),
    "gan": AlignmentAttention("gan", moves="queries"),
    "heads": AlignmentAttention.release("ct_heads"),
}
ALIGNED = ("ct", "gan", "heads")
SIZES = {"num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 40}
FAMILIES = {
    "bert": lambda: hf.BertForSequenceClassification(
        hf.BertConfig(hidden_size=16, intermediate_size=16, **SIZES)
    ),
    "t5": lambda: hf.T5ForSequenceClassification(  # whose bias of positions is in the mask
        hf.T5Config(
            vocab_size=40, d_model=16, d_ff=16, d_kv=8, num_layers=1, num_heads=2, decoder_start_token_id=0
        )
    ),
}


@pytest.fixture
def elsewhere(monkeypatch):
    """Says that no tensor is on a CPU, to all but the noise, which is made there."""

    def switch():
        modules = [module for name, module in sys.modules.items() if name.startswith("probattn.")]
        asking = [m for m in modules if vars(m).get("on_cpu") is on_cpu and m is not noise]
        decided = {"masks", "fused", "interface", "elbo", "particle_update", "alignment", "expansion_check"}
        assert decided <= {m.__name__.rpartition(".")[2] for m in asking}
        for module in asking:
            monkeypatch.setattr(module, "on_cpu", lambda _: False)

    return switch


def objective(kind, method, mask):
    torch.manual_seed(0)
    net = convert(FAMILIES[kind]().double(), METHODS[method])
    for module in net.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    program = Classifier(net).train()
    ids = torch.randint(2, 40, mask.shape, generator=torch.Generator().manual_seed(1))
    ids[:, -1] = 1  # the end, where T5 reads its state
    batch = {"input_ids": ids, "attention_mask": mask, "labels": torch.arange(len(mask)) % 2}
    torch.manual_seed(1)
    terms = AttentionELBO()(program, AttentionGuide(program))(batch)
    terms.loss.backward()
    gradients = {name: item.grad for name, item in net.named_parameters() if item.grad is not None}
    draws = posterior_predict(program.eval(), batch, 2).logits if method not in ALIGNED else None
    return tuple(term.detach() for term in terms), gradients, draws


@pytest.mark.parametrize(
    ("kind", "method"), [*(("bert", method) for method in METHODS), ("t5", "babn"), ("t5", "bam")]
)
@pytest.mark.parametrize("padded", [False, True])
def test_the_objective_and_its_gradients_are_the_same(elsewhere, kind, method, padded):
    mask = torch.ones(3, 7, dtype=torch.long)
    if padded:
        mask[0, :3], mask[1, 1] = 0, 0
    expected = objective(kind, method, mask)
    elsewhere()
    torch.testing.assert_close(objective(kind, method, mask), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"kernel": "cosine", "smoothing": False}, {"sampler": "sgld"}])
def test_heads_move_together_as_they_do_one_by_one(elsewhere, options):
    def moved():
        torch.manual_seed(0)
        net = convert(
            FAMILIES["bert"]().double(), RepulsiveAttention(repulsion=0.5, prior=0.1, **options)
        ).eval()
        net(torch.arange(2, 16).view(2, 7)).logits.logsumexp(dim=1).sum().backward()
        particles = HeadParticles(net, num_data=100)
        particles.direct(step=3, measure=True)
        return {
            name: p.grad for name, p in net.named_parameters() if p.grad is not None
        }, particles.diagnostics

    gradients, diagnostics = moved()
    elsewhere()
    together, measured = moved()
    assert len(diagnostics) == 6
    for name, expected in gradients.items():
        projection = name.endswith(("query.weight", "key.weight", "value.weight"))
        if projection and options.get("sampler"):  # one stream of noise for all that move together
            assert 0.8 < together[name].std() / expected.std() < 1.25
        else:
            torch.testing.assert_close(together[name], expected, rtol=1e-9, atol=1e-12)
    for name, expected in diagnostics.items():
        assert measured[name] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("method", ["babn", "bam", "lognormal"])
def test_moments_of_all_layers_at_once_are_those_of_one_by_one(elsewhere, method):
    torch.manual_seed(0)
    program = Classifier(convert(FAMILIES["bert"]().double(), METHODS[method])).eval()
    mask = torch.ones(3, 7, dtype=torch.long)
    mask[0, :3] = 0
    batch = {"input_ids": torch.randint(2, 40, mask.shape), "attention_mask": mask}
    expected = posterior_moments(program, batch, attribution=True, method="expansion")
    elsewhere()
    moments = posterior_moments(program, batch, attribution=True, method="expansion")
    torch.testing.assert_close(moments.covariance, expected.covariance, rtol=1e-7, atol=1e-12)
    torch.testing.assert_close(moments.relative_variance, expected.relative_variance, rtol=1e-7, atol=1e-12)
    for name, share in moments.noise_share.items():
        torch.testing.assert_close(share, expected.noise_share[name], rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("floor", [0.5, 1e-3])
def test_folded_draws_of_single_precision_are_the_same(elsewhere, floor):
    """For large and for small concentrations, which a CPU draws by different formulas."""
    torch.manual_seed(0)
    program = Classifier(convert(FAMILIES["bert"](), BayesianAttention(floor=floor, rho=0.1))).eval()
    mask = torch.ones(3, 7, dtype=torch.long)
    mask[0, :3] = 0
    batch = {"input_ids": torch.randint(2, 40, mask.shape), "attention_mask": mask}
    expected = posterior_predict(program, batch, 6, attention="all")
    elsewhere()
    drawn = posterior_predict(program, batch, 6, attention="all")
    torch.testing.assert_close(drawn.logits, expected.logits, rtol=1e-4, atol=1e-5)
    for name, maps in drawn.attention.items():
        torch.testing.assert_close(maps, expected.attention[name], rtol=1e-4, atol=1e-6)
    assert expected.logits.std(dim=0).min() > 0


@pytest.mark.cuda
@pytest.mark.parametrize("method", METHODS)
def test_a_training_step_waits_for_a_gpu_once(method):
    """To check the range of the labels."""
    program = Classifier(convert(FAMILIES["bert"](), METHODS[method])).train().cuda()
    mask = torch.ones(3, 7, dtype=torch.long)
    mask[0, :3] = 0
    batch = {
        "input_ids": torch.randint(2, 40, mask.shape),
        "attention_mask": mask,
        "labels": torch.arange(3) % 2,
    }
    batch = {name: value.cuda() for name, value in batch.items()}
    objective = AttentionELBO()(program, AttentionGuide(program))
    objective(batch).loss.backward()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            objective(batch).loss.backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits = [str(item.message) for item in caught if "synchroniz" in str(item.message)]
    assert len(waits) <= 1, waits


def test_queries_without_keys_have_no_weight(elsewhere):
    valid = torch.tensor([[[[True, False], [False, False]]]])
    scores = torch.randn(1, 2, 2, 2)
    expected = AttentionMask(valid).weights(scores)
    elsewhere()
    assert AttentionMask(valid).weights(scores).equal(expected)
    assert not expected[:, :, 1].any()
    values = torch.randn(1, 2, 2)
    padding = AttentionMask(torch.tensor([[[[True, False]] * 2]]))
    torch.testing.assert_close(
        padding.over_keys(values, 2).expand(1, 2, 2, 2), torch.tensor([0.0, 0.0]).expand(1, 2, 2, 2)
    )
