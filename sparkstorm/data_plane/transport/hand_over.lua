-- The end of a topology id, second half, when it has an heir: the data moves there, all of it or nothing.
-- Keys it writes: {p}:ended, {p}:progress, {p}:earlier, the heir's progress, and those that are named, which are renamed.
-- ARGV: the heir, the prefix of its keys, milliseconds for which the tombstone is kept, the owner and the record with which the
-- heir's counts begin, then names of keys behind the prefix.
-- Answers {'OK'}, also when the data has moved before or was dropped since: then nothing is done.
local p, heir, heirs = KEYS[1], ARGV[1], ARGV[2]
if redis.call('GET', p .. ':ended') ~= heir then
  return {'OK'}
end
local had_counts = redis.call('DEL', p .. ':progress', p .. ':earlier') > 0
for i = 6, #ARGV do
  if redis.call('EXISTS', p .. ARGV[i]) == 1 then
    redis.call('RENAME', p .. ARGV[i], heirs .. ARGV[i])
  end
end
-- Of a store that was emptied meanwhile nothing moves. A key of the heir alone would stay for ever, should the heir be forgotten
-- before its first claim: data without a claim is not named among what ZooKeeper has lost.
if had_counts then
  redis.call('HSET', heirs .. ':progress', ARGV[4], ARGV[5])
end
redis.call('SET', p .. ':ended', '', 'PX', ARGV[3])
return {'OK'}
