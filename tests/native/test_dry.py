"""DRY's samplers: kept ones are cloned, have their own histories, and are freed beyond a limit."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tests.support.real_vocabulary import smollm2_path

from selfserve.errors import InvalidRequest
from selfserve.native.dry import DryOptions, DryPrototypes, size_of
from selfserve.native.model import Model
from selfserve.native.sampler import Sampler
from selfserve.native.vocab import Vocab
from selfserve.request import SamplingParams

FIELDS: dict[str, Any] = {"temperature": 0.0, "dry_multiplier": 5.0, "dry_penalty_last_n": -1}


@pytest.fixture
def vocab() -> Iterator[Vocab]:
    model = Model(smollm2_path(), vocab_only=True)
    yield model.vocab
    model.close()


def options(*breakers: bytes, window: int = 64) -> DryOptions:
    return DryOptions(1.0, 1.75, 2, window, breakers)


def choice(vocab: Vocab, prompt: list[int], repeated: int, **fields: Any) -> int:
    """What a new sampler takes where `repeated` is the highest and `other` the next."""
    params = SamplingParams(**{**FIELDS, **fields})
    sampler = Sampler(vocab, params, prompt, context_size=256)
    logits = np.zeros(vocab.size, dtype=np.float32)
    logits[repeated] = 4.0
    token = sampler.sample_masked(logits)
    sampler.close()
    return token


def test_a_clone_knows_the_breakers_and_no_other_history(vocab: Vocab) -> None:
    phrase = vocab.tokenize(" alpha beta gamma delta", add_special=False, parse_special=False)
    prompt = phrase * 3 + phrase[:-1]
    for _ in range(3):
        assert choice(vocab, prompt, phrase[-1]) != phrase[-1]
        assert choice(vocab, [], phrase[-1]) == phrase[-1]
    assert vocab.dry_prototypes.num_made == 1
    for _ in range(3):
        broken = choice(vocab, prompt, phrase[-1], dry_sequence_breakers=(" gamma",))
        assert broken == phrase[-1]
    assert vocab.dry_prototypes.num_made == 2


def test_several_dry_in_a_chain_share_what_is_made(vocab: Vocab) -> None:
    prompt = [2000, 3000, 4000, 2000, 3000]
    logits = np.zeros(vocab.size, dtype=np.float32)
    found = []
    for count in (1, 2):
        params = SamplingParams(dry_multiplier=0.5, samplers=("dry",) * count)
        sampler = Sampler(vocab, params, prompt, context_size=64)
        _, ids, probs = sampler.sample_with_probs(logits)
        found.append(float(-np.log(probs[ids == 4000][0] / probs[ids == 5000][0])))
        sampler.close()
    assert found == [pytest.approx(0.5, abs=1e-3), pytest.approx(1.0, abs=1e-3)]
    assert vocab.dry_prototypes.num_made == 1


def test_the_least_used_are_freed_beyond_the_limit(vocab: Vocab) -> None:
    statistics = vocab.piece_statistics
    first, second, third = (options(b"?", window=window) for window in (1000, 1001, 1002))
    limit = 2 * size_of(third, statistics)
    kept = DryPrototypes(vocab._lib, vocab.handle, max_bytes=limit)
    for each in (first, second, first, third, first, second):
        vocab._lib.llama_sampler_free(kept.sampler(each, statistics))
        assert 0 < kept.kept_bytes <= limit
    assert kept.num_made == 4
    kept.close()
    assert kept.kept_bytes == 0
    vocab._lib.llama_sampler_free(
        DryPrototypes(vocab._lib, vocab.handle, max_bytes=1).sampler(first, statistics)
    )


def test_threads_make_each_prototype_once(vocab: Vocab) -> None:
    statistics, kept = vocab.piece_statistics, vocab.dry_prototypes
    wanted = [options(b"?"), options(b"!")] * 8
    with ThreadPoolExecutor(4) as pool:
        for sampler in pool.map(lambda each: kept.sampler(each, statistics), wanted):
            vocab._lib.llama_sampler_free(sampler)
    assert kept.num_made == 2


@pytest.mark.parametrize("text", [b"\n", b"e", b"ing", b" the", b"?!", "é".encode()])
def test_the_bound_is_no_less_than_the_tokens_that_a_breaker_begins_in(
    vocab: Vocab, text: bytes
) -> None:
    pieces = [vocab.piece(i, special=True) for i in range(vocab.size)]
    heads = [text[:size] for size in range(1, len(text))]
    begins = sum(text in piece or piece.endswith(tuple(heads)) for piece in pieces)
    assert 0 < begins <= vocab.piece_statistics.most_beginning(text)


def test_breakers_in_too_much_of_the_vocabulary_are_refused(vocab: Vocab) -> None:
    letters = tuple("etaoinshrdlucmfwypvbgkjqxz")
    params = SamplingParams(
        dry_multiplier=1.0, dry_sequence_breakers=letters, samplers=("dry",) * 32
    )
    with pytest.raises(InvalidRequest, match="dry_sequence_breakers: must take at most 64 MiB"):
        Sampler(vocab, params, [], context_size=64)
    assert vocab.dry_prototypes.num_made == 0
