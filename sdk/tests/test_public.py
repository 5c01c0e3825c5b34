"""The public surface: what `import mixharness` promises."""

import mixharness

EXPECTED = """
CallIdentity CallRole Component ComponentConfig ConfigError CriticSettings Edges EngineTokenizer
ExecResult Failure FailureClass FailureKind GenerateRequest Generation GroupKey Harness HarnessExit
InferenceEngine Limits LossOutput MatchRule MixHarnessError ModelCall Optimizer PluginError Program
ProgramMissingError Recall RenderRule RequestView Rollout RolloutError RolloutGroup Sampling
SamplingCancelled Sandbox SandboxBackend SandboxSpec Score Service Session Task TaskSource
TemplateError TokenTree Tracker Verifier VersionSpan Workspace hookimpl
"""


def test_all_is_pinned() -> None:
    assert mixharness.__all__ == EXPECTED.split()


def test_every_name_exists() -> None:
    assert [name for name in mixharness.__all__ if getattr(mixharness, name, None) is None] == []
