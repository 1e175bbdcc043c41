-- The end of a topology id, first half: nothing claims or commits under it any more. Keys it writes: {p}:ended (the tombstone:
-- the id of the heir while the data is moved there, else '') and those of its processes, which go: a commit finds no fence.
-- ARGV: milliseconds for which the tombstone is kept, the heir or ''. Answers {what the tombstone says now}.
-- A tombstone with an heir may lose it (a hand-over that was called off); one without never gets an heir: what is handed over
-- is handed over once, whoever asks again, and however late.
local p = KEYS[1]
local said = redis.call('GET', p .. ':ended')
redis.call('DEL', p .. ':fence', p .. ':owner', p .. ':seq', p .. ':low')  -- a full Redis allows it
if not said or ARGV[2] == '' then
  said = ARGV[2]
end
if said == '' then
  redis.call('DEL', p .. ':progress', p .. ':earlier')  -- an heir's counts begin with what is under way by these
end
redis.call('SET', p .. ':ended', said, 'PX', ARGV[1])
return {said}
