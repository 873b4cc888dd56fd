"""Put the output of commands into a page of the documentation, below the commands themselves.

    python tools/update_docs.py docs/results.md            # run the commands, rewrite what stands below them
    python tools/update_docs.py docs/results.md --check    # exit 1 if the page would change

A block of commands is filled in when a pair of marks follows it:

    ```sh
    oarlock table results/study --measure aca
    ```

    <!-- output -->
    <!-- end of output -->

Commands run in the repository's root.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(
    r"(?P<head>```sh\n(?P<commands>(?:(?!```).)*?)```\n\n<!-- output -->\n).*?(?P<foot><!-- end of output -->)",
    re.DOTALL,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    before = given.page.read_text(encoding="utf-8")
    after = filled_in(before)
    if given.check:
        raise SystemExit(before != after)
    given.page.write_text(after, encoding="utf-8")


def filled_in(page: str) -> str:
    return BLOCK.sub(lambda block: f"{block['head']}{output(block['commands'])}\n{block['foot']}", page)


def output(commands: str) -> str:
    """What they print. The commands of this interpreter's environment come first."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        ["sh", "-ec", commands],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{commands}failed:\n{done.stderr}")
    return done.stdout.strip()


if __name__ == "__main__":
    main()
