"""The tables of a recipe. Plugins add their own keys by subclassing one of these as `Params` in their file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Count = Annotated[int, Field(ge=1, le=10**12)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Distribution = Literal["uniform", "rotation", "explosion", "gaussian_mixture"]
Mix = Annotated[tuple[Distribution, ...], Field(max_length=16)]
Normalise = Literal["auto", "fit", "published"]
Size = Annotated[int, Field(ge=2, le=10_000)]


def _rates(given: Any) -> Any:
    """One number or several as a tuple, empty where there is no bias; anything else is refused."""
    if given == "auto":
        return given
    rates = tuple(given) if isinstance(given, tuple | list) else (given,)
    good = all(isinstance(rate, int | float) and not isinstance(rate, bool) and 0 <= rate <= 100 for rate in rates)
    if not good or len(rates) > 128:
        raise ValueError('must be a number from 0 to 100, a list of such numbers, or "auto"')
    return tuple(map(float, rates)) if any(rates) else ()


DistanceBias = Annotated[tuple[float, ...] | Literal["auto"], BeforeValidator(_rates)]

Names = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=200)], ...],
    BeforeValidator(lambda given: (given,) if isinstance(given, str) else given),
]
"""One name or several."""


class Section(BaseModel):
    """One table of a recipe: frozen, no unknown keys, no NaN."""

    model_config = ConfigDict(
        frozen=True, strict=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )
    added: ClassVar[tuple[str, ...]] = ()
    """A class's own keys that came after results had been stored. At their defaults they are no part of a result's
    identity."""

    named: ClassVar[tuple[str, ...]] = ()
    """Keys that name artifacts: those are a result's inputs, and enter its identity by their content."""

    def identity(self) -> dict[str, Any]:
        """What of this table makes a result new, as plain JSON values."""
        kept = self.model_dump(mode="json", exclude=set(self.named))
        fields = type(self).model_fields
        added = {key for base in type(self).__mro__ for key in vars(base).get("added", ())}
        return {k: v for k, v in kept.items() if k not in added or getattr(self, k) != fields[k].default}


class ModeSection(Section):
    """A table whose key `mode` says whose defaults the keys have that it leaves out."""

    by_mode: ClassVar[Mapping[str, Mapping[str, Any]]]
    """mode -> key -> default, where that is not the field's own."""

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_mode(cls, raw: Any) -> Any:
        if not isinstance(raw, Mapping):
            return raw
        mode = raw.get("mode", cls.model_fields["mode"].default)
        return {**cls.by_mode.get(mode, {}), **raw} if isinstance(mode, str) else raw


class ProblemSection(Section):
    """Which routing problem, and how its instances are drawn."""

    default_policy: ClassVar[str] = "pomo"
    """The policy of a recipe that names none."""
    copies: ClassVar[range] = range(1, 9)
    """How many copies of an instance a policy may be shown: a square has eight symmetries."""
    usual_copies: ClassVar[int] = 8
    """How many it is shown where nobody says."""
    kind: str = Field("tsp", description="problem plugin: `cnf list problems`")
    n: Size = Field(100, description="nodes to visit (customers, for problems with a depot)")
    dist: Distribution = Field("uniform", description="how the nodes of generated instances lie on the map")


class PolicySection(Section):
    """Which network."""

    kind: str = Field("pomo", description="policy plugin: `cnf list policies`")


class LossSection(Section):
    """What a step descends, for tables of trainings that learn from their own rollouts."""

    added: ClassVar[tuple[str, ...]] = ("loss", "leader_weight", "preference_scale")
    loss: Literal["reinforce", "leader", "preference"] = Field(
        "reinforce", description="advantage of each rollout, extra weight on the best, or which of two is better"
    )
    leader_weight: float = Field(2.0, ge=1, le=1000, description="leader: the best rollout's advantage times this")
    preference_scale: float = Field(
        0.05, gt=0, le=1000, description="preference: what log-probability differences are multiplied by"
    )


class PretrainSection(LossSection):
    """How the policy is trained from scratch, on clean instances."""

    added: ClassVar[tuple[str, ...]] = (
        "schedule", "warmup", "early_starts", "early_share", "warm_start", "label_solver", "validation_augment",
        "mix", "sizes_mixed", "label_share", "label_end", "rollout_weight",
    )  # fmt: skip
    named: ClassVar[tuple[str, ...]] = ("labels",)
    instances: Count = Field(1_000_000, description="training instances in total")
    batch_size: Count = Field(64, description="instances per optimizer step")
    lr: Positive = Field(1e-4, description="Adam's learning rate")
    weight_decay: float = Field(1e-6, ge=0, description="L2 term inside Adam")
    decay_last: Share = Field(0.1, description="share of the run, at its end, trained at the lower rate")
    decay_factor: Share = Field(0.1, description="what the learning rate is multiplied by for that last part")
    grad_clip: float = Field(0.0, ge=0, description="largest gradient norm; 0 = no clipping, as published")
    epoch_instances: Count = Field(100_000, description="instances between two validations")
    validation_count: int = Field(200, ge=0, description="instances of the fixed validation set; 0 = none")
    validation_augment: int = Field(1, ge=1, le=128, description="copies of each of them, as evaluate.augment")
    sizes: tuple[Size, ...] = Field((), description="size curriculum: equal shares of the run at each of these n")
    sizes_mixed: bool = Field(False, description="every batch is of one of `sizes`, drawn at random, all along the run")
    mix: Mix = Field((), description="equal shares of every batch are drawn from each of these; none = problem.dist")
    schedule: Literal["last", "cosine", "linear"] = Field(
        "last", description="how the rate falls: in one step for the last part, or all along the run to decay_factor"
    )
    warmup: int = Field(0, ge=0, le=10**12, description="instances over which the rate first rises from 0")
    early_starts: int = Field(0, ge=0, le=10_000, description="rollouts per instance early in the run; 0 = all starts")
    early_share: Share = Field(0.5, description="share of the run, at its beginning, that has early_starts")
    warm_start: int = Field(0, ge=0, le=10**12, description="first instances that are trained on solver tours")
    label_solver: str = Field("auto", description="who solves those; auto = elkai for tsp, hgs for cvrp")
    labels: Names = Field((), description="labelled data sets to learn from: an id or alias, or a list (`cnf label`)")
    label_share: Share = Field(1.0, description="share of the run, at its beginning, that learns from labels alone")
    label_end: Share = Field(0.0, description="what labels count at the end, from 1 when own rollouts joined in")
    rollout_weight: Positive = Field(1.0, description="what own rollouts count at the end, from 0 when they joined in")
    seed: Seed = 1234


