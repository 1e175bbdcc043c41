-- The change of owners, and the store's incarnation. Keys it writes: {p}:fence, {p}:owner, {p}:low, {p}:generation,
-- {p}:steps (see commit.lua; also id: the incarnation, took:<id> for each former one, left:<id> the last write of it that was left
-- while nobody has accepted a loss of more than its tail, origin: the topology id at the first claim).
-- ARGV: owner, what it knows of the store (incarnation or '', generation, step, floor), '1' if it accepts the loss of more than the
-- tail, the id of a new incarnation, then k tasks and their k tokens.
-- Answers {'OK', incarnation, origin, step, '1' if more than the tail was lost, the step and time in seconds of what was left},
-- {'LOST', step, time in seconds}: more than the tail was lost and nothing was written, {'ENDED'} when the topology has ended ({p}:ended, see end.lua),
-- or {'FENCED'|'HALF'|'FORMAT', detail}. The first claim writes the version of the topology's frames; one of another is refused.
-- Writes every token before anything is read by the new owner, or none at all when one of them is older than the stored one.
-- A former owner that has lost its last task no longer holds the low watermark down.
local p = KEYS[1]
local FRAMES = '4'  -- VERSION of data_plane/transport/frames.py
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
local KNOWN = 7  -- words before the tasks
local k = (#ARGV - KNOWN) / 2
for i = KNOWN + 1, KNOWN + k do
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
local known, known_generation, known_step, floor = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local id, at = unpack(redis.call('HMGET', p .. ':steps', 'id', 'at'))
local generation, last = redis.call('GET', p .. ':generation') or '0', tonumber(ended or '0')
local is_behind, is_lost, left = false, false, last
if known ~= '' and tonumber(generation) and last then  -- of a broken generation the claimer says so itself
  if id == known then
    is_behind = last < known_step or tonumber(generation) < known_generation
    is_lost = last < floor
  elseif not id or redis.call('HEXISTS', p .. ':steps', 'took:' .. known) == 0 then
    -- Emptied: no write is left, or only writes of a claimer without a mark (what follows a first incarnation has its took:<id>).
    -- That is never a tail: sources would read again from their beginning.
    local is_emptied = last == 0 or known_generation == 0
    is_behind, is_lost = true, is_emptied or floor > 0
    left = is_emptied and 0 or left
  else
    -- a claimer that knew less has taken the loss for a tail: this one may know better
    left = tonumber(redis.call('HGET', p .. ':steps', 'left:' .. known) or '')
    is_lost = left and left < floor
    at = '0'
  end
end
if is_lost and ARGV[6] ~= '1' then
  return {'LOST', tostring(left), at or '0'}
end
redis.call('DEL', p .. ':nothing')  -- a first write that a full Redis allows: a claim must always be possible
if is_behind then
  -- steps go on behind the newest known one: what is known of the former incarnation accuses the new one no more
  redis.call('HSET', p .. ':steps', 'begun', string.format('%.0f', math.max(last, known_step)))
  for _, former in ipairs({known, id or known}) do
    redis.call('HSET', p .. ':steps', 'took:' .. former, '1', 'left:' .. former, string.format('%.0f', last))
  end
  redis.call('SET', p .. ':generation', string.format('%.0f', math.max(tonumber(generation), known_generation) + 1))
end
if is_lost then
  redis.call('HDEL', p .. ':steps', 'left:' .. known, 'left:' .. (id or known))
end
local origin = redis.call('HGET', p .. ':steps', 'origin')
if not origin then
  origin = string.gsub(p, '[{}]', '')
  redis.call('HSET', p .. ':steps', 'origin', origin)
end
if is_behind or not id then
  id = ARGV[7]
  redis.call('HSET', p .. ':steps', 'id', id)
end
local step = redis.call('HINCRBY', p .. ':steps', 'begun', 1)
redis.call('HSET', p .. ':steps', 'format', FRAMES)
local former = {}
for i = KNOWN + 1, KNOWN + k do
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
redis.call('HSET', p .. ':steps', 'ended', step, 'at', redis.call('TIME')[1])
return {'OK', id, origin, step, is_lost and '1' or '', tostring(left or '0'), at or '0'}
