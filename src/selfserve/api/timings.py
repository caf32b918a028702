"""Ends, counts and times as JSON: the same on both endpoints."""

from __future__ import annotations

from typing import Any

from selfserve.request import Finished, Progress, StopType, Timings


def finish_reason(finished: Finished) -> str:
    """`length` where a limit ended the answer, else `stop`."""
    return "length" if finished.stop_type == StopType.LIMIT else "stop"


def usage_object(finished: Finished) -> dict[str, Any]:
    """Token counts; the total is the sum of the other two."""
    return {
        "prompt_tokens": finished.prompt_tokens,
        "completion_tokens": finished.completion_tokens,
        "total_tokens": finished.prompt_tokens + finished.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": finished.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": finished.reasoning_tokens},
    }


def timings_object(timings: Timings) -> dict[str, Any]:
    """Counts are tokens, times are milliseconds; rates are 0 where nothing was done."""
    return {
        "cache_n": timings.cache_n,
        "prompt_n": timings.prompt_n,
        "prompt_ms": timings.prompt_ms,
        "prompt_per_token_ms": _ratio(timings.prompt_ms, timings.prompt_n),
        "prompt_per_second": _ratio(1000 * timings.prompt_n, timings.prompt_ms),
        "predicted_n": timings.predicted_n,
        "predicted_ms": timings.predicted_ms,
        "predicted_per_token_ms": _ratio(timings.predicted_ms, timings.predicted_n),
        "predicted_per_second": _ratio(1000 * timings.predicted_n, timings.predicted_ms),
        "draft_n": timings.draft_n,
        "draft_n_accepted": timings.draft_n_accepted,
    }


def progress_object(progress: Progress) -> dict[str, Any]:
    """How much of a prompt is evaluated."""
    return {
        "total": progress.total,
        "cache": progress.cache,
        "processed": progress.processed,
        "time_ms": progress.time_ms,
    }


def _ratio(value: float, by: float) -> float:
    return value / by if by > 0 else 0.0
