"""mixharness: train one policy inside real, unmodified agent harnesses.

This is the public surface; a test pins `__all__`.
"""

from mixharness.component import Component, ComponentConfig
from mixharness.engine import (
    EngineTokenizer,
    GenerateRequest,
    Generation,
    InferenceEngine,
    Sampling,
    SamplingCancelled,
)
from mixharness.errors import (
    ConfigError,
    MixHarnessError,
    PluginError,
    ProgramMissingError,
    RolloutError,
    TemplateError,
)
from mixharness.harness import CallIdentity, Harness, Program, RequestView, Session
from mixharness.hookspecs import hookimpl
from mixharness.optimizer import CriticSettings, Edges, LossOutput, Optimizer
from mixharness.proxy.rules import MatchRule, Recall, RenderRule
from mixharness.sandbox import ExecResult, Sandbox, SandboxBackend, SandboxSpec, Workspace
from mixharness.task_source import TaskSource
from mixharness.tracker import Tracker
from mixharness.types import (
    CallRole,
    Failure,
    FailureClass,
    FailureKind,
    GroupKey,
    HarnessExit,
    Limits,
    ModelCall,
    Rollout,
    RolloutGroup,
    Score,
    Service,
    Task,
    TokenTree,
    VersionSpan,
)
from mixharness.verifier import Verifier

__version__ = "0.1.0"

__all__ = [
    "CallIdentity",
    "CallRole",
    "Component",
    "ComponentConfig",
    "ConfigError",
    "CriticSettings",
    "Edges",
    "EngineTokenizer",
    "ExecResult",
    "Failure",
    "FailureClass",
    "FailureKind",
    "GenerateRequest",
    "Generation",
    "GroupKey",
    "Harness",
    "HarnessExit",
    "InferenceEngine",
    "Limits",
    "LossOutput",
    "MatchRule",
    "MixHarnessError",
    "ModelCall",
    "Optimizer",
    "PluginError",
    "Program",
    "ProgramMissingError",
    "Recall",
    "RenderRule",
    "RequestView",
    "Rollout",
    "RolloutError",
    "RolloutGroup",
    "Sampling",
    "SamplingCancelled",
    "Sandbox",
    "SandboxBackend",
    "SandboxSpec",
    "Score",
    "Service",
    "Session",
    "Task",
    "TaskSource",
    "TemplateError",
    "TokenTree",
    "Tracker",
    "Verifier",
    "VersionSpan",
    "Workspace",
    "hookimpl",
]
