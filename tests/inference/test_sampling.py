"""Plain passes and generation that draw from the posterior of attention."""

import threading

import numpy as np
import pytest
import torch
import transformers as hf
from packaging.version import Version
from scipy import stats

import probattn
from probattn.inference import generate_with_uncertainty, posterior_predict
from probattn.models import Classifier, convert, program_for
from probattn.sites import PlacedNoise

WORDS = 60
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "vocab_size": WORDS}
LLAMA = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
BART = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
GENERATORS = {
    "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(n_embd=16, n_layer=2, n_head=2, **SPECIAL)),
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA, **SPECIAL)),
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**LLAMA, sliding_window=4, **SPECIAL)),
    "t5": lambda: hf.T5ForConditionalGeneration(
        hf.T5Config(
            d_model=16, d_kv=8, d_ff=16, num_layers=2, num_heads=2, decoder_start_token_id=0, **SPECIAL
        )
    ),
    "bart": lambda: hf.BartForConditionalGeneration(hf.BartConfig(**BART, **SPECIAL)),
}
METHODS = {
    "babn": probattn.BayesianAttention(),
    "bam": probattn.BayesianAttention.bam(2.0),
    "lognormal": probattn.BayesianAttention(posterior="lognormal"),
}


def made(name):
    """A tiny network, if this release of transformers has its family go through the attention interface."""
    if name == "t5" and Version(hf.__version__) < Version("5.15"):
        pytest.skip(f"t5 needs transformers 5.15, installed is {hf.__version__}")
    return GENERATORS[name]()


def generator(name, method="babn"):
    """A converted network whose weights are large enough for attention to matter."""
    torch.manual_seed(0)
    net = convert(made(name), METHODS[method]).eval()
    for parameter in net.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return net


def prompts(rows=3, length=7, seed=1):
    """Token numbers with padding at the beginning of the second row."""
    ids = torch.randint(3, WORDS, (rows, length), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def classifier(**options):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = hf.BertConfig(**sizes, vocab_size=WORDS, num_labels=3, **options)
    net = convert(hf.BertForSequenceClassification(config), probattn.BayesianAttention.bam(1.0)).eval()
    for parameter in net.bert.encoder.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return net


def test_the_numbers_of_a_place_are_those_of_splitmix64():
    """Against the algorithm in plain integers (Steele, Lea and Flood 2014, figure 16)."""
    mask = (1 << 64) - 1

    def mix(z):
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    gamma, odd = 0x9E3779B97F4A7C15, (0xD1B54A32D192ED03, 0xABC98388FB8FAC03)
    noise = PlacedNoise(torch.tensor([-7, 11]), origin=(2, 5))
    noise.uniform(torch.empty(2, 1, 1, 1))
    for dtype, bits in ((torch.float32, 24), (torch.float64, 53)):
        noise = PlacedNoise(torch.tensor([-7, 11]), origin=(2, 5))
        for call in (1, 2):
            numbers = noise.uniform(torch.empty(2, 3, 2, 4, dtype=dtype))
            for row, key in enumerate((-7, 11)):
                for head, query, place in ((0, 0, 0), (2, 1, 3), (1, 1, 2)):
                    start = (key + call * gamma) & mask
                    for number, factor in ((head, odd[0]), (query + 2, odd[1])):
                        start = mix((mix(start) + (number + 1) * factor) & mask)
                    expected = (mix((start + (place + 6) * gamma) & mask) >> (64 - bits)) * 2.0**-bits
                    assert numbers[row, head, query, place].item() == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_numbers_are_uniform_normal_and_independent(dtype):
    like = torch.empty(40, 4, 25, 25, dtype=dtype)
    noise = PlacedNoise(torch.arange(40))
    uniform, normal = noise.uniform(like).numpy(), noise.normal(like).numpy()
    assert stats.kstest(uniform.ravel(), "uniform").pvalue > 1e-3
    assert stats.kstest(normal.ravel(), "norm").pvalue > 1e-3
    for axis in range(4):  # neighbours along rows, heads, queries and keys
        neighbours = np.moveaxis(uniform, axis, 0)
        correlation = stats.pearsonr(neighbours[:-1].ravel(), neighbours[1:].ravel())
        assert correlation.pvalue > 1e-3
    assert PlacedNoise(torch.arange(2)).uniform(torch.empty(2, 3, 0, 4)).shape == (2, 3, 0, 4)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_beams": 3, "num_return_sequences": 2},
        pytest.param({"do_sample": True, "num_return_sequences": 2}, marks=pytest.mark.slow),
        pytest.param({"cache_implementation": "static"}, marks=pytest.mark.slow),
    ],
    ids=["greedy", "beams", "sampled", "static"],
)
@pytest.mark.parametrize("name", GENERATORS)
def test_decoding_with_a_cache_gives_what_decoding_without_gives(name, options):
    methods = METHODS if options == {} else ["babn"]
    for method in methods:
        net = generator(name, method)
        settings = {"max_new_tokens": 8, "min_new_tokens": 8, "output_scores": True}
        answers = []
        for changed in ({"use_cache": True}, {"use_cache": False, "cache_implementation": None}):
            torch.manual_seed(5)
            with probattn.sampling(net, seed=3, draws=2):
                chosen = settings | options | changed if not changed["use_cache"] else settings | options
                answers.append(net.generate(**prompts(), **chosen, return_dict_in_generate=True))
        cached, computed = answers
        assert torch.equal(cached.sequences, computed.sequences)
        for one, other in zip(cached.scores, computed.scores, strict=True):
            assert torch.allclose(one, other, atol=2e-5)
        beams = options.get("num_return_sequences", 1)
        assert cached.sequences.shape[0] == 2 * 3 * beams


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "bart"])
def test_prompts_of_many_lengths(name):
    """Every prompt: with a cache as without, and outside the block as before conversion."""
    net = generator(name)
    plain = probattn.models.revert(generator(name))
    for start in (0, 9):  # greedy and sampled
        batch = prompts(rows=5, length=4 + start, seed=100 + start)
        options = {"max_new_tokens": 6}
        torch.manual_seed(start)
        with probattn.sampling(net, seed=start):
            cached = net.generate(**batch, **options, do_sample=start % 2 == 1)
        torch.manual_seed(start)
        with probattn.sampling(net, seed=start):
            computed = net.generate(**batch, **options, do_sample=start % 2 == 1, use_cache=False)
        assert torch.equal(cached, computed)
        assert torch.equal(net.generate(**batch, **options), plain.generate(**batch, **options))


