-- Owns the beginning of a task's journal, written before any worker lives. Keys it writes: {p}:seed:<task>, {p}:journal:<task>.
-- ARGV: task, what it is ('begin': forget what an earlier try left, 'more', 'end': give it its place), then entries.
-- Any call may come twice: entries set keys to values, and so may stand twice.
-- Refused once anybody has ever claimed a task of the topology, what is there then is newer than any checkpoint, and once it
-- has ended.
local p = KEYS[1]
if redis.call('EXISTS', p .. ':fence', p .. ':ended') > 0 then
  return {'CLAIMED'}
end
local sown = p .. ':seed:' .. ARGV[1]
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
