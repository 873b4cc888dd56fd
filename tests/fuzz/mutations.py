"""Files changed by chance: in any byte, or in what they say, with the checksum made to fit again."""

import copy
import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from oarlock.files import fingerprint

# What stands where something else is expected.
STRANGE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 17, 100_000, 2**31, 2**53, 2**63, 10**30, -(2**40)),
    *(0.5, -0.5, 1e-300, 1e300, float("nan"), float("inf"), float("-inf")),
    *(
        "",
        "x",
        "ant",
        "0",
        "row",
        "slda",
        "oar",
        "hat",
        "cnn",
        "features",
        "stages",
        "memory",
        "a\0",
        "\ud800",
        "x" * 5000,
    ),
    *(
        "hf-hub:timm/resnet18.a1_in1k",
        "hf_hub:a/b",
        "local-dir:/etc",
        "../../etc",
        "/etc/passwd",
        "file:///x",
        "vit_pico",
    ),
    *([], {}, [[]], [1] * 1000, [[1] * 50] * 50, ["a"] * 100_000, {"a": 1}, {"": None}, [0, 0, 0], [1, 1]),
)


def mutated(original: Path, chance: random.Random) -> tuple[bytes, str]:
    """Return what the file could have been, and what was done to it."""
    content = original.read_bytes()
    if chance.random() < 0.5:
        return _bytes(content, chance)
    done: list[str] = []
    if original.suffix == ".json":
        described = json.loads(content)
        for _ in range(chance.choice((1, 1, 2, 4))):
            described = _description(described, chance, done)
        return _text(described, chance, done).encode("utf-8", "surrogatepass"), ", ".join(done)
    tensors, described = taken_apart(content)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        if chance.random() < 0.6:
            described = _description(described, chance, done)
        else:
            _tensors(tensors, chance, done)
    if chance.random() < 0.5:
        _sign_trunk(tensors, described)
    return signed(tensors, described, chance, done), ", ".join(done)


def taken_apart(content: bytes) -> tuple[dict[str, Tensor], Any]:
    """Return tensors, and the description without its checksum."""
    (length,) = struct.unpack("<Q", content[:8])
    described = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["oarlock"])
    del described["sha256"]
    return safetensors.torch.load(content), described


def signed(tensors: dict[str, Tensor], described: Any, chance: random.Random, done: list[str]) -> bytes:
    """Return the file that has these, with the checksum that fits."""
    plain = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    if isinstance(described, dict):
        described = {**described, "sha256": fingerprint(plain, json.dumps(described))}
    text = _text(described, chance, done)
    return safetensors.torch.save(plain, {"oarlock": text})


def _sign_trunk(tensors: dict[str, Tensor], described: Any) -> None:
    """A changed trunk's own hash is made to fit as well."""
    for part, learner in (("trunk.", described), ("learner.trunk.", _at(described, "learner"))):
        ours = {name.removeprefix(part): value for name, value in tensors.items() if name.startswith(part)}
        trunk = _at(learner, "trunk")
        if ours and isinstance(trunk, dict):
            full = {name: value.float() if value.is_floating_point() else value for name, value in ours.items()}
            trunk["sha256"] = fingerprint(full)


def _at(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, dict) else None


def _text(described: Any, chance: random.Random, done: list[str]) -> str:
    text = json.dumps(described)
    if chance.random() < 0.02:
        done.append("nested without end")
        return text.replace("null", "[" * 100_000 + "]" * 100_000, 1)
    if chance.random() < 0.02:
        done.append("a name twice")
        return text.replace("{", '{"method": 1, "method": 2, ', 1)
    if chance.random() < 0.02:
        done.append("a number of ten thousand digits")
        return text.replace(": 1", ": 1" + "0" * 10_000, 1)
    return text


# Bytes


def _bytes(content: bytes, chance: random.Random) -> tuple[bytes, str]:
    changed = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 4, 40))):
        at = _place(len(changed), chance)
        kind = chance.randrange(6)
        if kind < 2:
            changed[at : at + 1] = bytes([changed[at] ^ 1 << chance.randrange(8)])
        elif kind == 2:
            changed[at : at + 1] = bytes([chance.choice((0, 255, 34, 48, 57, 91, 123, chance.randrange(256)))])
        elif kind == 3:
            del changed[at : at + chance.choice((1, 8, 1000))]
        elif kind == 4:
            changed[at:at] = chance.randbytes(chance.choice((1, 8, 1000)))
        else:
            other = _place(len(changed), chance)
            changed[at : at + 64] = changed[other : other + 64]
        if len(changed) < 2:
            break
    return bytes(changed), "bytes"


