"""What to send: shapes of traffic whose prompts share prefixes, made up or recorded."""

from prefixcache_client.load.workloads.agents import Agents
from prefixcache_client.load.workloads.amount import Amount
from prefixcache_client.load.workloads.chat import Chat
from prefixcache_client.load.workloads.limits import Limits, PromptTooLongError
from prefixcache_client.load.workloads.shared_prefix import SharedPrefix
from prefixcache_client.load.workloads.tenants import Tenants
from prefixcache_client.load.workloads.text_sessions import TextSessions
from prefixcache_client.load.workloads.trace import RecordedTrace

__all__ = [
    "Agents",
    "Amount",
    "Chat",
    "Limits",
    "PromptTooLongError",
    "RecordedTrace",
    "SharedPrefix",
    "Tenants",
    "TextSessions",
]
