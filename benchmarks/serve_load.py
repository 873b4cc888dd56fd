"""Answers over HTTP against `oarlock predict` on the same photos: how many a second, and whether they are the same.
Prints one JSON line.

    python benchmarks/serve_load.py [--requests 2000] [--clients 32] [--photos 250] [--trunk efficientnet_lite0]

A server is started on loopback, in a process of its own; clients send it one photo at a time until all requests are
answered. `oarlock predict` answers the same photos as often, in a process of its own as well. What is compared is the
time from the first photo to the last, without that for starting. `ratio` is predict's time over the server's, and the
goal is 0.8. A request that is lost, or whose label or decision is another than predict's, counts as wrong. Then a
lesson is taught to the model: until it is done no answer may change; `while_learning` says how many came until then.
"""

import argparse
import http.client
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from measuring import new_parser, parse, report
from PIL import Image

from oarlock import Learner
from oarlock.data.sources import open_source

GOAL = 0.8
CLASSES = ("airplane", "bird", "frog", "ship")
NEW = "horse"
TOLERANCE = 1e-4
COMMAND = [sys.executable, "-c", "from oarlock.cli import main; main()"]


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--photos", type=int, default=250)
    parser.add_argument("--side", type=int, default=224, help="pixels of a photo")
    parser.add_argument("--trunk", default="efficientnet_lite0")
    parser.add_argument("--method", default="slda")
    parser.add_argument("--repeats", type=int, default=3)
    given = parse(parser)
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        photos = write_photos(here, given.photos, given.side)
        model = here / "model.oar"
        source = open_source("sample").train.at_most(40).of(list(CLASSES))
        learner = Learner(given.method, trunk=given.trunk, size=128 if "lite" in given.trunk else None)
        learner.learn(source.images, source.labels.tolist()).save(model)
        server, port = start(model, here, given.threads)
        try:
            load(port, photos, 4 * given.clients, given.clients)  # warms up
            rounds = [one_round(given, model, port, photos) for _ in range(given.repeats)]
            learned = while_learning(port, photos, given.clients, here / "lesson")
        finally:
            server.terminate()
            server.wait()
        rounds.sort(key=lambda one: one["ratio"])
        middle = rounds[len(rounds) // 2]
        wrong = sum(one["lost"] + one["wrong"] for one in rounds)
        report(
            "serve_load",
            middle["ratio"],
            GOAL,
            100 * wrong / (len(rounds) * given.requests),
            trunk=given.trunk,
            requests=given.requests,
            clients=given.clients,
            photos_a_second={"serve": middle["serve"], "predict": middle["predict"]},
            ratios=[round(one["ratio"], 2) for one in rounds],
            lost=sum(one["lost"] for one in rounds),
            wrong=sum(one["wrong"] for one in rounds),
            **learned,
        )


def write_photos(folder: Path, count: int, side: int) -> list[Path]:
    """JPEG files of learned classes and of others, and a lesson."""
    source, paths = open_source("sample").train, []
    images = np.concatenate([source.of([name]).images[40:] for name in (*CLASSES, "cat")])
    rows = np.random.default_rng(0).permutation(len(images))[:count]
    (folder / "photos").mkdir()
    for number, row in enumerate(rows):
        paths.append(folder / "photos" / f"{number:04}.jpg")
        Image.fromarray(images[row]).resize((side, side)).save(paths[-1])
    (folder / "lesson" / NEW).mkdir(parents=True)
    for number, image in enumerate(source.of([NEW]).images[:100]):
        Image.fromarray(image).resize((side, side)).save(folder / "lesson" / NEW / f"{number}.jpg")
    return paths


def start(model: Path, folder: Path, threads: int) -> tuple[subprocess.Popen[str], int]:
    command = [*COMMAND, "studio", str(model), "--port", "0", "--photos", str(folder / "lesson")]
    server = subprocess.Popen([*command, "--threads", str(threads)], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    return server, int(server.stdout.readline().split()[-1].rpartition(":")[2])


def one_round(given: argparse.Namespace, model: Path, port: int, photos: list[Path]) -> dict[str, Any]:
    many = [photos[number % len(photos)] for number in range(given.requests)]
    answers, seconds = load(port, photos, given.requests, given.clients)
    expected, reference = predict(model, many, given.threads)
    wanted = dict(zip(map(str, many), expected, strict=True))
    return {
        "ratio": reference / seconds,
        "serve": round(given.requests / seconds, 1),
        "predict": round(given.requests / reference, 1),
        "lost": given.requests - len(answers),
        "wrong": sum(not same(answer, wanted[path]) for path, answer in answers),
    }


def same(answer: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Numbers differ by rounding with the batch that a photo is in."""
    close = abs(answer["probability"] - wanted["probability"]) <= TOLERANCE
    return close and all(answer[name] == wanted[name] for name in ("label", "unknown", "task"))


def predict(model: Path, photos: list[Path], threads: int) -> tuple[list[dict[str, Any]], float]:
    """What the command says, and the seconds from its first answers to its last, with those for the first batch."""
    command = [*COMMAND, "predict", str(model), "-", "--json", "--threads", str(threads)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("".join(f"{path}\n" for path in photos))
    process.stdin.close()
    answers = [json.loads(process.stdout.readline())]
    began = time.perf_counter()
    answers += [json.loads(line) for line in process.stdout]
    seconds = time.perf_counter() - began
    process.wait()
    return answers, seconds * len(photos) / (len(photos) - 64)  # the first 64 came before


def load(port: int, photos: list[Path], requests: int, clients: int) -> tuple[list[tuple[str, dict]], float]:
    """All answers, each with its photo, from clients in a few processes; and the seconds they took."""
    share = [(port, photos, range(first, requests, clients)) for first in range(clients)]
    workers = min(4, clients)
    barrier = multiprocessing.Barrier(workers + 1)
    found: multiprocessing.Queue = multiprocessing.Queue()
    processes = [
        multiprocessing.Process(target=work, args=(barrier, found, share[first::workers])) for first in range(workers)
    ]
    for process in processes:
        process.start()
    barrier.wait()
    began = time.perf_counter()
    answers = [answer for _ in processes for answer in found.get()]
    seconds = time.perf_counter() - began
    for process in processes:
        process.join()
    return answers, seconds


def work(barrier: Any, found: Any, share: list[Any]) -> None:
    from concurrent.futures import ThreadPoolExecutor

    bodies = {path: path.read_bytes() for path in share[0][1]}
    barrier.wait()
    with ThreadPoolExecutor(len(share)) as pool:
        answers = list(pool.map(lambda one: client(one[0], one[1], one[2], bodies), share))
    found.put([answer for some in answers for answer in some])


def client(port: int, photos: list[Path], numbers: range, bodies: dict[Path, bytes]) -> list[tuple[str, dict]]:
    connection, answers = http.client.HTTPConnection("127.0.0.1", port, timeout=120), []
    for number in numbers:
        path = photos[number % len(photos)]
        answer = ask(connection, path.name, bodies[path])
        if answer is not None:
            answers.append((str(path), answer))
    connection.close()
    return answers


def ask(connection: http.client.HTTPConnection, name: str, content: bytes) -> dict[str, Any] | None:
    head = f'--x\r\nContent-Disposition: form-data; name="images"; filename="{name}"\r\n\r\n'.encode()
    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    connection.request("POST", "/predict", head + content + b"\r\n--x--\r\n", kind)
    answer = connection.getresponse()
    body = json.loads(answer.read())
    return None if answer.status != 200 else {**body["answers"][0], "model": body["model"]}


def while_learning(port: int, photos: list[Path], clients: int, lesson: Path) -> dict[str, Any]:
    """Teach the served model and ask all the while: by the old model's answers, then by the new one's."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def post(path: str, content: dict[str, Any]) -> dict[str, Any]:
        connection.request("POST", f"/api{path}", json.dumps(content), {"Content-Type": "application/json"})
        return json.loads(connection.getresponse().read())

    before = [ask(connection, path.name, path.read_bytes()) for path in photos]
    overview = post("/folder/classes", {"names": [NEW]})
    post("/learn", {"groups": [group["id"] for group in overview["groups"]], "settings": {}})
    seen: Counter[str] = Counter()
    changed, old = 0, before[0]["model"]  # type: ignore[index]
    for number in range(100 * len(photos)):
        path, was = photos[number % len(photos)], before[number % len(photos)]
        answer = ask(connection, path.name, path.read_bytes())
        assert answer is not None and was is not None
        seen["old" if answer["model"] == old else "new"] += 1
        changed += answer["model"] == old and not same(answer, was)
        if seen["new"] >= 10:
            break
    return {"while_learning": seen["old"], "changed_while_learning": changed, "new_model_seen": seen["new"] >= 10}


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    main()