def test_a_plain_pass_has_the_law_of_posterior_predict():
    net = classifier()
    row = {"input_ids": torch.tensor([[5, 9, 30, 7, 12]]), "attention_mask": torch.tensor([[1, 1, 1, 1, 0]])}
    expected = posterior_predict(Classifier(net), row, 1500, chunk_size=100).logits[:, 0]
    with torch.no_grad(), probattn.sampling(net, seed=0, draws=1500):
        drawn = net(**row).logits
    for each, other in zip(drawn.T, expected.T, strict=True):
        assert stats.ks_2samp(each, other).pvalue > 1e-3
    assert drawn.std(dim=0).min() > 1e-4


def test_draws_are_numbered_and_passes_are_new():
    net, batch = classifier(), {"input_ids": torch.tensor([[5, 9, 30], [5, 9, 30]])}
    undriven = net(**batch).logits
    with torch.no_grad():
        with probattn.sampling(net, seed=4, draws=3):
            first, second = (net(**batch).logits.unflatten(0, (3, -1)) for _ in range(2))
        with probattn.sampling(net, seed=4, draws=2):
            fewer = net(**batch).logits.unflatten(0, (2, -1))
        with probattn.sampling(net, seed=5):
            other = net(**batch).logits
    assert torch.allclose(first[:2], fewer, atol=1e-6)
    distinct = torch.cat([first.flatten(0, 1), second.flatten(0, 1), other])
    assert len(distinct.unique(dim=0)) == len(distinct)
    assert torch.equal(net(**batch).logits, undriven)
    assert "generate" not in vars(net)


def test_gradients_pass_through_draws():
    net, batch = classifier(), {"input_ids": torch.tensor([[5, 9, 30]])}
    embedded = net.get_input_embeddings()(batch["input_ids"]).detach().requires_grad_()
    with probattn.sampling(net, seed=1):
        logits = net(inputs_embeds=embedded).logits
    (gradient,) = torch.autograd.grad(logits[0, 0], embedded)
    step = torch.zeros_like(embedded)
    step[0, 1, 3] = 1e-2
    with torch.no_grad():
        ends = []
        for sign in (1, -1):
            with probattn.sampling(net, seed=1):
                ends.append(net(inputs_embeds=embedded + sign * step).logits[0, 0])
    assert torch.isclose((ends[0] - ends[1]) / 2e-2, gradient[0, 1, 3], rtol=2e-2, atol=1e-4)


