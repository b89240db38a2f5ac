"""What the policy reads is what bash, dash and zsh run: random commands, and every one that was once read wrongly.

`make soak` tries a million of them, here it is some thousand.
"""

import shlex

import pytest

from benchmarks.shell_commands import AROUND, BEHIND, IN_CODE, SPELLINGS
from benchmarks.shell_fuzz import is_allowed, may_pass, problems_in, try_hidden, try_plain
from benchmarks.shells import MAIN, SHELLS, Shell, Trap, effects, scratch_directory
from claude_code_mcp.policy.rules import parse_rule

SEED = 1
INPUTS = 2000

ONCE_ALLOWED = [
    "git diff &</dev/null touch X",
    "git diff & </dev/null touch X",
    "git diff; </dev/null touch X",
    "git diff &>/dev/null touch X",
    "git diff &>>/dev/null touch X",
    "git diff&>/dev/null touch X",
    "git diff <>/dev/null",
    "git diff 1&>/dev/null",
    'git diff ""~',
    "git diff 2>&1 2>/dev/null || 2>/dev/null touch X",
    "git diff |",
    "git diff &&",
    "git diff ;; touch X",
    "echo a &| >&2\n",
    "git diff 'a''b'",
    "git diff =ls",
    "if git diff",
    "git diff; - touch X",
    "test -v 'a[$(touch X)]'",
    "printf -v 'a[$(touch X)]' b",
]
"""Found by the random commands or by an attacker: read as `git diff` alone, or as words that a shell does not see."""

ORDINARY = """\
ls -la
git diff --stat HEAD~1
git log --oneline -5 | head -3
git rm old.txt
git commit -m 'drop the rm call; push later'
git add -A && git commit -m "fix"
git -C sub status
git pull --rebase
git config user.name Me
git checkout -b push-fix
npm run build -- --watch
pytest -q tests/x.py -k 'a and b'
python -m pytest -q
python3 script.py --check -c 3
python -u manage.py migrate
python3.11 -m venv .venv
pip install a==1.2
node server.js -p 3000
make -j4 build
grep -rn 'foo$' src
grep -rn "rm -rf" scripts
find . -name '*.py' | xargs grep -n foo
cat package.json | jq '.scripts'
awk '{print $1}' file
awk -F, 'NR>1 || $2 > 3 {s+=$2} END {print s}' f.csv
sed -n '1,40p' file
sed -i 's/foo/bar/g' file
sed -e 's/a\\.b/c/' -e '/x/d' file
echo 'rm x'
timeout 60 grep 'foo$' x
env FOO=bar npm test
sudo apt-get install -y jq
source .venv/bin/activate && pytest
source .venv/bin/activate && grep 'foo$' src/x
chmod +x run.sh && ./run.sh
cat build.sh && bash build.sh
cp a.txt b.txt
bash scripts/build.sh
sh -c 'ls -la'
./build.sh --fast
docker compose up -d
docker run -p 80:80 nginx
uv run pytest -q
npx tsc --noEmit
npm exec tsc
curl -s https://example.org | jq .
tar xzf a.tgz
mkdir -p a/b && touch a/b/c
sort f | uniq -c | sort -rn
pytest 2>&1 | tail -5
git diff 2>/dev/null || true"""


def present(shell: Shell) -> Shell:
    if shell.path is None:
        pytest.skip(f"{shell.argv[0]} is not installed")
    return shell


def in_code(template: str, command: str) -> str:
    return template.replace("{}", command).replace("{{", "{").replace("}}", "}")


HIDDEN = [
    *(f"{behind} zap x" for behind in BEHIND),
    *(in_code(around, shlex.quote("zap x")) for around in AROUND),
    *(in_code(code, "zap x") for code in IN_CODE),
    *(spelling.replace("{bin}", "/bin") + " x" for spelling in SPELLINGS),
    "echo 'z\\ap x' | tee f; sh f",
    "echo 'z\\ap x' | tee f; nice sh f",
    "echo emFwIHg= | base64 -d | tee f; sh f",
    "echo yap x | tr y z | tee f; nice ./f",
    "echo 'import os' | python3 -m code",
    "echo 'zap x' | builtin . /dev/stdin",
    "echo 'zap x' | find . -maxdepth 0 -execdir sh ';'",
    "echo zap x | xargs ./run",
    "cp /bin/zap z; ./z x",
    "cat /bin/zap | tee z; chmod +x z; ./z x",
    "make MAKEFILES=/dev/stdin",
    "hash -p /bin/zap z; z x",
    """eval 'eval 'exec z'"'"''"'"'ap x''""",
    "eval z'\"\"'ap x",
    "echo emFwIHg= | base64 -d | sh -o vi",
    "echo emFwIHg= | base64 -d | bash -O extglob",
    "cd /dev; echo emFwIHg= | base64 -d | sh stdin",
    "echo emFwIHg= | base64 -d | SH",
    "uv run python -c 'import os'",
    "docker exec -i box sh",
    "npx -y tsx -e 'x()'",
    "/lib64/ld-linux-x86-64.so.2 /bin/zap x",
    "unheard-of-wrapper -c 'zap x'",
    "unheard-of-wrapper -czap x",
    "unheard-of-wrapper '$(echo z)ap x'",
    "unheard-of-wrapper '/bin/z?p' x",
]


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell.name)
def test_what_is_allowed_is_what_a_shell_runs(shell: Shell) -> None:
    count = try_plain(SEED, 0, INPUTS, [present(shell)])
    assert count.allowed > INPUTS / 5
    assert count.problems == []


@pytest.mark.parametrize("command", ONCE_ALLOWED)
def test_what_was_once_read_wrongly_is_asked(command: str) -> None:
    assert not is_allowed(command)


@pytest.mark.parametrize("shell", MAIN, ids=lambda shell: shell.name)
def test_a_shell_does_more_than_was_read_of_what_was_once_allowed(shell: Shell) -> None:
    with scratch_directory() as place:
        done = effects(present(shell), ["git diff &</dev/null touch X", "git diff >X"], place)
    assert ("touch", "X") in done[0].calls
    assert done[1].files == ("X",)
    assert problems_in(["git diff; $(echo touch) X"], [shell]) != []


def test_however_a_denied_program_is_hidden_the_command_is_denied_or_asked() -> None:
    assert [command for command in HIDDEN if may_pass(command)] == []


def test_the_commands_that_hide_it_do_call_the_program() -> None:
    shell = present(MAIN[0])
    samples = ["sh -c {}", "echo {} | sh", "trap {} EXIT", "env -S {}", "eval {}", "echo {} | xargs env"]
    with scratch_directory() as place:
        trap = Trap(place, "zap")
        assert not trap.catches(shell, "echo zap")
        assert [code for code in samples if not trap.catches(shell, in_code(code, "'zap x'"))] == []


def test_what_passes_beside_a_denial_does_not_call_the_denied_program() -> None:
    count = try_hidden(SEED, 0, 300, [present(MAIN[0])])
    assert count.allowed > 0
    assert count.problems == []


@pytest.mark.parametrize("command", ORDINARY.splitlines())
def test_ordinary_commands_pass_beside_a_denial(command: str) -> None:
    assert may_pass(command, [parse_rule("Bash(rm *)"), parse_rule("Bash(git push *)")])
