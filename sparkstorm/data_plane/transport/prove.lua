-- Whether a store still has what an owner in another cell has read from it. Changes nothing.
-- Keys it reads: {p}:ended, {p}:generation, {p}:steps, {p}:freed, {p}:task:<task>.
-- ARGV: number of tasks n, then n pairs (task, entry of its cursor, '0-0' for none), then pairs (task, entry) that were read and are
-- not consumed.
-- Answers {'OK'}; {'LOST', then of each task of which consumed entries are gone, or were freed before its cursor: the task and the
-- entry behind which all that is there begins}; {'GONE', task, entry} when one that was only read is gone; {'ENDED'}, or
-- {'BROKEN', what was found} when no owner may read from it (see commit.lua).
local p, n = KEYS[1], tonumber(ARGV[1])
if redis.call('EXISTS', p .. ':ended') == 1 then
  return {'ENDED'}
end
local generation = redis.call('GET', p .. ':generation') or '0'
local begun, ended = unpack(redis.call('HMGET', p .. ':steps', 'begun', 'ended'))
if not tonumber(generation) or begun ~= ended then
  return {'BROKEN', tonumber(generation) and 'half a commit' or generation}
end

local function has(task, entry)
  return #redis.call('XRANGE', p .. ':task:' .. task, entry, entry) == 1
end

local lost = {'LOST'}
for i = 2, 2 * n, 2 do
  local task, entry = ARGV[i], ARGV[i + 1]
  local freed = redis.call('HGET', p .. ':freed', task) or '0-0'
  -- the entry of a cursor stays until a later one is passed: where it is missing, one of the two stores went back
  if entry ~= freed and (entry == '0-0' or not has(task, entry)) then
    lost[#lost + 1], lost[#lost + 2] = task, freed
  end
end
if #lost > 1 then
  return lost
end
for i = 2 * n + 2, #ARGV, 2 do
  if not has(ARGV[i], ARGV[i + 1]) then
    return {'GONE', ARGV[i], ARGV[i + 1]}
  end
end
return {'OK'}
