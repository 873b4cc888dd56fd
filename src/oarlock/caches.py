"""Room for what is computed once and read often: in RAM up to a limit, beyond it in a file mapped into memory.

The limit is for all caches of the process together: the environment variable OARLOCK_CACHE_RAM, in gigabytes (`4`,
`0.5`; `0` for none in RAM, `inf` for all), or a quarter of the machine's memory. Values are the same wherever they
stand. The system writes pages of a mapped file back when it needs the memory, so the file should lie on a disk: it is
made where temporary files are (TMPDIR), and has no name, so that nothing is left of it however the process ends.
"""

import math
import mmap
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from oarlock.errors import OarlockError

VARIABLE = "OARLOCK_CACHE_RAM"
SHARE = 0.25  # of the machine's memory
UNTOLD = 8e9  # bytes of a machine that does not say how much memory it has (Windows)
BLOCK = 2**20  # bytes moved or written at a time
_CONTAINER = Path("/sys/fs/cgroup/memory.max")

_in_ram: WeakValueDictionary[int, torch.UntypedStorage] = WeakValueDictionary()


def allocate(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """Return a tensor with no values yet: on the device while the limit allows it, else in a mapped file, on the CPU.

    >>> allocate([3, 2], torch.float32).shape
    torch.Size([3, 2])
    """
    size = math.prod(shape) * dtype.itemsize
    if in_ram() + size > ram_limit():
        return torch.frombuffer(_mapped_file(size), dtype=dtype).view(*shape)
    tensor = torch.empty(*shape, dtype=dtype, device=device)
    storage = tensor.untyped_storage()  # lives as long as any tensor that looks into it
    _in_ram[id(storage)] = storage
    return tensor


def joined(chunks: Iterable[Tensor], rows: int) -> Tensor:
    """Return what `torch.cat` makes of chunks with so many rows in all, in room of `allocate`, with no second copy.

    >>> joined(torch.arange(5).split(2), 5).tolist()
    [0, 1, 2, 3, 4]
    """
    parts = joined_parts(((chunk,) for chunk in chunks), rows)
    return parts[0] if parts else torch.empty(0)


def joined_parts(chunks: Iterable[tuple[Tensor, ...]], rows: int) -> list[Tensor]:
    """Return the same as `joined` for chunks of several tensors each.

    >>> [part.tolist() for part in joined_parts([(torch.ones(2), torch.zeros(2, 1))], 2)]
    [[1.0, 1.0], [[0.0], [0.0]]]
    """
    wholes, done = list[Tensor](), 0
    for chunk in chunks:
        if not done:
            wholes = [allocate([rows, *part.shape[1:]], part.dtype, part.device) for part in chunk]
        for whole, part in zip(wholes, chunk, strict=True):
            whole[done : done + len(part)] = part
        done += len(chunk[0])
    return wholes


def keep_rows(tensor: Tensor, rows: Tensor) -> Tensor:
    """Return some rows of a tensor, given in ascending order, moved to its front: the others are lost, and there is
    no second copy.

    >>> keep_rows(torch.arange(6) * 10, torch.tensor([1, 2, 5])).tolist()
    [10, 20, 50]
    """
    done = 0
    for some in rows.split(1 + BLOCK // tensor[:1].nbytes):  # rows only move forward, so none is lost before its turn
        tensor[done : done + len(some)] = tensor[some]
        done += len(some)
    return tensor[:done]


def in_ram() -> int:
    """Return how many bytes caches hold in RAM, or on a device, at present."""
    return sum(storage.nbytes() for storage in list(_in_ram.values()))


def ram_limit() -> float:
    """Return how many bytes caches may hold in RAM, or on a device."""
    text = os.environ.get(VARIABLE)
    if not text:
        return SHARE * _memory()
    try:
        gigabytes = float(text)
    except ValueError:
        gigabytes = math.nan
    if not gigabytes >= 0:
        raise OarlockError(f"{VARIABLE}={text!r} is not a number of gigabytes: give 0 or more, such as 4 or 0.5")
    return gigabytes * 1e9


def _memory() -> float:
    """Bytes of the machine, or of the container that we run in where that has less."""
    try:
        total = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        total = UNTOLD
    allowed = _CONTAINER.read_text().strip() if _CONTAINER.is_file() else "max"
    return min(total, float(allowed)) if allowed.isdigit() else total


def _mapped_file(size: int) -> mmap.mmap:
    try:
        with tempfile.TemporaryFile() as file:  # the mapping holds on to it
            _reserve(file, size)
            return mmap.mmap(file.fileno(), size)
    except OSError as problem:
        raise OarlockError(
            f"{size / 1e9:.3g} GB of images or features fit neither into the RAM that caches may take nor into a "
            f"temporary file ({problem.strerror}): set TMPDIR to a directory on a disk with room, or raise {VARIABLE}"
        ) from problem


def _reserve(file: IO[bytes], size: int) -> None:
    """Take the space now: a full disk found by a mapped page would kill the process."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
        return
    for start in range(0, size, BLOCK):
        file.write(bytes(min(BLOCK, size - start)))
    file.flush()
