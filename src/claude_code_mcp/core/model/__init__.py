"""Pure data: what a session, a turn, an event and a question are. No I/O, no asyncio."""
