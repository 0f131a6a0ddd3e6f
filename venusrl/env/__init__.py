"""The environment author's kit: write a class, its tools and its rewards; standard library only.

Everything an author needs is exported here. The modules below it are the platform's business.
"""

from venusrl.env.environment import Environment, read_tasks
from venusrl.env.judge import JudgeClient, JudgeUnavailable
from venusrl.env.messages import (
    Finish,
    Json,
    Message,
    NewHistory,
    Role,
    Rollout,
    Task,
    ToolCall,
    Turn,
)
from venusrl.env.rewards import group_reward, metric, reward
from venusrl.env.sandbox import ExecResult, Sandbox, SandboxError
from venusrl.env.tools import ToolError, tool
from venusrl.env.values import Unscorable, Value

__all__ = [
    "Environment",
    "ExecResult",
    "Finish",
    "Json",
    "JudgeClient",
    "JudgeUnavailable",
    "Message",
    "NewHistory",
    "Role",
    "Rollout",
    "Sandbox",
    "SandboxError",
    "Task",
    "ToolCall",
    "ToolError",
    "Turn",
    "Unscorable",
    "Value",
    "group_reward",
    "metric",
    "read_tasks",
    "reward",
    "tool",
]
