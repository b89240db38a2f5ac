"""One session writes, another reviews. The writer gets the review until the reviewer approves, at most three times.

python write_and_review.py ~/src/shop "Add a test for the empty cart"
"""

import asyncio
import sys

from claude_code_mcp import Service, SessionOptions

ROUNDS = 3
REVIEW = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "comments": {"type": "string"}},
    "required": ["approved", "comments"],
}
CRITERIA = "Review the uncommitted changes of this repository: correctness first, then tests, then style."


async def write_and_review(service: Service, directory: str, task: str, criteria: str = CRITERIA) -> list[str]:
    """Returns the comments of every review; the last one approves, unless there are ROUNDS of them."""
    writer = await service.create(task, SessionOptions(cwd=directory, permission_mode="acceptEdits", ask=False))
    await writer.outcome()
    # The reviewer reads only. Its answer is JSON that fits the schema.
    reads = SessionOptions(cwd=directory, ask=False, disallowed_tools=("Edit", "Write"), output_schema=REVIEW)
    reviewer = await service.create(criteria, reads)
    comments: list[str] = []
    while True:
        review = (await reviewer.outcome()).structured_output or {"approved": False, "comments": "no review"}
        comments.append(review["comments"])
        if review["approved"] or len(comments) == ROUNDS:
            return comments
        writer = await service.send(writer.session.id, f"A reviewer says: {review['comments']}")
        await writer.outcome()
        reviewer = await service.send(reviewer.session.id, "The author has changed the code. Review it again.")


async def main(directory: str, task: str) -> None:
    async with Service() as service:
        for number, comments in enumerate(await write_and_review(service, directory, task), 1):
            print(f"Review {number}: {comments}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
