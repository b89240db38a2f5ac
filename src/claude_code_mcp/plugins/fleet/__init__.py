"""Many machines behind one address, on NATS JetStream.

Membership, leases, routing, durable logs and fan-out are those of NATS. Ours is what a session needs on top: which
machine runs it, who may write to it, and how its conversation and its working tree come to another machine. Nothing of
this package is imported where no fleet is configured; it needs the extra `claude-code-mcp[fleet]`.
"""
