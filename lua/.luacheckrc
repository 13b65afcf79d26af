-- The scripts run inside Redis: Lua 5.1 with a few tables of its own.
std = "lua51"
read_globals = { "redis", "struct", "KEYS", "ARGV" }
max_line_length = 120
-- Two files, one script: slow_path.lua goes in front of decide.lua.
files["**/slow_path.lua"].ignore = { "211/slow_path", "211/read_edges", "211/read_receipt", "211/read_token", "211/save_token" }
files["**/decide.lua"].read_globals = { "slow_path", "read_edges", "read_receipt", "read_token", "save_token" }
