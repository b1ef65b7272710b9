"""Reads the recipes of engine environments that come with Forebay.

A recipe is two files in the folder `recipes`: NAME.toml, and NAME.txt with what it pins.  Neither holds the
address of a package index: which one is asked is a matter of the machine.
"""

import tomllib
from importlib.resources import files
from typing import Final

import msgspec

from forebay.engines.environment import EnvironmentInvalid, Recipe

_FOLDER: Final = files("forebay.engines").joinpath("recipes")
#: Families of hardware by how the name of a class of it begins; the first that fits.
HARDWARE_FAMILIES: Final = ("cuda", "rocm", "cpu")


def list_recipes() -> tuple[str, ...]:
    return tuple(
        sorted(each.name.removesuffix(".toml") for each in _FOLDER.iterdir() if each.name.endswith(".toml"))
    )


def load_recipe(name: str) -> Recipe:
    """Raises EnvironmentInvalid where there is none of that name."""
    if name not in list_recipes():
        raise EnvironmentInvalid(f"there is no recipe {name!r}. There are {', '.join(list_recipes())}.")
    data = tomllib.loads(_FOLDER.joinpath(f"{name}.toml").read_text(encoding="utf-8"))
    pinned = _FOLDER.joinpath(f"{name}.txt").read_text(encoding="utf-8")
    return msgspec.convert({**data, "name": name, "requirements": pinned}, Recipe)


def find_recipe(engine: str, version: str, hardware: str) -> Recipe:
    """The recipe for an engine on a class of hardware.

    Args:
        version: of the engine; empty takes the one there is.

    Raises:
        EnvironmentInvalid: there is none.
    """
    family = find_family(hardware)
    fitting = [
        recipe
        for recipe in map(load_recipe, list_recipes())
        if (recipe.engine, recipe.hardware) == (engine, family) and version in ("", recipe.version)
    ]
    if not fitting:
        recipes = map(load_recipe, list_recipes())
        known = ", ".join(f"{each.engine} {each.version} on {each.hardware}" for each in recipes)
        wanted = " ".join(part for part in (engine, version) if part)
        raise EnvironmentInvalid(f"there is no recipe for {wanted} on {hardware}. There are: {known}.")
    return fitting[0]


def find_family(hardware: str) -> str:
    """Of a class of hardware, such as `cuda` of `cuda-h100`."""
    return next((family for family in HARDWARE_FAMILIES if hardware.startswith(family)), hardware)
