from selfserve.request import SamplingParams


def is_greedy(params: SamplingParams) -> bool:
    return (
        params.temperature <= 0
        and not any(b != float("-inf") for _, b in params.logit_bias)
        and params.repeat_penalty == 1.0
        and params.presence_penalty == 0.0
        and params.frequency_penalty == 0.0
        and params.dry_multiplier == 0.0
        and params.typical_p >= 1.0
        and params.xtc_probability == 0.0
    )


def banned_ids(params, eog_ids):
    ids = {i for i, b in params.logit_bias if b == float("-inf")}
    if params.ignore_eos:
        ids |= set(eog_ids)
    return tuple(sorted(ids))
