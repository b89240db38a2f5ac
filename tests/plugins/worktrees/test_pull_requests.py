"""Pull requests: pushed over HTTP to a repository of git's own server, opened by a program in the place of `gh`, or of
`glab`."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from claude_code_mcp.core.errors import InvalidArgument, PermissionDenied
from claude_code_mcp.core.isolation import Home
from claude_code_mcp.plugins.worktrees.pull_requests import PullRequests, remote_at
from claude_code_mcp.plugins.worktrees.worktree_changes import WorktreeChanges
from claude_code_mcp.plugins.worktrees.worktrees import Worktrees
from tests.support.local_http import Handler, site
from tests.support.repositories import enforcer, git, repository

pytestmark = pytest.mark.programs

SESSION = "12345678-1234-4234-8234-123456789abc"


class GitHandler(Handler):
    """Git's smart protocol, by the program that git brings for it."""

    root: Path

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def _serve(self) -> None:
        path, _, query = self.path.partition("?")
        length = int(self.headers.get("Content-Length") or 0)
        variables = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REMOTE_USER": "somebody",
            "REMOTE_ADDR": "127.0.0.1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type") or "",
            "CONTENT_LENGTH": str(length),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding") or "",
        }
        command = ["git", "http-backend"]
        done = subprocess.run(command, env=variables, input=self.rfile.read(length), capture_output=True, check=True)
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().splitlines())
        self.send_response(int(fields.pop("Status", "200 OK").split()[0]))
        for name, value in fields.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of an empty repository, and where it is."""
    root = tmp_path / "upstream"
    bare = root / "owner" / "shop.git"
    bare.mkdir(parents=True)
    git(bare, "init", "-q", "--bare")
    git(bare, "config", "http.receivepack", "true")
    with site(type("GitOfRoot", (GitHandler,), {"root": root})) as url:
        yield f"{url}/owner/shop.git", bare


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """That of a user with a `gh` that notes how it was called."""
    programs = tmp_path / "programs"
    programs.mkdir()
    _write(
        programs / "gh",
        f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/called\ncat > {tmp_path}/body\nenv > {tmp_path}/environment\necho https://example.org/pull/7\n',
    )
    path = f"{programs}:{os.environ['PATH']}"
    return Home.of_user({"PATH": path, "HOME": str(tmp_path), "ANTHROPIC_API_KEY": "sk-secret", "GH_TOKEN": "gh-token"})


@pytest.fixture
def gitlab_home(tmp_path: Path, home: Home) -> Home:
    """That of a user who also has a `glab`, which answers as GitLab does, and tokens for it."""
    opened = json.dumps({"iid": 7, "web_url": "https://gitlab.example/owner/shop/-/merge_requests/7"})
    _write(
        tmp_path / "programs" / "glab",
        f"#!/bin/sh\nprintf '%s\\n' \"$@\" > {tmp_path}/called\ncat > {tmp_path}/body\nenv > {tmp_path}/environment\n"
        f"echo '{opened}'\n",
    )
    return Home.of_user({**home.environment, "GITLAB_TOKEN": "gl-token"})


def _set_up_glab(tmp_path: Path, host: str) -> None:
    file = tmp_path / ".config" / "glab-cli" / "config.yml"
    file.parent.mkdir(parents=True)
    file.write_text(
        "# glab\ngit_protocol: ssh\nhosts:\n    gitlab.com:\n        token:\n        user: x\n"
        f"    {host}:\n        user: y\n"
        "aliases:\n    github.com:\n"
    )


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    path.chmod(0o755)


async def _worktree(tmp_path: Path, home: Home, url: str) -> WorktreeChanges:
    repo = repository(tmp_path / "repo")
    git(repo, "remote", "add", "origin", url)
    worktree, _ = await Worktrees().make(home, enforcer(tmp_path), "local", str(repo), SESSION)
    _write(Path(worktree.path, "new.txt"), "new\n")
    return WorktreeChanges(home, worktree)


async def test_the_branch_is_pushed_and_gh_opens_the_request(
    tmp_path: Path, home: Home, upstream: tuple[str, Path]
) -> None:
    url, bare = upstream
    changes = await _worktree(tmp_path, home, url)
    requests = PullRequests(home, changes.worktree)
    remote = await requests.remote()
    assert remote is not None
    assert remote.repository == url.removeprefix("http://").removesuffix(".git")
    commit = await changes.commit("Add it", (await changes.plan()).digest)
    address = await requests.open(commit, "Add it", "Why: $(touch x) `y`", remote.repository)
    assert address == "https://example.org/pull/7"
    branch = changes.worktree.branch
    assert git(bare, "rev-parse", branch) == commit
    assert git(bare, "show", f"{branch}:new.txt") == "new"
    called = (tmp_path / "called").read_text().split("\n")[:-1]
    flags = ["--repo", remote.repository, "--head", branch, "--base", "main", "--title", "Add it", "--body-file", "-"]
    assert called == ["pr", "create", *flags]
    assert (tmp_path / "body").read_text() == "Why: $(touch x) `y`"
    environment = (tmp_path / "environment").read_text()
    assert ("gh-token" in environment, "sk-secret" in environment) == (True, False)


async def test_glab_opens_the_request_at_a_host_that_it_is_set_up_for(
    tmp_path: Path, gitlab_home: Home, upstream: tuple[str, Path]
) -> None:
    url, bare = upstream
    host = url.removeprefix("http://").partition("/")[0]
    _set_up_glab(tmp_path, host)
    changes = await _worktree(tmp_path, gitlab_home, url)
    requests = PullRequests(gitlab_home, changes.worktree)
    commit = await changes.commit("Add it")
    with pytest.raises(PermissionDenied, match="push"):
        await requests.open(commit, "Add it", "", "gitlab.com/somebody/else")
    address = await requests.open(commit, "Add it", "Why: $(touch x) `y`", f"{host}/owner/shop")
    assert address == "https://gitlab.example/owner/shop/-/merge_requests/7"
    branch = changes.worktree.branch
    assert git(bare, "rev-parse", branch) == commit
    called = (tmp_path / "called").read_text().split("\n")[:-1]
    sent = ["--method", "POST", "--header", "Content-Type: application/json", "--input", "-"]
    assert called == ["api", "projects/owner%2Fshop/merge_requests", "--hostname", host, *sent]
    assert json.loads((tmp_path / "body").read_text()) == {
        "source_branch": branch,
        "target_branch": "main",
        "title": "Add it",
        "description": "Why: $(touch x) `y`",
    }
    environment = (tmp_path / "environment").read_text()
    assert ("gl-token" in environment, "sk-secret" in environment) == (False, False), "it is for gitlab.com"


async def test_a_token_of_the_environment_goes_to_the_host_that_it_is_for(
    tmp_path: Path, gitlab_home: Home, upstream: tuple[str, Path]
) -> None:
    url, _ = upstream
    host = url.removeprefix("http://").partition("/")[0]
    named = Home.of_user({**gitlab_home.environment, "GITLAB_HOST": f"http://{host}/"})
    changes = await _worktree(tmp_path, named, url)
    commit = await changes.commit("Add it")
    await PullRequests(named, changes.worktree).open(commit, "Add it", "", f"{host}/owner/shop")
    assert "gl-token" in (tmp_path / "environment").read_text()


@pytest.mark.parametrize("named", [True, pytest.param(False, marks=pytest.mark.soak)])
async def test_a_token_for_the_companys_github_goes_to_no_other_host_not_even_with_the_push(
    tmp_path: Path, home: Home, upstream: tuple[str, Path], named: bool
) -> None:
    url, _ = upstream
    host = url.removeprefix("http://").partition("/")[0]
    company = {"GH_ENTERPRISE_TOKEN": "ge-token", "GH_HOST": host if named else "github.example"}
    noting = f'case "$*" in *" push "*) env > {tmp_path}/of-git;; esac'
    _write(tmp_path / "programs" / "git", f'#!/bin/sh\n{noting}\nexec {shutil.which("git")} "$@"\n')
    own = Home.of_user({**home.environment, **company})
    changes = await _worktree(tmp_path, own, url)
    commit = await changes.commit("Add it")
    await PullRequests(own, changes.worktree).open(commit, "Add it", "", f"{host}/owner/shop")
    assert ["ge-token" in (tmp_path / file).read_text() for file in ("environment", "of-git")] == [named, named]


async def test_glab_error_is_forwarded(tmp_path: Path, gitlab_home: Home, upstream: tuple[str, Path]) -> None:
    url, _ = upstream
    host = url.removeprefix("http://").partition("/")[0]
    _set_up_glab(tmp_path, host)
    _write(tmp_path / "programs" / "glab", "#!/bin/sh\ncat > /dev/null\necho 'glab: 409 Conflict' >&2\nexit 1\n")
    changes = await _worktree(tmp_path, gitlab_home, url)
    commit = await changes.commit("Add it")
    with pytest.raises(InvalidArgument, match=r"glab\b.*\b1: glab: 409 Conflict"):
        await PullRequests(gitlab_home, changes.worktree).open(commit, "Add it", "", f"{host}/owner/shop")


async def test_the_host_says_which_program_it_takes(tmp_path: Path, home: Home, gitlab_home: Home) -> None:
    _set_up_glab(tmp_path, "git.example.org")
    changes = await _worktree(tmp_path, home, "https://github.com/owner/shop.git")
    programs = tmp_path / "programs"

    async def is_possible(url: str) -> bool:
        git(changes.worktree.repository, "remote", "set-url", "origin", url)
        return await PullRequests(gitlab_home, changes.worktree).remote() is not None

    at_gitlab = ["https://gitlab.com/group/sub/shop.git", "git@gitlab.example.org:a/b/c/shop.git"]
    at_gitlab += ["ssh://git@git.example.org:2222/owner/shop.git"]
    elsewhere = ["https://github.com/owner/shop.git", "git@other.example.org:owner/shop.git"]
    both = {url: await is_possible(url) for url in (*at_gitlab, *elsewhere)}
    assert all(both.values()), both
    assert not await is_possible("https://github.com/owner/group/shop.git")
    (programs / "gh").rename(tmp_path / "gh")
    assert [await is_possible(url) for url in (*at_gitlab, *elsewhere)] == [True] * 3 + [False] * 2
    (tmp_path / "gh").rename(programs / "gh")
    (programs / "glab").unlink()
    assert [await is_possible(url) for url in (*at_gitlab, *elsewhere)] == [False] * 3 + [True] * 2
    # It is named where it is missing too: that is what a person is told.
    for url, program in ((at_gitlab[0], "glab"), (elsewhere[0], "gh"), ("/srv/no-host", "gh")):
        git(changes.worktree.repository, "remote", "set-url", "origin", url)
        assert await PullRequests(gitlab_home, changes.worktree).program_name() == program


async def test_nothing_that_a_session_has_configured_runs_or_leads_elsewhere(
    tmp_path: Path, home: Home, upstream: tuple[str, Path]
) -> None:
    url, bare = upstream
    changes = await _worktree(tmp_path, home, url)
    repo, marker = Path(changes.worktree.repository), tmp_path / "ran"
    hook = Path(changes.worktree.common_dir, "hooks", "pre-push")
    _write(hook, f"#!/bin/sh\ntouch {marker}\n")
    for name, value in {
        "core.sshCommand": f"touch {marker}; ssh",
        "credential.helper": f"!touch {marker}; echo",
        "remote.origin.pushurl": f"ext::sh -c 'touch {marker}'",
        "remote.origin.receivepack": f"touch {marker}",
        f"url.ext::touch {marker}#.pushInsteadOf": "http://127.0.0.1",
        "core.gitProxy": f"touch {marker}",
    }.items():
        git(repo, "config", name, value)
    requests = PullRequests(home, changes.worktree)
    remote = await requests.remote()
    assert remote is not None
    commit = await changes.commit("Add it")
    await requests.open(commit, "Add it", "", remote.repository)
    assert git(bare, "rev-parse", changes.worktree.branch) == commit
    assert not marker.exists()


async def test_another_remote_than_the_one_that_was_shown_is_not_pushed_to(
    tmp_path: Path, home: Home, upstream: tuple[str, Path]
) -> None:
    url, bare = upstream
    changes = await _worktree(tmp_path, home, url)
    requests = PullRequests(home, changes.worktree)
    commit = await changes.commit("Add it")
    with pytest.raises(PermissionDenied, match="push"):
        await requests.open(commit, "Add it", "", "github.com/somebody/else")
    # What is at the branch already is not overwritten either.
    other = git(changes.worktree.repository, "commit-tree", "HEAD^{tree}", "-m", "Other")
    git(changes.worktree.repository, "push", "-q", url, f"{other}:refs/heads/{changes.worktree.branch}")
    remote = await requests.remote()
    assert remote is not None
    with pytest.raises(InvalidArgument, match=r"git\b.*\b1\b"):
        await requests.open(commit, "Add it", "", remote.repository)
    assert git(bare, "rev-parse", changes.worktree.branch) == other
    assert not (tmp_path / "called").exists()


async def test_without_gh_or_a_remote_there_is_none(tmp_path: Path, home: Home) -> None:
    changes = await _worktree(tmp_path, home, "https://github.com/owner/shop.git")
    assert await PullRequests(home, changes.worktree).remote() is not None
    plain = Home.of_user({"PATH": "/nowhere", "HOME": str(tmp_path)})
    assert await PullRequests(plain, changes.worktree).remote() is None
    git(changes.worktree.repository, "remote", "remove", "origin")
    assert await PullRequests(home, changes.worktree).remote() is None


@pytest.mark.parametrize(
    ("url", "repository"),
    [
        ("https://github.com/owner/shop.git", "github.com/owner/shop"),
        ("https://user:secret@github.com/owner/shop", "github.com/owner/shop"),
        ("git@github.com:owner/shop.git", "github.com/owner/shop"),
        ("ssh://git@host.example:2222/owner/sh-op.x.git", "host.example:2222/owner/sh-op.x"),
        ("https://gitlab.com/group/sub/shop.git", "gitlab.com/group/sub/shop"),
        ("https://gitlab.com/group/../shop", None),
        ("https://gitlab.com/group//shop", None),
        ("ext::sh -c 'touch x'", None),
        ("file:///srv/shop.git", None),
        ("/srv/owner/shop.git", None),
        ("--upload-pack=touch:owner/shop", None),
        ("-oProxyCommand=x@host:owner/shop", None),
        ("https://github.com/owner/shop\n--evil", None),
        ("https://github.com/../shop", None),
        ("", None),
    ],
)
def test_only_an_address_on_the_web_or_behind_ssh_is_one(url: str, repository: str | None) -> None:
    found = remote_at(url)
    assert (found.repository if found is not None else None) == repository
