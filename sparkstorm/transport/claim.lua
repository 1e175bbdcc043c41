-- The change of owners. Keys it writes: {p}:fence, {p}:owner, {p}:low, {p}:steps (see commit.lua).
-- ARGV: owner, k tasks, then their k tokens. Answers {'OK'}, {'ENDED'} when the topology has ended ({p}:ended, see end.lua),
-- or {'FENCED'|'HALF'|'FORMAT', detail}. The first claim writes the version of the topology's frames; one of another is refused.
-- Writes every token before anything is read by the new owner, or none at all when one of them is older than the stored one.
-- A former owner that has lost its last task no longer holds the low watermark down.
local p = KEYS[1]
local FRAMES = '2'  -- VERSION of transport/frames.py
local function number(value, key)
  local found = tonumber(value)
  if not found then
    error('DAMAGED[' .. key .. '][' .. tostring(value) .. ']')
  end
  return found
end
if redis.call('EXISTS', p .. ':ended') == 1 then
  return {'ENDED'}
end
local k = (#ARGV - 1) / 2
for i = 2, k + 1 do
  local stored = number(redis.call('HGET', p .. ':fence', ARGV[i]) or '0', p .. ':fence')
  if stored > tonumber(ARGV[k + i]) then
    return {'FENCED', ARGV[i], tostring(stored)}
  end
end
local begun, ended = unpack(redis.call('HMGET', p .. ':steps', 'begun', 'ended'))
if begun ~= ended then
  return {'HALF', begun or '0', ended or '0'}
end
local format = redis.call('HGET', p .. ':steps', 'format') or '1'
if format ~= FRAMES and redis.call('EXISTS', p .. ':fence') == 1 then
  return {'FORMAT', format, FRAMES}
end
redis.call('DEL', p .. ':nothing')  -- a first write that a full Redis allows: a claim must always be possible
local step = redis.call('HINCRBY', p .. ':steps', 'begun', 1)
redis.call('HSET', p .. ':steps', 'format', FRAMES)
local former = {}
for i = 2, k + 1 do
  local owner = redis.call('HGET', p .. ':owner', ARGV[i])
  if owner and owner ~= ARGV[1] then
    former[owner] = true
  end
  redis.call('HSET', p .. ':fence', ARGV[i], ARGV[k + i])
  redis.call('HSET', p .. ':owner', ARGV[i], ARGV[1])
end
for _, owner in ipairs(redis.call('HVALS', p .. ':owner')) do
  former[owner] = nil
end
for owner in pairs(former) do
  redis.call('HDEL', p .. ':low', owner)
end
redis.call('HSET', p .. ':steps', 'ended', step)
return {'OK'}
