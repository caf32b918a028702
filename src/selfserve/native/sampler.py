"""SamplingParams to a chain of libllama's samplers. Each request has a chain of its own, so its
draws depend on nobody else's batch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from selfserve.native.context import Context
from selfserve.native.vocab import Vocab
from selfserve.request import SamplingParams

MIROSTAT_M = 100
"""Tokens in mirostat 1's estimate, the value of its paper."""
XTC_SEED = 0x5DEECE66
"""Makes the seed of XTC's coin another one than that of the draw: with the same seed both would
see the same random numbers, and the draw would depend on the coin."""
TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
"""llama_token_data."""


class Sampler:
    """Owns a `llama_sampler` chain. Close it before the model is closed."""

    def __init__(
        self,
        context: Context,
        vocab: Vocab,
        params: SamplingParams,
        prompt: Sequence[int],
    ) -> None:
        """`prompt` fills the windows of penalties and DRY, which look at it too."""
        self._lib: Any = context._lib
        self._context = context
        self._vocab = vocab
        self._prompt = prompt
        chain_params = self._lib.llama_sampler_chain_default_params()
        chain_params.no_perf = True
        self.handle = self._lib.llama_sampler_chain_init(chain_params)
        self._build(params)

    def _build(self, params: SamplingParams) -> None:
        lib = self._lib
        bias = list(params.logit_bias)
        if params.ignore_eos:
            bias += [(token, -np.inf) for token in sorted(self._vocab.eog_ids)]
        if bias:
            array = (lib.llama_logit_bias * len(bias))(*bias)
            self._add(lib.llama_sampler_init_logit_bias(self._vocab.size, len(bias), array))
        if params.mirostat and params.temperature > 0:
            self._build_mirostat(params)
            return
        for name in params.samplers:
            self._makers()[name](params)
        if params.temperature <= 0 and "temperature" not in params.samplers:
            self._add(lib.llama_sampler_init_temp(0.0))  # 0 is greedy, whatever the chain
        self._add(lib.llama_sampler_init_dist(params.seed))

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

    def _makers(self) -> dict[str, Callable[[SamplingParams], None]]:
        lib, add = self._lib, self._add
        return {
            "penalties": self._penalties,
            "dry": self._dry,
            "top_n_sigma": self._top_n_sigma,
            "top_k": lambda p: add(lib.llama_sampler_init_top_k(p.top_k)),
            "typ_p": lambda p: add(lib.llama_sampler_init_typical(p.typical_p, p.min_keep)),
            "top_p": lambda p: add(lib.llama_sampler_init_top_p(p.top_p, p.min_keep)),
            "min_p": lambda p: add(lib.llama_sampler_init_min_p(p.min_p, p.min_keep)),
            "xtc": lambda p: add(
                lib.llama_sampler_init_xtc(
                    p.xtc_probability, p.xtc_threshold, p.min_keep, p.seed ^ XTC_SEED
                )
            ),
            "temperature": lambda p: add(
                lib.llama_sampler_init_temp_ext(
                    p.temperature, p.dynatemp_range, p.dynatemp_exponent
                )
            ),
        }

    def _top_n_sigma(self, p: SamplingParams) -> None:
        if p.top_n_sigma == 0:  # libllama takes it for off
            self._add(self._lib.llama_sampler_init_top_k(1))
        else:
            self._add(self._lib.llama_sampler_init_top_n_sigma(p.top_n_sigma))

    def _penalties(self, p: SamplingParams) -> None:
        window = self._window(p.repeat_last_n)
        if p.penalize_answer_only:
            self._add_penalty(window, p.repeat_penalty, 0.0, 0.0, self._prompt)
            everything = self._context.context_size
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
        made = self._lib.llama_sampler_init_penalties(
            self._vocab.size, window, repeat, frequency, presence
        )
        self._add(made, seen[-window:])

    def _dry(self, p: SamplingParams) -> None:
        window = self._window(p.dry_penalty_last_n)
        if p.dry_multiplier == 0.0 or window == 0:
            return
        breakers = [text.encode() for text in p.dry_sequence_breakers if text]
        array = (ctypes.c_char_p * max(1, len(breakers)))(*breakers)
        base = p.dry_base if p.dry_base >= 1.0 else SamplingParams().dry_base
        made = self._lib.llama_sampler_init_dry(
            self._vocab.handle,
            p.dry_multiplier,
            base,
            p.dry_allowed_length,
            window,
            array,
            len(breakers),
        )
        self._add(made, self._prompt[-window:])

    def _window(self, last_n: int) -> int:
        return self._context.context_size if last_n < 0 else last_n

    def _add(self, sampler: Any, seen: Sequence[int] = ()) -> None:
        """Hands a sampler to the chain, which frees it, after showing it the tokens so far."""
        for token in seen:
            self._lib.llama_sampler_accept(sampler, token)
        self._lib.llama_sampler_chain_add(self.handle, sampler)

    def sample(self, batch_index: int) -> int:
        """Chooses a token from the logits of that row of the last batch and accepts it."""
        return int(self._lib.llama_sampler_sample(self.handle, self._context.handle, batch_index))

    def sample_with_probs(
        self, logits: npt.NDArray[np.float32]
    ) -> tuple[int, npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """As `sample`, from a row of logits (n_vocab,); also the surviving candidates' ids and
        probabilities after the whole chain."""
        data = np.zeros(logits.size, dtype=TOKEN_DATA)
        data["id"] = np.arange(logits.size, dtype=np.int32)
        data["logit"] = logits
        array = self._lib.llama_token_data_array()
        array.data = data.ctypes.data_as(ctypes.POINTER(self._lib.llama_token_data))
        array.size, array.selected, array.sorted = data.size, -1, False
        self._lib.llama_sampler_apply(self.handle, ctypes.byref(array))
        # Some samplers cut from the front: they move the pointer.
        moved = ctypes.cast(array.data, ctypes.c_void_p).value or 0
        first = (moved - data.ctypes.data) // TOKEN_DATA.itemsize
        survivors = data[first : first + array.size]
        token = int(survivors["id"][array.selected])
        self.accept(token)
        return token, survivors["id"].copy(), survivors["p"].copy()

    def accept(self, token: int) -> None:
        """Tells the chain about a token that it did not choose itself."""
        self._lib.llama_sampler_accept(self.handle, token)

    def close(self) -> None:
        if self.handle:
            self._lib.llama_sampler_free(self.handle)
            self.handle = None
