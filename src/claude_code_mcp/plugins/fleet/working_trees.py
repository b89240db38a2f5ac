"""Saves a session's working tree as git objects in the object store `fleet_trees`, and restores it.

`save` takes the current tree: the checked-out commit and branch, the index, and the files with all uncommitted and
untracked changes. Ignored files are included only if `.worktreeinclude` names them. It changes nothing that belongs to
the user: not the index, HEAD, a branch or any other ref. Index and files become two commits without a ref. One pack
holds them with every commit that no remote has, except objects that an earlier save has stored.

`restore` restores branch, index and files of a directory. It refuses a directory with any other content: files that are
not in a clean checkout, a branch at a commit that the saved one does not contain, a merge in progress. Nothing is
merged and nothing is overwritten.

| part of a tree | result |
| --- | --- |
| modes (executable), links, renames, empty files | restored |
| empty directories | not saved: git does not store them |
| submodules | the commit in the index is restored; their contents are not saved |
| nested repositories that are not submodules | omitted and listed (`TreeRef.left_out`) |
| a merge, rebase or cherry-pick in progress, unmerged files | `save` refuses |
| `assume-unchanged`, `skip-worktree` and `intent-to-add` in the index | the files are restored, these flags are not |
| filters of the repository's own configuration | not run: `save` refuses if one applies to a file |

The reference includes a digest over names, modes and bytes of all files. `restore` uses it to verify the tree: for
example, if line-ending conversion is configured differently on this machine, the tree differs and is refused.
"""

import asyncio
import contextlib
import hashlib
import os
import re
import stat
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, BaseModel, ConfigDict

from ...core import private_files
from ...core.errors import InvalidArgument
from ...core.git import Git, Reply, Repository, find_repository
from . import names
from .connection import FleetConnection
from .nats_client import ObjectStore
from .transcripts import answering

MAX_BYTES: Final = 512 << 20
"""Maximum size of a stored pack, in bytes."""
_INCLUDE = ".worktreeinclude"
_MAX_PATTERNS, _MAX_INCLUDE = 500, 64 << 10
_MAX_URL = 2000
_PACK_SECONDS = 600.0
"""Seconds to read one pack of a tree from the fleet."""
_UNDER_WAY = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge", "rebase-apply", "BISECT_LOG")
_IDENTITY = {
    "GIT_AUTHOR_NAME": "claude-code-mcp",
    "GIT_AUTHOR_EMAIL": "fleet@claude-code-mcp.invalid",
    "GIT_AUTHOR_DATE": "2000-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "claude-code-mcp",
    "GIT_COMMITTER_EMAIL": "fleet@claude-code-mcp.invalid",
    "GIT_COMMITTER_DATE": "2000-01-01T00:00:00Z",
}
"""Equal trees become equal commits, so that an unchanged tree is stored once."""
_NO_CONVERSION = {
    "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "core.autocrlf",
    "GIT_CONFIG_VALUE_0": "false",
    "GIT_CONFIG_KEY_1": "core.safecrlf",
    "GIT_CONFIG_VALUE_1": "false",
}


class TreeRefused(InvalidArgument):
    """A tree cannot be saved or restored exactly. Nothing was changed."""


def _inside(path: str) -> str:
    """A path that cannot leave the checkout, because another machine's data is a claim."""
    if os.path.isabs(path) or ".." in path.split("/") or "\0" in path:
        raise ValueError("leads out of the tree")
    return path


def _no_option(name: str) -> str:
    """A name that git cannot mistake for an option."""
    if name.startswith("-") or not name.isprintable():
        raise ValueError("is not a name")
    return name


GitName = Annotated[str, AfterValidator(_no_option)]


