"""SamplingParams to a chain of libllama's samplers. Each request has a chain of its own, so its
draws depend on nobody else's batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from selfserve.native import candidates
from selfserve.native.candidates import Candidates
from selfserve.native.context import Context
from selfserve.native.dry import DryOptions, check_size
from selfserve.native.vocab import Vocab
from selfserve.request import SamplingParams

MIROSTAT_M = 100
"""Tokens in mirostat 1's estimate, the value of its paper."""
XTC_SEED = 0x5DEECE66
"""Makes the seed of XTC's coin another one than that of the draw: with the same seed both would
see the same random numbers, and the draw would depend on the coin."""


class Sampler:
    """Owns a `llama_sampler` chain. Made by any thread; used by one at a time. Close it before the
    model is closed.

    Candidates of −inf reach no chain that could not bear them: typical sampling and mirostat 1
    compute with their probability, and what they make of 0 is no number.
    """

    def __init__(
        self, vocab: Vocab, params: SamplingParams, prompt: Sequence[int], *, context_size: int
    ) -> None:
        """`prompt` fills the windows of penalties and DRY, which are no longer than the context.
        Bans among `params`, which are −inf in `logit_bias` and `ignore_eos`, are left to whoever
        makes the logits. Raises InvalidRequest for too many sequence breakers of DRY."""
        self._lib: Any = vocab._lib
        self._vocab = vocab
        self._prompt = prompt
        self._context_size = context_size
        self._histories: dict[object, Any] = {}
        self._stages: list[Any] = []
        self._is_one_chain = True
        self._bears_masks = False
        """Whether −inf does no harm: the best candidates are chosen first, and nothing that follows
        computes with a probability of 0."""
        try:
            self._build(params)
        except BaseException:
            self.close()
            raise
        self._histories.clear()
        self._prompt = ()

    def _build(self, params: SamplingParams) -> None:
        lib = self._lib
        self._begin_chain()
        bias = [pair for pair in params.logit_bias if math.isfinite(pair[1])]
        if bias:
            array = (lib.llama_logit_bias * len(bias))(*bias)
            self._add(lib.llama_sampler_init_logit_bias(self._vocab.size, len(bias), array))
        if params.mirostat and params.temperature > 0:
            self._build_mirostat(params)
            return
        makers = self._makers()
        counts_all = (
            "typ_p" in params.samplers and params.typical_p < 1
        ) or params.dynatemp_range > 0
        self._bears_masks = "top_k" in params.samplers and params.top_k > 0 and not counts_all
        for name in params.samplers:
            if name == "temperature" and params.temperature <= 0:
                break  # one candidate is left, which no other sampler changes
            makers[name](params)
        if params.temperature <= 0:
            self._add(lib.llama_sampler_init_temp(0.0))  # 0 is greedy, whatever the chain
        self._add(lib.llama_sampler_init_dist(params.seed))

    def _begin_chain(self) -> None:
        chain_params = self._lib.llama_sampler_chain_default_params()
        chain_params.no_perf = True
        self._stages.append(self._lib.llama_sampler_chain_init(chain_params))

    def _build_mirostat(self, params: SamplingParams) -> None:
        lib, p = self._lib, params
        self._penalties(p)
        self._add(lib.llama_sampler_init_temp(p.temperature))
        if p.mirostat == 1:
            made = lib.llama_sampler_init_mirostat(
                self._vocab.size, p.seed, p.mirostat_tau, p.mirostat_eta, MIROSTAT_M
            )
        else:
            made = lib.llama_sampler_init_mirostat_v2(p.seed, p.mirostat_tau, p.mirostat_eta)
        self._add(made)

    # --- one method for each name of `samplers`: adds nothing where it is off -----------------

    def _makers(self) -> dict[str, Callable[[SamplingParams], None]]:
        return {
            "penalties": self._penalties,
            "dry": self._dry,
            "top_n_sigma": self._top_n_sigma,
            "top_k": self._top_k,
            "typ_p": self._typ_p,
            "top_p": self._top_p,
            "min_p": self._min_p,
            "xtc": self._xtc,
            "temperature": self._temperature,
        }

    def _top_n_sigma(self, p: SamplingParams) -> None:
        if p.top_n_sigma >= 0:
            self._stages.append(_TopNSigma(p.top_n_sigma, p.min_keep))
            self._begin_chain()
            self._is_one_chain = False

    def _top_k(self, p: SamplingParams) -> None:
        if p.top_k > 0:
            k = min(max(p.top_k, p.min_keep), self._vocab.size)
            self._add(self._lib.llama_sampler_init_top_k(k))

    def _typ_p(self, p: SamplingParams) -> None:
        if p.typical_p < 1:
            self._add(self._lib.llama_sampler_init_typical(p.typical_p, p.min_keep))

    def _top_p(self, p: SamplingParams) -> None:
        if p.top_p < 1:
            self._add(self._lib.llama_sampler_init_top_p(p.top_p, p.min_keep))

    def _min_p(self, p: SamplingParams) -> None:
        if p.min_p > 0:
            self._add(self._lib.llama_sampler_init_min_p(p.min_p, p.min_keep))

    def _xtc(self, p: SamplingParams) -> None:
        if p.xtc_probability > 0:
            seed = p.seed ^ XTC_SEED
            self._add(
                self._lib.llama_sampler_init_xtc(
                    p.xtc_probability, p.xtc_threshold, p.min_keep, seed
                )
            )

    def _temperature(self, p: SamplingParams) -> None:
        if p.temperature != 1 or p.dynatemp_range > 0:
            self._add(
                self._lib.llama_sampler_init_temp_ext(
                    p.temperature, p.dynatemp_range, p.dynatemp_exponent
                )
            )

    def _penalties(self, p: SamplingParams) -> None:
        window = self._window(p.repeat_last_n)
        if p.penalize_answer_only:
            self._add_penalty(window, p.repeat_penalty, 0.0, 0.0, self._prompt)
            everything = self._context_size
            self._add_penalty(everything, 1.0, p.frequency_penalty, p.presence_penalty, ())
        else:
            self._add_penalty(
                window, p.repeat_penalty, p.frequency_penalty, p.presence_penalty, self._prompt
            )

    def _add_penalty(
        self, window: int, repeat: float, frequency: float, presence: float, seen: Sequence[int]
    ) -> None:
        if window == 0 or (repeat == 1.0 and frequency == 0.0 and presence == 0.0):
            return
        arguments = (self._vocab.size, window, repeat, frequency, presence)

        def make() -> Any:
            return self._lib.llama_sampler_init_penalties(*arguments)

        self._add_with_history(arguments, make, seen[-window:])

    def _dry(self, p: SamplingParams) -> None:
        window = self._window(p.dry_penalty_last_n)
        if p.dry_multiplier == 0.0 or window == 0:
            return
        options = DryOptions(
            p.dry_multiplier,
            p.dry_base if p.dry_base >= 1.0 else SamplingParams().dry_base,
            p.dry_allowed_length,
            window,
            tuple(dict.fromkeys(text.encode() for text in p.dry_sequence_breakers if text)),
        )
        statistics = self._vocab.piece_statistics
        check_size(options, statistics, p.samplers.count("dry"))

        def make() -> Any:
            return self._vocab.dry_prototypes.sampler(options, statistics)

        self._add_with_history("dry", make, self._prompt[-window:])

    def _window(self, last_n: int) -> int:
        """Longer ones than the context are never full, and libllama allocates what it is told."""
        return self._context_size if last_n < 0 else min(last_n, self._context_size)

    def _add_with_history(self, key: object, make: Callable[[], Any], seen: Sequence[int]) -> None:
        """A sampler that was shown the tokens so far; the second of its kind copies the first."""
        first = self._histories.get(key)
        if first is not None:
            self._add(self._lib.llama_sampler_clone(first))
            return
        sampler, accept = make(), self._lib.llama_sampler_accept
        self._histories[key] = sampler
        self._add(sampler)
        for token in seen:
            accept(sampler, token)

    def _add(self, sampler: Any) -> None:
        """Hands a sampler to the last chain, which frees it."""
        self._lib.llama_sampler_chain_add(self._stages[-1], sampler)

    # --- drawing ------------------------------------------------------------------------------

    def sample(self, context: Context, row: int, *, is_masked: bool = False) -> int:
        """Chooses a token from libllama's logits of that row of the last batch, of which some but
        not all may be −inf with `is_masked`, and accepts it."""
        if self._is_one_chain and (self._bears_masks or not is_masked):
            # Half as dear as building the candidates here.
            return int(self._lib.llama_sampler_sample(self._stages[0], context.handle, row))
        return self.sample_masked(context.row(row))

    def sample_masked(self, logits: npt.NDArray[np.float32]) -> int:
        """Chooses a token from a row (n_vocab,), of which some but not all may be −inf, and
        accepts it."""
        return self._draw(logits)[0]

    def sample_with_probs(
        self, logits: npt.NDArray[np.float32]
    ) -> tuple[int, npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """As `sample_masked`; also the surviving candidates' ids and probabilities after the whole
        chain."""
        token, survivors = self._draw(logits)
        return token, survivors["id"].copy(), survivors["p"].copy()

    def _draw(self, logits: npt.NDArray[np.float32]) -> tuple[int, npt.NDArray[Any]]:
        """The token, and a view of the survivors that lasts until the thread's next draw."""
        found = candidates.of_this_thread(logits.size)
        found.fill(logits)
        if not found.struct.size:
            raise ValueError("every logit is -inf: there is nothing to choose from")
        for stage in self._stages:
            if isinstance(stage, _TopNSigma):
                stage.apply(found)
            else:
                self._lib.llama_sampler_apply(stage, found.reference)
        survivors = found.left
        token = int(survivors["id"][found.struct.selected])
        self.accept(token)
        return token, survivors

    def accept(self, token: int) -> None:
        """Tells the chain about a token that it did not choose itself."""
        for stage in self._stages:
            if not isinstance(stage, _TopNSigma):
                self._lib.llama_sampler_accept(stage, token)

    def close(self) -> None:
        stages, self._stages = self._stages, []
        for stage in stages:
            if not isinstance(stage, _TopNSigma):
                self._lib.llama_sampler_free(stage)


class _TopNSigma:
    """Leaves what is within n standard deviations of the highest logit.

    Between two of libllama's chains: its own leaves the others there as −inf, which the samplers
    after it do not bear, knows no `min_keep`, and takes n = 0 for off.
    """

    def __init__(self, n: float, min_keep: int) -> None:
        self._n = n
        self._min_keep = min_keep

    def apply(self, found: Candidates) -> None:
        logits = found.left["logit"].astype(np.float64)
        if logits.size <= max(1, self._min_keep):
            return
        is_kept = logits >= logits.max() - self._n * logits.std()
        if np.count_nonzero(is_kept) < self._min_keep:
            is_kept[:] = False
            is_kept[np.argpartition(-logits, self._min_keep - 1)[: self._min_keep]] = True
        found.keep(is_kept)
