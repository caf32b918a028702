"""The border to libllama: the only folder that knows ctypes.

Rules of this folder
    Every object has one owner and a `close()`; closing twice is harmless, use after closing is not.
    Order of freeing: samplers and contexts before the model, the model last.
    A return code becomes a typed outcome or an error of errors.py; nothing is passed through.
    ctypes calls release the GIL for as long as the C code runs.
"""
