"""Text that no server has seen before: random words, so that no cached prompt helps."""

from __future__ import annotations

from random import Random

NOUNS = """
    time year people way day man thing woman life child world school state family student group
    country problem hand part place case week company system program question work government
    number night point home water room mother area money story fact month lot right study book
    eye job word business issue side kind head house service friend father power hour game line
    end member law car city community name president team minute idea kid body information back
    parent face others level office door health person art war history party result change
    morning reason research girl guy moment air teacher force education foot boy age policy
    music market sense nation plan college interest death experience effect use class control
"""
WORDS = tuple(NOUNS.split())
"""Common nouns: nearly every one is a single token for every model."""


def cold_text(random: Random, num_words: int) -> str:
    """So many random words; two texts of more than a few words never begin alike."""
    return " ".join(random.choices(WORDS, k=num_words))
