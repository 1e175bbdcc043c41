-- Owns the one atomic step of an epoch. Keys it reads: {p}:fence (task -> token), {p}:generation, {p}:seq (owner -> n).
-- Everything it writes comes as commands in ARGV, already named by the transport.
-- ARGV: owner, generation, seq, number of fences k, k tasks, k tokens, number of watched tasks w, w tasks,
--       then each command as its length and its words.
-- Answers {'OK', backlog of each watched task}, or {'FENCED'|'ROLLED_BACK', detail}. The same owner and seq again: 'OK'.
local p = KEYS[1]
local owner, generation, seq = ARGV[1], ARGV[2], tonumber(ARGV[3])
local k = tonumber(ARGV[4])
local at = 5
local stored = redis.call('HMGET', p .. ':fence', unpack(ARGV, at, at + k - 1))
for i = 1, k do
  if stored[i] ~= ARGV[at + k + i - 1] then
    return {'FENCED', ARGV[at + i - 1], stored[i] or 'none'}
  end
end
at = at + 2 * k
local current = redis.call('GET', p .. ':generation') or '0'
local last = tonumber(redis.call('HGET', p .. ':seq', owner) or '0')
if current ~= generation or (last ~= seq - 1 and last ~= seq) then
  if current == generation then
    redis.call('INCR', p .. ':generation')
  end
  return {'ROLLED_BACK', current, tostring(last)}
end
local w = tonumber(ARGV[at])
local watched = at + 1
at = watched + w
if last == seq - 1 then
  redis.call('HSET', p .. ':seq', owner, seq)
  local n = #ARGV
  while at <= n do
    local words = tonumber(ARGV[at])
    redis.call(unpack(ARGV, at + 1, at + words))
    at = at + words + 1
  end
end
local answer = {'OK'}
if w > 0 then
  local backlog = redis.call('HMGET', p .. ':backlog', unpack(ARGV, watched, watched + w - 1))
  for i = 1, w do
    answer[i + 1] = backlog[i] or '0'
  end
end
return answer
