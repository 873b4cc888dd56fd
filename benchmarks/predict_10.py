"""ROW on 10 tasks of CIFAR-100, asked with all tasks and with a shortlist: time, and what it does to accuracy.

    python benchmarks/predict_10.py [--data ../shared/data/cifar100.npz] [--adapt-last 2] [--shortlist 3]

Adapters stand in all stages, as in the paper, and a pass of one task costs as much as one of the bare trunk. With
--adapt-last 2, our default, tasks share most of the trunk: all of them are cheaper, and a shortlist gains less.
Both sides have closed gates cut out. Prints one JSON line.
"""

from predicting import measure

if __name__ == "__main__":
    measure("predict_10", __doc__, tasks=10, goal=2.5)