class TreeRef(BaseModel):
    """A saved tree."""

    # Fields of later versions are ignored: see `records.py`.
    model_config = ConfigDict(extra="ignore", frozen=True)

    head: GitName | None
    """The checked-out commit; None before the first commit."""
    branch: GitName | None
    """The checked-out branch; None for a detached HEAD."""
    index: GitName
    """A commit whose tree is the index."""
    files: GitName
    """A commit whose tree is the working tree."""
    digest: str
    packs: tuple[str, ...]
    """The names of the packs in the object store, in the order in which they are needed."""
    needs: tuple[GitName, ...] = ()
    """Commits that a remote has and no pack contains."""
    remotes: tuple[str, ...] = ()
    """The names of these remotes."""
    remote_url: str = ""
    """The remote's URL without user name and password; empty without a remote."""
    base: str = ""
    """The newest commit of the history that the remote has, if known."""
    left_out: tuple[str, ...] = ()
    below: Annotated[str, AfterValidator(_inside)] = "."
    """The requested directory, relative to the top of the checkout."""

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """The tree in a document of the fleet. Raises TreeRefused if it is invalid."""
        try:
            return cls.model_validate(stored)
        except ValueError:
            raise TreeRefused("The saved tree is damaged: its description is inconsistent.") from None


class TreeStore:
    """Saves and restores trees. `git` belongs to the sessions' home, so that it runs where sessions do."""

    def __init__(self, connection: FleetConnection, complete_below: int = 0) -> None:
        """The history of a repository smaller than `complete_below` bytes is stored with the tree, so that it can be
        restored anywhere. For other repositories, only commits that no remote has are stored."""
        self._connection = connection
        self._complete_below = complete_below
        self._objects: ObjectStore | None = None

    async def save(self, git: Git, directory: str, name: str, previous: TreeRef | None = None) -> TreeRef:
        """Stores the tree of a directory. `name` is a token for the session; `previous` is its last stored tree. Raises
        TreeRefused if it cannot be saved exactly; FleetUnavailable if NATS does not answer."""
        checkout = await _Checkout.find(git, directory)
        await checkout.check_saveable()
        head, branch = await checkout.head(), await checkout.branch()
        index = await checkout.commit(await checkout.index_tree(), head)
        files, left_out, digest = await checkout.files_tree()
        work = await checkout.commit(files, head, index)
        stored = [previous.files] if previous is not None else []
        complete = await checkout.has_all_below(self._complete_below)
        remote_url = await checkout.remote_url()
        on_remote = await checkout.published(head) if remote_url or not complete else []
        published = [] if complete else on_remote
        packs = previous.packs if previous is not None else ()
        if previous is None or previous.files != work:
            pack = await checkout.pack([work], [*stored, *published])
            packs = (*packs, f"{names.token(name)}/{uuid.uuid4().hex}")
            with answering():
                await (await self._store()).put(packs[-1], pack)
        needs = tuple(dict.fromkeys((*(previous.needs if previous is not None else ()), *published)))
        remotes = tuple((await checkout.read("remote")).split()) if needs else ()
        return TreeRef(
            head=head, branch=branch, index=index, files=work, digest=digest, packs=packs, needs=needs,
            remotes=remotes, left_out=left_out, below=checkout.below, remote_url=remote_url,
            base=on_remote[0] if on_remote else "",
        )  # fmt: skip

    async def restore(
        self, git: Git, ref: TreeRef, directory: str, checkout_hook: Callable[[str], Awaitable[bool]] | None = None
    ) -> str:
        """Restores the saved tree into a directory that is empty, missing or a clean checkout; returns the directory in
        it that was requested at the save. `checkout_hook` may first fill an empty one with a checkout, and returns
        whether it did. Raises TreeRefused if the directory has anything that would be lost or mixed with the tree, or
        lacks commits that only a remote has; then it is unchanged. Raises FleetUnavailable if NATS does not answer."""
        directory = await asyncio.to_thread(os.path.realpath, directory)
        made = await asyncio.to_thread(_make_empty, directory)
        if made and checkout_hook is not None and await checkout_hook(directory):
            made = await asyncio.to_thread(_make_empty, directory)
        if made:
            here = Git(git.home, (*git.directories, directory))
            await _checked(here, "init", "--quiet", "--template=", directory, cwd=directory)
        checkout = await _Checkout.find(git, directory)
        if not made:
            await checkout.check_clean()
        missing = [commit for commit in ref.needs if not await checkout.has(commit)]
        if missing:
            raise TreeRefused(
                f"The saved tree is based on commits that are not in {directory} ({missing[0][:12]}). Fetch them "
                f"there first, from: {', '.join(ref.remotes) or 'the remote that has them'}."
            )
        if not await checkout.has(ref.files):
            for pack in ref.packs:
                with answering():
                    async with asyncio.timeout(_PACK_SECONDS):
                        found = await (await self._store()).get(pack)
                await checkout.add_pack(found.data or b"")
        # Only now: the checkout can be compared with the commits that were just received. No ref points to them.
        await checkout.check_follows(ref)
        await checkout.become(ref)
        # A directory without files is in no commit, so create it.
        inside = os.path.normpath(os.path.join(checkout.place.top, ref.below))  # noqa: ASYNC240 - looks at nothing
        await asyncio.to_thread(os.makedirs, inside, exist_ok=True)
        return inside

    async def _store(self) -> ObjectStore:
        if self._objects is None:
            self._objects = await self._connection.jetstream.object_store(names.TREES)
        return self._objects


