"""What the names of GGUF files say: quantization, part of a split model, projector.

Works on names only (paths with `/`), so that it serves a repository's list and a folder alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from selfserve.errors import ModelNotFound, shown

_SPLIT = re.compile(r"^(?P<stem>.*)-(?P<part>\d{5})-of-(?P<total>\d{5})\.gguf$", re.IGNORECASE)
_QUANT = re.compile(
    r"(?<![A-Za-z0-9])(?P<label>(?:UD-)?"
    r"(?:(?:IQ|TQ|Q)\d+(?:_(?:\d+|K|XXS|XS|S|M|L|XL|XXL|NL|P)(?![A-Za-z0-9]))*"
    r"|BF16|FP16|F16|F32|MXFP4(?:_MOE)?|NVFP4))(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_PROJECTOR_ORDER = ("F16", "BF16", "FP16", "F32", "Q8_0")
"""Which precision of one projector to take: F16 loses nothing that counts and is half of F32."""
_MAX_LISTED = 20


@dataclass(frozen=True, slots=True)
class Part:
    """A name such as `model-00002-of-00003.gguf`, taken apart."""

    stem: str
    number: int
    total: int

    def name(self, number: int) -> str:
        return f"{self.stem}-{number:05d}-of-{self.total:05d}.gguf"

    @property
    def all_names(self) -> tuple[str, ...]:
        return tuple(self.name(number) for number in range(1, self.total + 1))


def split_part(name: str) -> Part | None:
    """The part of a split model that `name` is; None for a file that is whole."""
    match = _SPLIT.match(name)
    if match is None:
        return None
    part = Part(match["stem"], int(match["part"]), int(match["total"]))
    return part if 1 <= part.number <= part.total else None


def stem(name: str) -> str:
    """A model's name: the file's, without folder, ending and part number."""
    part = split_part(name)
    base = (part.stem if part else re.sub(r"\.gguf$", "", name, flags=re.IGNORECASE)).split("/")
    return base[-1]


def quant_label(name: str) -> str:
    """The quantization in a file name, such as `Q4_K_M` or `UD-Q4_K_XL`; empty if there is none."""
    labels = [match["label"].upper() for match in _QUANT.finditer(stem(name))]
    return labels[-1] if labels else ""


def is_gguf(name: str) -> bool:
    return name.lower().endswith(".gguf")


def is_projector(name: str) -> bool:
    return "mmproj" in name.rsplit("/", 1)[-1].lower()


def models_among(names: Iterable[str]) -> list[str]:
    """One name for each model among `names`: of a split one the first part, there or not."""
    found: dict[str, None] = {}
    for name in sorted(names):
        if not is_gguf(name) or is_projector(name) or "imatrix" in name.lower():
            continue
        part = split_part(name)
        found[part.name(1) if part else name] = None
    return list(found)


def all_parts(name: str) -> tuple[str, ...]:
    """All files of the model that `name` is a part of, in order."""
    part = split_part(name)
    return part.all_names if part else (name,)


def choose_model(
    names: Iterable[str], quant: str | None, where: str, *, parts_may_lack: bool = False
) -> tuple[str, ...]:
    """The files, in order, of the one model among `names` that `quant` asks for.

    `quant` is compared as a whole and in any case with the quantization in each name, with the
    parts of the name between `-` and `.`, and with the whole name. `where` is for the messages.
    Raises ModelNotFound that lists the candidates if none or several fit, or names missing parts.
    """
    available = set(names)
    models = models_among(available)
    if not models:
        raise ModelNotFound(f"{where} holds no GGUF model")
    fitting = models if quant is None else _fitting(models, quant)
    if len(fitting) == 1 and parts_may_lack:
        return tuple(name for name in all_parts(fitting[0]) if name in available)
    if len(fitting) == 1:
        return _complete(fitting[0], available, where)
    asked = "" if quant is None else f" for {shown(quant)}"
    problem = f"several models{asked}" if fitting else f"no model{asked}"
    raise ModelNotFound(f"{where} holds {problem}; candidates: {_listed(fitting or models)}")


def choose_projector(names: Iterable[str], model: str) -> str | None:
    """The projector that goes with the file `model`: from its folder, else from the top folder.

    Of several, the one whose name has most in common with the model's; then by precision.
    """
    folder = _folder(model)
    projectors = [name for name in names if is_gguf(name) and is_projector(name)]
    near = [name for name in projectors if _folder(name) == folder]
    near = near or [name for name in projectors if _folder(name) == ""]
    if not near:
        return None
    words = _words(model)

    def order(name: str) -> tuple[int, int, str]:
        label = quant_label(name)
        precise = _PROJECTOR_ORDER.index(label) if label in _PROJECTOR_ORDER else 99
        return (-len(_words(name) & words), precise, name)

    return min(near, key=order)


def _fitting(models: list[str], quant: str) -> list[str]:
    wanted = quant.upper()
    by_path = [name for name in models if name.upper() == wanted]
    by_name = by_path or [name for name in models if name.rsplit("/", 1)[-1].upper() == wanted]
    if by_name:
        return by_name
    exact = [name for name in models if quant_label(name) == wanted]
    if exact:
        return exact
    dynamic = [name for name in models if quant_label(name).removeprefix("UD-") == wanted]
    return dynamic or [name for name in models if wanted in _tokens(name)]


def _complete(model: str, available: set[str], where: str) -> tuple[str, ...]:
    parts = all_parts(model)
    missing = [name for name in parts if name not in available]
    if missing:
        raise ModelNotFound(
            f"{where} lacks {len(missing)} of {len(parts)} parts: {_listed(missing)}"
        )
    return parts


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


def _tokens(name: str) -> list[str]:
    return re.split(r"[-.]", stem(name).upper())


def _words(name: str) -> set[str]:
    """The words of a name that tell models apart: not the precision, which differs anyway."""
    label = quant_label(name)
    return {word for word in re.split(r"[-._]", stem(name).upper()) if word} - {*label.split("_")}
