"""The whole config tree: one `RunConfig` a run."""

from __future__ import annotations

from dataclasses import dataclass, field

from relax.config.schema.algorithm import AlgorithmConfig
from relax.config.schema.data import DataConfig, RewardConfig
from relax.config.schema.enums import LauncherKind, ModeKind, TeacherKind, WandbMode
from relax.config.schema.model import ModelConfig, ParallelismConfig, PathsConfig
from relax.config.schema.rollout import EvalConfig, RolloutConfig
from relax.config.schema.train import DebugConfig, EvidenceConfig, PerfConfig, SaveConfig, TrainConfig


@dataclass
class ModeConfig:
    """How rollout and training share time and devices."""

    kind: ModeKind = ModeKind.colocate
    """`colocate` (take turns), `hybrid` (own devices, bounded staleness) or `async` (streaming)."""
    max_staleness: int = 0
    """Published versions a sample's oldest token may be behind."""
    offload: bool | None = None
    """Trainer and engines leave the GPU memory to each other between turns; derived: on for colocate on GPUs."""


@dataclass
class TeacherConfig:
    """Where teacher log-probs come from."""

    kind: TeacherKind = TeacherKind.none
    """`none`, a copy inside the trainer (`frozen`, `ema`, `live`, `checkpoint`) or `sglang` servers."""
    source: str | None = None
    """Model folder of a `checkpoint` or `sglang` teacher."""
    num_gpus: int = 0
    """GPUs of `sglang` teachers."""
    ema_rate: float = 0.05
    """Share of the student that enters the teacher after each optimizer step."""


@dataclass
class WandbConfig:
    """Weights & Biases."""

    mode: WandbMode = WandbMode.disabled
    """`disabled`, `offline` (files in the run directory) or `online`."""
    project: str = "relax"
    """Project."""
    entity: str | None = None
    """Team or user."""
    group: str | None = None
    """Group; the run's name when absent."""


@dataclass
class TrackingConfig:
    """Where metrics go; `metrics.jsonl` in the run directory is always written."""

    progress: bool = True
    """Live progress display on the terminal."""
    rollout_samples: int | None = None
    """Samples a rollout written to `rollouts/`; all when absent."""
    tensorboard: bool = False
    """Write TensorBoard event files into the run directory."""
    wandb: WandbConfig = field(default_factory=WandbConfig)
    """Weights & Biases."""


@dataclass
class LauncherConfig:
    """Where the run's Ray actors live."""

    kind: LauncherKind = LauncherKind.local
    """`local` starts Ray on this machine; the others join or create a cluster."""
    address: str | None = None
    """Address `host:port` of a running Ray cluster, for `kind=ray`; `auto` or absent: the one of this machine."""
    num_nodes: int = 1
    """Nodes of the cluster."""
    num_gpus: int = 0
    """GPUs a node; 0 runs everything on CPUs (gloo)."""
    num_cpus: int | None = None
    """CPUs a node that slurm and kuberay ask for; what the run's processes need when absent."""
    num_threads: int = 1
    """CPU threads a process (OpenMP and torch). Tiny models are fastest with 1."""
    object_store_gib: float = 1.0
    """Size of Ray's shared-memory object store."""
    start_timeout_seconds: float = 180.0
    """Longest wait for Ray and for the actors to come up."""
    time_limit: str = "24:00:00"
    """Longest time of a submitted job, `hours:minutes:seconds` (slurm, kuberay)."""
    partition: str | None = None
    """Slurm partition."""
    account: str | None = None
    """Slurm account."""
    setup: str = ""
    """Shell line that a slurm job runs first; its exports reach every node. For example `. .venv/bin/activate`."""
    image: str = "relax:latest"
    """Container image of a kuberay job (the Dockerfile's)."""
    namespace: str = "default"
    """Kubernetes namespace of a kuberay job."""
    volume_claim: str | None = None
    """PersistentVolumeClaim of a kuberay job, mounted on every node: run directories, models and data live there."""
    shared_dir: str | None = None
    """Folder every node sees, where a submitted job works: relative paths hang from it. When absent, the folder of the
    submission (slurm) or `/mnt/relax` (kuberay, where the volume is mounted)."""


@dataclass
class RunConfig:
    """One run, complete."""

    name: str = "relax"
    """Name of the run and of its directory."""
    seed: int = 0
    """Seed of weights, data order and sampling."""
    resume: str | None = None
    """Run directory to go on with."""
    paths: PathsConfig = field(default_factory=PathsConfig)
    """Root folders."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """Policy model."""
    parallelism: ParallelismConfig = field(default_factory=ParallelismConfig)
    """Layout of the trainer."""
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    """Algorithm."""
    perf: PerfConfig = field(default_factory=PerfConfig)
    """Performance toggles."""
    mode: ModeConfig = field(default_factory=ModeConfig)
    """Run mode."""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    """Generation."""
    data: DataConfig = field(default_factory=DataConfig)
    """Training prompts."""
    reward: RewardConfig = field(default_factory=RewardConfig)
    """Scoring."""
    teacher: TeacherConfig = field(default_factory=TeacherConfig)
    """Teacher for distillation."""
    eval: EvalConfig = field(default_factory=EvalConfig)
    """Evaluation."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """Optimization."""
    save: SaveConfig = field(default_factory=SaveConfig)
    """Checkpoints."""
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    """Metrics and their sinks."""
    launcher: LauncherConfig = field(default_factory=LauncherConfig)
    """Cluster."""
    evidence: EvidenceConfig = field(default_factory=EvidenceConfig)
    """Comparison of runs."""
    debug: DebugConfig = field(default_factory=DebugConfig)
    """Fault finding."""
