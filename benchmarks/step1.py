"""Step 1 with adapters in all stages: a frozen trunk without gradients and a short last attention, against neither.

    python benchmarks/step1.py [--trunk vit_pico] [--trunk deit_small_patch16_224] [--repeats 3] [--no-bf16]

The bundled trunk, and DeiT-S with random weights for a few steps at 224 pixels. Prints one JSON line.
"""

from measuring import new_parser, parse
from step1_sides import Size, add_sizes, compare_trunks, report_trunks

GOAL, GOAL_WITH_BF16 = 1.4, 1.8
BUNDLED_SIZE = Size(images=64, batch=64, memory=64, epochs=2, test=50)
LARGE_SIZE = Size(images=12, batch=8, memory=8, epochs=1)


def main() -> None:
    parser = new_parser(__doc__)
    add_sizes(parser)
    given = parse(parser)
    found = compare_trunks(given, 1.0, BUNDLED_SIZE, LARGE_SIZE)
    report_trunks("step1", GOAL_WITH_BF16 if given.bf16 else GOAL, given.bf16, found)


if __name__ == "__main__":
    main()