def _place(length: int, chance: random.Random) -> int:
    """Most of a file is numbers that nobody reads one by one: what says how to read them has half of the turns."""
    return chance.randrange(min(length, chance.choice((8, 200, 10_000, length, length, length))))


# What files say

Place = tuple[Any, Any]  # a list or an object, and an index or a name in it


def _description(described: Any, chance: random.Random, done: list[str]) -> Any:
    whole = {"": copy.deepcopy(described)}
    places = _places(whole, chance)
    holder, key = chance.choice(places[-8:] if chance.random() < 0.7 else places)
    kind = chance.randrange(9)
    value = holder[key]
    if kind == 0 and isinstance(holder, dict) and key:
        done.append(f"without {key}")
        del holder[key]
    elif kind == 1 and isinstance(holder, dict) and key:
        done.append(f"{key} under another name")
        holder[chance.choice((key + "s", "x", ""))] = holder.pop(key)
    elif kind == 2 and isinstance(value, list):
        done.append(f"{key}: another length")
        many = min(10_000, 2**20 // len(str(value[:1])))  # of a long thing fewer: memory is for the files, not for us
        holder[key] = chance.choice((value[:-1], value[1:], value * 2, value[:1] * many, value[::-1]))
    elif kind < 6 and type(value) in (int, float):
        changes: tuple[Callable[[Any], Any], ...] = (
            *(lambda x: x + 1, lambda x: x - 1, lambda x: -x, lambda x: x * 2, lambda x: x * 1000, lambda x: x / 3),
            *(lambda x: chance.randrange(-3, 40), lambda x: 10 ** chance.randrange(1, 19)),
        )
        holder[key] = chance.choice(changes)(value)
        done.append(f"{key}: {holder[key]}")
    elif kind == 6:
        giver, name = chance.choice(places)
        done.append(f"{key} as {name}")
        holder[key] = copy.deepcopy(giver[name])
    else:
        holder[key] = copy.deepcopy(chance.choice(STRANGE))
        done.append(f"{key}: {str(holder[key])[:40]!r}")
    return whole[""]


def _places(whole: Any, chance: random.Random) -> list[Place]:
    """Places to choose from, the deepest last: on one way down, and some beside it, so that no long list has all the
    turns."""
    places: list[Place] = []
    node: Any = whole
    while isinstance(node, dict | list) and node:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        keys = chance.sample(keys, min(4, len(keys)))
        places += [(node, key) for key in keys]
        node = node[keys[0]]
    return places


# Tensors

KINDS = (
    *(torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64),
    *(torch.int64, torch.int8, torch.uint8, torch.uint32, torch.bool),
)


def _tensors(tensors: dict[str, Tensor], chance: random.Random, done: list[str]) -> None:
    if not tensors:
        return
    names = sorted(tensors)
    learned = [name for name in names if "trunk." not in name]
    name = chance.choice(learned if learned and chance.random() < 0.8 else names)
    value, kind = tensors[name], chance.randrange(8)
    done.append(f"{name}, {kind}")
    if kind == 0:
        del tensors[name]
    elif kind == 1:
        tensors[chance.choice((name + "s", "x", name.replace("0", "1"), f"method.{name}"))] = tensors.pop(name)
    elif kind == 2:
        tensors[name] = value.to(chance.choice(KINDS))
    elif kind == 3:
        tensors[name] = chance.choice(_shapes(value))
    elif kind == 4:
        tensors[name] = tensors[chance.choice(names)].clone()
    elif value.numel():
        flat = value.clone().reshape(-1)
        rows = [chance.randrange(len(flat)) for _ in range(chance.choice((1, 3, len(flat))))]
        flat[rows] = torch.tensor(_number(value.dtype, chance)).to(value.dtype)
        tensors[name] = flat.reshape(value.shape)


def _shapes(value: Tensor) -> list[Tensor]:
    shapes = [value.flatten(), value[None], value.new_zeros(0), value.new_zeros(*value.shape, 0)]
    if value.ndim:
        shapes += [value[:-1], value[1:], torch.cat([value, value]), value.transpose(0, -1), value[:0]]
    return shapes


def _number(dtype: torch.dtype, chance: random.Random) -> float | int | bool:
    if dtype.is_floating_point:
        return chance.choice((0.0, -1.0, 1e4, 1e30, -3e38, float("nan"), float("inf"), chance.gauss(0, 1)))
    if dtype == torch.bool:
        return chance.random() < 0.5
    return chance.choice((0, 1, 2, 3, 4, 255)) if dtype == torch.uint8 else chance.choice((-1, 0, 1, 4, 99, 2**40))
