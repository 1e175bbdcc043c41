-- Reads part of a task's base (data_plane/transport/state_base.py). Keys it reads: {p}:state:<task>:<range>.
-- ARGV: task, first range, number of ranges, most pairs. Answers the first range that it has not read, then keys and values, one
-- after the other; ranges are read whole.
local p = KEYS[1] .. ':state:' .. ARGV[1] .. ':'
local range, ranges, most = tonumber(ARGV[2]), tonumber(ARGV[3]), 2 * tonumber(ARGV[4])
local found, n = {}, 1
while range < ranges and n <= most do
  local words = redis.call('HGETALL', p .. range)
  for i = 1, #words do
    found[n + i] = words[i]
  end
  n = n + #words
  range = range + 1
end
found[1] = string.format('%.0f', range)
return found
