-- Reads keys of a task's base (data_plane/transport/state_base.py). Keys it reads: {p}:state:<task>:<range>.
-- ARGV: task, then all keys as one text: of each its range in 2 bytes, its length in 4, the key. Answers one text: of each value its length plus one in 4
-- bytes (0: there is none), then the value. One request and one answer for many keys: packing each as a command costs more than
-- the look-up.
local p = KEYS[1] .. ':state:' .. ARGV[1] .. ':'
local wanted, found, at = ARGV[2], {}, 1
while at <= #wanted do
  local range, size = struct.unpack('<I2I4', wanted, at)
  local value = redis.call('HGET', p .. range, string.sub(wanted, at + 6, at + 5 + size))
  found[#found + 1] = value and struct.pack('<I4', #value + 1) .. value or '\0\0\0\0'
  at = at + 6 + size
end
return {table.concat(found)}
