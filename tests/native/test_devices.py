"""Which device a setting means, and what is said where there is none."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.tiny_models import write_tiny_model

from selfserve.engine.llama_runner import choose_gpus, system_info
from selfserve.errors import LibraryError, SettingsError
from selfserve.native.devices import Device, choose, found_devices, pointer_list
from selfserve.native.model import Model

CPU = Device("CPU", "cpu", "a processor", False, 1, 2, 1)
CUDA0 = Device("CUDA0", "cuda", "the first card", True, 1, 2, 2)
CUDA1 = replace(CUDA0, name="CUDA1", description="the second card", handle=3)
VULKAN0 = Device("Vulkan0", "vulkan", "another card", True, 1, 2, 4)
ALL = [CUDA0, CUDA1, VULKAN0, CPU]


@pytest.mark.parametrize(
    ("wanted", "layers", "expected"),
    [
        ("auto", -1, [CUDA0, CUDA1, VULKAN0]),
        ("auto", 0, []),
        ("cpu", -1, []),
        ("cuda", -1, [CUDA0, CUDA1]),
        ("cuda:1", 5, [CUDA1]),
        ("vulkan", -1, [VULKAN0]),
    ],
)
def test_a_setting_stands_for_devices(wanted: str, layers: int, expected: list[Device]) -> None:
    assert choose(wanted, layers, ALL) == expected


def test_auto_computes_on_the_cpu_where_there_is_nothing_else() -> None:
    assert choose("auto", -1, [CPU]) == []


@pytest.mark.parametrize(
    ("wanted", "option"),
    [("cuda", "-DGGML_CUDA=on"), ("vulkan:1", "-DGGML_VULKAN=on"), ("metal", "-DGGML_METAL=on")],
)
def test_a_device_that_the_build_lacks_is_refused_with_how_to_build_it(
    wanted: str, option: str
) -> None:
    with pytest.raises(LibraryError) as caught:
        choose(wanted, -1, [CPU])
    assert f"device {wanted}: " in caught.value.message
    assert f"CMAKE_ARGS={option} pip install" in caught.value.message


def test_layers_for_a_gpu_that_is_not_there_are_no_silent_cpu_run() -> None:
    with pytest.raises(LibraryError, match="gpu_layers is 10"):
        choose("auto", 10, [CPU])


def test_a_number_beyond_the_last_device_is_refused_with_those_there_are() -> None:
    with pytest.raises(SettingsError, match=r"no device cuda:2; .* cuda:1 \(the second card\)"):
        choose("cuda:2", -1, ALL)


def test_a_gpu_with_no_layers_is_a_contradiction() -> None:
    with pytest.raises(SettingsError, match="leaves nothing to compute for device cuda"):
        choose("cuda", 0, ALL)


def test_the_list_for_libllama_ends_with_null() -> None:
    pointers = pointer_list([CUDA0, VULKAN0])
    assert list(pointers) == [CUDA0.handle, VULKAN0.handle, None]
    assert ctypes.sizeof(pointer_list([])) == ctypes.sizeof(ctypes.c_void_p)


def test_this_build_has_a_cpu_with_a_name_and_memory() -> None:
    [cpu] = [device for device in found_devices() if device.kind == "cpu"]
    assert cpu.name == "CPU"
    assert not cpu.is_gpu
    assert 0 < cpu.free_bytes <= cpu.total_bytes
    info = system_info()
    assert cpu.name in [device.name for device in info.devices]
    assert "CPU" in info.features
    assert choose_gpus("cpu", -1) == []


def test_a_model_is_not_loaded_on_a_device_that_is_not_there(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", "llama")
    with pytest.raises((LibraryError, SettingsError), match="vulkan:77"):
        Model(path, device="vulkan:77")
    model = Model(path, device="cpu")
    assert model.gpus == []
    model.close()