def test_other_networks_and_threads_do_not_draw():
    net, other = classifier(), classifier()
    batch = {"input_ids": torch.tensor([[5, 9, 30]])}
    expected, answers = other(**batch).logits, []
    with torch.no_grad(), probattn.sampling(net, seed=1):
        assert torch.equal(other(**batch).logits, expected)
        thread = threading.Thread(target=lambda: answers.append(net(**batch).logits.detach()))
        thread.start()
        thread.join()
        assert not torch.equal(net(**batch).logits, expected)
    assert torch.equal(answers[0], expected)


def test_programs_choices_and_pipelines_draw_too():
    with torch.no_grad():
        net = classifier()
        batch = {"input_ids": torch.tensor([[5, 9, 30]])}
        with probattn.sampling(program_for(net), seed=2, draws=2) as program:
            assert program(batch).shape == (2, 3)
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        chooser = hf.BertForMultipleChoice(hf.BertConfig(**sizes, vocab_size=WORDS)).eval()
        convert(chooser, probattn.BayesianAttention.bam(1.0))
        ids = torch.tensor([[5, 9, 30]]).expand(2, 4, 3)
        with probattn.sampling(chooser, seed=2, draws=3):
            logits = chooser(input_ids=ids).logits
        assert logits.shape == (6, 4)
        assert len(logits.flatten().unique()) == 24


def test_what_cannot_be_sampled_is_refused():
    net = classifier()
    with (
        pytest.raises(TypeError, match=r"expected a network, a torch.nn.Module, got dict"),
        probattn.sampling({}),
    ):
        pass
    plain = hf.BertModel(hf.BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1))
    with (
        pytest.raises(ValueError, match="BertModel has no attention sites; convert it"),
        probattn.sampling(plain),
    ):
        pass
    for options in ({"seed": -1}, {"draws": 0}):
        with pytest.raises(ValueError, match="expected an integer >= "), probattn.sampling(net, **options):
            pass
    net = generator("gpt2")
    with (
        probattn.sampling(net),
        pytest.raises(RuntimeError, match="is sampled already; leave the block first"),
        probattn.sampling(net),
    ):
        pass
    assert "generate" not in vars(net)
    net = generator("bart")
    encoded = net.get_encoder()(**prompts())
    with pytest.raises(ValueError, match="expected no encoder_outputs"), probattn.sampling(net, draws=2):
        net.generate(encoder_outputs=encoded)


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "bart"])
def test_the_uncertainty_of_generated_tokens(name):
    """Against transformers' own scores where draws agree, and against its definition where they do not."""
    batch = prompts()
    torch.manual_seed(0)
    sharp = convert(made(name), probattn.BayesianAttention.bam(1e6)).eval()
    options = {"max_new_tokens": 6, "output_scores": True}
    answer = sharp.generate(**batch, **options, return_dict_in_generate=True)
    scores = sharp.compute_transition_scores(answer.sequences, answer.scores, normalize_logits=True)
    out = generate_with_uncertainty(sharp, batch, draws=3, max_new_tokens=6)
    assert torch.equal(out.sequences, answer.sequences)
    assert torch.allclose(out.log_probabilities, scores.where(out.mask, 0.0), atol=1e-3)
    assert torch.allclose(out.scores, out.log_probabilities.sum(dim=1), atol=1e-3)
    assert out.mutual_information.max() < 1e-4

    net = generator(name)
    few, many = (
        generate_with_uncertainty(net, batch, draws=draws, seed=2, max_new_tokens=5, num_beams=2)
        for draws in (3, 12)
    )
    assert torch.equal(few.sequences, many.sequences)
    assert many.mutual_information.max() > 1e-4
    assert (many.mutual_information <= many.entropy + 1e-6).all()
    assert (many.entropy <= np.log(WORDS) + 1e-5).all()
    again = generate_with_uncertainty(net, batch, draws=12, seed=2, max_new_tokens=5, num_beams=2)
    assert torch.equal(again.scores, many.scores)
