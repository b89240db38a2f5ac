# Starts send_event.py if a claude-code-mcp server of this user runs; otherwise ends at once. A dialog stands while its hook
# runs, and the server may start with the terminal: that hook waits for one.
#
#     send_event.sh EVENT [DIRECTORY] [PYTHON]

[ "$CLAUDE_CODE_ENTRYPOINT" = cli ] && [ -z "$CLAUDE_CODE_MCP_DEPTH" ] || exit 0
state=$HOME/.local/state
[ -d "$HOME/Library/Application Support" ] && state="$HOME/Library/Application Support"
directory=${2:-${CLAUDE_CODE_MCP_STATE_DIR:-${XDG_STATE_HOME:-$state}/claude-code-mcp}/terminal}
for socket in "$directory"/*.sock; do
    [ -S "$socket" ] || [ "$1" = PermissionRequest ] || exit 0
    exec "${3:-python3}" -I -S "${0%/*}/send_event.py" "$1" "$directory" 2>/dev/null
done
