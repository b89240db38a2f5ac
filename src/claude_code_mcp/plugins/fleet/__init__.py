"""Many machines behind one address, on NATS JetStream.

NATS provides membership, leases, routing, durable logs and fan-out. This package adds what a session needs: which
machine runs it, who may write to it, and how its conversation and working tree move to another machine. Nothing of this
package is imported unless a fleet is configured; it needs the extra `claude-code-mcp[fleet]`.
"""
