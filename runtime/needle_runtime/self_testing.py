"""The self test: run an artifact's golden example on this machine."""

from __future__ import annotations

from dataclasses import dataclass

from needle_runtime.artifact.layout import GOLDEN
from needle_runtime.artifact.tolerance import compare
from needle_runtime.errors import ArtifactError, InputError
from needle_runtime.program import Program


@dataclass(frozen=True)
class SelfTest:
    """The result of a self test: each output's distance from its recorded value.

    With examples of several sizes, the outputs of all examples are listed in turn. `differences`
    are relative to the recorded output's largest magnitude, and infinite if NaNs or infinities are
    at different indices; `tolerances` are the manifest's. `source` says what computed the recorded
    outputs: "eager", the model itself, or "compiled" if the model was not available.
    """

    differences: tuple[float, ...]
    tolerances: tuple[float, ...]
    source: str

    @property
    def passed(self) -> bool:
        """Whether every output is within its tolerance."""
        pairs = zip(self.differences, self.tolerances, strict=True)
        return all(difference <= tolerance for difference, tolerance in pairs)


def self_test(program: Program) -> SelfTest:
    """Run the golden example of the artifact that `program` was loaded from; compare its results.

    Raises ArtifactError if the artifact carries no example, or if the example does not fit it.
    """
    artifact = program.artifact
    example = artifact.golden()
    if example is None:
        raise ArtifactError(f"{artifact.path}: carries no {GOLDEN}")
    differences: list[float] = []
    tolerances: list[float] = []
    for each in (example, *example.others):
        try:
            results = program.run(each.inputs)
        except InputError as error:
            raise ArtifactError(f"{artifact.path / GOLDEN}: {error}") from error
        pairs = zip(each.outputs, results, strict=True)
        differences += [compare(wanted, found).relative for wanted, found in pairs]
        tolerances += each.tolerances
    return SelfTest(tuple(differences), tuple(tolerances), example.source)
