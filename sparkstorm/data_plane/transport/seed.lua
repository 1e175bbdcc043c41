-- Owns the beginning of a task's journal, written before any worker lives. Keys it writes: {p}:seed:<task>, {p}:journal:<task>,
-- {p}:state:<task>:<range>.
-- ARGV: task, what it is ('begin': forget what an earlier try left, 'more', 'end': give it its place), then entries; of the base of
-- a lazy state, which is written before the journal: 'clear' and the number of ranges, 'base' and range, key, value of each,
-- 'size' and the number of ranges. Answers {'OK'}, to 'size' the number of keys too.
-- Any call may come twice: entries set keys to values, and so may stand twice.
-- Refused once anybody has ever claimed a task of the topology, what is there then is newer than any checkpoint, and once it
-- has ended.
local p = KEYS[1]
if redis.call('EXISTS', p .. ':fence', p .. ':ended') > 0 then
  return {'CLAIMED'}
end
local sown = p .. ':seed:' .. ARGV[1]
local base, what = p .. ':state:' .. ARGV[1] .. ':', ARGV[2]
if what == 'size' then
  local size = 0
  for range = 0, ARGV[3] - 1 do
    size = size + redis.call('HLEN', base .. range)
  end
  return {'OK', size}
end
if what == 'clear' or what == 'base' then
  if redis.call('EXISTS', p .. ':journal:' .. ARGV[1]) == 1 then
    return {'OK'}
  end
  for range = 0, what == 'clear' and ARGV[3] - 1 or -1 do
    redis.call('DEL', base .. range)
  end
  for i = 3, what == 'base' and #ARGV or 0, 3 do
    redis.call('HSET', base .. ARGV[i], ARGV[i + 1], ARGV[i + 2])
  end
  return {'OK'}
end
if ARGV[2] == 'begin' then
  redis.call('DEL', sown)
end
for i = 3, #ARGV do
  redis.call('RPUSH', sown, ARGV[i])
end
if ARGV[2] == 'end' and redis.call('EXISTS', sown) == 1 then
  redis.call('RENAME', sown, p .. ':journal:' .. ARGV[1])
end
return {'OK'}
