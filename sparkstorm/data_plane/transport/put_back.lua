-- The replay of dead letters: out of {p}:dead and into the streams of their tasks, all of one call or none.
-- Keys it writes: {p}:steps (see commit.lua), {p}:task:<task>, {p}:backlog, {p}:dead, {p}:replayed.
-- ARGV: a token of this call, then for each letter its id, its task and the frame, whose bytes count as backlog.
-- Answers {'OK', the ids that were put back: the others were dropped or replayed before}, {'UNOWNED', a task that no worker has
-- claimed}, {'HALF', begun, ended} or {'BROKEN', what {p}:generation says}. The same token again gives the same answer, so that a
-- call whose answer was cut may be sent again.
local p = KEYS[1]
local last = redis.call('GET', p .. ':replayed') or ''
if string.sub(last, 1, #ARGV[1]) == ARGV[1] then
  local answer = {'OK'}
  for id in string.gmatch(string.sub(last, #ARGV[1] + 1), '%S+') do
    answer[#answer + 1] = id
  end
  return answer
end
for i = 3, #ARGV, 3 do
  if redis.call('HEXISTS', p .. ':fence', ARGV[i]) == 0 then
    return {'UNOWNED', ARGV[i]}
  end
end
local begun, ended = unpack(redis.call('HMGET', p .. ':steps', 'begun', 'ended'))
if begun ~= ended then
  return {'HALF', begun or '0', ended or '0'}
end
local generation = redis.call('GET', p .. ':generation') or '0'
if not tonumber(generation) then
  return {'BROKEN', generation}
end
local step
local answer = {'OK'}
for i = 2, #ARGV, 3 do
  if #redis.call('XRANGE', p .. ':dead', ARGV[i], ARGV[i]) == 1 then
    if not step then  -- refused when memory is full: nothing has changed then
      step = redis.call('HINCRBY', p .. ':steps', 'begun', 1)
    end
    redis.call('XADD', p .. ':task:' .. ARGV[i + 1], '*', 'f', ARGV[i + 2])
    redis.call('HINCRBY', p .. ':backlog', ARGV[i + 1], #ARGV[i + 2])
    redis.call('XDEL', p .. ':dead', ARGV[i])
    answer[#answer + 1] = ARGV[i]
  end
end
if step then
  redis.call('SET', p .. ':replayed', ARGV[1] .. ' ' .. table.concat(answer, ' ', 2))
  redis.call('HSET', p .. ':steps', 'ended', step)
end
return answer
