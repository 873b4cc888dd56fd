"""Step 1 with adapters in the upper half of the stages: activations below kept over the epochs, against none kept.

    python benchmarks/step1_late.py [--trunk vit_pico] [--trunk deit_small_patch16_224] [--epochs 20] [--no-bf16]

Our time includes making the activations; they serve 20 epochs, the median of the paper's protocols, and with fewer
they weigh more. The bundled trunk, and DeiT-S with random weights at 224 pixels. Prints one JSON line."""

from measuring import new_parser, parse
from step1_sides import Size, add_sizes, compare_trunks, report_trunks

GOAL = 3
BUNDLED_SIZE = Size(images=32, batch=64, memory=64, epochs=20, test=50)
LARGE_SIZE = Size(images=4, batch=8, memory=8, epochs=20)


def main() -> None:
    parser = new_parser(__doc__)
    add_sizes(parser)
    given = parse(parser)
    found = compare_trunks(given, 0.5, BUNDLED_SIZE, LARGE_SIZE)
    report_trunks("step1_late", GOAL, given.bf16, found)


if __name__ == "__main__":
    main()
