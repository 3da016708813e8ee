"""Dataclasses of the config tree, one file a component. Import them from here."""

from relax.config.schema.algorithm import (
    AdvantageConfig,
    AlgorithmConfig,
    DistillConfig,
    GrpoConfig,
    ImportanceConfig,
    KlConfig,
    LossConfig,
    OpdConfig,
    OpsdConfig,
    SdpoConfig,
)
from relax.config.schema.data import DataConfig, RewardConfig
from relax.config.schema.enums import (
    DataKind,
    DType,
    EngineKind,
    ImportanceKind,
    KlKind,
    LauncherKind,
    LossKind,
    LrScheduleKind,
    ModeKind,
    ModelFamily,
    ModelInit,
    OldPolicy,
    Recompute,
    Reduction,
    RewardKind,
    TeacherKind,
    WandbMode,
)
from relax.config.schema.model import ArchConfig, ModelConfig, ParallelismConfig, PathsConfig
from relax.config.schema.rollout import EvalConfig, EvalSetConfig, RolloutConfig
from relax.config.schema.run import (
    LauncherConfig,
    ModeConfig,
    RunConfig,
    TeacherConfig,
    TrackingConfig,
    WandbConfig,
)
from relax.config.schema.train import (
    DebugConfig,
    EvidenceConfig,
    LrScheduleConfig,
    PerfConfig,
    SaveConfig,
    SftConfig,
    StopConfig,
    TrainConfig,
)

__all__ = [
    "AdvantageConfig", "AlgorithmConfig", "ArchConfig", "DType", "DataConfig", "DataKind", "DebugConfig",
    "DistillConfig", "EngineKind", "EvalConfig", "EvalSetConfig", "EvidenceConfig", "GrpoConfig", "ImportanceConfig",
    "ImportanceKind", "KlConfig", "KlKind", "LauncherConfig", "LauncherKind", "LossConfig", "LossKind",
    "LrScheduleConfig", "LrScheduleKind", "ModeConfig", "ModeKind", "ModelConfig", "ModelFamily", "ModelInit",
    "OldPolicy", "OpdConfig", "OpsdConfig", "ParallelismConfig", "PathsConfig", "PerfConfig", "Recompute", "Reduction",
    "RewardConfig", "RewardKind", "RolloutConfig", "RunConfig", "SaveConfig", "SdpoConfig", "SftConfig", "StopConfig",
    "TeacherConfig", "TeacherKind", "TrackingConfig", "TrainConfig", "WandbConfig", "WandbMode",
]
