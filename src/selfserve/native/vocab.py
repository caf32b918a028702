"""A model's tokens, special tokens, metadata and chat template.

Read-only after it was made, so every thread may use it, for as long as its model is not closed.
"""

from __future__ import annotations

import ctypes
import warnings
from functools import cached_property
from typing import Any

from selfserve.errors import InvalidRequest
from selfserve.native.dry import DryPrototypes
from selfserve.native.pieces import PieceStatistics

ATTR_UNKNOWN = 1 << 0
ATTR_CONTROL = 1 << 3
ATTR_USER_DEFINED = 1 << 4
MAX_TEXT_BYTES = 64 << 20
"""Of a text to tokenize: the room for its tokens is four times as large."""
SPECIAL = ATTR_UNKNOWN | ATTR_CONTROL | ATTR_USER_DEFINED


class Vocab:
    """The vocabulary of one model, which owns the memory behind it."""

    def __init__(self, lib: Any, model: Any) -> None:
        self._lib = lib
        self._model = model
        self.handle = lib.llama_model_get_vocab(model)
        self.size: int = lib.llama_vocab_n_tokens(self.handle)
        self._pieces: dict[int, bytes] = {}
        self._special_pieces: dict[int, bytes] = {}
        self.dry_prototypes = DryPrototypes(lib, self.handle)

    def close(self) -> None:
        """Frees what is kept for samplers; the model is closed next."""
        self.dry_prototypes.close()

    @cached_property
    def bos_id(self) -> int | None:
        token = int(self._lib.llama_vocab_bos(self.handle))
        return token if token >= 0 else None

    @cached_property
    def eos_id(self) -> int | None:
        token = int(self._lib.llama_vocab_eos(self.handle))
        return token if token >= 0 else None

    @cached_property
    def add_bos(self) -> bool:
        return bool(self._lib.llama_vocab_get_add_bos(self.handle))

    @cached_property
    def special_ids(self) -> dict[str, int]:
        """Text → id of the control and user-defined tokens."""
        get_attr, get_text = self._lib.llama_vocab_get_attr, self._lib.llama_vocab_get_text
        found = (i for i in range(self.size) if get_attr(self.handle, i) & SPECIAL)
        return {get_text(self.handle, i).decode("utf-8", "replace"): i for i in found}

    @cached_property
    def eog_ids(self) -> frozenset[int]:
        """All tokens that end a generation. libllama marks only special tokens as such."""
        is_eog = self._lib.llama_vocab_is_eog
        return frozenset(i for i in self.special_ids.values() if is_eog(self.handle, i))

    @cached_property
    def chat_template(self) -> str | None:
        source = self._lib.llama_model_chat_template(self._model, None)
        return source.decode("utf-8", "replace") if source else None

    @cached_property
    def metadata(self) -> dict[str, str]:
        """The file's key-value pairs; arrays are left out by libllama's loader."""
        count = self._lib.llama_model_meta_count(self._model)
        return {self._meta("key", i): self._meta("val_str", i) for i in range(count)}

    def _meta(self, what: str, index: int) -> str:
        call = getattr(self._lib, f"llama_model_meta_{what}_by_index")
        buffer = ctypes.create_string_buffer(1024)
        length = call(self._model, index, buffer, len(buffer))
        if length >= len(buffer):  # the result is the length it would have had
            buffer = ctypes.create_string_buffer(length + 1)
            call(self._model, index, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    @cached_property
    def piece_statistics(self) -> PieceStatistics:
        """Of all pieces, those of control tokens too. Takes up to a second for large ones."""
        return PieceStatistics(self._read_piece(i, True) for i in range(self.size))

    @cached_property
    def longest_piece(self) -> int:
        """Bytes of the longest piece: a text of n bytes has at least n / longest tokens."""
        return max(1, self.piece_statistics.longest)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of `text`. Releases the GIL. Raises InvalidRequest where libllama cannot."""
        data = text.encode("utf-8")
        if len(data) > MAX_TEXT_BYTES:
            raise InvalidRequest(
                f"the text must have at most {MAX_TEXT_BYTES} bytes, it has {len(data)}"
            )
        room = len(data) + 8  # no token is shorter than a byte, plus BOS and EOS
        count, tokens = self._tokenize(data, room, add_special, parse_special)
        if count < 0 and room < -count <= 2 * MAX_TEXT_BYTES:  # its normalizer made the text longer
            count, tokens = self._tokenize(data, -count, add_special, parse_special)
        if count < 0:
            raise InvalidRequest("the text cannot be tokenized")
        found: list[int] = tokens[:count]
        return found

    def _tokenize(
        self, data: bytes, room: int, add_special: bool, parse_special: bool
    ) -> tuple[int, Any]:
        """(count, tokens); below zero: the room that it takes, or −2³¹ for too much to count."""
        tokens = (ctypes.c_int32 * room)()
        count = self._lib.llama_tokenize(
            self.handle, data, len(data), tokens, room, add_special, parse_special
        )
        return int(count), tokens

    def piece(self, token_id: int, *, special: bool = False) -> bytes:
        """The token's bytes; a control token is empty unless `special`."""
        table = self._special_pieces if special else self._pieces
        found = table.get(token_id)
        if found is None:
            if not 0 <= token_id < self.size:
                raise IndexError(f"token id {token_id} is not in 0 … {self.size - 1}")
            found = table[token_id] = self._read_piece(token_id, special)
        return found

    def _read_piece(self, token_id: int, special: bool) -> bytes:
        room = 64
        while True:
            buffer = ctypes.create_string_buffer(room)
            length = self._lib.llama_token_to_piece(self.handle, token_id, buffer, room, 0, special)
            if length >= 0:
                return buffer.raw[:length]
            room = -length

    def grammar_tokenizer(self) -> Any:
        """This vocabulary for llguidance. Takes up to two seconds for large ones."""
        from llguidance.llamacpp import lltokenizer_from_vocab

        with warnings.catch_warnings():
            # llguidance calls the binding by a name that the binding has deprecated.
            warnings.simplefilter("ignore", DeprecationWarning)
            return lltokenizer_from_vocab(self.handle, eos_token=sorted(self.eog_ids))
