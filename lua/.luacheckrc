-- The scripts run inside Redis: Lua 5.1 with a few tables of its own.
std = "lua51"
read_globals = { "redis", "struct", "KEYS", "ARGV" }
max_line_length = 120
