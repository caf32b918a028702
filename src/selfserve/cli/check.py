"""`self check MODEL`: does it do what it claims?"""

from __future__ import annotations

import time

import typer

from selfserve.cli import options, output
from selfserve.cli.options import DEFAULT_MODEL
from selfserve.cli.setting_flags import takes_settings
from selfserve.cli.setting_sources import Given
from selfserve.cli.target import connected

FAILED = 1


@takes_settings(options.LOADING)
def check(
    given: Given,
    target: options.Target = DEFAULT_MODEL,
    as_json: options.AsJson = False,
    force: options.Force = False,
    key: options.ApiKey = "",
) -> None:
    """Try what a model claims to do.

    Prints what passed, and how fast it is. The exit code is 1 if anything failed.
    """
    from selfserve.cli import probes

    with connected(target, given, force=force, key=key) as client:
        card = client.model()
        results = []
        for probe in probes.probes_for(card["capabilities"]):
            begin_s = time.monotonic()
            result = probes.run_probe(probe, client)
            elapsed_s = time.monotonic() - begin_s
            results.append({**result, "seconds": round(elapsed_s, 2)})
            if not as_json:
                word = "passed" if result["passed"] else "FAILED"
                detail = f": {result['detail']}" if result["detail"] else ""
                output.result(f"{word}  {result['name']} ({elapsed_s:.1f} s){detail}")
        speed = probes.speed(client, card["capabilities"]["context_size"])
    passed = all(result["passed"] for result in results)
    if as_json:
        output.result_json(
            {"model": card["id"], "passed": passed, "probes": results, "speed": speed}
        )
    else:
        output.result(
            f"prompt {speed['prompt_tokens_per_s']:.0f} tokens/s, "
            f"answer {speed['answer_tokens_per_s']:.1f} tokens/s"
        )
    if not passed:
        raise typer.Exit(FAILED)
