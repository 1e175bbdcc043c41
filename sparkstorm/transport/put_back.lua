-- The replay of one dead letter: out of {p}:dead and into the stream of its task, both or neither.
-- Keys it writes: {p}:steps (see commit.lua), {p}:task:<task>, {p}:backlog, {p}:dead, {p}:replayed.
-- ARGV: a token of this call, the letter's id, its task, the frame, the bytes that count as backlog.
-- Answers {'OK'}, {'MISSING'} (dropped or replayed before), {'UNOWNED'} (no worker has claimed the task), {'HALF', begun, ended}
-- or {'BROKEN', what {p}:generation says}. The same token again: 'OK', so that a call whose answer was cut may be sent again.
local p = KEYS[1]
if redis.call('GET', p .. ':replayed') == ARGV[1] then
  return {'OK'}
end
if redis.call('HEXISTS', p .. ':fence', ARGV[3]) == 0 then
  return {'UNOWNED'}
end
local begun, ended = unpack(redis.call('HMGET', p .. ':steps', 'begun', 'ended'))
if begun ~= ended then
  return {'HALF', begun or '0', ended or '0'}
end
local generation = redis.call('GET', p .. ':generation') or '0'
if not tonumber(generation) then
  return {'BROKEN', generation}
end
if #redis.call('XRANGE', p .. ':dead', ARGV[2], ARGV[2]) == 0 then
  return {'MISSING'}
end
local step = redis.call('HINCRBY', p .. ':steps', 'begun', 1)  -- refused when memory is full: nothing has changed then
redis.call('XADD', p .. ':task:' .. ARGV[3], '*', 'f', ARGV[4])
redis.call('HINCRBY', p .. ':backlog', ARGV[3], ARGV[5])
redis.call('XDEL', p .. ':dead', ARGV[2])
redis.call('SET', p .. ':replayed', ARGV[1])
redis.call('HSET', p .. ':steps', 'ended', step)
return {'OK'}
