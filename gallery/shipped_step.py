"""A training step learns eight digits here, is shipped, and learns two more without needle.

The step, with dropout and AdamW, is compiled as a whole and exported. A process with only NumPy and
needle's runtime continues the training on all ten digits and saves its state; a second one loads
the state and continues. A third process trains without a break and ends in a bitwise equal state.

Source: van de Ven and Tolias, "Three scenarios for continual learning" (2019), on classes that come
later. Here the new data also contain the old classes, so that the model does not forget them.
Measured: 77.5 % test accuracy when it is shipped, 92.7 % after 300 more batches.
"""

import subprocess
import sys

import numpy as np
from matplotlib.figure import Figure

import needle as ndl
import needle_tvm
from common import Lesson, predict
from needle import nn

# Trains on some batches, from the state in a file or from the shipped state.
DEVICE = """
import sys
import numpy as np
import needle_runtime
folder, first, last, start, end = sys.argv[1:]
step, reader = needle_runtime.load(f"{folder}/step"), needle_runtime.load(f"{folder}/reader")
data = np.load(f"{folder}/data.npz")
if start:
    step.load_state(np.load(f"{folder}/{start}.npz"))
names, answers = [each["name"] for each in reader.params], []
for number in range(int(first), int(last)):
    step(data["x"][number], data["y"][number])
    state = step.state()
    reader.set_params({name: state[f"model.{name}"] for name in names})
    answers.append(reader(data["x_test"]).argmax(1))
np.savez(f"{folder}/{end}.npz", **step.state())
np.save(f"{folder}/{end}.npy", answers)
assert "needle" not in sys.modules and "tvm" not in sys.modules
"""

lesson = Lesson(steps=300)
folder = lesson.options.out / f"{lesson.name}_device"
train, test = ndl.data.DigitsDataset(train=True), ndl.data.DigitsDataset(train=False)
first, second = np.array_split(lesson.random.permutation(len(train.x)), 2)
# Indices of images, 32 for each batch.
here = lesson.random.choice(first[train.y[first] < 8], (lesson.steps, 32))
later = lesson.random.choice(second, (lesson.steps, 32))

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))
optimizer = ndl.optim.AdamW(model.parameters(), lr=2e-3)


@needle_tvm.jit
def step(x, y):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


answers = []
for number in lesson.training():
    lesson.show(loss=step(train.x[here[number]], train.y[here[number]]).item())
    answers.append(predict(model, test.x).argmax(1))

step.export(folder / "step")
needle_tvm.compile(model.eval(), test.x).export(folder / "reader")
np.savez(folder / "data.npz", x=train.x[later], y=train.y[later], x_test=test.x)
middle, end = str(lesson.steps // 2), str(lesson.steps)
for arguments in (("0", middle, "", "a"), (middle, end, "a", "b"), ("0", end, "", "whole")):
    subprocess.run([sys.executable, "-c", DEVICE, str(folder), *arguments], check=True)
resumed, whole = np.load(folder / "b.npz"), np.load(folder / "whole.npz")
assert all(np.array_equal(resumed[name], whole[name]) for name in whole.files)
model.load_state_dict({name: whole[f"model.{name}"] for name in model.state_dict()})

answers += [*np.load(folder / "a.npy"), *np.load(folder / "b.npy")]
right = np.array(answers) == test.y
axes = Figure(figsize=(5, 2.6)).subplots()
for label, digits in (("digits 0 to 7", test.y < 8), ("digits 8 and 9", test.y >= 8)):
    axes.plot(right[:, digits].mean(1), label=label)
axes.set(xlabel="batch", ylabel="accuracy", ylim=(0, 1.2))
for begin, text in ((0, "trained here"), (1, "shipped"), (1.5, "loaded again")):
    axes.axvline(begin * lesson.steps, color="grey", linewidth=0.8)
    axes.text(begin * lesson.steps, 1.1, f" {text}")
axes.legend(loc=(0.12, 0.4))

lesson.finish(
    model,
    [test.x[:64]],
    axes.figure,
    metric="accuracy",
    score=right[-1].mean(),
    baseline=right[lesson.steps - 1].mean(),
    against="as it was shipped",
)
