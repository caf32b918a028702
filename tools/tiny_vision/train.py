"""Trains the encoder for a frozen text model, on the CPU, with no pictures from elsewhere.

    python -m tools.tiny_vision.train MODEL.gguf OUT.pt [--word-steps 520] [--encoder-steps 5500]

`--word-steps 0` goes on with the words in OUT.pt.words and the encoder in OUT.pt, if it is there.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from tools.tiny_vision.encoder import EncoderTrainer
from tools.tiny_vision.textmodel import Text
from tools.tiny_vision.words import SEED, Words, WordTuner
from torch import Tensor

NUM_THREADS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--word-steps", type=int, default=520)
    parser.add_argument("--encoder-steps", type=int, default=5500)
    arguments = parser.parse_args()
    torch.manual_seed(SEED)
    torch.set_num_threads(NUM_THREADS)
    out: Path = arguments.out
    words_file = out.with_name(out.name + ".words")
    text = Text(arguments.model)
    start: dict[str, Tensor] | None = None
    if arguments.word_steps:
        words = WordTuner(text).tune(arguments.word_steps)
        torch.save(words.state_dict(), words_file)
    else:
        words = Words(text)
        words.load_state_dict(torch.load(words_file, weights_only=True))
        start = torch.load(out, weights_only=True) if out.exists() else None
    net = EncoderTrainer(words).train(arguments.encoder_steps, start)
    torch.save(net.state_dict(), out)


if __name__ == "__main__":
    main()
