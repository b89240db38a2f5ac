"""The icon that clients show for this server."""

import base64

import mcp_types as types

_SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 512 512">'
    '<rect width="512" height="512" rx="96" fill="#24569f"/>'
    '<path d="M136 168l96 88-96 88M256 352h120" fill="none" stroke="#fff" stroke-width="44" stroke-linecap="round" '
    'stroke-linejoin="round"/></svg>'
)
_ADDRESS = f"data:image/svg+xml;base64,{base64.b64encode(_SVG.encode()).decode()}"
ICONS = [types.Icon(src=_ADDRESS, mime_type="image/svg+xml", sizes=["any"])]