@dataclass(frozen=True, slots=True)
class _Checkout:
    """One checkout of a repository."""

    git: Git
    place: Repository
    below: str
    """The requested directory, relative to the top."""

    @classmethod
    async def find(cls, git: Git, directory: str) -> "_Checkout":
        real = await asyncio.to_thread(os.path.realpath, directory)
        found = await asyncio.to_thread(find_repository, real, lambda _: True)
        if found is None:
            raise TreeRefused(f"{directory} is not in a checkout of a git repository: its files stay on this machine.")
        own = Git(git.home, tuple(dict.fromkeys((*git.directories, found.top, found.common_dir))))
        return cls(own, found, os.path.relpath(real, found.top))  # noqa: ASYNC240 - looks at nothing

    async def run(self, *arguments: str, **how: Any) -> Reply:
        return await self.git.run(*arguments, cwd=self.place.top, git_dir=self.place.git_dir, **how)

    async def read(self, *arguments: str, **how: Any) -> str:
        return await _checked(self.git, *arguments, cwd=self.place.top, git_dir=self.place.git_dir, **how)

    # -- checking -------------------------------------------------------------------------------------------------

    async def check_saveable(self) -> None:
        await asyncio.to_thread(self._check_not_under_way)
        if await self.read("ls-files", "--unmerged", "-z"):
            raise TreeRefused(f"{self.place.top} has unmerged files; finish the merge first.")
        shallow = (await self.read("rev-parse", "--is-shallow-repository")).strip() == "true"
        if shallow and not (await self.read("for-each-ref", "--count=1", "refs/remotes")).strip():
            raise TreeRefused(f"{self.place.top} is a shallow clone without a remote that has the rest of its history.")
        filters = await self.git.own_filters(self.place.top, self.place.git_dir)
        if filters:
            raise TreeRefused(f"The repository's own filters ({', '.join(filters)}) are not run: it cannot be saved.")

    def _check_not_under_way(self) -> None:
        for name in _UNDER_WAY:
            if private_files.exists_at(os.path.join(self.place.git_dir, name)):
                raise TreeRefused(
                    f"{self.place.top} is in the middle of another git operation ({name}); finish it first."
                )

    async def check_clean(self) -> None:
        await asyncio.to_thread(self._check_not_under_way)
        how = ("--porcelain", "-z", "--untracked-files=all", "--no-renames", "--ignore-submodules=dirty")
        changed = [line[3:] for line in (await self.read("status", *how)).split("\0") if line]
        if changed:
            raise TreeRefused(f"{self.place.top} has local changes ({_shown(changed)}). Nothing was changed.")

    async def check_follows(self, ref: TreeRef) -> None:
        """The checked-out commit, and a branch of the same name, must be ancestors of the saved ones."""
        here = [await self.head()]
        if ref.branch is not None:
            here.append(await self._commit_of(f"refs/heads/{ref.branch}"))
        for commit in filter(None, here):
            if commit == ref.head:
                continue
            if ref.head is None or (await self.run("merge-base", "--is-ancestor", commit, ref.head)).code:
                raise TreeRefused(
                    f"{self.place.top} is at {commit[:12]}, which is not the saved commit; nothing was changed."
                )

    async def has(self, commit: str) -> bool:
        # Including all objects that it needs: `-e` alone finds a commit whose files are missing.
        return not (await self.run("rev-parse", "--verify", "--quiet", f"{commit}^{{tree}}")).code

    async def head(self) -> str | None:
        return await self._commit_of("HEAD")

    async def branch(self) -> str | None:
        name = (await self.run("symbolic-ref", "--quiet", "HEAD")).output.strip()
        return name.removeprefix("refs/heads/") or None

    async def _commit_of(self, name: str) -> str | None:
        return (await self.run("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")).output.strip() or None

    async def has_all_below(self, size: int) -> bool:
        """Whether the repository has its whole history, in less than this many bytes."""
        if not size or (await self.read("rev-parse", "--is-shallow-repository")).strip() == "true":
            return False
        if not (await self.run("config", "--get", "extensions.partialClone")).code:
            return False
        counted = dict(line.split(": ", 1) for line in (await self.read("count-objects", "-v")).splitlines())
        return (int(counted["size"]) + int(counted["size-pack"])) * 1024 < size

    async def remote_url(self) -> str:
        """The URL of `origin` or of the first remote, without user name and password."""
        listed = (await self.read("remote")).split()
        if not listed:
            return ""
        name = "origin" if "origin" in listed else listed[0]
        url = (await self.run("config", "--get", f"remote.{name}.url")).output.strip()
        return re.sub(r"//[^/@]*@", "//", url, count=1)[:_MAX_URL]

    async def published(self, head: str | None) -> list[str]:
        """The newest commits of the history that a remote has."""
        if head is None:
            return []
        listed = await self.read("rev-list", "--boundary", head, "--not", "--remotes")
        boundary = [line[1:] for line in listed.split() if line.startswith("-")]
        on_remote = await self.read("rev-list", "--max-count=1", head, "--not", "--remotes")
        return boundary if on_remote.strip() else [head]

    # -- saving ---------------------------------------------------------------------------------------------------

    async def commit(self, tree: str, *parents: str | None) -> str:
        ancestry = [part for parent in parents if parent is not None for part in ("-p", parent)]
        return (await self.read("commit-tree", tree, *ancestry, "-m", "saved", variables=_IDENTITY)).strip()

    async def index_tree(self) -> str:
        """From a copy of the index, because `write-tree` writes into the index that it reads."""
        async with self._index(copied=True) as beside:
            return (await self.read("write-tree", variables=beside)).strip()

    async def files_tree(self) -> tuple[str, tuple[str, ...], str]:
        """All files that are not ignored, and ignored files that are included explicitly, as a tree; the omitted files;
        and a digest."""
        async with self._index(copied=False) as beside:
            names_, modules, nested = await self._names()
            listed = await asyncio.to_thread(_existing, self.place.top, names_)
            # Replaces entries where a directory became a file, or the reverse: the index is empty here.
            listing = os.fsencode("".join(f"{name}\0" for name in listed))
            if listed:
                how = ("update-index", "--add", "--replace", "-z", "--stdin")
                await self.read(*how, variables={**beside, **_NO_CONVERSION}, stdin=listing)
            if modules:
                info = os.fsencode("".join(f"{line}\0" for line in modules))
                await self.read("update-index", "-z", "--index-info", variables=beside, stdin=info)
            tree = (await self.read("write-tree", variables=beside)).strip()
        return tree, tuple(nested), await asyncio.to_thread(_digest, self.place.top, listed)

    async def _names(self) -> tuple[list[str], list[str], list[str]]:
        """The files, the index entries of submodules, and nested repositories that are not submodules."""
        staged = [line for line in (await self.read("ls-files", "--stage", "-z")).split("\0") if line]
        modules = [line for line in staged if line.startswith("160000 ")]
        tracked = [line.partition("\t")[2] for line in staged if not line.startswith("160000 ")]
        others = [name for name in (await self.read("ls-files", "-o", "-z", "--exclude-standard")).split("\0") if name]
        nested = [name for name in others if name.endswith("/")]
        untracked = [name for name in others if not name.endswith("/")]
        return [*tracked, *untracked, *await self._included()], modules, nested

    async def _included(self) -> list[str]:
        """The ignored files that `.worktreeinclude` names."""
        patterns = await asyncio.to_thread(_included_patterns, self.place.top)
        if not patterns:
            return []
        chosen = [f"--exclude={pattern}" for pattern in patterns]
        wanted = (await self.read("ls-files", "-o", "-i", "-z", *chosen)).split("\0")
        ignored = set((await self.read("ls-files", "-o", "-i", "-z", "--exclude-standard")).split("\0"))
        return [name for name in wanted if name and name in ignored and not name.endswith("/")]

    async def pack(self, wanted: Sequence[str], without: Sequence[str]) -> bytes:
        """A self-contained pack of these commits with everything that the others lack."""
        place = os.path.join(self.place.git_dir, f"saved-{uuid.uuid4().hex}")
        revisions = "".join(f"{commit}\n" for commit in [*wanted, *(f"^{commit}" for commit in without)])
        written: list[str] = []
        try:
            printed = await self.read("pack-objects", "--revs", "--quiet", place, stdin=revisions.encode())
            written = [f"{place}-{printed.strip()}.{kind}" for kind in ("pack", "idx", "rev")]
            return await asyncio.to_thread(_read_whole, written[0])
        finally:
            for path in written:
                with contextlib.suppress(OSError):
                    await asyncio.to_thread(private_files.remove_at, path)

    # -- restoring ------------------------------------------------------------------------------------------------

    async def add_pack(self, data: bytes) -> None:
        """Adds objects to the repository. Nothing refers to them yet."""
        place = os.path.join(self.place.common_dir, "objects", "pack", f"pack-{hashlib.sha1(data).hexdigest()}.pack")  # noqa: S324 - a name

        def write() -> None:
            with contextlib.suppress(OSError):
                private_files.make_directory_at(os.path.dirname(place))
            with open(private_files.open_at(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
                file.write(data)

        if await asyncio.to_thread(private_files.exists_at, place.removesuffix("pack") + "idx"):
            return  # a pack that was stored earlier
        await asyncio.to_thread(write)
        reply = await self.run("index-pack", place)
        if reply.code:
            await asyncio.to_thread(private_files.remove_at, place)
            raise TreeRefused(f"The saved tree is damaged: {reply.reason}")

    async def become(self, ref: TreeRef) -> None:
        """Restores files, then index, then branch: until the last step the branch shows that it is not done."""
        for commit in (ref.files, ref.index):
            if not await self.has(commit):
                raise TreeRefused("The saved tree is not complete.")
        now = await self.head()
        base = [now] if now is not None else []
        # With both trees git refuses to overwrite an unknown file, and removes files that are gone.
        how = ("read-tree", "-m", "-u", "--no-recurse-submodules", *base, ref.files)
        await self.read(*how, variables=_NO_CONVERSION)
        await self.read("read-tree", "--reset", ref.index)
        # Refreshes the file times in the index. The exit code reports files that differ from it, which is expected.
        await self.run("update-index", "-q", "--refresh", "--ignore-submodules")
        if ref.branch is not None:
            if ref.head is not None:
                await self.read("update-ref", f"refs/heads/{ref.branch}", ref.head)
            await self.read("symbolic-ref", "HEAD", f"refs/heads/{ref.branch}")
        elif ref.head is not None:
            await self.read("update-ref", "--no-deref", "HEAD", ref.head)
        _, _, digest = await self.files_tree()
        if digest != ref.digest:
            raise TreeRefused(
                f"The files in {self.place.top} differ from the saved ones, because git is configured to convert "
                "them here. The saved tree is kept."
            )

    @contextlib.asynccontextmanager
    async def _index(self, *, copied: bool) -> Any:
        """A separate index, as a variable for git."""
        place = os.path.join(self.place.git_dir, f"index-{uuid.uuid4().hex}")
        try:
            if copied:
                await asyncio.to_thread(_copy, os.path.join(self.place.git_dir, "index"), place)
            yield {"GIT_INDEX_FILE": place}
        finally:
            for leftover in (place, f"{place}.lock"):
                with contextlib.suppress(OSError):
                    await asyncio.to_thread(private_files.remove_at, leftover)


def _included_patterns(top: str) -> list[str]:
    try:
        with open(os.path.join(top, _INCLUDE), "rb", opener=private_files.open_at) as file:
            lines = os.fsdecode(file.read(_MAX_INCLUDE)).splitlines()
    except OSError:
        return []
    return [line for line in lines if line.strip() and not line.startswith("#")][:_MAX_PATTERNS]


def _existing(top: str, listed: Iterable[str]) -> list[str]:
    """The files that exist now: a deleted tracked file does not. Skips everything behind a link."""
    found = []
    for name in dict.fromkeys(listed):
        with contextlib.suppress(OSError):
            if not stat.S_ISDIR(_status(os.path.join(top, name)).st_mode):
                found.append(name)
    return found


def _digest(top: str, listed: Sequence[str]) -> str:
    whole = hashlib.sha256()
    for name in sorted(listed):
        path = os.path.join(top, name)
        with private_files.directory_at(os.path.dirname(path)) as directory:
            kind, content = _content(path, directory)
        for part in (os.fsencode(name), kind, content):
            whole.update(len(part).to_bytes(8, "big") + part)
    return whole.hexdigest()


async def _checked(git: Git, *arguments: str, **how: Any) -> str:
    reply = await git.run(*arguments, **how)
    if reply.code:
        raise TreeRefused(f"git {arguments[0]}: {reply.reason}")
    return reply.output


def _status(path: str) -> os.stat_result:
    """The status of a file or of a link itself, not following links on the way."""
    with private_files.directory_at(os.path.dirname(path)) as directory:
        name = os.path.basename(path) if directory is not None else path
        return os.stat(name, dir_fd=directory, follow_symlinks=False)


def _content(path: str, directory: int | None) -> tuple[bytes, bytes]:
    """The properties by which git distinguishes files: the kind, and the bytes."""
    name = os.path.basename(path) if directory is not None else path
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        return b"link", os.fsencode(os.readlink(name, dir_fd=directory))
    whole = hashlib.sha256()
    with open(path, "rb", opener=private_files.open_at) as file:
        while block := file.read(1 << 20):
            whole.update(block)
    return (b"program" if status.st_mode & 0o100 else b"file"), whole.digest()


def _make_empty(directory: str) -> bool:
    """Whether the directory is empty now; creates it if missing. Raises TreeRefused if it has files and no `.git`."""
    os.makedirs(directory, exist_ok=True)
    found = os.listdir(directory)
    if found and ".git" not in found:
        raise TreeRefused(f"{directory} contains files but is not a checkout. Nothing was changed.")
    return not found


def _read_whole(path: str) -> bytes:
    with open(path, "rb", opener=private_files.open_at) as file:
        if os.fstat(file.fileno()).st_size > MAX_BYTES:
            raise TreeRefused("The tree is too large to be stored.")
        return file.read()


def _copy(source: str, target: str) -> None:
    """A missing index counts as empty."""
    with contextlib.suppress(FileNotFoundError):
        with open(source, "rb", opener=private_files.open_at) as file:
            content = file.read()
        with open(private_files.open_at(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as copy:
            copy.write(content)


def _shown(listed: Sequence[str]) -> str:
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")