class AttackSection(Section):
    """How instances are made harder."""

    added: ClassVar[tuple[str, ...]] = ("distance_bias",)
    kind: str = Field("attribute", description="attack plugin: `cnf list attacks`")
    count: Count = Field(1000, description="clean instances to attack when a data set is made")
    distance_bias: DistanceBias = Field((), description="of the attacked policies, as evaluate.distance_bias")
    seed: Seed = 1234


class BudgetSection(Section):
    """Bounds on what an attack may change; all zero = none, as published."""

    radius: float = Field(
        default=0.0, ge=0, le=2, description="farthest a node may move (l2 per node, map widths); 0 = no bound"
    )
    demand: int = Field(default=0, ge=0, le=1000, description="most units a demand may change; 0 = no bound")
    nodes: int = Field(default=0, ge=0, le=10_000, description="most nodes that may change at all; 0 = all of them")

    @property
    def given(self) -> bool:
        """True when anything is bounded."""
        return self.radius > 0 or self.demand > 0 or self.nodes > 0


class TrainSection(Section):
    """How an ensemble is hardened."""

    added: ClassVar[tuple[str, ...]] = ("validation_augment", "keep", "mix")
    defence: str = Field("cnf", description="defence plugin: `cnf list defences`")
    models: int = Field(3, ge=1, le=64, description="M, copies of the pretrained policy trained together")
    instances: Count = Field(5_000_000, description="clean instances in total")
    batch_size: Count = Field(64, description="B, clean instances per step")
    mix: Mix = Field((), description="equal shares of every batch are drawn from each of these; none = problem.dist")
    lr: Positive = Field(1e-4, description="learning rate of every model")
    weight_decay: float = Field(1e-6, ge=0, description="L2 term inside Adam")
    decay_last: Share = Field(0.4, description="share of the run, at its end, trained at the lower rate")
    decay_factor: Share = Field(0.1, description="what the learning rate is multiplied by for that last part")
    optimizer: Literal["adam", "sgd"] = Field("adam", description="optimizer of the models")
    epoch_instances: Count = Field(100_000, description="clean instances between two validations")
    validation_count: int = Field(200, ge=0, description="instances of each validation set; 0 = none")
    validation_augment: int = Field(1, ge=1, le=128, description="copies of each of them, as evaluate.augment")
    keep: Literal["last", "best"] = Field(
        "last", description="the models as they are at the end, or as they were when validation found them best"
    )
    seed: Seed = 1234


class EvaluateSection(Section):
    """What is measured, and how hard the policy may try."""

    added: ClassVar[tuple[str, ...]] = ("distance_bias",)
    count: Count = Field(1000, description="instances per generated set")
    augment: int = Field(
        8,
        ge=1,
        le=128,
        description="copies per instance: 1 to 8; atsp: 1 to 128, and 16 where nothing is given",
    )
    decode: Literal["greedy", "sample"] = Field("greedy", description="how a rollout picks its moves")
    distance_bias: DistanceBias = Field(
        (), description="how much nearer nodes are preferred: a rate, a list (copies take turns), auto = by n; 0 = not"
    )
    solver: str = Field("auto", description="reference solver: `cnf solvers`")
    seed: Seed = 4321


class VisualizeSection(Section):
    """Which figures are drawn."""

    figures: tuple[str, ...] = Field((), description="figure kinds; empty = all that apply")
    count: int = Field(4, ge=1, le=64, description="instances shown per figure")


class RuntimeSection(Section):
    """Where and how fast it runs. Never part of an artifact's key."""

    device: str = Field("auto", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$", description="auto, cpu, cuda, cuda:1, mps")
    threads: int = Field(0, ge=0, le=4096, description="CPU threads; 0 = as torch chooses")
    chunk: int = Field(0, ge=0, description="instances per forward pass in evaluation; 0 = chosen from n")
    engine: Literal["auto", "native", "torch"] = Field("auto", description="rollout engine")
    precision: Literal["float32", "bfloat16"] = Field("float32", description="bfloat16: mixed, pretraining on CUDA")
    compile: bool = Field(False, description="torch.compile the encoder in pretraining on CUDA")
    tensorboard: bool = Field(False, description="also write TensorBoard events (extra `tensorboard`)")
