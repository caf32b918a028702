"""`self pull`, `ls`, `ls-remote`, `rm`: the models folder and the catalogue."""

from __future__ import annotations

from typing import Annotated

import typer

from selfserve.cli import options, output
from selfserve.cli.setting_flags import takes_settings
from selfserve.cli.setting_sources import Given, choose

FOLDER = ("models_dir",)
Named = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A known name, or hf:owner/repo[:quant].",
        autocompletion=options.model_names,
    ),
]


@takes_settings((*FOLDER, "mmproj"))
def pull(given: Given, model: Named) -> None:
    """Fetch a model.

    Prints the paths of its files.
    """
    from selfserve.cli.preparation import fetch

    for path in fetch(model, choose(given, model)).paths:
        output.result(str(path))


@takes_settings(FOLDER)
def ls(given: Given, as_json: options.AsJson = False) -> None:
    """List the models that are on this machine."""
    from selfserve.catalogue.download import amount
    from selfserve.cli.preparation import store_of

    store = store_of(choose(given))
    models = store.installed()
    unfinished = store.unfinished()
    if as_json:
        output.result_json(
            {
                "models": [
                    {
                        "reference": model.reference,
                        "size": model.size,
                        "paths": [str(path) for path in model.paths],
                        "vision": model.projector is not None,
                    }
                    for model in models
                ],
                "unfinished": [
                    {"path": str(part.target), "size": part.size} for part in unfinished
                ],
            }
        )
        return
    rows = [(m.reference, amount(m.size), str(m.path)) for m in models]
    output.table(("MODEL", "SIZE", "FILE"), rows)
    for part in unfinished:
        output.status(f"Unfinished: {part.target} ({amount(part.size)} are there)")


@takes_settings(FOLDER)
def ls_remote(given: Given, as_json: options.AsJson = False) -> None:
    """List the models that are known by name."""
    from selfserve.catalogue.download import amount
    from selfserve.catalogue.known import catalogue
    from selfserve.cli.preparation import store_of

    store = store_of(choose(given))
    known = [
        {
            "reference": f"{entry.id}@{quant}",
            "aliases": list(entry.aliases),
            "default": quant == entry.default_quant,
            "size": sum(file.size for file in (*files.files, files.projector) if file),
            "vision": files.projector is not None,
            "installed": store.locate(entry, quant) is not None,
            "license": entry.license,
            "description": entry.description,
        }
        for entry in catalogue().models
        for quant, files in entry.quants.items()
    ]
    if as_json:
        output.result_json({"models": known})
        return
    output.table(
        ("MODEL", "SIZE", "HERE", "DESCRIPTION"),
        [
            (
                str(model["reference"]),
                amount(int(str(model["size"]))),
                "yes" if model["installed"] else "",
                str(model["description"]),
            )
            for model in known
        ],
    )


@takes_settings(FOLDER)
def rm(given: Given, model: Named) -> None:
    """Remove a model that was fetched.

    What an unfinished download left goes too.
    """
    from selfserve.catalogue.download import amount
    from selfserve.catalogue.entries import remove
    from selfserve.cli.preparation import store_of

    freed = remove(model, store=store_of(choose(given)))
    output.status(f"Removed {model}: {amount(freed)} are free again")
